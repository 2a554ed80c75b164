"""Start `rag-eval view` as a process over a copy of an evaluated project."""

import shutil
from pathlib import Path

from evaluated import Evaluated
from viewed_project import Server


class Viewer(Server):
    """A running viewer over a copy of the project below `root`."""

    def __init__(self, evaluated: Evaluated, root: Path) -> None:
        self.evaluated = evaluated
        shutil.copytree(evaluated.root / "home", root / "home")
        super().__init__(root / "home")
        self.address += "/"

    def run(self) -> str:
        """Return the address of the newest run."""
        return f"{self.address}runs/{self.evaluated.report['run_id']}/"
