"""Versions of stages: what changes them and what does not."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rag_eval.pipeline import versions
from rag_eval.pipeline.stages import STAGES
from rag_eval.pipeline.versions import Versions

PACKAGE = {
    "__init__.py": '"""The package."""\n__version__ = "1"\n',
    "stages/index.py": '''"""Index."""
from typing import TYPE_CHECKING
import numpy as np

from rag_eval import kinds
from rag_eval.search.base import search

if TYPE_CHECKING:
    from rag_eval.panels import show


def index(x):
    """Doc."""
    from rag_eval.lazy import late

    return search(np.array(x)), late, kinds
''',
    "stages/report.py": "import sklearn\nfrom rag_eval.panels import show\n",
    "kinds/__init__.py": "from rag_eval.kinds.one import One\n\nKINDS = (One,)\n",
    "kinds/one.py": "One = 1\n",
    "search/base.py": "RULES, OTHER = 'rules.json', 1\n\n\ndef search(x):\n    return x, RULES\n",
    "search/rules.json": "{}",
    "search/unread.json": "{}",
    "lazy.py": "late = 1\n",
    "panels.py": "def show():\n    pass\n",
}


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name, text in PACKAGE.items():
        path = tmp_path / "rag_eval" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(versions, "CHOSEN", ("rag_eval.kinds",))
    return tmp_path / "rag_eval"


def change(root, name, old, new):
    path = root / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def of(root, name="index", chosen=()):
    return Versions(root).of(f"rag_eval.stages.{name}", chosen)


def changes(root, name, old, new):
    """Tell whether a change of a file changes the versions of index and report."""
    before = of(root), of(root, "report")
    change(root, name, old, new)
    return of(root) != before[0], of(root, "report") != before[1]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("stages/index.py", '"""Index."""', '"""Another text."""\n\n# and a comment'),
        ("stages/index.py", '    """Doc."""\n', ""),
        ("stages/index.py", "    return search", "\n\n    return search"),
        ("stages/index.py", "panels import show", "panels import hide"),
        ("kinds/one.py", "1", "2"),
        ("search/unread.json", "{}", "[]"),
        ("__init__.py", "1", "2"),
    ],
)
def test_what_computes_nothing_costs_nothing(root, name, old, new):
    assert changes(root, name, old, new) == (False, False)


def test_a_renamed_module_costs_nothing(root):
    known = of(root)
    (root / "lazy.py").rename(root / "zealous.py")
    change(root, "stages/index.py", "rag_eval.lazy", "rag_eval.zealous")
    assert of(root) == known
    assert changes(root, "zealous.py", "1", "2") == (True, False)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("stages/index.py", "np.array(x)", "np.array(x) + 1"),
        ("stages/index.py", "import search", "import OTHER as search"),
        ("search/base.py", "return x", "return -x"),
        ("search/rules.json", "{}", '{"a": 1}'),
        ("kinds/__init__.py", "(One,)", "(One, One)"),
        ("lazy.py", "1", "2"),
    ],
)
def test_changed_code_or_data_changes_the_stages_that_reach_it(root, name, old, new):
    assert changes(root, name, old, new) == (True, False)


def test_a_panel_does_not_change_the_index(root):
    assert changes(root, "panels.py", "pass", "return 1") == (False, True)


def test_a_library_counts_where_it_is_used(root, monkeypatch):
    found = []
    for version in ("1", "2"):
        monkeypatch.setattr(
            versions, "library_version", lambda name, v=version: v if name == "sklearn" else "1"
        )
        found.append((of(root), of(root, "report")))
    (index, report), (new_index, new_report) = found
    assert (new_index == index, new_report == report) == (True, False)


def test_what_a_configuration_chooses_counts_where_it_is_chosen(root, tmp_path, monkeypatch):
    (tmp_path / "a_plugin.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    choices = ((), ["rag_eval.kinds.one"], ["a_plugin"])
    before = [of(root, chosen=chosen) for chosen in choices]
    assert len(set(before)) == 3
    change(root, "kinds/one.py", "1", "2")
    (tmp_path / "a_plugin.py").write_text("x = 2\n")
    after = [of(root, chosen=chosen) for chosen in choices]
    assert [one == two for one, two in zip(before, after, strict=True)] == [True, False, False]


# ---- The real package

LASTING = sorted(
    {stage.make.__module__ for stage in STAGES if not stage.live and stage.group != "reporting"}
)


def test_every_library_of_the_package_is_known():
    found = Versions()
    libraries = {name for one in found._sources for name in found._module(one).libraries}
    optional = {"datasets", "langchain_core", "llama_index", "psycopg", "ragas"}
    optional |= {"qdrant_client", "ray", "sentence_transformers"}
    assert {name for name in libraries if not versions.library_version(name)} <= optional
    assert libraries | {"psycopg"} >= versions.NOT_COMPUTING


def test_a_lasting_stage_reaches_no_page_and_no_kind_that_is_not_chosen():
    found = Versions()
    reached = set().union(*(found.reached([module]) for module in LASTING))
    outside = ("rag_eval.reporting.html", "rag_eval.viewer", "rag_eval.defs", "rag_eval.cli")
    kinds = {name for name in reached if name.startswith("rag_eval.retrieval.kinds.")}
    assert not [name for name in reached if name.startswith(outside)]
    assert len(kinds) <= 1


class Docstrings(ast.NodeTransformer):
    """Gives every class and function another docstring."""

    def visit(self, node):
        self.generic_visit(node)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.Expr(ast.Constant("Another text."))
            node.body = [text, *node.body[ast.get_docstring(node) is not None :]]
        return node


@pytest.mark.slow
def test_comments_and_docstrings_leave_every_stage_its_version(project_root, tmp_path):
    copy = shutil.copytree(
        project_root / "rag_eval", tmp_path / "rag_eval", ignore=lambda *_: ["__pycache__"]
    )
    found = Versions(copy)
    before = [found.of(module) for module in LASTING]
    for path in copy.rglob("*.py"):
        tree = Docstrings().visit(ast.parse(path.read_text(encoding="utf-8")))
        text = f"{ast.unparse(ast.fix_missing_locations(tree))}\n# a comment\n"
        path.write_text(text, encoding="utf-8")
    found = Versions(copy)
    assert [found.of(module) for module in LASTING] == before


_TRACED = """
import sys
from pathlib import Path
opened = set()
def note(event, args):
    if event == "open" and isinstance(args[0], str):
        opened.add(args[0])
sys.addaudithook(note)
import rag_eval
root = Path(rag_eval.__file__).parent
from rag_eval.trust.rules import RuleSet
from rag_eval.uncertainty.estimator import load_prior
RuleSet.load(), load_prior("bm25")
ours = [path for path in opened if path.startswith(str(root))]
print("\\n".join(path for path in ours if not path.endswith((".py", ".pyc"))))
"""


def test_files_that_are_read_are_those_that_count(project_root):
    environment = {**os.environ, "PYTHONPATH": str(project_root)}
    done = subprocess.run(
        [sys.executable, "-c", _TRACED],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    opened = {Path(line) for line in done.stdout.splitlines()}
    assert {path.name for path in opened} >= {"override.toml", "prior.json"}
    found = Versions()
    modules = ("trust.rules", "trust.spelling", "uncertainty.estimator")
    assert opened <= found.data_files(f"rag_eval.{name}" for name in modules)


def test_another_process_analyses_only_changed_modules(root, tmp_path, monkeypatch):
    cache = tmp_path / "versions.json"
    monkeypatch.setattr(versions, "_ANALYSED", {})
    first = Versions(root, cache).of("rag_eval.stages.index")
    versions._ANALYSED.clear()  # what another process starts with
    change(root, "lazy.py", "late = 1", "late = 2")
    analysed = []

    def analyse(source):
        analysed.append(source)
        return versions.Module("tree", set(), set(), set())

    monkeypatch.setattr(versions, "_analyse", analyse)
    assert Versions(root, cache).of("rag_eval.stages.index") != first
    assert analysed == ["late = 2\n"]
    cache.write_text("[")  # a damaged cache is made again
    versions._ANALYSED.clear()
    Versions(root, cache).of("rag_eval.stages.index")
    assert len(analysed) == 2  # the index; the false analysis names no import
