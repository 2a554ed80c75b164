"""Read the files of a gold set: questions, paraphrases, judgements and quoted evidence, as frames.

A row is a pydantic model; every fault of a row is a problem with file, line and field.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, Unpack

import pandas as pd
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    model_validator,
)

from rag_eval.core.config import AnswerOverride
from rag_eval.core.errors import Place, ProblemList, quoted, refuse, require
from rag_eval.core.fields import ACCEPTED_ID
from rag_eval.core.frames import QUERIES, make_frame, schema
from rag_eval.core.rows import SeenIds, check_row, read_lines, read_objects, read_rows
from rag_eval.core.types import Id
from rag_eval.gold.judgements import read_judgements

ORIGINAL = "original"
"""The paraphrase id of the question's own wording; no paraphrase may carry it."""
MAX_TEXT_CHARS = 20_000
MAX_ROWS: Final = {"questions": 1_000_000, "judgements": 10_000_000}
"""Most rows of a file, because a stranger's file could fill the memory."""

# ---- Frames

_QUERY = {"query_id": ("str", "the gold query")}
_PLACE = {
    "file": ("str", "the file it was read from"),
    "line": ("int", "line in that file, from 1"),
}
PARAPHRASES = schema(
    "paraphrases",
    **_QUERY,
    paraphrase_id=("str", "unique within the query; never `original`"),
    text=("str", "the other wording"),
    **_PLACE,
)
QUERY_PLACES = schema(
    "query_places",
    **_QUERY,
    has_flag=("bool", "whether the file says if the question is answerable"),
    **_PLACE,
)
JUDGEMENTS = schema(
    "judgements",
    **_QUERY,
    target=("str", "name of a document, or a section id, as written in the file"),
    gain=("int", "relevance grade; 0 = judged not relevant"),
    explicit=("bool", "from qrels; false where an answer row names its document or section"),
    **_PLACE,
)
ANCHORS = schema(
    "anchors",
    **_QUERY,
    doc=("str", "name of the document, as written in the file"),
    section=("str", "section id that narrows the search; empty where none was given"),
    quote=("str", "text of the document but for white space; empty where only offsets were given"),
    start=("int", "first character in the document's text; -1 where only a quote was given"),
    end=("int", "one past the last character; -1 where only a quote was given"),
    **_PLACE,
)
DECOYS = schema(
    "decoys",
    **_QUERY,
    target=("str", "name of a document, or a section id, that looks right and is not"),
    **_PLACE,
)


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows as named tuples."""
    return iter(frame.itertuples(index=False))


def report_row(
    problems: ProblemList, row: Any, code: str, message: str, **more: Unpack[Place]
) -> None:
    """Add a problem at the file and line of a row."""
    more["line"] = int(row.line)
    problems.add(code, message, row.file, **more)


# ---- Rows

_NOT_TEXT = re.compile(r"[\x00\ud800-\udfff]")
_IS_TEXT = require(
    lambda text: not _NOT_TEXT.search(text),
    "bad_text",
    "the text holds a character that no text file can keep",
    "Unicode text without NUL and lone surrogates",
)
_IS_OTHER = require(
    lambda text: text != ORIGINAL,
    "reserved_id",
    "this id is reserved for the question's own wording",
    f"any id but {ORIGINAL}",
)
_HOLDS_WORDS = require(
    str.strip, "empty_anchor", "the quote is empty", "verbatim text of the document"
)
GoldText = Annotated[str, Field(max_length=MAX_TEXT_CHARS), _IS_TEXT]
Quote = Annotated[GoldText, _HOLDS_WORDS]


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class QueryRow(_Row):
    """A question. Keys of `AnswerOverride` are read separately; other keys are ignored."""

    query_id: Id = Field(validation_alias=AliasChoices("query_id", "_id"))
    text: GoldText
    answerable: StrictBool = True
    tags: tuple[GoldText, ...] = ()


class ParaphraseRow(_Row):
    """Another wording of a question."""

    query_id: Id
    paraphrase_id: Annotated[Id, _IS_OTHER]
    text: GoldText


class Anchor(_Row):
    """A quote from the document."""

    quote: Quote


class Span(_Row):
    """A range of characters of the document."""

    start: StrictInt
    end: StrictInt
    unit: Literal["char"] = "char"

    @model_validator(mode="after")
    def _is_range(self) -> Self:
        if not 0 <= self.start < self.end < 2**62:
            accepted = "whole numbers with 0 <= start < end"
            raise refuse("bad_offsets", "the offsets name no text", accepted, "start")
        return self


class SpanWithText(Span):
    """A range of characters of the document with its text, in the form of XQuAD."""

    text: Quote


class Decoy(_Row):
    """A document or section that looks relevant and is not."""

    doc_id: Id | None = None
    section_id: Id | None = None

    @model_validator(mode="after")
    def _names_a_target(self) -> Self:
        if not (self.section_id or self.doc_id):
            accepted = '{"doc_id": ...} or {"section_id": ...}'
            raise refuse("missing_key", "a decoy names a document or a section", accepted)
        return self


class AnswerRow(_Row):
    """Places of an answer: `anchors` in our form, `answers` of XQuAD, `spans` of SciFact."""

    query_id: Id
    doc_id: Id | None = None
    section_id: Id | None = None
    anchors: tuple[Anchor, ...] = ()
    answers: tuple[SpanWithText, ...] = ()
    spans: tuple[Span, ...] = ()
    decoy: Decoy | None = None

    @model_validator(mode="after")
    def _names_a_document(self) -> Self:
        is_decoy_alone = self.model_fields_set <= {"query_id", "decoy"} and self.decoy
        if self.doc_id is None and not is_decoy_alone:
            raise refuse("missing_key", "doc_id is missing", ACCEPTED_ID, "doc_id")
        return self

    def places(self) -> Iterator[tuple[str, int, int]]:
        """Yield (quote, start, end) of each place; an empty quote or -1 for a missing value."""
        yield from ((anchor.quote, -1, -1) for anchor in self.anchors)
        yield from ((answer.text, answer.start, answer.end) for answer in self.answers)
        yield from (("", span.start, span.end) for span in self.spans)


# ---- Files


class Questions(NamedTuple):
    """Questions of a file: `queries` (QUERIES) and `places` (QUERY_PLACES), with equal row order.

    `group_id` is still the query's own id.
    """

    queries: pd.DataFrame
    places: pd.DataFrame
    overrides: Mapping[str, AnswerOverride]
    """Answer settings that a question changes, by query_id."""
    refused: frozenset[str]
    """Ids of faulty rows. Rows of other files with these ids are not reported again."""


class GoldEvidence(NamedTuple):
    """Content of answer files. All `judgements` have grade 1 and are not explicit."""

    anchors: pd.DataFrame
    decoys: pd.DataFrame
    judgements: pd.DataFrame

    @classmethod
    def read(cls, paths: Sequence[Path], problems: ProblemList) -> Self:
        """Read the evidence of files whose rows are `AnswerRow`; an empty file has none."""
        anchors: list[tuple[Any, ...]] = []
        decoys: list[tuple[Any, ...]] = []
        judgements: list[tuple[Any, ...]] = []
        for path in paths:
            for line, row in read_rows(path, AnswerRow, problems):
                place, query_id, section = (str(path), line), row.query_id, row.section_id or ""
                if row.decoy is not None:
                    decoys.append((query_id, row.decoy.section_id or row.decoy.doc_id, *place))
                if row.doc_id is not None:
                    judgements.append((query_id, section or row.doc_id, 1, False, *place))
                    anchors += [(query_id, row.doc_id, section, *at, *place) for at in row.places()]
        return cls(
            make_frame(ANCHORS, anchors),
            make_frame(DECOYS, decoys),
            make_frame(JUDGEMENTS, judgements),
        )


def _read_topics(path: Path, problems: ProblemList) -> Iterator[tuple[int, dict[str, str]]]:
    """Read TREC topics, `id<TAB>text`, as the values of `QueryRow`."""
    for line, text in read_lines(path, problems):
        query_id, tab, wording = text.partition("\t")
        if tab and "\t" not in wording:
            yield line, {"query_id": query_id.strip(), "text": wording.strip()}
        else:
            more: Place = {"line": line, "found": quoted(text), "accepted": "id<TAB>text"}
            problems.add("bad_columns", "a topic has two columns", path, **more)


def _report_length(path: Path, n_rows: int, what: str, problems: ProblemList) -> None:
    """Refuse a file with too many rows, of which one more than the limit was read."""
    if n_rows > MAX_ROWS[what]:
        accepted = f"up to {MAX_ROWS[what]:,} {what}"
        problems.add("too_many_rows", "the file has too many rows", path, accepted=accepted)


def read_queries(path: Path, problems: ProblemList, *, topics: bool = False) -> Questions:
    """Read the questions of a .jsonl file: rows of `QueryRow` with the keys of `AnswerOverride`.

    With `topics`, the file is a table of TREC topics. A question without `answerable` counts as
    answerable; its row of `places` marks the missing flag. A null key overrides nothing. Faults:
    those of `read_rows`, `bad_columns`, `duplicate_id`, `empty_file` and `too_many_rows`.
    """
    queries: list[tuple[Any, ...]] = []
    places: list[tuple[Any, ...]] = []
    overrides: dict[str, AnswerOverride] = {}
    refused: set[str] = set()
    ids, file, before = SeenIds(problems), str(path), problems.n_errors
    for line, values in (_read_topics if topics else read_objects)(path, problems):
        if len(queries) > MAX_ROWS["questions"]:
            break
        row, override = check_row(values, QueryRow, problems, file, line), None
        names = AnswerOverride.model_fields
        if changes := {key: values[key] for key in names if values.get(key) is not None}:
            override = check_row(changes, AnswerOverride, problems, file, line, strict=True)
        if row is None:
            refused.add(str(values.get("query_id", values.get("_id"))))
        elif ids.add(query_id := row.query_id, file, line, "query_id"):
            queries.append((query_id, row.text, row.answerable, list(row.tags), query_id))
            places.append((query_id, "answerable" in row.model_fields_set, file, line))
            if override is not None:
                overrides[query_id] = override
    _report_length(path, len(queries), "questions", problems)
    if not queries and problems.n_errors == before:
        accepted = 'one object a line: {"query_id": ..., "text": ..., "answerable": true}'
        problems.add("empty_file", "the file holds no question", path, line=1, accepted=accepted)
    frames = (make_frame(QUERIES, queries), make_frame(QUERY_PLACES, places))
    return Questions(*frames, overrides, frozenset(refused))


def read_paraphrases(paths: Sequence[Path], problems: ProblemList) -> pd.DataFrame:
    """Read paraphrases (PARAPHRASES). Faults: those of `read_rows` and `duplicate_id`."""
    ids = SeenIds(problems)
    rows = [
        (row.query_id, row.paraphrase_id, row.text, str(path), line)
        for path in paths
        for line, row in read_rows(path, ParaphraseRow, problems)
        if ids.add((row.query_id, row.paraphrase_id), str(path), line, "paraphrase_id")
    ]
    return make_frame(PARAPHRASES, rows)


def read_qrels(path: Path, problems: ProblemList) -> pd.DataFrame:
    """Read judgements (JUDGEMENTS); `read_judgements` names the faults, and `too_many_rows`."""
    file, most = str(path), MAX_ROWS["judgements"]
    judged = itertools.islice(read_judgements(path, problems), most + 1)
    rows = [(row.query_id, row.target, row.gain, True, file, row.line) for row in judged]
    _report_length(path, len(rows), "judgements", problems)
    return make_frame(JUDGEMENTS, rows)
