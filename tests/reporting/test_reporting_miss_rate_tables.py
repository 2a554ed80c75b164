"""Strategies are compared on a terminal and as CSV; their names are untrusted."""

import csv
import io
import re

import numpy as np
import pytest
from rich.console import Console

from rag_eval.measures.overlap import SharedGold
from rag_eval.reporting.listings import COLUMNS, show_comparison, write_comparison_csv
from rag_eval.uncertainty.comparing import Misses, compare, prediction_powered

REASON = "=no claim of [red]v was audited"
NAMES = ("bm25", "vector", "hybrid")


@pytest.fixture(scope="module")
def comparison():
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(80), 2)
    p = rng.beta(1, 3, 160)
    judged = np.arange(160) < 100
    misses = [
        Misses(name, np.where(judged, rng.random(160) < p, np.nan), p, p / 2) for name in NAMES
    ]
    live = [prediction_powered(part.missed, p, group) for part in misses[:2]]
    powered = dict(zip(NAMES, [*live, REASON], strict=True))
    return compare(misses, SharedGold.of_groups(group), powered=powered)


def test_the_terminal_shows_every_figure_and_difference(comparison):
    console = Console(width=120, file=io.StringIO())
    show_comparison(console, comparison)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 120
    assert "160 judged queries;" in text
    figures = [(entry.observed, "") for entry in comparison.strategies]
    figures += [(entry.skill, "") for entry in comparison.strategies]
    figures += [(row.delta, "+") for row in comparison.differences]
    for figure, sign in figures:
        value, low, high = (f"{part:{sign}.3f}" for part in figure.triple)
        assert f"{value} [{low}, {high}]" in text
    for row in comparison.differences:
        if row.n_better is not None:
            assert f"{row.n_better}/{row.n_worse}/{row.n_tied}" in text
    assert "100, worth " in text
    assert "100 audited + 60 not" in text
    flat = re.sub(r"\s+", " ", text)
    assert "Holm over all" in flat
    assert flat.count(REASON) == 1
    assert re.search(r"misses, powered +- +- *$", text, re.MULTILINE)


def test_the_csv_holds_all_and_starts_no_formula(comparison, tmp_path):
    write_comparison_csv(tmp_path / "comparison.csv", comparison)
    with (tmp_path / "comparison.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 3 * 6 + 3 * 5
    assert not any(value.startswith("=") for row in rows for value in row.values())
    found = {(row["a"], row["b"], row["measure"]): row for row in rows}
    difference = next(
        row
        for row in comparison.differences
        if (row.a, row.b, row.measure) == ("bm25", NAMES[2], "brier")
    )
    line = found["bm25", NAMES[2], "brier"]
    assert float(line["value"]) == difference.delta.value
    assert float(line["p_holm"]) == difference.p_holm
    assert int(line["n_better"]) == difference.n_better
    powered = found["bm25", "", "powered"]
    assert float(powered["extra_labels"]) == comparison.strategies[0].powered.extra_labels
    assert powered["reason"] == ""
    absent = found[NAMES[2], "", "powered"]
    assert (absent["value"], absent["extra_labels"], absent["n"]) == ("", "", "0")
    assert absent["reason"] == f"'{REASON}"  # cells that a spreadsheet would run are quoted
    assert found[NAMES[2], "", "observed"]["reason"] == ""
    assert found["bm25", "", "observed"]["p"] == ""
