"""The servers start together, answer, and end together."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from rag_eval.defs.serving import HOST, child_environment, commands, free_port

SERVE = (
    "import sys; from rag_eval.core.settings import Settings; from rag_eval.defs.serving import "
    "serve; sys.exit(serve(Settings(), {dagster}, {mlflow}))"
)
QUERY = (
    "{repositoriesOrError{... on RepositoryConnection{nodes{assetNodes{assetKey{path}}"
    " schedules{scheduleState{status}}}}}}"
)


def test_port_that_is_taken_is_replaced():
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port
    assert free_port(port) == port


def test_children_see_the_same_installation_on_the_loopback_only(project):
    environment = child_environment(project.settings)
    assert environment["RAG_EVAL_HOME"] == str(project.settings.home)
    assert environment["RAG_EVAL_GOLD_SETS"] == str(project.settings.gold_sets)
    assert environment["DO_NOT_TRACK"] == "true"
    assert environment["RAG_EVAL_SCHEDULE_ON"] == "false"
    lines = commands(project.settings, 1, 2, 3)
    assert all(HOST in line for name, line in lines.items() if name != "dagster-daemon")
    remote = project.settings.model_copy(update={"tracking_uri": "http://mlflow.example:5000"})
    assert "mlflow" not in commands(remote, 1, 2, 3)


class Servers:
    """Start `serve` in its own process."""

    def __init__(self, project, root):
        environment = child_environment(project.settings)
        del environment["DAGSTER_HOME"]
        code = SERVE.format(dagster=free_port(0), mlflow=free_port(0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=root,
            env=environment,
        )
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            if "Ctrl-C" in line:
                break
        text = "".join(self.lines)
        assert self.process.poll() is None, text
        self.dagster, self.mlflow, self.viewer = (
            re.search(rf"{name} +(http://\S+)", text)[1] for name in ("Dagster", "MLflow", "Viewer")
        )
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def end(self, number=None):
        if number is not None:
            self.process.send_signal(number)
        rest = self.process.communicate(timeout=60)[0]
        _, alive = psutil.wait_procs(self.family, timeout=20)
        assert not alive
        return rest


@pytest.fixture
def servers(project, project_root):
    started = Servers(project, project_root)
    yield started
    if started.process.poll() is None:
        started.end(signal.SIGTERM)


def fetch(address, data=None):
    request = urllib.request.Request(  # noqa: S310 - our own loopback address
        address, data=data, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310 - our own loopback address
        return reply.read().decode()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_servers_answer_and_end_on_a_signal(servers, number):
    assert "<html" in fetch(servers.dagster).lower()
    assert "<html" in fetch(servers.mlflow).lower()
    assert "<html" in fetch(servers.viewer).lower()
    answer = json.loads(fetch(f"{servers.dagster}/graphql", json.dumps({"query": QUERY}).encode()))
    (repository,) = answer["data"]["repositoriesOrError"]["nodes"]
    keys = {"/".join(node["assetKey"]["path"]) for node in repository["assetNodes"]}
    assert {"corpus/corpus_index", "retrieval/hybrid", "reporting/gate_verdict"} <= keys
    assert repository["schedules"] == [{"scheduleState": {"status": "STOPPED"}}]
    servers.end(number)
    assert servers.process.returncode == 0


@pytest.mark.slow
def test_all_end_when_one_dies_and_it_is_named(servers):
    victim = next(
        child
        for child in servers.family
        if "mlflow" in " ".join(child.cmdline()) and child.ppid() == servers.process.pid
    )
    os.kill(victim.pid, signal.SIGKILL)
    rest = servers.end()
    assert servers.process.returncode == 1
    assert "mlflow ended with status -9; the end of" in rest


@pytest.mark.slow
def test_server_that_does_not_start_is_told_with_its_log(project, project_root):
    Path(project.settings.home).mkdir(parents=True)
    environment = child_environment(project.settings) | {"RAG_EVAL_TRACKING_URI": "nonsense://"}
    code = SERVE.format(dagster=free_port(0), mlflow=free_port(0))
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=project_root,
        env=environment,
        check=False,
        timeout=200,
    )
    assert done.returncode == 1, (done.stdout, time.monotonic() - started)
    assert "mlflow ended with status" in done.stdout
