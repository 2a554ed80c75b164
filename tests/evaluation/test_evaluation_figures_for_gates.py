"""Gates receive figures with their intervals and counts, and a reason for each null figure."""

import pytest
from cli_project import CONFIG, DOCUMENTS
from gate_inputs import gate_inputs

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.report import Report
from rag_eval.gates.verdict import judge_gates
from rag_eval.pipeline.report import figures_for_gates

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


def figures(report):
    return figures_for_gates(dict(Report.model_validate(report)), "document")


def config(floor, min_queries):
    return GoldSetConfig.model_validate(
        {
            "name": "g",
            "corpus": {"loader": "folder", "path": "."},
            "strategies": [{"name": "bm25", "kind": "bm25"}],
            "acceptance": {"avg_trust_score": floor},
            "gates": {"required": [], "advisory": ["acceptance"], "min_queries": min_queries},
        }
    )


def test_a_floor_on_trust_is_held_by_the_bound_and_needs_enough_questions(report):
    gates = {gate["id"]: gate for gate in report["gates"]}
    few = gates["acceptance.avg_trust_score"]
    assert (few["status"], few["reason_code"], few["evidence"]["min_queries"]) == (
        "insufficient_evidence",
        "too_few_queries",
        50,
    )
    figure = figures(report)["avg_trust_score"]
    assert figure["ci_low"] < figure["value"] == report["avgTrustScore"]
    between = (figure["ci_low"] + figure["value"]) / 2
    for floor, status, code in (
        (between, "fail", "bound_not_met"),
        (figure["ci_low"] / 2, "pass", "met"),
    ):
        (found,) = judge_gates(gate_inputs(config(f">= {floor:.6f}", 2), figures=figures(report)))
        assert (found.status, found.reason_code, found.evidence["n_groups"]) == (
            status,
            code,
            figure["n_groups"],
        )


def test_without_a_second_wording_the_stability_gate_says_that_this_is_why(report):
    gate = next(gate for gate in report["gates"] if gate["id"] == "stability.convergent_hit")
    assert (gate["status"], gate["reason_code"]) == ("insufficient_evidence", "not_measured")
    assert "no question has a second wording" in gate["evidence"]["reason"]
    assert (
        gate["evidence"]["reason"]
        == report["stability"]["strategies"]["bm25"]["convergent_and_hit"]["value_reason"]
    )
