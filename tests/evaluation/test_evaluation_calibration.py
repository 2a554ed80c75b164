"""Calibration of a project: groups, corrections of people, feedback of users."""

import missing_project as made
import pytest
from cli_project import jsonl
from missing_project import audit, bring, calibrated, call, first_claims, opened, opened_index
from pydantic import SecretStr

from rag_eval.core.errors import InputError
from rag_eval.pipeline.miss_rate_stages import CalibratedMissRates, MissRateCalibration
from rag_eval.pipeline.stages import open_runner
from rag_eval.storage.home import Home
from rag_eval.uncertainty.calibrators import Outcomes, accepted_calibrator, read_calibrator
from rag_eval.uncertainty.miss_rate_report import StrategyCalibration
from rag_eval.uncertainty.outcomes import question_id
from rag_eval.uncertainty.status import Series

SERIES = Series("tiny", "bm25", "miss_any", 10)
FOUND = [number for number in range(made.N) if not made.is_lost(number)]
"""Numbers of the questions that find their documents. Each question has a word of its own."""


def typed(entry):
    """Return a calibration's entry in the type of the report."""
    part = {key: value for key, value in entry.items() if key != "artifact"}
    return StrategyCalibration.model_validate(part)


@pytest.fixture
def missing(project):
    made.make(project)
    made.configure(project, more="")
    return project


def calibration(project):
    return open_runner(opened(project)).get(MissRateCalibration)


# ---- Audited traffic joins the groups of the gold.


def audit_questions(project, questions, judge=None):
    """Import a bm25 claim for each question (words -> gold documents), and judge claims as hits.

    `judge` lists the questions to judge, by default all.
    """
    index = opened_index(project)
    rows = index.strategies["bm25"].search(list(questions), 10, 13).rows
    documents = index.table.doc_ids
    claims = [
        (text, [documents[row] for row in rows[at] if row >= 0], {})
        for at, text in enumerate(questions)
    ]
    bring(project, "bm25", claims)
    judged = {text: questions[text] for text in judge or questions}
    audit(project, 1000, lambda _: False, gold=judged)


def count_groups(project):
    counts = calibrated(project)["counts"]
    return counts["outcomes"], counts["groups"]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["words", "documents"])
def test_the_golds_questions_as_traffic_buy_no_group(missing, by):
    assert count_groups(missing) == (120, 60)
    if by == "words":
        asked = {made.question(number).upper(): [] for number in FOUND}
    else:
        asked = {f"{made.question(number)} today": [f"d{number:02d}.md"] for number in FOUND}
    audit_questions(missing, asked)
    assert count_groups(missing) == (160, 60)
    groups = calibration(missing).predictions["group_id"]
    assert groups.value_counts().to_dict() == {
        f"q{number:02d}": 3 if number in FOUND else 2 for number in range(made.N)
    }
    kept = accepted_calibrator(Home(missing.home), SERIES)
    body = read_calibrator(Home(missing.home), kept.calibrator_id)
    assert set(body["model"]["fold_of_group"]) == set(groups)


def test_traffic_that_nobody_judged_is_in_the_group_of_its_words(missing):
    other = f"in what place is {made.word(4)} kept"
    both = {made.question(1): [], made.question(2): [], other: []}
    audit_questions(missing, both, judge=[made.question(1)])
    text_of = {question_id(text): text for text in both}
    traffic = calibration(missing).traffic
    groups = zip(traffic["query_id"], traffic["group_id"], strict=True)
    assert {text_of[query]: group for query, group in groups} == {
        made.question(1): "q01",
        made.question(2): "q02",
        other: question_id(other),
    }


# ---- Corrections of people; the gold alone decides every conformal K.


def correct(project, name, n):
    """Turn n misses of the original wordings into hits, and return their claims."""
    columns = ["claim_id", "query_id", "group_id", "strategy", "strategy_fingerprint"]
    missed = calibration(project).predictions.query("missed").set_index("claim_id").index
    first = [claim for claim in first_claims(project, name).values() if claim["claim_id"] in missed]
    wrong = [{key: claim[key] for key in columns} for claim in first[:n]]
    path = project.root / "corrected.jsonl"
    path.write_text(
        jsonl({**row, "missed": False, "gold_source": "qrels"} for row in wrong), encoding="utf-8"
    )
    call(project, "outcome", "import", path, "--correct", "the gold lacks a document")
    return [row["claim_id"] for row in wrong]


@pytest.mark.slow
def test_a_comparison_counts_corrected_outcomes(missing):
    made.configure(missing, made.BM25, made.VECTOR, more="")
    first = calibrated(missing)
    corrected = correct(missing, "bm25", 8)
    after = open_runner(opened(missing)).get(CalibratedMissRates).calibration.comparison
    bm25, vector = after.strategies
    fitted = calibration(missing).predictions.query("strategy == 'bm25'").set_index("claim_id")
    assert not fitted.loc[corrected, "missed"].any()
    fitted = fitted.loc[[claim["claim_id"] for claim in first_claims(missing).values()]]
    assert bm25.observed.value == pytest.approx(fitted["missed"].mean())
    assert fitted["missed"].sum() == made.N // made.MISSED_OF - 8
    assert bm25.observed.n == vector.observed.n == bm25.calibrated.n == made.N
    squares = (fitted["predicted"] - fitted["missed"]) ** 2
    assert bm25.brier.value == pytest.approx(squares.mean())
    # The gold alone decides every conformal K.
    assert calibrated(missing)["conformal"] == first["conformal"]


def test_a_shared_home_reports_no_less_while_its_database_is_away(missing):
    """The run ends, so that it is tried again. A home of one machine reports without outcomes."""
    evaluation = opened(missing)
    address = SecretStr("postgresql://me@127.0.0.1:9/d")
    alone = evaluation.settings.model_copy(update={"database_url": address})
    shared = alone.model_copy(update={"home": "s3://bucket/home"})
    assert "database_failed" in Outcomes(alone).fault
    with pytest.raises(InputError, match="database_failed"):
        Outcomes(shared)
