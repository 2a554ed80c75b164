"""The longest names of strategies are not cut in a picture and do not overlap."""

import copy
import re

import panel_reports
import pytest
from panel_pages import HIDDEN, HOSTILE, renamed, rendered, rows

from rag_eval.reporting.html.elements import Cursor
from rag_eval.reporting.html.page import render_panel
from rag_eval.reporting.html.panel import Page

LONG = "w" * 64


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
    made, _ = render_panel("measures", page)
    drawn = re.findall(r"<text[^>]*>([^<]*)</text>", str(made.context["pictures"]))
    assert any(text.startswith("www") and text.endswith("…") for text in drawn)
    assert max(map(len, drawn)) <= 26
    assert f">{LONG}</bdi>" in str(made.exports[0].html())
    assert "long" in str(page.swatch(LONG)).split('"')[1].split()
    assert (
        "long"
        not in str(page.swatch(next(name for name in page.strategies if name != LONG)))
        .split('"')[1]
        .split()
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_data(report, name):
    report = renamed(report, "bm25", name)
    found = {panel: rendered(panel, report)[0] for panel in ("miss-rates", "recall", "stability")}
    for table in ("miss-rates", "recall"):
        assert rows(found[table], table)[0]["strategy"].lstrip("'") == name


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_data_where_answers_and_chunks_are_named(report, text):
    report["answers"]["gap"]["flagged"] = [{"query_id": text, "reason": text, "answer": text}]
    report["answers"] |= {"model": text, "codes": {text: 1}, "outcomes": {text: 1}}
    report["citations"]["codes"] = {text: 1}
    report["trust"]["notes"] = [text]
    report["trust"]["poisoning"] |= {"reasons": {text: 1}, "rules_version": text}
    for part in report["slices"]["by"]:
        part |= {"name": text, "about": text}
    for panel in ("citations", "trust", "slices"):
        rendered(panel, report)


def test_what_would_be_invisible_is_written_out(report):
    report["calibration"]["strategies"]["bm25"]["refused"] = HIDDEN
    html = rendered("miss-rates", report)[1]
    assert "a[U+202E]b[U+0000]c" in html
    assert "\u202e" not in html
