"""Recorded outputs of the user's own system (JSONL), and loader `recorded` of their contexts.

A row has the layout of this package or the layout of a ragas sample. The keys of the row tell the
layout. Traces of other tools become such rows (`foreign`).
`rag_eval.answers.recorded` makes answers of the rows.
"""

import dataclasses
import difflib
import re
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)

from rag_eval.core.errors import ProblemList, quoted, refuse
from rag_eval.core.loader import Chunker, PathLoader, RawCorpus, RawDocument
from rag_eval.core.rows import SeenIds, check_row, read_objects, read_values
from rag_eval.core.types import PAYLOAD_FIELDS, Id, PlainText, StatedLambda
from rag_eval.corpus.loaders.foreign import (
    FIELDS,
    MAX_BYTES,
    Kind,
    LeftOut,
    Placed,
    find_kind,
    read_spans,
)
from rag_eval.corpus.loading import Page, empty_corpus, missing_input, resolve
from rag_eval.storage.hashing import digest, file_hash

# ---- Citation payloads as a user's system states them

BESIDE = ("number", "quote", "segment", "cited_before_answer")
"""Further keys of a citation; `number` is the number of a context, from 1."""
MAX_QUOTE_CHARS = 1_000_000
MAX_SHORT_CHARS = 4000
MAX_ITEMS, MAX_DEPTH = 16, 2
MAX_NUMBER = 2**53

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def _stated_payload(values: Mapping[str, object]) -> dict[str, JsonValue]:
    """Take the values of a payload under the known keys.

    NUL and lone surrogates become U+FFFD. Long texts and lists are cut. Numbers beyond `MAX_NUMBER`
    and deeply nested values become a short text.
    """
    return {
        name: _bound(values[name], MAX_QUOTE_CHARS if name == "quote" else MAX_SHORT_CHARS)
        for name in (*PAYLOAD_FIELDS, *BESIDE)
        if name in values
    }


def _bound(value: object, limit: int = MAX_SHORT_CHARS, depth: int = MAX_DEPTH) -> JsonValue:
    if isinstance(value, str):
        return _make_storable(value[:limit])
    if isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:  # NaN too
        return "a number out of range"
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping) and depth:
        items = list(value.items())[:MAX_ITEMS]
        names = (_make_storable(str(name)[:limit]) for name, _ in items)
        return dict(zip(names, (_bound(it, depth=depth - 1) for _, it in items), strict=True))
    if isinstance(value, list) and depth:
        return [_bound(item, depth=depth - 1) for item in value[:MAX_ITEMS]]
    return "..."


def _make_storable(text: str) -> str:
    """Replace NUL and lone surrogates, as a cut stream leaves them, by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


# ---- One output

MAX_CONTEXTS = MAX_CITATIONS = 1000
MAX_TEXT_CHARS = 1_000_000
"""Longest context or answer."""
MAX_QUESTION_CHARS = 20_000
MAX_SHORT_ROW_CHARS = 2000
"""Longest title, address, error or token of a citation."""
_CONTEXT_HASH_DIGITS = 16

_Text = Annotated[PlainText, Field(max_length=MAX_TEXT_CHARS), AfterValidator(_make_storable)]
_Question = Annotated[_Text, Field(max_length=MAX_QUESTION_CHARS)]
_ShortText = Annotated[_Text, Field(max_length=MAX_SHORT_ROW_CHARS)]
_Count = Annotated[int, Field(strict=True, ge=0, le=MAX_NUMBER)]
_Number = Annotated[float, Field(strict=True, ge=0, le=MAX_NUMBER, allow_inf_nan=False)]
_EMPTY = BeforeValidator(lambda value: "" if value is None else value)
_NO_ITEMS = BeforeValidator(lambda value: () if value is None else value)


@dataclasses.dataclass(frozen=True, slots=True)
class Citation:
    """One entry of `citations`: the number of a context (from 1), a token or id, or a payload."""

    number: int | None = None
    token: str = ""
    payload: Mapping[str, JsonValue] | None = None


def _check_segment(value: object, field: str = "") -> object:
    if type(value) is int and -1 <= value <= MAX_NUMBER:
        return value
    accepted = "the sentence's number from 0, or -1 for the whole answer"
    raise refuse("bad_segment", "this is no segment of the answer", accepted, field)


def _read_citation(value: object) -> Citation:
    if isinstance(value, dict):
        if value.get("segment") is not None:
            _check_segment(value["segment"], "segment")
        return Citation(payload=_stated_payload(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return Citation(number=max(min(value, MAX_CONTEXTS + 1), 0))
    if isinstance(value, str) and 0 < len(value.strip()) <= MAX_SHORT_ROW_CHARS:
        return Citation(token=_make_storable(value.strip()))
    accepted = 'a citation payload, "<doc>:<line>[-<line>]", an id, or a context\'s number from 1'
    raise refuse("wrong_type", "this is no citation", accepted)


def _context_id(text: str) -> str:
    """Name a passage by a hash of the text, so that equal texts are one document."""
    return f"context-{digest(text, _CONTEXT_HASH_DIGITS)}"


class Context(BaseModel):
    """One passage that the system put before its model; only its text may be written too.

    Only one of `text`, `id` and `doc_id` is needed.
    """

    model_config = ConfigDict(frozen=True)

    id: Id | None = None
    doc_id: Id | None = None
    text: Annotated[_Text, _EMPTY] = ""
    title: Annotated[_ShortText, _EMPTY] = ""
    score: Annotated[float, Field(strict=True, allow_inf_nan=False)] | None = None
    url: Annotated[_ShortText, _EMPTY] = ""
    page: Page | None = None

    @model_validator(mode="before")
    @classmethod
    def _text_is_a_context(cls, value: object) -> object:
        if isinstance(value, dict) and value.keys().isdisjoint({"id", "doc_id", "text"}):
            accepted = 'a text, or {"id" or "doc_id": ..., "text": ...}'
            raise refuse("missing_key", "a context has neither text nor id", accepted)
        return {"text": value} if isinstance(value, str) else value

    @property
    def document(self) -> str:
        """`doc_id`, else `id`, else a name made of the text's hash."""
        return self.doc_id or self.id or _context_id(self.text)

    @property
    def snippet(self) -> str:
        """The system's name of the passage: `id`, if the row also has `doc_id`."""
        return self.id or "" if self.doc_id is not None else ""


_RAGAS_KEYS = ("user_input", "response", "retrieved_contexts", "retrieved_context_ids")


def _complete_ragas(values: dict[str, Any]) -> dict[str, Any]:
    """Pair the ids of a ragas sample with the contexts."""
    row = {"response": None, **values}
    if ids := values.get("retrieved_context_ids"):
        texts = values.get("retrieved_contexts") or [""] * len(ids)
        if not isinstance(ids, list) or not isinstance(texts, list) or len(ids) != len(texts):
            message, field = "ids and contexts do not pair", "retrieved_context_ids"
            raise refuse("wrong_length", message, "a list with one id for each context", field)
        pairs = zip(ids, texts, strict=True)
        row["retrieved_contexts"] = [{"id": name, "text": text} for name, text in pairs]
    return row


class RecordedOutput(BaseModel):
    """Record of the user's system for one question; None or empty for missing values."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    query_id: Id
    question: Annotated[_Question, _EMPTY] = Field(
        default="", validation_alias=AliasChoices("question", "user_input")
    )
    answer: _Text | None = Field(validation_alias=AliasChoices("answer", "response"))
    error: Annotated[_ShortText, _EMPTY] = ""
    fix: Annotated[_ShortText, _EMPTY] = ""
    """With `error` and without `answer`: the contract's own way to refuse."""
    citations: Annotated[
        tuple[Annotated[Citation, BeforeValidator(_read_citation)], ...],
        Field(max_length=MAX_CITATIONS),
        _NO_ITEMS,
    ] = ()
    """Citations listed beside the answer, without the markers inside the answer."""
    segments: tuple[Annotated[int, BeforeValidator(_check_segment)], ...] | None = None
    """The segment of each citation; the answer then has no markers."""
    contexts: Annotated[tuple[Context, ...], Field(max_length=MAX_CONTEXTS), _NO_ITEMS] = Field(
        default=(), validation_alias=AliasChoices("contexts", "retrieved_contexts")
    )
    """Contexts in the system's order, best first."""
    tokens_in: _Count | None = None
    tokens_out: _Count | None = None
    seconds: _Number | None = None
    verdict: Annotated[_Text, Field(max_length=64), _EMPTY] = ""
    confidence: Annotated[_Number, Field(le=1)] | None = None
    delta_s: Annotated[_Number, Field(le=1)] | None = Field(
        default=None, validation_alias=AliasChoices("ΔS", "deltaS")
    )
    lambda_state: StatedLambda | None = Field(
        default=None, validation_alias=AliasChoices("λ", "lambda")
    )
    reference: Annotated[_Text, _EMPTY] = ""
    """The reference answer of a ragas row."""
    at: Annotated[_ShortText, _EMPTY] = ""
    """Time of the request (ISO 8601)."""
    file: str = ""
    line: int = 0
    is_trace: bool = False
    """Whether the output is read from the spans of a trace, which `query_id` names."""

    @model_validator(mode="before")
    @classmethod
    def _keys_are_spelt(cls, values: dict[str, object]) -> dict[str, object]:
        """Refuse a misspelt key, because an answer without `contexts` has no evidence."""
        keys = [*cls.model_fields, *_RAGAS_KEYS]
        for key in values.keys() - keys:
            near = difflib.get_close_matches(key[:100], keys, n=1, cutoff=0.85)
            if near and near[0] not in values:
                message = f"the key is not known; did you mean {near[0]}?"
                raise refuse("unknown_key", message, ", ".join(keys), quoted(key))
        if values.keys() >= {"error", "fix"}:
            values = {"answer": None, **values}
        return _complete_ragas(values) if "user_input" in values else values

    @model_validator(mode="after")
    def _segments_pair(self) -> Self:
        if self.segments is not None and len(self.segments) != len(self.citations):
            message = "citations and segments do not pair"
            raise refuse("wrong_length", message, "one segment for each citation", "segments")
        return self


ACCEPTED_LINE = (
    '{"query_id": "…", "answer": "…" or null, "contexts": […], "citations": […]}, '
    '{"query_id": "…", "error": "…", "fix": "…"}, '
    'or a ragas sample with "user_input"'
)


def _read_file(
    paths: Sequence[Path], kind: Kind, problems: ProblemList, left_out: LeftOut
) -> Iterator[Placed]:
    path = paths[0]
    if kind == "spans":
        yield from read_spans(paths, problems, left_out)
    elif kind == "ragas":
        yield from ((path, *row) for row in read_values(path, problems, MAX_BYTES))
    else:
        yield from ((path, *row) for row in read_objects(path, problems, ACCEPTED_LINE))


def read_outputs(path: Path, warnings: ProblemList, *more: Path) -> list[RecordedOutput]:
    """Read recorded outputs in the order of the file: JSON lines, or spans of another tool.

    `more` are files of spans too, over which traces may be cut. A trace with a fault is left
    out with a warning, unless every trace has one. An output without `query_id` is named by the
    hash of its question, and by a number where the question is asked again. Raises InputError
    `duplicate_id` or `empty_file`, or with the problems of `read_objects`, `read_spans` and
    `check_row`.
    """
    problems, left_out, kind = ProblemList(), LeftOut(), find_kind(path)
    outputs: list[RecordedOutput] = []
    ids, asked = SeenIds(problems), Counter[str]()
    for place, line, values in _read_file([path, *more], kind, problems, left_out):
        file = str(place)
        question = values.get("user_input", values.get("question"))
        if question and "query_id" not in values:
            name = f"q-{digest(question, _CONTEXT_HASH_DIGITS)}"
            asked[name] += 1
            values["query_id"] = name if asked[name] == 1 else f"{name}-{asked[name]}"
        faults = ProblemList()
        row = check_row(values | {"file": file, "line": line}, RecordedOutput, faults, file, line)
        if kind == "spans":
            left_out.add(values["query_id"], faults.listed())
        else:
            problems.extend(faults.listed())
        if row is not None and ids.add(row.query_id, file, line, "query_id"):
            outputs.append(row)
    left_out.report(len(outputs), problems, problems)
    if kind == "spans" and outputs and not any(output.contexts for output in outputs):
        message = "no retrieval span of the file records a document"
        problems.add("no_retrieval", message, path, accepted=f"documents at {FIELDS['passages']}")
    if not outputs and not problems.n_errors:
        accepted = f"one {ACCEPTED_LINE} a line"
        problems.add("empty_file", "the file holds no output", path, line=1, accepted=accepted)
    problems.raise_errors()
    warnings.extend(problems.listed())
    return outputs


# ---- The loader

_BETWEEN_PASSAGES = "\n\n"
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
        unread = ProblemList()  # the gold set reads the same file and keeps its warnings
        for output in read_outputs(self._file(base), unread):
            for context in output.contexts:
                passages = grouped.setdefault(context.document, {})
                passages.setdefault(context.text, (context, output.line))
        if not any(text for passages in grouped.values() for text in passages):
            message = "no output has a context with a text, so there is no document"
            raise empty_corpus(message, self.path, 'contexts: ["…"] in at least one output')
        taken = set(grouped)
        return RawCorpus(
            [self._join(name, passages, taken) for name, passages in sorted(grouped.items())]
        )

    def _join(
        self, doc_id: str, passages: Mapping[str, tuple[Context, int]], taken: set[str]
    ) -> RawDocument:
        """Join passages, sorted so that no order of questions or ranks changes the document."""
        contexts = [context for context, _ in passages.values()]
        texts = sorted(text for text in passages if text)
        sections: list[tuple[str, int, int]] = []
        start = 0
        for text in texts if len(texts) > 1 else ():
            name = passages[text][0].snippet
            if not name or name in taken:
                name = f"{doc_id}#passage-{digest(text, _PASSAGE_DIGITS)}"
            taken.add(name)
            sections.append((name, start, start + len(text)))
            start += len(text) + len(_BETWEEN_PASSAGES)
        # a person follows the address: it is the system's address, else the file of outputs
        file = f"{Path(self.path).name}#{urllib.parse.quote(doc_id, safe='')}"
        title = min((context.title for context in contexts if context.title), default="")
        text = _BETWEEN_PASSAGES.join(texts)
        return RawDocument(
            doc_id,
            title,
            text,
            min((context.url for context in contexts if context.url), default=file),
            "passages" if sections else "text",
            f"{title}\n{text}".encode("utf-8", "surrogatepass"),
            passages=tuple(sections),
            place=f"{self.path}:{min(line for _, line in passages.values())}",
            page="" if sections or contexts[0].page is None else str(contexts[0].page),
        )
