"""Reformulation: a language model's where one is configured, else the question with what the best chunks say most (pseudo-relevance feedback).

The feedback is RM3's relevance model (Lavrenko & Croft, SIGIR 2001; Abdul-Jaleel et al., TREC 2004): p(t | best chunks), each chunk weighing by its
score, times idf, because the added words stand in a text that no engine can weigh word by word.
"""

import numpy as np

from rag_eval.uncertainty.expansion.context import ExpansionContext, IntArray
from rag_eval.uncertainty.expansion.suggestions import suggested
from rag_eval.uncertainty.expansion.words import best

FEEDBACK = 3
"""Chunks that are believed."""
MOST = 5
SUPPORT = 2
"""Least number of these chunks that hold an added term."""
BLOCK = 512


def expand(context: ExpansionContext, which: IntArray) -> list[str | None]:
    """Word the question anew; questions that the language model leaves open are expanded from the retrieved chunks."""
    return suggested("reformulation", context, which, from_feedback)


def from_feedback(context: ExpansionContext, which: IntArray) -> list[str | None]:
    """Add the terms that the best chunks say more than the corpus does."""
    from scipy.sparse import csr_array

    words, batch = context.words, context.batch
    rows = batch.rows[which, :FEEDBACK]
    scores = np.where(rows >= 0, np.maximum(batch.norm[which, :FEEDBACK], 1e-6), 0.0)
    scores /= np.maximum(scores.sum(axis=1, keepdims=True), 1e-9)
    there = rows >= 0
    query, place = np.nonzero(there)
    shape = (len(which), words.space.n_chunks)
    lengths = np.maximum(np.asarray(words.space.counts.sum(axis=1)).ravel(), 1.0)
    chunks = rows[query, place]
    believed = csr_array((scores[query, place] / lengths[chunks], (query, chunks)), shape=shape)
    held = csr_array((np.ones(len(query)), (query, chunks)), shape=shape)
    columns = np.flatnonzero(words.addable)
    counts = words.space.counts[:, columns]
    present = counts.copy()
    present.data = np.ones_like(present.data)
    known = batch.known[which][:, columns]
    added: list[list[int]] = []
    for start in range(0, len(which), BLOCK):
        part = slice(start, start + BLOCK)
        likely = (believed[part] @ counts).toarray() * words.space.idf[columns]
        likely[(held[part] @ present).toarray() < SUPPORT] = 0.0
        likely[known[part].toarray() > 0] = 0.0
        added += [[int(columns[place]) for place in chosen] for chosen in best(likely, MOST)]
    return words.widened(context.asked(which), added)
