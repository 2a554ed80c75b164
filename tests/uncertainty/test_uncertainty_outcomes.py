"""The table of outcomes, on SQLite and PostgreSQL: append-only, corrected by new rows."""

import datetime as dt
import threading

import numpy as np
import postgres_server
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rag_eval.core.errors import InputError
from rag_eval.core.types import (
    MAX_SIGNALS,
    MISSED_BY_FEEDBACK,
    RETRIEVAL_OUTCOMES,
    OutcomeOutcomes,
    Shown,
)
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.outcome_files import correct_outcome
from rag_eval.uncertainty.outcomes import (
    Asked,
    OutcomeStore,
    claim_id_of,
    document_tie,
    feedback_without_audit,
    fit_rows,
    frame_of,
    new_outcome,
    of_frame,
    question_groups,
    question_id,
    refuse_own_gold,
    words_tie,
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


def made(query="q", **changes) -> OutcomeOutcomes:
    return new_outcome(
        **{
            **BASE,
            "query_id": query,
            "claim_id": claim_id_of("f1", query, "original", 13, query),
            **changes,
        }
    )


@pytest.fixture(scope="module")
def server():
    with postgres_server.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path) -> OutcomeStore:
    return OutcomeStore(
        SqlStore(
            tmp_path / "store.db"
            if request.param == "sqlite"
            else postgres_server.new_database(request.getfixturevalue("server"))
        )
    )


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
    assert sorted(of_frame(store.current()), key=lambda outcome: outcome.query_id) == [bare, full]
    assert store.outcome(full.outcome_id[:9]) == full
    frame = RETRIEVAL_OUTCOMES.check(store.current())
    assert frame.set_index("query_id").loc[
        "bare", ["missed", "missed_content", "supersedes"]
    ].tolist() == [0.0, "", ""]


def test_a_nightly_repeat_adds_nothing(store):
    night = [made(f"q{number}", missed=number % 3 == 0) for number in range(50)]
    assert len(store.record(night).added) == 50
    again = store.record(
        [
            outcome.model_copy(update={"at": AT + dt.timedelta(days=1), "signals": {"other": 1.0}})
            for outcome in night
        ]
    )
    assert (again.added, len(again.already_there), dict(again.differing)) == ((), 50, {})
    assert len(store.history()) == 50
    more = store.record(
        [
            *night,
            made("q0", k=5),
            made("q0", target="miss_some"),
            made("q0", gold_source="llm_judge"),
        ]
    )
    assert len(more.added) == 3


def test_only_the_last_correction_stands(store):
    first = made(missed_content="a thing")
    second = correct_outcome(
        first, missed=False, now=AT + dt.timedelta(hours=1), note="looked again"
    )
    third = correct_outcome(second, missed=None, now=AT + dt.timedelta(hours=2))
    assert (second.missed_content, second.inclusion_probability) == (None, 1.0)
    store.record([first])
    store.record([third, second])  # in any order, as long as all are there
    assert store.history()["outcome_id"].tolist() == [
        first.outcome_id,
        second.outcome_id,
        third.outcome_id,
    ]
    standing = store.current()
    assert standing["outcome_id"].tolist() == [third.outcome_id]
    assert np.isnan(standing["missed"].iloc[0])
    assert len(fit_rows(standing)) == 0
    assert store.record([first]).differing == {
        first.outcome_id: third.outcome_id
    }  # told, not undone
    assert store.current()["outcome_id"].tolist() == [third.outcome_id]


def test_an_outcome_is_corrected_once(store):
    first = made()
    store.record([first])
    assert len(store.record([correct_outcome(first, missed=False, now=AT)]).added) == 1
    other = store.record([correct_outcome(first, missed=None, now=AT)])
    assert (other.added, len(other.differing)) == ((), 1)
    assert store.current()["missed"].tolist() == [0.0]


@pytest.mark.parametrize(
    "change",
    [
        {"claim_id": "other"},
        {"k": 5},
        {"target": "miss_some"},
        {"gold_source": "human"},
        {"strategy_fingerprint": "f2"},
        {"supersedes": "absent"},
    ],
)
def test_a_correction_must_name_an_outcome_of_its_claim(store, change):
    first = made()
    store.record([first])
    with pytest.raises(InputError, match="unknown_outcome"):
        store.record(
            [made("new"), made(**{"supersedes": first.outcome_id, "missed": False, **change})]
        )
    assert store.history()["outcome_id"].tolist() == [first.outcome_id]


def test_new_gold_supersedes_once_and_a_person_wins(store):
    store.record([made("a"), made("b")], because="gold 1")
    done = store.record([made("a", missed=False), made("b")], because="gold 2")
    assert (len(done.added), dict(done.differing)) == (1, {})
    assert store.current().set_index("query_id")["missed"].to_dict() == {"a": 0.0, "b": 1.0}
    assert store.record([made("a", missed=False), made("b")], because="gold 2").added == ()
    standing = store.outcome(store.current().set_index("query_id").loc["a", "outcome_id"])
    store.record([correct_outcome(standing, missed=True, now=AT, note="the gold is wrong")])
    again = store.record([made("a", missed=False), made("b")], because="gold 2")
    assert (again.added, len(again.differing)) == ((), 1)
    assert store.current().set_index("query_id")["missed"].to_dict() == {"a": 1.0, "b": 1.0}


def test_a_probability_known_later_supersedes_an_unknown_one(store):
    store.record([made(gold_source="human", inclusion_probability=None)])
    assert len(fit_rows(store.current())) == 0
    store.record([made(gold_source="human", inclusion_probability=0.25)], because="drawn")
    assert fit_rows(store.current())["weight"].tolist() == [4.0]


def test_a_false_outcome_id_is_refused(store):
    with pytest.raises(ValueError, match="outcome_id"):
        store.record([made().model_copy(update={"k": 5})])
    assert len(store.history()) == 0


def test_filters_choose_outcomes(store):
    store.record(
        [
            made("a"),
            made("b", k=5),
            made("c", strategy="vector", strategy_fingerprint="f2"),
            made("d", target="miss_some"),
            made("e", gold_source="human"),
        ]
    )

    def chosen(**where):
        return "".join(sorted(store.current(**where)["query_id"]))

    assert chosen() == "abcde"
    assert chosen(strategy_fingerprint="f1") == "abde"
    assert chosen(strategy="vector") == "c"
    assert chosen(target="miss_any", k=10) == "ace"
    assert chosen(gold_sources=["human", "llm_judge"]) == "e"
    assert chosen(claim_ids=[made("a").claim_id, made("d").claim_id], k=10) == "ad"
    assert chosen(gold_sources=[]) == ""
    assert RETRIEVAL_OUTCOMES.check(store.current(strategy="none")).empty


def test_threads_neither_lose_nor_double_outcomes(store):
    outcomes = [made(f"q{number}") for number in range(60)]
    added: list[str] = []

    def work() -> None:
        for start in range(0, 60, 15):
            part = outcomes[start : start + 15]
            added.extend(store.record(part).added)
            added.extend(
                store.record(
                    [correct_outcome(outcome, missed=False, now=AT) for outcome in part]
                ).added
            )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(added) == sorted(store.history()["outcome_id"])
    assert len(added) == 120
    assert store.current()["missed"].tolist() == [0.0] * 60


def test_groups_that_share_a_gold_document_are_one(store):
    store.record(
        [
            made("b", group_id="b", gold_documents=("x",)),
            made("c", group_id="c", gold_documents=("y",)),
            made("z", group_id="z"),
        ]
    )
    assert dict(zip(*store.current()[["query_id", "group_id"]].to_numpy().T, strict=True)) == {
        "b": "b",
        "c": "c",
        "z": "z",
    }
    store.record(
        [made("a", group_id="a", gold_documents=("x", "y")), made("z", group_id="other", k=5)]
    )
    assert dict(zip(*store.current()[["query_id", "group_id"]].to_numpy().T, strict=True)) == {
        "a": "a",
        "b": "a",
        "c": "a",
        "z": "other",
    }
    assert set(store.history()["group_id"]) == {
        "a",
        "b",
        "c",
        "z",
        "other",
    }  # recorded outcomes stay


def test_only_judged_outcomes_of_known_probability_fit():
    rows = [
        made("gold"),
        made("unknown", inclusion_probability=None),
        made("audited", gold_source="human", inclusion_probability=0.5),
        made(
            "said",
            gold_source="user_feedback",
            feedback="something_missing",
            inclusion_probability=None,
        ),
        made("judge", gold_source="llm_judge", inclusion_probability=0.1, missed=False),
    ]
    fit = fit_rows(frame_of(rows))
    assert fit.set_index("query_id")["weight"].to_dict() == {
        "gold": 1.0,
        "audited": 2.0,
        "judge": 10.0,
    }
    assert fit["missed"].dtype == bool


def test_the_most_thorough_source_judges_a_claim():
    rows = [
        made("a", missed=False),
        made("a", gold_source="deep_audit", audit_depth=100, inclusion_probability=0.2),
        made("a", gold_source="human", missed=False, inclusion_probability=0.4),
        made("a", k=5),
    ]
    fit = fit_rows(frame_of(rows))
    assert fit.set_index("gold_source")["missed"].to_dict() == {"deep_audit": True, "qrels": True}
    assert fit.set_index("gold_source")["k"].to_dict() == {"deep_audit": 10, "qrels": 5}
    assert fit.set_index("gold_source")["weight"].to_dict() == {"deep_audit": 1.0, "qrels": 1.0}


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (("bm25",), True),
        (("f1",), True),
        (("f1", "bm25"), True),
        ((), False),
        (("vector",), False),
        (("bm25", "vector"), False),
    ],
)
def test_gold_of_the_strategy_alone_is_refused(names, refused):
    frame = frame_of(
        [made(f"q{number}", gold_strategies=names) for number in range(3)]
        + [made("x", strategy="vector", strategy_fingerprint="f2", gold_strategies=())]
    )
    for strategy in ("bm25", "f1"):
        if refused:
            with pytest.raises(InputError, match="could not become gold") as caught:
                refuse_own_gold(frame, strategy)
            (problem,) = caught.value.problems
            assert problem.code == "own_gold"
            assert "all 3 outcomes" in problem.message
        else:
            refuse_own_gold(frame, strategy)
    refuse_own_gold(frame, "vector")
    refuse_own_gold(frame, "no outcomes yet")


def test_an_older_fingerprint_is_still_the_strategy():
    own = [made(f"q{number}", gold_strategies=("f1",)) for number in range(3)]
    with pytest.raises(InputError, match="own_gold"):
        refuse_own_gold(
            frame_of([*own, made("old", strategy_fingerprint="f0", gold_strategies=("f0",))]),
            "bm25",
        )
    refuse_own_gold(frame_of([*own, made("other")]), "bm25")


def test_feedback_decides_missed_and_has_no_probability():
    said = {"gold_source": "user_feedback", "inclusion_probability": None}
    assert MISSED_BY_FEEDBACK["evidence_not_relevant"] is None
    assert made(**said, feedback="evidence_not_relevant", missed=None).missed is None
    for wrong in (
        {"feedback": "evidence_not_relevant"},
        {"feedback": "something_missing", "missed": False},
        {"feedback": "nothing_missing"},
        {},
        {"feedback": "something_missing", "inclusion_probability": 1.0},
    ):
        with pytest.raises(ValidationError):
            made(**{**said, **wrong})
    with pytest.raises(ValidationError):
        made(feedback="something_missing")


def test_a_correction_must_not_contradict_the_feedback():
    said = made(
        gold_source="user_feedback",
        inclusion_probability=None,
        feedback="evidence_not_relevant",
        missed=None,
    )
    with pytest.raises(InputError, match="feedback evidence_not_relevant"):
        correct_outcome(said, missed=True, now=AT)
    assert (
        correct_outcome(
            made(
                gold_source="user_feedback",
                inclusion_probability=None,
                feedback="nothing_missing",
                missed=False,
            ),
            missed=None,
            now=AT,
        ).missed
        is None
    )


def test_feedback_calls_for_an_audit_until_the_claim_is_judged():
    said = {"gold_source": "user_feedback", "inclusion_probability": None}
    rows = [
        made(
            "a", **said, feedback="evidence_not_relevant", missed=None, at=AT + dt.timedelta(days=3)
        ),
        made("b", **said, feedback="something_missing"),
        made("c", **said, feedback="something_missing", at=AT + dt.timedelta(days=1)),
        made("d", **said, feedback="something_missing"),
        made("d", gold_source="human", inclusion_probability=None),
        made("b"),  # gold does not audit the text that the user saw
    ]
    assert feedback_without_audit(frame_of(rows))["query_id"].tolist() == ["c", "b", "a"]
    assert len(fit_rows(frame_of(rows))) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"query_id": ""},
        {"query_id": "a\x00b"},
        {"claim_id": "no hash"},
        {"k": 0},
        {"k": True},
        {"missed": 1},
        {"missed": None},
        {"missed_content": "x" * 201},
        {"missed": False, "missed_content": "x"},
        {"inclusion_probability": 0.0},
        {"inclusion_probability": float("nan")},
        {"signals": {"x": float("inf")}},
        {"signals": {"x\n": 1.0}},
        {"signals": {str(number): 1.0 for number in range(MAX_SIGNALS + 1)}},
        {"at": dt.datetime(2026, 1, 1)},  # noqa: DTZ001 - what is to be refused
        {"audit_depth": 0},
        {"target": "miss_frac"},
        {"gold_source": "guess"},
        {"unknown": 1},
    ],
)
def test_every_field_is_bounded(change):
    with pytest.raises(ValidationError):
        made(**change)


names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=20
)
numbers = st.one_of(st.none(), st.floats(-1e15, 1e15))
moments = st.datetimes(
    min_value=dt.datetime(2, 1, 2),  # noqa: DTZ001 - hypothesis wants its bounds so
    max_value=dt.datetime(9998, 1, 1),  # noqa: DTZ001
    timezones=st.timezones(),
)
outcomes = st.builds(
    made,
    names,
    group_id=names,
    k=st.integers(1, 1000),
    target=st.sampled_from(["miss_any", "miss_some"]),
    missed=st.just(True),
    missed_content=st.one_of(st.none(), names),
    agent_success=st.sampled_from([True, False, None]),
    gold_strategies=st.lists(names, max_size=3).map(tuple),
    gold_documents=st.lists(names, max_size=3).map(tuple),
    inclusion_probability=st.one_of(st.none(), st.floats(0, 1, exclude_min=True)),
    audit_depth=st.one_of(st.none(), st.integers(1, 1000)),
    signals=st.dictionaries(st.from_regex(r"[a-z_@/]{1,8}", fullmatch=True), numbers, max_size=4),
    shown=st.builds(
        Shown,
        value=st.one_of(st.none(), st.floats(0, 1)),
        status=st.sampled_from(["prior", "measured"]),
        calibrator=st.one_of(st.none(), names),
    ),
    note=st.one_of(st.just(""), names),
    at=moments,
)


@settings(deadline=None, max_examples=60)
@given(outcomes)
def test_outcomes_survive_json_and_the_frame(outcome):
    assert OutcomeOutcomes.model_validate_json(outcome.model_dump_json()) == outcome
    assert OutcomeOutcomes.model_validate(outcome.model_dump(mode="json")) == outcome
    assert of_frame(frame_of([outcome])) == [outcome]


def test_a_question_is_identified_by_its_words():
    assert question_id("What is  NaN?\n") == question_id("what is ＮａＮ?")
    assert question_id("What is NaN?") != question_id("What is NaT?")


GOLD = {"b": "a", "a": "a", "c": "c", "d": "d"}
X, Y, Z, NEW = map(document_tie, ("x", "y", "z", "new"))
TIES = [
    *(("a", X), ("b", X), ("c", Y), ("d", Z)),
    *(("c", words_tie("q-1")), ("d", words_tie("q-1"))),
]


@pytest.mark.parametrize(
    ("asked", "gold", "others"),
    [
        ([], GOLD, {}),
        ([("c", "old name"), ("elsewhere", "elsewhere", X + "?")], GOLD, {}),
        (
            [("0", "0", X), ("1", "1", NEW), ("2", "2", NEW)],
            GOLD,
            {("0", "0"): "a", ("1", "1"): "1", ("2", "2"): "1", ("b", "b"): "a"},
        ),
        ([("mine", "mine", words_tie("q-1"))], {**GOLD, "d": "c"}, {("mine", "mine"): "c"}),
        ([("q-1", "q-1")], {**GOLD, "d": "c"}, {("q-1", "q-1"): "c"}),
        (
            [("p", "p", X, Z), ("p", "r"), ("s", "r"), ("t", "c")],
            {**GOLD, "d": "a"},
            {("p", "p"): "a", ("s", "r"): "a", ("t", "c"): "c", ("unknown", "own"): "own"},
        ),
        (
            [("d", "then", Y), ("e", "then")],
            {**GOLD, "d": "c"},
            {("d", "then"): "c", ("e", "then"): "then"},
        ),
    ],
    ids=[
        "the gold alone keeps its groups",
        "an id of the gold and an unknown document tie nothing",
        "documents join, and the gold gives the name",
        "words join",
        "an id made of words joins",
        "a question ties gold groups and its own names",
        "a question with a gold id is that question",
    ],
)
def test_asked_questions_join_the_groups_of_the_gold(asked, gold, others):
    questions = [Asked(query, group, tuple(ties)) for query, group, *ties in asked]
    found = question_groups(GOLD, TIES, questions)
    assert found.of_gold == gold
    assert {names: found.group(*names) for names in others} == others
