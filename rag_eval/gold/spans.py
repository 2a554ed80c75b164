"""Which chunks carry a gold span: the interval join between evidence and one chunking."""

import numpy as np
import pandas as pd

from rag_eval.gold.frames import SPAN_CHUNKS

SHARE = 0.5
"""A chunk carries a span when they overlap by at least this share of the shorter one."""


def _pairs(spans: pd.DataFrame, chunks: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(span row, chunk row, characters in common) of every overlapping pair."""
    documents = pd.Index(chunks["doc_id"].unique())
    chunk_document, span_document = (
        documents.get_indexer(pd.Index(chunks["doc_id"])),
        documents.get_indexer(pd.Index(spans["doc_id"])),
    )
    size = int(max(chunks["end"].max(), spans["end"].max())) + 1
    starts, ends = chunks["start"].to_numpy(), chunks["end"].to_numpy()
    order = np.lexsort((starts, chunk_document))
    start_keys = chunk_document[order] * size + starts[order]
    reach = np.maximum.accumulate(
        chunk_document[order] * size + ends[order]
    )  # chunks may overlap: the furthest end so far
    low = np.searchsorted(reach, span_document * size + spans["start"].to_numpy(), side="right")
    high = np.searchsorted(start_keys, span_document * size + spans["end"].to_numpy(), side="left")
    counts = np.where(span_document < 0, 0, np.maximum(high - low, 0))
    span = np.repeat(np.arange(len(spans)), counts)
    chunk = order[np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())]
    common = np.minimum(ends[chunk], spans["end"].to_numpy()[span]) - np.maximum(
        starts[chunk], spans["start"].to_numpy()[span]
    )
    same = (common > 0) & (chunk_document[chunk] == span_document[span])
    return span[same], chunk[same], common[same]


def carrying_chunks(spans: pd.DataFrame, chunks: pd.DataFrame) -> pd.DataFrame:
    """Chunks (rows of CHUNKS) that carry each span (rows of SPANS), sorted by span and chunk; SPAN_CHUNKS schema.

    A chunk carries a span when they share at least half of the shorter one; where none does, the chunk that shares most of it
    (the first of equals). A span that no chunk touches has no row.
    """
    if not len(spans) or not len(chunks):
        return SPAN_CHUNKS.check(
            pd.DataFrame(
                {"span": np.array([], dtype=np.int64), "chunk": np.array([], dtype=np.int64)}
            )
        )
    span, chunk, common = _pairs(spans, chunks)
    lengths = (spans["end"] - spans["start"]).to_numpy()[span]
    shorter = np.minimum(lengths, (chunks["end"] - chunks["start"]).to_numpy()[chunk])
    carries = common >= SHARE * shorter
    served = np.zeros(len(spans), dtype=bool)
    served[span[carries]] = True
    rest = np.flatnonzero(~served[span])
    best = rest[np.lexsort((chunk[rest], -common[rest], span[rest]))]
    best = best[np.unique(span[best], return_index=True)[1]]
    kept = np.sort(np.concatenate([np.flatnonzero(carries), best]))
    frame = pd.DataFrame(
        {"span": span[kept].astype(np.int64), "chunk": chunk[kept].astype(np.int64)}
    )
    return SPAN_CHUNKS.check(frame.sort_values(["span", "chunk"], ignore_index=True))
