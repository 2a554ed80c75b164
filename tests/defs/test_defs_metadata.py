"""Metadata holds native types, short tables and nulls."""

import dagster as dg
import numpy as np
import pytest

from rag_eval.core.errors import InputError, Problem
from rag_eval.core.frames import CHUNKS
from rag_eval.defs.metadata import (
    MAX_ROWS,
    clear_failures,
    column_schema,
    draw_chart,
    native,
    problems_shown,
    to_metadata,
)
from rag_eval.pipeline.runner import Chart, Table


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(1), True),
        (float("nan"), None),
        (np.inf, None),
        ("x", "x"),
        (None, None),
    ],
)
def test_native(value, expected):
    found = native(value)
    assert found == expected
    assert type(found) in {int, float, bool, str, type(None)}


def test_table_is_short_and_typed():
    rows = [
        {
            "name": f"r{at}",
            "value": np.float64(at) if at else float("nan"),
            "n": np.int64(at),
            "all": at % 2 == 0,
        }
        for at in range(80)
    ]
    made = to_metadata({"table": Table(("name", "value", "n", "all", "absent"), rows)})["table"]
    assert len(made.records) == MAX_ROWS
    assert made.records[0].data == {
        "name": "r0",
        "value": None,
        "n": 0,
        "all": True,
        "absent": None,
    }
    assert {column.name: column.type for column in made.schema.columns} == {
        "name": "string",
        "value": "float",
        "n": "int",
        "all": "bool",
        "absent": "string",
    }
    dg.MaterializeResult(metadata={"table": made})


def test_a_chart_places_value_and_interval_on_its_axis():
    lines = draw_chart(Chart({"low": (0.0, 0.0, 0.5), "one": (1.0, None, None)})).splitlines()
    assert [line.split("│")[1].rstrip() for line in lines[1:3]] == ["●" + "─" * 10, " " * 20 + "●"]
    assert lines[1].startswith("low 0.000 [0.00, 0.50]")
    below = draw_chart(Chart({"worse": (-0.5, -1.0, 0.0)})).splitlines()
    assert below[1].split("│")[1].startswith("─────●────")
    assert below[2].split() == ["-1.0", "1.0"]
    assert to_metadata({"chart": Chart({})}) == {}


def test_problems_show_errors_first_and_become_a_failure():
    problems = [
        Problem("late", "w", severity="warning"),
        *[Problem(f"p{at}", "e", file="f", line=at) for at in range(60)],
    ]
    found = to_metadata(problems_shown(problems))
    assert (found["n_errors"], found["n_warnings"]) == (60, 1)
    assert len(found["problems"].records) == MAX_ROWS
    assert all(record.data["severity"] == "error" for record in found["problems"].records)
    with pytest.raises(dg.Failure, match="p59") as caught, clear_failures():
        raise InputError(problems)
    assert caught.value.metadata["n_errors"].value == 60
    assert not caught.value.allow_retries


@pytest.mark.parametrize("code", ["database_failed", "home_unreachable"])
def test_only_an_outage_is_tried_again(code):
    with pytest.raises(dg.Failure) as caught, clear_failures():
        raise InputError.of(code, "the server does not answer")
    assert caught.value.allow_retries


def test_column_schema_has_every_column_with_its_meaning():
    schema = column_schema(CHUNKS)["dagster/column_schema"]
    assert [column.name for column in schema.columns] == list(CHUNKS.columns)
    assert all(column.description for column in schema.columns)
