"""Describe evaluated projects, and write the gold set of each night.

This file handles files only. `conftest` runs each project once for all workers.
"""

import base64
import dataclasses
import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_project

ROOT = Path(__file__).resolve().parents[2]
PANELS = tuple(
    (
        "verdict denominators measures miss-rates stability recall citations trust slices history "
        "cost methods explorer"
    ).split()
)
"""Names of the report's panels, in the order of the page."""


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """Folders of an evaluated project."""

    root: Path
    name: str

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def folder(self) -> Path:
        return self.root / "reports" / self.name

    @property
    def page(self) -> Path:
        return self.folder / "index.html"

    @property
    def explorer(self) -> dict[str, Any]:
        """Return the parts of the explorer's data that the page holds (name -> JSON)."""
        found = re.findall(
            r'<script type="application/octet-stream\+base64" '
            r'id="bundle-([\w-]+)">([^<]*)</script>',
            self.page.read_text(encoding="utf-8"),
        )
        return {name: json.loads(gzip.decompress(base64.b64decode(text))) for name, text in found}

    @property
    def questions(self) -> list[dict[str, Any]]:
        """Return the parts behind each question, in the order of the gold set."""
        parts = self.explorer
        return [
            question
            for name in sorted(parts)
            if name.startswith("questions-")
            for question in parts[name]
        ]

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "retrieval-metrics.json").read_text(encoding="utf-8"))


def _pandas(words: Callable[[str], str]) -> Callable[[Path], None]:
    def write(gold_sets: Path) -> None:
        shutil.copytree(
            ROOT / "gold_sets" / "pandas_api", gold_sets / "pandas_api", dirs_exist_ok=True
        )
        path = gold_sets / "pandas_api" / "gold_set.yaml"
        path.write_text(words(path.read_text(encoding="utf-8")), encoding="utf-8")

    return write


def _worse(text: str) -> str:
    """Return a configuration whose lexical strategies weigh words badly.

    The next night then differs from this night in both directions.
    """
    changed = text.replace("kind: bm25}", "kind: bm25, k1: 4.0, b: 1.0}").replace(
        "kind: bm25, expand", "kind: bm25, k1: 4.0, b: 1.0, expand"
    )
    assert changed.count("k1: 4.0") == 2
    return changed


NIGHTS: dict[str, tuple[Callable[[Path], object], ...]] = {
    "hostile": (
        lambda folder: hostile_project.write(folder, 0),
        lambda folder: hostile_project.write(folder, 1),
    ),
    "pandas_api": (_pandas(_worse), _pandas(lambda text: text)),
}
