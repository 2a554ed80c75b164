"""The version of the code covers sources, data files, and every library that computes."""

import ast
import hashlib
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rag_eval
from rag_eval.storage import hashing
from rag_eval.storage.hashing import digest, lines_hash

NOT_COMPUTING = set(
    """cryptography dagster dagster_docker dagster_graphql filelock fsspec h11 httpx jinja2
    markupsafe matplotlib mlflow openai psycopg pydantic pydantic_core pydantic_settings pytest
    qdrant_client ray rich s3fs sqlalchemy starlette tenacity threadpoolctl tomlkit typer uvicorn
    yaml""".split()
)
"""Libraries that cannot change a figure, because they only store, show or transport data."""
DISTRIBUTIONS = {
    "Stemmer": "pystemmer",
    "markdown_it": "markdown-it-py",
    "re2": "google-re2",
    "sklearn": "scikit-learn",
}


def imported(path):
    """Yield the names of the top packages that a module imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_every_library_that_computes_counts():
    folder = Path(rag_eval.__file__).parent
    names = {name for path in folder.rglob("*.py") for name in imported(path)}
    names -= sys.stdlib_module_names | {"rag_eval"} | NOT_COMPUTING
    counted = {name.replace("-", "_") for name in hashing.LIBRARIES}
    assert {DISTRIBUTIONS.get(name, name).replace("-", "_") for name in names} <= counted


@pytest.mark.parametrize("name", ["code.py", "rules/data.toml", "prior.json"])
def test_each_source_and_data_file_counts(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("1")
    before = hashing._hash_sources(tmp_path)
    path.write_text("2")
    assert hashing._hash_sources(tmp_path) != before


def test_a_new_library_is_another_version(monkeypatch):
    before = hashing.code_version()
    newer = {**hashing.library_versions(), "numpy": "99"}
    monkeypatch.setattr(hashing, "library_versions", lambda: newer)
    assert hashing.code_version.__wrapped__() != before


def test_each_source_of_a_plugin_counts(tmp_path, monkeypatch):
    (tmp_path / "a_plugin").mkdir()
    for name in ("__init__", "part"):
        (tmp_path / "a_plugin" / f"{name}.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = hashing.plugin_version("a_plugin.part")
    (tmp_path / "a_plugin" / "part.py").write_text("x = 2\n")
    assert hashing.plugin_version("a_plugin.part") != before
    assert hashing.plugin_version("no_plugin_of_this_name") == []


def test_a_digest_is_the_same_in_every_version():
    text = '{"a":[1.5,"ü",null],"b":1}'
    assert digest({"b": 1, "a": [1.5, "ü", None]}) == hashlib.sha256(text.encode()).hexdigest()[:32]
    assert digest("\ud800") != digest("\ud801")


@given(st.lists(st.text(max_size=3), max_size=5), st.lists(st.text(max_size=3), max_size=5))
def test_a_sequence_is_hashed_with_its_borders(one, other):
    assert (lines_hash(one) == lines_hash(other)) == (one == other)
    assert lines_hash(iter(one)) == lines_hash(one)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [-float("inf")]}])
def test_numbers_that_json_lacks_are_refused(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest(value)
