"""Figures keep their meaning on the terminal, in MLflow, in the content hash and in links."""

import copy
import io
from pathlib import Path

import panel_reports
import pytest
from rich.console import Console

from rag_eval.reporting.elements import _check_output
from rag_eval.reporting.mlflow import _report_metrics, _runs_page, _strategy_metrics
from rag_eval.reporting.questions import _web_address
from rag_eval.reporting.report import Report, content_hash
from rag_eval.reporting.tables import interval
from rag_eval.reporting.terminal import Places, show_outcome

VOLATILE = set(
    "cacheHitRate code content_hash embeddings history previous reused run_id timestamp "
    "uncertainty".split()
)


@pytest.fixture
def full():
    return panel_reports.full()


def test_the_terminal_shows_value_and_ordered_bounds():
    assert interval(0.5, 0.4, 0.6) == "0.500 [0.40, 0.60]"
    assert interval(0.5, None, 0.6) == "0.500"
    assert interval(None, None, None) == "-"
    assert interval(-0.0, -0.1, 0.1, "+") == "+0.000 [-0.10, +0.10]"


LINES, COLUMNS = 45, 100
PLACES = Places(Path("reports/tiny"), 1.0, runs=_runs_page("sqlite:///mlflow.db", "1"))


def printed(report, **options):
    console = Console(width=COLUMNS, file=io.StringIO())
    show_outcome(console, Report.model_validate(report), PLACES, **options)
    return console.file.getvalue().splitlines()


def crowded(report):
    """Give a report twelve strategies, twelve failed gates and three missed questions."""
    gate = {"gate": "g", "severity": "P2", "status": "fail", "required": False}
    gate |= {"reason_code": "value_not_met"}
    figure = {"value": 0.5, "ci_low": 0.4, "ci_high": 0.6, "accepted": ">= 0.9"}
    report["gates"] = [{**gate, "id": f"acceptance.{n}", "evidence": figure} for n in range(12)]
    count = {"strategy": "bm25", "n_found": 0, "n_runs": 8}
    report["look_first"] = [
        {
            "query_id": f"q{number}",
            "text": "How often is a failed job tried again? " * 5,
            "primary": count,
            "other": {**count, "strategy": "vector", "n_found": 8},
            "miss_rate": 0.25,
            "status": "prior",
            "lost": "The lexical list had it at 14; the cut-off at 10 lost it.",
        }
        for number in range(3)
    ]
    for number in range(9):
        name = f"other_{number}"
        report["strategies"].append({**report["strategies"][-1], "name": name})
        for part in (report["uncertainty"], report["calibration"], report["stability"]):
            part["strategies"][name] = next(iter(part["strategies"].values()))
    return report


def test_a_run_prints_one_screen_with_the_verdict_and_the_worst_questions(report):
    lines = printed(crowded(report))
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    text = "\n".join(lines)
    for words in (
        "bm25 *",
        "4 more strategies",
        "advisory 0 of 12 met",
        "7 more gates",
        "refused",
        "vector 8/8",
        "0.25",
        "reports/tiny/index.html",
        "/#/experiments/1/runs",
    ):
        assert words in text
    assert len(printed(report, verbose=True)) > LINES


@pytest.mark.parametrize(
    ("uri", "start"),
    [
        ("sqlite:////x/mlflow.db", "http://127.0.0.1:5000/#/experiments/7/runs"),
        ("https://bob:S3cret@host/", "https://***@host/#/experiments/7/runs"),
    ],
)
def test_the_link_opens_the_runs_without_credentials(uri, start):
    assert _runs_page(uri, "7").startswith(start)


@pytest.mark.parametrize("part", sorted(panel_reports.full()))
def test_the_content_hash_covers_what_was_found_and_nothing_else(full, part):
    changed = copy.deepcopy(full)
    changed[part] = (
        {"another": "value"}
        if isinstance(full[part], dict)
        else []
        if isinstance(full[part], list)
        else "another value"
    )
    assert (content_hash(changed) != content_hash(full)) == (part not in VOLATILE)


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [("n_failed", True), ("measures", True), ("latency_ms", False), ("cost_per_1k", False)],
)
def test_the_content_hash_leaves_out_time_and_cost(full, strategy, changes):
    changed = copy.deepcopy(full)
    changed["strategies"][0][strategy] = None
    assert (content_hash(changed) != content_hash(full)) == changes


def test_mlflow_gets_every_measure_with_its_bounds(report):
    whole = Report.model_validate(report | {"faithfulness": 0.75})
    answers, primary = _report_metrics(whole), _strategy_metrics(whole, whole.strategy)
    headline = [one for one in whole.primary.measures if one.level == "document"]
    for found, measures in (
        (answers, [*whole.answers.measures, *whole.citations.measures]),
        (primary, headline),
    ):
        for measure in measures:
            shown = [found.get(measure.name + end) for end in ("", ".ci_low", ".ci_high")]
            assert shown == [measure.value, measure.ci_low, measure.ci_high]
    assert answers["faithfulness"] == 0.75
    assert answers["retrieval_gap_flagged"] == whole.answers.gap.n_flagged
    assert primary["latency_p95_ms"] == whole.primary.latency_ms.p95
    assert primary["cost_per_1k"] == whole.primary.cost_per_1k
    assert None not in {**answers, **primary}.values()


def test_a_template_writes_out_what_cannot_be_seen():
    assert _check_output("pay\u202eload\u200b") == "pay[U+202E]load[U+200B]"
    with pytest.raises(TypeError, match="a bare float"):
        _check_output(0.5)


@pytest.mark.parametrize(
    "address",
    ["javascript:alert(1)", "data:text/html,x", "https://a b", "https://example.org/\u202e", "//x"],
)
def test_only_web_addresses_become_links(address):
    assert _web_address(address) == ""
    assert _web_address("https://example.org/a?b=c") == "https://example.org/a?b=c"
