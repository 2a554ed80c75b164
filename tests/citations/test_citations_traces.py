import dataclasses
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import postgres_server
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rag_eval.citations.traces import (
    MAX_ITEMS,
    MAX_TEXT,
    RAG_TRACES,
    Trace,
    line,
    parse,
    read_traces,
    write_log,
    write_traces,
)
from rag_eval.records.problems import InputError
from rag_eval.storage.sql import SqlStore

LINE_KEYS = "ts qid seg deltaS lambda k store index_hash embed citations scores kpos kfinal section_id rev".split()
CONTRACT_COLUMNS = "ts qid seg deltaS lambda_state store index_hash embed_model analyzer section_id rev citations scores kpos kfinal".split()
OWN_COLUMNS = "run_id strategy paraphrase_id seed".split()
LINE_FIELDS = "ts qid seg delta_s lambda_state k store index_hash embed_model citations scores kpos kfinal section_id rev".split()
HOSTILE = [
    "a b",
    "a\nts=2026-01-01 qid=forged seg=0",
    "a\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029b",
    "\u202e\u2066gnisrever\u2069",
    '" qid="forged',
    "\\",
    '\\" rev=forged',
    "],kpos=[9",
    "a,b",
    "=",
    "-",
    "[]",
    "\x1b[2J\x1b[31m",
    "'; DROP TABLE rag_traces; --",
    "%s %(ts)s {0} :ts",
    "\u200b\ufeff\U000e0041",
    "\u00a0\u3000",
    "naïve 日本語 🎈",
    "-1",
    "null",
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

text = st.one_of(
    st.text(max_size=20),
    st.sampled_from(HOSTILE),
    st.text(st.characters(categories=["Cc", "Cf", "Zl", "Zp", "Zs", "Cn", "Co"]), max_size=6),
)
maybe_int = st.none() | st.integers(-(2**63), 2**63 - 1)
maybe_float = st.none() | st.floats(allow_nan=False, allow_infinity=False)
traces = st.builds(
    Trace,
    ts=text,
    qid=text,
    seg=st.integers(-1, 10**6),
    delta_s=maybe_float,
    lambda_state=text,
    k=maybe_int,
    store=text,
    index_hash=text,
    embed_model=text,
    analyzer=text,
    section_id=text,
    rev=text,
    citations=st.lists(text, max_size=4).map(tuple),
    scores=st.lists(maybe_float, max_size=4).map(tuple),
    kpos=st.lists(maybe_int, max_size=4).map(tuple),
    kfinal=st.lists(maybe_int, max_size=4).map(tuple),
    run_id=text,
    strategy=text,
    paraphrase_id=text,
    seed=st.integers(-(2**63), 2**63 - 1),
)


@pytest.fixture(scope="module")
def server():
    with postgres_server.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path) -> str:
    return (
        f"sqlite:///{tmp_path}/store.db"
        if request.param == "sqlite"
        else postgres_server.new_database(request.getfixturevalue("server"))
    )


@pytest.fixture
def store(place) -> SqlStore:
    return SqlStore(place)


def some(run_id: str, count: int, strategy: str = "bm25") -> list[Trace]:
    return [
        dataclasses.replace(
            FULL, run_id=run_id, strategy=strategy, qid=f"q{number // 2:05}", seg=number % 2, k=None
        )
        for number in range(count)
    ]


def kept(trace: Trace) -> Trace:
    """What a database keeps of a trace: no k, and neither NUL nor lone surrogates."""

    def clean(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(clean, value))
        return re.sub("[\x00\ud800-\udfff]", "\ufffd", value) if isinstance(value, str) else value

    return Trace(
        **{
            field.name: clean(getattr(trace, field.name))
            for field in dataclasses.fields(trace)
            if field.name != "k"
        }
    )


def test_a_line_has_the_contracts_keys_in_order():
    assert line(FULL) == (
        "ts=2026-01-31T02:00:00.123Z qid=q1 seg=2 deltaS=0.25 lambda=convergent k=10 store=chroma index_hash=bm25s:0123abcd embed=lsa-256@fbe5 "
        "citations=[a.md:3-4,b.md:7] scores=[0.5,1e-300] kpos=[1,2] kfinal=[2,1] section_id=a.md#one rev=3.1.1"
    )
    assert re.findall(r"(?:^| )(\w+)=", line(FULL)) == LINE_KEYS


def test_what_is_missing_is_a_dash_and_a_text_that_is_a_dash_is_quoted():
    bare = line(Trace(ts="", qid="-", seg=-1, scores=(None, math.nan), delta_s=math.inf))
    assert (
        bare
        == 'ts=- qid="-" seg=-1 deltaS=- lambda=- k=- store=- index_hash=- embed=- citations=[] scores=[-,-] kpos=[] kfinal=[] section_id=- rev=-'
    )
    assert parse(bare) == {
        **dict.fromkeys(
            ("ts", "lambda_state", "store", "index_hash", "embed_model", "section_id", "rev"), ""
        ),
        **dict.fromkeys(("citations", "kpos", "kfinal"), ()),
        "qid": "-",
        "seg": -1,
        "delta_s": None,
        "k": None,
        "scores": (None, None),
    }


@settings(max_examples=300, deadline=None)
@given(traces)
def test_a_line_read_back_is_the_trace(trace):
    written = line(trace)
    assert parse(written) == {name: getattr(trace, name) for name in LINE_FIELDS}
    assert list(parse(written)) == LINE_FIELDS
    assert written.splitlines() == [written]
    assert written.isprintable()
    assert not [
        letter
        for letter in written
        if unicodedata.bidirectional(letter)
        in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    ]
    # quoted parts left out, what remains is exactly the contract's keys: no value brought one of its own
    assert re.findall(r"(\w+)=", re.sub(r'"(?:[^"\\]|\\.)*"', "", written)) == LINE_KEYS


@pytest.mark.parametrize("value", HOSTILE)
def test_no_value_breaks_a_line_or_forges_another(tmp_path, value):
    trace = Trace(
        ts=value,
        qid=value,
        seg=0,
        lambda_state=value,
        store=value,
        index_hash=value,
        embed_model=value,
        section_id=value,
        rev=value,
        citations=(value, value),
    )
    path = tmp_path / "reports" / "traces.log"
    assert write_log(path, [trace, trace]) == 2
    for reader in (
        path.read_text(encoding="utf-8").splitlines(),
        path.read_bytes().decode().rstrip("\n").split("\n"),
    ):
        assert [parse(text)["citations"] for text in reader] == [(value, value)] * 2
    assert set(path.read_bytes()) & set(range(32)) == {10}


@settings(deadline=None)
@given(traces, st.data())
def test_an_edited_line_is_refused_or_still_one_trace(trace, data):
    written = line(trace)
    at = data.draw(st.integers(0, len(written)))
    edited = (
        written[:at] + data.draw(st.text(max_size=3)) + written[at + data.draw(st.integers(0, 3)) :]
    )
    try:
        found = list(parse(edited))
    except InputError as error:
        found = [problem.code for problem in error.problems]
    assert found in (LINE_FIELDS, ["bad_trace_line"])


@pytest.mark.parametrize(
    "edit",
    [
        ("seg=2", "seg=two"),
        ("k=10 ", ""),
        ("seg=2 deltaS=0.25", "deltaS=0.25 seg=2"),
        ("rev=3.1.1", "rev=3.1.1 rev=2"),
        ("qid=q1", 'qid="q1'),
        ("scores=[0.5,1e-300]", "scores=[x]"),
        ("qid=q1", 'qid="\\x"'),
        (" seg", "  seg"),
        ("rev=3.1.1", "rev=3.1.1\n"),
    ],
)
def test_what_is_no_trace_is_refused(edit):
    assert edit[0] in line(FULL)
    with pytest.raises(InputError, match="bad_trace_line"):
        parse(line(FULL).replace(*edit))


def test_a_line_of_a_megabyte_is_refused_quickly():
    for text in (
        'ts="' + "\\" * 1_000_001,
        "ts=a qid=b seg=0 " * 60_000,
        line(FULL).replace("[1,2]", "[" + "1," * 500_000),
    ):
        with pytest.raises(InputError):
            parse(text)


def test_texts_and_lists_are_bounded_and_stay_different():
    long = ["x" * 10_000 + end for end in "ab"]
    one, other = (
        Trace(ts="t", qid=value, seg=0, citations=(value,) * 2_000, kpos=tuple(range(2_000)))
        for value in long
    )
    assert len(one.qid) == MAX_TEXT
    assert one.qid != other.qid
    assert len(one.citations) == len(one.kpos) == MAX_ITEMS
    assert one.citations[0] == one.qid
    assert parse(line(one))["citations"] == one.citations
    exact = "y" * MAX_TEXT
    assert Trace(ts="t", qid=exact, seg=0).qid == exact


def test_a_text_that_was_cut_is_found_by_the_whole_of_it(store):
    long = ["q" * 10_000 + end for end in "ab"]
    write_traces(store, [Trace(ts="t", qid=qid, seg=0, run_id=qid) for qid in long])
    assert [len(trace.qid) for trace in read_traces(store, run_id=long[1], qid=long[1])] == [
        MAX_TEXT
    ]


def test_numbers_of_frames_become_plain_ones():
    trace = Trace(
        ts="t",
        qid="q",
        seg=np.int64(1),
        k=np.int32(3),
        seed=np.int64(5),
        delta_s=np.float32(0.5),
        scores=tuple(np.array([0.25, np.nan])),
        kpos=tuple(np.array([1, 2])),
    )
    assert "seg=1 deltaS=0.5 lambda=- k=3" in line(trace)
    assert "scores=[0.25,-] kpos=[1,2]" in line(trace)
    assert {type(value) for value in (trace.seg, trace.k, trace.seed, *trace.kpos)} == {int}


def test_the_table_has_the_contracts_columns_then_ours(store, place):
    write_traces(store, some("run", 1))
    if place.startswith("sqlite"):
        import sqlite3

        connection = sqlite3.connect(place.removeprefix("sqlite:///"))
        found = [row[1] for row in connection.execute("PRAGMA table_info(rag_traces)")]
        values = connection.execute(
            "SELECT deltaS, citations, scores, kpos, kfinal, seed FROM rag_traces"
        ).fetchall()
        connection.close()
    else:
        found = [
            row[0]
            for row in postgres_server.execute(
                place,
                "SELECT column_name FROM information_schema.columns WHERE table_name = 'rag_traces' ORDER BY ordinal_position",
            )
        ]
        values = postgres_server.execute(
            place, 'SELECT "deltaS", citations, scores, kpos, kfinal, seed FROM rag_traces'
        )
        assert postgres_server.execute(
            place, "SELECT citations::jsonb ->> 0, (kfinal::jsonb -> 1)::int FROM rag_traces"
        ) == [("a.md:3-4", 1)]
    assert found == CONTRACT_COLUMNS + OWN_COLUMNS
    assert list(RAG_TRACES.column_names) == found
    assert values == [(0.25, '["a.md:3-4", "b.md:7"]', "[0.5, 1e-300]", "[1, 2]", "[2, 1]", 13)]


def test_missing_values_are_null_but_in_the_key(store, place):
    write_traces(store, [Trace(ts="", qid="", seg=0, scores=(None, 0.5))])
    query = "SELECT * FROM rag_traces"
    if place.startswith("sqlite"):
        import sqlite3

        connection = sqlite3.connect(place.removeprefix("sqlite:///"))
        (row,) = connection.execute(query).fetchall()
        connection.close()
    else:
        (row,) = postgres_server.execute(place, query)
    assert row == (
        None,
        "",
        0,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        "[]",
        "[null, 0.5]",
        "[]",
        "[]",
        "",
        "",
        "",
        0,
    )


def test_hostile_values_come_back_as_they_were(store):
    written = [
        Trace(
            ts="t",
            qid=value,
            seg=number,
            store=value,
            section_id=value,
            rev=value,
            citations=(value, value),
            run_id=value,
            strategy=value,
            paraphrase_id=value,
        )
        for number, value in enumerate(HOSTILE)
    ]
    assert write_traces(store, written) == len(HOSTILE)
    assert {trace.seg: trace for trace in read_traces(store)} == {
        trace.seg: kept(trace) for trace in written
    }
    for trace in written:
        assert read_traces(store, run_id=trace.run_id) == [kept(trace)]
        assert read_traces(store, qid=trace.qid, run_id=trace.run_id) == [kept(trace)]
    assert read_traces(store, run_id="' OR '1'='1") == []


def test_nul_and_lone_surrogates_become_the_replacement_character(store):
    hostile = Trace(
        ts="t", qid="a\x00b\udc80", seg=0, citations=("\x00", "\\u0000", "\ud800"), run_id="r\x00"
    )
    write_traces(store, [hostile])
    (found,) = read_traces(store, run_id="r\x00", qid="a\x00b\udc80")
    assert (found.qid, found.run_id, found.citations) == (
        "a\ufffdb\ufffd",
        "r\ufffd",
        ("\ufffd", "\\u0000", "\ufffd"),
    )


def test_any_trace_comes_back(tmp_path_factory, server):
    stores = [
        SqlStore(tmp_path_factory.mktemp("any") / "store.db"),
        SqlStore(postgres_server.new_database(server)),
    ]

    @settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(
        st.lists(
            traces,
            max_size=5,
            unique_by=lambda trace: (
                trace.run_id,
                trace.strategy,
                trace.qid,
                trace.paraphrase_id,
                trace.seed,
                trace.seg,
            ),
        )
    )
    def comes_back(written):
        for store in stores:
            store.create(RAG_TRACES)
            with store.transaction() as transaction:
                transaction.delete(RAG_TRACES, {})
            assert write_traces(store, written) == len(written)
            assert sorted(map(repr, read_traces(store))) == sorted(
                repr(kept(trace)) for trace in written
            )

    comes_back()


def test_a_run_written_again_replaces_itself_and_nothing_else(store):
    write_traces(store, some("run-1", 10))
    write_traces(store, some("run-1", 6, "hybrid"))
    write_traces(store, some("run-2", 4))
    write_traces(
        store, [dataclasses.replace(trace, rev="again") for trace in some("run-1", 8)]
    )  # fewer: what the first try left over goes
    found = read_traces(store)
    assert [(trace.run_id, trace.strategy) for trace in found] == [("run-1", "bm25")] * 8 + [
        ("run-1", "hybrid")
    ] * 6 + [("run-2", "bm25")] * 4
    assert {
        trace.rev for trace in found if trace.strategy == "bm25" and trace.run_id == "run-1"
    } == {"again"}
    assert read_traces(store, run_id="run-2") == some("run-2", 4)
    assert [trace.seg for trace in read_traces(store, run_id="run-1", qid="q00001")] == [0, 1, 0, 1]
    assert write_traces(store, []) == 0
    assert len(read_traces(store)) == 18


def test_two_traces_of_one_segment_are_a_defect_of_the_stage(store):
    with pytest.raises(ValueError, match="two traces"):
        write_traces(store, [FULL, dataclasses.replace(FULL, rev="other")])
    assert read_traces(store) == []


_AGAIN = """
import dataclasses, json, sys
from rag_eval.citations.traces import Trace, write_traces
from rag_eval.storage.sql import SqlStore
store = SqlStore(sys.argv[1])
full = Trace(**json.loads(sys.argv[2]))
rows = [dataclasses.replace(full, run_id="run", strategy="bm25", qid=f"q{number // 2:05}", seg=number % 2) for number in range(4_000)]
print("ready", flush=True)
turn = 0
while True:
    turn += 1
    write_traces(store, [dataclasses.replace(trace, rev=str(turn)) for trace in rows])
"""


def again_and_again(project_root: Path, place: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", _AGAIN, place, json.dumps(dataclasses.asdict(FULL))]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(project_root)},
    )


def test_writers_at_once_lose_and_double_nothing(store, place):
    together = threading.Barrier(8)

    def write(number: int) -> None:
        own = SqlStore(place)
        together.wait()
        for turn in range(3):
            write_traces(own, some("shared", 300))
            write_traces(own, some(f"own-{number}-{turn}", 100))

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(write, range(8)))
    assert read_traces(store, run_id="shared") == some("shared", 300)
    assert len(read_traces(store)) == 300 + 8 * 3 * 100


def test_a_run_killed_while_it_writes_is_there_whole_or_not_at_all(store, place, project_root):
    rng = random.Random(13)
    for _ in range(3):
        with again_and_again(project_root, place) as writer:
            assert writer.stdout.readline() == "ready\n", writer.stderr.read()
            time.sleep(rng.uniform(0.05, 0.5))
            writer.send_signal(signal.SIGKILL)
        found = read_traces(store)
        assert len(found) in {0, 4_000}
        assert len({trace.rev for trace in found}) <= 1
    assert write_traces(store, some("run", 10)) == 10
    assert read_traces(store) == some("run", 10)


def test_a_log_that_fails_leaves_the_last_one(tmp_path):
    path = tmp_path / "traces.log"
    write_log(path, [FULL])

    def broken():
        yield FULL
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_log(path, broken())
    assert path.read_text(encoding="utf-8") == f"{line(FULL)}\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["traces.log"]
    assert (
        json.loads(json.dumps(parse(path.read_text(encoding="utf-8").rstrip("\n"))))["qid"] == "q1"
    )
