"""Execute the tutorial notebook, and turn it into a page of the site.

The notebook is kept with its outputs. `docs/generate.py` renews them, and a test executes it.
"""

import base64
import os
import re
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
SECONDS = 300
"""Longest time for one cell."""


def execute(folder: Path) -> str:
    """Run every cell in an empty folder, and return the notebook with the outputs as JSON text.

    Raises `CellExecutionError` if a cell raises.
    """
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, "PYTHONPATH": path})
    del notebook.metadata["language_info"]  # it names the version of Python
    return nbformat.writes(notebook) + "\n"


def texts(notebook: str) -> str:
    """Return the cells and their outputs as text, without pictures."""
    parts = []
    for cell in nbformat.reads(notebook, as_version=4).cells:
        parts.append(cell.source)
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", "")})
            parts.append(data["text/plain"])
    return "\n".join(parts)


def pages(config: MkDocsConfig) -> list[File]:
    """Return the page of the notebook and its pictures."""
    parts, files = [], []
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                name = f"tutorial-{len(files)}.png"
                content = base64.b64decode(data["image/png"])
                files.append(File.generated(config, name, content=content))
                parts.append(f"![{data['text/plain']}]({name})")
            elif "text/html" in data:
                parts.append(re.sub(r"<table [^>]*>", "<table>", data["text/html"]))
            else:
                parts.append(f"```text\n{data['text/plain'].rstrip()}\n```")
    return [File.generated(config, "tutorial.md", content="\n\n".join(parts)), *files]
