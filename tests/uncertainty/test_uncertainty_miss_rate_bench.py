"""The benchmark of miss rates compares figures with bars before it rounds the figures."""

import importlib
import json
import math

import pytest


@pytest.fixture
def bench(project_root, monkeypatch):
    monkeypatch.syspath_prepend(project_root / "benchmarks")
    return importlib.import_module("miss_rate")


@pytest.mark.parametrize(
    ("bar", "value", "met"),
    [
        ((0.84, None), 0.84, True),
        ((0.84, None), 0.83999, False),
        ((None, 0.02), 0.02, True),
        ((None, 0.02), 0.0201, False),
        ((0.8, 1.25), 1.3, False),
        ((0.1, None), math.nan, False),
        ((0.1, None), None, False),
    ],
)
def test_a_bar_includes_its_ends(bench, bar, value, met):
    assert bench.is_met(value, bar) is met


def test_a_line_names_the_bars_that_are_not_met(bench, capsys):
    figures = {"skill": {"value": 0.249999, "low": 0.1, "high": math.inf}, "auroc": 0.9}
    assert bench.emit("s", figures, {"skill": (0.25, None), "auroc": (0.84, None)}) is False
    assert bench.emit("s", {"skill": 0.3}) is None
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["met"], first["not_met"]) == (False, ["skill"])
    assert first["skill"] == {"value": 0.25, "low": 0.1, "high": None}
    assert (second["met"], second["bar"]) == (None, None)
