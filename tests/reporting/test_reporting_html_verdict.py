"""The verdict strip shows passed and absent gates and figures with intervals and denominators."""

import copy
import re

import panel_reports
import pytest
from panel_pages import rows

from rag_eval.core.report import GatePart
from rag_eval.reporting.html.elements import Cursor
from rag_eval.reporting.html.page import render_panel
from rag_eval.reporting.html.panel import Page
from rag_eval.reporting.terminal import describe_baseline, gates_table

GATE = {
    "id": "recall",
    "required": True,
    "severity": "block",
    "status": "pass",
    "reason_code": "ok",
    "evidence": {"accepted": "at least 0.5", "value": 0.6},
}


@pytest.fixture
def report():
    found = panel_reports.full()
    found["gates"] = [copy.deepcopy(GATE)]
    record = panel_reports.estimate
    uncertainty = {
        "k": 10,
        "target": "miss_any",
        "strategies": {
            name: {"observed": {"miss_any": record(0.3)}}
            for name in (entry["name"] for entry in found["strategies"])
        },
    }
    head = {
        "groundedness": 0.9,
        "avgTrustScore": 0.62,
        "poisonedBlocked": 4,
        "content_hash": "c" * 32,
        "uncertainty": uncertainty,
    }
    return {
        **found,
        **head,
        "gold": {"hash": "g" * 32, "version": "1", "name": "tiny"},
        "index": {**found["index"], "hash": "i" * 32, "rev": "r"},
    }


def shown(report):
    page = Page(Cursor(report))
    return str(render_panel("verdict", page)[1])


def card(markup, name):
    return next(part for part in re.findall(r"<li>(.*?)</li>", markup, re.DOTALL) if name in part)


def test_a_run_of_which_no_gate_is_required_does_not_pass_one(report):
    assert '<div class="verdict"><strong>required 1 of 1 met</strong>' in shown(report)
    report["gates"][0]["required"] = False
    for status in ("pass", "fail"):
        report["gates"][0]["status"] = status
        assert '<div class="verdict none"><strong>No verdict' in shown(report)
        assert "requires no gate" in shown(report)
    report["gates"][0] |= {"required": True, "status": "insufficient_evidence"}
    assert "<strong>Fails: required 0 of 1 met (1 without enough evidence)</strong>" in shown(
        report
    )


def test_nothing_is_green_over_an_advisory_gate_that_is_not_met(report):
    report["gates"].append({**report["gates"][0], "required": False, "status": "fail"})
    counts = "required 1 of 1 met, advisory 0 of 1 met"
    assert f'<div class="verdict none"><strong>{counts}</strong>' in shown(report)


def test_groundedness_and_trust_stand_with_interval_and_denominator(report):
    markup = shown(report)
    at = next(
        place
        for place, each in enumerate(report["answers"]["measures"])
        if each["name"] == "groundedness"
    )
    primary = report["strategy"]
    for name, place in (
        ("groundedness of answers", f"/answers/measures/{at}"),
        ("average trust", f"/trust/retrieved/{primary}/avg_trust"),
    ):
        assert all(
            f'data-at="{place}/{key}"' in card(markup, name)
            for key in ("value", "ci_low", "ci_high", "n_scored", "n_attempted", "n_groups")
        ), name


def test_without_answers_the_dash_says_why(report):
    report |= {
        "answers": {"value": None, "reason": "the gold set configures no answers"},
        "groundedness": None,
        "groundedness_reason": "the gold set configures no answers",
    }
    assert "the gold set configures no answers" in card(shown(report), "groundedness")


def test_blocked_chunks_are_out_of_all_and_a_guard_that_only_reports_says_what_it_found(report):
    report["trust"]["poisoning"] |= {"quarantine": True}
    assert 'data-at="/trust/poisoning/n_chunks"' in card(shown(report), "poisoned")
    assert "quarantine is off" not in shown(report)
    report["trust"]["poisoning"] |= {"quarantine": False, "n_blocked": 7}
    assert re.search(
        r'found: <data value="7" data-at="/trust/poisoning/n_blocked">',
        card(shown(report), "poisoned"),
    )


DROP = {
    "accepted": "relative drop < 0.05, or not significant",
    "measure": "mrr",
    "baseline": 0.43,
    "now": 0.411,
    "baseline_run": "20260101T000000000Z-00000000",
    "relative_drop": 0.0442,
    "value": -0.019,
    "ci_low": -0.045,
    "ci_high": 0.004,
    "n_groups": 113,
    "n_scored": 132,
}
DIFFERENT = {"index": {"before": "bm25s:aaaa", "now": "bm25s:bbbb"}}
REGRESSION = {
    "id": "regression.mrr",
    "gate": "regression",
    "required": False,
    "severity": "P2",
    "status": "pass",
    "reason_code": "no_regression",
    "evidence": DROP | {"different": DIFFERENT},
}


def test_a_drop_stands_beside_the_drop_that_is_accepted(report):
    report["gates"] = [REGRESSION]
    panel, html = render_panel("verdict", Page(Cursor(report)))
    markup, place = str(html), "/gates/0/evidence"
    cells = re.search(r'<tr><th scope="row">.*?</tr>', markup)[0]
    order = [
        cells.index(f'data-at="{place}/{key}"')
        for key in ("relative_drop", "value", "ci_low", "ci_high", "accepted")
    ]
    assert order == sorted(order)
    assert "drop <data" in cells
    assert "+0.004" in cells
    assert f'data-at="{place}/baseline_run">20260101T000000000Z-00000000' in markup
    assert all(f'data-at="{place}/different/index/{when}"' in markup for when in ("before", "now"))
    (row,) = rows(panel, "gates")
    keys = ("found", "difference", "difference_low", "difference_high", "baseline_run")
    figures = ["0.0442", "-0.019", "-0.045", "0.004", DROP["baseline_run"]]
    assert [row[key] for key in keys] == figures
    assert "bm25s:aaaa" in row["different"]


def test_a_baseline_of_nothing_has_a_difference_and_no_drop(report):
    evidence = {key: value for key, value in DROP.items() if key != "relative_drop"}
    report["gates"] = [{**REGRESSION, "evidence": evidence}]
    markup = shown(report)
    assert "difference <span" in markup
    assert "drop <data" not in markup
    assert "nothing else differs" in markup


def test_the_terminal_shows_what_a_drop_is_held_against():
    gates = [GatePart.model_validate(REGRESSION)]
    (row,) = gates_table(gates).rows
    assert row is not None
    assert row[2] == "drop 0.044\ndiff. -0.019 [-0.04, +0.00]"
    (line,) = describe_baseline(gates)
    assert "20260101T000000000Z-00000000" in line
    assert "index (bm25s:aaaa before, bm25s:bbbb now)" in line
