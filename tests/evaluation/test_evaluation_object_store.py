"""A home in an object store: equal results, also when every process begins with an empty disk."""

import json
import os
import shutil
import subprocess
import sys

import postgres_server
import pytest
import s3_server
from cli_project import CONFIG
from pydantic import SecretStr

from rag_eval.core.settings import Settings
from rag_eval.pipeline.history import open_run
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.stages import clean, evaluate, open_runner
from rag_eval.storage.home import open_home

NO_MLFLOW = "http://127.0.0.1:9"
"""Address without a server: a run ends without MLflow."""
WORKERS, N_TURNS = ("Ada", "Ben"), 3


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
    runner = open_runner(open_gold_set(project.gold, settings))
    assert [str(node) for node in runner.nodes() if runner.find_recorded(node) is None] == []


EACH_STAGE = """
import dataclasses, os, sys, traceback
from pathlib import Path
import s3fs
from rag_eval.core.settings import Settings
from rag_eval.pipeline import stages
from rag_eval.pipeline.opening import open_gold_set

def open_runner(disk):
    settings = Settings(scratch=disk / "scratch", reports=disk / "reports")
    evaluation = open_gold_set(Path(sys.argv[1]), settings)
    return stages.open_runner(dataclasses.replace(evaluation, use_record=True))

def run_one(node):
    runner = open_runner(Path(f"disk of {node}").absolute())
    runner.one(node)
    assert list(runner.made) == [node], f"{list(runner.made)}: inputs were made again"

for node in open_runner(Path("unused")).nodes():
    process = os.fork()  # imports only: nothing has been opened or read
    if process == 0:
        try:
            run_one(node)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(process, 0)[1]:
        sys.exit(f"{node} failed")
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_stage_runs_in_a_new_process_with_an_empty_disk(
    project, address, project_root, monkeypatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    graph = "  - {name: near, kind: vector, search: approximate, embedding: {model: lsa-8}}\ngates:"
    project.write("gold_set.yaml", CONFIG.replace("gates:", graph))
    folder = Settings(home=project.home, reports=project.reports, tracking_uri=NO_MLFLOW)
    expected = evaluate(open_gold_set(project.gold, folder)).report.content_hash
    with postgres_server.running() as database:
        environment = {
            **os.environ,
            "PYTHONPATH": str(project_root),
            "RAG_EVAL_HOME": address,
            "RAG_EVAL_DATABASE_URL": database,
            "RAG_EVAL_TRACKING_URI": NO_MLFLOW,
            "RAG_EVAL_HTML_REPORT": "true",
            "RAG_EVAL_GOLD_SETS": str(project.gold.parent),
        }
        done = subprocess.run(
            [sys.executable, "-c", EACH_STAGE, str(project.gold)],
            env=environment,
            capture_output=True,
            text=True,
            cwd=project.root,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        scratch = project.root / "scratch"
        settings = Settings(
            home=address, scratch=scratch, database_url=database, tracking_uri=NO_MLFLOW
        )
        home = open_home(settings)
        shared = json.loads(home.read("reports/tiny/retrieval-metrics.json"))
        assert shared["content_hash"] == expected
        assert "reports/tiny/index.html" in home.names("reports/tiny")

        home.write("artifacts/corpus_snapshot/abandoned/0123/about.json", b"{}")
        assert {one.count for one in clean(settings)} == {0}  # it may still be written
        monkeypatch.setattr("rag_eval.pipeline.stages.A_DAY_S", -1.0)
        assert [one.count for one in clean(settings)] == [1, 0, 0, 0]
        assert len(open_run(home, "latest").per_query())
