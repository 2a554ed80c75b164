"""The README shows the real output of the tool, as a fresh run generates it."""

import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def readme(project_root):
    return (project_root / "README.md").read_text(encoding="utf-8")


def test_every_command_is_in_the_readme(readme):
    import typer.main

    from rag_eval.cli.app import app

    group = typer.main.get_command(app)
    missing = [
        name
        for name, command in group.commands.items()
        if f"| `rag-eval {name}` | {command.help.splitlines()[0]} |" not in readme
    ]
    assert missing == [], "run `make docs`"


def test_every_setting_is_in_the_readme(readme):
    from rag_eval.core.settings import Settings

    assert [
        name
        for name in Settings.model_fields
        if not name.startswith("feature_") and f"`{name}`" not in readme
    ] == []


def test_make_targets_named_in_the_readme_exist(readme, project_root):
    makefile = (project_root / "Makefile").read_text(encoding="utf-8")
    for target in ("run", "test", "ui", "bench", "help"):
        assert f"make {target}" in readme
        assert f"\n{target}:" in makefile


@pytest.mark.slow
def test_the_readme_shows_what_a_fresh_run_prints(project_root):
    done = subprocess.run(
        [sys.executable, "docs/make_readme.py", "--check"],
        cwd=project_root,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(project_root)},
    )
    assert done.returncode == 0, done.stderr
