"""Describe an evaluated project by its files. `conftest` runs the project once."""

import base64
import dataclasses
import gzip
import json
import re
from pathlib import Path
from typing import Any

PANELS = (
    *("verdict", "explorer", "measures", "miss-rates", "citations"),
    *("stability", "slices", "trust", "cost", "methods"),
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
