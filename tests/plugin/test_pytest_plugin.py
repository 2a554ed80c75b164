"""The fixture `rag_eval_gate` inside of another pytest."""

import re
import subprocess
import sys

import pytest
import yaml

from rag_eval.core.config import Gates
from rag_eval.pytest_plugin import _check_retrieval

pytest_plugins = ["pytester"]

HEAD = """
N = 40
QRELS = {f"q{i}": {f"d{i}": 1} for i in range(N)}
def run(missed):
    return {f"q{i}": {"x": 1.0} if i in missed else {f"d{i}": 1.0} for i in range(N)}
"""
OPTIONS = *"-q -p no:rag_eval -p rag_eval.pytest_plugin -p no:cacheprovider".split(), "-Wignore"
"""The plugin of this tree, whether or not an installed entry point names it too."""


@pytest.fixture(scope="module", autouse=True)
def _loaded():
    """Load numpy whole: pytester forgets what its tests import, and numpy loads only once."""
    names: dict = {}
    exec(HEAD, names)  # noqa: S102 - the text above
    run, qrels = names["run"], names["QRELS"]
    _check_retrieval(run=run({1}), baseline=run({2}), qrels=qrels)


def outcome_of(pytester, *lines):
    body = "".join(f"    {line}\n" for line in lines)
    pytester.makepyfile(f"{HEAD}\ndef test_gate(rag_eval_gate):\n{body}")
    return pytester.runpytest_inprocess(*OPTIONS)


def test_a_fall_below_the_baseline_names_the_questions(pytester):
    result = outcome_of(
        pytester,
        "rag_eval_gate(run=run(set(range(25))), baseline=run({30}), qrels=QRELS, measure='RR')",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["RR fell from 0.975 to 0.375, difference -0.600 * 40 questions*"])
    result.stdout.fnmatch_lines(["25 questions got worse and 1 better:", "*1.000 -> 0.000"])
    result.stdout.fnmatch_lines(["  and 5 more"])


def test_a_fall_within_chance_passes(pytester):
    call = "found = rag_eval_gate(run=run({1, 2, 3}), baseline=run({4}), qrels=QRELS)"
    check = "assert found.table.loc[('run', 'R@10'), 'value'] == 37 / 40"
    outcome_of(pytester, call, check).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "call", ["", "run=run({1})", "'x', run=run({1})", "run=run({1}), qrels=QRELS"]
)
def test_unclear_arguments_are_an_error_of_the_test(pytester, call):
    result = outcome_of(pytester, f"rag_eval_gate({call})")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*TypeError: rag_eval_gate *"])


def test_the_plugin_imports_nothing_but_pytest():
    code = "import sys, pytest; old = set(sys.modules); import rag_eval.pytest_plugin; "
    code += "print(*sorted(set(sys.modules) - old))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["rag_eval", "rag_eval.pytest_plugin"]


def blocks(project_root, language):
    text = (project_root / "docs" / "ci.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_tests_of_the_page_pass(pytester, project_root):
    tests, _ = blocks(project_root, "python")
    pytester.makepyfile(tests)
    pytester.runpytest_inprocess(*OPTIONS).assert_outcomes(passed=2)


def test_the_action_of_the_page_runs_our_commands(project_root):
    gates, action = map(yaml.safe_load, blocks(project_root, "yaml"))
    Gates.model_validate(gates["gates"])
    steps = action["jobs"]["gate"]["steps"]
    assert [step["run"] for step in steps if step.get("run", "").startswith("rag-eval")] == [
        "rag-eval run smoke"
    ]
    assert "secrets" not in str(action)


@pytest.mark.slow
def test_a_gold_set_that_misses_a_required_gate_fails(pytester, project, monkeypatch):
    config = (project.gold / "gold_set.yaml").read_text(encoding="utf-8")
    kept = [line for line in config.splitlines() if not line.startswith(("acceptance", "gates"))]
    floors = 'acceptance: {recall_at_5: ">= 0.99"}\ngates: {required: [acceptance], advisory: []}\n'
    project.write("gold_set.yaml", "\n".join([*kept, floors]))
    queries = (project.gold / "queries.jsonl").read_text(encoding="utf-8")
    project.write("queries.jsonl", queries.replace("Can alerts be silent at night?", "Zyzzyva?"))
    pytester.makepyfile(
        f"def test_gate(rag_eval_gate):\n    rag_eval_gate({str(project.gold)!r})\n"
    )
    pytester.chdir()  # the project has a folder of its own
    monkeypatch.setenv("RAG_EVAL_HOME", str(project.home))
    result = pytester.runpytest_subprocess(*OPTIONS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["tiny: required gates failed", "  acceptance.recall_at_5 *"])
