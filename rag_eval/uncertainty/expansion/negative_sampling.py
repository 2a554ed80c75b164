"""Negative sampling: what sets the other chunks apart from the group that fills the top of the list, for when that group is the wrong one.

A text cannot ask for less of a word. So the retrieved chunks are parted into the group around the first one and the group around the one least like
it, and the question is asked with what the second group says more than the first, and once more with those of its own terms that the first group
leaves out. The first group's words lose weight by what stands beside them.
"""

import numpy as np

from rag_eval.uncertainty.expansion.context import ExpansionContext, IntArray
from rag_eval.uncertainty.expansion.words import best

LOOKED_AT = 20
"""Chunks that are parted."""
LEAST = 4
"""Fewer cannot be parted."""
MOST = 2
OWN = 3
"""Terms of the question that are repeated."""
BLOCK = 512


def expand(context: ExpansionContext, which: IntArray) -> list[str | None]:
    """Ask with the contrast between the group at the top and the other one."""
    from scipy.sparse import csr_array

    words, batch = context.words, context.batch
    rows = batch.rows[which, :LOOKED_AT]
    known = batch.known[which]
    if known.nnz == 0 or rows.shape[1] == 0:
        return [None] * len(which)
    there = rows >= 0
    vectors = words.chunk_vectors[np.maximum(rows, 0)]
    like_first = np.where(there, np.einsum("nkd,nd->nk", vectors, vectors[:, 0]), np.inf)
    other = vectors[np.arange(len(which)), np.argmin(np.round(like_first, 6), axis=1)]
    second = there & (np.einsum("nkd,nd->nk", vectors, other) > like_first)
    first = there & ~second
    viable = (there.sum(axis=1) >= LEAST) & second.any(axis=1)
    shape = (len(which), words.space.n_chunks)
    present = words.space.counts.copy()
    present.data = np.ones_like(present.data)

    def shares(members: np.ndarray) -> csr_array:
        query, place = np.nonzero(members)
        weights = 1.0 / np.maximum(members.sum(axis=1), 1)[query]
        return csr_array((weights, (query, rows[query, place])), shape=shape) @ present

    of_first, of_second = shares(first), shares(second)
    aims = words.aims(known)
    columns = np.flatnonzero(words.addable)
    added: list[list[int]] = []
    for start in range(0, len(which), BLOCK):
        part = slice(start, start + BLOCK)
        contrast = (
            of_second[part][:, columns] - of_first[part][:, columns]
        ).toarray() * words.space.idf[columns]
        contrast *= np.maximum(aims[part] @ words.term_vectors[columns].T, 0.0)
        contrast[known[part][:, columns].toarray() > 0] = 0.0
        added += [[int(columns[place]) for place in chosen] for chosen in best(contrast, MOST)]
    left_out = known.copy()
    left_out.data = (
        1.0
        - np.asarray(
            of_first[np.repeat(np.arange(len(which)), np.diff(known.indptr)), known.indices]
        ).ravel()
    ) * words.space.idf[known.indices]
    for row in range(len(which)):
        its = slice(known.indptr[row], known.indptr[row + 1])
        ranked = np.lexsort((known.indices[its], -np.round(left_out.data[its], 6)))[:OWN]
        own = [
            int(known.indices[its][place])
            for place in ranked
            if left_out.data[its][place] > 0 and words.surface[known.indices[its][place]]
        ]
        added[row] = added[row] + own if viable[row] and added[row] else []
    return words.widened(context.asked(which), added)
