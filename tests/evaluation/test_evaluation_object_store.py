"""A home in an object store: equal results, also when every process begins with an empty disk."""

import json
import shutil

import pytest
import s3_server
from pydantic import SecretStr

from rag_eval.core.settings import Settings
from rag_eval.pipeline.evaluation import open_gold_set
from rag_eval.pipeline.history import open_run
from rag_eval.pipeline.stages import evaluate
from rag_eval.storage.home import open_home

NO_MLFLOW = "http://127.0.0.1:9"
"""Address without a server: a run ends without MLflow."""


@pytest.fixture
def address(monkeypatch):
    with s3_server.running(monkeypatch) as url:
        yield url


def test_a_home_in_an_object_store_gives_the_results_of_a_folder(project, address, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    folder = Settings(
        home=project.home, reports=project.reports, html_report=False, tracking_uri=NO_MLFLOW
    )
    expected = evaluate(open_gold_set(project.gold, folder)).report.content_hash
    database = SecretStr(f"sqlite:///{project.root}/outcomes.db")
    values = {
        "home": address,
        "scratch": project.root / "scratch",
        "reports": project.root / "other",
        "database_url": database,  # no other run writes, so PostgreSQL's locks are not needed
    }
    settings = folder.model_copy(update=values)
    ran = evaluate(open_gold_set(project.gold, settings))
    assert ran.report.content_hash == expected

    shutil.rmtree(settings.scratch)
    home = open_home(settings)
    shared = json.loads(home.read("reports/tiny/retrieval-metrics.json"))
    assert shared["content_hash"] == ran.report.content_hash
    figures = open_run(open_home(folder), "latest").per_query()
    assert open_run(home, "latest").per_query().equals(figures)
    runner = open_gold_set(project.gold, settings).runner
    assert [str(node) for node in runner.nodes() if runner.find_recorded(node) is None] == []
