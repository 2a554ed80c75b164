"""The panel of cost and latency: percentiles with numbers of calls, cost, caches, search."""

import panel_reports
import pytest
from panel_pages import rows


@pytest.fixture
def report():
    return panel_reports.full()


def test_latency_cost_gates_and_approximate_search(report):
    panel, markup = panel_reports.check("cost", report)
    first, second, _ = rows(panel, "latency-cost")
    assert first == {
        "strategy": "bm25",
        "p50_ms": "1.25",
        "p95_ms": "3.75",
        "p99_ms": "6.25",
        "n": "60",
        "measured_at": "2026-01-02T03:04:05Z",
        "cost_per_1k": "0.0",
        "run": "reused",
    }
    assert (second["cost_per_1k"], second["run"]) == ("0.0125", "new")
    assert rows(panel, "cost-gates") == [
        {
            "gate": "acceptance.latency_p95_ms",
            "value": "3.75",
            "accepted": "<= 3",
            "status": "fail",
            "reason_code": "value_not_met",
        }
    ]
    assert [row["value"] for row in rows(panel, "approximate-search")] == ["0.97", "0.97"]
    assert markup.count('<svg class="plot"') == 2
    places = {place for _, place in panel_reports.figures(markup)}
    assert {"/cacheHitRate", "/embeddings/needed", "/answers/usage/cost_per_1k"} < places


def test_what_was_not_measured_says_why(report):
    report["strategies"][0] |= {
        "cost_per_1k": None,
        "cost_per_1k_reason": "what an external retriever costs is not known here",
        "latency_ms": {
            "n": 0,
            "p50": None,
            "p95": None,
            "p99": None,
            "measured_at": None,
            "reason": "a file has no latency",
        },
    }
    for entry in report["strategies"]:
        entry["ann_recall"] = None
    report["gates"] = []
    report |= {"cacheHitRate": None, "cacheHitRate_reason": "no vectors were needed"}
    report["embeddings"] = {"models": [], "needed": 0, "embedded": 0}
    report["answers"] = {"value": None, "reason": "the gold set configures no answers"}
    panel, markup = panel_reports.check("cost", report)
    for reason in (
        "a file has no latency",
        "what an external retriever costs",
        "no vectors were needed",
        "No strategy searches approximately",
    ):
        assert reason in markup
    assert [each.name for each in panel.exports] == ["latency-cost"]


def test_no_latency_at_all_draws_nothing(report):
    for entry in report["strategies"]:
        entry["latency_ms"] = {
            "n": 0,
            "p50": None,
            "p95": 0.0,
            "p99": None,
            "measured_at": None,
            "reason": "nothing was timed",
        }
        entry["ann_recall"] = None
    assert "<svg" not in panel_reports.check("cost", report)[1]
