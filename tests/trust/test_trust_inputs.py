import datetime as dt
import hashlib
import json
import resource

import pytest

from rag_eval.core.errors import InputError
from rag_eval.trust.signatures import (
    ALLOWED_FILE,
    Decision,
    _read_allowed,
    read_decisions,
    record_decisions,
)

AT = dt.datetime(2026, 3, 1, 12, 30, tzinfo=dt.UTC)


def make_decision(doc_id="d.md", who="Ann", **more):
    given = {"why": "it quotes an attack", "at": AT, "source_hash": sha("1")} | more
    return Decision(doc_id=doc_id, who=who, **given)


def line(**changes):
    given = {"schema_version": 1, "chunk_id": "", "doc_id": "d", "action": "allow", "who": "Ann"}
    given |= {"why": "fine", "reasons": [], "at": "2026-03-01T12:30:00Z"} | changes
    return json.dumps({key: value for key, value in given.items() if value != "left out"})


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_decision_is_flushed_to_disk(tmp_path, flushed):
    assert record_decisions(tmp_path, [make_decision()]).stat().st_ino in flushed.all()


@pytest.mark.parametrize(
    "changes",
    [
        {"doc_id": "ü/\u202e\n.md", "why": '"why"\n\x1b[31m', "reasons": ("pattern.x", "hidden.y")},
        {"doc_id": "\U0001f600" * 1000, "why": "\U0001f600" * 2000},
    ],
    ids=["controls", "longest"],
)
def test_a_decision_comes_back_as_it_was_made(tmp_path, changes):
    made = make_decision(**changes)
    path = record_decisions(tmp_path, [made])
    assert path == tmp_path / ALLOWED_FILE
    assert read_decisions(tmp_path) == [made]
    assert path.read_bytes().count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in path.read_bytes()[:-1])


def test_lines_are_only_added_and_the_last_one_counts(tmp_path):
    before = b""
    for given in ("a Ann", "b Bob", "a Cy"):
        now = record_decisions(tmp_path, [make_decision(*given.split())]).read_bytes()
        assert now.startswith(before)
        assert now.count(b"\n") == before.count(b"\n") + 1
        before = now
    assert _read_allowed(tmp_path, {"a": sha("1"), "b": sha("1")}) == ({"a": "Cy", "b": "Bob"}, 0)


def test_decisions_are_added_together_or_not_at_all(tmp_path):
    path = record_decisions(tmp_path, [make_decision()])
    path.write_bytes(path.read_bytes().rstrip())  # as an editor may leave the file
    several = [make_decision("c2"), make_decision("c3")]
    record_decisions(tmp_path, several)
    assert read_decisions(tmp_path) == [make_decision(), *several]
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 300, hard))
    try:
        with pytest.raises(OSError, match="No space left"):
            record_decisions(tmp_path, several)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (line()[:-5], None),
        (line(chunk_id="c1"), "chunk_id"),
        (line(action="revoke"), "action"),
        (line(who="left out"), "who"),
        (line(source_hash="A" * 64), "source_hash"),
        ('{"who": "\x1b]0;owned\x07"}', None),
    ],
)
def test_a_bad_line_is_refused_with_its_file_and_number(tmp_path, bad, field):
    path = tmp_path / ALLOWED_FILE
    path.write_text(f"{line()}\n\n{bad}\n{line()}\n", encoding="utf-8")
    before = path.read_bytes()
    for use in (read_decisions, lambda folder: record_decisions(folder, [make_decision()])):
        with pytest.raises(InputError) as caught:
            use(tmp_path)
        [problem] = caught.value.problems
        assert (problem.file, problem.line, problem.field) == (str(path), 3, field)
        assert not set(str(problem)) & {"\x1b", "\x07"}
    assert path.read_bytes() == before


def test_a_decision_counts_for_the_bytes_that_were_seen(tmp_path):
    for doc_id, text in (("same", "1"), ("changed", "2"), ("gone", "3")):
        record_decisions(tmp_path, [make_decision(doc_id, source_hash=sha(text))])
    record_decisions(tmp_path, [make_decision("unsaid", source_hash="")])
    # Two missing hashes are equal in "unsaid", but no hash says which bytes were read.
    now = {"same": sha("1"), "changed": sha("two"), "unsaid": ""}
    assert _read_allowed(tmp_path, now) == ({"same": "Ann"}, 3)
