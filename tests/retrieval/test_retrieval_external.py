"""A retriever of the user's own: replies, HTTP faults, and foreign code fail their query alone."""

import contextlib
import json
import math
import threading
import time
import types

import numpy as np
import pytest
from cli_project import DOCUMENTS
from hypothesis import given
from hypothesis import strategies as st
from service_process import running

from rag_eval.core.errors import InputError
from rag_eval.core.settings import ExternalLimits
from rag_eval.core.types import (
    Offsets,
    RetrievalMetadata,
    RetrievalResult,
    RetrievalStats,
    ScoredChunk,
)
from rag_eval.retrieval.kinds.external import (
    BATCH,
    Failure,
    HttpSource,
    Item,
    PortSource,
    QueryError,
    Retrieved,
    load_port,
    parse_reply,
)

# replies

CHUNK = {"doc_id": "a.md", "text": "words", "score": 1.5}
PLACE = {"start": 0, "end": 4}


def code(value, top_k=10):
    """Parse a reply; return Retrieved, or the code of the failure."""
    try:
        return parse_reply(value if isinstance(value, bytes) else json.dumps(value).encode(), top_k)
    except QueryError as error:
        failure = error.failure
    assert failure.message.isprintable()
    return failure.code


def replied(**changes):
    return {"chunks": [{**CHUNK, **changes}]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], "wrong_shape"),
        ({"chunks": {}}, "wrong_shape"),
        ({"chunks": ["a.md"]}, "wrong_shape"),
        ({"chunks": [{"text": "x", "score": 1}]}, "missing_id"),
        (replied(doc_id=None), "missing_id"),
        (replied(doc_id=""), "bad_id"),
        (replied(doc_id=True), "bad_id"),
        (replied(doc_id="a" * 1001), "bad_id"),
        (replied(id="a\x1b[31m"), "bad_id"),
        (replied(id="a\nqid=forged"), "bad_id"),
        (replied(section_id="\ud800"), "bad_id"),
        ({"chunks": [{"id": "a", "score": 1}, {"id": "a", "score": 2}]}, "duplicate_id"),
        ({"chunks": [CHUNK, CHUNK]}, "duplicate_id"),
        (replied(score=None), "bad_score"),
        (replied(score=True), "bad_score"),
        (replied(score=10**400), "bad_score"),
        (replied(text=3), "bad_text"),
        (replied(offsets=[0, 3]), "bad_offsets"),
        (replied(offsets={"start": 3, "end": 3}), "bad_offsets"),
        (replied(offsets={"start": 1}), "bad_offsets"),
    ],
)
def test_faults_have_their_codes(value, expected):
    assert code(value) == expected


def test_what_is_read():
    chunk = {"id": 7, "doc_id": "a", "section_id": "a#b", "text": "x\ud800", "score": 2}
    chunk |= {"offsets": {"start": 2, "end": 9}, "extra": {}}
    found = code({"version": "v7", "more": 1, "chunks": [chunk]})
    assert found == Retrieved((Item("7", "a", "a#b", "x?", 2, 9, 2.0),), "v7")
    assert code(replied(text=None)).items[0].text == ""
    assert code(replied(offsets={"start": 1, "end": 3, "unit": "token"})).items[0].start == -1
    assert code({"chunks": []}).items == ()


def test_one_document_may_stand_several_times_with_other_texts_or_places():
    found = code({"chunks": [CHUNK, {**CHUNK, "text": "others"}, {**CHUNK, "offsets": PLACE}]})
    assert len(found.items) == 3


BROKEN_BYTES = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"chunks": [{"doc_id": "a", "score": NaN}]}',
    b"[" * 100_000,
    b"1" * 5000,
    b"<html>",
]


@pytest.mark.parametrize("data", BROKEN_BYTES, ids=range(len(BROKEN_BYTES)))
def test_broken_bytes_are_malformed(data):
    assert code(data) == "malformed_reply"


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=6,
)
KEYS = st.sampled_from("id doc_id section_id text score offsets".split())
CHUNKS = st.lists(
    st.dictionaries(
        KEYS, JSON | st.dictionaries(st.sampled_from(["start", "end", "unit"]), SCALARS), max_size=8
    )
    | JSON,
    max_size=5,
)


@given(JSON | st.fixed_dictionaries({"chunks": CHUNKS, "version": JSON}))
def test_any_json_is_items_or_a_code(value):
    found = code(value, top_k=3)
    if isinstance(found, Retrieved):
        assert len(found.items) <= 3
        for item in found.items:
            assert item.name
            assert math.isfinite(item.score)
            assert (item.start == item.end == -1) or 0 <= item.start < item.end
            item.text.encode()


# HTTP

QUERIES = [
    "How often is a failed job tried again?",
    "Can alerts be silent at night?",
    "deletion of old results",
]
QUICK = ExternalLimits(
    timeout_s=10, max_retries=2, backoff_s=0.01, concurrency=4, max_reply_bytes=200_000
)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for name, text in DOCUMENTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    with running(folder) as process:
        yield process


def ask(url, queries=QUERIES, limits=QUICK, top_k=5):
    said = []
    with contextlib.closing(HttpSource(url, limits)) as source:
        found = source.ask_all(queries, top_k, lambda count, note="": said.append((count, note)))
    assert sum(count for count, _ in said) == len(queries)
    return found, said


def test_every_query_gets_its_own_answer_in_order(service):
    found, _ = ask(service.url())
    assert all(isinstance(outcome, Retrieved) for outcome in found)
    documents = [outcome.items[0].doc_id for outcome in found]
    assert documents == ["retries.md", "alerts.md", "storage.md"]
    assert found[0].items[0].text.startswith("## Count")
    assert [len(outcome.items) for outcome in ask(service.url(), top_k=1)[0]] == [1, 1, 1]


CODES = {
    "down": "server_error",
    "redirect": "refused",
    "half": "connection",
    "oversized": "reply_too_large",
    "gzip": "malformed_reply",
    "malformed": "malformed_reply",
    "types": "bad_id",
    "twice": "duplicate_id",
    "hang": "timeout",
    "drip": "timeout",
}
TRIED_AGAIN = {"down", "half", "hang", "drip"}


@pytest.mark.parametrize("fault", CODES)
def test_a_fault_fails_its_query_alone(service, fault):
    url = service.url(fault=fault, on="night")
    limits = QUICK
    if CODES[fault] == "timeout":
        limits = QUICK.model_copy(update={"timeout_s": 1, "max_retries": 1})
    found, said = ask(url, limits=limits)
    assert [type(outcome) for outcome in found] == [Retrieved, Failure, Retrieved]
    assert found[1].code == CODES[fault]
    assert found[1].message.startswith(CODES[fault])
    assert "127.0.0.1" not in found[1].message
    assert said[-1][1] == "1 failed"
    asked = service.stats()["queries"][f"/search?fault={fault}&on=night {QUERIES[1]}"]
    assert asked == (1 + limits.max_retries if fault in TRIED_AGAIN else 1)


def test_an_oversized_reply_is_not_read_on(service):
    before = service.stats()["sent"]
    found, _ = ask(service.url(fault="oversized", n=2), QUERIES[:1])
    assert found[0].code == "reply_too_large"
    time.sleep(0.2)
    # The reply has no end. The bound is the size of the socket buffers.
    assert service.stats()["sent"] - before < 50_000_000


def test_a_burst_of_429_is_waited_out(service):
    url, started = service.url(fault="burst", burst=2, after=1, n=1), time.monotonic()
    found, said = ask(url, limits=QUICK.model_copy(update={"max_retries": 6}))
    assert all(isinstance(outcome, Retrieved) for outcome in found)
    assert said[-1][1] == ""
    assert service.asked(url) > len(QUERIES)
    assert time.monotonic() - started >= 1


def test_a_retry_after_of_hours_is_not_waited_for(service):
    url = service.url(fault="burst", burst=99, after=7200)
    found, _ = ask(url, QUERIES[:1])
    assert found[0].code == "rate_limited"
    assert service.asked(url) == 1


def test_no_more_requests_at_a_time_than_allowed(service):
    url = service.url(delay=0.05)
    queries = [f"{query} {n}" for query in QUERIES for n in range(8)]
    ask(url, queries, QUICK.model_copy(update={"concurrency": 3}))
    assert 1 < service.stats()["most_active"]["/search?delay=0.05"] <= 3


def test_when_nothing_answers_the_rest_is_asked_once_each():
    source = HttpSource("http://127.0.0.1:9/search", QUICK.model_copy(update={"concurrency": 1}))
    tries = []
    one_try = source._try

    def counted(*args):
        tries.append(1)
        return one_try(*args)

    source._try = counted
    found = source.ask_all([str(n) for n in range(5)], 3, lambda *_: None)
    assert [outcome.code for outcome in found] == ["connection"] * 5
    assert len(tries) == (1 + QUICK.max_retries) + 4
    with contextlib.closing(source), pytest.raises(QueryError):
        source.ask_one("x", 3)


def test_the_password_of_an_address_is_never_shown():
    found, _ = ask("http://user:secret@127.0.0.1:9/search", ["x"])
    assert "secret" not in repr(found)
    assert found[0].code == "connection"


def test_an_interrupt_wakes_those_who_wait(service):
    """An interrupt ends the caller and the threads that wait for their next try."""
    source = HttpSource(service.url(fault="burst", burst=99, after=50), QUICK)

    def interrupted(*_):
        raise KeyboardInterrupt

    threading.Timer(0.3, source._stopped.set).start()
    with contextlib.closing(source), pytest.raises(KeyboardInterrupt):
        source.ask_all(QUERIES[:2], 3, interrupted)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("external")]


# ports


def chunk(name="a.md", score=1.0, **changes):
    values = dict.fromkeys(("section_id", "source_url", "index_hash", "embed_model"), "")
    values |= {"doc_id": name, "snippet_id": f"{name}-1", "text": "words", "score_raw": score}
    values |= {"offsets": Offsets(0, 0), "tokens": 1, "analyzer": "", "rev": ""}
    values |= {"score_norm": 1.0, "k_pos": 1, "k_final": 1}
    return ScoredChunk(**{**values, **changes})


def result(*chunks):
    return RetrievalResult(tuple(chunks), RetrievalMetadata("mine", 0.0, len(chunks)))


class Port:
    version = 1

    def __init__(self, answer=lambda _: result(chunk()), batch=None):
        self.answer = answer
        self.batch = batch
        self.alone = 0

    def retrieve(self, query, options):  # noqa: ARG002 - the port's signature
        self.alone += 1
        return self.answer(query)

    def batch_retrieve(self, queries, options):  # noqa: ARG002 - likewise
        return (
            [self.answer(query) for query in queries] if self.batch is None else self.batch(queries)
        )

    def stats(self):
        return RetrievalStats(3, 9, "rev7", "hash", {"mine": "bm25:1"}, "bm25")


def ask_port(port, queries=("one", "two", "three")):
    return PortSource(port).ask_all(list(queries), 5, lambda *_: None)


def codes(found):
    return [outcome.code if isinstance(outcome, Failure) else "ok" for outcome in found]


def test_results_become_items():
    whole = chunk("a.md", np.float32(2), offsets=Offsets(1, 4))
    found = ask_port(Port(lambda _: result(whole, chunk("b.md", snippet_id=""))))
    assert found[0].items == (
        Item("a.md-1", "a.md", "", "words", 1, 4, 2.0),
        Item("", "b.md", "", "words", -1, -1, 1.0),
    )


def raises_on_two(query):
    if query == "two":
        raise RuntimeError("down \x1b[31m")
    return result(chunk())


def test_a_batch_that_raises_is_asked_one_by_one():
    port = Port(raises_on_two)
    found = ask_port(port)
    assert codes(found) == ["ok", "raised", "ok"]
    assert found[1].message == "raised: RuntimeError: down \\u001b[31m"
    assert port.alone == 3


@pytest.mark.parametrize(
    "batch",
    [lambda _: None, lambda _: [result(chunk())] * 2],
    ids=["nothing", "short"],
)
def test_a_batch_of_another_length_is_asked_one_by_one(batch):
    port = Port(batch=batch)
    assert codes(ask_port(port)) == ["ok"] * 3
    assert port.alone == 3


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "wrong_shape"),
        (types.SimpleNamespace(chunks=iter([])), "wrong_shape"),
        (types.SimpleNamespace(chunks=[None]), "bad_score"),
        (result(chunk(score_raw=float("nan"))), "bad_score"),
        (result(chunk(snippet_id="a\x00")), "bad_id"),
        (result(chunk(), chunk()), "duplicate_id"),
    ],
)
def test_results_at_fault_fail_alone(answer, expected):
    found = ask_port(Port(lambda query: answer if query == "two" else result(chunk())))
    assert codes(found) == ["ok", expected, "ok"]


def test_an_interrupt_is_not_swallowed():
    def interrupt(query):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask_port(Port(interrupt))


def test_batches_bound_what_is_asked_again():
    port = Port(raises_on_two)
    found = ask_port(port, ["two", *(f"q{n}" for n in range(BATCH + 5))])
    assert codes(found).count("raised") == 1
    assert port.alone == BATCH


def test_stats_name_the_version_and_may_say_nothing():
    assert PortSource(Port()).version == PortSource(Port()).version != ""
    silent = Port()
    silent.stats = lambda: 1 / 0
    assert PortSource(silent).version == ""
    silent.stats = lambda: types.SimpleNamespace(embed_model="my-model", corpus_rev="")
    assert PortSource(silent).embed_model == "my-model"


MODULE = """
from test_retrieval_external import Port
port = Port()
make = lambda: Port()
def broken():
    raise OSError("no index")
class Old(Port):
    version = 2
class Truth(Port):
    version = True
class Bare:
    version = 1
    def retrieve(self, query, options): ...
number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "mine_port.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "mine_port", raising=False)


@pytest.mark.parametrize("attribute", ["port", "make", "Port"])
def test_objects_classes_and_factories_load(module, attribute):
    assert isinstance(ask_port(load_port("mine", f"mine_port:{attribute}"))[0], Retrieved)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("nothing_of_this_name:x", "ModuleNotFoundError"),
        ("mine_port:absent", "AttributeError"),
        ("mine_port:broken", "no index"),
        ("mine_port:Old", "version 2"),
        ("mine_port:Truth", "version True"),
        ("mine_port:Bare", "without batch_retrieve, stats"),
        ("mine_port:number", "without retrieve"),
    ],
)
def test_what_is_no_port_is_an_error_of_the_settings(module, path, shown):
    with pytest.raises(InputError) as raised:
        load_port("mine", path)
    assert raised.value.problems[0].code == "source_unusable"
    assert shown in str(raised.value)
