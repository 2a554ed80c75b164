"""Read the files of a gold set: questions, paraphrases, judgements and quoted evidence, as frames.

A row is a pydantic model; every fault of a row is a problem with file, line and field.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    model_validator,
)

from rag_eval.core.config import AnswerOverride
from rag_eval.core.errors import ProblemList, quoted
from rag_eval.core.frames import QUERIES, make_frame, schema
from rag_eval.core.rows import (
    Fault,
    check_row,
    read_lines,
    read_objects,
    read_rows,
    refuse,
)
from rag_eval.corpus.source import QueryId

ORIGINAL = "original"
"""The paraphrase id of the question's own wording; no paraphrase may carry it."""
MAX_NAME_CHARS = 1_000
MAX_TEXT_CHARS = 20_000
MAX_GRADE = 1_000
ACCEPTED_NAME = (
    f"1 to {MAX_NAME_CHARS} characters, no control characters, no .. between slashes, "
    "no leading or trailing white space"
)
ACCEPTED_COLUMNS = (
    "query-id<TAB>corpus-id<TAB>score below that header, "
    "or four TREC columns (query 0 document grade) without header"
)

# ---- Frames.

_PLACE: dict[str, tuple[str, str]] = {
    "file": ("str", "the file it was read from"),
    "line": ("int", "line in that file, from 1"),
}

PARAPHRASES = schema(
    "paraphrases",
    query_id=("str", "the gold query"),
    paraphrase_id=("str", "unique within the query; never `original`"),
    text=("str", "the other wording"),
    source=("str", "who or what made it; may be empty"),
    **_PLACE,
)
QUERY_PLACES = schema(
    "query_places",
    query_id=("str", "the gold query, in the order of the queries frame"),
    has_flag=("bool", "whether the file says if the question is answerable"),
    **_PLACE,
)
JUDGEMENTS = schema(
    "judgements",
    query_id=("str", "the gold query"),
    target=("str", "name of a document, or a section id, as written in the file"),
    gain=("int", "relevance grade; 0 = judged not relevant"),
    explicit=("bool", "from qrels; false where an answer row names its document or section"),
    **_PLACE,
)
ANCHORS = schema(
    "anchors",
    query_id=("str", "the gold query"),
    doc=("str", "name of the document, as written in the file"),
    section=("str", "section id that narrows the search; empty where none was given"),
    quote=("str", "text of the document but for white space; empty where only offsets were given"),
    start=("int", "first character in the document's text; -1 where only a quote was given"),
    end=("int", "one past the last character; -1 where only a quote was given"),
    label=("str", "SUPPORT, CONTRADICT or another label of the evidence; may be empty"),
    **_PLACE,
)
DECOYS = schema(
    "decoys",
    query_id=("str", "the gold query"),
    target=("str", "name of a document, or a section id, that looks right and is not"),
    **_PLACE,
)
REFERENCE_ANSWERS = schema(
    "reference_answers", query_id=("str", "the gold query"), text=("str", "an accepted answer")
)


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows as named tuples."""
    return iter(frame.itertuples(index=False))


def report_row(problems: ProblemList, row: Any, code: str, message: str, **more: Any) -> None:
    """Add a problem at the file and line of a row; `more` are further parameters of a problem."""
    problems.add(code, message, file=row.file, line=int(row.line), **more)


# ---- Fields and rows.

_NAME_FAULT = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ud800-\udfff]"
    r"|(?:^|[/\\])\.\.(?:[/\\#]|$)|^\s|\s$"
)
_NOT_TEXT = re.compile(r"[\x00\ud800-\udfff]")
_WHOLE = re.compile(r"[+-]?\d{1,12}")


def is_name(text: str) -> bool:
    """Tell whether a text may name a document or section; `/` is allowed, `..` is refused."""
    return 0 < len(text) <= MAX_NAME_CHARS and not _NAME_FAULT.search(text)


def _check_name(value: object) -> object:
    if isinstance(value, str) and not is_name(value):
        raise refuse("bad_id", "this cannot name a document or section", ACCEPTED_NAME)
    return value


def _check_text(value: str) -> str:
    if len(value) > MAX_TEXT_CHARS:
        accepted = f"at most {MAX_TEXT_CHARS} characters, not {len(value)}"
        raise refuse("text_too_long", "the text is too long", accepted)
    if _NOT_TEXT.search(value):
        message = "the text holds a character that no text file can keep"
        raise refuse("bad_text", message, "Unicode text without NUL and lone surrogates")
    return value


def _check_paraphrase_id(value: str) -> str:
    if value == ORIGINAL:
        message = "this id is reserved for the question's own wording"
        raise refuse("reserved_id", message, f"any id but {ORIGINAL}")
    return value


def _check_quote(value: str) -> str:
    if not value.strip():
        raise refuse("empty_anchor", "the quote is empty", "verbatim text of the document")
    return value


def _read_grade(value: str) -> int:
    if not _WHOLE.fullmatch(value) or abs(int(value)) > MAX_GRADE:
        accepted = f"a whole number from 0 to {MAX_GRADE}"
        raise refuse("bad_grade", "a relevance grade is a whole number", accepted)
    return int(value)


TargetName = Annotated[str, BeforeValidator(_check_name)]
GoldText = Annotated[str, AfterValidator(_check_text)]
Quote = Annotated[GoldText, AfterValidator(_check_quote)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class QueryRow(_Row):
    """A question. Keys of `AnswerOverride` are read separately; other keys are ignored."""

    query_id: QueryId = Field(validation_alias=AliasChoices("query_id", "_id"))
    text: GoldText
    answerable: StrictBool = True
    tags: tuple[GoldText, ...] = ()


class ParaphraseRow(_Row):
    """Another wording of a question."""

    query_id: QueryId
    paraphrase_id: Annotated[QueryId, AfterValidator(_check_paraphrase_id)]
    text: GoldText
    source: GoldText | None = None


class JudgementRow(_Row):
    """A relevance grade."""

    query_id: QueryId = Field(alias="query-id")
    target: TargetName = Field(alias="corpus-id")
    gain: Annotated[Any, AfterValidator(_read_grade)] = Field(alias="score")


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

    doc_id: TargetName | None = None
    section_id: TargetName | None = None

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if self.section_id is None and self.doc_id is None:
            accepted = '{"doc_id": ...} or {"section_id": ...}'
            raise refuse("missing_key", "a decoy names a document or a section", accepted)
        return self


class AnswerRow(_Row):
    """Places of an answer: `anchors` in our form, `answers` of XQuAD, `spans` of SciFact."""

    query_id: QueryId
    doc_id: TargetName | None = None
    section_id: TargetName | None = None
    answer: GoldText | None = None
    label: GoldText | None = None
    anchors: tuple[Anchor, ...] = ()
    answers: tuple[SpanWithText, ...] = ()
    spans: tuple[Span, ...] = ()
    decoy: Decoy | None = None

    @model_validator(mode="after")
    def _names_a_document(self) -> Self:
        located = {"anchors", "answers", "spans", "section_id", "doc_id"} & self.model_fields_set
        if self.doc_id is None and (located or "decoy" not in self.model_fields_set):
            raise refuse("missing_key", "doc_id is missing", ACCEPTED_NAME, "doc_id")
        return self

    def places(self) -> Iterator[tuple[str, int, int]]:
        """Yield (quote, start, end) of each place; an empty quote or -1 for a missing value."""
        yield from ((anchor.quote, -1, -1) for anchor in self.anchors)
        yield from ((answer.text, answer.start, answer.end) for answer in self.answers)
        yield from (("", span.start, span.end) for span in self.spans)


# ---- Questions and paraphrases.


@dataclasses.dataclass(frozen=True, slots=True)
class Questions:
    """Questions of a file: `queries` (QUERIES) and `places` (QUERY_PLACES), with equal row order.

    `group_id` is still the query's own id. `overrides` holds the answer settings that a question
    changes, by query_id.
    """

    queries: pd.DataFrame
    places: pd.DataFrame
    overrides: Mapping[str, AnswerOverride] = dataclasses.field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    """Ids of faulty rows. Rows of other files with these ids are not reported again."""


def _read_override(
    values: Mapping[str, Any], file: str, line: int, problems: ProblemList
) -> AnswerOverride | None:
    """Read the answer settings that a row changes; a null key changes nothing."""
    given = {key: values[key] for key in AnswerOverride.model_fields if values.get(key) is not None}
    if not given:
        return None
    return check_row(given, AnswerOverride, problems, file, line, strict=True)


class _FirstUses:
    """Ids of a file with the line of their first use. A second use is reported as a problem."""

    def __init__(self, path: Path, problems: ProblemList) -> None:
        self._file, self._problems = str(path), problems
        self._lines: dict[tuple[str, ...], int] = {}

    def add(self, line: int, field: str, *ids: str, code: str = "duplicate_id") -> bool:
        """Remember an id, and return whether it is new."""
        first = self._lines.setdefault(ids, line)
        if first != line:
            found, message = quoted(", ".join(ids)), f"this was used in line {first} already"
            accepted = "each pair once" if len(ids) > 1 else "an id of its own for each row"
            self._problems.add(
                code,
                message,
                file=self._file,
                line=line,
                field=field,
                found=found,
                accepted=accepted,
            )
        return first == line


def _report_empty(path: Path, problems: ProblemList, what: str, accepted: str) -> None:
    problems.add(
        "empty_file", f"the file holds no {what}", file=str(path), line=1, accepted=accepted
    )


def _read_topics(path: Path, problems: ProblemList) -> Iterator[tuple[int, dict[str, str]]]:
    """Read TREC topics, `id<TAB>text`, as the values of `QueryRow`."""
    for line, text in read_lines(path, problems):
        query_id, tab, wording = text.partition("\t")
        if tab and "\t" not in wording:
            yield line, {"query_id": query_id.strip(), "text": wording.strip()}
        else:
            fault = Fault("bad_columns", "a topic has two columns", quoted(text))
            fault.report(problems, path, line, "id<TAB>text")


def read_queries(path: Path, problems: ProblemList, *, topics: bool = False) -> Questions:
    """Read the questions of a .jsonl file: rows of `QueryRow` with the keys of `AnswerOverride`.

    With `topics`, the file is a table of TREC topics. A question without `answerable` counts as
    answerable; its row of `places` marks the missing flag. Faults: those of `read_rows`,
    `bad_columns`, `duplicate_id` and `empty_file`.
    """
    queries: list[tuple[Any, ...]] = []
    places: list[tuple[Any, ...]] = []
    overrides: dict[str, AnswerOverride] = {}
    refused: set[str] = set()
    seen, file, before = _FirstUses(path, problems), str(path), problems.n_errors
    for line, values in (_read_topics if topics else read_objects)(path, problems):
        row = check_row(values, QueryRow, problems, file, line)
        override = _read_override(values, file, line, problems)
        if row is None:
            refused.add(str(values.get("query_id", values.get("_id"))))
        elif seen.add(line, "query_id", row.query_id):
            query_id = row.query_id
            queries.append((query_id, row.text, row.answerable, list(row.tags), query_id))
            places.append((query_id, "answerable" in row.model_fields_set, file, line))
            if override is not None:
                overrides[query_id] = override
    if not queries and problems.n_errors == before:
        accepted = 'one object a line: {"query_id": ..., "text": ..., "answerable": true}'
        _report_empty(path, problems, "question", "id<TAB>text" if topics else accepted)
    frames = (make_frame(QUERIES, queries), make_frame(QUERY_PLACES, places))
    return Questions(*frames, overrides, frozenset(refused))


def read_paraphrases(path: Path, problems: ProblemList) -> pd.DataFrame:
    """Read paraphrases (PARAPHRASES). Faults: those of `read_rows` and `duplicate_id`."""
    seen = _FirstUses(path, problems)
    return make_frame(
        PARAPHRASES,
        [
            (row.query_id, row.paraphrase_id, row.text, row.source or "", str(path), line)
            for line, row in read_rows(path, ParaphraseRow, problems)
            if seen.add(line, "paraphrase_id", row.query_id, row.paraphrase_id)
        ],
    )


# ---- Judgements and evidence.

_HEADERS = ({"query-id", "query_id"}, {"corpus-id", "corpus_id", "doc_id", "doc-id"}, {"score"})
_BEIR, _TREC = 3, 4


def _count_columns(text: str) -> tuple[int, str, str]:
    """Return the number of columns by the first line, or 0 with a problem code and a sentence."""
    parts = [part.strip().lower() for part in text.split("\t")]
    if len(parts) == _BEIR:
        if all(name in names for name, names in zip(parts, _HEADERS, strict=True)):
            return _BEIR, "", ""
        if _WHOLE.fullmatch(parts[2]):
            return 0, "missing_header", "the header is missing"
        return 0, "bad_header", "the header names other columns"
    if len(text.split()) == _TREC:
        return _TREC, "", ""
    return 0, "bad_columns", "this is neither a BEIR nor a TREC table of judgements"


def read_qrels(path: Path, problems: ProblemList) -> pd.DataFrame:
    """Read judgements (JUDGEMENTS): three columns with header (BEIR), or four without (TREC).

    A negative grade of a TREC file (spam, junk) becomes 0, as trec_eval counts it; in a BEIR table
    it is an error. Faults: those of `read_lines`, `bad_columns`, `bad_header`, `missing_header`,
    `bad_id`, `bad_grade`, `duplicate_judgement` and `empty_file`.
    """
    rows: list[tuple[Any, ...]] = []
    seen, file, before, layout = _FirstUses(path, problems), str(path), problems.n_errors, 0

    def report(line: int, code: str, message: str, text: str) -> None:
        found = quoted(text)
        problems.add(code, message, file=file, line=line, found=found, accepted=ACCEPTED_COLUMNS)

    for line, text in read_lines(path, problems):
        if not layout:
            layout, code, message = _count_columns(text)
            if not layout:
                report(line, code, message, text)
                break
            if layout == _BEIR:
                continue
        parts = text.split("\t") if layout == _BEIR else text.split()
        if len(parts) != layout:
            report(line, "bad_columns", f"{len(parts)} columns, the file has {layout}", text)
            continue
        names = ("query-id", "corpus-id", "score")
        values = dict(zip(names, (parts[0], *parts[-2:]), strict=True))
        stripped = {name: value.strip() for name, value in values.items()}
        row = check_row(stripped, JudgementRow, problems, file, line)
        if row is not None and row.gain < 0 and layout == _BEIR:
            report(line, "bad_grade", "a BEIR table has no negative grades", text)
        elif row is not None and seen.add(
            line, "corpus-id", row.query_id, row.target, code="duplicate_judgement"
        ):
            rows.append((row.query_id, row.target, max(row.gain, 0), True, file, line))
    if not layout and problems.n_errors == before:
        _report_empty(path, problems, "judgement and no header", ACCEPTED_COLUMNS)
    return make_frame(JUDGEMENTS, rows)


@dataclasses.dataclass(frozen=True, slots=True)
class GoldEvidence:
    """Content of answer files. All `judgements` have grade 1 and are not explicit."""

    anchors: pd.DataFrame
    decoys: pd.DataFrame
    references: pd.DataFrame
    judgements: pd.DataFrame


def read_answers(paths: Sequence[Path], problems: ProblemList) -> GoldEvidence:
    """Read the evidence of files whose rows are `AnswerRow`; an empty file has none."""
    anchors: list[tuple[Any, ...]] = []
    decoys: list[tuple[Any, ...]] = []
    references: list[tuple[Any, ...]] = []
    judgements: list[tuple[Any, ...]] = []
    for path in paths:
        for line, row in read_rows(path, AnswerRow, problems):
            place, query_id, section = (str(path), line), row.query_id, row.section_id or ""
            if row.decoy is not None:
                decoys.append((query_id, row.decoy.section_id or row.decoy.doc_id, *place))
            if row.answer:
                references.append((query_id, row.answer))
            if row.doc_id is None:
                continue
            judgements.append((query_id, section or row.doc_id, 1, False, *place))
            label = row.label or ""
            for quote, start, end in row.places():
                anchors.append((query_id, row.doc_id, section, quote, start, end, label, *place))
                if quote and start >= 0:
                    references.append((query_id, quote))
    return GoldEvidence(
        make_frame(ANCHORS, anchors),
        make_frame(DECOYS, decoys),
        make_frame(REFERENCE_ANSWERS, references),
        make_frame(JUDGEMENTS, judgements),
    )


def drop_unknown(frame: pd.DataFrame, known: set[str], problems: ProblemList) -> pd.DataFrame:
    """Keep the rows of known queries; report each other row as `unknown_query`."""
    exists = np.array([query_id in known for query_id in frame["query_id"]], dtype=bool)
    for row in rows_of(frame[~exists]):
        more = {"found": quoted(row.query_id), "accepted": "an id of the questions file"}
        report_row(
            problems, row, "unknown_query", "no question has this id", field="query_id", **more
        )
    return frame[exists].reset_index(drop=True)
