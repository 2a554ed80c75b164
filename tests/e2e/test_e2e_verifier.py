"""Verifiers of sentences in a run: figures, report, failures and costs."""

import json
import re

import pytest
from cli_project import CONFIG, DOCUMENTS, PAGES, answer_measures
from fake_llm import FakeLLM
from overlap_model import make_overlap_model

WITH_VERIFIER = CONFIG.replace("top_k: 5}", "top_k: 5, verifier: own}")


@pytest.fixture
def run(project, monkeypatch):
    """Return a function that runs with a verifier: (report, output)."""
    project.write("gold_set.yaml", WITH_VERIFIER)

    def run(verifier):
        monkeypatch.setenv("RAG_EVAL_VERIFIERS", json.dumps({"own": verifier}))
        result = project.run()
        return project.report(), result.output

    return run


def test_an_onnx_verifier_replaces_the_score_of_words(run, tmp_path, project, monkeypatch):
    monkeypatch.setenv(PAGES, "1")
    file = make_overlap_model(tmp_path / "model", " ".join(DOCUMENTS.values()))
    report, _ = run({"kind": "onnx", "model": str(file), "entailment": 0})
    measures, verifier = answer_measures(report), report["answers"]["verifier"]
    for name in ("groundedness", "citation_support"):
        assert measures[name]["n_scored"] > 0
        assert measures[name]["value"] < 0.01  # the label of the opposite; words of a quote give 1
    assert (verifier["name"], verifier["failures"]) == ("own", {})
    assert "verifier_usage" not in report["answers"]
    assert re.search(r"support scored by</dt>.*model\.onnx, sha256", project.text("index.html"))
    assert report["answers"]["gap"]["n_flagged"] == 0  # FK019 compares words
    # verdicts on all evidence and on the cited text
    assert len(list((project.home / "artifacts" / "verified_sentences").iterdir())) == 2


def test_failed_verdicts_are_counted_and_asked_for_again(run, monkeypatch):
    with FakeLLM() as server:
        endpoint = {"base_url": server.base_url, "model": "burst_500:1", "max_retries": 0}
        endpoint["price_per_1k_tokens_in"] = 1.0
        monkeypatch.setenv("RAG_EVAL_ENDPOINTS", json.dumps({"local": endpoint}))
        reports = [run({"kind": "chat", "endpoint": "local"})[0] for _ in range(2)]
        n = len(server.received) // 2
    first, second = (report["answers"] for report in reports)
    assert first["verifier"]["failures"] == {"chat_server_error": n}
    assert answer_measures(reports[0])["groundedness"]["n_scored"] == 0
    assert second["verifier"]["failures"] == {}
    assert answer_measures(reports[1])["groundedness"]["value"] > 0.5
    assert second["verifier_usage"]["cost"] > 0


def test_an_unknown_verifier_is_refused_before_anything_is_made(project):
    project.write("gold_set.yaml", WITH_VERIFIER)
    assert "unknown_verifier [answers.verifier]" in project.run(exit_code=1).stderr
    assert not (project.home / "artifacts").exists()
