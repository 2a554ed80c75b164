"""Confidence values: a closed set, composition, and the discount of an answer by a miss rate."""

import datetime as dt
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rag_eval.uncertainty.claims import _groundedness_confidence, _reported_confidence
from rag_eval.uncertainty.confidence import (
    Absent,
    Bounded,
    Derived,
    Deterministic,
    Measured,
    MissRate,
    UncertainRetrieval,
    as_json,
    calibrated_confidence,
    compose,
    effective,
    final_confidence,
    parse,
    retrieval_confidence,
    summarize,
)
from rag_eval.uncertainty.miss_rate_report import CorpusCoverage

AT = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
unit = st.floats(0, 1)
leaves = st.one_of(
    st.builds(Deterministic, value=unit, reason=st.just("counted")),
    st.builds(
        lambda a, b: Bounded(low=min(a, b), high=max(a, b), basis="x", citation="y"), unit, unit
    ),
    st.builds(
        lambda a, b, c: Measured(
            value=sorted((a, b, c))[1],
            ci_low=min(a, b, c),
            ci_high=max(a, b, c),
            dataset="d",
            n=3,
            measured_at=AT,
        ),
        unit,
        unit,
        unit,
    ),
    st.builds(
        Absent, reason=st.sampled_from(["uncalibrated", "insufficient_data", "not_applicable"])
    ),
)


def miss(value, status="measured", low=None, high=None):
    return MissRate(
        value, low, high, status, "miss_any", 10, "qrels", "abc", 250, AT, discounts=True
    )


@given(st.lists(leaves, min_size=1, max_size=5))
def test_composition_is_conservative_and_names_its_inputs(values):
    named = {f"x{i}": value for i, value in enumerate(values)}
    low = [effective(value) for value in values]
    assert compose("sequence", **named).value == min(low)
    assert compose("all_of", **named).value == pytest.approx(math.prod(low))
    assert compose("any_of", **named).value == pytest.approx(1 - math.prod(1 - x for x in low))
    assert dict(compose("all_of", **named).inputs) == named
    assert (
        compose("all_of", **named).value
        <= min(low) + 1e-12
        <= compose("any_of", **named).value + 2e-12
    )


@given(leaves)
def test_json_and_back(value):
    whole = compose("all_of", a=value, b=compose("sequence", c=value))
    assert parse(as_json(whole)) == whole


@pytest.mark.parametrize(
    "wrong", [0.5, True, None, "0.5", {"value": 0.5}, {"kind": "absent", "reason": "uncalibrated"}]
)
def test_a_bare_number_is_no_confidence(wrong):
    with pytest.raises(ValidationError):
        parse(wrong)
    with pytest.raises(TypeError):
        effective(wrong)
    with pytest.raises((TypeError, ValidationError)):
        final_confidence(wrong, miss(0.2))
    with pytest.raises(ValidationError):
        Derived(value=0.5, formula="x", inputs={"a": wrong})
    with pytest.raises(ValidationError):
        parse({"type": "derived", "value": 0.5, "formula": "x", "inputs": [{"name": "a"}]})


def test_impossible_values_are_refused():
    for wrong in (-0.1, 1.1, math.nan, math.inf):
        with pytest.raises(ValidationError):
            Deterministic(value=wrong, reason="x")
    with pytest.raises(ValidationError):
        Bounded(low=0.6, high=0.5, basis="x", citation="y")
    with pytest.raises(ValidationError):
        Measured(value=0.5, dataset="d", n=1, ci_low=0.6, ci_high=0.7, measured_at=AT)
    with pytest.raises(ValidationError):
        Derived(value=0.5, formula="x", inputs={})
    with pytest.raises(ValidationError):
        compose("all_of")


@given(
    st.just(0.0) | st.floats(1e-6, 1),
    st.floats(0.001, 1),
    st.sampled_from(["uncalibrated", "prior", "provisional", "measured", "stale"]),
)
def test_final_confidence_is_below_synthesis_wherever_something_may_be_missed(
    grounded, value, status
):
    synthesis = _groundedness_confidence(grounded)
    final = final_confidence(synthesis, miss(value, status, 0.0, 1.0))
    assert final.value == pytest.approx(grounded * (1 - value))
    assert final.value < grounded or grounded == 0
    assert set(final.inputs) == {"synthesis_confidence", "retrieval_confidence"}


def test_only_an_earned_miss_rate_discounts():
    synthesis = _groundedness_confidence(0.8)
    for status in ("absent", "uncalibrated", "prior", "stale"):
        found = calibrated_confidence(synthesis, miss(0.5, status, 0.4, 0.6))
        assert found == Absent(reason="uncalibrated")
    for status in ("provisional", "measured"):
        found = calibrated_confidence(synthesis, miss(0.5, status, 0.4, 0.6))
        assert effective(found) == pytest.approx(0.4)
    measured = miss(0.5, "measured", 0.4, 0.6)
    right = Measured(value=0.2, dataset="d", n=40, ci_low=0.1, ci_high=0.3, measured_at=AT)
    assert effective(calibrated_confidence(synthesis, measured, right)) == pytest.approx(0.5)
    unknown = _reported_confidence(None, "x")
    assert calibrated_confidence(unknown, measured) == Absent(reason="insufficient_data")


def test_what_stands_behind_a_retrieval_confidence_is_named():
    behind = {
        status: retrieval_confidence(miss(0.5, status, 0.4, 0.7)).inputs["hit_rate"]
        for status in ("uncalibrated", "prior", "provisional", "measured", "stale")
    }
    assert behind["uncalibrated"] == behind["stale"] == Absent(reason="uncalibrated")
    assert isinstance(behind["prior"], Bounded)
    assert isinstance(behind["provisional"], Bounded)
    measured = behind["measured"]
    assert (measured.ci_low, measured.value, measured.ci_high) == pytest.approx((0.3, 0.5, 0.6))
    assert measured.n == 250
    assert retrieval_confidence(miss(None, "absent")) == Absent(reason="insufficient_data")


def test_a_reported_confidence_is_taken_at_its_word_and_marked_so():
    value = _reported_confidence(0.9, "recorded")
    assert (effective(value), value.inputs["reported"].type) == (0.9, "bounded")


COUNTED = {"n": 9, "of": 10, "confidence": Deterministic(value=0.9, reason="counted: 9 of 10")}
COVERAGE = CorpusCoverage.model_validate(
    {
        **dict.fromkeys(("documents_indexed", "text_in_chunks", "chunks_admitted"), COUNTED),
        "chunks_embedded": {},
    }
)


@pytest.mark.parametrize(
    ("status", "recall", "difficulty"),
    [("provisional", "absent", "absent"), ("measured", "derived", "derived")],
)
def test_recall_and_difficulty_are_stated_once_measured(status, recall, difficulty):
    found = UncertainRetrieval(
        documents=[],
        miss_rate=miss(0.2, status, 0.1, 0.3),
        heuristic_v0=0.4,
        similar_judged=0,
        coverage=0.75,
        corpus=COVERAGE,
        gaps=[],
        harder_share=0.25,
    ).as_json()
    about = found["uncertainty"]
    assert about["estimated_recall"]["type"] == recall
    assert about["query_difficulty"]["type"] == difficulty
    if status == "measured":
        assert about["estimated_recall"]["value"] == pytest.approx(0.8)
        assert about["query_difficulty"]["value"] == 0.75
    assert (found["coverage_estimate"], found["coverage_signal"]) == (0.75, "cover_union")
    assert about["corpus_coverage"] == {
        "type": "deterministic",
        "value": 0.9,
        "reason": "index_metadata, counted: 9 of 10",
    }


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("", ""),
        ("Dr. Smith retries.\nThen he stops.", "Dr. Smith retries."),
        ("Write to jane@example.org now. Twice.", "Write to [email██████████ now."),
        ("# Jobs\n\nA job runs! It stops.", "A job runs!"),
        ("# Jobs\n\nno end", "# Jobs"),
        ("a" * 5000, "a" * 119 + "…"),
    ],
)
def test_a_summary_is_the_first_sentence_masked_and_cut(text, summary):
    assert summarize(text) == summary
