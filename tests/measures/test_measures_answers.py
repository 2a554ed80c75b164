"""Answer measures against a slow reference, their edge cases, and the coverage of ratios."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.core.types import ABSTAINED, OUTCOMES
from rag_eval.measures.answers import answer_figures
from rag_eval.measures.overlap import SharedGold


@st.composite
def results(draw):
    rows = []
    for _ in range(draw(st.integers(0, 12))):
        n_cited, n_gold = draw(st.integers(0, 4)), draw(st.integers(0, 3))
        n_valid = draw(st.integers(0, n_cited))
        outcome = draw(st.sampled_from(OUTCOMES))
        codes = st.lists(st.sampled_from(["schema", "provenance"]), unique=True)
        one = {
            "outcome": outcome,
            "codes": draw(codes) if outcome == "failed" else [],
            "answerable": draw(st.booleans()),
            "known": draw(st.booleans()),
            "group": draw(st.integers(0, 5)),
            "n_cited": n_cited,
            "n_valid": n_valid,
            "n_correct": draw(st.integers(0, n_valid)),
            "n_gold": n_gold,
            "n_gold_matched": draw(st.integers(0, n_gold)),
            "coverage": draw(st.floats(0, 1)) if n_gold else math.nan,
            "groundedness": draw(st.floats(0, 1) | st.just(math.nan)),
            "supported": draw(st.floats(0, 1)),
            "n_citing": (n_citing := draw(st.integers(0, 3))),
            "n_upheld": draw(st.integers(0, n_citing)),
        }
        rows.append(one)
    return rows


COUNTS = "n_cited n_valid n_correct n_gold n_gold_matched n_citing n_upheld".split()
KINDS = {
    "outcome": str,
    **dict.fromkeys(("answerable", "known"), bool),
    **dict.fromkeys(COUNTS, int),
    **dict.fromkeys(("coverage", "groundedness", "supported"), float),
}


def figures(rows):
    frame = pd.DataFrame({name: [row[name] for row in rows] for name in KINDS}).astype(KINDS)
    gold = SharedGold.of_groups(np.array([row["group"] for row in rows], dtype=np.int64))
    return answer_figures(frame, [row["codes"] for row in rows], gold)


def answered(row):
    return row["outcome"] == "answered"


def abstained(row):
    return row["outcome"] in ABSTAINED


def failed(row):
    return row["outcome"] in {"failed", "contract_error_reply"}


def cited(row):
    return 1 if failed(row) else row["n_cited"]


def any_row(_row):
    return True


def one(_row):
    return 1


def with_gold(row):
    return row["answerable"] and row["n_gold"] > 0


def unanswerable(row):
    return row["known"] and not row["answerable"]


# Measure -> three functions of the row of a question. The first tells whether the question counts.
# The others give its numerator and its denominator.
DEFINITIONS = {
    "coverage": (with_gold, lambda row: row["coverage"] if answered(row) else 0, one),
    "citation_precision": (
        lambda row: with_gold(row) or unanswerable(row),
        lambda row: row["n_correct"] if row["answerable"] and not failed(row) else 0,
        cited,
    ),
    "citation_recall": (
        with_gold,
        lambda row: row["n_gold_matched"] if answered(row) else 0,
        lambda row: row["n_gold"],
    ),
    "citation_match_rate": (
        with_gold,
        lambda row: row["n_correct"] if answered(row) else 0,
        lambda row: max(cited(row), 1),
    ),
    "citation_validity_rate": (any_row, lambda row: 0 if failed(row) else row["n_valid"], cited),
    "citation_support": (
        any_row,
        lambda row: 0 if failed(row) else row["n_upheld"],
        lambda row: 1 if failed(row) else row["n_citing"],
    ),
    "groundedness": (
        lambda row: failed(row) or (answered(row) and not math.isnan(row["groundedness"])),
        lambda row: 0 if failed(row) else row["groundedness"],
        one,
    ),
    "supported_share": (
        lambda row: answered(row) or failed(row),
        lambda row: 0 if failed(row) else row["supported"],
        one,
    ),
    "abstention_rate": (unanswerable, abstained, one),
    "answered_anyway": (unanswerable, answered, one),
    "refused_answerable": (lambda row: row["known"] and row["answerable"], abstained, one),
    "failure_rate": (any_row, failed, one),
    "failure_rate_schema": (any_row, lambda row: "schema" in row["codes"], one),
    "failure_rate_provenance": (any_row, lambda row: "provenance" in row["codes"], one),
}


@settings(max_examples=60)
@given(results())
def test_every_measure_equals_its_definition(rows):
    records = figures(rows)
    codes = {f"failure_rate_{code}" for row in rows for code in row["codes"]}
    assert {record.name for record in records} >= codes
    for record in records:
        counts, part, whole = DEFINITIONS[record.name]
        scored = [row for row in rows if counts(row) and whole(row)]
        bottom = sum(map(whole, scored))
        sizes = (record.n_attempted, record.n_scored, record.n_ineligible)
        assert sizes == (len(rows), len(scored), len(rows) - len(scored))
        assert record.n_units == bottom
        assert record.n_failed == sum(map(failed, scored))
        assert 0 <= record.n_effective <= len(scored) + 1e-9
        assert ("value" in record.why) == (not bottom)
        if not bottom:
            assert record.value is None
            continue
        assert record.value == pytest.approx(sum(map(part, scored)) / bottom)
        if len(scored) > 1:
            assert record.ci_low - 1e-9 <= record.value <= record.ci_high + 1e-9
        else:
            assert record.ci_low is None
