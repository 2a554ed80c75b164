"""Modules import what stands below them; imports in functions, strings and for types count."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOMS = (
    *("core", "storage", "corpus", "gold", "trust", "retrieval", "citations", "measures"),
    *("answers", "uncertainty", "gates", "reporting", "pipeline"),
)
"""From the ground up. Above them stand api, defs and viewer, then cli, pytest_plugin and the face
of the package, which import everything at its first use."""


def find_imports(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """Find the modules of the package that a module imports, or names in a string.

    Lists of plug-ins (`module:Class`) do not count.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names & modules or {node.module}
        elif isinstance(node, ast.Import):
            yield from modules & {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from modules & {node.value}


def read_graph(root: Path) -> dict[str, set[str]]:
    """Return module -> imported modules, without the face of the package."""
    paths = {}
    for path in (root / "rag_eval").rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    del paths["rag_eval"]
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths.items()}
    return {name: {*find_imports(tree, {*trees})} - {name} for name, tree in trees.items()}


def test_no_module_reaches_up_and_no_circle_is_hidden(project_root):
    graph = read_graph(project_root)
    height = {room: place for place, room in enumerate(ROOMS)}
    up = [
        f"{name} -> {other}"
        for name, others in graph.items()
        for other in others
        if height.get(name.split(".")[1], 99) < height.get(other.split(".")[1], 99)
    ]
    assert up == []
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {' -> '.join(error.args[1])}") from None


def test_hidden_imports_are_found():
    code = """
def later():
    import a.b
from a import b
from a.c import D
load("a.d")
"""
    assert {*find_imports(ast.parse(code), {"a", "a.b", "a.c", "a.d", "a.e"})} == {
        *("a.b", "a.c", "a.d")
    }
