"""Recorded outputs of the user's own system (JSONL), and loader `recorded` of their contexts.

A row has the layout of this package or the layout of a ragas sample. The keys of the row tell the
layout. `rag_eval.answers.recorded` makes answers of the rows.
"""

import dataclasses
import difflib
import math
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)

from rag_eval.core.errors import Problem, ProblemList, quoted
from rag_eval.core.loader import Chunker, PathLoader, RawCorpus, RawDocument
from rag_eval.core.rows import check_row, read_objects, refuse
from rag_eval.core.types import PAYLOAD_FIELDS
from rag_eval.corpus.source import (
    ACCEPTED_ID,
    DocId,
    QueryId,
    empty_corpus,
    is_doc_id,
    missing_input,
    resolve,
)
from rag_eval.storage.hashing import digest, file_hash

# ---- Citation payloads as a user's system states them

BESIDE = ("number", "quote", "segment", "cited_before_answer")
"""Further keys of a citation; `number` is the number of a context, from 1."""
MAX_QUOTE_CHARS = 1_000_000
MAX_SHORT_CHARS = 4000
MAX_ITEMS = 16
MAX_DEPTH = 2
MAX_NUMBER = 2**53

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def stated_payload(values: Mapping[str, object]) -> dict[str, JsonValue]:
    """Take the values of a payload under the known keys.

    NUL and lone surrogates become U+FFFD. Long texts and lists are cut. Numbers beyond `MAX_NUMBER`
    and deeply nested values become a short text.

    Examples
    --------
    >>> stated_payload({"doc_id": "a", "tokens": float("inf"), "mine": 1})
    {'doc_id': 'a', 'tokens': 'a number out of range'}
    """
    return {
        name: _bound(values[name], MAX_QUOTE_CHARS if name == "quote" else MAX_SHORT_CHARS)
        for name in (*PAYLOAD_FIELDS, *BESIDE)
        if name in values
    }


def _storable(text: str, limit: int = MAX_SHORT_CHARS) -> str:
    return _UNSTORABLE.sub("\ufffd", text[:limit])


def _bound(value: object, limit: int = MAX_SHORT_CHARS, depth: int = 0) -> JsonValue:
    if isinstance(value, str):
        return _storable(value, limit)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):  # NaN and infinity are out of range too
        return value if abs(value) <= MAX_NUMBER else "a number out of range"
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        items = list(value.items())[:MAX_ITEMS]
        return {_storable(str(name)): _bound(item, depth=depth + 1) for name, item in items}
    if depth < MAX_DEPTH and isinstance(value, list):
        return [_bound(item, depth=depth + 1) for item in value[:MAX_ITEMS]]
    return "..."


# ---- One output.

MAX_CONTEXTS = MAX_CITATIONS = 1000
MAX_TEXT_CHARS = 1_000_000
"""Longest context or answer."""
MAX_QUESTION_CHARS = 20_000
MAX_SHORT_ROW_CHARS = 2000
"""Longest title, address, error or token of a citation."""
_CONTEXT_HASH_DIGITS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Citation:
    """One entry of `citations`: the number of a context (from 1), a token or id, or a payload."""

    number: int | None = None
    token: str = ""
    payload: Mapping[str, JsonValue] | None = None


def context_id(text: str) -> str:
    """Name a passage by a hash of the text, so that equal texts are one document."""
    return f"context-{digest(text, _CONTEXT_HASH_DIGITS)}"


# ---- Rows.


class _Limit:
    """Checks a text; a lone surrogate, as a cut stream leaves it, becomes U+FFFD."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def __call__(self, value: str) -> str:
        """Return the text that can be stored."""
        if len(value) > self._limit:
            accepted = f"at most {self._limit} characters, not {len(value)}"
            raise refuse("text_too_long", "the text is too long", accepted)
        if "\x00" in value:
            raise refuse("nul_byte", "the text holds a NUL", "text without NUL")
        return _UNSTORABLE.sub("\ufffd", value)


def _read_citation(value: object) -> Citation:
    if isinstance(value, dict):
        return Citation(payload=stated_payload(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return Citation(number=max(min(value, MAX_CONTEXTS + 1), 0))
    if isinstance(value, str) and value.strip():
        return Citation(token=_Limit(MAX_SHORT_ROW_CHARS)(value.strip()))
    accepted = 'a citation payload, "<doc>:<line>[-<line>]", an id, or a context\'s number from 1'
    raise refuse("wrong_type", "this is no citation", accepted)


_Text = Annotated[str, AfterValidator(_Limit(MAX_TEXT_CHARS))]
_Question = Annotated[str, AfterValidator(_Limit(MAX_QUESTION_CHARS))]
_ShortText = Annotated[str, AfterValidator(_Limit(MAX_SHORT_ROW_CHARS))]
_Word = Annotated[str, AfterValidator(_Limit(64))]
_Count = Annotated[int, Field(strict=True, ge=0, le=MAX_NUMBER)]
_EMPTY = BeforeValidator(lambda value: "" if value is None else value)
_NO_ITEMS = BeforeValidator(lambda value: () if value is None else value)
_Number = Annotated[float, Field(strict=True, ge=0, le=MAX_NUMBER, allow_inf_nan=False)]


class Context(BaseModel):
    """One passage that the system put before its model; only its text may be written too.

    Only one of `text`, `id` and `doc_id` is needed.
    """

    model_config = ConfigDict(frozen=True)

    id: DocId | None = None
    doc_id: DocId | None = None
    text: Annotated[_Text, _EMPTY] = ""
    title: Annotated[_ShortText, _EMPTY] = ""
    score: Annotated[float, Field(strict=True, allow_inf_nan=False)] | None = None
    url: Annotated[_ShortText, _EMPTY] = ""

    @model_validator(mode="before")
    @classmethod
    def _text_is_a_context(cls, value: object) -> object:
        return {"text": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.id is None and self.doc_id is None and "text" not in self.model_fields_set:
            accepted = 'a text, or {"id" or "doc_id": ..., "text": ...}'
            raise refuse("missing_key", "a context has neither text nor id", accepted)
        return self

    @property
    def document(self) -> str:
        """`doc_id`, else `id`, else a name made of the text's hash."""
        return self.doc_id or self.id or context_id(self.text)

    @property
    def snippet(self) -> str:
        """The system's name of the passage: `id`, if the row also has `doc_id`."""
        return self.id or "" if self.doc_id is not None else ""

    @property
    def has_id(self) -> bool:
        """Whether the system gave any id."""
        return bool(self.doc_id or self.id)


_Contexts = Annotated[tuple[Context, ...], Field(max_length=MAX_CONTEXTS), _NO_ITEMS]
_Citations = Annotated[
    tuple[Annotated[Citation, BeforeValidator(_read_citation)], ...],
    Field(max_length=MAX_CITATIONS),
    _NO_ITEMS,
]


class _OutputRow(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _keys_are_spelt(cls, values: dict[str, object]) -> dict[str, object]:
        """Refuse a misspelt key, because an answer without `contexts` has no evidence."""
        known = list(cls.model_fields)
        for key in values.keys() - known:
            near = difflib.get_close_matches(key[:100], known, n=1, cutoff=0.85)
            if near and near[0] not in values:
                message = f"the key is not known; did you mean {near[0]}?"
                raise refuse("unknown_key", message, ", ".join(known), quoted(key))
        return values


class _OwnRow(_OutputRow):
    query_id: QueryId
    question: Annotated[_Question, _EMPTY] = ""
    answer: _Text | None
    error: Annotated[_ShortText, _EMPTY] = ""
    citations: _Citations = ()
    """Citations listed beside the answer, without the markers inside the answer."""
    contexts: _Contexts = ()
    """Contexts in the system's order, best first."""
    tokens_in: _Count | None = None
    tokens_out: _Count | None = None
    seconds: _Number | None = None
    verdict: Annotated[_Word, _EMPTY] = ""
    confidence: Annotated[_Number, Field(le=1)] | None = None


class RecordedOutput(_OwnRow):
    """Record of the user's system for one question; None or empty for missing values."""

    reference: str = ""
    """The reference answer of a ragas row."""
    line: int = 0


class _RagasRow(_OutputRow):
    query_id: QueryId | None = None
    user_input: _Question
    response: _Text | None = None
    retrieved_contexts: _Contexts = ()
    retrieved_context_ids: (
        Annotated[tuple[int | str, ...], Field(max_length=MAX_CONTEXTS)] | None
    ) = None
    reference: Annotated[_Text, _EMPTY] = ""

    @model_validator(mode="after")
    def _ids_pair_with_contexts(self) -> Self:
        ids, contexts = self.retrieved_context_ids or (), self.retrieved_contexts
        field = "retrieved_context_ids"
        if ids and contexts and len(ids) != len(contexts):
            accepted = f"one id for each context, not {len(ids)} ids for {len(contexts)}"
            raise refuse("wrong_length", "ids and contexts do not pair", accepted, field)
        if not all(is_doc_id(str(name)) for name in ids):
            raise refuse("bad_id", "this cannot be the id of a document", ACCEPTED_ID, field)
        return self

    def output(self, line: int) -> RecordedOutput:
        """Make the output; without a `query_id`, the id is a hash of the question."""
        contexts = self.retrieved_contexts
        if ids := tuple(map(str, self.retrieved_context_ids or ())):
            contexts = tuple(
                context.model_copy(update={"id": name, "doc_id": None})
                for context, name in zip(
                    contexts or (Context(text=""),) * len(ids), ids, strict=True
                )
            )
        return RecordedOutput(
            query_id=self.query_id or f"q-{digest(self.user_input, _CONTEXT_HASH_DIGITS)}",
            question=self.user_input,
            answer=self.response,
            contexts=contexts,
            reference=self.reference,
            line=line,
        )


ACCEPTED_LINE = (
    '{"query_id": "…", "answer": "…" or null, "contexts": […], "citations": […]}, '
    'or a ragas sample with "user_input"'
)


class Ranked(NamedTuple):
    """One place of a recorded ranking; a missing score is NaN."""

    id: str
    score: float
    text: str


def read_outputs(path: Path) -> list[RecordedOutput]:
    """Read recorded outputs, one JSON object a line, in the order of the file.

    Raises InputError `duplicate_id` or `empty_file`, or with the problems of `read_objects` and
    `check_row`.
    """
    problems, file = ProblemList(), str(path)
    outputs: dict[str, RecordedOutput] = {}
    for line, values in read_objects(path, problems, accepted=ACCEPTED_LINE):
        model: type[_OwnRow | _RagasRow] = _RagasRow if "user_input" in values else _OwnRow
        row = check_row(values, model, problems, file, line)
        if row is None:
            continue
        if isinstance(row, _RagasRow):
            output = row.output(line)
        else:
            output = RecordedOutput.model_construct(**dict(row), line=line)
        first = outputs.setdefault(output.query_id, output)
        if first is not output:
            message = f"this question has an output in line {first.line} already"
            found, accepted = quoted(output.query_id), "one output for each question"
            problem = Problem("duplicate_id", message, file, line, "query_id", found, accepted)
            problems.extend([problem])
    if not outputs and not problems.n_errors:
        accepted = f"one {ACCEPTED_LINE} a line"
        problems.add("empty_file", "the file holds no output", file=file, line=1, accepted=accepted)
    problems.raise_errors()
    return list(outputs.values())


def rankings(outputs: Sequence[RecordedOutput]) -> dict[str, list[Ranked]]:
    """Take the ranking of each question, best first as recorded, by query_id.

    The order is the order of the system; scores are only shown. A repeated passage keeps the first
    place.
    """
    found: dict[str, list[Ranked]] = {}
    for output in outputs:
        ranking: dict[tuple[str, str], Ranked] = {}
        for context in output.contexts:
            name, text, score = context.document, context.text, context.score
            ranked = Ranked(name, math.nan if score is None else score, text)
            ranking.setdefault((name, text), ranked)
        found[output.query_id] = list(ranking.values())
    return found


# ---- The loader.

BETWEEN_PASSAGES = "\n\n"
_PASSAGE_DIGITS = 12


class Recorded(PathLoader):
    """Corpus made of the contexts of recorded outputs, for users without a corpus."""

    loader: Literal["recorded"]
    path: str = Field(description="recorded outputs (JSONL)")
    chunker: Chunker = Chunker(kind="whole")
    mask_pii: bool = False

    has_whole_documents: ClassVar[bool] = False

    def _file(self, base: Path) -> Path:
        path = resolve(self.path, base)
        if not path.is_file():
            raise missing_input(self.path, "a .jsonl file of recorded outputs")
        return path

    def identity(self, base: Path) -> list[str]:
        """Return the path and the content hash of the file."""
        return [self.path, file_hash(self._file(base))]

    def read(self, base: Path) -> RawCorpus:
        """Make a document of each distinct context, with the context's id or content hash.

        Several texts under one id become passages of one document, and each passage is a section.
        """
        grouped: dict[str, dict[str, tuple[Context, int]]] = {}
        for output in read_outputs(self._file(base)):
            for context in output.contexts:
                passages = grouped.setdefault(context.document, {})
                passages.setdefault(context.text, (context, output.line))
        if not any(text for passages in grouped.values() for text in passages):
            message = "no output has a context with a text, so there is no document"
            raise empty_corpus(message, self.path, 'contexts: ["…"] in at least one output')
        taken = set(grouped)
        return RawCorpus(
            [
                _make_document(doc_id, list(passages.values()), self.path, taken)
                for doc_id, passages in sorted(grouped.items())
            ]
        )


def _make_document(
    doc_id: str, passages: list[tuple[Context, int]], file: str, taken: set[str]
) -> RawDocument:
    """Join the passages, sorted so that no order of questions or ranks changes the document."""
    # a person follows the address: it is the system's address, else the file of outputs
    fallback = f"{Path(file).name}#{urllib.parse.quote(doc_id, safe='')}"
    url = min((context.url for context, _ in passages if context.url), default=fallback)
    texts = sorted({context.text: context for context, _ in passages if context.text}.items())
    marks = tuple(_mark_passages(doc_id, texts, taken)) if len(texts) > 1 else ()
    text = BETWEEN_PASSAGES.join(text for text, _ in texts)
    return RawDocument(
        doc_id,
        "",
        text,
        url,
        "passages" if marks else "text",
        f"\n{text}".encode("utf-8", "surrogatepass"),  # an empty title, a line feed, and the text
        passages=marks,
        place=f"{file}:{min(line for _, line in passages)}",
    )


def _mark_passages(
    doc_id: str, texts: list[tuple[str, Context]], taken: set[str]
) -> Iterator[tuple[str, int, int]]:
    start = 0
    for text, context in texts:
        section = f"{doc_id}#passage-{digest(text, _PASSAGE_DIGITS)}"
        if context.snippet and context.snippet not in taken:
            section = context.snippet
        taken.add(section)
        yield section, start, start + len(text)
        start += len(text) + len(BETWEEN_PASSAGES)
