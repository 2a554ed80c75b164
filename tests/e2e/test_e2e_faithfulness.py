"""A judging model measures faithfulness of a sample behind a flag, and its failures are counted.

Without the flag ragas is never imported.
"""

import json
import subprocess
import sys

import pytest
from cli_project import CONFIG
from ragas_fake_server import FakeJudge

from rag_eval.core.report import first_fault

# ragas 0.4 leaves a file open and warns about its own names.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)

KEY = "sk-judge-do-not-show"
IMPORTS = """
import sys
from rag_eval.cli import app
try:
    app(sys.argv[1:])
finally:
    print("heavy:", sorted({"ragas", "datasets", "langchain_core", "openai"} & set(sys.modules)))
"""


@pytest.fixture
def judged(project, monkeypatch):
    def run(behaviour="good", rate=1.0, exit_code=0):
        with FakeJudge(behaviour) as judge:
            endpoint = {
                "base_url": judge.base_url,
                "model": "judge-1",
                "api_key": KEY,
                "max_retries": 0,
                "timeout_s": 20,
            }
            monkeypatch.setenv("RAG_EVAL_ENDPOINTS", json.dumps({"judge": endpoint}))
            monkeypatch.setenv("RAG_EVAL_RAGAS_ENDPOINT", "judge")
            monkeypatch.setenv("FEATURE_RAGAS_EVAL", "1")
            (project.gold / "gold_set.yaml").write_text(
                CONFIG.replace("top_k: 5}", f"top_k: 5, ragas_sample_rate: {rate}}}"),
                encoding="utf-8",
            )
            result = project.invoke("run", "tiny")
            assert result.exit_code == exit_code, result.output
            assert "Traceback" not in result.output
            return result, len(judge.requests)

    return run


def answered(report):
    return report["answers"]["outcomes"]["answered"]


def test_the_judge_is_asked_and_its_verdict_is_in_the_report(project, judged):
    result, asked = judged()
    report = project.report()
    assert first_fault(report) is None
    found = report["answers"]["faithfulness"]
    assert (
        report["faithfulness"] == found["value"] == 1.0
    )  # extracted sentences stand in their evidence
    assert (found["n_attempted"], found["n_scored"], found["n_sampled"], found["failures"]) == (
        4,
        answered(report),
        answered(report),
        {},
    )
    assert (found["model"], found["sample_rate"], report["features"]["FEATURE_RAGAS_EVAL"]) == (
        "judge-1",
        1.0,
        True,
    )
    assert asked == 2 * answered(report)
    assert KEY not in result.output
    first = report["content_hash"]
    _, again = judged()
    assert project.report()["content_hash"] == first
    assert again in {0, 2 * answered(report)}  # another port is another judge


@pytest.mark.slow
def test_a_judge_that_fails_is_counted_and_ends_nothing(project, judged):
    judged("garbage")
    report = project.report()
    assert first_fault(report) is None
    found = report["answers"]["faithfulness"]
    assert report["faithfulness"] is None
    assert report["faithfulness_reason"] == found["value_reason"]
    assert found["n_failed"] == answered(report) == sum(found["failures"].values()) > 0
    assert report["groundedness"] is not None
    # Failures are not cached, so the next run asks again.
    _, asked = judged("good")
    assert asked == 2 * answered(report)
    assert project.report()["faithfulness"] == 1.0


@pytest.mark.slow
def test_without_the_flag_ragas_is_not_imported(project):
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *project.arguments("run", "tiny")],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=project.root,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"
    report = project.report()
    assert (report["faithfulness"], report["faithfulness_reason"]) == (
        None,
        "FEATURE_RAGAS_EVAL is off",
    )
