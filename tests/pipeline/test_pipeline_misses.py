"""A missed question names the step that lost its gold, with the ranks of the lists that had it."""

import numpy as np
import pandas as pd
import pytest
from cli_project import CONFIG, Project

from rag_eval.core.settings import Settings
from rag_eval.pipeline.measure_stages import MissedQuestions
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.stages import open_runner
from rag_eval.pipeline.strategy_runs import open_runs
from rag_eval.uncertainty.misses import describe_miss

LSA = "embedding: {model: lsa-8}"
STRATEGIES = f"""\
  - {{name: bm25, kind: bm25}}
  - {{name: vector, kind: vector, {LSA}}}
  - {{name: hybrid, kind: hybrid, {LSA}}}
  - {{name: lexical, kind: hybrid, alpha: 1, beta: 0, {LSA}}}
  - {{name: mmr, kind: hybrid, {LSA}, rerank: {{kind: mmr, lambda: 0.1}}}}
"""
WORDS = "kiln barge lathe anvil sluice gantry spindle hopper flange rivet".split()


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Return the missed questions of a corpus whose gold stands behind longer documents."""
    project = Project(tmp_path_factory.mktemp("misses"))
    for at, word in enumerate(WORDS):
        # The named word recurs in the first documents, so the gold of `deep` ranks behind them.
        text = f"{word} valve " * (4 + at) + f"{word} gauge\n"
        for copy in range(2):
            (project.corpus / f"{word}{copy}.md").write_text(f"{text} part {copy}\n")
    filler = " ".join(f"note{number}" for number in range(40))
    (project.corpus / "deep.md").write_text(f"A valve stands here. {filler}\n")
    for name in (*(f"copy{at:02}" for at in range(11)), "gold"):
        (project.corpus / f"{name}.md").write_text("Quench the blade in warm brine.\n")
    project.write(
        "gold_set.yaml",
        CONFIG.partition("strategies:")[0]
        + f"strategies:\n{STRATEGIES}nightly: false\n"
        + "gates: {required: [], advisory: [], min_queries: 50}\n",
    )
    project.ask(
        {
            "deep": "kiln barge lathe anvil sluice gantry valve gauge",
            "absent": "zyx",
        },
        {"deep": "deep.md", "absent": "gold.md"},
    )
    evaluation = open_gold_set(
        project.gold,
        Settings(home=project.home, reports=project.reports, gold_sets=project.gold.parent),
    )
    return evaluation, open_runner(evaluation).get(MissedQuestions)


def rows(traced, strategy):
    missed = traced[1].missed
    return missed[missed["strategy"] == strategy].set_index("query_id")


def test_steps_end_at_the_rank_of_the_run(traced):
    runs = open_runs(open_runner(traced[0]))
    for name in ("bm25", "vector", "hybrid", "lexical"):
        found = rows(traced, name)
        assert len(found) == traced[1].about[name].n_missed > 0
        ended = found["ranked"].where(found["ranked"] <= runs.config.depth)
        pd.testing.assert_series_equal(ended, found["final"], check_names=False)


def test_lists_before_fusion_are_those_of_the_single_retrievers(traced):
    for step, name in (("lexical", "bm25"), ("vector", "vector")):
        alone, fused = rows(traced, name)["ranked"], rows(traced, "hybrid")[step]
        both = alone.index.intersection(fused.index)
        assert "deep" in both
        pd.testing.assert_series_equal(alone[both], fused[both], check_names=False)


def test_lost_steps_are_counted(traced):
    for name, part in traced[1].about.items():
        found = rows(traced, name)
        assert part.lost == found["lost"].value_counts().to_dict()
        assert (part.n_judged, part.n_failed) == (2, 0)
    assert rows(traced, "bm25").loc["absent", "lost"] == "retrieval"
    assert rows(traced, "lexical").loc["deep", "lost"] in {"cutoff", "fusion"}


NONE = dict.fromkeys(("lexical", "vector", "ranked", "final"), np.nan)
SENTENCES = {
    "No list had it in its first 1000.": {"lost": "retrieval"},
    "Its list had it at 12; the cut-off at 10 lost it.": {
        **dict.fromkeys(("ranked", "final"), 12.0),
        "lost": "cutoff",
    },
    "The lexical list had it at 22, the vector list at 4; fusion moved it to 11 and lost it.": {
        "lexical": 22.0,
        "vector": 4.0,
        **dict.fromkeys(("ranked", "final"), 11.0),
        "lost": "fusion",
    },
    "The vector list had it at 53, the lexical list below 1000; fusion moved it below 100; "
    "the cut-off at 10 lost it.": {"vector": 53.0, "lost": "cutoff"},
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_one_sentence_says_what_lost_the_gold(sentence):
    assert (
        describe_miss({**NONE, "depth": 1000, "ranked_depth": 100, **SENTENCES[sentence]})
        == sentence
    )
