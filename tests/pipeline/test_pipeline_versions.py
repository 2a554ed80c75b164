"""Versions of stages: what changes them and what does not."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rag_eval.core.settings import Settings
from rag_eval.pipeline import versions
from rag_eval.pipeline.evaluation import open_gold_set
from rag_eval.pipeline.stages import STAGES
from rag_eval.pipeline.versions import Versions, package_cache

PACKAGE = {
    "__init__.py": '"""The package."""\n__version__ = "1"\n',
    "stages/__init__.py": "",
    "stages/index.py": '''"""Index."""
import numpy as np

from rag_eval.kinds.base import search
from rag_eval.records import PAGE, Words


def index(x, words: "Words"):
    """Doc."""
    from rag_eval.lazy import late

    unused = 1
    return search(np.array(x)), late, words


def report(x):
    from rag_eval.panels.all import show

    return show(x), PAGE


def unused(x):
    return x
''',
    "kinds/__init__.py": "from rag_eval.kinds.one import One\n\nKINDS = (One,)\n",
    "kinds/base.py": """from pathlib import Path

RULES = (Path(__file__).parent / "rules.json").read_text()
OTHER = (Path(__file__).parent / "other.json").read_text()


def search(x):
    return x, RULES
""",
    "kinds/one.py": "One = 1\n",
    "kinds/rules.json": "{}",
    "kinds/other.json": "{}",
    "lazy.py": "late = 1\n",
    "records.py": "PAGE = 1\n\n\nclass Words:\n    def read(self):\n        return 1\n",
    "panels/__init__.py": "",
    "panels/all.py": """from importlib import resources

import sklearn

from rag_eval.panels import effects


def show(name):
    templates = resources.files("rag_eval.panels").joinpath("templates", name)
    return templates, f"rag_eval.panels.{name}", sklearn, effects.f
""",
    "panels/effects.py": (
        "f = 1\ng = 2\n\n\ndef register(x):\n    return x\n\n\n@register\ndef h():\n    pass\n"
    ),
    "panels/first.py": "def panel():\n    pass\n",
    "panels/templates/page.html": "<p>",
}


@pytest.fixture
def root(tmp_path):
    for name, text in PACKAGE.items():
        path = tmp_path / "rag_eval" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "rag_eval"


def change(root, name, old, new):
    path = root / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def of(root, name, **options):
    return Versions(root=root).of("rag_eval.stages.index", name, **options)


def both(root):
    return of(root, "index"), of(root, "report")


def test_only_definitions_that_are_used_are_reached(root):
    found = Versions(root=root)
    names = [found.name_of(one) for one in sorted(found.reached("rag_eval.stages.index", "index"))]
    assert names == [
        "rag_eval.kinds.base.RULES",
        "rag_eval.kinds.base.search",
        "rag_eval.lazy.late",
        "rag_eval.records.Words",
        "rag_eval.stages.index.index",
    ]
    names = [found.name_of(one) for one in sorted(found.reached("rag_eval.stages.index", "report"))]
    assert names == [
        "rag_eval.panels.all.show",
        "rag_eval.panels.effects.f",
        "rag_eval.panels.effects.g",
        "rag_eval.panels.effects.register",
        "rag_eval.panels.effects.h",
        "rag_eval.panels.first.panel",
        "rag_eval.records.PAGE",
        "rag_eval.stages.index.report",
    ]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("stages/index.py", '"""Index."""', '"""Another text."""\n\n# and a comment'),
        ("stages/index.py", '    """Doc."""\n', ""),
        ("stages/index.py", "    return search", "\n\n    return search"),
        ("stages/index.py", "    return x\n", "    return -x\n"),
        ("kinds/__init__.py", "One", "Two"),
        ("kinds/other.json", "{}", "[]"),
        ("__init__.py", "1", "2"),
    ],
)
def test_what_computes_nothing_costs_nothing(root, name, old, new):
    before = both(root)
    change(root, name, old, new)
    assert both(root) == before


def test_a_renamed_module_costs_nothing(root):
    before = both(root)
    (root / "lazy.py").rename(root / "zealous.py")
    change(root, "stages/index.py", "rag_eval.lazy", "rag_eval.zealous")
    assert both(root) == before
    change(root, "zealous.py", "1", "2")
    assert (both(root)[0] == before[0], both(root)[1] == before[1]) == (False, True)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("stages/index.py", "np.array(x)", "np.array(x) + 1"),
        ("kinds/base.py", "return x", "return -x"),
        ("kinds/rules.json", "{}", '{"a": 1}'),
        ("lazy.py", "1", "2"),
        ("records.py", "return 1", "return 2"),
        ("stages/index.py", "import search", "import OTHER as search"),
    ],
)
def test_changed_code_or_data_changes_the_stages_that_reach_it(root, name, old, new):
    before = both(root)
    change(root, name, old, new)
    after = both(root)
    assert (after[0] == before[0], after[1] == before[1]) == (False, True)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("panels/all.py", "templates, f", "name, templates, f"),
        ("panels/first.py", "pass", "return 1"),
        ("panels/effects.py", "pass", "return 1"),
        ("panels/templates/page.html", "<p>", "<b>"),
        ("records.py", "PAGE = 1", "PAGE = 2"),
    ],
)
def test_a_panel_does_not_change_the_index(root, name, old, new):
    before = both(root)
    change(root, name, old, new)
    after = both(root)
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)


def test_a_library_counts_where_it_is_used(root, monkeypatch):
    found = []
    for version in ("1", "2"):
        monkeypatch.setattr(
            versions, "library_version", lambda name, v=version: v if name == "sklearn" else "1"
        )
        found.append(both(root))
    (index, report), (new_index, new_report) = found
    assert (new_index == index, new_report == report) == (True, False)


def test_what_a_configuration_chooses_counts_where_it_is_chosen(root, monkeypatch):
    monkeypatch.setattr(versions, "CHOSEN", ("rag_eval.kinds",))
    change(root, "stages/index.py", "late, words", "late, words, KINDS")
    change(
        root,
        "stages/index.py",
        "import PAGE",
        "import PAGE\nfrom rag_eval.kinds import KINDS\nfrom rag_eval.records import PAGE",
    )
    one = of(root, "index", chosen=["rag_eval.kinds.one"])
    without = of(root, "index")
    change(root, "kinds/one.py", "1", "2")
    assert of(root, "index") == without
    assert of(root, "index", chosen=["rag_eval.kinds.one"]) != one


def test_the_source_of_a_plugin_counts(root, tmp_path, monkeypatch):
    (tmp_path / "a_plugin.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = [of(root, "index", plugins=plugins) for plugins in ([], ["a_plugin"], ["a_plugin.x"])]
    (tmp_path / "a_plugin.py").write_text("x = 2\n")
    found.append(of(root, "index", plugins=["a_plugin"]))
    assert len(set(found)) == 4


def test_analyses_are_kept_by_their_source(root, tmp_path, monkeypatch):
    def report():
        return Versions(cache, root=root).of("rag_eval.stages.index", "report")

    cache = tmp_path / "cache" / "versions.json"
    before = report()
    monkeypatch.setattr(versions, "analyse", lambda *_: pytest.fail("analysed again"))
    assert report() == before
    monkeypatch.undo()
    cache.write_text("[")
    assert report() == before
    change(root, "panels/first.py", "pass", "return 1")
    assert report() != before


def test_a_cache_that_cannot_be_written_is_done_without(root, tmp_path):
    (tmp_path / "file").write_text("")
    second = tmp_path / "second.json"
    found = Versions(tmp_path / "file" / "versions.json", second, root=root)
    found.of("rag_eval.stages.index", "report")
    assert second.is_file()


@pytest.fixture(scope="module")
def package():
    """Return the versions of the real package and all of its definitions."""
    found = Versions(package_cache())
    return found, [one for module in found._sources for one in found._all(module)]


def test_every_library_of_the_package_is_known(package):
    found, definitions = package
    libraries = {name for one in definitions for name in found._libraries(one)}
    optional = {"datasets", "langchain_core", "llama_index", "nltk", "psycopg", "ragas"}
    assert {name for name in libraries if not versions.library_version(name)} <= optional
    assert libraries | {"psycopg"} >= versions.NOT_COMPUTING


def test_every_data_file_counts_for_some_definition(package):
    found, definitions = package
    claimed = {path for one in definitions for path in found.data_files(one)}
    assert set(found._data) == claimed


GOLD_SETS = Path(__file__).resolve().parents[2] / "gold_sets"
LASTING = [stage for stage in STAGES if not stage.live]


def stage_versions(root):
    """Return the version of every stage for the gold set `smoke`, with the package at `root`."""
    evaluation = open_gold_set(GOLD_SETS / "smoke", Settings(gold_sets=GOLD_SETS))
    found = Versions(root=root)
    return {
        stage.name: found.of(
            stage.make.__module__, stage.make.__qualname__, stage.chosen(evaluation, "")
        )
        for stage in LASTING
    }


@pytest.fixture(scope="module")
def real(project_root, tmp_path_factory):
    """Return a copy of the real package that a test may change, and the versions of its stages."""
    root = tmp_path_factory.mktemp("package") / "rag_eval"
    shutil.copytree(
        project_root / "rag_eval", root, ignore=shutil.ignore_patterns("__pycache__", "static")
    )
    return root, stage_versions(root)


class Docstrings(ast.NodeTransformer):
    """Gives every class and function another docstring."""

    def visit(self, node):
        self.generic_visit(node)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.Expr(ast.Constant("Another text."))
            node.body = [text, *node.body[ast.get_docstring(node) is not None :]]
        return node


def test_comments_and_docstrings_leave_every_stage_its_version(real, tmp_path):
    root, before = real
    copy = shutil.copytree(root, tmp_path / "rag_eval")
    for path in copy.rglob("*.py"):
        tree = Docstrings().visit(ast.parse(path.read_text(encoding="utf-8")))
        text = f"{ast.unparse(ast.fix_missing_locations(tree))}\n# a comment\n"
        path.write_text(text, encoding="utf-8")
    assert stage_versions(copy) == before


def changed_stages(real, change):
    root, before = real
    change()
    after = stage_versions(root)
    return {name for name in before if before[name] != after[name]}


def test_a_panel_changes_no_stage_before_the_report(real):
    panels = real[0] / "reporting" / "html"

    def change():
        for path in panels.rglob("*.py"):
            path.write_text(f"{path.read_text()}\n\ndef one_more():\n    return 1\n")
            path.write_text(path.read_text().replace("return ", "return None or ", 3))

    late = {stage.name for stage in STAGES if stage.group == "reporting"}
    assert changed_stages(real, change) <= late


def test_a_coefficient_file_changes_the_stages_that_use_it(real):
    path = real[0] / "trust" / "rules.json"
    before = path.read_bytes()
    changed = changed_stages(real, lambda: path.write_bytes(before + b"\n"))
    path.write_bytes(before)
    assert changed == {"evidence_trust", "trust_measures"}


SEARCHING = {"corpus_index", "run", "trust_measures", "retrieval_signals"}
"""Stages of `smoke` that run again when the version of bm25s changes."""


@pytest.mark.parametrize(
    ("library", "stages"),
    [
        ("bm25s", SEARCHING),
        ("chromadb", SEARCHING | {"ranking_measures", "stability_measures", "answers"}),
    ],
)
def test_a_library_changes_the_stages_that_use_it(real, monkeypatch, library, stages):
    installed = versions.library_version

    def change():
        monkeypatch.setattr(
            versions, "library_version", lambda name: "0" if name == library else installed(name)
        )

    assert changed_stages(real, change) == stages


def test_configuration_models_reach_nothing(package):
    found, _ = package
    for stage in LASTING:
        reached = found.reached(stage.make.__module__, stage.make.__qualname__)
        names = {found.name_of(one) for one in reached}
        assert not names & {f"{module}.{name}" for module, name in versions.IN_THE_KEY}


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
import importlib
module, _, function = sys.argv[1].partition(":")
exec(f"from {module} import {function.split('(')[0].split('.')[0]}\\n{function}")
ours = [path for path in opened if path.startswith(str(root))]
ours = [path for path in ours if not path.endswith((".py", ".pyc", "versions.json"))]
print("\\n".join(sorted(ours)))
"""


@pytest.mark.parametrize(
    ("module", "call", "name"),
    [
        ("rag_eval.trust.rules", "RuleSet.load()", "rules.json"),
        (
            "rag_eval.retrieval.synonyms",
            "Expansion.load('data-terms')",
            "data_terms.json",
        ),
        ("rag_eval.uncertainty.estimator", "load_prior('bm25')", "prior.json"),
    ],
)
def test_files_that_are_read_are_those_that_count(project_root, module, call, name):
    environment = {**os.environ, "PYTHONPATH": str(project_root)}
    done = subprocess.run(
        [sys.executable, "-c", _TRACED, f"{module}:{call}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    opened = {Path(line) for line in done.stdout.splitlines()}
    found = Versions(package_cache())
    definitions = found.reached(module, call.partition("(")[0].partition(".")[0])
    assert {path.name for path in opened} == {name}
    assert opened <= {path for one in definitions for path in found.data_files(one)}
