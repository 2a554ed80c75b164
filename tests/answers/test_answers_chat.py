import concurrent.futures
import gc
import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
import tracemalloc

import pytest
from fake_llm import FakeLLM

from rag_eval.answers.chat import ChatClient
from rag_eval.answers.chat_cache import ChatCache
from rag_eval.records.answers import ChatError, Message
from rag_eval.records.problems import InputError
from rag_eval.settings import Endpoint

KEY = "sk-this-must-never-be-seen-0123456789"
EVIDENCE = (
    "[guide.md:1-2] Indexes start at zero. They end at n.\nSlices do too.\n[api.md:7] Nothing else."
)


def asking(text=EVIDENCE):
    return [Message("system", "Answer from the evidence."), Message("user", text)]


@pytest.fixture
def llm():
    with FakeLLM() as server:
        yield server


def client(llm, model="good", cache=None, *, max_reply_bytes=100_000, **fields):
    settings = {"timeout_s": 5, "max_retries": 2, "api_key": KEY} | fields
    return ChatClient(
        Endpoint(base_url=llm.base_url, model=model, **settings),
        cache,
        backoff_s=0.01,
        max_reply_bytes=max_reply_bytes,
    )


def code_of(chat, text=EVIDENCE):
    with pytest.raises(ChatError) as caught:
        chat.ask(asking(text))
    return caught.value


def test_reply_text_and_usage_come_from_the_endpoint(llm):
    chat = client(llm, price_per_1k_tokens_in=2.0, price_per_1k_tokens_out=10.0)
    reply = chat.ask(asking())
    assert json.loads(reply.text) == {
        "citations": ["guide.md:1-2"],
        "answer": "Indexes start at zero.",
        "deltaS": 0.3,
        "lambda": "convergent",
    }
    assert (
        reply.tokens_in,
        reply.tokens_out,
        reply.cached,
        reply.retries,
        reply.finish_reason,
    ) == (19, 11, False, 0, "stop")
    assert reply.seconds > 0
    totals = chat.totals()
    assert (
        totals.asked,
        totals.answered,
        totals.cached,
        totals.requests,
        totals.retries,
        totals.failed,
    ) == (1, 1, 0, 1, 0, {})
    assert (totals.tokens_in, totals.tokens_out, totals.usage_missing) == (19, 11, 0)
    assert totals.cost == pytest.approx(0.019 * 2 + 0.011 * 10)
    assert totals.cost_per_1k(4) == pytest.approx(totals.cost * 250)
    assert totals.cost_per_1k(0) is None


def test_request_carries_the_settings_and_nothing_about_the_machine(llm, monkeypatch):
    for name, value in {
        "OPENAI_API_KEY": "sk-of-another-service",
        "OPENAI_ORG_ID": "org-secret",
        "OPENAI_PROJECT_ID": "proj-secret",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "OPENAI_CUSTOM_HEADERS": "Authorization: Bearer stolen\nX-Extra: 1",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "ALL_PROXY": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    client(llm, max_tokens=77, temperature=0.5, seed=3).ask(asking())
    client(llm, seed=None).ask(asking())
    first, second = llm.received
    assert first.body == {
        "model": "good",
        "messages": [
            {"role": "system", "content": "Answer from the evidence."},
            {"role": "user", "content": EVIDENCE},
        ],
        "temperature": 0.5,
        "max_tokens": 77,
        "seed": 3,
    }
    assert "seed" not in second.body
    assert set(first.headers) == {
        "host",
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "user-agent",
    }
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert first.headers["user-agent"] == "rag-eval"


def test_key_comes_from_the_named_variable_or_is_the_word_none(llm, monkeypatch):
    monkeypatch.setenv("MY_KEY", " sk-from-the-environment\n")
    client(llm, api_key=None, api_key_env="MY_KEY").ask(asking())
    client(llm, api_key=None).ask(asking())
    assert [received.headers["authorization"] for received in llm.received] == [
        "Bearer sk-from-the-environment",
        "Bearer none",
    ]
    missing = code_of(client(llm, "unauthorized", api_key=None, api_key_env="NOT_SET_ANYWHERE"))
    assert "NOT_SET_ANYWHERE is not set" in str(missing)


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines", "nul\x00"])
def test_key_that_no_header_can_carry_is_refused_unseen(key):
    with pytest.raises(InputError) as caught:
        ChatClient(Endpoint(base_url="http://127.0.0.1:9/v1", model="m", api_key=key), None)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:pass@host/v1",
        "http://host:99999/v1",
        "http:///v1",
        "http://host/v1?key=1",
        "http://höst/v1",
        "http://[::1/v1",
    ],
)
def test_address_that_is_none_is_refused_unseen(url):
    with pytest.raises(InputError) as caught:
        ChatClient(Endpoint(base_url=url, model="m"), None)
    assert "pass" not in str(caught.value)
    assert caught.value.problems[0].code == "bad_base_url"


@pytest.mark.parametrize(
    ("model", "retries"),
    [("burst_429", 2), ("burst_500:1", 1), ("half_reply:1", 1), ("drops:2", 2)],
)
def test_passing_failures_are_retried_and_counted(llm, model, retries):
    chat = client(llm, model)
    reply = chat.ask(asking())
    assert (reply.retries, len(llm.received)) == (retries, retries + 1)
    totals = chat.totals()
    assert (totals.requests, totals.retries, totals.answered, totals.failed) == (
        retries + 1,
        retries,
        1,
        {},
    )


@pytest.mark.parametrize(
    ("model", "code", "requests"),
    [
        ("burst_429:9", "rate_limited", 3),
        ("burst_500:9", "server_error", 3),
        ("half_reply", "connection", 3),
        ("drops", "connection", 3),
        ("not_json", "malformed_reply", 1),
        ("half_json", "malformed_reply", 1),
        ("no_choices", "malformed_reply", 1),
        ("null_content", "malformed_reply", 1),
        ("unauthorized", "refused", 1),
        ("no_such_model", "refused", 1),
        ("oversized", "reply_too_large", 1),
        ("oversized_declared", "reply_too_large", 1),
    ],
)
def test_lasting_failures_end_with_their_code_after_the_retries(llm, model, code, requests):
    chat = client(llm, model)
    error = code_of(chat)
    assert (error.code, error.retries, len(llm.received)) == (code, requests - 1, requests)
    totals = chat.totals()
    assert (totals.asked, totals.answered, totals.failed, totals.requests, totals.retries) == (
        1,
        0,
        {code: 1},
        requests,
        requests - 1,
    )
    assert len(str(error)) < 500
    assert str(error).isprintable()


@pytest.mark.parametrize("model", ["hang", "slow_trickle", "slow_headers"])
def test_deadline_covers_the_whole_request_however_it_is_drawn_out(llm, model):
    chat = client(llm, model, timeout_s=0.3, max_retries=0)
    before = time.monotonic()
    error = code_of(chat)
    assert error.code == "timeout"
    assert time.monotonic() - before >= 0.29


def test_time_outs_are_retried(llm):
    reply = client(llm, "slow_trickle:1", timeout_s=1).ask(asking())
    assert reply.retries == 1
    assert "guide.md:1-2" in reply.text


def test_nobody_listening_is_a_connection_error():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        chat = ChatClient(
            Endpoint(
                base_url=f"http://127.0.0.1:{unused.getsockname()[1]}/v1", model="m", max_retries=1
            ),
            None,
            backoff_s=0.01,
        )
        assert (error := code_of(chat)).code == "connection"
        assert error.retries == 1


def test_endless_reply_does_not_fill_the_memory(llm):
    chat = client(llm, max_retries=0)
    chat.ask(asking())  # imports
    tracemalloc.start()
    try:
        assert code_of(client(llm, "oversized", max_retries=0)).code == "reply_too_large"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < llm.oversized_bytes / 5


def test_reply_of_the_greatest_size_still_fits(llm):
    text = client(llm).ask(asking()).text
    size = len(json.dumps({"text": text})) + 2000
    assert client(llm, max_reply_bytes=size).ask(asking()).text == text


@pytest.mark.parametrize(("model", "tokens_in"), [("no_usage", 0), ("bad_usage", 0)])
def test_missing_usage_counts_as_nothing_and_is_said(llm, model, tokens_in):
    chat = client(llm, model, price_per_1k_tokens_in=1)
    reply = chat.ask(asking())
    assert (reply.tokens_in, reply.tokens_out) == (tokens_in, 0)
    assert chat.totals().usage_missing == 1
    assert chat.totals().cost == 0


def test_tokens_of_an_unusable_reply_are_charged(llm):
    chat = client(llm, "null_content")
    code_of(chat)
    assert chat.totals().tokens_in == 19


def test_server_that_asks_for_a_long_wait_is_not_waited_for():
    with FakeLLM(retry_after="3600") as llm:
        error = code_of(client(llm, "burst_429"))
        assert (error.code, error.retries, len(llm.received)) == ("rate_limited", 0, 1)
        assert "3600" in str(error)


def test_retry_after_is_kept_by_every_thread(caplog):
    caplog.set_level(logging.INFO)
    with FakeLLM(retry_after="0.4") as llm:
        chat = client(llm, "good")
        assert chat.ask(asking("[[scenario=burst_429:1]]" + EVIDENCE)).retries == 1
        first, second = llm.received
        assert second.at - first.at >= 0.39
        caplog.clear()
    with FakeLLM(retry_after="0.4") as llm:
        chat = client(llm, "good")
        waiting = threading.Thread(
            target=chat.ask, args=[asking("[[scenario=burst_429:1]]" + EVIDENCE)]
        )
        waiting.start()
        while "event=chat.retry" not in caplog.text:  # said once the pause is set
            time.sleep(0.005)
        chat.ask(asking())
        waiting.join()
        times = sorted(received.at for received in llm.received)
        assert times[1] - times[0] >= 0.39


def test_concurrency_stays_within_its_limit():
    with FakeLLM(delay_s=0.05) as llm:
        chat = client(llm, concurrency=3, timeout_s=20)
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            replies = list(
                pool.map(lambda number: chat.ask(asking(f"{number}\n{EVIDENCE}")), range(24))
            )
        assert len(replies) == len(llm.received) == 24
        assert llm.max_in_flight == 3  # the limit is kept, and used


def test_starts_are_spaced_by_the_rate(llm):
    chat = client(llm, requests_per_minute=600, concurrency=8)
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: chat.ask(asking(f"{number}\n{EVIDENCE}")), range(8)))
    # a late arrival may come close to the next one, but none comes before its turn
    assert all(
        at - start >= 0.1 * number - 0.001
        for number, at in enumerate(sorted(received.at for received in llm.received))
    )


def test_retries_keep_to_the_rate_too(llm):
    chat = client(llm, "burst_500", requests_per_minute=300)
    start = time.monotonic()
    chat.ask(asking())
    assert [
        received.at - start >= 0.2 * number - 0.001 for number, received in enumerate(llm.received)
    ] == [True] * 3


def test_cached_reply_costs_nothing_and_says_what_it_saved(llm, tmp_path):
    prices = {"price_per_1k_tokens_in": 1.0, "price_per_1k_tokens_out": 1.0}
    first = client(llm, cache=ChatCache(tmp_path / "chat"), **prices)
    paid = first.ask(asking())
    again = first.ask(asking())
    later = client(llm, cache=ChatCache(tmp_path / "chat"), **prices)  # another run
    resumed = later.ask(asking())
    assert len(llm.received) == 1
    assert again == resumed
    assert (again.text, again.cached, again.tokens_in, again.tokens_out, again.seconds) == (
        paid.text,
        True,
        0,
        0,
        0.0,
    )
    assert (first.totals().cached, first.totals().answered) == (1, 1)
    totals = later.totals()
    assert (totals.cached, totals.requests, totals.tokens_in, totals.cost) == (1, 0, 0, 0)
    assert (totals.saved_tokens_in, totals.saved_tokens_out) == (paid.tokens_in, paid.tokens_out)
    assert totals.saved_cost == pytest.approx((paid.tokens_in + paid.tokens_out) / 1000)


def test_cache_tells_requests_apart_and_not_keys(llm, tmp_path):
    cache = ChatCache(tmp_path)
    client(llm, cache=cache).ask(asking())
    client(llm, cache=cache, api_key="sk-another-key-altogether").ask(asking())
    assert len(llm.received) == 1
    for fields in ({"temperature": 1}, {"max_tokens": 9}, {"seed": 1}, {"seed": None}):
        client(llm, cache=cache, **fields).ask(asking())
    client(llm, "fabricating", cache=cache).ask(asking())
    client(llm, cache=cache).ask(asking(EVIDENCE + " "))
    client(llm, cache=cache).ask([Message("user", EVIDENCE)])
    with FakeLLM() as other:
        client(other, cache=cache).ask(asking())
        assert len(other.received) == 1
    assert len(llm.received) == 8


def test_failures_are_not_cached(llm, tmp_path):
    chat = client(llm, "burst_500:3", cache=ChatCache(tmp_path))
    assert code_of(chat).code == "server_error"
    assert not list(tmp_path.rglob("*.json"))
    assert chat.ask(asking()).cached is False


@pytest.mark.parametrize(
    "damage",
    [
        (rb"(?s).*", b""),
        (rb"(?s)(.{90}).*", rb"\1"),
        (rb"zero", b"nine"),
        (rb"(?s).*", b"[" * 100_000),
        (rb"\A", b"\xff"),
        (rb"(?s).*", b"null"),
        (rb"(?s).*", b'{"reply": 3}'),
        (rb"(?s).*", b'{"reply": {"text": 3}, "checksum": "x"}'),
        (rb'"tokens_in":19', b'"tokens_in":-19'),
    ],
)
def test_damaged_entry_counts_as_absent_and_is_replaced(llm, tmp_path, damage):
    chat = client(llm, cache=ChatCache(tmp_path))
    text = chat.ask(asking()).text
    (entry,) = tmp_path.rglob("*.json")
    whole = entry.read_bytes()
    entry.write_bytes(re.sub(*damage, whole, count=1))
    assert chat.ask(asking()).text == text
    assert len(llm.received) == 2
    assert entry.read_bytes() == whole
    assert chat.ask(asking()).cached


def test_entry_under_another_name_is_not_believed(llm, tmp_path):
    chat = client(llm, cache=ChatCache(tmp_path))
    chat.ask(asking("one " + EVIDENCE))
    (first,) = tmp_path.rglob("*.json")
    data = first.read_bytes()
    first.unlink()
    chat.ask(asking("two " + EVIDENCE))
    (second,) = tmp_path.rglob("*.json")
    second.write_bytes(data)
    assert not chat.ask(asking("two " + EVIDENCE)).cached


def test_equal_requests_at_once_go_out_once(tmp_path):
    with FakeLLM(delay_s=0.2) as llm:
        chat = client(llm, cache=ChatCache(tmp_path), concurrency=8)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda _: chat.ask(asking()), range(8)))
        assert len(llm.received) == 1
        assert len({reply.text for reply in replies}) == 1
        assert sorted(reply.cached for reply in replies) == [False] + [True] * 7
        assert chat.totals().cached == 7


def test_those_who_wait_for_a_failure_fail_alike(tmp_path):
    with FakeLLM() as llm:
        chat = client(llm, "hang", cache=ChatCache(tmp_path), timeout_s=0.4, max_retries=0)
        start = threading.Barrier(4)

        def ask(_):
            start.wait()
            return code_of(chat).code

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert list(pool.map(ask, range(4))) == ["timeout"] * 4
        totals = chat.totals()
        assert (totals.asked, totals.failed) == (4, {"timeout": 4})
        assert totals.requests == len(llm.received)


def test_without_a_cache_every_call_goes_out(llm):
    chat = client(llm)
    assert [chat.ask(asking()).cached, chat.ask(asking()).cached] == [False, False]
    assert len(llm.received) == 2


def test_key_is_shown_nowhere(llm, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    shown = []
    cache = ChatCache(tmp_path)
    for model in (
        "good",
        "unauthorized",
        "burst_500:9",
        "drops",
        "not_json",
        "leaking",
        "oversized",
    ):
        chat = client(llm, model, cache=cache, max_retries=1)
        shown += [repr(chat), repr(chat._endpoint), repr(chat.totals())]
        try:
            shown.append(repr(chat.ask(asking())))
        except ChatError as error:
            # neither shown nor hanging on it for a log that shows more
            shown += [
                str(error),
                repr(error),
                "".join(traceback.format_exception(error)),
                repr(error.__cause__),
                repr(error.__context__),
            ]
    assert all(received.headers["authorization"] == f"Bearer {KEY}" for received in llm.received)
    shown += [
        str(path.relative_to(tmp_path)) + path.read_text() for path in tmp_path.rglob("*.json")
    ]
    shown += [record.getMessage() + repr(record.__dict__) for record in caplog.records]
    assert "event=chat.retry code=server_error retry=1" in caplog.text
    assert "[key]" in "".join(shown)
    assert not [text for text in shown if KEY[:12] in text]


def test_lone_surrogates_go_out_and_come_back_as_writable_text(llm, tmp_path):
    reply = client(llm, cache=ChatCache(tmp_path)).ask(asking("[a.md:1] Half a\ud83dpair."))
    assert json.loads(reply.text)["answer"] == "Half a?pair."


SCRIPT = """
import sys
from pathlib import Path
from rag_eval.answers.chat import ChatClient
from rag_eval.answers.chat_cache import ChatCache
from rag_eval.records.answers import Message
from rag_eval.settings import Endpoint
chat = ChatClient(Endpoint(base_url=sys.argv[1], model="good"), ChatCache(Path(sys.argv[2])))
for text in sys.argv[3:]:
    reply = chat.ask([Message("system", "Answer from the evidence."), Message("user", text)])
    print(reply.cached, "openai" in sys.modules, "httpx" in sys.modules, "httpx2" in sys.modules)
"""


def test_openai_is_imported_for_the_first_request_only(llm, tmp_path):
    client(llm, cache=ChatCache(tmp_path)).ask(asking())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, llm.base_url, str(tmp_path), EVIDENCE],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "False", "False", "False"]


def test_killed_run_finds_its_replies_again(llm, tmp_path):
    texts = [EVIDENCE, "two " + EVIDENCE, "[[scenario=hang]] " + EVIDENCE]
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, llm.base_url, str(tmp_path), *texts]
    ) as run:
        while len(llm.received) < 3:
            assert run.poll() is None
            time.sleep(0.02)
        run.kill()
    chat = client(llm, cache=ChatCache(tmp_path))
    assert [chat.ask(asking(text)).cached for text in texts[:2]] == [True, True]
    assert len(llm.received) == 3


def test_no_socket_is_left_open(llm):
    chat = client(llm, "half_reply", max_retries=1)
    code_of(chat)
    del chat
    gc.collect()  # a socket left to the collector is a ResourceWarning, and warnings are errors
