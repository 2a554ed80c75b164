"""Small corpora as the frames that stages exchange, and rankings as plain lists."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.frames import CHUNKS, DOCUMENTS
from rag_eval.retrieval.embedding.source import ChunkTable, Places
from rag_eval.retrieval.ranking import Ranking
from rag_eval.storage.hashing import digest, text_hash
from rag_eval.storage.home import Home


def chunks_frame(
    texts: Sequence[str],
    ids: Sequence[tuple[str, str]] | None = None,
    titles: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Return the CHUNKS frame of texts with (section_id, chunk_id), sorted by these ids."""
    ids = [(f"doc{i:05d}", f"chunk{i:05d}") for i in range(len(texts))] if ids is None else ids
    titles = [""] * len(texts) if titles is None else titles
    frame = pd.DataFrame(
        {
            "chunk_id": pd.Series([chunk for _, chunk in ids], dtype="str"),
            "doc_id": pd.Series([section for section, _ in ids], dtype="str"),
            "section_id": pd.Series([section for section, _ in ids], dtype="str"),
            "start": np.zeros(len(texts), dtype=np.int64),
            "end": np.array([len(text) for text in texts], dtype=np.int64),
            "tokens": np.array([len(text.split()) for text in texts], dtype=np.int64),
            "title": pd.Series(list(titles), dtype="str"),
            "text": pd.Series(list(texts), dtype="str"),
            "text_hash": pd.Series(
                [
                    text_hash(f"{title} {text}".strip())
                    for title, text in zip(titles, texts, strict=True)
                ],
                dtype="str",
            ),
        }
    )
    return CHUNKS.check(frame.sort_values(["section_id", "chunk_id"], ignore_index=True))


def documents_frame(texts: Mapping[str, str]) -> pd.DataFrame:
    """Return a DOCUMENTS frame of texts by doc_id."""
    rows = [
        {
            "doc_id": doc,
            "title": "",
            "text": text,
            "rev": f"rev-{doc}",
            "content_hash": digest([doc, text]),
            "source_url": f"https://example.org/{doc}",
            "kind": "text",
            "names": [doc],
            "page": "",
        }
        for doc, text in texts.items()
    ]
    return DOCUMENTS.check(pd.DataFrame(rows))


def table(texts: Sequence[str], ids: Sequence[tuple[str, str]] | None = None) -> ChunkTable:
    """Return the chunk table of texts."""
    frame = chunks_frame(texts, ids)
    return ChunkTable(frame, digest([frame["chunk_id"].tolist(), frame["text_hash"].tolist()]))


def places(folder: Path) -> Places:
    """Return the places of an embedding over a home in `folder`."""
    return Places(folder, Home(folder))


def listed(ranking: Ranking, query: int, value: str = "raw") -> list[tuple[int, float]]:
    """List (row, score) pairs of a query, best first; fail when an empty place precedes a hit."""
    rows = ranking.rows[query].tolist()
    count = sum(row >= 0 for row in rows)
    if any(row < 0 for row in rows[:count]):
        raise AssertionError(f"an empty place before a found one: {rows}")
    return list(zip(rows[:count], getattr(ranking, value)[query, :count].tolist(), strict=True))


def made_ranking(lists: Sequence[Sequence[tuple[int, float]]], width: int) -> Ranking:
    """Return a ranking of (row, normalised score) lists; its raw scores are the same numbers."""
    rows = np.full((len(lists), width), -1, dtype=np.int32)
    norm = np.zeros((len(lists), width))
    for query, part in enumerate(lists):
        for place, (row, score) in enumerate(part):
            rows[query, place], norm[query, place] = row, score
    k_pos = np.where(rows >= 0, np.arange(1, width + 1), 0).astype(np.int32)
    return Ranking(
        rows,
        norm,
        norm,
        k_pos,
        np.full(rows.shape, np.nan),
        (rows >= 0).sum(axis=1).astype(np.int64),
    )


class SciFact(NamedTuple):
    """SciFact in memory."""

    table: ChunkTable
    qrels: pd.DataFrame
    query_ids: list[str]
    queries: list[str]


def scifact(folder: Path) -> SciFact:
    """Return BEIR SciFact with one chunk for each document, and its test queries."""
    documents = [
        json.loads(line)
        for line in (folder / "scifact" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    frame = chunks_frame(
        [document["text"] for document in documents],
        [(document["_id"], digest(document["_id"])) for document in documents],
        [document["title"] for document in documents],
    )
    texts = {}
    for line in (folder / "scifact" / "queries.jsonl").read_text(encoding="utf-8").splitlines():
        query = json.loads(line)
        texts[query["_id"]] = query["text"]
    with (folder / "scifact" / "qrels" / "test.tsv").open(encoding="utf-8", newline="") as stream:
        judged = list(csv.reader(stream, delimiter="\t"))[1:]
    qrels = pd.DataFrame(
        {
            "query_id": [row[0] for row in judged],
            "doc_id": [row[1] for row in judged],
            "relevance": [int(row[2]) for row in judged],
        }
    )
    query_ids = sorted(set(qrels["query_id"]))
    return SciFact(
        ChunkTable(frame, "scifact"), qrels, query_ids, [texts[query] for query in query_ids]
    )
