"""Two runs at once: with local stores one waits for the other, with servers neither waits."""

import json
import os
import subprocess
import sys
import time

import postgres_server
import pytest
from cli_project import CONFIG

from rag_eval.core.settings import Settings
from rag_eval.storage.locks import WriteLock

pytestmark = pytest.mark.slow
LINE_S = 120


@pytest.fixture
def two(project, project_root, monkeypatch):
    """Return the project with a second gold set, `other`."""
    monkeypatch.setenv("PYTHONPATH", str(project_root))
    (project.gold.parent / "other").mkdir()
    for path in project.gold.rglob("*.*"):
        copy = project.gold.parent / "other" / path.relative_to(project.gold)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (project.gold.parent / "other" / "gold_set.yaml").write_text(
        CONFIG.replace("name: tiny", "name: other")
    )
    return project


def start(project, name):
    """Start `rag-eval run`; its standard error is a file, so that nobody has to read it."""
    with (project.root / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rag_eval", *project.arguments("run", name)],
            cwd=project.root,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )


def wait_for_line(project, name, text):
    until = time.monotonic() + LINE_S
    while text not in (found := (project.root / f"{name}.log").read_text()):
        assert time.monotonic() < until, found
        time.sleep(0.1)


def test_runs_of_one_home_wait_for_their_turn_and_both_succeed(two):
    with WriteLock(Settings(home=two.home), "test"):
        runs = [start(two, name) for name in ("tiny", "other")]
        for name in ("tiny", "other"):
            wait_for_line(two, name, f"waiting for process {os.getpid()} on")
    assert [run.wait(timeout=300) for run in runs] == [0, 0]
    assert two.report("tiny")["gold"]["name"] == "tiny"
    assert two.report("other")["gold"]["name"] == "other"


def test_on_servers_only_a_run_of_the_same_gold_set_waits(two, postgres, monkeypatch):
    monkeypatch.setenv("RAG_EVAL_DATABASE_URL", postgres_server.new_database(postgres))
    monkeypatch.setenv("RAG_EVAL_CHROMA_URL", "http://127.0.0.1:1")  # no approximate search
    monkeypatch.setenv("RAG_EVAL_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # a run does not need MLflow
    with WriteLock(Settings(home=two.home), "tiny"):
        waiting = start(two, "tiny")
        wait_for_line(two, "tiny", f"waiting for process {os.getpid()} on")
        assert start(two, "other").wait(timeout=300) == 0
        assert "waiting" not in (two.root / "other.log").read_text()
        assert waiting.poll() is None
    assert waiting.wait(timeout=300) == 0
    hashes = {name: two.report(name)["content_hash"] for name in ("tiny", "other")}
    for name in ("RAG_EVAL_DATABASE_URL", "RAG_EVAL_CHROMA_URL"):
        monkeypatch.delenv(name)
    two.home = two.root / "home of local stores"
    assert start(two, "tiny").wait(timeout=300) == 0
    assert two.report("tiny")["content_hash"] == hashes["tiny"], json.dumps(hashes)
