"""The verdict strip: what passes, what was never asked for, and its figures with their intervals and denominators."""

import copy
import re

import panel_reports
import pytest

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.page import Page
from rag_eval.reporting.html.panels import verdict
from rag_eval.reporting.html.templating import render

GATE = {"id": "recall", "required": True, "severity": "block", "status": "pass", "reason_code": "ok", "evidence": {"accepted": "at least 0.5", "value": 0.6}}


@pytest.fixture
def report():
    found = panel_reports.full()
    found["gates"] = [copy.deepcopy(GATE)]
    record = panel_reports.estimate
    uncertainty = {"k": 10, "target": "miss_any", "strategies": {name: {"observed": {"miss_any": record(0.3)}} for name in (entry["name"] for entry in found["strategies"])}}
    head = {"groundedness": 0.9, "avgTrustScore": 0.62, "poisonedBlocked": 4, "content_hash": "c" * 32, "uncertainty": uncertainty}
    return {**found, **head, "gold": {"hash": "g" * 32, "version": "1", "name": "tiny"}, "index": {**found["index"], "hash": "i" * 32, "rev": "r"}}


def shown(report):
    page = Page(Cursor(report))
    made = verdict.panel(page)
    return str(render(made.template, {"page": page, "report": page.report, **made.context}))


def card(markup, name):
    return next(part for part in re.findall(r"<li>(.*?)</li>", markup, re.DOTALL) if name in part)


def test_a_run_of_which_no_gate_is_required_does_not_pass_one(report):
    assert "<strong>Passes</strong>" in shown(report)
    report["gates"][0]["required"] = False
    for status in ("pass", "fail"):
        report["gates"][0]["status"] = status
        assert "<strong>Passes</strong>" not in shown(report)
        assert "requires no gate" in shown(report)
    report["gates"][0] |= {"required": True, "status": "insufficient_evidence"}
    assert "<strong>Fails</strong>" in shown(report)


def test_groundedness_and_trust_stand_with_interval_and_denominator(report):
    markup = shown(report)
    at = next(place for place, each in enumerate(report["answers"]["measures"]) if each["name"] == "groundedness")
    primary = report["strategy"]
    for name, place in (("groundedness of answers", f"/answers/measures/{at}"), ("average trust", f"/trust/retrieved/{primary}/avg_trust")):
        assert all(f'data-at="{place}/{key}"' in card(markup, name) for key in ("value", "ci_low", "ci_high", "n_scored", "n_attempted", "n_groups")), name


def test_without_answers_the_dash_says_why(report):
    report |= {"answers": {"value": None, "reason": "the gold set configures no answers"}, "groundedness": None, "groundedness_reason": "the gold set configures no answers"}
    assert "the gold set configures no answers" in card(shown(report), "groundedness")


def test_blocked_chunks_are_out_of_all_and_a_guard_that_only_reports_says_what_it_found(report):
    report["trust"]["poisoning"] |= {"quarantine": True}
    assert 'data-at="/trust/poisoning/n_chunks"' in card(shown(report), "poisoned")
    assert "quarantine is off" not in shown(report)
    report["trust"]["poisoning"] |= {"quarantine": False, "n_blocked": 7}
    assert re.search(r'found: <data value="7" data-at="/trust/poisoning/n_blocked">', card(shown(report), "poisoned"))
