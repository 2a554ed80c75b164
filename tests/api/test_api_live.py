"""A live question gets documents and a miss rate whose source is named."""

import json
import re

import jsonschema
import missing_project as made
import pytest
from missing_project import call
from schemas import published

import rag_eval
from rag_eval.pipeline.live_questions import open_live
from rag_eval.pipeline.miss_rate_stages import MissRateClaims
from rag_eval.pipeline.stages import open_runner
from rag_eval.uncertainty.confidence import as_json, parse

ROUNDS = "{name: rounds, kind: iterative, base: bm25, min_recall: 1.0}"
SHAPE = [
    "documents",
    "miss_rate",
    "query_expansions",
    "coverage_estimate",
    "coverage_signal",
    "retrieval_confidence",
    "uncertainty",
    "iterations",
    "citations",
]


@pytest.mark.parametrize(
    ("query", "scores", "history", "value"),
    [
        ("", [], None, 0.15 + 0.09),  # an empty list has tail density 0.5
        ("sort two columns", [0.4, 0.9], None, 0.15 + 0.1 + 0.09 + 0.03),
        ("sort", [20.0, 8.0, -1.0], None, 0.3 / 3 + 0.1 + 0.09 + 0.01),  # over the top score
        ("sort", [0.9], [True] * 5, 0.3 * (5 + 1.5) / 10 + 0.01),
        ("sort", [0.9], [False] * 5, 0.3 * 1.5 / 10 + 0.01),
    ],
)
def test_the_formula_is_a_confidence_with_provenance(query, scores, history, value):
    found = rag_eval.estimate_miss_rate(query, ["d"] * len(scores), scores, history)
    assert found.value == pytest.approx(value)
    assert "heuristic_v0, uncalibrated" in found.formula
    assert set(found.inputs) == {"tail_density", "near_threshold", "history", "complexity"}
    assert found.inputs["history"].type == ("derived" if history else "bounded")
    assert parse(as_json(found)) == found


@pytest.mark.parametrize(
    ("query", "documents", "scores", "message"),
    [
        ("x", ["d"], [], "1 documents, scores"),
        ("x", ["d"], [float("nan")], "these are no scores"),
        ("x" * 10_001, [], [], "too long"),
    ],
)
def test_bad_input_of_the_formula_is_refused(query, documents, scores, message):
    with pytest.raises(rag_eval.InputError, match=message):
        rag_eval.estimate_miss_rate(query, documents, scores)


# ---- A strategy of a gold set.


@pytest.fixture
def missing(project):
    made.make(project)
    return project


@pytest.fixture
def opened(missing, shared_runs):
    """Open bm25 after one night: the calibrator is provisional."""
    shared_runs.run(missing)
    return open_live(made.opened(missing), "bm25")


def check_shape(found):
    """Check the result against the schema of the nightly file, which has the same parts."""
    line = found.as_json()
    assert list(line) == SHAPE
    schema = published("uncertain-line")
    parts = {name: part for name, part in schema["properties"].items() if name in line}
    about = {"type": "object", "$defs": schema["$defs"], "properties": parts}
    assert [
        error.message for error in jsonschema.Draft202012Validator(about).iter_errors(line)
    ] == []
    assert [one["snippet_id"] for one in line["citations"]] == [
        one["chunk_id"] for one in line["documents"]
    ]
    return json.loads(json.dumps(line, allow_nan=False))


def test_the_last_run_calibrates_a_live_question(opened, missing):
    nightly = open_runner(made.opened(missing)).get(MissRateClaims)
    assert nightly.sources["bm25"].status == "provisional"
    for number in (1, 3):  # found, and missed on purpose
        text = made.question(number)
        found = opened.retrieve(text)
        line = check_shape(found)
        frame = nightly.claims_of("bm25").query("paraphrase_id == 'original'")
        claim = frame.set_index("query_id").loc[f"q{number:02d}"]
        assert found.miss_rate.calibrator == claim["calibrator"] == opened._source.calibrator
        assert (found.miss_rate.status, line["iterations"]) == ("provisional", [])
        assert found.heuristic_v0 == pytest.approx(claim["heuristic_v0"])
        assert found.similar_judged == claim["similar_judged"] > 0
        assert (found.miss_rate.value > 0.5) == made.is_lost(number)
        assert found.miss_rate.n_outcomes == 120
    unknown = opened.retrieve("zebra xylophone")
    assert unknown.miss_rate.status == "provisional"
    assert (unknown.documents, unknown.similar_judged) == ([], 0)
    check_shape(unknown)


def test_without_a_run_the_heuristic_is_named(missing):
    made.configure(missing, made.BM25, ROUNDS)
    live = open_live(made.opened(missing), "rounds")
    found = live.retrieve(made.question(3))
    line = check_shape(found)
    assert (line["miss_rate"]["status"], line["miss_rate"]["calibrator"]) == (
        "uncalibrated",
        "heuristic_v0",
    )
    assert found.miss_rate.value == found.heuristic_v0
    assert "0 queries, the prior needs 50" in found.reason
    assert line["iterations"][0]["basis"].startswith("heuristic_v0@")
    assert len(line["query_expansions"]) == len(line["iterations"]) > 0
    for step in line["query_expansions"]:
        assert step["found_unique_results"] is (step["unique_result_count"] > 0)
    assert all(one["summary"] for one in line["documents"])


def test_an_index_that_changed_has_no_calibrated_rate(opened, missing):
    with (missing.corpus / "d01.md").open("a", encoding="utf-8") as file:
        file.write("\nIt was painted green.\n")
    found = open_live(made.opened(missing), "bm25").retrieve(made.question(1))
    assert (found.miss_rate.status, found.miss_rate.calibrator) == ("stale", "heuristic_v0")
    assert "is stale" in found.reason


@pytest.mark.parametrize("question", ["", " \n", "x" * 10_001, "nul \x00", "half \ud800"])
def test_a_question_is_bounded(opened, question):
    with pytest.raises(rag_eval.InputError, match="bad_question"):
        opened.retrieve(question)


def test_another_strategy_is_refused(missing):
    with pytest.raises(rag_eval.InputError, match="unknown_strategy"):
        open_live(made.opened(missing), "nosuch")


HOSTILE = (
    "[red]where[/] is \x1b[31m\u202e <script>alert(1)</script> '); DROP TABLE claims; -- ${{7*7}}"
)


def test_the_command_prints_text_or_exactly_the_shape(missing):
    made.configure(missing, made.BM25, ROUNDS)
    options = ("--strategy", "rounds", "--gold-sets", missing.gold.parent)
    shown = call(missing, "ask", "tiny", f"{HOSTILE} {made.question(3)}", *options)
    assert "Miss rate  miss_any@10" in shown.stdout
    assert "Documents  (" in shown.stdout
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", shown.output)
    line = json.loads(call(missing, "ask", "tiny", HOSTILE, *options, "--json").stdout)
    assert list(line) == SHAPE
    refused = call(missing, "ask", "tiny", "", *options, exit_code=1)
    assert "bad_question" in refused.stderr
