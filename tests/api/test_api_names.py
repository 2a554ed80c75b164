"""The public names are few, light to import, and lead to what they name."""

import subprocess
import sys

import pytest

import rag_eval
from rag_eval.__main__ import main
from rag_eval.core import parts

COUNT = """
import sys
before = set(sys.modules)
import rag_eval
print(*sorted(set(sys.modules) - before))
"""


def test_the_import_loads_nothing_but_the_standard_library(project_root):
    command = [sys.executable, "-S", "-c", COUNT]  # -S: start-up files of packages import more
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=project_root)
    loaded = done.stdout.split()
    assert len(loaded) < 60
    assert {name.partition(".")[0] for name in loaded} <= {"rag_eval", *sys.stdlib_module_names}


@pytest.mark.parametrize("name", rag_eval.__all__)
def test_each_public_name_has_a_documented_object(name):
    assert getattr(rag_eval, name).__name__ == name
    assert getattr(rag_eval, name).__doc__


def test_the_public_names_are_those_that_are_imported_lazily():
    assert sorted(rag_eval.__all__) == sorted(rag_eval._HOME_OF)
    assert set(rag_eval.__all__) < set(dir(rag_eval))
    with pytest.raises(AttributeError, match="has no attribute 'evaluation'"):
        _ = rag_eval.evaluation


@pytest.mark.parametrize(
    "call",
    [
        lambda: rag_eval.estimate_miss_rate("x", [], []),
        lambda: rag_eval.open_strategy("x"),
        lambda: rag_eval.run("gold_sets/tiny"),
    ],
)
def test_without_the_extra_a_call_names_the_extra(monkeypatch, call):
    monkeypatch.setitem(parts._EXTRAS, "nightly", ("typer", "absent_package"))
    with pytest.raises(ImportError, match=r'\(absent_package\).*pip install "rag-eval\[nightly\]"'):
        call()


def test_without_the_extra_the_command_ends_with_one_line(monkeypatch):
    monkeypatch.setitem(parts._EXTRAS, "nightly", ("absent_package",))
    with pytest.raises(SystemExit) as ended:
        main()
    assert "\n" not in ended.value.code
    assert 'pip install "rag-eval[nightly]"' in ended.value.code
