"""Drafts quote passages drawn at random."""

import pytest

from rag_eval.corpus.loaders.folder import Folder
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.scaffold import MAX_DRAFTS, draw_drafts


@pytest.fixture
def corpus(tmp_path):
    def read(**texts):
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{name}.md").write_text(text, encoding="utf-8")
        return load_corpus(Folder(loader="folder", path="."), tmp_path)

    return read


def test_passages_are_drawn_alike_from_all_sections(corpus):
    many = "".join(f"## Part {n}\n\nPart {n} has a button of its own.\n\n" for n in range(300))
    found = corpus(a=many, b="# Few\n\nIt is too short.\n\n- This list item is no sentence.\n")
    drafts = draw_drafts(found)
    assert len(drafts) == MAX_DRAFTS
    assert drafts == draw_drafts(found), "the seed is fixed"
    assert all(draft.is_draft and not draft.text for draft in drafts)
    numbers = [int(draft.places[0][0].rpartition("-")[2]) for draft in drafts]
    assert len(set(numbers)) == MAX_DRAFTS
    assert 3 <= sum(number < 100 for number in numbers) <= 13
    assert drafts[0].places[0][1] == f"Part {numbers[0]} has a button of its own."


def test_a_sentence_that_stands_twice_is_not_quoted(corpus):
    text = "# A\n\n" + "The lamp is on all night. " * 20 + "The door is closed by ten."
    (draft,) = draw_drafts(corpus(a=text))
    assert draft.places == (("a.md#a", "The door is closed by ten."),)
