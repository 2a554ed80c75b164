"""Start `rag-eval view` as a process over a copy of an evaluated project, and read its store."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import hostile_project
from evaluated import Evaluated
from viewed_project import Server

from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.outcomes import OutcomeStore, of_frame


class Viewer(Server):
    """A running viewer over a copy of the project below `root`, because feedback changes it."""

    def __init__(self, evaluated: Evaluated, root: Path, *options: str) -> None:
        self.evaluated, self.root, self.home = evaluated, root, root / "home"
        for name in ("home", "reports", "gold_sets"):
            shutil.copytree(evaluated.root / name, root / name)
        super().__init__(self.home, *options)
        self.address += "/"

    def run(self) -> str:
        """Return the address of the newest run."""
        return f"{self.address}runs/{self.evaluated.report['run_id']}/"

    def outcomes(self, *, everything: bool = False) -> list[dict[str, Any]]:
        """List the readers' feedback in the store; `everything` adds superseded feedback."""
        store = OutcomeStore(SqlStore(self.home / "rag_eval.db"))
        frame = (store.history if everything else store.current)(gold_source="user_feedback")
        return [json.loads(outcome.model_dump_json()) for outcome in of_frame(frame)]

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run another command over the viewer's copy of the project."""
        return hostile_project.command(self.root, *arguments)
