"""The HTTP source against a real server process: every fault fails its query under its code, and no other."""

import json
import threading
import time

import pytest
from cli_project import DOCUMENTS
from service_process import running

from rag_eval.retrieval.external import Failure, QueryError, Retrieved
from rag_eval.retrieval.external_http import MAX_REDIRECTS, HttpSource
from rag_eval.settings import ExternalLimits

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
    found = HttpSource(url, limits).ask_all(
        queries, top_k, lambda count, note="": said.append((count, note))
    )
    assert sum(count for count, _ in said) == len(queries)
    return found, said


def test_every_query_gets_its_own_answer_in_order(service):
    found, _ = ask(service.url())
    assert all(isinstance(outcome, Retrieved) for outcome in found)
    assert [outcome.items[0].doc_id for outcome in found] == [
        "retries.md",
        "alerts.md",
        "storage.md",
    ]
    assert found[0].items[0].text.startswith("## Count")
    assert [len(outcome.items) for outcome in ask(service.url(), top_k=1)[0]] == [1, 1, 1]


CODES = {
    "down": "server_error",
    "forbidden": "refused",
    "half": "connection",
    "oversized": "reply_too_large",
    "gzip": "malformed_reply",
    "malformed": "malformed_reply",
    "html": "malformed_reply",
    "nested": "malformed_reply",
    "nan": "malformed_reply",
    "types": "bad_id",
    "twice": "duplicate_id",
    "hang": "timeout",
    "drip": "timeout",
}
TRIED_AGAIN = {"down", "half", "hang", "drip"}


@pytest.mark.parametrize("fault", CODES)
def test_a_fault_fails_its_query_alone(service, fault):
    url = service.url(fault=fault, on="night")
    found, said = ask(
        url,
        limits=QUICK.model_copy(update={"timeout_s": 1}) if CODES[fault] == "timeout" else QUICK,
    )
    assert [type(outcome) for outcome in found] == [Retrieved, Failure, Retrieved]
    assert found[1].code == CODES[fault]
    assert found[1].message.startswith(CODES[fault])
    assert "127.0.0.1" not in found[1].message
    assert said[-1][1] == "1 failed"
    asked = service.stats()["queries"]
    assert asked[f"/search?fault={fault}&on=night {QUERIES[1]}"] == (
        1 + QUICK.max_retries if fault in TRIED_AGAIN else 1
    )


def test_an_oversized_reply_is_not_read_on(service):
    before = service.stats()["sent"]
    found, _ = ask(service.url(fault="oversized", n=2), QUERIES[:1])
    assert found[0].code == "reply_too_large"
    time.sleep(0.2)
    assert (
        service.stats()["sent"] - before < 50_000_000
    )  # what fits into the sockets between; the reply has no end


@pytest.mark.parametrize(
    "options",
    [
        {"fault": "burst", "burst": 5, "after": 0},
        {"fault": "burst", "burst": 2, "after": 1, "n": 1},
        {"fault": "once"},
    ],
    ids=str,
)
def test_bursts_and_single_faults_are_waited_out(service, options):
    url = service.url(**options)
    started = time.monotonic()
    found, said = ask(url, limits=QUICK.model_copy(update={"max_retries": 6}))
    assert all(isinstance(outcome, Retrieved) for outcome in found)
    assert said[-1][1] == ""
    assert service.asked(url) > len(QUERIES)
    if options.get("after"):
        assert time.monotonic() - started >= 1  # a lower bound: Retry-After was kept to


def test_a_retry_after_of_hours_is_not_waited_for(service):
    url = service.url(fault="burst", burst=99, after=7200)
    found, _ = ask(url, QUERIES[:1])
    assert found[0].code == "rate_limited"
    assert service.asked(url) == 1


def test_redirects_stay_on_the_host(service):
    inside = ask(service.url(fault="redirect"))[0]
    assert all(isinstance(outcome, Retrieved) and outcome.items for outcome in inside)
    outside = ask(service.url(fault="redirect", to="http://localhost.:9/search"))[0]
    assert [outcome.code for outcome in outside] == ["redirect"] * 3
    circle = service.url(fault="circle")
    assert ask(circle, QUERIES[:1])[0][0].code == "redirect"
    assert service.asked(circle) == 1 + MAX_REDIRECTS


def test_no_more_requests_at_a_time_than_allowed(service):
    url = service.url(delay=0.05)
    ask(
        url,
        [f"{query} {n}" for query in QUERIES for n in range(8)],
        QUICK.model_copy(update={"concurrency": 3}),
    )
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
    with pytest.raises(QueryError):
        source.ask_one("x", 3)


def test_the_password_of_an_address_is_never_shown():
    found = HttpSource("http://user:secret@127.0.0.1:9/search", QUICK).ask_all(
        ["x"], 3, lambda *_: None
    )
    assert "secret" not in repr(found)
    assert found[0].code == "connection"


def test_an_interrupt_wakes_those_who_wait(service):
    """Whoever asks may be interrupted; the threads that wait for their next try end with them."""
    source = HttpSource(service.url(fault="burst", burst=99, after=50), QUICK)

    def interrupted(*_):
        raise KeyboardInterrupt

    threading.Timer(0.3, source._stopped.set).start()
    with pytest.raises(KeyboardInterrupt):
        source.ask_all(QUERIES[:2], 3, interrupted)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("external")]


def test_queries_that_json_finds_hard_arrive_whole(service):
    found, _ = ask(service.url(), ['"\u2028\x00\n', "\ud800 alerts", "ünïcode night", "\U0001f600"])
    assert all(isinstance(outcome, Retrieved) for outcome in found), json.dumps(
        [str(outcome) for outcome in found]
    )
