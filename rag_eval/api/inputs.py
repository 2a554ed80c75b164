"""Turn runs and judgements in the forms of the field into checked columns.

Mappings and TREC files need no pandas, whose import takes longer than the measures.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_FORMS = "a table, {query: {document: number}}, rows of ir_measures, or the path of a file"


class Run(NamedTuple):
    """The rows of a run: ids as texts, and scores [n]."""

    query_ids: list[str]
    doc_ids: list[str]
    scores: FloatArray

    @classmethod
    def read(cls, run: RunLike, name: str = "run") -> "Run":
        """Read a run in a form that `read_run` accepts."""
        columns = _read_columns(run, "score", name)
        scores, values = columns.numbers("score"), columns.values
        return cls(values["query_id"], values["doc_id"], scores)


class Judgements(NamedTuple):
    """The rows of judgements: ids as texts, and grades [n]."""

    query_ids: list[str]
    doc_ids: list[str]
    relevance: IntArray

    @classmethod
    def read(cls, qrels: QrelsLike, name: str = "qrels") -> "Judgements":
        """Read judgements in a form that `read_qrels` accepts."""
        columns = _read_columns(qrels, "relevance", name)
        grades = np.array(columns.apply("relevance", GRADE), dtype=np.int64)
        return cls(columns.values["query_id"], columns.values["doc_id"], grades)


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


class _Columns(NamedTuple):
    """Values by our names of the columns; of a file, its path and the line of each row."""

    name: str
    values: dict[str, list[Any]]
    file: Path | None = None
    lines: Sequence[int] = ()

    def fault(
        self, at: int, column: str, message: str, accepted: str, code: str = "bad_value"
    ) -> InputError:
        """Make the error of one value."""
        row = {key: values[at] for key, values in self.values.items()}
        more: Place = {"found": json.dumps(row, default=str), "accepted": accepted}
        more["field"] = f"{self.name}: {column}"
        if self.lines:
            more["line"] = self.lines[at]
        else:
            more["field"] = f"{self.name}: {column}, row {at + 1}"
        return InputError.of(code, message, self.file, **more)

    def apply(self, column: str, rule: Rule) -> list[Any]:
        """Apply the rule of a field to a column. Raises InputError for the first refused value."""
        values = self.values[column]
        # In a column of mixed types, 1 and True would be one key of a mapping.
        if set(map(type, values)) in ({str}, {int}, {float}):
            by_value = {value: rule.read(value) for value in dict.fromkeys(values)}
            read_values = [by_value[value] for value in values]
        else:
            read_values = [rule.read(value) for value in values]
        if None in read_values:
            at = read_values.index(None)
            raise self.fault(at, column, rule.message, rule.accepted, rule.code)
        return read_values

    def numbers(self, column: str) -> FloatArray:
        """Return a column as floats. Raises InputError for the first that is not finite."""
        try:
            numbers = np.array(self.values[column], dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            numbers = np.array(list(map(_read_number, self.values[column])), dtype=np.float64)
        if not np.isfinite(numbers).all():
            at = int(np.argmin(np.isfinite(numbers)))
            raise self.fault(at, column, f"a {column} is not finite", "a finite number")
        return numbers


def _read_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def _read_columns(source: Any, value: str, name: str) -> _Columns:
    """Return query_id, doc_id and the column `value` under our names: checked ids, values as given.

    Raises InputError where a query has a document twice.
    """
    wanted = ("query_id", "doc_id", value)
    if isinstance(source, str | os.PathLike):
        columns = _read_file(Path(source), wanted, name)
    elif isinstance(source, Mapping):
        columns = _Columns(name, _flatten(source, wanted, name))
    elif hasattr(source, "to_pandas") or isinstance(source, Iterable):
        columns = _Columns(name, _pick_columns(source, wanted, name))
    else:
        kind = "run" if value == "score" else "qrels"
        more: Place = {"field": name, "found": type(source).__name__, "accepted": _FORMS}
        raise InputError.of("bad_form", f"this is no {kind}", **more)
    if not columns.values["query_id"]:
        more = {"field": name, "accepted": "at least one row"}
        raise InputError.of("empty_input", f"{name} holds no row", columns.file, **more)
    for column in ("query_id", "doc_id"):
        columns.values[column] = columns.apply(column, ID)
    _refuse_doubles(columns)
    return columns


def _refuse_doubles(columns: _Columns) -> None:
    ids = columns.values["query_id"], columns.values["doc_id"]
    # A set of hashes is smaller than a set of pairs. Only equal hashes need a look at the pairs.
    if len(set(map(hash, zip(*ids, strict=True)))) == len(ids[0]):
        return
    first: dict[tuple[str, str], int] = {}
    for at, pair in enumerate(zip(*ids, strict=True)):
        if first.setdefault(pair, at) < at:
            message, accepted = "the query has this document twice", "each document once a query"
            raise columns.fault(at, "doc_id", message, accepted)


def _pick_columns(
    source: Any, wanted: tuple[str, ...], name: str, file: Path | None = None
) -> dict[str, list[Any]]:
    """Return the columns of a table or of rows under our names."""
    names, table = _open_table(source)
    columns: dict[str, list[Any]] = {}
    for column in wanted:
        at = find_column(column, names)
        if at is None and names:
            more: Place = {"field": name, "found": quoted(", ".join(map(str, names)))}
            more["accepted"] = ", ".join(COLUMN_NAMES[column])
            raise InputError.of("missing_column", f"{name} has no column {column}", file, **more)
        values = [] if at is None else table[names[at]]
        to_list = getattr(values, "to_pylist", None) or getattr(values, "tolist", None)
        columns[column] = to_list() if to_list else values
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


def _read_file(path: Path, wanted: tuple[str, ...], name: str) -> _Columns:
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
            return _Columns(name, _flatten(nested, wanted, name), path)
    if ending == ".parquet":
        return _Columns(name, _pick_columns(_read_parquet(path), wanted, name, path), path)
    is_run = wanted[-1] == "score"
    if ending in TEXT_TABLES and not (ending == ".tsv" and (not is_run or _has_trec_rows(path))):
        records = list(read_records(path, problems))
        problems.raise_errors()
        values = _pick_columns([row for _, row in records], wanted, name, path)
        return _Columns(name, values, path, [line for line, _ in records])
    rows = list((_trec_run if is_run else _trec_qrels)(path, problems))
    problems.raise_errors()
    values = {key: [row[at] for row in rows] for at, key in enumerate(wanted, 1)}
    return _Columns(name, values, path, [row[0] for row in rows])


def _read_parquet(path: Path) -> Any:
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as table:
            return table.read()
    except (ArrowException, OSError) as error:
        message = f"the file cannot be read: {quoted(str(error))}"
        raise InputError.of("unreadable_file", message, path) from error


def _has_trec_rows(path: Path) -> bool:
    """Tell whether the first line of a run in a .tsv file has the columns of TREC."""
    _, first = next(read_lines(path, ProblemList()), (0, ""))
    is_long = len(first.split()) == len(_TREC_RUN.split())
    return is_long and find_column("query_id", first.split("\t")) is None


def _trec_run(path: Path, problems: ProblemList) -> Iterator[tuple[Any, ...]]:
    for line, text in read_lines(path, problems):
        try:
            query, _, document, _, score, _ = text.split()
            yield line, query, document, float(score)
        except ValueError:
            message = "this is no line of a TREC run"
            word, accepted = quoted(text), f"{_TREC_RUN}; the score is a number"
            problems.add("bad_columns", message, path, line=line, found=word, accepted=accepted)


def _trec_qrels(path: Path, problems: ProblemList) -> Iterator[tuple[Any, ...]]:
    for row in read_judgements(path, problems):
        yield row.line, row.query_id, row.target, row.gain
