"""The core alone, in an empty environment, runs the README's snippet and the notebook."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CELLS = """
import ast, json, sys
names = {}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] != "code":
        continue
    tree = ast.parse("".join(cell["source"]))
    shown = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if shown is not None:
        value = eval(compile(ast.Expression(shown.value), "cell", "eval"), names)
        show = getattr(value, "_repr_png_", None) or getattr(value, "_repr_html_", None)
        print(show() if show else repr(value))
"""
PLOT = 'import rag_eval; rag_eval.evaluate({"q": {"d": 1.0}}, {"q": {"d": 1}}).plot()'


class Environment:
    """An environment that holds the wheel and what its requirements name."""

    def __init__(self, root: Path, wheel: Path) -> None:
        self.folder, self.wheel = root / "empty", wheel
        self.uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
        self._call(self.uv, "venv", "--quiet", "--python", sys.executable, self.folder)
        self.install("")

    def install(self, extra: str) -> None:
        python = self.folder / "bin" / "python"
        self._call(self.uv, "pip", "install", "--quiet", "--python", python, f"{self.wheel}{extra}")

    def run(self, code: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        python = self.folder / "bin" / "python"
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [python, "-c", code, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=alone)

    def _call(self, *command: object) -> None:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory, project_root) -> Environment:
    root = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", root]
    done = subprocess.run(build, cwd=project_root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = root.glob("*.whl")
    return Environment(root, wheel)


def test_the_snippet_of_the_readme_runs_in_the_core(environment, read_by_readme, project_root):
    text = (project_root / "README.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    done = environment.run(code, cwd=read_by_readme)
    assert done.returncode == 0, done.stderr
    assert "each measure by itself" in done.stdout


def test_the_notebook_runs_in_the_core_with_charts(environment, tmp_path, project_root):
    alone = environment.run(PLOT, cwd=tmp_path)
    assert 'matplotlib). Install them: pip install "rag-eval[plots]"' in alone.stderr
    environment.install("[plots]")
    notebook = project_root / "docs" / "tutorial.ipynb"
    done = environment.run(CELLS, notebook, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    code = [cell for cell in json.loads(notebook.read_text("utf-8"))["cells"] if cell["source"]]
    assert done.stdout.count("PNG") == sum(".plot" in "".join(one["source"]) for one in code)
