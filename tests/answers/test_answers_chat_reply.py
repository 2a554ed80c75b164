import datetime as dt
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.answers.chat_limits import MAX_WAIT_S, backoff
from rag_eval.answers.chat_reply import MAX_TOKENS, one_line, read_reply, refusal, retry_after

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
NAMES = st.sampled_from(
    [
        "choices",
        "message",
        "content",
        "usage",
        "prompt_tokens",
        "completion_tokens",
        "finish_reason",
        "error",
        "refusal",
        "code",
        "type",
        "detail",
    ]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
BODIES = (
    st.binary()
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.just(b"[" * 20_000)
    | st.just(b'{"error":' * 5000)
    | st.just(b"1" * 5000)
)


@settings(deadline=None)
@given(BODIES)
def test_any_body_is_read_without_an_exception(body):
    read = read_reply(body)
    assert (read.text is None) == bool(read.problem)
    assert 0 <= read.tokens_in <= MAX_TOKENS
    assert 0 <= read.tokens_out <= MAX_TOKENS
    read.problem.encode("utf-8", "surrogatepass")
    (read.text or "").encode("utf-8")
    read.finish_reason.encode("utf-8")


@settings(deadline=None)
@given(st.integers(300, 999), st.none() | st.text(max_size=30), BODIES)
def test_any_refusal_gets_a_code_and_a_line(status, header, body):
    failure = refusal(status, header, body, NOW)
    assert failure.code in {"rate_limited", "server_error", "timeout", "refused"}
    assert failure.wait_s is None or failure.final or 0 <= failure.wait_s <= MAX_WAIT_S
    line = one_line(failure.message, "secret-key")
    assert len(line) < 400
    assert "\n" not in line
    line.encode("utf-8")


def body_of(**changes):
    return json.dumps(
        {
            "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1},
        }
        | changes
    ).encode()


def test_plain_reply():
    read = read_reply(body_of())
    assert (read.text, read.finish_reason, read.tokens_in, read.tokens_out, read.usage_missing) == (
        "yes",
        "stop",
        3,
        1,
        False,
    )


@pytest.mark.parametrize("tokens", [-1, True, 1.5, "3", None, 10**30, MAX_TOKENS + 1])
def test_nonsense_counts_are_nothing(tokens):
    read = read_reply(body_of(usage={"prompt_tokens": tokens, "completion_tokens": 1}))
    assert (read.tokens_in, read.tokens_out, read.usage_missing) == (0, 1, True)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"choices": None}, "no choices"),
        ({"choices": [], "error": {"message": "overloaded"}}, "no choices: overloaded"),
        ({"choices": ["text"]}, "the first choice carries no message"),
        ({"choices": [{"message": {"content": ["a", "b"]}}]}, "content is list, not text"),
        (
            {"choices": [{"message": {"content": None, "refusal": "I will not"}}]},
            "content is null, not text: I will not",
        ),
    ],
)
def test_reply_without_text_says_why(changes, problem):
    read = read_reply(body_of(**changes))
    assert (read.text, read.problem, read.tokens_in) == (None, problem, 3)


def test_empty_text_is_a_reply():
    assert read_reply(body_of(choices=[{"message": {"content": ""}}])).text == ""


def test_lone_surrogates_of_a_reply_become_writable():
    assert (
        read_reply(b'{"choices": [{"message": {"content": "a\\ud83db \\ud83d\\ude00"}}]}').text
        == "a?b 😀"
    )


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("-3", 0.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("Thu, 01 Jan 99999999999 11:00:00 GMT", None),
    ],
)
def test_retry_after_as_number_and_date(header, seconds):
    assert retry_after(header, NOW) == seconds


@pytest.mark.parametrize(
    ("status", "header", "body", "code", "final"),
    [
        (429, "2", b"{}", "rate_limited", False),
        (429, "61", b"{}", "rate_limited", True),
        (
            429,
            None,
            b'{"error": {"code": "insufficient_quota", "message": "pay"}}',
            "refused",
            True,
        ),
        (500, None, b"", "server_error", False),
        (599, None, b"", "server_error", False),
        (408, None, b"", "timeout", False),
        (302, None, b"", "refused", True),
        (404, "2", b"gone", "refused", True),
    ],
)
def test_status_decides_whether_to_retry(status, header, body, code, final):
    failure = refusal(status, header, body, NOW)
    assert (failure.code, failure.final) == (code, final)


def test_secret_is_taken_out_before_the_line_is_cut():
    assert "secret" not in one_line("x" * 295 + "secret-key", "secret-key")


def test_backoff_doubles_up_to_a_minute():
    for retry in range(20):
        full = min(0.5 * 2**retry, 60)
        assert 0.75 * full <= backoff(0.5, retry) <= full
    assert backoff(0, 5) == 0
