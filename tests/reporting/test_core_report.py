"""The type of the report: reasons of nulls, absent parts, and the generated schema."""

import json

import pytest
from pydantic import ValidationError

from rag_eval.core.records import Absent, Figure, Record
from rag_eval.measures.strategy_figures import LevelState
from rag_eval.reporting.report import SCHEMA_FILE, make_schema

COUNTS = {"n_attempted": 4, "n_scored": 0, "n_ineligible": 4, "n_effective": 0}


def test_the_schema_file_is_generated_from_the_type():
    assert json.loads(SCHEMA_FILE.read_text(encoding="utf-8")) == make_schema()


def test_a_null_figure_has_its_reason_beside_it():
    figure = Figure(value=None, ci_low=None, ci_high=None, **COUNTS)
    assert figure.dump() == {
        **COUNTS,
        "value": None,
        "value_reason": "no question was scored",
        "ci_low": None,
        "ci_low_reason": "no question was scored",
        "ci_high": None,
        "ci_high_reason": "no question was scored",
    }
    assert Figure.model_validate(figure.dump()) == figure


def test_a_mean_of_one_question_has_no_interval():
    figure = Figure(value=0.5, ci_low=None, ci_high=None, **COUNTS)
    assert figure.why["ci_low"] == "one question gives no interval"


def test_every_null_has_a_reason():
    class Bare(Record):
        value: float | None

    reason = "there is no value to compute it from"
    assert Bare(value=None).dump() == {"value": None, "value_reason": reason}
    assert Bare(value=None, why={"value": "none"}).dump() == {"value": None, "value_reason": "none"}


def test_a_part_that_was_not_set_is_left_out():
    assert LevelState(measured=True).dump() == {"measured": True}
    assert Absent(reason="off").model_dump() == {"value": None, "reason": "off"}


@pytest.mark.parametrize("changes", [{"value": float("nan")}, {"other": 1}, {"n_scored": -1}])
def test_a_figure_refuses_what_no_report_holds(changes):
    with pytest.raises(ValidationError):
        Figure.model_validate({"value": 0.5, "ci_low": 0.4, "ci_high": 0.6, **COUNTS, **changes})
