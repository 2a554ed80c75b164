"""Names of strategies as long as they may be: no picture is cut by them, and none stands over its neighbour."""

import copy
import re

import panel_reports
import pytest

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.page import Page
from rag_eval.reporting.html.panels import measures
from rag_eval.reporting.html.panels.parts import WIDTH, legend_below
from rag_eval.reporting.html.pictures import drawing
from rag_eval.reporting.plots import new_figure

LONG = "w" * 64


@pytest.mark.parametrize(
    "names",
    [
        ["bm25", "vector", "hybrid"],
        [LONG[:24], "m" * 24, "bm25"],
        ["a_strategy_of_two_parts", "another_of_three_parts", "rrf"],
    ],
)
def test_a_legend_is_no_wider_than_its_picture(names):
    with drawing():
        figure = new_figure(WIDTH, 3.0)
        axes = figure.subplots()
        for name in names:
            axes.plot([0, 1], [0, 1], label=name.replace("w", "n").replace("m", "n"))
        legend_below(axes)
        figure.draw_without_rendering()
        legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= -1
    assert legend.x1 <= figure.bbox.x1 + 1


def test_names_are_cut_in_the_forest_plot_and_whole_in_the_table():
    report = panel_reports.full()
    old = report["strategy"]
    report |= {
        "strategy": LONG,
        "comparisons": [],
        "strategies": [
            copy.deepcopy(entry) | ({"name": LONG} if entry["name"] == old else {})
            for entry in report["strategies"]
        ],
    }
    page = Page(Cursor(report))
    made = measures.panel(page)
    drawn = re.findall(r"<text[^>]*>([^<]*)</text>", str(made.context["forest"]))
    assert any(text.startswith("www") and text.endswith("…") for text in drawn)
    assert max(map(len, drawn)) <= 24
    assert f">{LONG}</bdi>" in str(made.tables[0].html())
    assert "long" in str(page.swatch(LONG)).split('"')[1].split()
    assert (
        "long"
        not in str(page.swatch(next(name for name in page.strategies if name != LONG)))
        .split('"')[1]
        .split()
    )
