"""Adding wider or narrower terms to questions: which of the candidates, and how many."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from rag_eval.uncertainty.expansion.context import ExpansionContext, IntArray
from rag_eval.uncertainty.expansion.words import CorpusWords, best

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST = 2
"""Words added to a question."""
NEAR = 0.6
"""Least cosine between the term of the question and the one added: subsumption alone is often chance."""
MEANINGS = 3
"""Words taken from a thesaurus for one word of the question."""
FROM_THESAURUS = 0.9
"""What a thesaurus's word weighs, on the scale of a cosine."""
COMMON_SHARE = 0.1
"""A question's term in more chunks than this share is too wide to be looked up."""
BLOCK = 512

Related = Callable[[CorpusWords, IntArray], "csr_array"]


def widened_by(
    context: ExpansionContext,
    which: IntArray,
    related: Related,
    look_up: Callable[[str], list[str]] | None,
) -> list[str | None]:
    """Add to each question the terms related to its own, by their nearness to the term and to the whole question."""
    from scipy.sparse import csr_array

    words, known = context.words, context.batch.known[which]
    space = words.space
    terms = np.unique(known.indices).astype(np.int64)
    terms = terms[
        (space.frequency[terms] > 0)
        & (space.frequency[terms] <= max(COMMON_SHARE * space.n_chunks, 1))
    ]
    near = related(words, terms)
    near.data = np.where(near.data >= NEAR, near.data, 0.0)
    if look_up is not None:
        near = near.maximum(_from_thesaurus(words, terms, look_up))
    place = np.full(space.n_terms, -1, dtype=np.int64)
    place[terms] = np.arange(len(terms))
    query = np.repeat(np.arange(len(which)), np.diff(known.indptr))
    looked_up = place[known.indices] >= 0
    chosen = (
        space.idf[known.indices[looked_up]],
        (query[looked_up], place[known.indices[looked_up]]),
    )
    columns = np.unique(near.tocoo().col)
    near, aims = near[:, columns], words.aims(known)
    asks = csr_array(chosen, shape=(len(which), len(terms)))
    added: list[list[int]] = []
    for start in range(0, len(which), BLOCK):
        part = slice(start, start + BLOCK)
        scores = (asks[part] @ near).toarray()
        scores *= np.maximum(aims[part] @ words.term_vectors[columns].T, 0.05)
        scores[known[part][:, columns].toarray() > 0] = 0.0
        added += [[int(columns[column]) for column in its] for its in best(scores, MOST)]
    return words.widened(context.asked(which), added)


def _from_thesaurus(
    words: CorpusWords, terms: IntArray, look_up: Callable[[str], list[str]]
) -> "csr_array":
    """What a thesaurus says of terms, as far as the corpus has it, float64 [m, n_terms]."""
    from scipy.sparse import csr_array

    found = [
        (row, mean)
        for row, term in enumerate(terms.tolist())
        for mean in look_up(words.surface[term])[:MEANINGS]
        if words.surface[term]
    ]
    ids = words.table.query_terms([mean for _, mean in found])
    pairs = {
        (row, means[0])
        for (row, _), means in zip(found, ids, strict=True)
        if len(means) == 1 and means[0] < words.space.n_terms and words.addable[means[0]]
    }
    rows, columns = (
        np.array([pair[i] for pair in sorted(pairs)], dtype=np.int64) for i in range(2)
    )
    return csr_array(
        (np.full(len(pairs), FROM_THESAURUS), (rows, columns)),
        shape=(len(terms), words.space.n_terms),
    )
