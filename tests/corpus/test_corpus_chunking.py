"""Chunking: the invariants for any text and any chunker, and what each kind keeps together."""

import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.core.frames import CHUNKS
from rag_eval.core.loader import Chunker
from rag_eval.corpus import chunking as sectioning
from rag_eval.corpus.analyzer import count_tokens
from rag_eval.corpus.chunking import chunk_documents, chunks_hash, front_matter
from rag_eval.storage.hashing import digest, text_hash

KINDS = ["numpydoc", "markdown", "text", "sentence", "whole"]
SECTIONERS = {
    "numpydoc": lambda text: sectioning.numpydoc_sections("d", "t", text),
    "markdown": lambda text: sectioning._markdown_sections("d", "t", text),
    "text": lambda text: [("d", "t", 0, len(text))],
}


def corpus(text, kind="text", title="t"):
    names = ["doc_id", "title", "text", "content_hash", "kind"]
    documents = pd.DataFrame([("d", title, text, text_hash(text), kind)], columns=names)
    columns = ["section_id", "title", "start", "end"]
    return documents, pd.DataFrame(SECTIONERS[kind](text), columns=columns).assign(doc_id="d")


def cut(text, chunker="text", max_tokens=8, overlap=0, sectioner="text"):
    spec = Chunker(kind=chunker, max_tokens=max_tokens, overlap=overlap)
    return chunk_documents(*corpus(text, sectioner), spec).sort_values(["start", "end"])


PARTS = (
    "word |two words |a_b_c_d_e_f_g_h_i_j |. |! |\n|\r\n|\n\n|\r|# H\n|```\n|- item\n|    code\n"
    "|é中。|\u2028|Parameters\n----------\n|axis : int\n    Which one.\n|>>> f(x)\n"
    "|___|\x85|\u3000|1,2,3,4"
)


@given(
    st.lists(st.sampled_from(PARTS.split("|")), max_size=60).map("".join) | st.text(max_size=80),
    st.sampled_from(KINDS),
    st.sampled_from(sorted(SECTIONERS)),
    st.integers(8, 24),
    st.integers(0, 7),
)
def test_invariants(text, chunker_kind, kind, max_tokens, overlap):
    documents, found = corpus(text.encode("utf-8", "replace").decode(), kind)
    text = documents["text"][0]
    chunker = Chunker(kind=chunker_kind, max_tokens=max_tokens, overlap=overlap)
    chunks = chunk_documents(documents, found, chunker)
    CHUNKS.check(chunks)
    places = list(zip(chunks["section_id"], chunks["chunk_id"], strict=True))
    assert places == sorted(places)
    assert chunks["chunk_id"].is_unique
    ordered = chunks.sort_values(["start", "end"])
    covered = [False] * len(text)
    for row in ordered.itertuples():
        assert row.text == text[row.start : row.end]
        assert row.text.strip() or not text.strip()
        assert row.tokens == count_tokens(row.text)
        assert row.tokens <= max_tokens or chunker_kind == "whole"
        assert row.text_hash == text_hash(("t " + row.text).strip())
        section = next(s for s in found.itertuples() if s.section_id == row.section_id)
        # `whole` keeps blank lines before the first heading. These lines lie in no section.
        first = row.start + len(row.text) - len(row.text.lstrip())
        assert section.start <= first < section.end or not row.text
        covered[row.start : row.end] = [True] * (row.end - row.start)
    assert all(done or character.isspace() for done, character in zip(covered, text, strict=True))
    if not overlap or chunker_kind not in {"text", "markdown"}:
        assert (ordered["end"].to_numpy()[:-1] <= ordered["start"].to_numpy()[1:]).all()
    assert ordered["end"].is_monotonic_increasing


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_without_text_has_an_empty_chunk_for_its_title(kind):
    (row,) = CHUNKS.check(chunk_documents(*corpus(" \n\t "), Chunker(kind=kind))).itertuples()
    assert (row.start, row.end, row.text, row.tokens) == (0, 0, "", 0)
    assert row.text_hash == text_hash("t")
    chunks = chunk_documents(*corpus(" \n\t ", title=""), Chunker(kind=kind))
    assert list(CHUNKS.check(chunks)) == list(CHUNKS.columns)
    assert chunks.empty


WORDS = " ".join(f"w{i}" for i in range(20))
PARAMETER = "Parameters\n----------\naxis : int\n    Which one it is."
ANOTHER = "how : str\n    The way it goes on.\n\n    Second paragraph."
CUT = [
    (
        "text",
        {},
        "One two three. Four five.\n\nSix seven.\n\nA b c d e f. G h i j k l.",
        ["One two three. Four five.\n\nSix seven.", "A b c d e f.", "G h i j k l."],
    ),
    (
        "text",
        {"overlap": 3},
        WORDS,
        [
            "w0 w1 w2 w3 w4",
            "w2 w3 w4 w5 w6 w7 w8 w9",
            "w7 w8 w9 w10 w11 w12 w13 w14",
            "w12 w13 w14 w15 w16 w17 w18 w19",
        ],
    ),
    (
        "markdown",
        {"sectioner": "markdown"},
        "# Head\n\none two three\n\n```\na b\n\nc d e\n```\n\n- f g\n- h i\n",
        ["# Head\n\none two three", "```\na b\n\nc d e\n```", "- f g\n- h i"],
    ),
    (
        "numpydoc",
        {"max_tokens": 9, "sectioner": "numpydoc"},
        f"Do it.\n\nMore.\n\n{PARAMETER}\n{ANOTHER}\n",
        ["Do it.\n\nMore.", PARAMETER, ANOTHER],
    ),
    ("sentence", {}, "One. Two three.\n\nFour", ["One.", "Two three.", "Four"]),
    ("whole", {}, "\n" + WORDS, ["\n" + WORDS]),  # the very text, whatever its length
]


@pytest.mark.parametrize(("kind", "options", "text", "pieces"), CUT)
def test_each_kind_keeps_together_what_belongs_together(kind, options, text, pieces):
    assert cut(text, kind, **options)["text"].tolist() == pieces


def test_chunk_ids_are_content_addressed():
    def name(text, max_tokens=8):
        chunker = Chunker(kind="text", max_tokens=max_tokens)
        return chunk_documents(*corpus(text), chunker)["chunk_id"][0]

    first = name("same text")
    assert first == name("same text")
    assert first != name("same text ")  # the content hash differs
    assert first != name("same text", max_tokens=9)


def test_chunks_hash_is_the_digest_of_the_sorted_pairs(monkeypatch):
    frame = pd.DataFrame({"chunk_id": ["b", "ü", "a"], "text_hash": ["2", "3", "1"]})
    chunker = Chunker(kind="text")
    wanted = digest([[["a", "1"], ["b", "2"], ["ü", "3"]], chunker.model_dump(mode="json")])
    assert chunks_hash(frame, chunker) == wanted
    monkeypatch.setattr(sectioning, "_HASHED_AT_ONCE", 2)
    assert chunks_hash(frame, chunker) == wanted


def test_every_chunk_of_a_long_title_repeats_only_its_beginning():
    chunks = chunk_documents(
        *corpus("word " * 100, title="t" * 5_000), Chunker(kind="text", max_tokens=16)
    )
    assert len(chunks) > 5
    assert chunks["title"].str.len().eq(sectioning.MAX_TITLE).all()


@pytest.mark.parametrize("part", ["a_", "\n", ". ", "# a\n", "- a\n", ">"])
@pytest.mark.parametrize("kind", ["text", "numpydoc", "markdown"])
def test_hostile_texts_end(part, kind):
    text = part * 20_000
    chunks = cut(text, kind, max_tokens=100)
    assert (chunks["tokens"] <= 100).all()


WITHOUT_BLANKS = {
    "letters": ("QUJD", 40),
    "base64": ("aGk/+9" * 7, 65),
    "han": ("本日は晴天なり", 2),
    "thai": ("กรุงเทพมหานคร", 3),
    "symbols": ("=", 40),
    "emoji": ("😀", 40),
    "address": ("https://example.org/a/%E4%B8%AD/", 8),
}


@pytest.mark.parametrize("kind", ["text", "markdown", "numpydoc", "sentence"])
@pytest.mark.parametrize("name", WITHOUT_BLANKS)
def test_texts_without_blanks_are_bounded_and_whole(name, kind):
    part, chars = WITHOUT_BLANKS[name]
    text = f"Start {part * 2000} end"
    chunks = cut(text, kind, max_tokens=16)
    assert "".join(chunks["text"]).replace(" ", "") == text.replace(" ", "")
    assert (chunks["tokens"] <= 16).all()
    assert chunks["text"].str.len().max() <= 16 * chars + 64


# ---- Sentences


def cases(name):
    """Read pairs of a text and its parts."""
    return [*map(json.loads, (Path(__file__).parent / name).read_text("utf-8").splitlines())]


@pytest.mark.parametrize(("text", "expected"), cases("sentences.jsonl"))
def test_sentences_end_where_they_end(text, expected):
    assert [text[start:end] for start, end in sectioning.spans(text)] == expected


@pytest.mark.parametrize(("text", "expected"), cases("segments.jsonl"))
def test_an_item_of_a_list_is_a_segment_without_its_number(text, expected):
    assert [text[start:end] for start, end in sectioning.segments(text)] == expected


# ---- Sections

GUIDE = """intro text

# The *Guide* to `x_y`

```python
# not a heading
```

> # quoted

## Installing

text

Installing
----------

again

# Other [link](http://e.org/a_b)
<!--
# hidden
-->
"""


def ids(found):
    return [section.section_id for section in found]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_sections_follow_headings_outside_fences_with_exact_offsets(newline):
    text = GUIDE.replace("\n", newline)
    found = sectioning._markdown_sections("g.md", "G", text)
    assert ids(found) == [
        "g.md",
        "g.md#the-guide-to-x_y",
        "g.md#the-guide-to-x_y/installing",
        "g.md#the-guide-to-x_y/installing-2",
        "g.md#other-link",
    ]
    titles = ["G", "The Guide to x_y", "Installing", "Installing", "Other link"]
    assert [section.title for section in found] == titles
    assert "".join(text[section.start : section.end] for section in found) == text
    assert text[found[2].start :].startswith("## Installing")
    assert text[found[3].start :].startswith("Installing" + newline + "---")


def test_equal_headings_never_share_an_id():
    found = sectioning._markdown_sections("d", "", "# a\n# a-2\n# a\n# a\n# ???\n# !!!\n")
    assert ids(found) == ["d#a", "d#a-2", "d#a-3", "d#a-4", "d#section", "d#section-2"]


GROWING = "".join(
    f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}\n"
    for level in range(1, 12)
)
"""Keys that YAML would merge 10^11 times."""


@pytest.mark.parametrize(
    ("head", "values"),
    [
        ("---\ntitle: A\n---\n", {"title": "A"}),
        ("---\r\ntitle: A\r\n---\r\n", {"title": "A"}),
        ("---\ntitle: A\n...\n", {}),
        ('+++\ntitle = "A"\n+++\n', {"title": "A"}),
        ("+++\ntitle = \n+++\n", {}),
        ("---\n- a list\n---\n", {}),
        ("---\n[broken\n---\n", {}),
        ("---\nno end\n", {}),
        (f"---\na0: &a0 {{x: 1}}\n{GROWING}---\n", {}),
        (" ---\ntitle: A\n---\n", {}),
        ("", {}),
    ],
)
def test_front_matter(head, values):
    text = head + "# H\n"
    assert front_matter(text) == (values, len(head) if values else 0)


DOCSTRING = """Fill values.

Longer.

Parameters
----------
axis : int
    Which.

See Also
---------
other : It.

Examples
--------
>>> print(x)
total
-----
1

Examples
--------
More.
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_numpydoc_sections(newline):
    text = DOCSTRING.replace("\n", newline)
    found = sectioning.numpydoc_sections("p.f", "p.f", text)
    names = ("summary", "parameters", "see-also", "examples", "examples-2")
    assert ids(found) == [f"p.f#{name}" for name in names]
    assert "".join(text[s.start : s.end] for s in found) == text
    assert found[0].title == "p.f"
    assert text[found[1].start : found[1].end].startswith("Parameters")
