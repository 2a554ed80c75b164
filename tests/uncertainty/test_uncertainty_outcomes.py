"""The table of outcomes, on SQLite and PostgreSQL: append-only, corrected by new rows."""

import datetime as dt

import pandas as pd
import pytest
from pydantic import ValidationError

from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.calibration import _explain_own_gold
from rag_eval.uncertainty.outcomes import (
    MAX_SIGNALS,
    RETRIEVAL_OUTCOMES,
    OutcomeStore,
    RetrievalOutcome,
    Shown,
    claim_id_of,
    fit_rows,
    frame_of,
    new_outcome,
    question_id,
)

AT = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
BASE = {
    "group_id": "g",
    "strategy": "bm25",
    "strategy_fingerprint": "f1",
    "target": "miss_any",
    "k": 10,
    "missed": True,
    "gold_source": "qrels",
    "inclusion_probability": 1.0,
    "at": AT,
}


def made(query="q", **changes) -> RetrievalOutcome:
    claim_id = claim_id_of("f1", query, "original", 13, query)
    return new_outcome(**{**BASE, "query_id": query, "claim_id": claim_id, **changes})


@pytest.fixture
def store(place) -> OutcomeStore:
    return OutcomeStore(SqlStore(place))


def standing(store, column="missed"):
    return store.current().set_index("query_id")[column].to_dict()


def test_recorded_outcomes_come_back_whole(store):
    full = made(
        "wörter 'quoted'; DROP TABLE retrieval_outcomes; --",
        missed_content="a line\nand more",
        agent_success=False,
        gold_strategies=("bm25", "f1"),
        gold_documents=("d1",),
        audit_depth=50,
        signals={"s_k/s_1": 0.25, "unknown": None, "idf": -3},
        shown=Shown(value=0.3, status="prior", calibrator="c1"),
        note="why",
    )
    bare = made("bare", missed=False, inclusion_probability=None)
    assert store.record([full, bare]).added == (full.outcome_id, bare.outcome_id)
    frame = RETRIEVAL_OUTCOMES.check(store.current())
    pd.testing.assert_frame_equal(frame, frame_of([full, bare]))
    frame = frame.set_index("query_id")
    assert frame.loc[full.query_id, ["agent_success", "audit_depth"]].tolist() == [0.0, 50.0]
    assert frame.loc[full.query_id, "signals"] == dict(full.signals)
    assert frame.loc[full.query_id, "gold_strategies"] == ["bm25", "f1"]
    assert frame.loc[full.query_id, ["shown_value", "shown_status"]].tolist() == [0.3, "prior"]
    assert frame.loc["bare", ["missed", "missed_content", "supersedes"]].tolist() == [0.0, "", ""]


def test_a_nightly_repeat_adds_nothing(store):
    night = [made(f"q{number}", missed=number % 3 == 0) for number in range(50)]
    assert len(store.record(night).added) == 50
    later = {"at": AT + dt.timedelta(days=1), "signals": {"other": 1.0}}
    again = store.record([outcome.model_copy(update=later) for outcome in night])
    assert (again.added, len(again.already_there), dict(again.differing)) == ((), 50, {})
    assert len(store.history()) == 50
    others = ({"k": 5}, {"target": "miss_some"}, {"gold_source": "llm_judge"})
    more = store.record([*night, *(made("q0", **change) for change in others)])
    assert len(more.added) == 3


def test_gold_supersedes_gold_and_a_person_wins(store):
    first, second = f"gold {'1' * 16}", f"gold {'2' * 16}"
    store.record([made("a"), made("b")], because=first)
    for because, missed in ((second, False), (first, True), (second, False)):
        done = store.record([made("a", missed=missed), made("b")], because=because)
        assert (len(done.added), dict(done.differing)) == (1, {})
        assert standing(store) == {"a": float(missed), "b": 1.0}
    assert store.record([made("a", missed=False), made("b")], because=second).added == ()
    person = made("a", inclusion_probability=None)
    assert len(store.record([person], because="the gold is wrong").added) == 1
    # The correction takes over the probability, so that it still fits a calibrator.
    assert fit_rows(store.current())["missed"].tolist() == [True, True]
    again = store.record([made("a", missed=False), made("b")], because=second)
    assert (again.added, len(again.differing)) == ((), 1)
    assert standing(store) == {"a": 1.0, "b": 1.0}


def test_a_probability_known_later_supersedes_an_unknown_one(store):
    store.record([made(gold_source="human", inclusion_probability=None)])
    assert len(fit_rows(store.current())) == 0
    store.record([made(gold_source="human", inclusion_probability=0.25)], because="drawn")
    assert fit_rows(store.current())["weight"].tolist() == [4.0]


def test_groups_that_share_a_gold_document_are_one(store):
    b, c = (made(name, group_id=name, gold_documents=(x,)) for name, x in (("b", "x"), ("c", "y")))
    store.record([b, c, made("z", group_id="z")])
    assert standing(store, "group_id") == {"b": "b", "c": "c", "z": "z"}
    tied = made("a", group_id="a", gold_documents=("x", "y"))
    store.record([tied, made("z", group_id="other", k=5)])
    assert standing(store, "group_id") == {"a": "a", "b": "a", "c": "a", "z": "other"}
    # recorded outcomes stay
    assert set(store.history()["group_id"]) == {"a", "b", "c", "z", "other"}


def test_the_most_thorough_source_of_known_probability_judges_a_claim():
    rows = [
        made("a", missed=False),
        made("a", gold_source="deep_audit", audit_depth=100, inclusion_probability=0.2),
        made("a", gold_source="human", missed=False, inclusion_probability=0.4),
        made("a", k=5),
        made("unknown", inclusion_probability=None),
        made("said", gold_source="user_feedback"),
        made("judge", gold_source="llm_judge", inclusion_probability=0.1, missed=False),
    ]
    fit = fit_rows(frame_of(rows)).set_index("gold_source")
    sources = {"deep_audit": True, "qrels": True, "llm_judge": False}
    assert fit["missed"].to_dict() == sources
    assert fit["k"].to_dict() == {"deep_audit": 10, "qrels": 5, "llm_judge": 10}
    assert fit["weight"].to_dict() == {"deep_audit": 1.0, "qrels": 1.0, "llm_judge": 10.0}


F1 = [made(f"q{number}", gold_strategies=("f1",)) for number in range(3)]
OLD = made("old", strategy_fingerprint="f0", gold_strategies=("f0",))


@pytest.mark.parametrize(
    ("rows", "refused"),
    [
        (F1, True),
        ([*F1, OLD], True),  # an older fingerprint is still the strategy
        ([made("q", gold_strategies=("bm25", "f1"))], True),
        ([made("q", gold_strategies=())], False),
        ([*F1, made("q", gold_strategies=("bm25", "vector"))], False),
        ([], False),
    ],
)
def test_gold_of_the_strategy_alone_is_refused(rows, refused):
    reason = _explain_own_gold(frame_of(rows), "bm25")
    assert (f"all {len(rows)} outcomes" in reason) is refused
    assert bool(reason) is refused


@pytest.mark.parametrize(
    "change",
    [
        {"query_id": ""},
        {"query_id": "a\x00b"},
        {"claim_id": "no hash"},
        {"k": 0},
        {"missed": 1},
        {"missed": None},
        {"missed_content": "x" * 201},
        {"missed": False, "missed_content": "x"},
        {"inclusion_probability": 0.0},
        {"signals": {"x": float("inf")}},
        {"signals": {str(number): 1.0 for number in range(MAX_SIGNALS + 1)}},
        {"at": dt.datetime(2026, 1, 1)},  # noqa: DTZ001 - hypothesis adds the zone - what is to be refused
        {"target": "miss_frac"},
        {"gold_source": "guess"},
        {"unknown": 1},
    ],
)
def test_every_field_is_bounded(change):
    with pytest.raises(ValidationError):
        made(**change)


def test_a_question_is_identified_by_its_words():
    assert question_id("What is  NaN?\n") == question_id("what is ＮａＮ?")
    assert question_id("What is NaN?") != question_id("What is NaT?")
