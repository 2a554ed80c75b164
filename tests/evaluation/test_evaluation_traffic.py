"""Claims of production traffic are asked again or left out with a reason, and give estimates."""

import io
import json

import missing_project as made
import numpy as np
import pytest
from missing_project import audit, bring, calibrated, opened, opened_index, signals_of, vectors_file
from pydantic_core import to_jsonable_python
from rich.console import Console

from rag_eval.core.errors import InputError
from rag_eval.gold.configuration import load_config
from rag_eval.pipeline.miss_rate_stages import MissRateClaims, calibrate_gold_set
from rag_eval.pipeline.opening import adjust
from rag_eval.pipeline.stages import open_runner
from rag_eval.pipeline.strategy_runs import open_runs
from rag_eval.reporting.terminal import show_calibration
from rag_eval.uncertainty.opened_index import TrafficFacts
from rag_eval.uncertainty.signals import SIGNALS


def traffic_of(signals, name):
    return signals.traffic[signals.traffic["strategy"] == name]


@pytest.fixture
def missing(project):
    made.make(project)
    return project


def test_the_prior_needs_fifty_questions_traffic_among_them(project):
    for n, status in ((43, "uncalibrated"), (44, "prior")):
        claims = [(f"how is job {at} tried again", ["retries.md"], {}) for at in range(n)]
        bring(project, "bm25", claims)
        runner = open_runner(opened(project))
        assert set(runner.get(MissRateClaims).claims_of("bm25")["status"]) == {status}
        known = calibrated(project)
        counted = next(
            one for one in known["standing"]["conditions"] if one["name"] == "queries_for_z_scores"
        )
        assert (known["status"], counted["found"]) == (status, str(6 + n))


@pytest.mark.parametrize("strategy", [made.VECTOR, made.ITERATIVE])
def test_a_list_that_production_cut_short_has_the_signals_of_the_whole_list(missing, strategy):
    made.configure(missing, made.BM25, strategy, more="")
    name = strategy.split("name: ")[1].split(",")[0]
    runs, table = open_runs(open_runner(opened(missing))), opened_index(missing).table
    rows, variants = runs.rows(name)[13], runs.gold.variants["text"].tolist()
    asked = [at for at in range(len(variants)) if (rows[at] >= 0).any()][:12]
    documents, chunks = table.doc_ids, table.chunk_ids
    claims = [(variants[at], [(documents if at % 2 else chunks)[rows[at][0]]], {}) for at in asked]
    bring(missing, name, claims)
    signals = signals_of(missing)
    assert signals.about[name].traffic == TrafficFacts(counted=len(asked))
    # No claim is known as a wording of another claim, so signals over wordings are missing.
    alone = [one for one in SIGNALS if not one.startswith(("wordings", "consensus"))]
    traffic, whole = traffic_of(signals, name), signals.signals_of(name).set_index("variant")
    assert traffic[[one for one in SIGNALS if one not in alone]].isna().all(axis=None)
    mine, gold = (
        sorted(map(tuple, np.nan_to_num(part[alone].to_numpy(), nan=-1).round(6).tolist()))
        for part in (traffic, whole.loc[asked])
    )
    assert mine == gold


def test_claims_of_something_else_are_counted_and_left_out(missing):
    first, last = made.word(1), made.word(4)
    claims = [
        (f"where is {first} found", ["d01.md"], {}),
        (f"where is {first} found", ["d01.md", "other.md"], {"query_id": "again"}),
        (f"where stands {last}", ["d07.md", "d08.md"], {}),  # known, but not retrieved now
        (f"where stands {first}", ["a:1", "b:2"], {}),  # unknown ids
        (f"where lies {first}", ["a:1", "d01.md"], {"k": 1}),  # known beyond K only
        ("xyzzy", [], {}),  # retrieves nothing, then and now
        (f"the {first}", [], {}),
    ]
    bring(missing, "bm25", claims)
    traffic = traffic_of(signals_of(missing), "bm25")
    assert (len(traffic), (traffic["query_id"] == "again").sum()) == (3, 1)
    found = calibrate_gold_set(open_runner(opened(missing)))
    json.dumps(to_jsonable_python(found), allow_nan=False)
    why = "4 whose first K ids share nothing with what is retrieved now"
    assert found.traffic["bm25"] == TrafficFacts(counted=3, left_out=4, reason=why)
    console = Console(width=200, file=io.StringIO())
    show_calibration(console, found)
    text = console.file.getvalue()
    assert "3 claims of production traffic counted in" in text
    assert f"4 claims of production traffic left out: {why}" in text
    assert "no estimate of the traffic: no claim of production traffic was drawn" in text


def test_questions_without_a_vector_in_the_file_are_left_out(project):
    vectors_file(project, project.gold / "own.npz")
    path = project.gold / "gold_set.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("{model: lsa-8}", "{vectors: own.npz}"), encoding="utf-8")
    asked = [
        ("was it deleted at midnight", ["storage.md"], {}),
        ("number of retries", ["retries.md"], {}),
    ]
    for name in ("bm25", "vector"):  # bm25's second retriever uses the vectors
        bring(project, name, asked)
    why = "1 whose question has no vector, or failed here"
    signals = signals_of(project)
    for name in ("bm25", "vector"):
        facts = TrafficFacts(counted=1, left_out=1, reason=why)
        assert signals.about[name].traffic == facts
        assert np.isfinite(traffic_of(signals, name)[list(SIGNALS)]).any(axis=None)


def test_rounds_over_vectors_of_a_file_are_refused_where_they_are_configured(missing):
    made.configure(missing, made.VECTOR, "{name: rounds, kind: iterative, base: vector}", more="")
    config, vectors = load_config(missing.gold), missing.gold / "own.npz"
    vectors.write_bytes(b"")
    with pytest.raises(InputError, match="rounds") as error:
        adjust(config, (), vectors)
    assert [problem.code for problem in error.value.problems] == ["vectors_of_rounds"]
    assert [spec.name for spec in adjust(config, ("vector",), vectors).strategies] == ["vector"]
    base = made.VECTOR.replace("model: lsa-8", "vectors: own.npz")
    made.configure(missing, base, "{name: rounds, kind: iterative, base: vector}", more="")
    with pytest.raises(
        InputError, match="file of vectors has none for the questions of the rounds"
    ):
        load_config(missing.gold)


NAMES = ("bm25", "vector")
ASKED = [f"in what place is {made.word(number)} kept" for number in range(40)]
LOST = set(ASKED[::3])


@pytest.fixture
def asked(missing):
    """Import forty claims about the same questions for each of two strategies."""
    made.configure(missing, made.BM25, made.VECTOR, more="")
    for name in NAMES:
        index = opened_index(missing)
        rows = index.strategies[name].search(ASKED, 10, 13).rows
        documents = index.table.doc_ids
        claims = [
            (text, [documents[row] for row in rows[at] if row >= 0], {})
            for at, text in enumerate(ASKED)
        ]
        bring(missing, name, claims)
    return missing


@pytest.mark.slow
def test_the_powered_estimate_is_of_the_claims_of_the_last_draw(asked):
    undrawn = "no claim of production traffic was drawn: rag-eval audit draw"
    assert calibrate_gold_set(open_runner(opened(asked))).estimates == dict.fromkeys(NAMES, undrawn)
    for name in NAMES:
        audit(asked, 25, LOST.__contains__, name=name)
    found = calibrate_gold_set(open_runner(opened(asked)))
    for estimate in found.estimates.values():
        assert (estimate.n_labelled, estimate.n_unlabelled) == (25, 15)
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    console = Console(width=300, file=io.StringIO())
    show_calibration(console, found)
    assert "from 25 audited claims and predictions of 15" in console.file.getvalue()

    later = [f"in which place is {made.word(number)} kept" for number in range(4)]
    bring(asked, "bm25", [(text, [], {}) for text in later])  # retrieval now differs
    bring(asked, "bm25", [(text, [f"d{number:02d}.md"], {}) for number, text in enumerate(later)])
    came = calibrate_gold_set(open_runner(opened(asked))).estimates["bm25"]
    assert came.n_labelled + came.n_unlabelled == 40
    audit(asked, 9, LOST.__contains__)
    last = calibrate_gold_set(open_runner(opened(asked))).estimates["bm25"]
    assert (last.n_labelled, last.n_unlabelled) == (4, 0)  # of 8, 4 are retrieved as before
