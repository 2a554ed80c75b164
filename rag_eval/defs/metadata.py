"""Turn results into Dagster's metadata: native types and short flat tables.

An undefined figure becomes null.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import dagster as dg

from rag_eval.core.errors import InputError, Problem
from rag_eval.core.frames import FrameSchema
from rag_eval.corpus.masking import mask_snippet, masked_text
from rag_eval.pipeline.runner import Chart, Table
from rag_eval.reporting.terminal import interval

MAX_ROWS: Final = 50
"""Largest number of rows in a table, because large metadata slows the whole instance."""
CHART_CELLS: Final = 21
"""Width of a chart in characters: with names and figures, Dagster shows about 55."""
COLUMN_TYPES: Final = {
    "str": "string",
    "int": "int",
    "float": "float",
    "bool": "bool",
    "list": "string[]",
}
PROBLEM_COLUMNS: Final = (
    *("severity", "code", "file", "line", "field", "message", "found", "accepted"),
)

Shown = Mapping[str, object]
"""Values of a result for people by name, also `Table` and `Chart`."""
Native = dg.MetadataValue[Any] | dg.TableSchema | str | float | None
Metadata = Mapping[str, Native]
"""Metadata as Dagster accepts it."""


def column_schema(schema: FrameSchema) -> Metadata:
    """Describe the columns of an asset that holds a frame, with their meanings."""
    columns = [
        dg.TableColumn(name, COLUMN_TYPES[column.kind], description=column.meaning)
        for name, column in schema.columns.items()
    ]
    return {"dagster/column_schema": dg.TableSchema(columns=columns)}


def native(value: Any) -> Any:
    """Turn a NumPy scalar into a Python scalar, and NaN and infinity into None."""
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_metadata(values: Shown) -> Metadata:
    """Turn the shown values of a result into metadata, without empty tables and charts."""
    return {
        name: _value(value)
        for name, value in values.items()
        if not (isinstance(value, Table) and not value.rows)
        and not (isinstance(value, Chart) and not value.figures)
    }


def _value(value: object) -> Native:
    if isinstance(value, Table):
        return _table(value.columns, value.rows)
    if isinstance(value, Chart):
        return dg.MetadataValue.md(draw_chart(value))
    if isinstance(value, str):  # Dagster would guess that some texts are paths
        is_address = value.startswith(("http://", "https://"))
        return dg.MetadataValue.url(value) if is_address else dg.MetadataValue.text(value)
    found: Native = native(value)
    return found


def draw_chart(chart: Chart) -> str:
    """Draw values and intervals as text in Markdown, because Dagster shows no embedded images.

    The axis reaches from 0 to 1, or further if a figure does.
    """
    rows = list(chart.figures.items())[:MAX_ROWS]
    ends = [end for _, row in rows for end in row if end is not None]
    start, stop = min([0.0, *ends]), max([1.0, *ends])

    def place(value: float) -> int:
        return round((value - start) / (stop - start) * (CHART_CELLS - 1))

    width, lines = max(map(len, chart.figures), default=0), []
    for name, (value, low, high) in rows:
        if value is None:
            continue
        cells = [" "] * CHART_CELLS
        if low is not None and high is not None:
            cells[place(low) : place(high) + 1] = "─" * (place(high) - place(low) + 1)
        cells[place(value)] = "●"
        lines.append(f"{name:{width}} {interval(value, low, high):<20}│{''.join(cells)}│")
    axis = f"{start:<{CHART_CELLS - 4}.1f}{stop:>4.1f}"
    return "\n".join(["```", *lines, f"{'':{width + 22}}{axis}", "```"])


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    kept = [{name: native(row.get(name)) for name in columns} for row in rows[:MAX_ROWS]]

    def kind(name: str) -> str:
        cells = [row[name] for row in kept if row[name] is not None]
        for python, called in ((bool, "bool"), (int, "int"), ((int, float), "float")):
            if cells and all(isinstance(cell, python) for cell in cells):
                return called
        return "string"

    kinds = {name: kind(name) for name in columns}
    records = [
        dg.TableRecord(
            {
                name: str(cell) if kinds[name] == "string" and cell is not None else cell
                for name, cell in row.items()
            }
        )
        for row in kept
    ]
    schema = dg.TableSchema(columns=[dg.TableColumn(name, kinds[name]) for name in columns])
    return dg.MetadataValue.table(records, schema=schema)


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
