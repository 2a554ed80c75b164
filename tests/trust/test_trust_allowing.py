"""Decisions about blocked chunks: only ever added, never guessed, and none is lost when two people decide at once."""

import datetime as dt
import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from rag_eval.records.problems import InputError
from rag_eval.trust.allowing import (
    FILE_NAME,
    MAX_LINE,
    Decision,
    allowed_chunks,
    read_decisions,
    record_decision,
)

AT = dt.datetime(2026, 3, 1, 12, 30, tzinfo=dt.UTC)


def decision(chunk_id="c1", action="allow", who="Ann", **more):
    return Decision(
        chunk_id=chunk_id,
        doc_id=more.pop("doc_id", "d.md"),
        action=action,
        who=who,
        why=more.pop("why", "it quotes an attack"),
        at=more.pop("at", AT),
        **more,
    )


def who_allows(folder):
    return {chunk_id: one.who for chunk_id, one in allowed_chunks(folder).items()}


def line(**changes):
    return json.dumps(
        {
            "schema_version": 1,
            "chunk_id": "c1",
            "doc_id": "d",
            "action": "allow",
            "who": "Ann",
            "why": "fine",
            "reasons": [],
            "at": "2026-03-01T12:30:00Z",
            **changes,
        }
    )


def test_without_a_file_nothing_is_allowed(tmp_path):
    assert read_decisions(tmp_path) == []
    assert who_allows(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_decision_comes_back_as_it_was_made(tmp_path):
    made = decision(
        doc_id="ü/\u202e\n.md",
        why='"why"\n\x1b[31m ' + "w" * 1900,
        reasons=("pattern.x", "hidden.y"),
    )
    path = record_decision(tmp_path, made)
    assert path == tmp_path / FILE_NAME
    assert read_decisions(tmp_path) == [made]
    data = path.read_bytes()
    assert (data.count(b"\n"), data[-1:]) == (1, b"\n")
    assert all(32 <= byte < 127 for byte in data[:-1])
    assert json.loads(data)["schema_version"] == 1


def test_lines_are_only_ever_added_and_the_later_one_counts(tmp_path):
    before = b""
    for chunk_id, action, who in (
        ("c1", "allow", "Ann"),
        ("c2", "allow", "Bob"),
        ("c1", "revoke", "Bob"),
        ("c1", "allow", "Cy"),
        ("c2", "revoke", "Cy"),
    ):
        now = record_decision(tmp_path, decision(chunk_id, action, who)).read_bytes()
        assert now.startswith(before)
        assert now.count(b"\n") == before.count(b"\n") + 1
        before = now
    assert who_allows(tmp_path) == {"c1": "Cy"}
    assert [(one.chunk_id, one.action, one.who) for one in read_decisions(tmp_path)][2] == (
        "c1",
        "revoke",
        "Bob",
    )


def test_a_revocation_of_what_nobody_allowed_changes_nothing(tmp_path):
    record_decision(tmp_path, decision("c9", "revoke"))
    assert who_allows(tmp_path) == {}


@pytest.mark.parametrize("end", ["", "\r", "\n\n", "\n  \n"])
def test_a_line_without_its_end_is_ended_before_the_next(tmp_path, end):
    path = tmp_path / FILE_NAME
    path.write_text(line() + end, encoding="utf-8", newline="")
    record_decision(tmp_path, decision("c2"))
    assert who_allows(tmp_path) == {"c1": "Ann", "c2": "Ann"}
    assert path.read_bytes().startswith((line() + end).encode())


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ("{", "line"),
        (line()[:-5], "line"),
        ("[]", "line"),
        ("null", "line"),
        (line(chunk_id=""), "chunk_id"),
        (line(chunk_id="c" * 201), "chunk_id"),
        (line(action="permit"), "action"),
        (line(who=""), "who"),
        (line(why=""), "why"),
        (line(why="w" * 2001), "why"),
        (line(at="yesterday"), "at"),
        (line(schema_version=2), "schema_version"),
        (line(extra=1), "extra"),
        (line(source_hash="A" * 64), "source_hash"),
        (line(source_hash="a" * 64 + "\n"), "source_hash"),
        (line(reasons=["r"] * 101), "reasons"),
        (
            json.dumps({key: value for key, value in json.loads(line()).items() if key != "who"}),
            "who",
        ),
        ('{"chunk_id": "\\ud800"}', "line"),
    ],
)
def test_a_bad_line_is_refused_with_its_file_and_number(tmp_path, bad, field):
    path = tmp_path / FILE_NAME
    path.write_text(f"{line()}\n\n{bad}\n{line()}\n", encoding="utf-8")
    before = path.read_bytes()
    for use in (read_decisions, allowed_chunks, lambda folder: record_decision(folder, decision())):
        with pytest.raises(InputError) as caught:
            use(tmp_path)
        (problem,) = caught.value.problems
        assert (problem.code, problem.file, problem.line) == ("bad_decision", str(path), 3)
        assert field in problem.field or field == "line"
        assert "chunk_id" in problem.accepted
    assert path.read_bytes() == before


def test_bytes_that_are_no_text_are_refused_without_reaching_the_terminal(tmp_path):
    path = tmp_path / FILE_NAME
    path.write_bytes(line().encode() + b'\n{"who": "\x1b]0;owned\x07\xff\xfe"}\n')
    with pytest.raises(InputError) as caught:
        read_decisions(tmp_path)
    shown = str(caught.value.problems[0])
    assert not set(shown) & {"\x1b", "\x07"}
    assert caught.value.problems[0].line == 2


def test_a_line_that_is_too_long_is_not_parsed_nor_shown(tmp_path):
    (tmp_path / FILE_NAME).write_text(f"{line()}\n{line(who='w' * MAX_LINE)}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        allowed_chunks(tmp_path)
    (problem,) = caught.value.problems
    assert (problem.code, problem.line) == ("line_too_long", 2)
    assert len(str(problem)) < 1000


def test_the_longest_decision_that_is_accepted_can_be_read_again(tmp_path):
    made = decision(
        "c" * 200,
        who="w" * 200,
        why="\U0001f600" * 250,
        doc_id="d" * 1000,
        reasons=tuple("pattern." + "r" * 30 for _ in range(30)),
    )
    record_decision(tmp_path, made)
    assert read_decisions(tmp_path) == [made]


def test_a_decision_in_letters_that_take_twelve_bytes_each_can_be_read_again(tmp_path):
    made = decision(
        "c" * 200, who="\U0001f600" * 200, why="\U0001f600" * 2000, doc_id="\U0001f600" * 1000
    )
    record_decision(tmp_path, made)
    assert read_decisions(tmp_path) == [made]


def test_no_decision_is_written_that_could_not_be_read_again(tmp_path):
    record_decision(tmp_path, decision())
    with pytest.raises(InputError) as caught:
        record_decision(tmp_path, decision("c2", reasons=("r" * MAX_LINE,)))
    assert [problem.code for problem in caught.value.problems] == ["line_too_long"]
    assert who_allows(tmp_path) == {"c1": "Ann"}


@pytest.mark.parametrize(
    "changes", [{"who": ""}, {"why": ""}, {"chunk_id": ""}, {"action": "permit"}]
)
def test_a_decision_without_who_why_or_what_cannot_be_made(changes):
    with pytest.raises(ValidationError):
        decision(**changes)


WRITER = """
import datetime as dt, pathlib, sys
from rag_eval.trust.allowing import Decision, record_decision
folder, who, n = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(n):
    record_decision(folder, Decision(chunk_id=f"{who}-{number}", doc_id="d", action="allow", who=who, why="w" * 500, at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC)))
"""


def test_two_processes_that_decide_at_once_lose_nothing(tmp_path):
    n = 40
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), who, str(n)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for who in ("Ann", "Bob")
    ]
    ends = [(writer.communicate(timeout=100)[1], writer.returncode) for writer in writers]
    assert [code for _, code in ends] == [0, 0], ends
    assert who_allows(tmp_path) == {
        f"{who}-{number}": who for who in ("Ann", "Bob") for number in range(n)
    }
    assert len(read_decisions(tmp_path)) == 2 * n
