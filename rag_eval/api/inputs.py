"""Turn runs and judgements in the forms of the field into checked columns.

Mappings and TREC files need no pandas, whose import takes longer than the measures.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.errors import InputError, ProblemList, quoted
from rag_eval.core.fields import COLUMN_NAMES, GRADE, ID, Rule
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
from rag_eval.gold.judgements import read_judgements

if TYPE_CHECKING:
    import pandas as pd


class HasFrame(Protocol):
    """A table of another library, such as `datasets.Dataset` or `pyarrow.Table`."""

    def to_pandas(self) -> Any:
        """Return the rows as a data frame."""


RunLike: TypeAlias = (
    "pd.DataFrame | HasFrame | Mapping[str, Mapping[str, float]] | Iterable[Any] | str | Path"
)
"""A run: a ranked list with scores for each query, in a form that `read_run` accepts."""
QrelsLike: TypeAlias = (
    "pd.DataFrame | HasFrame | Mapping[str, Mapping[str, int]] | Iterable[Any] | str | Path"
)
"""Relevance judgements, in a form that `read_qrels` accepts."""

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
        columns = _read_columns(run, ("query_id", "doc_id", "score"), name, _read_trec_run)
        scores = _read_numbers(columns, "score", name)
        if not np.isfinite(scores).all():
            at = int(np.argmin(np.isfinite(scores)))
            message, accepted = "a score is not finite", "a finite number"
            raise _bad_row(columns, at, "score", name, message, accepted)
        return cls(columns["query_id"], columns["doc_id"], scores)


class Judgements(NamedTuple):
    """The rows of judgements: ids as texts, and grades [n]."""

    query_ids: list[str]
    doc_ids: list[str]
    relevance: IntArray

    @classmethod
    def read(cls, qrels: QrelsLike, name: str = "qrels") -> "Judgements":
        """Read judgements in a form that `read_qrels` accepts."""
        columns = _read_columns(qrels, ("query_id", "doc_id", "relevance"), name, _read_trec_qrels)
        grades = _apply(columns, "relevance", name, GRADE)
        return cls(columns["query_id"], columns["doc_id"], np.array(grades, dtype=np.int64))


def read_run(run: RunLike, name: str = "run") -> "pd.DataFrame":
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
    return _make_frame(Run.read(run, name), "score")


def read_qrels(qrels: QrelsLike, name: str = "qrels") -> "pd.DataFrame":
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
    return _make_frame(Judgements.read(qrels, name), "relevance")


def _make_frame(rows: Run | Judgements, column: str) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(dict(zip(("query_id", "doc_id", column), rows, strict=True)))


# ---- From each form to three columns.

Columns: TypeAlias = "dict[str, list[Any]]"


def _read_columns(
    given: Any, wanted: tuple[str, ...], name: str, read_trec: Callable[[Path], Columns]
) -> Columns:
    """Return the columns with our names: checked ids, and unchecked values.

    Raises InputError where a query has a document twice.
    """
    kind = "run" if "score" in wanted else "qrels"
    if isinstance(given, str | os.PathLike):
        columns = _read_file(Path(given), wanted, name, read_trec)
    elif isinstance(given, Mapping):
        columns = _flatten(given, wanted, name)
    elif hasattr(given, "to_pandas") or isinstance(given, Iterable):
        columns = _pick_columns(given, wanted, name)
    else:
        found = type(given).__name__
        raise InputError.of(
            "bad_form", f"this is no {kind}", field=name, found=found, accepted=_FORMS
        )
    if not columns["query_id"]:
        message = f"{name} holds no row"
        raise InputError.of("empty_input", message, field=name, accepted="at least one row")
    for column in ("query_id", "doc_id"):
        columns[column] = _apply(columns, column, name, ID)
    # A set of hashes is smaller than a set of pairs. Only equal hashes need a look at the pairs.
    ids = columns["query_id"], columns["doc_id"]
    if len(set(map(hash, zip(*ids, strict=True)))) < len(ids[0]):
        pairs = list(zip(*ids, strict=True))
        first = {pair: at for at, pair in reversed(list(enumerate(pairs)))}
        at = next((at for at, pair in enumerate(pairs) if first[pair] < at), None)
        if at is not None:
            message, accepted = "the query has this document twice", "each document once a query"
            raise _bad_row(columns, at, "doc_id", name, message, accepted)
    return columns


def _pick_columns(given: Any, wanted: tuple[str, ...], name: str) -> Columns:
    """Return the columns of a table or of rows under our names."""
    import pandas as pd

    if not isinstance(given, pd.DataFrame):
        given = given.to_pandas() if hasattr(given, "to_pandas") else pd.DataFrame(list(given))
    columns = {}
    for column in wanted:
        names = COLUMN_NAMES[column]
        present = next((one for one in names if one in given.columns), None)
        if present is None and not given.empty:
            message = f"{name} has no column {column}"
            found = quoted(", ".join(map(str, given.columns)) or "no column")
            accepted = ", ".join(names)
            raise InputError.of(
                "missing_column", message, field=name, found=found, accepted=accepted
            )
        columns[column] = [] if present is None else given[present].tolist()
    return columns


def _flatten(given: Mapping[Any, Any], wanted: tuple[str, ...], name: str) -> Columns:
    rows = list(given.values())
    if not all(isinstance(row, Mapping) for row in rows):
        message = "the values of this mapping are no mappings"
        accepted = "{query: {document: number}}"
        raise InputError.of("bad_form", message, field=name, accepted=accepted)
    values = (
        [query for query, row in given.items() for _ in row],
        list(chain.from_iterable(rows)),
        list(chain.from_iterable(row.values() for row in rows)),
    )
    return dict(zip(wanted, values, strict=True))


def _read_file(
    path: Path, wanted: tuple[str, ...], name: str, read_trec: Callable[[Path], Columns]
) -> Columns:
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
        return _flatten(nested, wanted, name)
    # a .tsv of judgements is a BEIR table, whose reader names the lines of faults
    if ending in TEXT_TABLES and (ending != ".tsv" or read_trec is _read_trec_run):
        rows = [row for _, row in read_records(path, problems)]
        problems.raise_errors()
        return _pick_columns(rows, wanted, name)
    if ending != ".parquet":
        return read_trec(path)
    import pandas as pd

    try:
        return _pick_columns(pd.read_parquet(path), wanted, name)
    except (ValueError, OSError) as error:  # errors of pyarrow are ValueErrors
        message = f"the file cannot be read: {quoted(str(error))}"
        raise InputError.of("unreadable_file", message, path) from error


def _read_trec_run(path: Path) -> Columns:
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
    return {"query_id": queries, "doc_id": documents, "score": scores}


def _read_trec_qrels(path: Path) -> Columns:
    problems = ProblemList()
    rows = list(read_judgements(path, problems))
    problems.raise_errors()
    return {
        "query_id": [row.query_id for row in rows],
        "doc_id": [row.target for row in rows],
        "relevance": [row.gain for row in rows],
    }


# ---- Checks of the columns.


def _apply(columns: Columns, column: str, name: str, rule: Rule) -> list[Any]:
    """Apply the rule of a field to a column. Raises InputError for the first refused value."""
    values = columns[column]
    # In a column of mixed types, 1 and True would be one key of a mapping.
    if set(map(type, values)) in ({str}, {int}, {float}):
        read = {value: rule.read(value) for value in dict.fromkeys(values)}
        made = [read[value] for value in values]
    else:
        made = [rule.read(value) for value in values]
    if None in made:
        at = made.index(None)
        raise _bad_row(columns, at, column, name, rule.message, rule.accepted, rule.code)
    return made


def _read_numbers(columns: Columns, column: str, name: str) -> FloatArray:
    """Return a column as floats; NaN for a text that is no number."""
    values = columns[column]
    if any(issubclass(kind, bool | np.bool_) for kind in set(map(type, values))):
        message, accepted = "this column holds truth values", "numbers"
        raise InputError.of("wrong_type", message, field=f"{name}: {column}", accepted=accepted)
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_read_number(value) for value in values], dtype=np.float64)


def _read_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def _bad_row(  # noqa: PLR0917 - the place of a value and its fault
    columns: Columns,
    at: int,
    column: str,
    name: str,
    message: str,
    accepted: str,
    code: str = "bad_value",
) -> InputError:
    found = json.dumps({key: values[at] for key, values in columns.items()}, default=str)
    place = f"{name}: {column}, row {at + 1}"
    return InputError.of(code, message, field=place, found=found, accepted=accepted)
