"""The files that hold questions: `queries.jsonl`, `paraphrases.jsonl`, TREC topics, and which query ids exist.

Belongs here: file -> rows of this stage's frames. Judgements are read in `qrels`, quoted evidence in `answers`.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from rag_eval.gold.frames import PARAPHRASES, QUERY_PLACES, make_frame, rows_of
from rag_eval.gold.lines import read_lines, read_objects
from rag_eval.gold.overrides import override_of
from rag_eval.gold.problem_list import ProblemList
from rag_eval.gold.rows import Row
from rag_eval.records.answer_settings import AnswerOverride
from rag_eval.records.frames import QUERIES
from rag_eval.records.problems import quoted

ORIGINAL = "original"
"""The paraphrase id of the question's own wording; no paraphrase may carry it."""


class Question(NamedTuple):
    """One row of a questions file; `has_flag` says that it speaks of being answerable at all."""

    query_id: str
    text: str
    answerable: bool
    has_flag: bool
    tags: tuple[str, ...]
    line: int


@dataclasses.dataclass(frozen=True, slots=True)
class Questions:
    """Questions of a file: `queries` (QUERIES schema, group_id still the query's own id) and `places` (QUERY_PLACES), row by row the same; `overrides` by query_id."""

    queries: pd.DataFrame
    places: pd.DataFrame
    overrides: Mapping[str, AnswerOverride] = dataclasses.field(default_factory=dict)


def questions_of(
    rows: list[Question], file: str, overrides: Mapping[str, AnswerOverride] | None = None
) -> Questions:
    """Make the frames of rows of one file."""
    queries = [
        (row.query_id, row.text, row.answerable, list(row.tags), row.query_id) for row in rows
    ]
    places = [(row.query_id, row.has_flag, file, row.line) for row in rows]
    return Questions(
        make_frame(QUERIES, queries), make_frame(QUERY_PLACES, places), overrides or {}
    )


def _first_use(seen: dict[str, int], row: Row, key: str, identifier: str, shown: str) -> bool:
    """Remember an id; report it when it was used before."""
    first = seen.setdefault(identifier, row.line)
    if first != row.line:
        row.fault(
            "duplicate_id",
            f"{shown} was used in line {first} already",
            key,
            shown,
            "an id of its own for each row",
        )
    return first == row.line


def read_queries(path: Path, problems: ProblemList) -> Questions:
    """Questions of a .jsonl file: `query_id` or BEIR's `_id`, `text`, optional `answerable`, `tags` and the keys of `AnswerOverride`; other keys are left out.

    A question without `answerable` counts as answerable and its place says that the flag is missing. Faults: those of
    `read_objects` and `Row`, `duplicate_id`, `empty_file`.
    """
    rows: list[Question] = []
    overrides: dict[str, AnswerOverride] = {}
    seen: dict[str, int] = {}
    before = problems.n_errors
    for line, values in read_objects(path, problems):
        row = Row(values, str(path), line, problems)
        key = "_id" if "_id" in values and "query_id" not in values else "query_id"
        query_id, text = row.identifier(key), row.text("text")
        flag, tags, override = row.flag("answerable"), row.texts("tags"), override_of(row)
        if (
            query_id is not None
            and _first_use(seen, row, key, query_id, query_id)
            and text is not None
        ):
            rows.append(
                Question(
                    query_id,
                    text,
                    answerable=flag is not False,
                    has_flag="answerable" in values,
                    tags=tags,
                    line=line,
                )
            )
            if override is not None:
                overrides[query_id] = override
    if not rows and problems.n_errors == before:
        problems.add(
            "empty_file",
            "the file holds no question",
            file=str(path),
            line=1,
            accepted='one object a line: {"query_id": ..., "text": ..., "answerable": true}',
        )
    return questions_of(rows, str(path), overrides)


def read_topics(path: Path, problems: ProblemList) -> Questions:
    """TREC topics as a table of `id<TAB>text` without header. Faults: those of `read_lines`, `bad_columns`, `bad_id`, `duplicate_id`, `empty_file`."""
    rows: list[Question] = []
    seen: dict[str, int] = {}
    before = problems.n_errors
    for line, text in read_lines(path, problems):
        parts = text.split("\t")
        if len(parts) != 2:  # noqa: PLR2004  the two columns that the docstring names
            problems.add(
                "bad_columns",
                "a topic has two columns",
                file=str(path),
                line=line,
                found=f"{len(parts)} columns: {quoted(text)}",
                accepted="id<TAB>text",
            )
            continue
        row = Row({"id": parts[0].strip(), "text": parts[1].strip()}, str(path), line, problems)
        query_id, question = row.identifier("id"), row.text("text")
        if (
            query_id is not None
            and _first_use(seen, row, "id", query_id, query_id)
            and question is not None
        ):
            rows.append(
                Question(query_id, question, answerable=True, has_flag=False, tags=(), line=line)
            )
    if not rows and problems.n_errors == before:
        problems.add(
            "empty_file", "the file holds no topic", file=str(path), line=1, accepted="id<TAB>text"
        )
    return questions_of(rows, str(path))


def read_paraphrases(path: Path, problems: ProblemList) -> pd.DataFrame:
    """Other wordings (PARAPHRASES): `query_id`, `paraphrase_id`, `text`, optional `source`. An empty file has none.

    Faults: those of `read_objects` and `Row`, `duplicate_id` (the same paraphrase_id twice for one query), `reserved_id`.
    """
    rows: list[tuple[str, str, str, str, str, int]] = []
    seen: dict[str, int] = {}
    for line, values in read_objects(path, problems):
        row = Row(values, str(path), line, problems)
        query_id, paraphrase_id, text = (
            row.identifier("query_id"),
            row.identifier("paraphrase_id"),
            row.text("text"),
        )
        source = row.optional_text("source")
        if query_id is None or paraphrase_id is None or text is None:
            continue
        if paraphrase_id == ORIGINAL:
            row.fault(
                "reserved_id",
                "this id stands for the question's own wording",
                "paraphrase_id",
                paraphrase_id,
                f"any id but {ORIGINAL}",
            )
        elif _first_use(
            seen,
            row,
            "paraphrase_id",
            f"{query_id}\t{paraphrase_id}",
            f"{query_id}, {paraphrase_id}",
        ):
            rows.append((query_id, paraphrase_id, text, source, str(path), line))
    return make_frame(PARAPHRASES, rows)


def drop_unknown(frame: pd.DataFrame, known: pd.Index, problems: ProblemList) -> pd.DataFrame:
    """Rows whose query exists; each other row is reported as `unknown_query`. The frame has `query_id`, `file` and `line`."""
    exists = frame["query_id"].isin(known)
    for query_id, file, line in rows_of(frame.loc[~exists, ["query_id", "file", "line"]]):
        problems.add(
            "unknown_query",
            "no question has this id",
            file=file,
            line=int(line),
            field="query_id",
            found=quoted(query_id),
            accepted="an id of the questions file",
        )
    return frame[exists].reset_index(drop=True)
