"""Answer measures against a slow reference, their edge cases, and the coverage of the intervals of ratios."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.measures.answers import AnswerResults, answer_measures, ratio_interval
from rag_eval.records.answers import ABSTAINED, OUTCOMES

QUICK = 200


@st.composite
def results(draw):
    rows = []
    for _ in range(draw(st.integers(0, 12))):
        n_cited = draw(st.integers(0, 4))
        n_valid = draw(st.integers(0, n_cited))
        n_gold = draw(st.integers(0, 3))
        outcome = draw(st.sampled_from(OUTCOMES))
        rows.append(
            {
                "outcome": outcome,
                "codes": draw(st.lists(st.sampled_from(["schema", "provenance"]), unique=True))
                if outcome == "failed"
                else [],
                "answerable": draw(st.booleans()),
                "known": draw(st.booleans()),
                "group": draw(st.integers(0, 5)),
                "n_cited": n_cited,
                "n_valid": n_valid,
                "n_correct": draw(st.integers(0, n_valid)),
                "n_gold": n_gold,
                "n_matched": draw(st.integers(0, n_gold)),
                "coverage": draw(st.floats(0, 1)) if n_gold else math.nan,
                "groundedness": draw(st.floats(0, 1) | st.just(math.nan)),
                "supported": draw(st.floats(0, 1)),
                "tokens_in": draw(st.integers(0, 500)),
                "tokens_out": draw(st.integers(0, 500)),
            }
        )
    return rows


def as_results(rows) -> AnswerResults:
    names = AnswerResults.__dataclass_fields__
    whole = {
        "group",
        "n_cited",
        "n_valid",
        "n_correct",
        "n_gold",
        "n_matched",
        "tokens_in",
        "tokens_out",
    }
    return AnswerResults(
        **{
            name: np.array([row[name] for row in rows], dtype=np.int64)
            if name in whole
            else [row[name] for row in rows]
            for name in names
        }
    )


def answered(row):
    return row["outcome"] == "answered"


def abstained(row):
    return row["outcome"] in ABSTAINED


def failed(row):
    return row["outcome"] in {"failed", "contract_error_reply"}


def cited(row):
    return 1 if failed(row) else row["n_cited"]


def every(_row):
    return True


def one(_row):
    return 1


def with_gold(row):
    return row["answerable"] and row["n_gold"] > 0


def unanswerable(row):
    return row["known"] and not row["answerable"]


# which questions count, their numerators and their denominators, one question at a time
DEFINITIONS = {
    "coverage": (with_gold, lambda row: row["coverage"] if answered(row) else 0, one),
    "citation_precision": (
        lambda row: with_gold(row) or unanswerable(row),
        lambda row: row["n_correct"] if row["answerable"] and not failed(row) else 0,
        cited,
    ),
    "citation_recall": (
        with_gold,
        lambda row: row["n_matched"] if answered(row) else 0,
        lambda row: row["n_gold"],
    ),
    "citation_match_rate": (
        with_gold,
        lambda row: row["n_correct"] if answered(row) else 0,
        lambda row: max(cited(row), 1),
    ),
    "citation_validity_rate": (every, lambda row: 0 if failed(row) else row["n_valid"], cited),
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
    "failure_rate": (every, failed, one),
    "cost_per_1k": (
        every,
        lambda row: 1000 * (row["tokens_in"] / 1000 * 0.5 + row["tokens_out"] / 1000 * 2),
        one,
    ),
    "failure_rate_schema": (every, lambda row: "schema" in row["codes"], one),
    "failure_rate_provenance": (every, lambda row: "provenance" in row["codes"], one),
}


def slow(rows, label):
    """(numerator, denominator, rows scored) by the definitions."""
    counts, part, whole = DEFINITIONS[label]
    scored = [row for row in rows if counts(row) and whole(row)]
    return sum(map(part, scored)), sum(map(whole, scored)), scored


@settings(max_examples=60, deadline=None)
@given(results())
def test_every_measure_is_what_its_definition_says(rows):
    records = answer_measures(
        as_results(rows),
        3,
        price_per_1k_tokens_in=0.5,
        price_per_1k_tokens_out=2.0,
        resamples=QUICK,
    )
    assert {record.label for record in records} >= {
        f"failure_rate_{code}" for row in rows for code in row["codes"]
    }
    for record in records:
        top, bottom, scored = slow(rows, record.label)
        assert (record.n_attempted, record.n_scored, record.n_ineligible) == (
            len(rows),
            len(scored),
            len(rows) - len(scored),
        )
        assert record.n_units == bottom
        assert record.n_failed == sum(map(failed, scored))
        assert record.n_groups == len({row["group"] for row in scored})
        if not bottom:
            assert math.isnan(record.value)
            assert record.reason
            continue
        assert not record.reason
        assert record.value == pytest.approx(top / bottom)
        if record.n_groups > 1:
            assert record.ci_low - 1e-9 <= record.value <= record.ci_high + 1e-9
        else:
            assert math.isnan(record.ci_low)


def row(**changes):
    plain = {
        "outcome": "answered",
        "codes": [],
        "answerable": True,
        "known": True,
        "group": 0,
        "n_cited": 2,
        "n_valid": 2,
        "n_correct": 2,
        "n_gold": 2,
        "n_matched": 2,
    }
    return (
        plain
        | {"coverage": 1.0, "groundedness": 1.0, "supported": 1.0, "tokens_in": 10, "tokens_out": 5}
        | changes
    )


def by_label(rows, **how):
    return {
        record.label: record
        for record in answer_measures(
            as_results([item | {"group": at} for at, item in enumerate(rows)]),
            1,
            resamples=QUICK,
            **how,
        )
    }


@pytest.mark.parametrize(
    "outcome", ["failed", "contract_error_reply", "not_found", "insufficient_evidence"]
)
def test_what_is_not_answered_is_a_miss_and_never_dropped(outcome):
    found = by_label(
        [
            row(),
            row(outcome=outcome, n_cited=0, n_valid=0, n_correct=0, n_matched=0, coverage=math.nan),
        ]
    )
    for label in ("coverage", "citation_recall"):
        assert (found[label].value, found[label].n_scored) == (0.5, 2)
    assert found["citation_match_rate"].value == pytest.approx(2 / 3)  # two made, one missing
    broken = outcome in {
        "failed",
        "contract_error_reply",
    }  # a broken contract is a miss in every rate, a refusal is no citation
    expected = (pytest.approx(2 / 3), 2, 0) if broken else (1.0, 1, 1)
    assert (
        found["citation_precision"].value,
        found["citation_precision"].n_scored,
        found["citation_precision"].n_ineligible,
    ) == expected
    assert found["citation_validity_rate"].value == expected[0]
    assert found["groundedness"].value == (0.5 if broken else 1.0)


def test_right_citations_of_a_rejected_answer_do_not_help_it():
    found = by_label([row(outcome="failed", codes=["provenance"])])
    assert (
        found["citation_match_rate"].value,
        found["citation_recall"].value,
        found["coverage"].value,
    ) == (0, 0, 0)
    assert (found["failure_rate"].value, found["failure_rate_provenance"].value) == (1, 1)


def test_unanswerable_questions_have_nothing_to_cite():
    found = by_label(
        [
            row(answerable=False),
            row(answerable=False, outcome="not_found", n_cited=0, n_valid=0, n_correct=0),
        ]
    )
    assert math.isnan(found["coverage"].value)
    assert (found["coverage"].n_ineligible, found["coverage"].reason) == (
        2,
        "no answerable question has a gold span",
    )
    assert (found["abstention_rate"].value, found["answered_anyway"].value) == (0.5, 0.5)
    assert found["refused_answerable"].reason == "no question is answerable"


def test_what_an_unanswerable_question_cites_is_wrong():
    found = by_label(
        [row(), row(answerable=False, n_gold=0, n_matched=0, n_correct=0, coverage=math.nan)]
    )
    assert (found["citation_precision"].value, found["citation_precision"].n_units) == (0.5, 4)
    assert found["citation_match_rate"].value == 1.0


def test_where_nobody_knows_whether_a_question_can_be_answered_nothing_is_judged():
    found = by_label([row(known=False, n_gold=0, n_matched=0, n_correct=0, coverage=math.nan)])
    for label in (
        "citation_precision",
        "abstention_rate",
        "answered_anyway",
        "refused_answerable",
        "coverage",
    ):
        assert math.isnan(found[label].value)
        assert found[label].reason
    assert found["citation_validity_rate"].value == 1.0


def test_cost_needs_prices():
    assert by_label([row()])["cost_per_1k"].reason == "no prices are configured"
    assert (
        by_label([row()], price_per_1k_tokens_in=1.0, price_per_1k_tokens_out=2.0)[
            "cost_per_1k"
        ].value
        == 20.0
    )
    assert by_label([row()], price_per_1k_tokens_in=0.0)["cost_per_1k"].value == 0.0


def test_many_citations_of_one_group_are_one_observation():
    one_group = ratio_interval([90, 5, 5, 5], [100, 5, 5, 5], [0, 1, 2, 3], 1)
    spread = ratio_interval([1] * 105 + [0] * 10, [1] * 115, range(115), 1)
    assert one_group.value[0] == pytest.approx(spread.value[0])
    assert one_group.high[0] - one_group.low[0] > 2 * (spread.high[0] - spread.low[0])


def test_all_right_is_not_certainty():
    found = ratio_interval([3] * 40, [3] * 40, range(40), 1)
    assert (found.value[0], found.high[0]) == (1, 1)
    assert 0.8 < found.low[0] < 0.95


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_valid": 3}, "n_valid: question 0 has n_valid outside 0 to n_cited"),
        ({"n_matched": 3}, "n_matched: question 0"),
        ({"outcome": "lost"}, "outcome: found"),
        ({"coverage": math.nan}, "coverage: question 0 is answered"),
    ],
)
def test_impossible_counts_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        answer_measures(as_results([row(**changes)]), 1)


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="lengths differ"):
        answer_measures(AnswerResults(**(vars(as_results([row()])) | {"coverage": []})), 1)
    with pytest.raises(ValueError, match="a part lies outside"):
        ratio_interval([2], [1], [0], 1)
    with pytest.raises(ValueError, match="one each a question"):
        ratio_interval([1, 1], [1], [0], 1)


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.1, 0.5])
@pytest.mark.parametrize("n_groups", [50, 108, 300])
@pytest.mark.parametrize("p", [0.5, 0.8, 0.9, 0.95, 0.98])
def test_intervals_of_ratios_cover_as_often_as_they_say(p, n_groups, correlation):
    """Citations of a question are right together: probabilities of questions are beta distributed, numbers of citations vary."""
    rng = np.random.default_rng([round(100 * p), n_groups, round(10 * correlation)])
    covered, columns, draws = 0, 250, 24
    scale = (1 - correlation) / correlation
    for draw in range(draws):
        wholes = 1 + rng.poisson(1.5, n_groups)
        parts = rng.binomial(
            wholes[:, None], rng.beta(p * scale, (1 - p) * scale, (n_groups, columns))
        )
        found = ratio_interval(parts, wholes, np.arange(n_groups), draw, resamples=1000)
        covered += int(((found.low <= p) & (p <= found.high)).sum())
    share = covered / (columns * draws)
    assert 0.93 <= share <= (0.975 if p <= 0.9 else 0.99), (
        share
    )  # 0.971 at p = 0.9, 50 groups, little correlation: on the safe side
