"""Reading what a chat endpoint sent back, which may be anything.

Belongs here: functions from the bytes and headers of a reply to a text, a count of tokens or a reason. Not here: sending and retrying.
"""

import dataclasses
import datetime as dt
import email.utils
import json
import math
from http import HTTPStatus
from typing import Any

from rag_eval.answers.chat_limits import MAX_WAIT_S
from rag_eval.records.problems import quoted

MAX_TOKENS = 100_000_000
"""No count of tokens of one reply beyond this is believed."""
MAX_MESSAGE_CHARS = 300
RETRIED = frozenset({"timeout", "connection", "rate_limited", "server_error"})
"""Codes of failures that may pass."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReadReply:
    """A reply of status 200.

    Parameters
    ----------
    text
        None where the reply carries no text.
    problem
        Why it carries none.
    finish_reason
        As given, shortened; empty where absent.
    tokens_in, tokens_out
        0 where absent or nonsense.
    usage_missing
        Whether either count was absent or nonsense.
    """

    text: str | None
    problem: str
    finish_reason: str
    tokens_in: int
    tokens_out: int
    usage_missing: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why one request failed.

    Parameters
    ----------
    code
        A code of ChatError.
    message
        What happened, untrusted and unbounded.
    wait_s
        What its Retry-After asked for.
    final
        No retry is of use.
    """

    code: str
    message: str
    wait_s: float | None = None
    final: bool = False


def read_reply(body: bytes) -> ReadReply:
    """Text and usage of a chat completion. Usage counts even where the text is missing: it was charged."""
    value = _json(body)
    if not isinstance(value, dict):
        return ReadReply(
            None,
            "not a JSON object" if value is not None else "not JSON",
            "",
            0,
            0,
            usage_missing=True,
        )
    usage = value.get("usage")
    tokens_in, tokens_out = (
        (_tokens(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
        if isinstance(usage, dict)
        else (None, None)
    )
    text, problem, finish_reason = _first_choice(value)
    return ReadReply(
        text,
        problem,
        finish_reason,
        tokens_in or 0,
        tokens_out or 0,
        usage_missing=tokens_in is None or tokens_out is None,
    )


def _first_choice(value: dict[str, Any]) -> tuple[str | None, str, str]:
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices:
        return None, _without("no choices", value.get("error")), ""
    choice = choices[0]
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        return None, "the first choice carries no message", ""
    content = message.get("content")
    if not isinstance(content, str):
        return None, _without(f"content is {_kind(content)}, not text", message.get("refusal")), ""
    reason = choice.get("finish_reason")
    return (
        whole_text(content),
        "",
        quoted(whole_text(reason), 40) if isinstance(reason, str) else "",
    )


def _without(what: str, said: object) -> str:
    return f"{what}: {_said(said)}" if said else what


def _said(error: object) -> str:
    """The words of an error in any of the shapes that servers use."""
    if isinstance(error, dict):
        error = next(
            (error[name] for name in ("message", "detail", "error") if error.get(name)), ""
        )
    return error if isinstance(error, str) else json.dumps(error)


def error_text(body: bytes) -> str:
    """What an error reply says, of any length and still untrusted."""
    value = _json(body)
    if value is None:
        return body.decode("utf-8", "replace")
    try:
        return whole_text(
            _said(value.get("error") or value) if isinstance(value, dict) else _said(value)
        )
    except RecursionError:
        return ""


def out_of_quota(body: bytes) -> bool:
    """Whether a 429 says that the account is empty, which no waiting mends."""
    value = _json(body)
    error = value.get("error") if isinstance(value, dict) else None
    return isinstance(error, dict) and "insufficient_quota" in (
        error.get("code"),
        error.get("type"),
    )


def one_line(text: str, secret: str) -> str:
    """Untrusted text for an error: the key taken out first, so that no cut leaves half of it, then controls and length."""
    shown = text.replace(secret, "[key]") if secret else text
    return quoted(" ".join(shown.split()), MAX_MESSAGE_CHARS)


def whole_text(text: str) -> str:
    """Text that can be written as UTF-8: lone surrogates, which JSON can express, become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def retry_after(header: str | None, now: dt.datetime) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or as a date; None where it says nothing usable.

    References
    ----------
    RFC 9110, 10.2.3. Fractions are taken too.
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(header)
            seconds = (date.replace(tzinfo=date.tzinfo or dt.UTC) - now).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def refusal(status: int, header: str | None, body: bytes, now: dt.datetime) -> Failure:
    """What a status other than 2xx means, with the Retry-After header beside it."""
    said = f"HTTP {status}: {error_text(body)}"
    wait_s = retry_after(header, now)
    if status == HTTPStatus.TOO_MANY_REQUESTS and not out_of_quota(body):
        code = "rate_limited"
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        code = "server_error"
    elif status == HTTPStatus.REQUEST_TIMEOUT:
        code = "timeout"
    else:
        return Failure("refused", said, final=True)
    if wait_s is not None and wait_s > MAX_WAIT_S:
        return Failure(
            code, f"asks to wait {wait_s:g} s, longer than {MAX_WAIT_S:g} s; {said}", final=True
        )
    return Failure(code, said, wait_s)


def _json(body: bytes) -> Any:
    """Parsed JSON; None where it is none, which `null` is taken for too."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _tokens(value: object) -> int | None:
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS
        else None
    )


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
