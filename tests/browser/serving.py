"""Start `rag-eval view` as a process over a copy of an evaluated project, and read its store.

This file handles the process and the store. The tests check the pages.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import hostile_project
from evaluated import Evaluated

START_SECONDS = 120


class Viewer:
    """A running viewer.

    Parameters
    ----------
    evaluated
        The evaluated project. The viewer gets a copy, because feedback changes it.
    root
        The folder of the copy.
    options
        Options of the command.
    """

    def __init__(self, evaluated: Evaluated, root: Path, *options: str) -> None:
        self.evaluated, self.root, self.home = evaluated, root, root / "home"
        for name in ("home", "reports", "gold_sets"):
            shutil.copytree(evaluated.root / name, root / name)
        self.start(*options)

    def start(self, *options: str) -> None:
        """Start the viewer, and wait until the viewer prints its address."""
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith("RAG_EVAL_")
        }
        command = [sys.executable, "-u", "-m", "rag_eval.cli", "view", "--port", "0"]
        command += ["--home", str(self.home), *options]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean,
            cwd=self.root,
        )
        self.said: list[str] = []
        known = threading.Event()

        def listen() -> None:
            for line in self.process.stdout:
                self.said.append(line)
                if line.startswith("Ctrl-C"):
                    known.set()
            known.set()

        self._listener = threading.Thread(target=listen, daemon=True)
        self._listener.start()
        assert known.wait(START_SECONDS), self.said
        found = re.search(r"http://[^\s?]+/", "".join(self.said))
        assert found is not None, self.said
        self.address = found[0]

    def run(self) -> str:
        """Return the address of the newest run."""
        return f"{self.address}runs/{self.evaluated.report['run_id']}/"

    def outcomes(self, *, everything: bool = False) -> list[dict[str, Any]]:
        """List the readers' feedback in the store; `everything` adds superseded feedback."""
        from rag_eval.storage.sql import SqlStore
        from rag_eval.uncertainty.outcomes import OutcomeStore, of_frame

        store = OutcomeStore(SqlStore(self.home / "rag_eval.db"))
        frame = (store.history if everything else store.current)(gold_sources=["user_feedback"])
        return [json.loads(outcome.model_dump_json()) for outcome in of_frame(frame)]

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run another command over the viewer's copy of the project."""
        return hostile_project.command(self.root, *arguments)

    def kill(self) -> None:
        """End the viewer with SIGKILL, as a power failure would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def end(self) -> None:
        """End the viewer with SIGINT, as Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(30)
        self._listener.join(30)
        self.process.stdout.close()
