"""Values that Dagster shows: native types only, tables flat and short, null where a figure is undefined.

Belongs here: forms (tables, Markdown, column schemas, problems). What an asset shows of itself is in `outcomes`.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from rag_eval.corpus.outgoing import masked_text, shown
from rag_eval.records.frames import FrameSchema
from rag_eval.records.problems import InputError, Problem
from rag_eval.reporting.terminal import interval

MAX_ROWS = 50
"""Rows of a table: large metadata slows the whole instance down."""
BAR_WIDTH = 40

COLUMN_TYPES = {"str": "string", "int": "int", "float": "float", "bool": "bool", "list": "string[]"}
PROBLEM_COLUMNS = ("severity", "code", "file", "line", "field", "message", "found", "accepted")
MEASURE_COLUMNS = (
    "strategy",
    "label",
    "value [95 % interval]",
    "n_scored",
    "n_attempted",
    "n_failed",
    "n_ineligible",
)

Metadata = dict[str, Any]


def column_schema(schema: FrameSchema) -> Metadata:
    """Definition metadata of an asset that holds a frame: the frame's columns and what they mean."""
    columns = [
        dg.TableColumn(name, COLUMN_TYPES[column.kind], description=column.meaning)
        for name, column in schema.columns.items()
    ]
    return {"dagster/column_schema": dg.TableSchema(columns=columns)}


def native(value: Any) -> Any:
    """Turn a NumPy scalar into Python's own, and NaN and infinity into None."""
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def n_undefined(rows: Sequence[Mapping[str, Any]], column: str) -> int:
    """Count the rows whose figure is undefined."""
    return sum(native(row.get(column)) is None for row in rows)


def table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Make a table of at most MAX_ROWS rows; a missing or undefined cell is null."""
    kept = [{name: native(row.get(name)) for name in columns} for row in rows[:MAX_ROWS]]

    def kind(name: str) -> str:
        cells = [row[name] for row in kept if row[name] is not None]
        for python, name_of in ((bool, "bool"), (int, "int"), ((int, float), "float")):
            if cells and all(isinstance(cell, python) for cell in cells):
                return name_of
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
    return dg.MetadataValue.table(
        records,
        schema=dg.TableSchema(columns=[dg.TableColumn(name, kinds[name]) for name in columns]),
    )


def _shown(value: Any) -> Any:
    """A cell of a table of problems: what a problem quotes of a corpus or gold set is masked and short."""
    return shown(value) if isinstance(value, str) else value


def problems_table(problems: Sequence[Problem]) -> dg.TableMetadataValue:
    """Make a table of problems, errors first."""
    ordered = sorted(problems, key=lambda problem: problem.severity)
    return table(
        PROBLEM_COLUMNS,
        [{name: _shown(getattr(problem, name)) for name in PROBLEM_COLUMNS} for problem in ordered],
    )


def problems_metadata(problems: Sequence[Problem]) -> Metadata:
    """Count problems and show the first of them."""
    errors = sum(problem.severity == "error" for problem in problems)
    return {
        "n_errors": errors,
        "n_warnings": len(problems) - errors,
        **({"problems": problems_table(problems)} if problems else {}),
    }


@contextlib.contextmanager
def clear_failures() -> Iterator[None]:
    """Turn errors about input into a failure that shows them, in place of a traceback; trying again would not help."""
    try:
        yield
    except InputError as error:
        # from None: Dagster stores every cause with its own words, which nothing has masked
        raise dg.Failure(
            masked_text(str(error)), metadata=problems_metadata(error.problems), allow_retries=False
        ) from None


def measures_table(
    strategies: Sequence[Mapping[str, Any]], level: str, labels: Sequence[str]
) -> Metadata:
    """Show measures of one level with interval and denominators, by strategy."""
    rows = [
        {
            "strategy": entry["name"],
            MEASURE_COLUMNS[2]: interval(record["value"], record["ci_low"], record["ci_high"]),
            **record,
        }
        for label in labels
        for entry in strategies
        for record in entry["measures"]
        if record["level"] == level and record["label"] == label
    ]
    return {
        f"measures_{level}": table(MEASURE_COLUMNS, rows),
        "n_undefined": n_undefined(rows, "value"),
    }


def histogram(counts: Sequence[tuple[str, int]], heading: str) -> dg.MarkdownMetadataValue:
    """Draw counts as a Markdown table with bars."""
    top = max((count for _, count in counts), default=0) or 1
    lines = [
        f"| {heading} | n | |",
        "|---|---:|---|",
        *(
            f"| {name} | {count:,} | {'█' * round(BAR_WIDTH * count / top)} |"
            for name, count in counts
        ),
    ]
    return dg.MetadataValue.md("\n".join(lines))


def text(value: str) -> dg.TextMetadataValue:
    """Text as text: an empty or path-like one is not guessed to be something else."""
    return dg.MetadataValue.text(value)
