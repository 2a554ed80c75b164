import json
import logging
import sqlite3
import time
import traceback

import pytest
from fake_llm import FakeLLM
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.answers.chat import MAX_TOKENS, ChatCache, ChatClient, _read_reply
from rag_eval.core.errors import InputError
from rag_eval.core.settings import Endpoint
from rag_eval.core.types import ChatError, Message
from rag_eval.storage.sql import SqlStore

KEY = "sk-this-must-never-be-seen-0123456789"
EVIDENCE = (
    "[guide.md:1-2] Indexes start at zero. They end at n.\nSlices do too.\n[api.md:7] Nothing."
)


def asking(text=EVIDENCE):
    return [Message("system", "Answer from the evidence."), Message("user", text)]


@pytest.fixture
def llm():
    with FakeLLM() as server:
        yield server


@pytest.fixture
def cache(tmp_path):
    return ChatCache(SqlStore(tmp_path / "rag_eval.db"))


def client(llm, model="good", cache=None, *, max_reply_bytes=100_000, **fields):
    options = {"timeout_s": 5, "max_retries": 1, "api_key": KEY} | fields
    endpoint = Endpoint(base_url=llm.base_url, model=model, **options)
    return ChatClient(endpoint, cache, max_reply_bytes=max_reply_bytes)


def error_of(chat, text=EVIDENCE):
    with pytest.raises(ChatError) as caught:
        chat.ask(asking(text))
    return caught.value


def test_reply_text_and_usage_come_from_the_endpoint(llm):
    chat = client(llm, price_per_1k_tokens_in=2.0, price_per_1k_tokens_out=10.0)
    reply = chat.ask(asking())
    assert json.loads(reply.text)["answer"] == "Indexes start at zero."
    assert (reply.tokens_in, reply.tokens_out, reply.cached, reply.retries) == (18, 11, False, 0)
    assert reply.finish_reason == "stop"
    usage = chat.usage()
    assert (usage.requests, usage.retries, usage.cached, usage.usage_missing) == (1, 0, 0, 0)
    assert (usage.tokens_in, usage.tokens_out) == (18, 11)
    assert usage.cost == pytest.approx(0.018 * 2 + 0.011 * 10)


def test_request_carries_the_settings_and_nothing_about_the_machine(llm, monkeypatch):
    for name, value in {
        "OPENAI_API_KEY": "sk-of-another-service",
        "OPENAI_ORG_ID": "org-secret",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "OPENAI_CUSTOM_HEADERS": "Authorization: Bearer stolen\nX-Extra: 1",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "ALL_PROXY": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    client(llm, max_tokens=77, temperature=0.5, seed=3).ask(asking())
    client(llm, seed=None).ask(asking())
    first, second = llm.received
    messages = [
        {"role": "system", "content": "Answer from the evidence."},
        {"role": "user", "content": EVIDENCE},
    ]
    asked = {"model": "good", "messages": messages, "temperature": 0.5, "max_tokens": 77, "seed": 3}
    assert first.body == asked
    assert "seed" not in second.body
    names = {"host", "accept", "accept-encoding", "authorization", "connection", "user-agent"}
    assert set(first.headers) == names | {"content-length", "content-type"}
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert first.headers["user-agent"] == "rag-eval"


def test_key_comes_from_the_named_variable_or_is_the_word_none(llm, monkeypatch):
    monkeypatch.setenv("MY_KEY", " sk-from-the-environment\n")
    client(llm, api_key=None, api_key_env="MY_KEY").ask(asking())
    client(llm, api_key=None).ask(asking())
    sent = [received.headers["authorization"] for received in llm.received]
    assert sent == ["Bearer sk-from-the-environment", "Bearer none"]
    missing = error_of(client(llm, "unauthorized", api_key=None, api_key_env="NOT_SET_ANYWHERE"))
    assert "NOT_SET_ANYWHERE is not set" in str(missing)


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines", "nul\x00", "two words"])
def test_key_that_no_header_can_carry_is_refused_unseen(key):
    with pytest.raises(InputError) as caught:
        ChatClient(Endpoint(base_url="http://127.0.0.1:9/v1", model="m", api_key=key), None)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["user:pass@host/v1", "/v1", "host/v1?key=1", "höst/v1", "[::1/v1"],
)
def test_address_of_no_endpoint_is_refused_unseen(url):
    with pytest.raises(InputError) as caught:
        ChatClient(Endpoint(base_url=f"http://{url}", model="m"), None)
    assert "pass" not in str(caught.value)
    assert caught.value.problems[0].code == "bad_base_url"


@pytest.mark.parametrize(
    ("model", "code", "retries"),
    [
        ("burst_429:2", "", 2),
        ("burst_500:1", "", 1),
        ("drops:1", "", 1),
        ("slow_trickle:1", "", 1),
        ("burst_429:9", "rate_limited", 2),
        ("burst_500:9", "server_error", 2),
        ("drops", "connection", 1),
        ("not_json", "malformed_reply", 0),
        ("null_content", "malformed_reply", 0),
        ("unauthorized", "refused", 0),
        ("no_such_model", "refused", 0),
        ("oversized", "reply_too_large", 0),
        ("oversized_declared", "reply_too_large", 0),
    ],
)
def test_passing_failures_are_retried_and_lasting_ones_named(llm, model, code, retries):
    chat = client(llm, model, max_retries=max(retries, 1), timeout_s=1.5)
    if code:
        error = error_of(chat)
        assert (error.code, error.retries) == (code, retries)
        assert len(str(error)) < 500
        assert str(error).isprintable()
    else:
        assert chat.ask(asking()).retries == retries
    assert len(llm.received) == retries + 1
    assert (chat.usage().requests, chat.usage().retries) == (retries + 1, retries)


@pytest.mark.parametrize("model", ["hang", "slow_trickle"])
def test_time_limit_holds_for_silent_and_for_slow_servers(llm, model):
    before = time.monotonic()
    assert error_of(client(llm, model, timeout_s=0.3, max_retries=0)).code == "timeout"
    assert 0.29 <= time.monotonic() - before < 5


def test_kept_reply_costs_nothing_and_names_what_it_saved(llm, cache):
    prices = {"price_per_1k_tokens_in": 1.0, "price_per_1k_tokens_out": 1.0}
    paid = client(llm, cache=cache, **prices).ask(asking())
    later = client(llm, cache=cache, **prices)  # the client of a second run
    again = later.ask(asking())
    assert len(llm.received) == 1
    assert (again.text, again.finish_reason, again.cached) == (paid.text, "stop", True)
    assert (again.tokens_in, again.tokens_out) == (0, 0)
    usage = later.usage()
    assert (usage.cached, usage.requests, usage.tokens_in, usage.cost) == (1, 0, 0, 0)
    assert (usage.saved_tokens_in, usage.saved_tokens_out) == (paid.tokens_in, paid.tokens_out)
    assert usage.saved_cost == pytest.approx((paid.tokens_in + paid.tokens_out) / 1000)


def test_cache_tells_requests_apart_and_not_keys(llm, cache):
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


def test_kept_reply_is_the_same_to_the_last_character(cache):
    text = "NUL \x00, tab\t, é and 😀 \u2028 stay"
    kept = cache.keep("request", _read_reply(body_of(content=text))[0])
    assert cache.read("request") == kept
    assert kept.text == text


def test_key_is_shown_nowhere(llm, tmp_path, cache, caplog):
    caplog.set_level(logging.DEBUG)
    shown = []
    for model in ("good", "unauthorized", "drops", "not_json", "leaking", "oversized"):
        chat = client(llm, model, cache=cache, max_retries=0)
        shown += [repr(chat), repr(chat._endpoint), repr(chat.usage())]
        try:
            shown.append(repr(chat.ask(asking())))
        except ChatError as error:
            shown += [str(error), "".join(traceback.format_exception(error))]
            # The error has no cause or context, because a longer traceback could show the key.
            shown += [KEY for hanging in (error.__cause__, error.__context__) if hanging]
    assert all(received.headers["authorization"] == f"Bearer {KEY}" for received in llm.received)
    shown += [record.getMessage() + repr(record.__dict__) for record in caplog.records]
    with sqlite3.connect(tmp_path / "rag_eval.db") as database:
        shown += map(repr, database.execute("SELECT * FROM chat_replies"))
    assert "[key]" in "".join(shown)
    assert not [text for text in shown if KEY[:12] in text]


def test_lone_surrogates_go_out_and_come_back_as_writable_text(llm):
    reply = client(llm).ask(asking("[a.md:1] Half a\ud83dpair."))
    assert json.loads(reply.text)["answer"] == "Half a?pair."


# ---- Reading a reply

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
NAMES = "choices message content usage prompt_tokens completion_tokens finish_reason error".split()
KEYS = st.sampled_from(NAMES) | st.text(max_size=3)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(
    st.binary()
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.sampled_from([b"[" * 20_000, b'{"error":' * 5000, b"1" * 5000])
)
def test_any_body_is_read_without_an_exception(body):
    reply, problem = _read_reply(body)
    assert not (reply.text and problem)
    assert 0 <= reply.tokens_in <= MAX_TOKENS
    assert 0 <= reply.tokens_out <= MAX_TOKENS
    (reply.text + reply.finish_reason + problem).encode("utf-8")


def body_of(content="yes", **changes):
    choice = {"message": {"content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    return json.dumps({"choices": [choice], "usage": usage} | changes).encode()


@pytest.mark.parametrize("tokens", [-1, True, 1.5, "3", None, 10**30, MAX_TOKENS + 1])
def test_nonsense_counts_are_nothing(tokens):
    usage = {"prompt_tokens": tokens, "completion_tokens": 1}
    reply, _ = _read_reply(body_of(usage=usage))
    assert (reply.tokens_in, reply.tokens_out, reply.usage_missing) == (0, 1, True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"choices": None}, ""),
        ({"choices": [], "error": {"message": "overloaded"}}, "overloaded"),
        ({"choices": ["text"]}, ""),
        ({"content": ["a", "b"]}, ""),
        ({"choices": [{"message": {"content": None, "refusal": "I will not"}}]}, "I will not"),
    ],
)
def test_reply_without_text_says_why(changes, reason):
    reply, problem = _read_reply(body_of(**changes))
    assert (reply.text, reply.tokens_in) == ("", 3)
    assert problem.startswith("the first choice carries no text")
    assert reason in problem
    assert _read_reply(body_of(content=""))[1] == ""  # an empty text is a valid reply
