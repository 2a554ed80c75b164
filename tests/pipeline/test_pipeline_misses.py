"""A missed question names the step that lost its gold, with the ranks of the lists that had it."""

import numpy as np
import pandas as pd
import pytest
from cli_project import CONFIG, Project

from rag_eval.core.settings import Settings
from rag_eval.pipeline.misses import MissedQuestions, describe_miss
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.runs import open_runs
from rag_eval.pipeline.stages import open_runner

LSA = "embedding: {model: lsa-8}"
STRATEGIES = f"""\
  - {{name: bm25, kind: bm25}}
  - {{name: vector, kind: vector, {LSA}}}
  - {{name: hybrid, kind: hybrid, {LSA}}}
  - {{name: lexical, kind: hybrid, alpha: 1, beta: 0, {LSA}}}
  - {{name: mmr, kind: hybrid, {LSA}, rerank: {{kind: mmr, lambda: 0.1}}}}
"""
WORDS = "kiln barge lathe anvil sluice gantry spindle hopper flange rivet".split()
TWIN = "Quench the blade in warm brine.\n"


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
        (project.corpus / f"{name}.md").write_text(TWIN)
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
            "copied": "Quench a blade in brine?",
        },
        {"deep": "deep.md", "absent": "gold.md", "copied": "gold.md"},
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
        assert (part.n_judged, part.n_failed) == (3, 0)
    assert rows(traced, "bm25").loc["absent", "lost"] == "retrieval"
    assert rows(traced, "lexical").loc["deep", "lost"] in {"cutoff", "fusion"}


def test_an_identical_text_under_another_id_is_named(traced):
    found = rows(traced, "bm25")
    assert (found.loc["copied", "twin"], found.loc["copied", "twin_rank"]) == ("copy00.md", 1)
    assert found.loc[["deep", "absent"], "twin"].tolist() == ["", ""]
    assert traced[1].about["bm25"].n_twins == 1


NONE = dict.fromkeys(("lexical", "vector", "ranked", "final", "twin_rank"), np.nan)
SENTENCES = {
    "No list had it in its first 1000.": {"lost": "retrieval"},
    "No list had it.": {"lost": "retrieval", "depth": 0},
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
    "Its list had it at 3; the rerank moved it below 100 and lost it.": {
        "ranked": 3.0,
        "lost": "rerank",
    },
    "No list had it in its first 1000; the same text stood at 2 under another id, twin.md.": {
        "lost": "retrieval",
        "twin_rank": 2.0,
        "twin": "twin.md",
    },
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_one_sentence_says_what_lost_the_gold(sentence):
    assert (
        describe_miss(
            {**NONE, "depth": 1000, "ranked_depth": 100, "twin": "", **SENTENCES[sentence]}
        )
        == sentence
    )
