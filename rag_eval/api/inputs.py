"""Turn runs and judgements in the forms of the field into checked columns.

Mappings and TREC files need no pandas, whose import takes longer than the measures.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.errors import InputError, Place, ProblemList, quoted
from rag_eval.core.fields import COLUMN_NAMES, GRADE, ID, Rule, find_column
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
        return cls(columns.values["query_id"], columns.values["doc_id"], scores)


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
        return cls(
            columns.values["query_id"], columns.values["doc_id"], np.array(grades, dtype=np.int64)
        )


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


_TO_LIST = ("to_pylist", "tolist")
"""Methods of a column of Arrow and of pandas that make a list of Python's values."""


class Columns(NamedTuple):
    """Values by our names of the columns; of a file, its path and the line of each row."""

    values: dict[str, list[Any]]
    file: Path | None = None
    lines: Sequence[int] = ()


def _read_columns(
    source: Any, wanted: tuple[str, ...], name: str, read_trec: Callable[[Path], Columns]
) -> Columns:
    """Return the columns with our names: checked ids, and unchecked values.

    Raises InputError where a query has a document twice.
    """
    kind = "run" if "score" in wanted else "qrels"
    if isinstance(source, str | os.PathLike):
        columns = _read_file(Path(source), wanted, name, read_trec)
    elif isinstance(source, Mapping):
        columns = Columns(_flatten(source, wanted, name))
    elif hasattr(source, "to_pandas") or isinstance(source, Iterable):
        columns = Columns(_pick_columns(source, wanted, name))
    else:
        kind_given = type(source).__name__
        raise InputError.of(
            "bad_form", f"this is no {kind}", field=name, found=kind_given, accepted=_FORMS
        )
    values = columns.values
    if not values["query_id"]:
        more: Place = {"field": name, "accepted": "at least one row"}
        raise InputError.of("empty_input", f"{name} holds no row", columns.file, **more)
    for column in ("query_id", "doc_id"):
        values[column] = _apply(columns, column, name, ID)
    # A set of hashes is smaller than a set of pairs. Only equal hashes need a look at the pairs.
    ids = values["query_id"], values["doc_id"]
    if len(set(map(hash, zip(*ids, strict=True)))) < len(ids[0]):
        pairs = list(zip(*ids, strict=True))
        first = {pair: at for at, pair in reversed(list(enumerate(pairs)))}
        at = next((at for at, pair in enumerate(pairs) if first[pair] < at), None)
        if at is not None:
            message, accepted = "the query has this document twice", "each document once a query"
            raise _bad_row(columns, at, "doc_id", name, message, accepted)
    return columns


def _pick_columns(
    source: Any, wanted: tuple[str, ...], name: str, file: Path | None = None
) -> dict[str, list[Any]]:
    """Return the columns of a table or of rows under our names."""
    names, table = _open_table(source)
    columns = {}
    for column in wanted:
        at = find_column(column, names)
        if at is None and names:
            more: Place = {"field": name, "found": quoted(", ".join(map(str, names)))}
            more["accepted"] = ", ".join(COLUMN_NAMES[column])
            raise InputError.of("missing_column", f"{name} has no column {column}", file, **more)
        values = [] if at is None else table[names[at]]
        columns[column] = next(
            (getattr(values, method)() for method in _TO_LIST if hasattr(values, method)), values
        )
    return columns


def _open_table(source: Any) -> tuple[list[Any], Any]:
    """Return the names of the columns, and a table that gives a column for a name.

    Rows and Arrow tables do without pandas, which makes floats of whole numbers beside a null.
    """
    if hasattr(source, "column_names"):  # of pyarrow and datasets
        return list(source.column_names), source
    if hasattr(source, "to_pandas"):
        source = source.to_pandas()
    elif not hasattr(source, "columns"):
        source = list(source)
        if all(isinstance(row, Mapping) for row in source):
            names = list(dict.fromkeys(chain.from_iterable(source)))
            return names, {name: [row.get(name) for row in source] for name in names}
        import pandas as pd

        source = pd.DataFrame(source)
    return list(source.columns), source


def _flatten(nested: Mapping[Any, Any], wanted: tuple[str, ...], name: str) -> dict[str, list[Any]]:
    rows = list(nested.values())
    if not all(isinstance(row, Mapping) for row in rows):
        message = "the values of this mapping are no mappings"
        accepted = "{query: {document: number}}"
        raise InputError.of("bad_form", message, field=name, accepted=accepted)
    values = (
        [query for query, row in nested.items() for _ in row],
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
        text = read_text(path, problems, MAX_FILE_BYTES) or ""
        problems.raise_errors()
        if not text.lstrip().startswith("["):
            nested = parse_object(text)
            if isinstance(nested, Fault):
                accepted = "{query: {document: number}}, or a list of objects"
                raise InputError.of(nested.code, nested.message, path, accepted=accepted)
            return Columns(_flatten(nested, wanted, name), path)
    if ending in TEXT_TABLES and not (ending == ".tsv" and _has_trec_rows(path, wanted)):
        rows = list(read_records(path, problems))
        problems.raise_errors()
        values = _pick_columns([row for _, row in rows], wanted, name, path)
        return Columns(values, path, [line for line, _ in rows])
    if ending != ".parquet":
        return read_trec(path)
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as table:
            return Columns(_pick_columns(table.read(), wanted, name, path), path)
    except (ArrowException, OSError) as error:
        message = f"the file cannot be read: {quoted(str(error))}"
        raise InputError.of("unreadable_file", message, path) from error


def _has_trec_rows(path: Path, wanted: tuple[str, ...]) -> bool:
    """Tell whether the reader of TREC files reads a .tsv file.

    It reads all judgements, and a run whose first line has the columns of TREC.
    """
    _, first = next(read_lines(path, ProblemList()), (0, ""))
    is_run = "score" in wanted
    n_columns = len(_TREC_RUN.split())
    return not is_run or (
        len(first.split()) == n_columns and find_column("query_id", first.split("\t")) is None
    )


def _read_trec_run(path: Path) -> Columns:
    """Read a TREC run: six columns, of which query, document and score are used."""
    problems = ProblemList()
    queries, documents, scores, lines = [], [], [], []
    for line, text in read_lines(path, problems):
        parts = text.split()
        try:
            query, _, document, _, score, _ = parts
            scores.append(float(score))
        except ValueError:
            message = "this is no line of a TREC run"
            word, accepted = quoted(text), f"{_TREC_RUN}; the score is a number"
            problems.add("bad_columns", message, path, line=line, found=word, accepted=accepted)
            continue
        queries.append(query)
        documents.append(document)
        lines.append(line)
    problems.raise_errors()
    return Columns({"query_id": queries, "doc_id": documents, "score": scores}, path, lines)


def _read_trec_qrels(path: Path) -> Columns:
    problems = ProblemList()
    rows = list(read_judgements(path, problems))
    problems.raise_errors()
    values: dict[str, list[Any]] = {
        "query_id": [row.query_id for row in rows],
        "doc_id": [row.target for row in rows],
        "relevance": [row.gain for row in rows],
    }
    return Columns(values, path, [row.line for row in rows])


# ---- Checks of the columns.


def _apply(columns: Columns, column: str, name: str, rule: Rule) -> list[Any]:
    """Apply the rule of a field to a column. Raises InputError for the first refused value."""
    values = columns.values[column]
    # In a column of mixed types, 1 and True would be one key of a mapping.
    if set(map(type, values)) in ({str}, {int}, {float}):
        read = {value: rule.read(value) for value in dict.fromkeys(values)}
        read_values = [read[value] for value in values]
    else:
        read_values = [rule.read(value) for value in values]
    if None in read_values:
        at = read_values.index(None)
        raise _bad_row(columns, at, column, name, rule.message, rule.accepted, rule.code)
    return read_values


def _read_numbers(columns: Columns, column: str, name: str) -> FloatArray:
    """Return a column as floats; NaN for a text that is no number."""
    values = columns.values[column]
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
    row = {key: values[at] for key, values in columns.values.items()}
    more: Place = {"found": json.dumps(row, default=str), "accepted": accepted}
    if columns.lines:
        more |= {"line": columns.lines[at], "field": f"{name}: {column}"}
    else:
        more["field"] = f"{name}: {column}, row {at + 1}"
    return InputError.of(code, message, columns.file, **more)
