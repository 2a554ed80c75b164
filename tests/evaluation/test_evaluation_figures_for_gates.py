"""Gates receive figures with their intervals and counts, and a reason for each null figure."""

import pytest
from cli_project import CONFIG, DOCUMENTS

from rag_eval.pipeline.report_stages import _figures_for_gates
from rag_eval.reporting.report import Report

FROM = "---\nurl: https://{}/{}\n---\n\n"
TRUST = (
    "trust: {domains: [example.org], unlisted: allow}\nacceptance: {avg_trust_score: '>= 0.01'}\n"
)
CONFIGURED = CONFIG.replace("advisory: [acceptance]", "advisory: [acceptance, stability]") + TRUST


@pytest.fixture
def report(project, shared_runs):
    """Return the report of a project with one wording per question.

    Two of the three documents come from the listed domain.
    """
    (project.gold / "paraphrases.jsonl").unlink()
    project.write("gold_set.yaml", CONFIGURED)
    for name, host in (
        ("storage.md", "example.org"),
        ("retries.md", "example.org"),
        ("alerts.md", "example.net"),
    ):
        project.write(f"corpus/{name}", FROM.format(host, name) + DOCUMENTS[name])
    shared_runs.run(project)
    return project.report()


def test_gates_get_figures_with_bounds_counts_and_reasons(report):
    found = _figures_for_gates(Report.model_validate(report))
    figure = found["avg_trust_score"]
    assert figure["ci_low"] < figure["value"] == report["avgTrustScore"]
    gates = {gate["id"]: gate for gate in report["gates"]}
    few, unknown = gates["acceptance.avg_trust_score"], gates["stability.convergent_hit"]
    assert (few["reason_code"], few["evidence"]["min_queries"]) == ("too_few_queries", 50)
    assert few["evidence"]["n_effective"] == figure["n_effective"]
    assert (unknown["status"], unknown["reason_code"]) == ("insufficient_evidence", "not_measured")
    assert "no question has a second wording" in unknown["evidence"]["reason"]
    assert found["latency_p95_ms"]["value"] == report["strategies"][0]["latency_ms"]["p95"]
