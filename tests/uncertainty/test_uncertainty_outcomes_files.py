"""Files of claims, judgements and audits: read whole or refused with line and field, twice is once, and nobody but the store says how likely a claim was drawn."""

import datetime as dt
import json

import postgres_server
import pytest
from cli_project import jsonl
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.records.problems import InputError
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.audits import AuditStore
from rag_eval.uncertainty.claims import ClaimStore, read_claims
from rag_eval.uncertainty.line_files import MAX_LINE_BYTES
from rag_eval.uncertainty.naming import question_id
from rag_eval.uncertainty.outcome_lines import read_outcomes
from rag_eval.uncertainty.outcome_use import fit_rows, refuse_own_gold
from rag_eval.uncertainty.outcomes import OutcomeStore

NOW = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
LINE = {
    "query": "What is NaN?",
    "retrieved": [{"id": "d1", "score": 2.5}, {"id": "d2", "score": None}],
    "strategy": "bm25",
    "strategy_fingerprint": "f1",
}
JUDGED = {
    "query": "What is NaN?",
    "strategy": "bm25",
    "strategy_fingerprint": "f1",
    "missed": True,
    "gold_source": "human",
}


@pytest.fixture(scope="module")
def server():
    with postgres_server.running() as url:
        yield url


@pytest.fixture
def sql(tmp_path) -> SqlStore:
    return SqlStore(tmp_path / "store.db")


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request, tmp_path) -> SqlStore:
    return SqlStore(
        tmp_path / "store.db"
        if request.param == "sqlite"
        else postgres_server.new_database(request.getfixturevalue("server"))
    )


def write(tmp_path, *rows, name="file.jsonl"):
    path = tmp_path / name
    path.write_bytes(
        b"".join(
            row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows
        )
    )
    return path


def import_claims(sql, path, **options):
    return ClaimStore(sql).add(*read_claims(path, now=NOW, **options), now=NOW)


def traffic(tmp_path, n, **more):
    return write(
        tmp_path,
        *(
            {
                **LINE,
                "query": f"question {number}",
                **{name: value(number) for name, value in more.items()},
            }
            for number in range(n)
        ),
        name="traffic.jsonl",
    )


def import_outcomes(sql, path, because=None, **options):
    read = read_outcomes(path, ClaimStore(sql), AuditStore(sql), now=NOW, **options)
    return OutcomeStore(sql).record(read.outcomes, because=because), read.not_judged


def faults(error):
    return [(problem.code, problem.line, problem.field) for problem in error.value.problems]


def test_an_import_twice_adds_nothing(either, tmp_path):
    path = write(
        tmp_path,
        LINE,
        {**LINE, "at": "2026-01-01T00:00:00Z"},
        {**LINE, "at": "2026-01-01T01:00:00+01:00"},
        {**LINE, "query": "what is  nan?"},
        {**LINE, "retrieved": []},
        b"\n",
    )
    done = import_claims(either, path)
    assert (done.added, done.already_there) == (4, 1)  # one moment in two zones is one
    assert (import_claims(either, path).added, len(ClaimStore(either).claims())) == (0, 4)
    assert {row["group_id"] for row in ClaimStore(either).claims()} == {question_id("What is NaN?")}


def test_personal_data_is_masked_before_it_is_stored(sql, tmp_path):
    done = import_claims(
        sql, write(tmp_path, {**LINE, "query": "why does jane.doe@example.org get no mail?"})
    )
    assert done.masked == {"email": 1}
    assert b"jane.doe" not in b"".join(path.read_bytes() for path in tmp_path.glob("store.db*"))
    (row,) = ClaimStore(sql).claims()
    assert row["query"].startswith("why does [email█")


def test_a_line_says_its_strategy_or_the_options_do(sql, tmp_path):
    bare = {name: LINE[name] for name in ("query", "retrieved")}
    with pytest.raises(InputError) as caught:
        import_claims(sql, write(tmp_path, bare))
    assert faults(caught) == [
        ("missing_field", 1, "strategy"),
        ("missing_field", 1, "strategy_fingerprint"),
    ]
    import_claims(
        sql,
        write(tmp_path, bare, {**bare, "query": "more", "strategy": "other", "k": 3}),
        strategy="mine",
        fingerprint="f9",
        k=7,
    )
    assert sorted(
        (row["strategy"], row["strategy_fingerprint"], row["k"]) for row in ClaimStore(sql).claims()
    ) == [("mine", "f9", 7), ("other", "f9", 3)]


@pytest.mark.parametrize(
    ("row", "code", "field"),
    [
        (b"{\n", "bad_json", None),
        (b'{"query": "a", "query": "b"}\n', "bad_json", None),
        (b'{"query": "a", "retrieved": [{"id": "x", "score": NaN}]}\n', "bad_json", None),
        (b"\xff\n", "not_utf8", None),
        (b'"' + b"x" * MAX_LINE_BYTES + b'"\n', "too_long", None),
        (b"[" * 100_000 + b"\n", "bad_json", None),
        ({**LINE, "query": ""}, "bad_value", "query"),
        ({**LINE, "query": " \n"}, "bad_value", "query"),
        ({**LINE, "query": "x" * 10_001}, "bad_value", "query"),
        ({**LINE, "query": "a\x00"}, "bad_value", "query"),
        ({**LINE, "query": "a\ud800"}, "bad_value", "query"),
        (
            {"query": "x", "strategy": "s", "strategy_fingerprint": "f"},
            "missing_field",
            "retrieved",
        ),
        ({**LINE, "retrieved": ["d1"]}, "bad_value", "retrieved.0"),
        ({**LINE, "retrieved": [{"id": "d1"}]}, "missing_field", "retrieved.0.score"),
        ({**LINE, "retrieved": [{"id": "d1", "score": "high"}]}, "bad_value", "retrieved.0.score"),
        ({**LINE, "retrieved": [{"id": "d1", "score": True}]}, "bad_value", "retrieved.0.score"),
        ({**LINE, "retrieved": [{"id": "d1", "score": 1e300}]}, "bad_value", "retrieved.0.score"),
        (
            {**LINE, "retrieved": [{"id": "d1", "score": 1, "text": "x"}]},
            "unknown_key",
            "retrieved.0.text",
        ),
        ({**LINE, "retrieved": [{"id": "d1", "score": 1}] * 2}, "duplicate_id", "retrieved"),
        (
            {**LINE, "retrieved": [{"id": str(number), "score": 1} for number in range(1001)]},
            "bad_value",
            "retrieved",
        ),
        ({**LINE, "k": 0}, "bad_value", "k"),
        ({**LINE, "at": "2026-01-01"}, "bad_value", "at"),
        ({**LINE, "at": "2027-01-01T00:00:00Z"}, "bad_value", "at"),
        ({**LINE, "miss_rate": 1.5}, "bad_value", "miss_rate"),
        ({**LINE, "gold": "d1"}, "unknown_key", "gold"),
    ],
)
def test_a_damaged_file_is_told_with_line_and_field_and_leaves_nothing(
    sql, tmp_path, row, code, field
):
    with pytest.raises(InputError) as caught:
        import_claims(sql, write(tmp_path, LINE, row, {**LINE, "query": "another"}))
    assert (code, 2, field) in faults(caught)
    assert all(problem.file == str(tmp_path / "file.jsonl") for problem in caught.value.problems)
    assert len(str(caught.value)) < 3000
    assert ClaimStore(sql).claims() == []


def test_a_file_that_is_empty_or_not_there_is_an_error(sql, tmp_path):
    for path, code in (
        (write(tmp_path, b"\n"), "no_claims"),
        (tmp_path / "none.jsonl", "file_missing"),
        (tmp_path, "file_missing"),
    ):
        with pytest.raises(InputError, match=code):
            read_claims(path, now=NOW)


text = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=30
)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "query": text.filter(str.strip),
                "retrieved": st.lists(
                    st.fixed_dictionaries(
                        {"id": text, "score": st.one_of(st.none(), st.floats(-1e9, 1e9))}
                    ),
                    max_size=4,
                    unique_by=lambda item: item["id"],
                ),
            }
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_claim_that_is_accepted_comes_back(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("claims")
    sql = SqlStore(folder / "store.db")
    path = write(folder, *rows)
    claims, _ = read_claims(path, strategy="s", fingerprint="f", now=NOW)
    added = ClaimStore(sql).add(claims, now=NOW).added
    assert added == len({claim.claim_id for claim in claims})
    kept = {row["claim_id"]: row for row in ClaimStore(sql).claims()}
    assert all(
        kept[claim.claim_id]["query"] == claim.query
        and [tuple(item) for item in kept[claim.claim_id]["retrieved"]] == list(claim.retrieved)
        for claim in claims
    )
    assert import_claims(sql, path, strategy="s", fingerprint="f").added == 0


@settings(deadline=None, max_examples=40)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from([*LINE, *JUDGED, "claim_id", "draw_id", "k", "at", "signals"]),
                inner,
                max_size=6,
            )
        ),
        max_leaves=12,
    )
)
def test_no_line_makes_a_reader_fall_over(tmp_path_factory, row):
    folder = tmp_path_factory.mktemp("any")
    sql = SqlStore(folder / "store.db")
    path = write(folder, {**JUDGED, **row} if isinstance(row, dict) else row)
    for read in (
        lambda: read_claims(path, now=NOW),
        lambda: import_outcomes(sql, path),
        lambda: import_outcomes(sql, path, restore=True),
    ):
        try:
            read()
        except InputError as error:
            assert error.problems  # noqa: PT017 - both ends are fine, anything else is not


def draw(sql, tmp_path, n=10, name="audit.jsonl", **options):
    made = AuditStore(sql).draw(
        n, path=tmp_path / name, now=NOW, **{"seed": 1, "depth": 20, **options}
    )
    return made, [json.loads(line) for line in made.path.read_text(encoding="utf-8").splitlines()]


def filled(tmp_path, rows, name="audit.jsonl", **judged):
    return write(
        tmp_path,
        *({**row, "missed": False, "gold_source": "human", **judged} for row in rows),
        name=name,
    )


def test_a_draw_becomes_outcomes_with_the_probability_it_was_drawn_with(either, tmp_path):
    import_claims(either, traffic(tmp_path, 40))
    made, rows = draw(either, tmp_path)
    assert (made.n, made.population, made.smallest, made.largest) == (10, 40, 0.25, 0.25)
    assert all(
        row["missed"] is row["missed_content"] is row["gold_source"] is row["audit_depth"] is None
        for row in rows
    )
    assert import_outcomes(either, made.path)[1] == 10  # nobody has filled it in
    some = write(
        tmp_path,
        {
            **rows[0],
            "missed": True,
            "missed_content": "ask jane.doe@example.org",
            "gold_source": "deep_audit",
            "audit_depth": 100,
            "gold_strategies": [],
        },
        {**rows[1], "missed": False, "gold_source": "human"},
        *rows[2:],
        name="some.jsonl",
    )
    recorded, left = import_outcomes(either, some)
    assert (len(recorded.added), left) == (2, 8)
    fit = fit_rows(OutcomeStore(either).current())
    assert fit["weight"].tolist() == [4.0, 4.0]
    first = fit.set_index("claim_id").loc[rows[0]["claim_id"]]
    assert (first["audit_depth"], first["missed_content"]) == (100.0, "ask [email██████████████")
    assert (first["query_id"], first["gold_strategies"]) == (question_id(rows[0]["query"]), [])
    assert import_outcomes(either, some)[0].added == ()


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"inclusion_probability": 1.0}, "unknown_key", "inclusion_probability"),
        ({"inclusion_probability": None}, "unknown_key", "inclusion_probability"),
        ({"draw_id": "another"}, "unknown_draw", "draw_id"),
        ({"claim_id": "another"}, "unknown_draw", "draw_id"),
        ({"target": "miss_some"}, "unknown_draw", "draw_id"),
        ({"k": 5}, "bad_value", "k"),
        ({"missed": None}, "missing_field", "missed"),
        ({"missed": "yes"}, "bad_value", "missed"),
        ({"gold_source": None}, "bad_value", "gold_source"),
        ({"gold_source": "qrels"}, "bad_value", "gold_source"),
        ({"gold_source": "deep_audit"}, "missing_field", "audit_depth"),
        ({"audit_depth": 3}, "bad_value", "audit_depth"),
        ({"missed_content": "x", "missed": False}, "bad_value", None),
        ({"extra": 1}, "unknown_key", "extra"),
    ],
)
def test_an_audit_that_was_tampered_with_or_not_finished_leaves_nothing(
    sql, tmp_path, change, code, field
):
    import_claims(sql, traffic(tmp_path, 20))
    _, rows = draw(sql, tmp_path, n=3)
    judged = [{**row, "missed": False, "gold_source": "human"} for row in rows]
    with pytest.raises(InputError) as caught:
        import_outcomes(sql, write(tmp_path, judged[0], {**judged[1], **change}))
    assert faults(caught)[0] == (code, 2, field)
    assert len(OutcomeStore(sql).history()) == 0


def test_an_audit_line_stripped_of_its_draw_cannot_bring_a_probability_either(sql, tmp_path):
    import_claims(sql, traffic(tmp_path, 20))
    _, rows = draw(sql, tmp_path, n=2)
    line = {"claim_id": rows[0]["claim_id"], "missed": True, "gold_source": "human"}
    with pytest.raises(InputError, match="inclusion_probability"):
        import_outcomes(sql, write(tmp_path, {**line, "inclusion_probability": 1.0}))
    import_outcomes(sql, write(tmp_path, line))
    assert OutcomeStore(sql).current()["inclusion_probability"].tolist() == [0.1]  # the store's own
    undrawn = next(
        row["claim_id"]
        for row in ClaimStore(sql).claims()
        if row["claim_id"] not in {row["claim_id"] for row in rows}
    )
    import_outcomes(sql, write(tmp_path, {**line, "claim_id": undrawn}))
    assert OutcomeStore(sql).current(claim_ids=[undrawn])["inclusion_probability"].isna().all()


def test_audits_of_its_own_lists_alone_do_not_calibrate_a_strategy(sql, tmp_path):
    import_claims(sql, traffic(tmp_path, 20))
    made, rows = draw(sql, tmp_path, n=3)
    import_outcomes(sql, filled(tmp_path, rows[:2], name="own.jsonl"))
    with pytest.raises(InputError, match="own_gold"):
        refuse_own_gold(OutcomeStore(sql).current(), made.strategy)
    import_outcomes(
        sql,
        filled(
            tmp_path,
            rows[2:],
            name="searched.jsonl",
            gold_strategies=[],
            gold_source="deep_audit",
            audit_depth=20,
        ),
    )
    refuse_own_gold(OutcomeStore(sql).current(), made.strategy)


def test_equal_seeds_draw_equal_samples_and_no_claim_is_drawn_twice(either, tmp_path):
    import_claims(either, traffic(tmp_path, 30))
    other = SqlStore(tmp_path / "other.db")
    import_claims(other, tmp_path / "traffic.jsonl")
    (_, first), (_, same) = (
        draw(either, tmp_path, seed=7),
        draw(other, tmp_path, seed=7, name="same.jsonl"),
    )
    assert first == same
    made, second = draw(either, tmp_path, seed=7, name="second.jsonl")
    assert not {row["claim_id"] for row in first} & {row["claim_id"] for row in second}
    assert (made.population, made.smallest, made.largest) == (
        20,
        pytest.approx(1 / 3),
        pytest.approx(1 / 3),
    )  # 2/3 left by the first, 10 of 20 by this
    made, _ = draw(either, tmp_path, n=100, name="third.jsonl")
    assert (made.n, made.largest) == (10, pytest.approx(1 / 3))
    with pytest.raises(InputError, match="no_claims"):
        draw(either, tmp_path, name="fourth.jsonl")
    assert not (tmp_path / "fourth.jsonl").exists()
    assert len(AuditStore(either).drawn()) == 30


def test_claims_that_came_after_a_draw_were_not_spared_by_it(either, tmp_path):
    import_claims(either, traffic(tmp_path, 10))
    draw(either, tmp_path, n=5)
    import_claims(
        either, write(tmp_path, *({**LINE, "query": f"later {number}"} for number in range(10)))
    )
    _, rows = draw(either, tmp_path, n=15, name="rest.jsonl")
    drawn = AuditStore(either).probabilities([row["claim_id"] for row in rows])
    by_query = {
        row["query"].split()[0]: drawn[row["claim_id"], "miss_any"]["inclusion_probability"]
        for row in rows
    }
    assert by_query == {"question": 0.5, "later": 1.0}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"n": 0}, "bad_value"),
        ({"n": 10_001}, "bad_value"),
        ({"depth": 5}, "depth_too_small"),
        ({"depth": 0}, "bad_value"),
        ({"seed": -1}, "bad_value"),
        ({"stratified": True}, "no_risk"),
        ({"strategy": "none"}, "no_claims"),
        ({"name": "traffic.jsonl"}, "file_exists"),
    ],
)
def test_a_draw_that_cannot_be_is_refused_and_keeps_nothing(sql, tmp_path, options, code):
    import_claims(sql, traffic(tmp_path, 10))
    before = (tmp_path / "traffic.jsonl").read_bytes()
    with pytest.raises(InputError, match=code):
        draw(sql, tmp_path, **options)
    assert (tmp_path / "traffic.jsonl").read_bytes() == before
    assert AuditStore(sql).frames() == []


def test_a_draw_is_of_one_fingerprint(sql, tmp_path):
    import_claims(sql, write(tmp_path, LINE, {**LINE, "strategy_fingerprint": "f2"}))
    with pytest.raises(InputError, match="several_strategies"):
        draw(sql, tmp_path)
    assert draw(sql, tmp_path, fingerprint="f2")[0].strategy_fingerprint == "f2"


def test_without_its_file_no_draw_is_kept(either, tmp_path):
    import_claims(either, traffic(tmp_path, 10))
    (tmp_path / "folder").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="folder"):
        draw(either, tmp_path, name="folder/audit.jsonl")
    assert (AuditStore(either).frames(), AuditStore(either).drawn()) == ([], [])


@pytest.mark.slow
def test_weights_of_stratified_draws_stand_for_all_claims(tmp_path):
    """Over many draws of two rounds the weighted total of each round is the true total: the probabilities are those of the sampling."""
    rates = [number / 60 for number in range(50)] + [None] * 10
    totals = {1: [], 2: []}
    for seed in range(40):
        folder = tmp_path / str(seed)
        folder.mkdir()
        sql = SqlStore(folder / "store.db")
        import_claims(
            sql, traffic(folder, 60, miss_rate=lambda number: rates[number], query_id=str)
        )
        worth = {row["claim_id"]: int(row["query_id"]) for row in ClaimStore(sql).claims()}
        for number, found in totals.items():
            made, rows = draw(
                sql, folder, n=15, seed=seed, stratified=number == 1, name=f"{number}.jsonl"
            )
            drawn = AuditStore(sql).probabilities([row["claim_id"] for row in rows])
            assert sum(made.strata.drawn) == 15
            found.append(
                sum(
                    worth[row["claim_id"]]
                    / drawn[row["claim_id"], "miss_any"]["inclusion_probability"]
                    for row in rows
                )
            )
    true = sum(range(60))
    for found in totals.values():
        mean = sum(found) / len(found)
        error = (sum((value - mean) ** 2 for value in found) / len(found) / len(found)) ** 0.5
        assert abs(mean - true) < 4 * error


def test_lines_by_hand_follow_their_question_and_their_gold_documents(either, tmp_path):
    rows = [
        {**JUDGED, "gold_documents": ["x"], "query_id": "b"},
        {**JUDGED, "gold_documents": ["x", "y"], "query_id": "a", "query": "other"},
        {**JUDGED, "query_id": "c", "query": "third"},
        {
            **JUDGED,
            "query": "with words only",
            "gold_source": "qrels",
            "inclusion_probability": 1.0,
            "k": 5,
            "signals": {"s": 1},
        },
        {
            **JUDGED,
            "query_id": "e",
            "group_id": "mine",
            "gold_documents": ["y"],
            "at": "2026-02-01T00:00:00+02:00",
            "note": "by jane.doe@example.org",
        },
        {**JUDGED, "query_id": "b", "paraphrase_id": "es", "query": "Qué es NaN?"},
    ]
    assert len(import_outcomes(either, write(tmp_path, *rows))[0].added) == 6
    frame = OutcomeStore(either).history()
    assert frame.groupby("query_id")["group_id"].first().to_dict() == {
        "a": "a",
        "b": "a",
        "c": "c",
        "e": "mine",
        question_id("with words only"): question_id("with words only"),
    }
    kept = frame.set_index("query_id")
    assert kept.loc["c", "gold_strategies"] == [
        "f1"
    ]  # a person who judged a strategy's list is not independent of it
    assert kept.loc[
        question_id("with words only"), ["gold_strategies", "k", "signals"]
    ].tolist() == [[], 5, {"s": 1}]
    assert kept.loc["e", ["at", "note"]].tolist() == [
        "2026-01-31T22:00:00.000000Z",
        "by [email██████████████",
    ]
    assert frame["claim_id"].nunique() == 6


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"missed": None}, "bad_value", None),
        ({"gold_source": "guess"}, "bad_value", "gold_source"),
        ({"strategy": None}, "missing_field", "strategy"),
        ({"query": None}, "missing_field", "query_id"),
        ({"inclusion_probability": 1.0}, "unknown_key", "inclusion_probability"),
        (
            {"gold_source": "user_feedback", "feedback": "evidence_not_relevant"},
            "bad_value",
            "missed",
        ),
        ({"gold_source": "user_feedback"}, "bad_value", None),
        ({"at": "2027-01-01T00:00:00Z"}, "bad_value", "at"),
        ({"supersedes": "0" * 32}, "unknown_outcome", "supersedes"),
        ({"outcome_id": "x"}, "unknown_key", "outcome_id"),
        ({"missed_content": "x" * 20_001}, "bad_value", "missed_content"),
    ],
)
def test_a_fault_in_a_line_by_hand_is_told_and_leaves_nothing(sql, tmp_path, change, code, field):
    with pytest.raises(InputError) as caught:
        import_outcomes(sql, write(tmp_path, {**JUDGED, "query": "first"}, {**JUDGED, **change}))
    assert (code, field) in [(problem.code, problem.field) for problem in caught.value.problems]
    assert len(OutcomeStore(sql).history()) == 0


def test_the_same_judgement_on_two_lines_is_a_fault(sql, tmp_path):
    with pytest.raises(InputError) as caught:
        import_outcomes(sql, write(tmp_path, JUDGED, {**JUDGED, "missed": False}))
    assert faults(caught) == [("duplicate_id", 2, "claim_id")]


def test_feedback_says_itself_whether_it_is_a_miss(sql, tmp_path):
    said = {
        **{name: value for name, value in JUDGED.items() if name != "missed"},
        "gold_source": "user_feedback",
    }
    kinds = ("something_missing", "evidence_not_relevant", "nothing_missing")
    import_outcomes(
        sql, write(tmp_path, *({**said, "query": kind, "feedback": kind} for kind in kinds))
    )
    frame = OutcomeStore(sql).current()
    assert frame.set_index("feedback")["missed"].fillna(-1).to_dict() == {
        "something_missing": 1.0,
        "evidence_not_relevant": -1.0,
        "nothing_missing": 0.0,
    }
    assert len(fit_rows(frame)) == 0


def test_a_judgement_that_differs_is_left_standing_unless_it_is_said_why(sql, tmp_path):
    import_outcomes(sql, write(tmp_path, JUDGED))
    other = write(tmp_path, {**JUDGED, "missed": False})
    assert len(import_outcomes(sql, other)[0].differing) == 1
    assert OutcomeStore(sql).current()["missed"].tolist() == [1.0]
    assert len(import_outcomes(sql, other, because="second look")[0].added) == 1
    assert OutcomeStore(sql).current()[["missed", "note"]].to_numpy().tolist() == [
        [0.0, "second look"]
    ]


def test_a_restored_line_must_have_its_own_name(sql, tmp_path):
    import_outcomes(sql, write(tmp_path, JUDGED))
    from rag_eval.uncertainty.outcome_rows import of_frame

    (line,) = [outcome.model_dump(mode="json") for outcome in of_frame(OutcomeStore(sql).current())]
    path = tmp_path / "export.jsonl"
    path.write_text(jsonl([{**line, "k": 5}]), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        import_outcomes(sql, path, restore=True)
    assert faults(caught) == [("bad_value", 1, "outcome_id")]
