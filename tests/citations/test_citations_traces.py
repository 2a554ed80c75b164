import dataclasses
import datetime as dt
import math
import re

import pytest
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql
from trace_lines import FIELDS, KEYS, parse, read_traces

from rag_eval.core.errors import InputError
from rag_eval.pipeline.exports import (
    MAX_ITEMS,
    MAX_TEXT,
    NO_DELTA_S,
    NO_STATE,
    RAG_TRACES,
    Trace,
    _format_line,
    _write_traces,
)
from rag_eval.storage.sql import SqlStore, declare

CONTRACT = "ts qid seg deltaS lambda_state store index_hash embed_model analyzer section_id rev "
COLUMNS = f"{CONTRACT}citations scores kpos kfinal run_id strategy paraphrase_id seed".split()
HOSTILE = [
    *("a b", "a\nts=2026-01-01 qid=forged seg=0", '" qid="forged', "\\", '\\" rev=forged'),
    *("a\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029b", "\u202e\u2066gnisrever\u2069", "],kpos=[9"),
    *("a,b", "=", "-", "[]", "\x1b[2J\x1b[31m", "'; DROP TABLE rag_traces; --", "-1", "null"),
    *("%s %(ts)s {0} :ts", "\u200b\ufeff\U000e0041", "\u00a0\u3000", "naïve 日本語 🎈"),
]
FULL = Trace(
    ts="2026-01-31T02:00:00.123Z",
    qid="q1",
    seg=2,
    delta_s=0.25,
    lambda_state="convergent",
    k=10,
    store="chroma",
    index_hash="bm25s:0123abcd",
    embed_model="lsa-256@fbe5",
    analyzer="porter-1",
    section_id="a.md#one",
    rev="3.1.1",
    citations=("a.md:3-4", "b.md:7"),
    scores=(0.5, 1e-300),
    kpos=(1, 2),
    kfinal=(2, 1),
    run_id="run-1",
    strategy="hybrid",
    paraphrase_id="original",
    seed=13,
)
TEXTS = "ts qid lambda_state store index_hash embed_model analyzer section_id rev".split()
text = st.one_of(
    st.text(max_size=20),
    st.sampled_from(HOSTILE),
    st.text(st.characters(categories=["Cc", "Cf", "Zl", "Zp", "Zs", "Cn", "Co"]), max_size=6),
)
ints = st.none() | st.integers(-(2**63), 2**63 - 1)
floats = st.none() | st.floats(allow_nan=False, allow_infinity=False)
traces = st.builds(
    Trace,
    **dict.fromkeys([*TEXTS, "run_id", "strategy", "paraphrase_id"], text),
    seg=st.integers(0, 10**6),
    seed=st.integers(-(2**63), 2**63 - 1),
    k=ints,
    delta_s=floats,
    citations=st.lists(text, max_size=4).map(tuple),
    scores=st.lists(floats, max_size=4).map(tuple),
    kpos=st.lists(ints, max_size=4).map(tuple),
    kfinal=st.lists(ints, max_size=4).map(tuple),
)


@pytest.fixture
def store(place) -> SqlStore:
    return SqlStore(place)


def some(run_id: str, count: int, strategy: str = "bm25", **more) -> list[Trace]:
    own = {"run_id": run_id, "strategy": strategy, "k": None, **more}
    places = [{"qid": f"q{n // 2:05}", "seg": n % 2} for n in range(count)]
    return [dataclasses.replace(FULL, **own, **place) for place in places]


def as_stored(trace: Trace) -> Trace:
    """Return a trace as a database keeps it: without k, NUL and lone surrogates."""

    def clean(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(clean, value))
        return re.sub("[\x00\ud800-\udfff]", "\ufffd", value) if isinstance(value, str) else value

    values = {name: clean(value) for name, value in dataclasses.asdict(trace).items()}
    return Trace(**values | {"k": None})


def test_line_has_the_keys_of_the_contract_in_order():
    assert _format_line(FULL) == (
        "ts=2026-01-31T02:00:00.123Z qid=q1 seg=2 deltaS=0.25 lambda=convergent k=10 store=chroma "
        "index_hash=bm25s:0123abcd embed=lsa-256@fbe5 citations=[a.md:3-4,b.md:7] "
        "scores=[0.5,1e-300] kpos=[1,2] kfinal=[2,1] section_id=a.md#one rev=3.1.1"
    )


def test_missing_value_is_a_dash_and_a_dash_is_quoted():
    assert _format_line(
        Trace(ts="", qid="-", seg=0, scores=(None, math.nan), delta_s=math.inf)
    ) == (
        'ts=- qid="-" seg=0 deltaS=- lambda=- k=- store=- index_hash=- embed=- citations=[] '
        "scores=[-,-] kpos=[] kfinal=[] section_id=- rev=-"
    )


@settings(max_examples=300)
@given(traces)
def test_line_reads_back_and_no_value_brings_a_key(trace):
    written = _format_line(trace)
    assert parse(written) == {name: getattr(trace, name) for name in FIELDS}
    assert written.splitlines() == [written]
    assert written.isprintable()
    unquoted = re.sub(r'"(?:[^"\\]|\\.)*"', "", written)
    assert re.findall(r"(\w+)=", unquoted) == KEYS.split()


def test_texts_and_lists_are_bounded_and_stay_different():
    one, other = (
        Trace(ts="t", qid=value, seg=0, citations=(value,) * 2_000, kpos=tuple(range(2_000)))
        for value in ("x" * 10_000 + end for end in "ab")
    )
    assert len(one.qid) == MAX_TEXT
    assert one.qid != other.qid
    assert len(one.citations) == len(one.kpos) == MAX_ITEMS
    exact = "y" * MAX_TEXT
    assert Trace(ts="t", qid=exact, seg=0).qid == exact


def test_columns_are_those_of_the_contract_then_ours(store):
    assert list(RAG_TRACES.column_names) == COLUMNS
    _write_traces(store, [*some("run", 1), Trace(ts=FULL.ts, qid="", seg=0, scores=(None, 0.5))])
    with store.reading() as transaction:
        bare, full = sorted(transaction.select(RAG_TRACES, {}), key=lambda row: row["run_id"])
    assert full["citations"] == ["a.md:3-4", "b.md:7"]
    assert (full["deltaS"], full["kfinal"]) == (0.25, [2, 1])
    assert None not in bare.values()
    assert (bare["deltaS"], bare["lambda_state"]) == (NO_DELTA_S, NO_STATE)
    assert full["ts"] == dt.datetime(2026, 1, 31, 2, 0, 0, 123_000)  # noqa: DTZ001 - UTC without zone
    assert bare["scores"] == [None, 0.5]


def test_values_come_back_from_both_databases(store):
    names = [*TEXTS, "run_id", "strategy", "paraphrase_id"]
    written = [
        Trace(
            **dict.fromkeys(names, value) | {"ts": FULL.ts},
            seg=number,
            citations=(value, "\\u0000"),
        )
        for number, value in enumerate([*HOSTILE, "a\x00b\udc80"])
    ]
    assert _write_traces(store, written) == len(written)
    found = {trace.seg: trace for trace in read_traces(store)}
    assert found == {trace.seg: as_stored(trace) for trace in written}


def test_run_written_again_replaces_itself_and_nothing_else(store):
    _write_traces(store, some("run-1", 10))
    _write_traces(store, some("run-1", 6, "hybrid"))
    _write_traces(store, some("run-2", 4))
    again = some("run-1", 8, rev="again")  # 8 rows replace the first 10
    _write_traces(store, again)
    assert read_traces(store, run_id="run-1", strategy="bm25") == again
    assert read_traces(store, run_id="run-1", strategy="hybrid") == some("run-1", 6, "hybrid")
    assert read_traces(store, run_id="run-2") == some("run-2", 4)
    assert _write_traces(store, []) == 0


# ---- The table under other hands: the contract's DDL, and other types

CONTRACT_DDL = """CREATE TABLE rag_traces (
    ts TIMESTAMP NOT NULL, qid TEXT NOT NULL, seg INT NOT NULL, deltaS REAL NOT NULL,
    lambda_state TEXT NOT NULL, store TEXT, index_hash TEXT, embed_model TEXT, analyzer TEXT,
    section_id TEXT, rev TEXT, citations JSONB, scores JSONB, kpos JSONB, kfinal JSONB)"""


def execute(place: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements without the code under test; return the rows of the last one."""
    engine = sqlalchemy.create_engine(
        place.replace("postgresql:", "postgresql+psycopg:"), poolclass=sqlalchemy.NullPool
    )
    with engine.begin() as connection:
        found = [connection.exec_driver_sql(statement) for statement in statements]
        return [tuple(row) for row in found[-1]] if found[-1].returns_rows else []


def test_docs_show_the_table(project_root):
    docs = (project_root / "docs/answers.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```sql\n(.*?)```", docs, re.DOTALL)
    table = declare(RAG_TRACES)
    made = str(sqlalchemy.schema.CreateTable(table).compile(dialect=postgresql.dialect()))
    assert shown.split() == made.replace(" WITHOUT TIME ZONE", "").split()


def test_table_with_the_specified_ddl_is_written_to_and_read(place):
    execute(place, CONTRACT_DDL)
    _write_traces(SqlStore(place), some("run-1", 2))
    _write_traces(SqlStore(place), some("run-1", 2))  # our own columns are there by now
    assert read_traces(SqlStore(place)) == some("run-1", 2)
    assert (
        execute(
            place,
            "SELECT deltaS, lambda_state, citations->>0, kfinal->>1, ts < '2026-02-01' "
            "FROM rag_traces",
        )
        == [(0.25, "convergent", "a.md:3-4", "1" if "postgresql" in place else 1, True)] * 2
    )


@pytest.mark.parametrize(
    ("specified", "other"),
    [
        ("ts TIMESTAMP", "ts TEXT"),
        ("ts TIMESTAMP", "ts TIMESTAMPTZ"),  # PostgreSQL would shift the time
        ("citations JSONB", "citations TEXT"),
        ("deltaS REAL", "deltaS TEXT"),
        ("seg INT", "seg REAL"),
        ("deltaS REAL NOT NULL,", ""),
    ],
)
def test_table_with_other_types_is_refused(place, specified, other):
    execute(place, CONTRACT_DDL.replace(specified, other))
    with pytest.raises(InputError) as caught:
        _write_traces(SqlStore(place), some("run-1", 1))
    (problem,) = caught.value.problems
    assert problem.code == "table_differs"
    assert "deltaS DOUBLE" in problem.accepted
    assert execute(place, "SELECT count(*) FROM rag_traces") == [(0,)]
