"""Turn results into Dagster's metadata: native types and short flat tables.

An undefined figure becomes null.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import dagster as dg

from rag_eval.core.errors import InputError, Problem
from rag_eval.corpus.masking import mask_snippet, masked_text
from rag_eval.reporting.tables import interval

MAX_ROWS: Final = 50
"""Largest number of rows in a table, because large metadata slows the whole instance."""
PROBLEM_COLUMNS: Final = (
    *("severity", "code", "file", "line", "field", "message", "found", "accepted"),
)


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of a result for people."""

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]


Shown = Mapping[str, object]
"""Values of a result for people by name, also a `Table`."""
Metadata = Mapping[str, dg.MetadataValue[Any] | str | float | None]
"""Metadata as Dagster accepts it."""


def summarize(result: Mapping[str, Any]) -> dict[str, object]:
    """Show what people see of a result: plain values by name, lists and objects as tables.

    A figure with an interval is one text. Texts are masked and shortened.
    """
    shown: dict[str, object] = {}
    for name, value in result.items():
        if _is_plain(value):
            shown[name] = _plain(value)
        elif isinstance(value, list):
            shown[name] = _tabulate(_row(entry) for entry in value if isinstance(entry, dict))
        elif "value" in value:
            shown |= _row({name: value})
        elif all(isinstance(entry, dict) for entry in value.values()):
            shown[name] = _tabulate({"name": key} | _row(each) for key, each in value.items())
        else:
            shown |= summarize(value)
    return shown


def _row(entry: Mapping[str, Any]) -> dict[str, object]:
    """Make a flat row of an object: figures as texts, other objects by dotted names."""
    row: dict[str, object] = {}
    for name, value in entry.items():
        if isinstance(value, dict) and "value" in value:
            low, high = (value.get(f"ci_{end}", value.get(end)) for end in ("low", "high"))
            row[name] = interval(value["value"], low, high)
        elif isinstance(value, dict):
            row |= {f"{name}.{key}": _plain(each) for key, each in value.items() if _is_plain(each)}
        elif _is_plain(value):
            row[name] = _plain(value)
    return row


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(entry, str) for entry in value)
    return not isinstance(value, dict)


def _plain(value: object) -> object:
    """Return a plain value; a text with a space may be of a stranger, so it is masked."""
    text = ", ".join(value) if isinstance(value, list) else value
    return mask_snippet(text) if isinstance(text, str) and " " in text else text


def _tabulate(rows: Iterable[Mapping[str, object]]) -> Table:
    """Make a table of the columns that have a value in any row."""
    flat = list(rows)
    filled = {name: None for row in flat for name, value in row.items() if value is not None}
    return Table(list(filled), flat)


def to_metadata(values: Shown) -> Metadata:
    """Turn the shown values of a result into metadata, without empty tables."""
    return {
        name: _native(value)
        for name, value in values.items()
        if not (isinstance(value, Table) and not value.rows)
    }


def _native(value: Any) -> Any:
    """Turn a value into one of Dagster's types, and NaN and infinity into None."""
    if isinstance(value, Table):
        rows = [{name: _cell(row.get(name)) for name in value.columns} for row in value.rows]
        return dg.MetadataValue.table([dg.TableRecord(row) for row in rows[:MAX_ROWS]])
    if isinstance(value, str):  # Dagster would guess that some texts are paths
        is_address = value.startswith(("http://", "https://"))
        return dg.MetadataValue.url(value) if is_address else dg.MetadataValue.text(value)
    return _cell(value)


def _cell(value: Any) -> str | float | None:
    """Turn a NumPy scalar into a Python scalar; show what is no scalar as text."""
    scalar = value.item() if hasattr(value, "item") else value
    if isinstance(scalar, float) and not math.isfinite(scalar):
        return None
    return scalar if isinstance(scalar, str | int | float | None) else str(scalar)


def problems_shown(problems: Sequence[Problem]) -> Shown:
    """Count problems and show them masked and shortened, errors first."""
    ordered = sorted(problems, key=lambda problem: problem.severity)
    rows = [
        {
            name: mask_snippet(value) if isinstance(value := getattr(problem, name), str) else value
            for name in PROBLEM_COLUMNS
        }
        for problem in ordered
    ]
    errors = sum(problem.severity == "error" for problem in problems)
    return {
        "n_errors": errors,
        "n_warnings": len(problems) - errors,
        "problems": Table(PROBLEM_COLUMNS, rows),
    }


@contextlib.contextmanager
def clear_failures() -> Iterator[None]:
    """Turn input errors into a failure. Only an outage is tried again: other input stays the same.

    An outage is tried again only where the step has a retry policy.
    """
    try:
        yield
    except InputError as error:
        metadata = to_metadata(problems_shown(error.problems))
        # from None: Dagster stores the text of every cause, and that text is not masked
        raise dg.Failure(
            masked_text(str(error)), metadata=metadata, allow_retries=error.is_outage
        ) from None
