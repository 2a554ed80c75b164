"""The panel of history shows the runs, the previous run and lines that break at a change."""

import copy
import re

import panel_reports
import pytest
from panel_pages import rows

from rag_eval.pipeline.history import CODES
from rag_eval.reporting.html.elements import Cursor
from rag_eval.reporting.html.panels import run as panels


@pytest.fixture
def report():
    return panel_reports.full()


def test_runs_gates_and_differences(report):
    panel, markup = panel_reports.check("history", report)
    assert markup.count('<svg class="plot"') == 6
    found = rows(panel, "history")
    assert [row["run"][:8] for row in found] == ["20260104", "20260103", "20260102", "20260101"]
    assert [row["comparable"] for row in found] == [
        "comparable",
        "not comparable",
        "not comparable",
        "first",
    ]
    assert (
        found[0]["recall"],
        found[0]["recall_low"],
        found[0]["scored"],
        found[0]["status"],
        found[0]["failed"],
    ) == ("0.53", "0.4", "20", "provisional", "1")
    assert rows(panel, "previous-differences")[0]["delta"] == "0.02"
    assert '<span class="chip pass">comparable</span>' in markup


def test_breaks_are_named_in_every_picture(report):
    _, markup = panel_reports.check("history", report)
    drawn = [
        picture
        for picture in re.findall(r'<svg class="plot".*?</svg>', markup, re.DOTALL)
        if "history-previous-title" not in picture
    ]
    assert len(drawn) == 5
    assert all(">1</text>" in picture and ">2</text>" in picture for picture in drawn)
    captions = re.findall(r"Changed: ([^<]*)", markup)
    assert len(captions) == 5
    assert {"index, gold", "code"} == {part[2:] for part in captions[0].rstrip(".").split("; ")}


def test_a_line_does_not_go_through_a_break():
    assert panels.split([0, 1, 2, 3], [2]) == [[0, 1], [2, 3]]
    assert panels.split([0, 2, 3], []) == [[0], [2, 3]]
    assert panels.split([], []) == []


def test_what_changed_is_read_from_codes_or_from_hashes(report):
    assert all(code.endswith("_changed") for code in CODES)
    before, run = (Cursor(copy.deepcopy(report["history"]["runs"][at])) for at in (0, 1))
    assert panels.changes_between(before, run) == ["code"]
    del run.value["reason_codes"]
    assert panels.changes_between(before, run) == []
    run.value["gold_hash"] = "f" * 32
    assert panels.changes_between(before, run) == ["gold"]


def test_one_run_begins_the_history():
    report = panel_reports.full(nights=1)
    report |= {"previous": None, "previous_reason": "no run of this gold set is kept from before"}
    panel, markup = panel_reports.check("history", report)
    assert "History begins with this run" in markup
    assert "no run of this gold set is kept from before" in markup
    assert "<svg" not in markup
    assert [each.name for each in panel.exports] == ["history"]


def test_old_runs_lack_parts_and_some_cannot_be_read(report):
    for night in report["history"]["runs"][:2]:
        for entry in night["strategies"].values():
            entry |= {
                "skill": None,
                "skill_reason": "the run does not say it",
                "status": None,
                "status_reason": "likewise",
                "recall": None,
                "recall_reason": "likewise",
                "latency_p95_ms": None,
                "latency_p95_ms_reason": "likewise",
            }
        night |= {"rev": None, "rev_reason": "likewise"}
    del report["history"]["runs"][2]["strategies"]["bm25"]
    report["history"] |= {
        "n_left_out": 7,
        "n_unreadable": 1,
        "unreadable": [{"run_id": "<b>", "reason": "not a run as it was kept"}],
    }
    panel, markup = panel_reports.check("history", report)
    assert "<code><bdi" in markup
    assert "not a run as it was kept" in markup
    assert (7, "/history/n_left_out") in panel_reports.figures(markup)
    assert rows(panel, "history")[3]["recall"] == ""


def test_differences_that_cannot_be_paired_say_why(report):
    report["previous"] |= {
        "deltas": None,
        "deltas_reason": "judged by different gold",
        "comparable": False,
        "reason_codes": ["gold_changed"],
        "reasons": ["the gold differs"],
    }
    panel, markup = panel_reports.check("history", report)
    assert "No paired differences:" in markup
    assert "judged by different gold" in markup
    assert "the gold differs" in markup
    assert "previous-differences" not in {each.name for each in panel.exports}


def test_the_index_beside_a_figure_is_the_one_that_it_was_measured_on(report):
    own = f"bm25s:{'a' * 32}"
    for at, night in enumerate(report["history"]["runs"]):
        night["index_hash"] = f"hybrid:{at:032x}"  # of the primary strategy of that night
        night["strategies"]["bm25"]["index_hash"] = own
    del report["history"]["runs"][0]["strategies"]["bm25"]
    panel, markup = panel_reports.check("history", report)
    assert [row["index_hash"] for row in rows(panel, "history")] == [own, own, own, ""]
    assert 'data-at="/history/runs/3/strategies/bm25/index_hash"' in markup
