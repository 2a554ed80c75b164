"""The panel of slices by tag, length and answerability warns against reading too much into them."""

import copy

import panel_reports
import pytest
from panel_pages import rows


@pytest.fixture
def report():
    return panel_reports.full()


def test_each_kind_has_its_picture_and_its_table(report):
    panel, markup = panel_reports.check("slices", report)
    assert [each.name for each in panel.exports] == [
        "slices-answerability",
        "slices-length",
        "slices-tag",
        "slices-strategies",
    ]
    assert markup.count('<svg class="plot"') == 6
    assert rows(panel, "slices-tag")[0] == {
        "slice": "io",
        "questions": "10",
        "groups": "7",
        "value": "0.4",
        "value_low": "0.2",
        "value_high": "0.65",
        "scored": "8",
        "miss": "0.4",
        "miss_low": "0.2",
        "miss_high": "0.65",
        "miss_scored": "8",
        "about": "questions of io",
    }
    assert rows(panel, "slices-answerability")[1]["abstained"] == "0.3"
    assert len(rows(panel, "slices-strategies")) == 15
    assert "some differ by chance" in markup


def test_unanswerable_questions_have_a_reason_and_no_recall(report):
    panel, markup = panel_reports.check("slices", report)
    assert rows(panel, "slices-answerability")[1]["value"] == ""
    assert "nothing was scored" in markup
    report["slices"]["by"][0]["abstention"] = {
        "value": None,
        "reason": "the gold set configures no answers",
    }
    assert "the gold set configures no answers" in panel_reports.check("slices", report)[1]


def test_one_strategy_and_many_tags(report):
    alone = panel_reports.full(("only",))
    tag = alone["slices"]["by"][-1]
    alone["slices"]["by"] += [copy.deepcopy(tag) | {"name": f"tag {at}"} for at in range(28)]
    panel, markup = panel_reports.check("slices", alone)
    assert "slices-strategies" not in {each.name for each in panel.exports}
    assert len(rows(panel, "slices-tag")) == 30
    assert "<summary>The figures by tag</summary>" in markup
    many = panel_reports.full(tuple(f"s{at}" for at in range(12)))
    many["slices"]["by"] += [
        copy.deepcopy(many["slices"]["by"][-1]) | {"name": f"tag {at}"} for at in range(28)
    ]
    panel, _ = panel_reports.check("slices", many)
    assert len(rows(panel, "slices-strategies")) == 72  # whole slices, at most eighty rows
