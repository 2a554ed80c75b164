"""Every command, snippet and generated part of README.md and docs/ is what the program has."""

import ast
import contextlib
import json
import re
import shlex
import subprocess
import sys
import tomllib

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

import rag_eval
from rag_eval.cli.app import app
from rag_eval.core.config import GoldSetConfig
from rag_eval.core.settings import Settings

FRAGMENTS = {"README.md", "ci.md", "contributing.md", "exchange.md", "protocol.md"}
"""Pages whose Python and YAML other tests run, as far as they can run alone."""
BASE = {
    "name": "page",
    "corpus": {"loader": "folder", "path": "."},
    "strategies": [{"name": name, "kind": name} for name in ("bm25", "vector", "hybrid")],
}


@pytest.fixture(scope="module")
def pages(project_root):
    paths = [project_root / "README.md", *sorted((project_root / "docs").glob("*.md"))]
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


@pytest.fixture(scope="module")
def generate(project_root):
    """Return the module docs/generate.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(project_root / "docs"))
        import generate

        yield generate


def blocks(pages, *languages):
    """Yield (page, code) for each fenced block in one of the languages."""
    for name, text in pages.items():
        for language, code in re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            if language in languages:
                yield name, code


def commands(pages):
    """Yield (page, words) for each command line that a page shows."""
    for name, code in blocks(pages, "console"):
        for line in code.splitlines():
            if line.startswith("$ "):
                yield name, shlex.split(line.removeprefix("$ "), comments=True)


def fault_of(words):
    """Parse the words as the command line does, without running the command; return the fault."""
    command, name = typer.main.get_command(app), "rag-eval"
    words = words[: words.index("&&")] if "&&" in words else words
    while hasattr(command, "commands") and words and words[0] in command.commands:
        name, *words = words
        command = command.commands[name]
    if hasattr(command, "commands") and words and words[0].isidentifier():
        return f"{name} has no command {words[0]}"
    usage_error = typer.BadParameter.__mro__[1]
    try:
        with contextlib.redirect_stdout(None):
            command.make_context(name, list(words))
    except usage_error as error:
        return error.format_message()
    return None


def test_every_shown_command_exists_with_its_options(pages):
    shown = [(page, words) for page, words in commands(pages) if words[0].endswith("rag-eval")]
    faults = [(page, words, fault_of(words[1:])) for page, words in shown]
    assert len(shown) > 30
    assert [fault for fault in faults if fault[2]] == []


def test_a_wrong_command_is_found():
    assert "No such option" in fault_of(["run", "smoke", "--fast"])
    assert "Missing" in fault_of(["export"])
    assert fault_of(["runn"])


def test_python_snippets_run(pages):
    for page, code in blocks(pages, "python"):
        if page in FRAGMENTS:
            ast.parse(code)
        else:
            exec(compile(code, page, "exec"), {})  # noqa: S102 - our own documentation


@pytest.mark.slow
def test_the_snippet_of_the_readme_gives_the_figures_of_the_report(pages, read_by_readme):
    (code,) = [code for page, code in blocks(pages, "python") if page == "README.md"]
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102 - our own documentation
    loaded = rag_eval.load(read_by_readme / "reports" / "pandas_api")
    figures = ["value", "ci_low", "ci_high", "questions", "effective_questions"]
    for label in ("R@10", "RR"):
        ours = names["result"].table.loc[label, figures]
        assert ours.tolist() == pytest.approx(
            loaded.table.loc[("hybrid", "document", label), figures].tolist(), abs=1e-9
        )
    row = names["pairs"].table.loc[("hybrid", "bm25", "R@10")]
    told = loaded.comparisons.loc[("bm25", "hybrid", "document", "R@10")]
    assert row["difference"] == pytest.approx(-told["difference"], abs=1e-9)
    missed, observed = names["model"].table.loc["miss_rate", "value"], loaded.miss_rates["observed"]
    assert missed == pytest.approx(observed["hybrid"], abs=1e-9)
    assert 0.1 < missed < 0.9
    by_wording = loaded.report.stability.strategies["hybrid"].by_wording
    assert list(by_wording) == ["original", "p1"]
    recalls = [figure.value for figure in by_wording.values()]
    assert sum(recalls) / 2 == pytest.approx(names["result"].table.loc["R@10", "value"], abs=1e-9)
    first = rag_eval.evaluate(names["hybrid"], names["qrels"], "R@10")  # qrels name the originals
    assert recalls[0] == pytest.approx(first.table.loc["R@10", "value"], abs=1e-9)
    assert by_wording["original"].miss.value == pytest.approx(1 - recalls[0])
    page = (read_by_readme / "reports" / "pandas_api" / "index.html").read_text("utf-8")
    assert "the figures below are over all wordings" in page


def test_configurations_are_accepted(pages):
    parsed = [(page, yaml.safe_load(code)) for page, code in blocks(pages, "yaml")]
    assert len(parsed) > 5
    for page, given in parsed:
        if page not in FRAGMENTS:
            GoldSetConfig.model_validate(BASE | given)


def test_settings_are_accepted(pages):
    for page, code in blocks(pages, "toml"):
        given = tomllib.loads(code)
        if page not in FRAGMENTS:
            Settings.model_validate(given)


def test_json_snippets_parse(pages):
    for _, code in blocks(pages, "json"):
        assert [json.loads(part) for part in re.split(r"\n(?=\{)", code.strip())]


def test_generated_pages_are_fresh(generate, project_root):
    stale = [
        path.name
        for path, text in generate.renewed_pages().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run `.venv/bin/python docs/generate.py --pages`"


def test_every_key_and_setting_is_explained(generate):
    pages = [generate.PAGES[name]() for name in ("configuration", "settings")]
    rows = [line for text in pages for line in text.splitlines() if line[:3] == "| `"]
    assert len(rows) > 150
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_public_name_is_in_the_reference(pages):
    assert sorted(re.findall(r"^::: rag_eval\.(\w+)$", pages["python.md"], re.MULTILINE)) == sorted(
        rag_eval.__all__
    )


def test_the_notebook_was_executed_without_errors(generate):
    notebook = json.loads(generate.notebook.NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = [output["output_type"] for cell in code for output in cell["outputs"]]
    assert set(kinds) == {"execute_result", "stream"}


def test_fresh_output_may_differ_in_times_and_hashes_alone(generate):
    shown = "corpus 0123456789abcdef: 10 documents\nbm25  0.950 [0.58, 1.00]  10/12  13.0"
    assert generate.same(
        shown, shown.replace("0123456789abcdef", "fedcba98765432").replace("13.0", "9.1")
    )
    assert generate.same(shown, shown.replace("0.950", "0.951"))
    assert not generate.same(shown, shown.replace("0.950", "0.850"))
    assert generate.same("3,797 with a warning", "3,800 with a warning")
    assert not generate.same("3,797 with a warning", "3,997 with a warning")
    assert not generate.same(shown, shown.replace("documents", "pages"))


def test_make_targets_that_pages_name_exist(pages, project_root):
    makefile = (project_root / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"(?:`|\$ )make ([a-z-]+)", "\n".join(pages.values()))
    assert {"run", "test", "ui", "bench", "help"} <= set(named)
    assert [target for target in named if f"\n{target}:" not in makefile] == []


def test_the_readme_is_short_and_its_links_lead_somewhere(pages, project_root):
    written = re.sub(r"<!-- output -->.*<!-- /output -->", "", pages["README.md"], flags=re.DOTALL)
    assert len(written.split()) <= 500  # the output of a run is another 400 at most
    links = re.findall(r"\]\(([^)#:]+)\)", pages["README.md"])
    assert len(links) > 5
    assert [link for link in links if not (project_root / link).is_file()] == []


def test_rows_of_the_specification_have_a_state_and_a_reason(pages):
    rows = re.findall(
        r"^\| (\d+) \| (.+?) \| (.+?) \|(.*)\|$", pages["specification.md"], re.MULTILINE
    )
    assert len(rows) == 22
    assert [number for number, *_ in rows] == sorted((row[0] for row in rows), key=int)
    assert {state for _, _, state, _ in rows} == {"differs", "not met"}
    assert all(reason.strip() for *_, reason in rows)


@pytest.mark.slow
def test_the_first_tutorial_runs_as_it_stands(pages, project, project_root):
    project.root.joinpath("gold_sets").rename(project.root / "tiny_sets")
    (project.root / "gold_sets").symlink_to(project_root / "gold_sets")
    first = {"first-run.md": pages["first-run.md"]}
    shown = [words[1:] for _, words in commands(first) if words[0].endswith("rag-eval")]
    assert [words[0] for words in shown] == ["run", "show", "view", "run", "compare"]
    for words in shown:
        if words[0] != "view":  # it serves until Ctrl-C
            result = CliRunner().invoke(app, words, catch_exceptions=False)
            assert result.exit_code == 0, (words, result.output)


@pytest.mark.slow
def test_the_notebook_gives_its_outputs_again(generate, tmp_path):
    written = generate.notebook.NOTEBOOK.read_text(encoding="utf-8")
    texts = [generate.notebook.texts(one) for one in (written, generate.notebook.execute(tmp_path))]
    assert generate.same(*texts)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # it embeds thousands of texts, beside another worker's tests
def test_fresh_runs_print_what_the_pages_show(pages, project_root):
    assert len(pages["README.md"].split()) <= 900
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=project_root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
