"""Files of claims and outcomes are read whole, or refused with line and field."""

import datetime as dt
import json

import pytest

from rag_eval.core.errors import InputError, ProblemList
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.outcome_files import read_claims, read_outcomes
from rag_eval.uncertainty.outcomes import OutcomeStore, question_id
from rag_eval.uncertainty.traffic import TrafficStore

NOW = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
STRATEGY = {"strategy": "bm25", "strategy_fingerprint": "f1"}
HIT = {"id": "d1", "score": 2.5}
LINE = {**STRATEGY, "query": "What is NaN?", "retrieved": [HIT, {"id": "d2", "score": None}]}
JUDGED = {**STRATEGY, "query": "What is NaN?", "missed": True, "gold_source": "human"}


@pytest.fixture
def sql(tmp_path) -> SqlStore:
    return SqlStore(tmp_path / "store.db")


def write(tmp_path, *rows, name="file.jsonl"):
    path = tmp_path / name
    lines = (row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)
    path.write_bytes(b"".join(lines))
    return path


def import_claims(sql, path, **options):
    claims, masked = read_claims([path], ProblemList(), **options)
    return TrafficStore(sql).add(claims, now=NOW), masked


def import_outcomes(sql, path):
    outcomes, _ = read_outcomes(path, sql, now=NOW)
    return OutcomeStore(sql).record(outcomes)


def faults(error):
    return [(problem.code, problem.line, problem.field) for problem in error.value.problems]


def test_importing_claims_twice_adds_nothing(sql, tmp_path):
    path = write(
        tmp_path,
        LINE,
        {**LINE, "at": "2026-01-01T00:00:00Z"},
        {**LINE, "at": "2026-01-01T01:00:00+01:00"},  # the same moment in another zone
        {**LINE, "query": "what is  nan?"},
        {**LINE, "retrieved": []},
        b"\n",
    )
    assert [import_claims(sql, path)[0] for _ in range(2)] == [4, 0]
    groups = {row.group_id for row in TrafficStore(sql).claims()}
    assert groups == {question_id("What is NaN?")}


def test_personal_data_is_masked_before_it_is_stored(sql, tmp_path):
    query = "why does jane.doe@example.org get no mail?"
    _, masked = import_claims(sql, write(tmp_path, {**LINE, "query": query}))
    assert masked == {"email": 1}
    assert b"jane.doe" not in b"".join(path.read_bytes() for path in tmp_path.glob("store.db*"))
    (row,) = TrafficStore(sql).claims()
    assert row.query.startswith("why does [email█")


def test_options_serve_lines_that_do_not_name_their_strategy(sql, tmp_path):
    bare = {name: LINE[name] for name in ("query", "retrieved")}
    with pytest.raises(InputError) as caught:
        import_claims(sql, write(tmp_path, bare))
    missing = [("missing_key", 1, name) for name in ("strategy", "strategy_fingerprint")]
    assert faults(caught) == missing
    path = write(tmp_path, bare, {**bare, "query": "more", "strategy": "other", "k": 3})
    import_claims(sql, path, strategy="mine", fingerprint="f9", k=7)
    rows = TrafficStore(sql).claims()
    found = sorted((row.strategy, row.strategy_fingerprint, row.k) for row in rows)
    assert found == [("mine", "f9", 7), ("other", "f9", 3)]


@pytest.mark.parametrize(
    ("row", "code", "field"),
    [
        (b"{\n", "bad_json", None),
        ({"query": " \n"}, "bad_value", "query"),
        ({"query": "a\ud800"}, "bad_value", "query"),
        ({"retrieved": None}, "missing_key", "retrieved"),
        ({"retrieved": ["d1"]}, "wrong_type", "retrieved[0]"),
        ({"retrieved": [{"id": "d1"}]}, "missing_key", "retrieved[0].score"),
        ({"retrieved": [{"id": "d1", "score": True}]}, "wrong_type", "retrieved[0].score"),
        ({"retrieved": [{"id": "d1", "score": 1e300}]}, "bad_value", "retrieved[0].score"),
        ({"retrieved": [HIT, HIT]}, "bad_value", "retrieved"),
        ({"retrieved": [{**HIT, "id": str(n)} for n in range(1001)]}, "bad_value", "retrieved"),
        ({"k": 0}, "bad_value", "k"),
        ({"at": "2026-01-01"}, "bad_value", "at"),
        ({"at": "9000-01-01T00:00:00Z"}, "bad_value", "at"),
        ({"miss_rate": 1.5}, "bad_value", "miss_rate"),
        ({"gold": "d1"}, "unknown_key", "gold"),
    ],
)
def test_a_faulty_line_of_claims_is_named_and_nothing_is_kept(sql, tmp_path, row, code, field):
    row = {**LINE, **row} if isinstance(row, dict) else row
    with pytest.raises(InputError) as caught:
        import_claims(sql, write(tmp_path, LINE, row, {**LINE, "query": "another"}))
    assert (code, 2, field) in faults(caught)
    assert len(str(caught.value)) < 3000
    assert TrafficStore(sql).claims() == []


def test_a_judgement_by_hand_is_completed(sql, tmp_path):
    at = "2026-02-01T00:00:00+02:00"
    rows = [
        {**JUDGED, "gold_documents": ["x"], "query_id": "b"},
        {**JUDGED, "gold_documents": ["x", "y"], "query_id": "a", "query": "other"},
        {**JUDGED, "query_id": "c", "query": "third"},
        {**JUDGED, "query": "with words only", "gold_source": "qrels", "k": 5},
        {**JUDGED, "query_id": "e", "group_id": "mine", "at": at, "note": "by a.b@example.org"},
    ]
    assert len(import_outcomes(sql, write(tmp_path, *rows)).added) == 5
    frame, words = OutcomeStore(sql).current(), question_id("with words only")
    groups = frame.groupby("query_id")["group_id"].first().to_dict()
    assert groups == {"a": "a", "b": "a", "c": "c", "e": "mine", words: words}
    kept = frame.set_index("query_id")
    assert kept.loc["c", "gold_strategies"] == ["f1"]  # a person judged the strategy's own list
    assert kept.loc[words, ["gold_strategies", "k"]].tolist() == [[], 5]
    masked = "by [email█████████"
    assert kept.loc["e", ["at", "note"]].tolist() == ["2026-01-31T22:00:00.000000Z", masked]
    assert frame["claim_id"].nunique() == 5


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"missed": None}, "missing_key", "missed"),
        ({"gold_source": "guess"}, "bad_value", "gold_source"),
        ({"strategy": None}, "missing_key", "strategy"),
        ({"query": None}, "bad_value", "query_id"),
        ({"inclusion_probability": 1.0}, "unknown_key", "inclusion_probability"),
        ({"gold_source": "user_feedback"}, "bad_value", "gold_source"),
        ({"at": "9000-01-01T00:00:00Z"}, "bad_value", "at"),
        ({"missed_content": "x" * 20_001}, "bad_value", "missed_content"),
        ({"missed": False, "missed_content": "x"}, "bad_value", "missed_content"),
        ({"note": "a\x00"}, "bad_value", "note"),
        ({"query": "first"}, "bad_value", "claim_id"),
    ],
)
def test_a_faulty_judgement_is_named_and_nothing_is_kept(sql, tmp_path, change, code, field):
    with pytest.raises(InputError) as caught:
        import_outcomes(sql, write(tmp_path, {**JUDGED, "query": "first"}, {**JUDGED, **change}))
    assert (code, field) in [(problem.code, problem.field) for problem in caught.value.problems]
    assert len(OutcomeStore(sql).history()) == 0


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"inclusion_probability": 1.0}, "unknown_key", "inclusion_probability"),
        ({"draw_id": "another"}, "bad_value", "draw_id"),
        ({"claim_id": "another"}, "bad_value", "draw_id"),
        ({"target": "miss_some"}, "bad_value", "draw_id"),
        ({"k": 5}, "bad_value", "k"),
        ({"missed": None}, "missing_key", "missed"),
        ({"missed": "yes"}, "wrong_type", "missed"),
        ({"gold_source": None}, "missing_key", "gold_source"),
        ({"gold_source": "qrels"}, "bad_value", "gold_source"),
        ({"strategy": "vector"}, "bad_value", "strategy"),
        ({"extra": 1}, "unknown_key", "extra"),
    ],
)
def test_an_altered_or_unfinished_audit_is_refused(sql, tmp_path, change, code, field):
    import_claims(sql, write(tmp_path, *({**LINE, "query": f"{n}?"} for n in range(20))))
    audit = tmp_path / "audit.jsonl"
    TrafficStore(sql).draw(audit, n=3, seed=1, now=NOW)
    rows = map(json.loads, audit.read_text(encoding="utf-8").splitlines())
    first, second, _ = ({**row, "missed": False, "gold_source": "human"} for row in rows)
    with pytest.raises(InputError) as caught:
        import_outcomes(sql, write(tmp_path, first, {**second, **change}))
    assert faults(caught)[0] == (code, 2, field)
    assert len(OutcomeStore(sql).history()) == 0
