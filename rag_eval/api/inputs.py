"""Turn runs and judgements in the forms of the field into frames with checked columns."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pandas as pd

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.errors import InputError, ProblemList, quoted
from rag_eval.core.fields import COLUMN_NAMES, GRADE, ID, Rule
from rag_eval.core.frames import FrameSchema, schema
from rag_eval.core.rows import (
    MAX_FILE_BYTES,
    TEXT_TABLES,
    Fault,
    ending_of,
    parse_object,
    read_lines,
    read_records,
    read_text,
)
from rag_eval.gold.files import read_qrels as read_qrels_file


class HasFrame(Protocol):
    """A table of another library, such as `datasets.Dataset` or `pyarrow.Table`."""

    def to_pandas(self) -> Any:
        """Return the rows as a data frame."""


RunLike = pd.DataFrame | HasFrame | Mapping[str, Mapping[str, float]] | Iterable[Any] | str | Path
"""A run: a ranked list with scores for each query, in a form that `read_run` accepts."""
QrelsLike = pd.DataFrame | HasFrame | Mapping[str, Mapping[str, int]] | Iterable[Any] | str | Path
"""Relevance judgements, in a form that `read_qrels` accepts."""

RUN: Final = schema(
    "run",
    query_id=("str", "the query, or a wording of a question"),
    doc_id=("str", "a retrieved document; each once a query"),
    score=("float", "the retriever's score; a higher score is a better rank"),
)
QRELS: Final = schema(
    "qrels",
    query_id=("str", "the query"),
    doc_id=("str", "a judged document; each once a query"),
    relevance=("int", "grade; 0 or less is judged not relevant"),
)
_TREC_RUN = "query Q0 document rank score tag"
_FORMS = (
    "a data frame or any table with to_pandas(), {query: {document: number}}, "
    "rows as ir_measures has them, or the path of a file"
)


class Run(NamedTuple):
    """The rows of a run: ids as texts, and scores [n]."""

    query_ids: list[str]
    doc_ids: list[str]
    scores: FloatArray

    @classmethod
    def read(cls, run: RunLike, name: str = "run") -> "Run":
        """Read a run in a form that `read_run` accepts."""
        frame = read_run(run, name)
        return cls(frame["query_id"].tolist(), frame["doc_id"].tolist(), frame["score"].to_numpy())


class Judgements(NamedTuple):
    """The rows of judgements: ids as texts, and grades [n]."""

    query_ids: list[str]
    doc_ids: list[str]
    relevance: IntArray

    @classmethod
    def read(cls, qrels: QrelsLike) -> "Judgements":
        """Read judgements in a form that `read_qrels` accepts."""
        frame = read_qrels(qrels)
        grades = frame["relevance"].to_numpy()
        return cls(frame["query_id"].tolist(), frame["doc_id"].tolist(), grades)


def read_run(run: RunLike, name: str = "run") -> pd.DataFrame:
    """Read a run: columns `query_id`, `doc_id` and `score`, a row for each retrieved document.

    Parameters
    ----------
    run
        A long data frame or any table with `to_pandas()` (pyarrow, polars, Hugging Face datasets);
        `{query: {document: score}}`; an iterable of `ir_measures.ScoredDoc`; or a path: a TREC run,
        `.parquet`, `.jsonl`, `.csv` or `.tsv` with a header, `.json` of BEIR. Columns may have the
        names of ir-measures, PyTerrier or BEIR. Ranks in the input are ignored, as trec_eval does.
    name
        Name of the run in messages.

    Raises
    ------
    InputError
        The form is not known, a column or a value is missing, a score is not finite, or a query
        has a document twice.

    Examples
    --------
    >>> read_run({"q1": {"d1": 2.5, "d2": 1.0}})
      query_id doc_id  score
    0       q1     d1    2.5
    1       q1     d2    1.0
    """
    frame = _as_frame(run, RUN, name, _read_trec_run)
    scores = _numbers(frame["score"], name)
    if not np.isfinite(scores).all():
        at = int(np.argmin(np.isfinite(scores)))
        raise _bad_row(frame, at, "score", name, "a score is not finite", "a finite number")
    return _finish(frame.assign(score=scores), RUN, name)


def read_qrels(qrels: QrelsLike, name: str = "qrels") -> pd.DataFrame:
    """Read judgements: columns `query_id`, `doc_id` and `relevance`.

    Parameters
    ----------
    qrels
        The forms of `read_run`, with `ir_measures.Qrel` and the qrels files of TREC and BEIR.
    name
        Name of the judgements in messages.

    Raises
    ------
    InputError
        The form is not known, a column or a value is missing, a grade is no whole number, or a
        query has a document twice.

    Examples
    --------
    >>> read_qrels({"q1": {"d1": 1}})
      query_id doc_id  relevance
    0       q1     d1          1
    """
    frame = _as_frame(qrels, QRELS, name, _read_qrels)
    grades = _convert(frame, "relevance", name, GRADE)
    return _finish(frame.assign(relevance=grades.astype(np.int64)), QRELS, name)


# ---- From each form to a frame of three columns.


def _as_frame(
    given: Any, wanted: FrameSchema, name: str, read_trec: Callable[[Path], pd.DataFrame]
) -> pd.DataFrame:
    """Return the three columns with our names and unchecked values."""
    if isinstance(given, str | os.PathLike):
        given = _read_file(Path(given), read_trec)
    if isinstance(given, Mapping):
        given = _from_nested(given, wanted, name)
    elif not isinstance(given, pd.DataFrame):
        if hasattr(given, "to_pandas"):
            given = given.to_pandas()
        elif isinstance(given, Iterable):
            given = pd.DataFrame(list(given))
    if not isinstance(given, pd.DataFrame):
        message = f"this is no {wanted.name}"
        found = type(given).__name__
        raise InputError.of("bad_form", message, field=name, found=found, accepted=_FORMS)
    columns = {}
    for column in wanted.columns:
        names = COLUMN_NAMES[column]
        present = next((one for one in names if one in given.columns), None)
        if present is None:
            message = f"{name} has no column {column}"
            found = quoted(", ".join(map(str, given.columns)) or "no column")
            accepted = ", ".join(names)
            raise InputError.of(
                "missing_column", message, field=name, found=found, accepted=accepted
            )
        columns[column] = given[present].reset_index(drop=True)
    frame = pd.DataFrame(columns)
    if frame.empty:
        message = f"{name} holds no row"
        raise InputError.of("empty_input", message, field=name, accepted="at least one row")
    ids = {
        column: _convert(frame, column, name, ID).astype("str") for column in ("query_id", "doc_id")
    }
    return frame.assign(**ids)


def _from_nested(given: Mapping[Any, Any], wanted: FrameSchema, name: str) -> pd.DataFrame:
    rows = list(given.values())
    if not all(isinstance(row, Mapping) for row in rows):
        message = "the values of this mapping are no mappings"
        accepted = "{query: {document: number}}"
        raise InputError.of("bad_form", message, field=name, accepted=accepted)
    queries = np.empty(len(rows), dtype=object)
    queries[:] = list(given)
    values = (
        np.repeat(queries, [len(row) for row in rows]),
        list(chain.from_iterable(rows)),
        list(chain.from_iterable(row.values() for row in rows)),
    )
    return pd.DataFrame(dict(zip(wanted.columns, values, strict=True)))


def _read_file(path: Path, read_trec: Callable[[Path], pd.DataFrame]) -> Any:
    """Read a file by the ending of its name; a file without a known ending has TREC's columns."""
    problems, ending = ProblemList(), ending_of(path)
    if not path.is_file():
        raise InputError.of("missing_file", "there is no such file", path)
    if ending == ".json":
        text = read_text(path, problems, MAX_FILE_BYTES)
        problems.raise_errors()
        nested = parse_object(text)
        if isinstance(nested, Fault):
            accepted = "{query: {document: number}}"
            raise InputError.of(nested.code, nested.message, path, accepted=accepted)
        return nested
    # a .tsv of judgements is a BEIR table, whose reader names the lines of faults
    if ending in TEXT_TABLES and (ending != ".tsv" or read_trec is _read_trec_run):
        rows = [row for _, row in read_records(path, problems)]
        problems.raise_errors()
        return pd.DataFrame(rows, dtype=object)
    if ending != ".parquet":
        return read_trec(path)
    try:
        return pd.read_parquet(path)
    except (ValueError, OSError) as error:  # errors of pyarrow are ValueErrors
        message = f"the file cannot be read: {quoted(str(error))}"
        raise InputError.of("unreadable_file", message, path) from error


def _read_trec_run(path: Path) -> pd.DataFrame:
    """Read a TREC run: six columns, of which query, document and score are used."""
    problems = ProblemList()
    queries, documents, scores = [], [], []
    for line, text in read_lines(path, problems):
        parts = text.split()
        try:
            query, _, document, _, score, _ = parts
            scores.append(float(score))
        except ValueError:
            message = "this is no line of a TREC run"
            found, accepted = quoted(text), f"{_TREC_RUN}; the score is a number"
            problems.add("bad_columns", message, path, line=line, found=found, accepted=accepted)
            continue
        queries.append(query)
        documents.append(document)
    problems.raise_errors()
    return pd.DataFrame({"query_id": queries, "doc_id": documents, "score": scores})


def _read_qrels(path: Path) -> pd.DataFrame:
    problems = ProblemList()
    frame = read_qrels_file(path, problems)
    problems.raise_errors()
    return frame.rename(columns={"target": "doc_id"})


# ---- Checks of the columns.


def _convert(frame: pd.DataFrame, column: str, name: str, rule: Rule) -> pd.Series:
    """Apply the rule of a field to a column. Raises InputError for the first refused value."""
    values = frame[column]
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.cat.categories.dtype)
    # In a column of mixed types, 1 and True would be one value of a mapping.
    if pd.api.types.infer_dtype(values, skipna=False) in {"string", "integer", "floating"}:
        codes, distinct = pd.factorize(values, use_na_sentinel=False)
    else:
        codes, distinct = np.arange(len(values)), pd.Index(values, dtype=object)
    made = [rule.read(value) for value in distinct]
    if None in made:
        at = int(np.argmax(codes == made.index(None)))
        raise _bad_row(frame, at, column, name, rule.message, rule.accepted, rule.code)
    if made == list(distinct):
        return values
    return pd.Series(np.array(made, dtype=object)[codes], index=frame.index)


def _numbers(values: pd.Series, name: str) -> np.ndarray:
    """Return a column as floats; NaN for a text that is no number."""
    if values.dtype.kind == "b":
        message, accepted = "this column holds truth values", "numbers"
        raise InputError.of(
            "wrong_type", message, field=f"{name}: {values.name}", accepted=accepted
        )
    return pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _finish(frame: pd.DataFrame, wanted: FrameSchema, name: str) -> pd.DataFrame:
    """Refuse a document that a query has twice."""
    twice = frame.duplicated(["query_id", "doc_id"]).to_numpy()
    if twice.any():
        at, message = int(np.argmax(twice)), "the query has this document twice"
        raise _bad_row(frame, at, "doc_id", name, message, "each document once a query")
    return wanted.check(frame)


def _bad_row(  # noqa: PLR0917 - the place of a value and its fault
    frame: pd.DataFrame,
    at: int,
    column: str,
    name: str,
    message: str,
    accepted: str,
    code: str = "bad_value",
) -> InputError:
    row = frame.iloc[at]
    found = json.dumps({key: row[key] for key in frame.columns}, default=str)
    place = f"{name}: {column}, row {at + 1}"
    return InputError.of(code, message, field=place, found=found, accepted=accepted)
