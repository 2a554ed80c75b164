"""The commands and snippets of docs/exchange.md run, in their order, in one folder."""

import re
import shlex
import shutil

import pytest
from typer.testing import CliRunner

from rag_eval.cli.app import app
from rag_eval.reporting.exchange import RAGAS_FILE


@pytest.fixture(scope="module")
def text(project_root):
    return (project_root / "docs" / "exchange.md").read_text(encoding="utf-8")


def invoke(*words):
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, (words, result.output)
    return result.output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # dependencies of ragas deprecate each other
def test_the_page_runs_as_it_stands(text, project, project_root):
    example = project_root / "tests" / "corpus" / "foreign" / "openinference.jsonl"
    shutil.copy(example, project.root / "spans.jsonl")
    shutil.rmtree(project.gold.parent)
    shutil.copytree(project_root / "gold_sets", project.gold.parent)
    invoke("run", "smoke", "--strategy", "bm25")
    shown = [
        shlex.split(line.removeprefix("$ rag-eval "))
        for code in re.findall(r"```console\n(.*?)```", text, re.DOTALL)
        for line in code.splitlines()
        if line.startswith("$ rag-eval ")
    ]
    assert [words[0] for words in shown] == ["run", "claim", *["export"] * 4]
    outputs = [invoke(*words) for words in shown]
    assert "1 claim imported" in outputs[1]
    written = {path.name for path in (project.root / "exported").iterdir()}
    named = set(re.findall(r"^\| `([\w<>.-]+)`", text, re.MULTILINE))
    assert {name.replace("<strategy>", "bm25") for name in named} <= written
    assert {RAGAS_FILE, "per-query.csv"} <= written
    assert RAGAS_FILE not in {path.name for path in (project.reports / "smoke").iterdir()}
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, names)  # noqa: S102 - the documentation's own lines
    assert len(names["originals"]) > 50
    assert len(names["samples"]) == 12
    assert len(names["qrels"]) > 10
