"""One row of recorded outputs: its fields taken out one by one, each checked, each fault named; two layouts, told by their keys.

Belongs here: what a row may say. Files and documents are `recorded`.
"""

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping
from typing import Any

from rag_eval.corpus.raw_documents import (
    ACCEPTED_ID,
    ACCEPTED_QUERY_ID,
    Problems,
    id_fault,
    is_query_id,
)
from rag_eval.corpus.recorded_payloads import stated_payload
from rag_eval.records.problems import Problem, quoted
from rag_eval.storage.hashing import digest

MAX_CONTEXTS = 1000
MAX_CITATIONS = 1000
MAX_TEXT_CHARS = 1_000_000
"""Of one context or answer."""
MAX_QUESTION_CHARS = 20_000
MAX_SHORT_CHARS = 2000
"""Of a title, an address, an error or a citation's token."""
MAX_NUMBER = 2**53

OWN_KEYS = (
    "query_id",
    "question",
    "answer",
    "error",
    "citations",
    "contexts",
    "tokens_in",
    "tokens_out",
    "seconds",
    "verdict",
    "confidence",
)
RAGAS_KEYS = (
    "query_id",
    "user_input",
    "response",
    "retrieved_contexts",
    "retrieved_context_ids",
    "reference",
)
_CONTEXT_HASH_DIGITS = 16
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """One passage that the system put before its model.

    Parameters
    ----------
    document
        The document: `doc_id`, else `id`, else a name made of the text's hash.
    snippet
        `id` where both stand there: the system's name of the passage; else empty.
    named
        Whether the system gave any id.
    text
        The passage; may be empty where an id names it.
    title, score, url
        Where given; empty and None where not.
    """

    document: str
    text: str
    snippet: str = ""
    named: bool = True
    title: str = ""
    score: float | None = None
    url: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Citation:
    """One entry of `citations`: by the number of a context (from 1), by a token or id, or by a payload; the others are None, empty, None."""

    number: int | None = None
    token: str = ""
    payload: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedOutput:
    """What the user's system gave for one question.

    Parameters
    ----------
    query_id, question
        The question; its wording is empty where the row has none.
    answer
        None where the system gave none.
    error
        Why it gave none; empty where unknown.
    citations
        Those stated beside the answer; markers inside it are not among them.
    contexts
        In the system's order, best first.
    tokens_in, tokens_out, seconds
        None where not recorded.
    confidence
        What the system itself reported, in [0, 1]; None where it reported nothing.
    verdict, reference
        Empty where not recorded; the reference answer comes from ragas rows.
    line
        Where the row stands in its file, from 1.
    """

    query_id: str
    question: str
    answer: str | None
    error: str = ""
    citations: tuple[Citation, ...] = ()
    contexts: tuple[Context, ...] = ()
    tokens_in: int | None = None
    tokens_out: int | None = None
    seconds: float | None = None
    confidence: float | None = None
    verdict: str = ""
    reference: str = ""
    line: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Fields:
    """An object of a row, the field it stands in, and where its faults go."""

    values: Mapping[str, Any]
    file: str
    line: int
    problems: Problems
    prefix: str = ""

    def fault(self, code: str, message: str, field: str, value: object, accepted: str) -> None:
        found = None if value is None else quoted(value)
        self.problems.add(
            Problem(code, message, self.file, self.line, self.prefix + field, found, accepted)
        )

    def inside(self, values: Mapping[str, Any], field: str) -> "_Fields":
        return _Fields(values, self.file, self.line, self.problems, f"{self.prefix}{field}.")

    def checked(self, value: object, field: str, limit: int, accepted: str = "a text") -> str:
        """Return a text; empty with a fault. A lone surrogate, as a stream cut inside a character leaves it, becomes U+FFFD."""
        if not isinstance(value, str):
            self.fault("wrong_type", f"{field} must be {accepted}", field, repr(value), accepted)
        elif len(value) > limit:
            self.fault(
                "text_too_long",
                f"{field} is too long",
                field,
                f"{len(value)} characters",
                f"at most {limit} characters",
            )
        elif "\x00" in value:
            self.fault(
                "nul_byte",
                f"{field} holds a NUL",
                field,
                f"at character {value.index(chr(0)) + 1}",
                "text without NUL",
            )
        else:
            return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
        return ""

    def text(self, key: str, limit: int = MAX_SHORT_CHARS) -> str:
        """Take an optional text; empty where absent or null."""
        value = self.values.get(key)
        return "" if value is None else self.checked(value, key, limit)

    def number(
        self, key: str, *, whole: bool, least: float = 0.0, most: float = MAX_NUMBER
    ) -> float | None:
        """Take an optional finite number."""
        value = self.values.get(key)
        accepted = f"a {'whole ' if whole else ''}number{'' if least == -math.inf else f' of at least {least:g}'}{'' if most == MAX_NUMBER else f' and at most {most:g}'}, or null"
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            self.fault("wrong_type", f"{key} must be a number", key, repr(value), accepted)
        elif not (least <= value <= most and abs(value) <= MAX_NUMBER):
            self.fault("bad_number", f"{key} is out of range", key, repr(value)[:100], accepted)
        else:
            return value
        return None

    def items(self, key: str, limit: int, accepted: str) -> list[Any]:
        """Take an optional list of at most `limit` items."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.fault("wrong_type", f"{key} must be a list", key, value, accepted)
            return []
        if len(value) > limit:
            self.fault(
                "too_many",
                f"{key} has too many items",
                key,
                f"{len(value)} items",
                f"at most {limit}",
            )
            return []
        return value

    def identifier(self, value: object, field: str) -> str:
        """Return the id of a document or passage; empty with a fault."""
        fault = id_fault(value)
        if fault:
            self.fault(*fault, field, value, ACCEPTED_ID)
            return ""
        return str(value)


def context_id(text: str) -> str:
    """Name of a passage that came without an id: of its text alone, so that the same passage is the same document everywhere."""
    return f"context-{digest(text, _CONTEXT_HASH_DIGITS)}"


def _context(item: object, field: str, row: _Fields) -> Context:
    accepted = (
        'a text, or {"id" or "doc_id": ..., "text": ..., "title", "score" and "url" where known}'
    )
    if isinstance(item, str):
        text = row.checked(item, field, MAX_TEXT_CHARS)
        return Context(context_id(text), text, named=False)
    if not isinstance(item, dict):
        row.fault("wrong_type", "a context is a text or an object", field, repr(item), accepted)
        return Context("", "")
    part = row.inside(item, field)
    ids = {
        key: part.identifier(item[key], key)
        for key in ("doc_id", "id")
        if item.get(key) is not None
    }
    text = part.text("text", MAX_TEXT_CHARS)
    if not ids and item.get("text") is None:
        row.fault("missing_key", "a context has neither text nor id", field, item, accepted)
    document = ids.get("doc_id") or ids.get("id") or context_id(text)
    snippet = ids.get("id", "") if "doc_id" in ids else ""
    return Context(
        document,
        text,
        snippet,
        bool(ids),
        part.text("title"),
        part.number("score", whole=False, least=-math.inf),
        part.text("url"),
    )


def _contexts(row: _Fields, key: str) -> tuple[Context, ...]:
    items = row.items(key, MAX_CONTEXTS, "a list of texts or of objects")
    return tuple(_context(item, f"{key}[{place}]", row) for place, item in enumerate(items))


def _citation(item: object, field: str, row: _Fields) -> Citation:
    accepted = (
        'a citation payload, "<doc>:<line>[-<line>]", an id, or the number of a context from 1'
    )
    if isinstance(item, dict):
        return Citation(payload=stated_payload(item))
    if isinstance(item, int) and not isinstance(item, bool):
        return Citation(number=max(min(item, MAX_CONTEXTS + 1), 0))
    if not isinstance(item, str) or not item.strip():
        row.fault("wrong_type", "this is no citation", field, repr(item), accepted)
        return Citation()
    return Citation(token=row.checked(item.strip(), field, MAX_SHORT_CHARS))


def _unknown_keys(row: _Fields, known: tuple[str, ...]) -> None:
    """Refuse a key that is almost a known one: a misspelt `contexts` would be an answer without any evidence. Other keys are the system's own."""
    for key in row.values:
        near = (
            difflib.get_close_matches(key[:100], known, n=1, cutoff=0.85)
            if key not in known
            else []
        )
        if near and near[0] not in row.values:
            row.fault(
                "unknown_key",
                f"the key is not known; did you mean {near[0]}?",
                quoted(key),
                None,
                ", ".join(known),
            )


def _query_id(row: _Fields) -> str | None:
    value = row.values.get("query_id")
    if not isinstance(value, str):
        code = "missing_key" if "query_id" not in row.values else "wrong_type"
        row.fault(
            code,
            "every output names its question",
            "query_id",
            None if value is None else repr(value),
            ACCEPTED_QUERY_ID,
        )
        return None
    if not is_query_id(value):
        row.fault("bad_id", "query_id is not an id", "query_id", value, ACCEPTED_QUERY_ID)
        return None
    return value


def _own(row: _Fields) -> RecordedOutput | None:
    _unknown_keys(row, OWN_KEYS)
    query_id = _query_id(row)
    if "answer" not in row.values:
        row.fault(
            "missing_key",
            "answer is missing",
            "answer",
            None,
            "a text, or null where the system gave none",
        )
    answer = row.values.get("answer")
    citations = row.items("citations", MAX_CITATIONS, "a list of payloads, tokens or numbers")
    tokens_in, tokens_out = (
        row.number("tokens_in", whole=True),
        row.number("tokens_out", whole=True),
    )
    output = RecordedOutput(
        query_id or "",
        row.text("question", MAX_QUESTION_CHARS),
        None if answer is None else row.checked(answer, "answer", MAX_TEXT_CHARS, "a text or null"),
        row.text("error"),
        tuple(_citation(item, f"citations[{place}]", row) for place, item in enumerate(citations)),
        _contexts(row, "contexts"),
        None if tokens_in is None else int(tokens_in),
        None if tokens_out is None else int(tokens_out),
        row.number("seconds", whole=False),
        row.number("confidence", whole=False, most=1.0),
        row.text("verdict", 64),
        line=row.line,
    )
    return output if query_id is not None else None


def _ragas(row: _Fields) -> RecordedOutput | None:
    """Read a ragas SingleTurnSample. It has no id: the question's hash is one, unless a `query_id` stands beside it."""
    _unknown_keys(row, RAGAS_KEYS)
    question = row.checked(row.values["user_input"], "user_input", MAX_QUESTION_CHARS)
    query_id = (
        _query_id(row)
        if "query_id" in row.values
        else f"q-{digest(question, _CONTEXT_HASH_DIGITS)}"
    )
    answer = row.values.get("response")
    contexts = _contexts(row, "retrieved_contexts")
    ids = row.items("retrieved_context_ids", MAX_CONTEXTS, "a list of ids, one for each context")
    if ids and contexts and len(ids) != len(contexts):
        row.fault(
            "wrong_length",
            "ids and contexts do not pair",
            "retrieved_context_ids",
            f"{len(ids)} ids for {len(contexts)} contexts",
            "one id for each context",
        )
    elif ids:
        names = [
            row.identifier(str(one) if type(one) is int else one, f"retrieved_context_ids[{place}]")
            for place, one in enumerate(ids)
        ]
        held = contexts or tuple(Context("", "") for _ in names)
        contexts = tuple(
            dataclasses.replace(context, document=name, named=True)
            for context, name in zip(held, names, strict=True)
        )
    text = (
        None
        if answer is None
        else row.checked(answer, "response", MAX_TEXT_CHARS, "a text or null")
    )
    output = RecordedOutput(
        query_id or "",
        question,
        text,
        contexts=contexts,
        reference=row.text("reference", MAX_TEXT_CHARS),
        line=row.line,
    )
    return output if query_id is not None else None


def output_of(
    values: Mapping[str, Any], file: str, line: int, problems: Problems
) -> RecordedOutput | None:
    """Read one row of either layout; with a fault, the problems say so and the result is of no use."""
    row = _Fields(values, file, line, problems)
    return _ragas(row) if "user_input" in values else _own(row)
