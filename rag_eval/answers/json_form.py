"""The JSON form of a reply: `{citations, answer, deltaS, lambda}`, citations first, also in a json fence; and `{error, fix}`.

Belongs here: reading JSON that may be hostile, and the rules of the object.
"""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from rag_eval.answers.paths import has_content
from rag_eval.answers.reply_parts import (
    CONTROL,
    MAX_CITATIONS,
    Citation,
    Parsed,
    ParsedOutcome,
    Terms,
    allowed_refusal,
    broken,
    read_token,
    refusal_in,
    short,
)

KEYS = ("citations", "answer", "deltaS", "lambda")
LAMBDA_STATES = ("convergent", "divergent", "recursive", "chaotic")
MAX_NUMBER_CHARS = 40

FENCE = re.compile(r"```(?:json|JSON)?\s*+(?=[{\[])")


def _number(text: str) -> float:
    value = float(text) if len(text) <= MAX_NUMBER_CHARS else math.inf
    return value if math.isfinite(value) else broken("bad_number", "a number is too large.")


def _constant(name: str) -> NoReturn:
    broken("bad_number", f"{name} is not a number of JSON.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        broken(
            "duplicate_key",
            f"the key {short(next(key for key in keys if keys.count(key) > 1))} stands twice.",
        )
    return dict(pairs)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_number, parse_int=_number, parse_constant=_constant
)


def _decoded(text: str) -> Any:
    """The one JSON value of a reply that begins with it, or with a fence around it."""
    fence = FENCE.match(text)
    try:
        value, end = _DECODER.raw_decode(text, fence.end() if fence else 0)
    except RecursionError:
        broken("too_deep", "the JSON is nested too deeply.")
    except ValueError as error:
        broken("not_json", f"the reply is not JSON: {short(str(error))}.")
    after = text[end:].strip()
    if fence and not after.startswith("```"):
        broken(
            "trailing_text" if after else "not_json",
            "the fence around the JSON object must end right after it.",
        )
    if after.removeprefix("```" if fence else "").strip():
        broken("trailing_text", "nothing may follow the JSON object.")
    return value


def _json_citation(value: object) -> Citation:
    quote: object = ""
    token = value
    if isinstance(value, dict):
        if not value.keys() <= {"token", "quote"} or "token" not in value:
            broken("bad_citation", "a citation object has the keys token and quote.")
        token, quote = value["token"], value.get("quote", "")
    if not isinstance(token, str) or not isinstance(quote, str):
        broken("bad_citation", "a citation is a text, or an object of texts.")
    found = read_token(token)
    if found is None:
        broken("bad_citation", f"{short(token)} is not <doc path>:<line>[-<line>].")
    return dataclasses.replace(found, quote=quote.strip())


def _contract_error(value: Mapping[str, Any]) -> Parsed:
    for key in ("error", "fix"):
        if key not in value:
            broken("missing_key", f"the key {key} is missing.")
        if not isinstance(value[key], str) or not value[key].strip():
            broken("wrong_type", f"{key} must be a text.")
        if CONTROL.search(value[key]):
            broken("bad_characters", "control characters and lone surrogates are not text.")
        if not has_content(value[key]):
            broken("wrong_type", f"{key} has no letter or digit.")
    if len(value) > len(("error", "fix")):
        broken("unknown_key", "an error object has the keys error and fix only.")
    return Parsed(
        "contract_error_reply", f"error: {value['error'].strip()}; fix: {value['fix'].strip()}"
    )


def _delta_s(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(
        value, float
    ):  # the decoder makes every number a float
        broken("wrong_type", "deltaS must be a number or null.")
    return value if 0 <= value <= 1 else broken("bad_delta_s", "deltaS must lie from 0 to 1.")


def _lambda_state(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        broken("wrong_type", "lambda must be a text or null.")
    return (
        value
        if value in LAMBDA_STATES
        else broken("bad_lambda", f"lambda must be one of {', '.join(LAMBDA_STATES)}, or null.")
    )


def _checked_keys(value: Mapping[str, Any]) -> None:
    unknown = next((key for key in value if key not in KEYS), None)
    if unknown is not None:
        broken("unknown_key", f"the key {short(unknown)} is not one of {', '.join(KEYS)}.")
    missing = next((key for key in KEYS if key not in value), None)
    if missing is not None:
        broken("missing_key", f"the key {missing} is missing.")
    if next(iter(value)) != "citations":
        broken("explained_before_cited", "the key citations must be the first.")


def _citations(value: object) -> tuple[Citation, ...]:
    if not isinstance(value, list):
        broken("wrong_type", "citations must be a list.")
    if len(value) > MAX_CITATIONS:
        broken("bad_citation", f"at most {MAX_CITATIONS} citations are read.")
    return tuple(dict.fromkeys(_json_citation(item) for item in value))


def json_reply(text: str, terms: Terms) -> Parsed:
    """Read a reply that begins with a JSON object or a fence before one; raises BrokenError."""
    value = _decoded(text)
    if not isinstance(value, dict):
        broken("wrong_type", "the reply must be a JSON object.")
    if "error" in value and "answer" not in value:
        return _contract_error(value)
    if terms.response_schema != "json":
        broken("wrong_form", "reply with the VERDICT and CITATIONS lines, not with JSON.")
    _checked_keys(value)
    answer = value["answer"]
    if not isinstance(answer, str):
        broken("wrong_type", "answer must be a text.")
    citations, delta_s, lambda_state = (
        _citations(value["citations"]),
        _delta_s(value["deltaS"]),
        _lambda_state(value["lambda"]),
    )
    if CONTROL.search(answer) or any(
        CONTROL.search(item.doc_id + item.quote) for item in citations
    ):
        broken("bad_characters", "control characters and lone surrogates are not text.")
    if not has_content(answer):
        broken("empty_answer", "answer has no letter or digit.")
    outcome: ParsedOutcome = "answered"
    if refusal := refusal_in(answer):
        outcome = allowed_refusal(refusal[0], terms, gaps=refusal[1])
    elif not citations:
        broken("empty_citations", "citations is empty.")
    return Parsed(outcome, answer.strip(), citations, "", delta_s, lambda_state)
