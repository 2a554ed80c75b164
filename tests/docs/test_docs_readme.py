"""The README and the reference pages show the real output, commands and settings of the tool."""

import os
import re
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def readme(project_root):
    return (project_root / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages(project_root):
    return {path.name: path.read_text("utf-8") for path in (project_root / "docs").glob("*.md")}


def test_the_readme_is_short_and_its_links_lead_somewhere(readme, project_root):
    written = re.sub(r"<!-- output -->.*<!-- /output -->", "", readme, flags=re.DOTALL)
    assert len(written.split()) <= 500
    links = re.findall(r"\]\(([^)#:]+)\)", readme)
    assert len(links) > 10
    assert [link for link in links if not (project_root / link).is_file()] == []


def test_every_command_is_in_the_reference(pages):
    import typer.main

    from rag_eval.cli.app import app

    group = typer.main.get_command(app)
    missing = [
        name
        for name, command in group.commands.items()
        if f"| `rag-eval {name}` | {command.help.splitlines()[0]} |" not in pages["commands.md"]
    ]
    assert missing == [], "run `make docs`"


def test_every_setting_is_in_the_reference(pages):
    from rag_eval.core.settings import Settings

    assert [
        name
        for name in Settings.model_fields
        if not name.startswith("feature_") and f"`{name}`" not in pages["nightly.md"]
    ] == []


def test_make_targets_that_documents_name_exist(readme, pages, project_root):
    makefile = (project_root / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"(?:`|\$ )make ([a-z-]+)", "\n".join([readme, *pages.values()]))
    assert {"run", "test", "ui", "bench", "help"} <= set(named)
    assert [target for target in named if f"\n{target}:" not in makefile] == []


@pytest.mark.slow
@pytest.mark.timeout(1200)  # it embeds 4,757 texts, beside another worker's tests
def test_the_readme_shows_what_a_fresh_run_prints(project_root):
    done = subprocess.run(
        [sys.executable, "docs/make_readme.py", "--check"],
        cwd=project_root,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(project_root)},
    )
    assert done.returncode == 0, done.stderr
