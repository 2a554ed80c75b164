"""Foreign code of this process: loaded with clear errors, and whatever it raises or returns fails the query it belongs to and no other."""

import types

import numpy as np
import pytest

from rag_eval.records.problems import InputError
from rag_eval.records.retrieval import (
    Offsets,
    RetrievalMetadata,
    RetrievalResult,
    RetrievalStats,
    ScoredChunk,
)
from rag_eval.retrieval.external import Failure, QueryError, Retrieved
from rag_eval.retrieval.external_port import BATCH, PortSource, load_port


def chunk(name="a.md", score=1.0, **changes):
    values = {
        "doc_id": name,
        "section_id": "",
        "snippet_id": f"{name}-1",
        "source_url": "",
        "offsets": Offsets(0, 0),
        "tokens": 1,
        "index_hash": "",
        "embed_model": "",
        "analyzer": "",
        "rev": "",
        "text": "words",
        "score_raw": score,
        "score_norm": 1.0,
        "k_pos": 1,
        "k_final": 1,
    }
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


def ask(port, queries=("one", "two", "three")):
    return PortSource(port).ask_all(list(queries), 5, lambda *_: None)


def codes(found):
    return [outcome.code if isinstance(outcome, Failure) else "ok" for outcome in found]


def test_results_become_items():
    found = ask(
        Port(
            lambda _: result(
                chunk("a.md", np.float32(2), offsets=Offsets(1, 4)), chunk("b.md", snippet_id="")
            )
        )
    )
    first, second = found[0].items
    assert (first.id, first.doc_id, first.text, first.start, first.end, first.score) == (
        "a.md-1",
        "a.md",
        "words",
        1,
        4,
        2.0,
    )
    assert (second.id, second.doc_id, second.start) == ("", "b.md", -1)


def raises_on_two(query):
    if query == "two":
        raise RuntimeError("down \x1b[31m")
    return result(chunk())


def test_a_batch_that_raises_is_asked_one_by_one():
    port = Port(raises_on_two)
    found = ask(port)
    assert codes(found) == ["ok", "raised", "ok"]
    assert found[1].message == "raised: RuntimeError: down \\u001b[31m"
    assert port.alone == 3


@pytest.mark.parametrize(
    "batch",
    [lambda _: [], lambda _: None, lambda _: [result(chunk())] * 2, lambda _: iter([])],
    ids=["none", "nothing", "short", "iterator"],
)
def test_a_batch_of_another_length_is_asked_one_by_one(batch):
    port = Port(batch=batch)
    assert codes(ask(port)) == ["ok"] * 3
    assert port.alone == 3


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "wrong_shape"),
        ("chunks", "wrong_shape"),
        (types.SimpleNamespace(chunks=iter([])), "wrong_shape"),
        (types.SimpleNamespace(chunks=[None]), "missing_id"),
        (result(chunk(score_raw=float("nan"))), "bad_score"),
        (result(chunk(score_raw="1")), "bad_score"),
        (result(chunk(doc_id=4.5)), "bad_id"),
        (result(chunk(snippet_id="a\x00")), "bad_id"),
        (result(chunk(text=b"x")), "bad_text"),
        (result(chunk(), chunk()), "duplicate_id"),
    ],
)
def test_results_at_fault_fail_alone(answer, expected):
    found = ask(Port(lambda query: answer if query == "two" else result(chunk())))
    assert codes(found) == ["ok", expected, "ok"]


def test_a_property_that_raises_and_an_exit_fail_alone():
    class Nasty:
        @property
        def chunks(self):
            raise KeyError("no")

    def leave(query):
        if query == "two":
            raise SystemExit(3)
        return result(chunk())

    assert codes(ask(Port(lambda query: Nasty() if query == "two" else result(chunk())))) == [
        "ok",
        "raised",
        "ok",
    ]
    assert codes(ask(Port(leave))) == ["ok", "raised", "ok"]
    with pytest.raises(QueryError):
        PortSource(Port(leave)).ask_one("two", 3)


def test_an_interrupt_is_not_swallowed():
    def interrupt(query):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(Port(interrupt))


def test_batches_bound_what_is_asked_again():
    port = Port(raises_on_two)
    found = ask(port, ["two", *(f"q{n}" for n in range(BATCH + 5))])
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
from test_retrieval_external_port import Port
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
    assert isinstance(ask(load_port("mine", f"mine_port:{attribute}"))[0], Retrieved)


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
