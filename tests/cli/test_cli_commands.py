"""Every command as a user meets it: help, exit status, output and files.

No text from outside can control the terminal.
"""

import json
import os
import re

import pytest
import typer
from cli_project import CONFIG, DOCUMENTS, QUERIES, jsonl
from pydantic import ValidationError
from typer.testing import CliRunner

from rag_eval import __version__
from rag_eval.cli.app import REMOVED_COMMANDS, app
from rag_eval.core.errors import InputError
from rag_eval.core.settings import REMOVED_SETTINGS, Settings
from rag_eval.corpus.loaders.folder import Folder
from rag_eval.pipeline import opening
from rag_eval.storage.locks import WriteLock

ESCAPES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202e"


def commands(group, name=""):
    """Yield (full name, command) of every command of a group."""
    for word, command in group.commands.items():
        yield f"{name} {word}".strip(), command
        yield from commands(command, f"{name} {word}") if hasattr(command, "commands") else ()


def test_every_command_and_every_option_has_help():
    for name, command in commands(typer.main.get_command(app)):
        assert command.help, name
        for option in command.params:
            assert getattr(option, "help", None) or option.name == "help", (name, option.name)
        assert CliRunner().invoke(app, [*name.split(), "--help"]).exit_code == 0


@pytest.mark.parametrize("name", REMOVED_COMMANDS)
def test_a_removed_command_says_what_to_use(name):
    result = CliRunner().invoke(app, name.split())
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"rag-eval {name} was removed; ")


@pytest.mark.parametrize("name", REMOVED_SETTINGS)
def test_a_removed_setting_says_what_to_use(name, monkeypatch):
    first, *deeper = name.replace("*", "any").split(".")
    value = {}
    for key in reversed(deeper):
        value = {key: value}
    with pytest.raises(ValidationError, match=rf"{re.escape(name)} was removed; \w+"):
        Settings(**{first: value})
    monkeypatch.setenv(f"RAG_EVAL_{first.upper()}", json.dumps(value))
    with pytest.raises(ValidationError, match=rf"{re.escape(name)} was removed; \w+"):
        Settings()


def test_version_and_no_command():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"{__version__}\n"
    assert "Usage" in CliRunner().invoke(app, []).output


def test_run_prints_the_report_and_where_it_is(project):
    result = project.command("run", "tiny")
    report = project.report()
    assert report["content_hash"][:16] in result.stdout
    assert report["run_id"] in result.stdout
    assert str(project.reports / "tiny" / "retrieval-metrics.json") in result.stdout
    assert "3 of 4 questions" in result.stdout
    for name in ("retrieval-metrics.json", "evidence-trust.jsonl"):
        top = (project.reports / name).read_bytes()
        assert top == (project.reports / "tiny" / name).read_bytes()
    files = "per-query.parquet qrels.trec run-bm25.trec run-vector.trec"
    assert {path.name for path in (project.reports / "tiny").iterdir()} >= set(files.split())


@pytest.mark.slow
def test_only_the_whole_primary_gold_set_is_published(project, monkeypatch):
    project.invoke("run", "tiny")
    published = (project.reports / "retrieval-metrics.json").read_bytes()
    project.invoke("run", "tiny", "--strategy", "bm25")
    assert (project.reports / "retrieval-metrics.json").read_bytes() == published
    assert not (project.reports / "tiny" / "run-vector.trec").exists(), (
        "a ranking of the earlier run stands beside the new report"
    )
    monkeypatch.setenv("RAG_EVAL_PRIMARY_GOLD_SET", "another")
    project.invoke("run", "tiny")
    assert (project.reports / "retrieval-metrics.json").read_bytes() == published


def test_a_mistyped_command_is_an_error_and_no_failed_gate(project):
    assert project.process("run", "--no-such-option").returncode == 1


@pytest.mark.parametrize("place", [(Folder, "identity"), (Folder, "read"), (opening, "permitted")])
@pytest.mark.parametrize("raised", [SystemExit(), SystemExit(2), typer.Exit(0), typer.Exit(2)])
@pytest.mark.parametrize("command", ["run", "lint"])
def test_a_library_that_exits_is_no_success(project, monkeypatch, place, raised, command):
    def leave(*_):
        raise raised

    monkeypatch.setattr(*place, leave)
    result = project.command(command, "tiny", exit_code=1)
    assert "exit" in result.stderr
    assert not (project.root / "reports").exists()


def test_nothing_to_run_is_an_error_that_says_what_to_do(project):
    result = project.invoke("run")  # tiny is not in the nightly job
    assert result.exit_code == 1
    assert "rag-eval init" in result.stderr
    assert "tiny" in project.invoke("run", "none-such").stderr


def test_lint_lists_everything_and_fails_on_errors_only(project):
    project.command("lint")
    shown = project.invoke("lint", "tiny").stdout
    assert "tiny: 0 errors, 3 warnings" in shown
    assert "relevant sections have fewer than 3 questions" in shown
    more = {"query_id": "more", "text": "What else?", "answerable": True}
    rows = [{**QUERIES[0], "text": ""}, *QUERIES[1:], more]
    project.write("queries.jsonl", jsonl(rows))
    result = project.command("lint", "tiny", exit_code=1)
    assert re.search(r"queries\.jsonl:1: error empty_text", result.stdout)
    assert re.search(r"queries\.jsonl:5: error answerable_without_target", result.stdout)
    assert not project.reports.exists()


def test_from_a_folder_of_documents_to_a_report(project):
    docs = project.root / "handbook"
    docs.mkdir()
    for name, text in DOCUMENTS.items():
        (docs / name).write_text(text)
    (docs / "help.md").write_text(
        "# Results\n\nTo keep results longer, raise the limit.\n\n## Failures\n\nIf a job fails "
        "again, an alert is sent.\n\n## Hours\n\nWhen a night is over, alerts are sent.\n"
    )
    project.command("init", "mine", "--docs", str(docs))
    linted = project.command("lint", "mine", exit_code=1)
    n_drafts = len((project.root / "gold_sets/mine/queries.jsonl").read_text().splitlines())
    assert linted.stdout.count("draft_question") == n_drafts
    assert project.invoke("run", "mine").exit_code == 1
    queries = project.root / "gold_sets" / "mine" / "queries.jsonl"
    drafts = [json.loads(line) for line in queries.read_text().splitlines()]
    asked = [{**row, "text": f"What about {at}?", "tags": []} for at, row in enumerate(drafts)]
    queries.write_text(jsonl(asked))
    linted = project.command("lint", "mine")
    project.command("run", "mine")
    assert project.report("mine")["index"]["n_documents"] == len(DOCUMENTS) + 1
    again = project.command("init", "mine", "--docs", str(docs), exit_code=1)
    assert "target_exists" in again.stderr


@pytest.mark.parametrize("name", ["../outside", "", "x" * 65, "a\x1b[31m"])
def test_init_takes_a_name_and_no_path(project, name):
    result = project.command("init", name, "--docs", str(project.corpus), exit_code=1)
    assert "bad_name" in result.stderr
    assert not ESCAPES.search(result.output)
    assert sorted(path.name for path in project.root.iterdir()) == ["gold_sets"]


@pytest.mark.slow
def test_runs_of_the_same_gold_are_compared_question_by_question(project):
    project.invoke("run", "tiny")
    project.write("corpus/more.md", "# More\n\nResults and alerts of another kind.\n")
    project.invoke("run", "tiny")
    result = project.command("compare", "latest", "previous")
    assert "DIFFERENT: the index differs of bm25, vector" in result.stdout
    assert "DIFFERENT: the chunks differ" in result.stdout


def test_show_gives_the_run_again_and_its_json_is_the_file(project, shared_runs):
    (ran,) = shared_runs.run(project)
    shown = project.command("show")
    assert shown.stdout.strip() in ran.stdout
    report = project.report()
    path, run_id = project.reports / "tiny" / "retrieval-metrics.json", report["run_id"]
    for name in ("latest", "tiny", run_id, run_id[:18]):
        result = project.command("show", name, "--json")
        assert result.stdout == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("columns", ["60", "80"])
def test_a_narrow_terminal_cuts_no_name_and_no_figure(project, shared_runs, monkeypatch, columns):
    shared_runs.run(project)
    wide = project.command("show").stdout
    monkeypatch.setenv("COLUMNS", columns)
    narrow = project.command("show").stdout
    assert narrow != wide
    figures = ("[0.44, 1.00]", "[-1.00, +1.00]", "1.000", "3 of 4")
    for part in ("bm25 *", "vector", "uncalibrated", *figures):
        assert narrow.count(part) == wide.count(part) > 0, part


@pytest.mark.parametrize("name", ["latest", "none", "a\x1b[31m\nb"])
def test_a_run_that_is_not_there(project, name):
    result = project.command("show", name, exit_code=1)
    assert "run_not_found" in result.stderr
    assert not ESCAPES.search(result.stderr)


@pytest.mark.slow
def test_a_home_that_another_process_holds_is_named(project):
    with WriteLock(Settings(home=project.home)):
        done = project.process("run", "tiny", "--wait", "0")
    assert done.returncode == 1
    assert f"process {os.getpid()}" in done.stderr
    assert "home_busy" in done.stderr
    assert not project.reports.exists()
    assert project.invoke("run", "tiny").exit_code == 0  # the lock ended with its holder


def test_a_run_that_lost_its_lock_publishes_nothing(project, monkeypatch):
    def lost(_):
        raise InputError.of("lock_lost", "another run has written meanwhile")

    monkeypatch.setattr(WriteLock, "check", lost)
    assert "lock_lost" in project.run(exit_code=1).stderr
    assert not project.reports.exists()
    assert not (project.home / "runs").exists()


@pytest.mark.parametrize("place", ["home", "reports"])
def test_a_file_in_the_place_of_a_folder(project, place):
    (project.root / place).write_text("in the way")
    result = project.command("run", "tiny", exit_code=1)
    assert f"{project.root / place}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("nothing = 1", "[nothing]"),
        ('rerankers = {x = "rm -rf /"}', "[rerankers.x]"),
        ("home = 1\0", "settings.toml"),
    ],
)
def test_settings_that_cannot_be_used(project, settings, says):
    (project.root / "settings.toml").write_text(settings)
    result = project.command("show", exit_code=1)
    assert says in result.stderr


@pytest.mark.slow
def test_hostile_texts_do_not_reach_the_terminal_raw(project):
    first = {**QUERIES[0], "text": f"How long {HOSTILE} do results stay?", "tags": [HOSTILE]}
    project.write("queries.jsonl", jsonl([first, *QUERIES[1:]]))
    project.write(
        "corpus/bad.md",
        f"---\ntitle: '{HOSTILE[-1]}'\nsource_url: '{HOSTILE[-1]}'\n---\n"
        f"# {HOSTILE} [bold red]markup[/]\n\nResults {HOSTILE} stay.\n",
    )
    project.write("gold_set.yaml", CONFIG + 'version_note: "x"\n')
    for command in (("lint", "tiny"), ("run", "tiny")):
        assert not ESCAPES.search(project.invoke(*command).output)
    project.write("gold_set.yaml", CONFIG.replace("version: 1", 'version: "[red]\\u202e1[/]"'))
    for command in (("lint", "tiny"), ("run", "tiny"), ("show", "--json"), ("show",)):
        shown = project.command(*command).output
        assert not ESCAPES.search(shown)
    assert "[red]" in shown  # the text is shown unchanged, not as markup


def test_the_only_gold_set_is_the_primary_one(project, monkeypatch):
    monkeypatch.delenv("RAG_EVAL_PRIMARY_GOLD_SET")
    assert "of tiny" in project.command("gate", exit_code=1).stderr
    other = project.gold.parent / "other"
    other.mkdir()
    (other / "gold_set.yaml").write_text("", encoding="utf-8")
    assert "of pandas_api" in project.command("gate", exit_code=1).stderr
