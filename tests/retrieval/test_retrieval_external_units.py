"""Units of a source are placed in the corpus by our ids, names, offsets or text.

Units without a place are reported.
"""

import pandas as pd
import pytest

from rag_eval.core.frames import DOCUMENTS, SECTIONS
from rag_eval.core.loader import Chunker
from rag_eval.corpus.chunking import _markdown_sections, chunk_documents
from rag_eval.retrieval.kinds.external import UNITS, Placed
from rag_eval.retrieval.outside import Item, QueryError, Retrieved

GUIDE = (
    "# Guide\n\n## Install\n\nRun the  installer\nand wait.\n\n## Use\n\n"
    "Press the button. Press the button.\n"
)
NOTES = "One plain note without any heading."
TEXTS = {"guide.md": GUIDE, "notes.txt": NOTES}


def frames():
    documents = pd.DataFrame(
        {
            "doc_id": list(TEXTS),
            "title": ["Guide", ""],
            "text": list(TEXTS.values()),
            "rev": "r",
            "content_hash": ["h1", "h2"],
            "source_url": ["u1", "u2"],
            "kind": ["markdown", "text"],
            "names": [["guide.md", "the guide"], ["notes.txt"]],
            "page": ["", ""],
        }
    )
    rows = [
        (section.section_id, "guide.md", section.title, section.start, section.end)
        for section in _markdown_sections("guide.md", "Guide", GUIDE)
    ]
    rows.append(("notes.txt", "notes.txt", "", 0, len(NOTES)))
    sections = pd.DataFrame(rows, columns=["section_id", "doc_id", "title", "start", "end"])
    documents, sections = DOCUMENTS.check(documents), SECTIONS.check(sections)
    chunks = chunk_documents(documents, sections, Chunker(kind="markdown", max_tokens=64))
    return documents, sections, chunks


CORPUS = frames()
CHUNKS = CORPUS[2]


def item(start=-1, end=-1, **given):
    offsets = {"start": start, "end": end}
    return Item.model_validate({"score": 1.0, "offsets": offsets, **given})


def named(unit, *names):
    return tuple(unit[name] for name in names)


def placed(*items):
    found = Placed.of([Retrieved((one,)) for one in items], *CORPUS, 1)
    return UNITS.check(found.units).iloc[found.ranking.rows[:, 0]].to_dict("records")


def test_our_own_chunk_wins_over_everything_said_beside_it():
    chunk = CHUNKS.iloc[1]
    (unit,) = placed(item(id=chunk["chunk_id"], doc_id="elsewhere", text="other", start=0, end=3))
    names = ("doc_id", "section_id", "start", "end", "text")
    assert named(unit, "chunk", *names) == (1, *chunk[list(names)])


@pytest.mark.parametrize(
    "given_names",
    [
        {"doc_id": "guide.md"},
        {"id": "guide.md"},
        {"id": "the guide"},
        {"id": "x17", "doc_id": "the guide"},
        {"id": "the%20guide"},
    ],
)
def test_documents_by_id_name_and_encoded_name(given_names):
    (unit,) = placed(item(**given_names))
    wanted = ("guide.md", True, "", -1, -1)
    assert named(unit, "doc_id", "known", "section_id", "start", "chunk") == wanted


@pytest.mark.parametrize(
    "given_names",
    [
        {"section_id": "guide.md#guide/use"},
        {"id": "guide.md#guide/use"},
        {"doc_id": "guide.md", "section_id": "guide.md#guide/use"},
        {"doc_id": "guide.md", "id": "guide.md#guide/use"},
    ],
)
def test_sections_by_id(given_names):
    (unit,) = placed(item(**given_names))
    wanted = ("guide.md", "guide.md#guide/use", -1)
    assert named(unit, "doc_id", "section_id", "start") == wanted


def test_offsets_give_place_and_section():
    start = GUIDE.index("the  installer")
    (unit,) = placed(item(doc_id="guide.md", start=start, end=start + 14))
    wanted = (start, start + 14, "guide.md#guide/install", "the  installer")
    assert named(unit, "start", "end", "section_id", "text") == wanted


@pytest.mark.parametrize(
    "text",
    [
        "Run the  installer\nand wait.",
        "Run the installer and wait.",
        "  the\tinstaller   and\n\nwait",
        "nstaller\nand wai",
    ],
)
def test_a_text_is_found_exactly_or_with_its_white_space_evened_out(text):
    (unit,) = placed(item(doc_id="guide.md", text=text))
    assert unit["section_id"] == "guide.md#guide/install"
    assert " ".join(unit["text"].split()) == " ".join(text.split())
    assert GUIDE[unit["start"] : unit["end"]] == unit["text"]


def test_equal_things_are_one_unit_and_keep_their_best_place():
    three = (
        item(doc_id="guide.md", text="wait", score=3),
        item(doc_id="the guide", text=" wait ", score=2),
        item(doc_id="notes.txt", score=1),
    )
    late = QueryError("timeout", "too late")
    outcomes = [Retrieved(three), late, None, Retrieved(())]
    found = Placed.of(outcomes, *CORPUS, 5)
    assert found.ranking.rows.tolist() == [[0, 1, -1, -1, -1], *[[-1] * 5] * 3]
    assert found.ranking.raw[0, :2].tolist() == [3.0, 1.0]
    assert found.ranking.norm[0, :2].tolist() == [1.0, 0.0]
    assert found.ranking.failed.tolist() == [False, True, False, False]
    assert found.ranking.failure == "timeout: too late"
    assert found.ran.tolist() == [True, True, False, True]


def test_a_text_that_says_something_else_than_its_place_is_kept_beside_it():
    start, chunk = GUIDE.index("the  installer"), CHUNKS.iloc[1]
    there = {"doc_id": "guide.md", "start": start, "end": start + 14}
    same = placed(
        item(**there),
        item(**there, text=" "),
        item(**there, text="the installer"),
        item(**there, text="installer"),
        item(id=chunk["chunk_id"], text=chunk["text"]),
    )
    assert [unit["returned"] for unit in same] == [""] * 5
    other = placed(
        item(**there, text="Ask jane.doe@example.org"), item(id=chunk["chunk_id"], text="other")
    )
    assert [unit["returned"] for unit in other] == ["Ask [email██████████████", "other"]
    assert [(unit["text"], unit["chunk"]) for unit in other] == [
        ("the  installer", -1),
        (chunk["text"], 1),
    ]


def test_a_text_unlike_its_place_is_a_unit_of_its_own():
    there = {"doc_id": "guide.md", "start": 0, "end": 7}
    items = (
        item(**there, score=3),
        item(**there, text="evil", score=2),
        item(**there, score=1),
    )
    found = Placed.of([Retrieved(items)], *CORPUS, 4)
    assert found.ranking.rows.tolist() == [[0, 1, -1, -1]]
    assert found.ranking.raw[0, :2].tolist() == [3.0, 2.0]
    assert found.units["returned"].tolist() == ["", "evil"]
