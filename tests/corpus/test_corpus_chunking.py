"""Chunking: the invariants for any text and any chunker, and what each kind keeps together."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.corpus import sections as sectioning
from rag_eval.corpus.analyzer import count_tokens
from rag_eval.corpus.chunking import chunk_documents, chunks_hash
from rag_eval.records.frames import CHUNKS
from rag_eval.records.gold_set import Chunker
from rag_eval.storage.hashing import text_hash

KINDS = ["numpydoc", "markdown", "text", "sentence", "whole"]
SECTIONERS = {
    "numpydoc": lambda text: sectioning.of_numpydoc("d", "t", text),
    "markdown": lambda text: sectioning.of_markdown("d", "t", text),
    "text": lambda text: sectioning.whole("d", "t", text),
}


def corpus(text, kind="text", title="t"):
    row = {
        "doc_id": "d",
        "title": title,
        "text": text,
        "rev": "1",
        "content_hash": text_hash(text),
        "source_url": "u",
        "kind": kind,
        "names": ["d"],
    }
    found = pd.DataFrame(
        SECTIONERS[kind](text), columns=["section_id", "title", "start", "end"]
    ).assign(doc_id="d")
    return pd.DataFrame([row]), found


def cut(text, chunker="text", max_tokens=8, overlap=0, sectioner="text"):
    return chunk_documents(
        *corpus(text, sectioner), Chunker(kind=chunker, max_tokens=max_tokens, overlap=overlap)
    ).sort_values(["start", "end"])


PARTS = st.sampled_from(
    ["word ", "two words ", "a_b_c_d_e_f_g_h_i_j ", "x" * 30, ". ", "! ", "\n", "\r\n", "\n\n", "\r\n\r\n", "\r", "# H\n", "```\n", "- item\n", "    code\n", "é中。", "\u2028",
     "Parameters\n----------\n", "axis : int\n    Which one.\n", ">>> f(x)\n", "___", "\x85", "\x1c", "\u3000", "1,2,3,4,5,6,7,8,9,10,11,12", "---\n"]
)  # fmt: skip


@given(
    st.lists(PARTS, max_size=60).map("".join) | st.text(max_size=80),
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
    assert list(zip(chunks["section_id"], chunks["chunk_id"], strict=True)) == sorted(
        zip(chunks["section_id"], chunks["chunk_id"], strict=True)
    )
    assert chunks["chunk_id"].is_unique
    ordered = chunks.sort_values(["start", "end"])
    covered = [False] * len(text)
    for row in ordered.itertuples():
        assert row.text == text[row.start : row.end]
        assert row.text.strip()
        assert row.tokens == count_tokens(row.text)
        assert row.tokens <= max_tokens or chunker_kind == "whole"
        assert row.text_hash == text_hash(("t " + row.text).strip())
        section = next(s for s in found.itertuples() if s.section_id == row.section_id)
        first = (
            row.start + len(row.text) - len(row.text.lstrip())
        )  # `whole` keeps blank lines before the first heading, which lie in no section
        assert section.start <= first < section.end
        covered[row.start : row.end] = [True] * (row.end - row.start)
    assert all(done or character.isspace() for done, character in zip(covered, text, strict=True))
    if not overlap or chunker_kind not in {"text", "markdown"}:
        assert (ordered["end"].to_numpy()[:-1] <= ordered["start"].to_numpy()[1:]).all()
    assert ordered["end"].is_monotonic_increasing


def test_whole_keeps_the_very_text_whatever_its_length():
    text = "\n" + "word " * 50
    chunks = cut(text, "whole")
    assert chunks["text"].tolist() == [text]
    assert chunks["text_hash"].tolist() == [text_hash(("t " + text).strip())]


def test_whole_belongs_to_the_section_of_its_first_words():
    documents, found = corpus("\nParameters\n----------\n", "markdown")
    chunks = chunk_documents(documents, found, Chunker(kind="whole"))
    assert chunks["section_id"].tolist() == [found["section_id"][0]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", " \n\t "])
def test_an_empty_text_has_no_chunk_even_with_a_title(kind, text):
    chunks = chunk_documents(*corpus(text), Chunker(kind=kind))
    assert len(chunks) == 0
    assert list(CHUNKS.check(chunks).columns) == list(CHUNKS.columns)


def test_no_documents_give_an_empty_frame():
    documents, found = corpus("x")
    assert len(chunk_documents(documents[:0], found[:0], Chunker(kind="text"))) == 0


def test_a_document_without_sections_is_one_section_under_its_own_id():
    documents, found = corpus("one two")
    assert chunk_documents(documents, found[:0], Chunker(kind="text"))["section_id"].tolist() == [
        "d"
    ]


def test_text_packs_paragraphs_then_sentences():
    text = "One two three. Four five.\n\nSix seven.\n\nA b c d e f. G h i j k l."
    assert cut(text)["text"].tolist() == [
        "One two three. Four five.\n\nSix seven.",
        "A b c d e f.",
        "G h i j k l.",
    ]


def test_overlap_repeats_whole_words_of_the_chunk_before():
    text = " ".join(f"w{i}" for i in range(20))
    assert cut(text, overlap=3)["text"].tolist() == [
        "w0 w1 w2 w3 w4",
        "w2 w3 w4 w5 w6 w7 w8 w9",
        "w7 w8 w9 w10 w11 w12 w13 w14",
        "w12 w13 w14 w15 w16 w17 w18 w19",
    ]


def test_markdown_keeps_fences_whole_and_headings_with_what_follows():
    text = "# Head\n\none two three\n\n```\na b\n\nc d e\n```\n\n- f g\n- h i\n"
    assert cut(text, "markdown", sectioner="markdown")["text"].tolist() == [
        "# Head\n\none two three",
        "```\na b\n\nc d e\n```",
        "- f g\n- h i",
    ]


def test_markdown_never_joins_sections():
    chunks = chunk_documents(
        *corpus("# A\nx\n## B\ny\n", "markdown"), Chunker(kind="markdown", max_tokens=100)
    )
    assert chunks["section_id"].tolist() == ["d#a", "d#a/b"]


def test_numpydoc_cuts_between_parameters_and_keeps_the_heading_with_the_first():
    text = "Do it.\n\nMore.\n\nParameters\n----------\naxis : int\n    Which one it is.\nhow : str\n    The way it goes on.\n\n    Second paragraph.\n"
    chunks = cut(text, "numpydoc", max_tokens=9, sectioner="numpydoc")
    assert chunks["text"].tolist() == [
        "Do it.\n\nMore.",
        "Parameters\n----------\naxis : int\n    Which one it is.",
        "how : str\n    The way it goes on.\n\n    Second paragraph.",
    ]


def test_sentence_makes_one_chunk_a_sentence():
    chunks = cut("One. Two three.\n\nFour", "sentence")
    assert chunks["text"].tolist() == ["One.", "Two three.", "Four"]


def test_chunk_ids_are_content_addressed():
    chunker = Chunker(kind="text", max_tokens=8)
    first = chunk_documents(*corpus("same text"), chunker)["chunk_id"][0]
    assert first == chunk_documents(*corpus("same text"), chunker)["chunk_id"][0]
    assert (
        first != chunk_documents(*corpus("same text "), chunker)["chunk_id"][0]
    )  # another content hash
    assert (
        first
        != chunk_documents(*corpus("same text"), Chunker(kind="text", max_tokens=9))["chunk_id"][0]
    )


def test_chunks_hash_depends_on_content_title_and_chunker_but_not_on_row_order():
    chunker = Chunker(kind="sentence")
    chunks = chunk_documents(*corpus("One. Two. Three."), chunker)
    assert chunks_hash(chunks, chunker) == chunks_hash(chunks.iloc[::-1], chunker)
    others = [
        chunks.iloc[1:],
        chunk_documents(*corpus("One. Two. Three.", title="u"), chunker),
        chunk_documents(*corpus("One. Two. Four."), chunker),
    ]
    assert (
        len(
            {
                chunks_hash(chunks, chunker),
                chunks_hash(chunks, Chunker(kind="sentence", max_tokens=9)),
                *(chunks_hash(o, chunker) for o in others),
            }
        )
        == 5
    )


@pytest.mark.parametrize("part", ["a_", "word ", "\n", ". ", "# a\n", "- a\n", ">", "中。"])
@pytest.mark.parametrize("kind", ["text", "numpydoc", "markdown"])
def test_hostile_texts_end(part, kind):
    text = part * 20_000
    chunks = cut(text, kind, max_tokens=100)
    assert (chunks["tokens"] <= 100).all()
