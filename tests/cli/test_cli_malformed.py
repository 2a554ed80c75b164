"""Broken or extreme inputs give a clear error or a result on the command line, never a traceback.

An error ends with exit status 1, names its place, and leaves neither a report nor a half-written
artifact. The tests of each reader (tests/gold, tests/corpus, tests/retrieval) cover the faults of
its file. This file has one input for each way to fail.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from cli_project import BEIR_CORPUS, CONFIG, QRELS, QUERIES, Project, jsonl

Spoil = Callable[[Project], object]


class Case(NamedTuple):
    name: str
    spoil: Spoil
    says: tuple[str, ...] = ()
    """Words of the expected error; empty for an input that the run accepts."""
    arguments: tuple[str, ...] = ("tiny",)


def put(path: str, data: bytes | str) -> Spoil:
    """Write a file of the gold set, or of the BEIR folder if the path begins with `collection/`."""

    def spoil(project: Project) -> None:
        target = project.root / path if path.startswith("collection/") else project.gold / path
        target.write_bytes(data if isinstance(data, bytes) else data.encode())

    return spoil


def query(**changes: object) -> Spoil:
    return put("queries.jsonl", jsonl([{**QUERIES[0], **changes}, *QUERIES[1:]]))


def config(old: str, new: str) -> Spoil:
    assert old in CONFIG
    return put("gold_set.yaml", CONFIG.replace(old, new))


def ask_unanswerable(project: Project) -> None:
    rows = [{**row, "answerable": False} for row in QUERIES]
    project.write("queries.jsonl", jsonl(rows))
    for name in ("answers.jsonl", "qrels.tsv"):
        (project.gold / name).unlink()


def keep_only(documents: dict[str, str | bytes]) -> Spoil:
    """Replace the corpus by these documents, and make all questions unanswerable."""

    def spoil(project: Project) -> None:
        for path in project.corpus.iterdir():
            path.unlink()
        for name, text in documents.items():
            (project.corpus / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        ask_unanswerable(project)

    return spoil


def add_document(name: str | bytes, text: str | bytes) -> Spoil:
    def spoil(project: Project) -> None:
        data = text if isinstance(text, bytes) else text.encode()
        (project.corpus / os.fsdecode(name)).write_bytes(data)

    return spoil


def make_pipe(project: Project) -> None:
    (project.gold / "queries.jsonl").unlink()
    os.mkfifo(project.gold / "queries.jsonl")


def make_beir(*spoils: Spoil) -> Spoil:
    def spoil(project: Project) -> None:
        project.make_beir()
        for one in spoils:
            one(project)

    return spoil


BOM = b"\xef\xbb\xbf"
BEIR = ("--beir", "{root}/collection")
GONE = "".join(f"keep\tgone-{i}.md\t1\n" for i in range(1_000))
SURROGATE_ROW = {"_id": "a", "title": "", "text": "x \ud83d y", "metadata": {"n": float("nan")}}

CASES = [
    Case("an alias bomb", put("gold_set.yaml", "a: &a [x]\nb: [*a, *a]\n"), ("alias_refused",)),
    Case("a NUL byte", put("queries.jsonl", "\0"), ("queries.jsonl:1", "nul_byte")),
    Case("CRLF", put("queries.jsonl", BOM + jsonl(QUERIES).replace("\n", "\r\n").encode())),
    Case(
        "an id with a control",
        query(query_id="ab\u0007cd"),
        ("queries.jsonl:1", "bad_id", "\\u0007"),
    ),
    Case("a named pipe", make_pipe, ("queries.jsonl", "not_a_file")),
    Case("a thousand faults", put("qrels.tsv", QRELS + GONE), ("more errors are not listed",)),
    Case("no paraphrase", lambda project: (project.gold / "paraphrases.jsonl").unlink()),
    Case("no answerable question", ask_unanswerable),
    Case("no gold set", lambda _: None, ("no such gold set", "tine"), ("tine",)),
    Case("a terminal escape", config("name: bm25", 'name: "\\e[2J"'), ("gold_set.yaml:8",)),
    Case(
        "an unknown measure",
        put("gold_set.yaml", CONFIG + 'acceptance: {recal_at_10: ">= 0.5"}\n'),
        ("gold_set.yaml:13", "did you mean recall_at_10"),
    ),
    Case("no corpus", config("path: corpus,", "path: gone,"), ("missing_input", "gone")),
    Case("documents without text", keep_only({"a.md": "", "b.md": " \n"}), ("empty_index",)),
    Case("one document", keep_only({"one.md": "# One\n\nThe only page.\n"})),
    Case("a name without UTF-8", add_document(b"\xff.md", "text"), ("bad_id",)),
    Case(
        "a stranger's rows",
        make_beir(put("collection/corpus.jsonl", jsonl([SURROGATE_ROW, *BEIR_CORPUS]))),
        (),
        BEIR,
    ),
    Case("a split that leaves", make_beir(), ("[split]",), (*BEIR, "--split", "../q")),
    Case("two sources", make_beir(), ("[--beir]", "not both"), ("tiny", *BEIR)),
]


def is_whole(folder: Path) -> bool:
    """Return whether all artifacts below a folder are complete."""
    artifacts = (folder / "artifacts").glob("*/*")
    return not list(folder.rglob(".partial-*")) and all(
        (artifact / "artifact.json").is_file() for artifact in artifacts
    )


def find_raw(text: str) -> set[str]:
    """Find the characters of an output that would control a terminal."""
    bidi = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    return {
        char
        for char in text
        if (ord(char) < 32 and char != "\n") or 0x7F <= ord(char) < 0xA0 or char in bidi
    }


def spoil(project: Project, case: Case) -> list[str]:
    case.spoil(project)
    return [argument.format(root=project.root) for argument in case.arguments]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if case.says])
def test_a_fault_ends_in_a_clear_error(project, case):
    result = project.command("run", *spoil(project, case), exit_code=1)
    assert not [part for part in case.says if part not in result.stderr], result.stderr
    assert "no report was written" in result.stderr.splitlines()[-1]
    assert not find_raw(result.output)
    assert is_whole(project.home)
    assert not project.reports.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in CASES if not case.says]
)
def test_an_unusual_input_is_evaluated(project, case):
    result = project.command("run", *spoil(project, case))
    assert not find_raw(result.output)
    assert is_whole(project.home)
    (report, *_) = sorted(project.reports.rglob("retrieval-metrics.json"))
    json.loads(report.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in the report"))
