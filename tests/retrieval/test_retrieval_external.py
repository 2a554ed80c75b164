"""A retriever of the user's own: replies, HTTP faults, and foreign code fail their query alone."""

import contextlib
import json
import sys
import time
import types

import numpy as np
import pandas as pd
import pytest
from cli_project import DOCUMENTS
from service_process import running

from rag_eval.core.errors import InputError
from rag_eval.core.frames import VARIANTS
from rag_eval.core.settings import ExternalLimits, Settings
from rag_eval.core.types import (
    Offsets,
    RetrievalMetadata,
    RetrievalResult,
    RetrievalStats,
    ScoredChunk,
)
from rag_eval.retrieval import outside
from rag_eval.retrieval.kinds.external import (
    External,
    HttpSource,
    PortSource,
    match_lists,
    read_run,
)
from rag_eval.retrieval.outside import Item, QueryError, Retrieved, Sources, parse_reply

# replies

CHUNK = {"doc_id": "a.md", "text": "words", "score": 1.5}


def parse(value, top_k=10):
    return parse_reply(value if isinstance(value, bytes) else json.dumps(value).encode(), top_k)


def replied(**changes):
    return {"chunks": [{**CHUNK, **changes}]}


@pytest.mark.parametrize(
    "value",
    [
        {"chunks": {}},
        replied(doc_id=None),
        replied(doc_id="a" * 1001),
        replied(id="a\x1b[31m"),
        replied(score=None),
        replied(offsets={"start": 1}),
        b"\xff\xfe",
        b'{"chunks": [{"doc_id": "a", "score": NaN}]}',
        b"[" * 100_000,
    ],
    ids=range(9),
)
def test_other_replies_are_malformed(value):
    with pytest.raises(QueryError) as caught:
        parse(value)
    assert caught.value.code == "malformed_reply"
    assert str(caught.value).isprintable()


def test_what_is_read():
    chunk = {"id": 7, "doc_id": "a", "section_id": "a#b", "text": "x", "score": 2}
    chunk |= {"offsets": {"start": 2, "end": 9}, "extra": {}}
    found = parse({"version": "v7", "more": 1, "chunks": [chunk]})
    assert found == Retrieved((Item.model_validate(chunk),), "v7")
    assert found.items[0].id == "7"
    assert parse(replied(text=None)).items[0].text == ""
    assert parse({"chunks": []}).items == ()


# HTTP

QUERIES = [
    "How often is a failed job tried again?",
    "Can alerts be silent at night?",
    "deletion of old results",
]
QUICK = ExternalLimits(timeout_s=10, max_retries=2, concurrency=4)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(outside, "BACKOFF_S", 0.01)
    monkeypatch.setattr(outside, "MAX_REPLY_BYTES", 200_000)


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
    "gzip": "reply_too_large",
    "malformed": "malformed_reply",
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
    assert [isinstance(outcome, QueryError) for outcome in found] == [False, True, False]
    assert found[1].code == CODES[fault]
    assert str(found[1]).startswith(CODES[fault])
    assert "127.0.0.1" not in str(found[1])
    assert said[-1][1] == "1 failed"
    asked = service.stats()["queries"][f"/search?fault={fault}&on=night {QUERIES[1]}"]
    assert asked == (1 + limits.max_retries if fault in TRIED_AGAIN else 1)


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


def test_the_password_of_an_address_is_never_shown():
    found, _ = ask("http://user:secret@127.0.0.1:9/search", ["x"])
    assert "secret" not in repr(found)
    assert found[0].code == "connection"


def test_when_nothing_answers_the_rest_is_asked_once_each():
    source = HttpSource("http://127.0.0.1:9/search", QUICK.model_copy(update={"concurrency": 1}))
    tries = []
    ask_one = source.ask_one

    def counted(*args):
        tries.append(1)
        return ask_one(*args)

    source.ask_one = counted
    found = source.ask_all([str(n) for n in range(5)], 3, lambda *_: None)
    assert [outcome.code for outcome in found] == ["connection"] * 5
    assert len(tries) == (1 + QUICK.max_retries) + 4
    with contextlib.closing(source), pytest.raises(QueryError):
        source.ask_one("x", 3)


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
    return PortSource(port, QUICK).ask_all(list(queries), 5, lambda *_: None)


def codes(found):
    return [outcome.code if isinstance(outcome, QueryError) else "ok" for outcome in found]


def test_results_become_items():
    whole = chunk("a.md", np.float32(2), offsets=Offsets(1, 4))
    first, second = ask_port(Port(lambda _: result(whole, chunk("b.md", snippet_id=""))))[0].items
    assert (first.name, first.text) == ("a.md-1", "words")
    assert (first.offsets.start, first.offsets.end) == (1, 4)
    assert first.score == 2.0
    assert second.name == "b.md"


def raises_on_two(query):
    if query == "two":
        raise RuntimeError("down \x1b[31m")
    return result(chunk())


def test_a_batch_that_raises_is_asked_one_by_one():
    port = Port(raises_on_two)
    found = ask_port(port)
    assert codes(found) == ["ok", "raised", "ok"]
    assert str(found[1]) == "raised: RuntimeError: down \\u001b[31m"
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
    "answer",
    [
        None,
        types.SimpleNamespace(chunks=[None]),
        result(chunk(score_raw=float("nan"))),
        result(chunk(snippet_id="a\x00")),
    ],
)
def test_results_at_fault_fail_alone(answer):
    found = ask_port(Port(lambda query: answer if query == "two" else result(chunk())))
    assert codes(found) == ["ok", "malformed_reply", "ok"]


def test_stats_name_the_version_and_may_say_nothing():
    stated = PortSource(Port(), QUICK).ask_version("")
    assert stated == PortSource(Port(), QUICK).ask_version("") != ""
    silent = Port()
    silent.stats = lambda: 1 / 0
    assert PortSource(silent, QUICK).ask_version("") == ""
    silent.stats = lambda: types.SimpleNamespace(embed_model="my-model", corpus_rev="")
    assert PortSource(silent, QUICK).embed_model == "my-model"


MODULE = """
from test_retrieval_external import Port
port = Port()
make = lambda: Port()
def broken():
    raise OSError("no index")
class Old(Port):
    version = 2
class Bare:
    version = 1
    def retrieve(self, query, options): ...
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "mine_port.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine_port", raising=False)


@pytest.mark.parametrize("attribute", ["port", "make", "Port"])
def test_objects_classes_and_factories_load(module, attribute):
    assert isinstance(
        ask_port(PortSource.load("mine", f"mine_port:{attribute}", QUICK).port)[0], Retrieved
    )


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("mine_port:absent", "AttributeError"),
        ("mine_port:broken", "no index"),
        ("mine_port:Old", "version 2"),
        ("mine_port:Bare", "without batch_retrieve, stats"),
    ],
)
def test_what_is_no_port_is_an_error_of_the_settings(module, path, shown):
    with pytest.raises(InputError) as raised:
        PortSource.load("mine", path, QUICK)
    assert raised.value.problems[0].code == "source_unusable"
    assert shown in str(raised.value)


def test_a_name_that_no_setting_enables_lists_those_that_are():
    settings = Settings(sources={"search": "http://127.0.0.1:9/search", "port": "own_port:Own"})
    with pytest.raises(InputError, match="unknown_source") as caught:
        Sources(settings).open(External(name="mine", kind="external", source="nope"))
    assert "port, search" in caught.value.problems[0].accepted


# TREC runs and recorded outputs

WORDINGS = [
    ("keep", "original"),
    ("keep", "terse"),
    ("a/b", "original"),
    ("a", "original"),
    ("a", "b"),
    ("with space", "original"),
]


def variants(keys=WORDINGS):
    frame = pd.DataFrame(keys, columns=["query_id", "paraphrase_id"])
    return VARIANTS.check(frame.assign(text="x", group_id="g", answerable=True))


@pytest.fixture
def read(tmp_path):
    def run(text, keys=WORDINGS):
        path = tmp_path / "mine.trec"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_run(path, variants(keys))

    return run


def names(outcome):
    return [item.id for item in outcome.items]


def test_rows_are_ordered_by_score_then_rank_then_name(read):
    found = read(
        "keep Q0 c 9 1.5 tag\nkeep Q0 a 2 1.5 tag\nkeep Q0 b 1 7e0 tag\nkeep Q0 d 2 1.5 tag\n"
    )
    assert names(found["keep", "original"]) == ["b", "a", "d", "c"]


def test_wordings_by_qid(read):
    found = read(
        "keep/terse Q0 d 1 1 t\na/b Q0 d 1 1 t\na Q0 d 1 1 t\nwith%20space Q0 d 1 1 t\n"
        "keep/original Q0 d 1 1 t\nother Q0 d 1 1 t\n"
    )
    originals = {(qid, "original") for qid in ("a/b", "a", "with space", "keep")}
    assert set(found) == {*originals, ("keep", "terse"), ("other", "")}


def test_every_line_at_fault_is_named(read):
    with pytest.raises(InputError) as raised:
        read(
            b"keep Q0 d 1 1\nkeep Q0 d x 1 t\nkeep Q0 d 1 nan t\nkeep Q0 ok 1 2 t\n"
            b"keep Q0 \xff 1 1 t\nkeep Q0 %s 1 1 t\n" % (b"d" * 2000)
        )
    assert [(problem.code, problem.line) for problem in raised.value.problems] == [
        ("bad_row", 1),
        ("bad_row", 2),
        ("bad_row", 3),
        ("bad_encoding", 5),
        ("bad_row", 6),
    ]
    assert all(problem.file.endswith("mine.trec") for problem in raised.value.problems)


@pytest.mark.parametrize("text", ["", "nobody Q0 d 1 1 t\n"])
def test_files_that_say_nothing(read, text):
    with pytest.raises(InputError, match="other_queries"):
        read(text)


def test_wordings_without_rows_retrieved_nothing(read):
    lists = read("keep/terse Q0 d 1 1 t\nkeep Q0 d 1 1 t\nkeep Q0 e 2 0 t\nother Q0 e 2 0 t\n")
    found = match_lists(lists, variants(), 1, Retrieved(()))
    assert not found.original_only
    assert [len(outcome.items) for outcome in found.outcomes] == [1, 1, 0, 0, 0, 0]
    assert found.notes == [
        "4 of 6 wordings have no row and count as having retrieved nothing",
        "1 rankings belong to no question of the gold set and were left out",
    ]


def test_a_run_without_any_paraphrase_is_of_the_original_wordings(read):
    found = match_lists(read("keep Q0 d 1 1 t\n"), variants(), 5, Retrieved(()))
    assert found.original_only
    ran = [outcome is not None for outcome in found.outcomes]
    assert ran == [paraphrase == "original" for _, paraphrase in WORDINGS]
    assert "original wordings only" in found.notes[0]


def test_recorded_lists_lack_questions_by_failing():
    listed = Retrieved((Item(doc_id="d", text="text", score=1.0),))
    failure, lacking = (
        QueryError("malformed_reply", "an id is empty"),
        QueryError("not_recorded", ""),
    )
    lists = {("keep", "original"): listed, ("a", "original"): failure}
    found = match_lists(lists, variants(), 5, lacking)
    assert found.outcomes == [listed, None, lacking, failure, None, lacking]
    assert len(found.notes) == 1
