"""Run files: every faulty line is named, and a missing list is never a silent zero.

A qid is a question or a wording of it.
"""

import pandas as pd
import pytest

from rag_eval.core.errors import InputError
from rag_eval.core.frames import VARIANTS
from rag_eval.retrieval.kinds.external import Failure, Item, Retrieved, match_lists, read_run

KEYS = [
    ("keep", "original"),
    ("keep", "terse"),
    ("a/b", "original"),
    ("a", "original"),
    ("a", "b"),
    ("with space", "original"),
]


def variants(keys=KEYS):
    frame = pd.DataFrame(keys, columns=["query_id", "paraphrase_id"])
    return VARIANTS.check(frame.assign(text="x", group_id="g", answerable=True))


@pytest.fixture
def read(tmp_path):
    def run(text, keys=KEYS):
        path = tmp_path / "mine.trec"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_run(path, variants(keys))

    return run


def names(items):
    return [item.id for item in items]


def test_rows_are_ordered_by_score_then_rank_then_name(read):
    found = read(
        "keep Q0 c 9 1.5 tag\nkeep Q0 a 2 1.5 tag\nkeep Q0 b 1 7e0 tag\nkeep Q0 d 2 1.5 tag\n"
    )
    assert names(found["keep", "original"]) == ["b", "a", "d", "c"]


def test_wordings_by_qid(read):
    found = read(
        "keep/terse Q0 d 1 1 t\na/b Q0 d 1 1 t\na Q0 d 1 1 t\nwith%20space Q0 d 1 1 t\n"
        "keep/original Q0 d 1 1 t\nother Q0 d 1 1 t\n"
    )
    originals = {(qid, "original") for qid in ("a/b", "a", "with space", "keep")}
    assert set(found) == {*originals, ("keep", "terse"), ("other", "")}


def test_every_line_at_fault_is_named(read):
    with pytest.raises(InputError) as raised:
        read(
            b"keep Q0 d 1 1\nkeep Q0 d x 1 t\nkeep Q0 d 1 nan t\nkeep Q0 ok 1 2 t\n"
            b"keep Q0 ok 2 1 t\nkeep Q0 \xff 1 1 t\nkeep Q0 %s 1 1 t\n" % (b"d" * 2000)
        )
    assert [(problem.code, problem.line) for problem in raised.value.problems] == [
        ("bad_columns", 1),
        ("bad_number", 2),
        ("bad_number", 3),
        ("duplicate_document", 5),
        ("bad_encoding", 6),
        ("bad_id", 7),
    ]
    assert all(problem.file.endswith("mine.trec") for problem in raised.value.problems)


@pytest.mark.parametrize(
    ("text", "code"),
    [("", "empty_file"), ("\n\n", "empty_file"), ("nobody Q0 d 1 1 t\n", "other_queries")],
)
def test_files_that_say_nothing(read, text, code):
    with pytest.raises(InputError) as raised:
        read(text)
    assert [problem.code for problem in raised.value.problems] == [code]


def test_wordings_without_rows_retrieved_nothing(read):
    found = match_lists(
        read("keep/terse Q0 d 1 1 t\nkeep Q0 d 1 1 t\nkeep Q0 e 2 0 t\nother Q0 e 2 0 t\n"),
        variants(),
        1,
        missing="empty",
    )
    assert found.wordings == "all"
    assert [len(outcome.items) for outcome in found.outcomes] == [1, 1, 0, 0, 0, 0]
    assert found.notes == [
        "4 of 6 wordings have no row and count as having retrieved nothing",
        "1 rankings belong to no question of the gold set and were left out",
    ]


def test_a_run_without_any_paraphrase_is_of_the_original_wordings(read):
    found = match_lists(read("keep Q0 d 1 1 t\n"), variants(), 5, missing="empty")
    assert found.wordings == "original"
    ran = [outcome is not None for outcome in found.outcomes]
    assert ran == [paraphrase == "original" for _, paraphrase in KEYS]
    assert "original wordings only" in found.notes[0]
    assert found.notes[1].startswith("3 of 4 ")


def test_recorded_lists_lack_questions_by_failing():
    item = Item("", "d", "", "text", -1, -1, 1.0)
    failure = Failure("bad_id", "an id is empty")
    lists = {("keep", "original"): [item], ("a", "original"): failure}
    found = match_lists(lists, variants(), 5, missing="failed")
    kinds = [type(outcome) for outcome in found.outcomes]
    assert kinds == [Retrieved, type(None), Failure, Failure, type(None), Failure]
    assert found.outcomes[2].code == "not_recorded"
    assert found.outcomes[3] == failure
