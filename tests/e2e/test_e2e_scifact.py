"""The published figures of BEIR SciFact through the command line, with no configuration."""

import json

import pytest

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # raised inside MLflow's own SQLAlchemy models


def figures(report, strategy):
    entry = next(entry for entry in report["strategies"] if entry["name"] == strategy)
    return {
        record["label"]: record for record in entry["measures"] if record["level"] == "document"
    }


def run(project, shared_data, *more):
    result = project.invoke("run", "--beir", str(shared_data / "scifact"), "--split", "test", *more)
    assert result.exit_code == 0, result.stderr
    return json.loads(
        (project.reports / "scifact-test" / "retrieval-metrics.json").read_text(encoding="utf-8")
    )


@pytest.mark.slow
def test_the_command_line_gives_published_figures(project, shared_data):
    report = run(
        project, shared_data, "--vectors", str(shared_data / "embeddings" / "all-MiniLM-L6-v2.npz")
    )
    assert (report["gold"]["n_queries"], report["index"]["n_documents"]) == (300, 5183)
    bm25, found = figures(report, "bm25"), figures(report, "vector")
    assert bm25["nDCG@10"]["value"] == pytest.approx(0.679, abs=0.010)
    assert bm25["R@100"]["value"] == pytest.approx(0.925, abs=0.010)
    assert found["nDCG@10"]["value"] == pytest.approx(0.6451, abs=0.0005)
    assert found["R@10"]["value"] == pytest.approx(0.7833, abs=0.0005)
    assert found["R@100"]["value"] == pytest.approx(0.9250, abs=0.0005)
    assert figures(report, "hybrid")["nDCG@10"]["value"] > max(
        found["nDCG@10"]["value"], bm25["nDCG@10"]["value"]
    )
