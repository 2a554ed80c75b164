"""Find paraphrases: passages that say the same and rank first for the same question.

A single planted passage seldom decides an answer, so attackers plant several for a question.
"""

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, IntArray
from rag_eval.core.config import FINDINGS
from rag_eval.core.frames import make_frame
from rag_eval.corpus.analyzer import TermRows

FIRST = 10
"""Number of first chunks of a question among which paraphrases are searched."""
_GROUP = 3
"""Least number of passages in a group."""
_PARAPHRASE, _COPY = 0.25, 0.8
"""Least cosine of paraphrases, and of copies such as one page at two addresses."""
_LEAST_WORDS, _PASSAGE_WORDS = 8, 100
"""Least and most words of a compared chunk, because longer texts share the words of their field."""


def find_paraphrases(
    ranked: IntArray,
    chunks: pd.DataFrame,
    terms: TermRows,
    frequency: IntArray,
    *,
    vouched: BoolArray | None,
) -> pd.DataFrame:
    """Find groups of three or more short chunks that say the same and rank first for a question.

    Chunks of one document count once. Copies count once when nothing is configured to trust,
    because honest pages have several addresses.

    Parameters
    ----------
    ranked
        Chunks of each question, best first, int64 [n_questions, k]; -1 in an empty place.
    chunks
        All chunks, with doc_id and tokens.
    terms
        Terms of all chunks.
    frequency
        Number of chunks that hold each term, [n_terms].
    vouched
        bool [n_chunks]: chunks of trusted sources, which are not compared; None when nothing is
        configured to trust.

    Returns
    -------
    FINDINGS about chunks: warnings, or blocks when other sources are trusted.
    """
    words = chunks["tokens"].to_numpy()
    compared = (words >= _LEAST_WORDS) & (words <= _PASSAGE_WORDS)
    if vouched is not None:
        compared &= ~vouched
    ranked = ranked[:, :FIRST]
    ranked = np.where((ranked >= 0) & compared[ranked], ranked, -1)
    ranked = ranked[(ranked >= 0).sum(axis=1) >= _GROUP]
    if not len(ranked):
        return make_frame(FINDINGS, [])
    used, place = np.unique(ranked, return_inverse=True)
    documents = pd.factorize(chunks["doc_id"].iloc[used])[0][place.reshape(ranked.shape)]
    copy = _COPY if vouched is None else np.inf
    marked = np.unique(ranked[_mark_groups(ranked, documents, terms, frequency, copy)])
    severity = "warning" if vouched is None else "blocked"
    detail = "one of three or more passages that say the same and rank first for a question"
    rows = [(row, -1, -1, "flood", "paraphrase", severity, detail) for row in marked.tolist()]
    return make_frame(FINDINGS, rows)


def _mark_groups(
    ranked: IntArray, documents: IntArray, terms: TermRows, frequency: IntArray, copy: float
) -> BoolArray:
    """Mark the chunks in chains of paraphrases, bool [n_questions, k].

    Each term of a chunk weighs its idf, however often the chunk has the term. Chunks with a cosine
    of `copy` count once.
    """
    from scipy.sparse import csr_array

    query, place = np.nonzero(ranked >= 0)
    of_chunks = terms.take(ranked[query, place])
    row = np.repeat(np.arange(len(query)), np.diff(of_chunks.indptr))
    row, term = np.unique(np.stack([row, of_chunks.ids]), axis=1)
    # Own columns for the terms of each question, so that only chunks of one question are compared.
    keys, column = np.unique(query[row] * len(frequency) + term, return_inverse=True)
    idf = np.log((1 + len(terms)) / (1 + frequency[term])) + 1
    weight = idf / np.sqrt(np.bincount(row, idf**2, len(query)))[row]
    unit = csr_array((weight, (row, column)), shape=(len(query), len(keys)))
    near = (unit @ unit.T).tocoo()
    cosine = np.zeros((*ranked.shape, ranked.shape[1]))
    cosine[query[near.row], place[near.row], place[near.col]] = near.data
    joined = cosine >= _PARAPHRASE
    for _ in range(FIRST.bit_length()):  # each step doubles the length of the chains
        joined = joined @ joined
    same = (cosine >= copy) | (documents[:, :, None] == documents[:, None, :])
    is_first = ~np.tril(same, -1).any(axis=2)
    marked: BoolArray = (joined & is_first[:, None, :]).sum(axis=2) >= _GROUP
    return marked
