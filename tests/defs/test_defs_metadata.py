"""Metadata holds native types, short tables and nulls."""

import dagster as dg
import numpy as np
import pytest

from rag_eval.core.errors import InputError, Problem
from rag_eval.defs.assets import (
    MAX_ROWS,
    Table,
    clear_failures,
    problems_shown,
    summarize,
    to_metadata,
)


def test_table_is_short_and_has_native_values():
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
    dg.MaterializeResult(metadata={"table": made})


def test_a_result_becomes_plain_values_figures_and_tables():
    estimate = {"value": 0.5, "ci_low": 0.25, "ci_high": 0.75, "n_scored": 4}
    shown = summarize(
        {
            "about": {
                "level": "document",
                "recall": estimate,
                "by": {"a": {"n": 1}, "b": {"n": 2}},
            },
            "gates": [{"id": "x", "evidence": {"value": 0.5}, "names": ["p", "q"], "deep": [[1]]}],
            "failed": [],
        }
    )
    assert shown.pop("by") == Table(["name", "n"], [{"name": "a", "n": 1}, {"name": "b", "n": 2}])
    assert shown.pop("gates").rows == [{"id": "x", "evidence": "0.500", "names": "p, q"}]
    assert shown == {"level": "document", "recall": "0.500 [0.25, 0.75]", "failed": ""}
    assert "x@y.example" not in str(summarize({"note": "write to x@y.example now"}))


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
