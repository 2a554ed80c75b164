"""Doubtful sentences of recorded answers in a run, with the sentence model and without it."""

import pytest
from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2
from cli_project import PAGES, answer_measures, jsonl
from requirements import report_missing

from rag_eval.retrieval.dense import has_model
from rag_eval.retrieval.embedding import minilm

FACT = "A failed job is tried three more times."
OUTPUTS = [
    {
        "query_id": "again",
        "question": "How often is a failed job tried again?",
        "answer": "A job that breaks gets three further attempts.",
        "contexts": [{"doc_id": "retries.md", "text": FACT}],
    }
]


@pytest.fixture
def run(project):
    """Return a function that judges the outputs: their report."""
    folder = project.root / "my-system"
    folder.mkdir()
    (folder / "outputs.jsonl").write_text(jsonl(OUTPUTS), encoding="utf-8")

    def run():
        project.command("run", "--recorded", folder)
        return project.report("my-system")

    return run


def test_a_run_names_the_sentence_model_or_the_reason(run, project, tmp_path, monkeypatch):
    if not has_model():
        report_missing("minilm", "the model all-MiniLM-L6-v2 is not on this machine")
    monkeypatch.setenv(PAGES, "1")
    with_model = run()
    assert with_model["answers"]["sentence_model"] == "all-MiniLM-L6-v2"
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    monkeypatch.setattr(ONNXMiniLM_L6_V2, "DOWNLOAD_PATH", tmp_path / "absent")
    without = run()
    reason = "the model is not on this machine"
    assert without["answers"]["sentence_model"] is None
    assert without["answers"]["sentence_model_reason"] == reason
    assert reason in project.text("index.html", "my-system")
    for report in (with_model, without):
        assert answer_measures(report)["groundedness"]["n_scored"] == 1
    assert without["groundedness"] < with_model["groundedness"] < 1
