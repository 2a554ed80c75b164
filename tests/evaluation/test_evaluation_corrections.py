"""What people correct in the table of outcomes is what comparisons count; gold alone decides every conformal K, and an outcome taken back costs its own question only."""

import json

import missing_project as made
import numpy as np
import pytest
from cli_project import jsonl
from missing_project import call
from test_evaluation_traffic import opened, shown

from rag_eval.evaluation.calibrating import calibrate_gold_set, compare_strategies
from rag_eval.evaluation.calibration_steps import stored_calibration
from rag_eval.evaluation.claim_steps import miss_rate_claims, of_strategy
from rag_eval.evaluation.miss_ranks import gold_ranks, judged
from rag_eval.evaluation.uncertainty_steps import calibrated_miss_rates
from rag_eval.gold.files import ORIGINAL
from rag_eval.reporting.calibration_tables import conformal_text
from rag_eval.reporting.metrics_report import first_fault
from rag_eval.reporting.null_reasons import with_reasons

METHODS = ("fixed", "recall", "adaptive", "mondrian")


@pytest.fixture
def missing(project):
    made.make(project)
    made.configure(project, made.BM25, made.VECTOR, more="")
    return project


def standing(project, name):
    """Outcomes of a strategy as they stand, by claim id."""
    rows = [
        json.loads(line)
        for line in call(
            project, "outcome", "list", "--json", "--strategy", name, "--limit", "1000"
        ).stdout.splitlines()
    ]
    return {row["claim_id"]: row for row in rows}


def first_put(project, name):
    """Claim ids of the questions as they were first put, by query id."""
    frame = of_strategy(miss_rate_claims(opened(project)).frame("claims"), name)
    return dict(
        frame.loc[frame["paraphrase_id"] == ORIGINAL, ["query_id", "claim_id"]].itertuples(
            index=False
        )
    )


def correct(project, name, n, back=0):
    """Turn n misses of the original wordings into hits, and take back `back` further misses; the claims that were corrected, and taken back."""
    rows, first = standing(project, name), first_put(project, name)
    wrong = [claim for claim in first.values() if rows[claim]["missed"]][:n]
    if wrong:
        call(
            project,
            "outcome",
            "import",
            _file(
                project,
                [
                    {key: value for key, value in rows[claim].items() if key in KEPT}
                    | {"missed": False}
                    for claim in wrong
                ],
            ),
            "--correct",
            "the gold lacks a document",
        )
    gone = [claim for claim in first.values() if rows[claim]["missed"] and claim not in wrong][
        :back
    ]
    for claim in gone:
        call(project, "outcome", "add", "--correct", rows[claim]["outcome_id"])
    return wrong, gone


KEPT = {
    "claim_id",
    "query_id",
    "group_id",
    "strategy",
    "strategy_fingerprint",
    "target",
    "k",
    "gold_source",
    "inclusion_probability",
    "signals",
}


def _file(project, rows):
    path = project.root / "corrected.jsonl"
    path.write_text(jsonl(rows), encoding="utf-8")
    return path


@pytest.mark.slow
def test_corrected_outcomes_are_what_a_comparison_counts(missing):
    calibrate_gold_set(opened(missing).evaluation)
    before = compare_strategies(opened(missing).evaluation, ["bm25", "vector"])
    wrong, gone = correct(missing, "bm25", 8, back=1)
    assert (len(wrong), len(gone)) == (8, 1)
    runs = opened(missing)
    after = compare_strategies(runs.evaluation, ["bm25", "vector"])
    assert (before.n, after.n) == (
        made.N,
        made.N - 1,
    )  # the question whose outcome was taken back is judged by nobody
    stands = standing(missing, "bm25")
    seen = [
        stands[claim]["missed"]
        for claim in first_put(missing, "bm25").values()
        if claim not in gone
    ]
    bm25, vector = after.strategies
    assert sum(seen) == made.N // made.MISSED_OF - 8 - 1
    assert bm25.observed.value == pytest.approx(np.mean(seen))
    assert bm25.observed.n == vector.observed.n == bm25.brier.n == bm25.calibrated.n == made.N - 1
    fitted = (
        stored_calibration(runs, "bm25")
        .frame("predictions")
        .set_index("claim_id")
        .loc[[claim for claim in first_put(missing, "bm25").values() if claim not in gone]]
    )
    assert bm25.brier.value == pytest.approx(((fitted["predicted"] - fitted["missed"]) ** 2).mean())
    nightly = calibrated_miss_rates(opened(missing))["calibration"]["comparison"]
    assert [entry["observed"]["value"] for entry in nightly["strategies"]] == pytest.approx(
        [bm25.observed.value, vector.observed.value]
    )


@pytest.mark.slow
def test_an_outcome_taken_back_leaves_its_own_question_out_of_k_by_risk_only(missing):
    first = calibrate_gold_set(opened(missing).evaluation).strategies["bm25"]
    assert first["conformal_methods"] == {**dict.fromkeys(METHODS, made.N), "without_risk": 0}
    correct(missing, "bm25", 0, back=1)
    found = calibrate_gold_set(opened(missing).evaluation)
    entry = found.strategies["bm25"]
    assert [part["method"] for part in entry["conformal"][::3]] == list(METHODS)
    assert {part["method"]: (part["n"], part["n_groups"]) for part in entry["conformal"]} == {
        "fixed": (60, 60),
        "recall": (60, 60),
        "adaptive": (59, 59),
        "mondrian": (59, 59),
    }
    assert entry["conformal_methods"] == {
        "fixed": 60,
        "recall": 60,
        "adaptive": 59,
        "mondrian": 59,
        "without_risk": 1,
    }
    for mine, other in zip(
        entry["conformal"][:6], first["conformal"][:6], strict=True
    ):  # gold decides these
        assert {key: value for key, value in mine.items() if key not in {"riskiest", "text"}} == {
            key: value for key, value in other.items() if key not in {"riskiest", "text"}
        }
        assert mine["riskiest"]["n"] == 20
    assert "1 of 60 questions without an outcome, so without a risk, left out" in shown(found)
    assert {part["method"] for part in found.strategies["vector"]["conformal"]} == set(METHODS)


def test_a_method_that_is_absent_says_why(missing):
    (missing.gold / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\n"
        + "".join(f"q{number:02d}\td{number:02d}.md\t1\n" for number in range(12)),
        encoding="utf-8",
    )
    (missing.gold / "queries.jsonl").write_text(
        jsonl(
            {"query_id": f"q{number:02d}", "text": made.question(number), "answerable": number < 12}
            for number in range(made.N)
        ),
        encoding="utf-8",
    )
    runs = opened(missing)
    entry = calibrate_gold_set(runs.evaluation).strategies["bm25"]
    assert {part["method"] for part in entry["conformal"]} == {"fixed", "recall"}
    said = entry["conformal_methods"]
    assert [said[method] for method in METHODS] == [12, 12, None, None]
    assert said["without_risk"] == 12
    assert said["adaptive_reason"] == said["mondrian_reason"]
    assert "too few to fit a calibrator" in said["adaptive_reason"]
    assert f"K by predicted risk, none: {said['adaptive_reason']}" in conformal_text(entry)


@pytest.mark.parametrize("level", ["document", "section", "span"])
def test_expected_recall_is_controlled_over_every_gold_item(missing, level):
    half = made.N // 2
    owned = [(number, at) for number in range(half) for at in (number, number + half)]
    judgements = "".join(f"q{number:02d}\td{at:02d}.md\t1\n" for number, at in owned) + "".join(
        f"q{number:02d}\td{(number + 1) % half:02d}.md\t0\n" for number in range(half)
    )
    quotes = [
        {
            "query_id": f"q{number:02d}",
            "doc_id": f"d{at:02d}.md",
            "anchors": [
                {
                    "quote": f"{made.word(at)} was written"
                    if made.is_lost(at)
                    else f"{made.word(at)} is found"
                }
            ],
        }
        for number, at in owned
    ]
    (missing.gold / "qrels.tsv").write_text(
        f"query-id\tcorpus-id\tscore\n{judgements if level == 'document' else ''}", encoding="utf-8"
    )
    (missing.gold / "answers.jsonl").write_text(
        "" if level == "document" else jsonl(quotes), encoding="utf-8"
    )
    (missing.gold / "queries.jsonl").write_text(
        jsonl(
            {"query_id": f"q{number:02d}", "text": made.question(number), "answerable": True}
            for number in range(half)
        ),
        encoding="utf-8",
    )
    (missing.gold / "paraphrases.jsonl").unlink()
    made.configure(missing, made.BM25, more="", extra=f"level: {level}\n")
    runs = opened(missing)
    of = judged(runs, "bm25")
    chosen = np.flatnonzero(
        (runs.gold.variants["paraphrase_id"].to_numpy() == ORIGINAL)[of.variant]
    )
    rank, owner = gold_ranks(runs, "bm25", of.variant[chosen], 13)
    assert np.bincount(owner).tolist() == [2] * half
    np.testing.assert_array_equal([rank[owner == at].min() for at in range(half)], of.first[chosen])
    np.testing.assert_allclose(
        np.bincount(owner, rank <= 10) / 2, of.recall[chosen]
    )  # the recall that is reported
    entry = calibrate_gold_set(runs.evaluation).strategies["bm25"]
    for part in entry["conformal"]:
        if part["method"] == "recall":
            assert part["n"] == half
            assert part["within_depth"] == pytest.approx(np.isfinite(rank).mean())
            assert part["coverage"]["n"] == half
            if part["k"] is not None:
                assert (rank <= part["k"]).mean() >= part["level"]
                assert (rank <= part["k"] - 1).mean() < part["level"] + 0.05
    fixed = {
        part["level"]: part["coverage"]["value"]
        for part in entry["conformal"]
        if part["method"] == "fixed"
    }
    assert {part["level"] for part in entry["conformal"] if part["method"] == "recall"} == set(
        fixed
    )
    assert "one K for expected recall" in conformal_text(entry)


@pytest.mark.slow
def test_the_report_may_hold_it(missing):
    made.night(missing)
    report = missing.report()
    entry = report["calibration"]["strategies"]["bm25"]
    assert entry["conformal_methods"]["recall"] == made.N
    entry["conformal_methods"] = with_reasons(
        {**entry["conformal_methods"], "mondrian": None, "mondrian_reason": "why"}
    )
    assert first_fault(report) is None
    del entry["conformal_methods"]  # a report of an older version
    assert first_fault(report) is None
    entry["conformal_methods"] = {"fixed": "many"}
    assert first_fault(report) is not None
