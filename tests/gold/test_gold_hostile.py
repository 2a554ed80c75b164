"""Gold sets whose files cannot be read end in an error that names the file, and in bounded time."""

import logging
import os
import signal
import subprocess

import pytest
from cli_project import CONFIG

from rag_eval.corpus.loaders.folder import Folder
from rag_eval.gold.files import MAX_ROWS

SECONDS = 20
FILES = ("queries.jsonl", "paraphrases.jsonl", "qrels.tsv", "answers.jsonl", "gold_set.yaml")
LOADERS = {
    "folder": "docs/a.md",
    "beir": "docs/corpus.jsonl",
    "parquet": "docs/a.parquet",
    "recorded": "docs",
    "hf_datasets": "docs.jsonl",
}
"""Loader -> a file that it reads. The configuration names its first part."""


def make_pipe(path):
    os.mkfifo(path)


def link_to_itself(path):
    path.symlink_to(path.name)


def link_in_a_circle(path):
    path.symlink_to(f"{path.name}.2")
    path.with_name(f"{path.name}.2").symlink_to(path.name)


def link_to_a_device(path):
    path.symlink_to("/dev/zero")


def write_bytes(path):
    path.write_bytes(b"\xff\x00" * 50)


HOSTILE = (make_pipe, link_to_itself, link_in_a_circle, link_to_a_device, write_bytes)


@pytest.fixture(autouse=True)
def bounded():
    """End a test that waits for a pipe or never finishes."""

    def end(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("make", HOSTILE)
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_gold_set_is_refused_by_name(project, name, make):
    (project.gold / name).unlink()
    make(project.gold / name)
    result = project.command("lint", "tiny", exit_code=1)
    assert (name if name != "gold_set.yaml" else "tiny") in result.stdout + result.stderr


@pytest.mark.parametrize("make", HOSTILE)
@pytest.mark.parametrize("loader", LOADERS)
def test_a_file_of_the_corpus_is_refused_by_name(project, loader, make, caplog):
    # `datasets` logs to the standard error of the first test that used it, which is closed
    caplog.set_level(logging.CRITICAL, "datasets")
    path = project.gold / LOADERS[loader]
    path.parent.mkdir(exist_ok=True)
    make(path)
    first = LOADERS[loader].split("/")[0]
    old = CONFIG.splitlines()[2]
    project.write(
        "gold_set.yaml", CONFIG.replace(old, f"corpus: {{loader: {loader}, path: {first}}}")
    )
    result = project.command("lint", "tiny", exit_code=1)
    assert path.name in result.stdout + result.stderr


NAMES = {
    "a line break": "a\nb.md",
    "no UTF-8": os.fsdecode(b"\xff\xfe.md"),
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_that_is_no_id_is_refused(project, name):
    (project.corpus / name).write_text("# A\n\ntext")
    assert "bad_id" in project.command("lint", "tiny", exit_code=1).stderr


def test_folders_deeper_than_the_stack_are_read(tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    (tmp_path / "a.md").write_text("# A\n\ntext")
    corpus = Folder(loader="folder", path=str(tmp_path))
    try:
        assert [document.doc_id for document in corpus.read(tmp_path).documents] == ["a.md"]
    finally:  # pytest's own removal of folders is bounded by the stack
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


@pytest.mark.parametrize(
    ("what", "name"), [("questions", "queries.jsonl"), ("judgements", "qrels.tsv")]
)
def test_too_many_rows_are_refused(project, monkeypatch, what, name):
    for limit, code in ((10, None), (0, 1)):
        monkeypatch.setitem(MAX_ROWS, what, limit)
        text = project.command("lint", "tiny", exit_code=code).output
        assert (f"{name}: error too_many_rows" in text) == (limit == 0)
