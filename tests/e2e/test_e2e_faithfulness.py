"""A judging model measures faithfulness of a sample behind a flag, and its failures are counted.

Without the flag ragas is never imported.
"""

import json

import pytest
from cli_project import CONFIG
from fake_llm import FakeJudge

from rag_eval.reporting.report import _first_fault

# ragas 0.4 leaves a file open and warns about its own names.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)

KEY = "sk-judge-do-not-show"


@pytest.fixture
def judged(project, monkeypatch):
    """Run with a judge; return the report, its part on faithfulness, and the judge's requests."""
    project.write("gold_set.yaml", CONFIG.replace("top_k: 5}", "top_k: 5, ragas_sample_rate: 1}"))
    monkeypatch.setenv("RAG_EVAL_RAGAS_ENDPOINT", "judge")
    monkeypatch.setenv("FEATURE_RAGAS_EVAL", "1")

    def run(behaviour="good"):
        with FakeJudge(behaviour) as judge:
            endpoint = {"base_url": judge.base_url, "model": "judge-1", "api_key": KEY}
            endpoint |= {"max_retries": 0, "timeout_s": 20}
            monkeypatch.setenv("RAG_EVAL_ENDPOINTS", json.dumps({"judge": endpoint}))
            result = project.run()
            report = project.report()
            assert KEY not in result.output
            assert _first_fault(report) is None
            return report, report["answers"]["faithfulness"], len(judge.requests)

    return run


def test_the_judge_is_asked_and_its_verdict_is_in_the_report(judged):
    report, found, asked = judged()
    answered = report["answers"]["outcomes"]["answered"]
    # Every extracted sentence is part of its evidence.
    assert report["faithfulness"] == found["value"] == 1.0
    counts = tuple(found[name] for name in ("n_attempted", "n_scored", "n_sampled", "failures"))
    assert counts == (4, answered, answered, {})
    assert (found["model"], found["sample_rate"]) == ("judge-1", 1.0)
    assert report["features"]["FEATURE_RAGAS_EVAL"] is True
    assert asked == 2 * answered
    again, _, asked = judged()
    assert again["content_hash"] == report["content_hash"]
    assert asked in {0, 2 * answered}  # a judge on another port is a new judge
