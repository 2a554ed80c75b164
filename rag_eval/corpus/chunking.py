"""Documents -> chunks: spans of at most `max_tokens` word tokens with exact character offsets.

Belongs here: packing of pieces and the CHUNKS frame. Where texts may be cut is `borders`.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pandas as pd

from rag_eval.corpus import borders, sentences
from rag_eval.corpus.analyzer import count_tokens
from rag_eval.records.frames import CHUNKS
from rag_eval.records.gold_set import Chunker
from rag_eval.storage.hashing import digest, text_hash

_WORD_TOKEN = re.compile(r"[^\W_]+")
_RUN = re.compile(r"(?<!\S)\S")

Span = tuple[int, int]
Piece = tuple[int, int, int]
"""Start, end and number of tokens."""

_LEVELS = {
    "numpydoc": borders.of_numpydoc,
    "markdown": borders.of_markdown,
    "text": borders.of_text,
}
_OVERLAPPING = frozenset({"text", "markdown"})


def _pieces(text: str, start: int, end: int, levels: borders.Levels, limit: int) -> Iterator[Piece]:
    """Cut at the strongest borders that make every piece fit; a piece of one token always fits."""
    tokens = count_tokens(text[start:end])
    if tokens <= limit or not levels.finders:
        yield start, end, tokens
        return
    finder, *weaker = levels.finders
    weak = len(levels.finders) <= len(borders.WEAKEST)
    cuts = [
        at for at in finder(text, start, end) if start < at < end and (weak or at > levels.content)
    ]
    rest = borders.Levels(tuple(weaker), levels.content)
    for low, high in itertools.pairwise([start, *cuts, end]):
        yield from _pieces(text, low, high, rest, limit)


def _packed(pieces: Iterator[Piece], limit: int) -> Iterator[Span]:
    """Join neighbours while they fit."""
    first, last, held = next(pieces)
    for start, end, tokens in pieces:
        if held + tokens <= limit:
            last, held = end, held + tokens
        else:
            yield first, last
            first, last, held = start, end, tokens
    yield first, last


def _reach_back(text: str, previous: int, start: int, overlap: int) -> int:
    """Start of a chunk that repeats at most `overlap` tokens of the chunk before it, from a word's beginning."""
    tokens = [match.start() for match in _WORD_TOKEN.finditer(text, previous, start)]
    if not tokens:
        return start
    earliest = tokens[-overlap] if overlap <= len(tokens) else previous
    run = _RUN.search(text, earliest, start)
    return run.start() if run else start


def _section_spans(
    text: str, start: int, end: int, heading: str, chunker: Chunker
) -> Iterator[Span]:
    if chunker.kind == "sentence":
        weakest = borders.Levels(borders.WEAKEST, start)
        for low, high in sentences.spans(text, start, end):
            yield from _packed(
                _pieces(text, low, high, weakest, chunker.max_tokens), chunker.max_tokens
            )
        return
    if count_tokens(text[start:end]) <= chunker.max_tokens:
        yield start, end
        return
    overlap = chunker.overlap if chunker.kind in _OVERLAPPING else 0
    limit = chunker.max_tokens - overlap
    levels = _LEVELS[chunker.kind](text, start, end, heading)
    previous = None
    for low, high in _packed(_pieces(text, start, end, levels, limit), limit):
        yield (
            (low if previous is None or not overlap else _reach_back(text, previous, low, overlap)),
            high,
        )
        previous = low


def _spans(
    text: str, its: list[tuple[int, int, str, str]], chunker: Chunker, *, passages: bool
) -> Iterator[tuple[int, int, str]]:
    """Start, end and section_id of each chunk of a document, in order; none is empty or only white space."""
    if chunker.kind == "whole":
        # the very text, white space included: its hash must be that of the document as others have embedded it
        for start, end, _, section_id in its if passages else [(0, len(text), "", its[0][3])]:
            if text[start:end].strip():
                yield start, end, section_id
        return
    for start, end, heading, section_id in its:
        for low, high in _section_spans(text, start, end, heading, chunker):
            if trimmed := sentences.trim(text, low, high):
                yield *trimmed, section_id


def _sections_of(
    documents: pd.DataFrame, sections: pd.DataFrame
) -> dict[str, list[tuple[int, int, str, str]]]:
    """Sections of each document by place; a document without any is one section under its own id."""
    found: dict[str, list[tuple[int, int, str, str]]] = {}
    columns = (
        sections[name].tolist() for name in ("doc_id", "start", "end", "title", "section_id")
    )
    for doc_id, start, end, title, section_id in zip(*columns, strict=True):
        found.setdefault(doc_id, []).append((start, end, title, section_id))
    for its in found.values():
        its.sort()
    for doc_id, text in zip(documents["doc_id"].tolist(), documents["text"].tolist(), strict=True):
        found.setdefault(doc_id, [(0, len(text), "", doc_id)])
    return found


def chunk_documents(
    documents: pd.DataFrame, sections: pd.DataFrame, chunker: Chunker
) -> pd.DataFrame:
    """Cut documents into chunks.

    Parameters
    ----------
    documents, sections
        DOCUMENTS and SECTIONS frames of one corpus.
    chunker
        `numpydoc` and `markdown` cut inside sections only, a section that fits is one chunk; `text` packs paragraphs, then sentences,
        inside sections; `sentence` makes a chunk of each sentence; `whole` keeps a document, or each passage of a document of which
        only passages are known, as one chunk whatever its length.

    Returns
    -------
    pandas.DataFrame
        CHUNKS, sorted by (section_id, chunk_id): this order breaks ties everywhere. For every chunk, `text` is the document's
        text[start:end]. Chunks of a document cover all its characters but white space and front matter, and (but for `whole`) have at most
        `max_tokens` tokens. A document with an empty text has no chunk, whether or not it has a title: there would be nothing to cite.
    """
    parameters = chunker.model_dump(mode="json")
    by_document = _sections_of(documents, sections)
    rows: list[tuple[Any, ...]] = []
    columns = (
        documents[name].tolist() for name in ("doc_id", "title", "text", "content_hash", "kind")
    )
    for doc_id, title, text, content_hash, kind in zip(*columns, strict=True):
        for start, end, section_id in _spans(
            text, by_document[doc_id], chunker, passages=kind == "passages"
        ):
            piece = text[start:end]
            chunk_id = digest([doc_id, content_hash, parameters, start, end])
            indexed = text_hash((title + " " + piece).strip())
            rows.append(
                (
                    section_id,
                    chunk_id,
                    doc_id,
                    start,
                    end,
                    count_tokens(piece),
                    title,
                    piece,
                    indexed,
                )
            )
    rows.sort(
        key=lambda row: row[:2]
    )  # in Python, so that the order is that of code points whatever the frame's string type
    names = [
        "section_id",
        "chunk_id",
        "doc_id",
        "start",
        "end",
        "tokens",
        "title",
        "text",
        "text_hash",
    ]
    types = {
        name: "int64" if CHUNKS.columns[name].kind == "int" else "str" for name in names
    }  # also where there is no row
    return CHUNKS.check(pd.DataFrame(rows, columns=names).astype(types))


def chunks_hash(chunks: pd.DataFrame, chunker: Chunker) -> str:
    """Identity of what is indexed: the sorted (chunk_id, text_hash) pairs and the chunker, 32 hex digits."""
    pairs = sorted(zip(chunks["chunk_id"].tolist(), chunks["text_hash"].tolist(), strict=True))
    return digest([pairs, chunker.model_dump(mode="json")])
