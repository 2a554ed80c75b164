"""From chunk rankings to the level that is scored: documents, sections, evidence spans.

Belongs here: collapsing duplicates, and which chunks carry which span. Not here: measures of document rankings (`ranking`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.measures.arrays import PADDING, FloatArray, IntArray, as_codes, csr, expand, ranks


class Spans(NamedTuple):
    """Gold spans of every query, and the chunks that carry each span, both in CSR form.

    Parameters
    ----------
    indptr
        `[n_queries + 1]`; query q has the spans `indptr[q]` to `indptr[q + 1]`.
    carrier_indptr, carriers
        `[n_spans + 1]` and `[n_pairs]`: span s is carried by the chunks `carriers[carrier_indptr[s]:carrier_indptr[s + 1]]`.
        A span that no chunk carries stays in the denominator: it cannot be found.
    """

    indptr: IntArray
    carrier_indptr: IntArray
    carriers: IntArray


class Extents(NamedTuple):
    """Where texts lie, `[n]` each: document code, first character, one past the last character."""

    document: ArrayLike
    start: ArrayLike
    end: ArrayLike


def collapse(chunks: ArrayLike, group_of_chunk: ArrayLike, depth_out: int) -> IntArray:
    """Rankings of documents (or sections) from rankings of chunks; a group keeps the place of its best chunk.

    Parameters
    ----------
    chunks
        `[n, depth]` chunk codes, best first, -1 = padding.
    group_of_chunk
        `[n_chunks]` document or section code of each chunk.
    depth_out
        Number of groups kept.

    Returns
    -------
    array
        `[n, depth_out]` group codes, each once in its row, -1 = padding.
    """
    rankings, group_of = (
        as_codes(chunks, "chunks", ndim=2),
        as_codes(group_of_chunk, "group_of_chunk"),
    )
    out = np.full((len(rankings), depth_out), PADDING, dtype=np.int64)
    if not rankings.size or not len(group_of):
        return out
    groups = np.where(rankings >= 0, group_of[rankings], PADDING)
    order = np.argsort(
        groups, axis=1, kind="stable"
    )  # stable: inside a group the best rank comes first
    ordered = np.take_along_axis(groups, order, axis=1)
    leads = ordered >= 0
    leads[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    first = np.zeros_like(leads)
    np.put_along_axis(first, order, leads, axis=1)
    place = np.cumsum(first, axis=1) - 1
    row, column = np.nonzero(first & (place < depth_out))
    out[row, place[row, column]] = groups[row, column]
    return out


def span_carriers(spans: Extents, chunks: Extents) -> tuple[IntArray, IntArray]:
    """Chunks that carry each span: the overlap is at least half of the shorter of the two, and not empty.

    Parameters
    ----------
    spans, chunks
        Where they lie, in the same document codes and the same units.

    Returns
    -------
    carrier_indptr, carriers
        As in `Spans`.
    """
    s_doc, s_start, s_end = (as_codes(part, "spans") for part in spans)
    c_doc, c_start, c_end = (as_codes(part, "chunks") for part in chunks)
    n_documents = max(int(s_doc.max(initial=-1)), int(c_doc.max(initial=-1))) + 1
    chunks_indptr, chunk_order = csr(c_doc, n_documents, np.arange(len(c_doc)))
    span, entry = expand(chunks_indptr, s_doc)
    chunk = chunk_order[entry]
    overlap = np.minimum(s_end[span], c_end[chunk]) - np.maximum(s_start[span], c_start[chunk])
    shorter = np.minimum(s_end[span] - s_start[span], c_end[chunk] - c_start[chunk])
    carries = (overlap > 0) & (2 * overlap >= shorter)
    indptr, carriers = csr(span[carries], len(s_doc), chunk[carries])
    return indptr, carriers


def span_recall(
    chunks: ArrayLike, spans: Spans, query_of: ArrayLike, ks: Sequence[int]
) -> FloatArray:
    """Share of the query's gold spans that the top k chunks carry.

    Parameters
    ----------
    chunks
        `[n, depth]` chunk codes, best first, -1 = padding.
    spans
        Gold spans, by query code.
    query_of
        `[n]` query code of each ranking.
    ks
        Cutoffs.

    Returns
    -------
    array
        `[n, len(ks)]`; NaN where the query has no gold span.
    """
    owner, rank = span_ranks(chunks, spans, query_of)
    n = len(np.asarray(query_of))
    n_spans = np.bincount(owner, minlength=n).astype(np.float64)
    n_spans[n_spans == 0] = np.nan
    carried = [np.bincount(owner[rank <= k], minlength=n) for k in ks]
    return np.column_stack(carried) / n_spans[:, None] if carried else np.empty((n, 0))


def first_relevant_rank(chunks: ArrayLike, spans: Spans, query_of: ArrayLike) -> FloatArray:
    """Rank, from 1, of the first chunk that carries any gold span of the query.

    Returns
    -------
    array
        `[n]`; inf where no chunk does, NaN where the query has no gold span. So RR is `1 / rank`, Success@k is `rank <= k` (where not NaN).
    """
    owner, rank = span_ranks(chunks, spans, query_of)
    first = np.full(len(np.asarray(query_of)), np.nan)
    first[owner] = np.inf
    np.minimum.at(first, owner, rank)
    return first


def span_ranks(chunks: ArrayLike, spans: Spans, query_of: ArrayLike) -> tuple[IntArray, FloatArray]:
    """Rank of the first chunk that carries it, of every gold span of every ranking.

    Parameters
    ----------
    chunks, spans, query_of
        As for `span_recall`.

    Returns
    -------
    owner, rank
        `[n_pairs]` each: the ranking, and the rank from 1, inf where no chunk carries the span.
    """
    rankings, query = as_codes(chunks, "chunks", ndim=2), as_codes(query_of, "query_of")
    owner, span = expand(spans.indptr, query)
    pair, entry = expand(spans.carrier_indptr, span)
    found = ranks(rankings, owner[pair], spans.carriers[entry])
    best = np.full(len(owner), np.inf)
    np.minimum.at(best, pair, np.where(found > 0, found, np.inf))
    return owner, best
