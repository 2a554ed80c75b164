"""An evaluated tiny project for the viewer, with its pages in this process and a real server."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_project import CONFIG, PAGES, Project, set_apart
from starlette.testclient import TestClient

from rag_eval.core.settings import Settings
from rag_eval.viewer.app import Viewer

PORT = 7777
OURS = f"http://127.0.0.1:{PORT}"


def evaluate(root: Path, tracking: str) -> Project:
    """Evaluate the tiny gold set once, without answers and with its page."""
    with pytest.MonkeyPatch.context() as patch:
        project = set_apart(patch, root, tracking)
        patch.setenv(PAGES, "true")
        project.write(
            "gold_set.yaml", CONFIG.replace("answers: {mode: deterministic, top_k: 5}\n", "")
        )
        project.run()
    return project


class Viewed:
    """A home with one kept run that has data of the explorer."""

    def __init__(self, evaluated: Project, root: Path) -> None:
        self.home = root / "home"
        shutil.copytree(evaluated.home, self.home)
        self.file = next((self.home / "runs").glob("*.json"))
        self.run_id = self.file.stem
        kept = self.kept()
        folders = {
            name: self.home / "artifacts" / name / key for name, key in kept["artifacts"].items()
        }
        self.explorer = folders["explorer"]

    @property
    def settings(self) -> Settings:
        return Settings(home=self.home, database_url=None)

    def kept(self) -> dict[str, Any]:
        return json.loads(self.file.read_text(encoding="utf-8"))

    def keep(self, kept: dict[str, Any], run_id: str | None = None) -> None:
        """Write a kept run over the only kept run, or under the id `run_id`."""
        path = self.file if run_id is None else self.home / "runs" / f"{run_id}.json"
        path.write_text(json.dumps(kept), encoding="utf-8")

    def client(self) -> TestClient:
        """Return a client in this process; an error of the application becomes a response."""
        return TestClient(
            Viewer(self.settings).app(),
            base_url=OURS,
            raise_server_exceptions=False,
            follow_redirects=False,
        )


class Server:
    """Runs `rag-eval view`, or another command that serves, in its own process on a free port."""

    def __init__(
        self,
        home: Path | str,
        *more: str,
        env: dict[str, str] | None = None,
        command: str = "view",
        folder: Path | None = None,
    ) -> None:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith("RAG_EVAL_")
        }
        words = [sys.executable, "-m", "rag_eval", command]
        words += ["--home", str(home), "--port", "0", *more]
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**clean, "PYTHONUNBUFFERED": "1", **(env or {})},
            cwd=folder or home,
        )
        assert self.process.stdout is not None
        self.said: list[str] = []
        while not self.said or not self.said[-1].startswith("Ctrl-C"):
            line = self.process.stdout.readline()
            assert line, self.said
            self.said.append(line)
        found = re.search(r"http://\S+", "".join(self.said))
        assert found is not None
        self.address = found[0].rstrip("/")

    def wait(self) -> None:
        """Wait up to 60 s until the server answers."""
        until = time.monotonic() + 60
        while True:
            try:
                assert httpx.get(f"{self.address}/assets/viewer.css", timeout=10).status_code == 200
            except httpx.TransportError:
                assert time.monotonic() < until
                time.sleep(0.05)
            else:
                return

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=120, trust_env=False)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> str:
        """End the server, and return the output that it wrote after it was ready."""
        if self.process.poll() is None:
            self.process.terminate()
        assert self.process.stdout is not None
        return "" if self.process.stdout.closed else self.process.communicate(timeout=60)[0]
