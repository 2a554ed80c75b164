"""Related concepts: a language model's where one is configured, else the terms that the corpus associates with the question as a whole."""

import numpy as np

from rag_eval.uncertainty.expansion.context import ExpansionContext, IntArray
from rag_eval.uncertainty.expansion.suggestions import suggested
from rag_eval.uncertainty.expansion.words import best

MOST = 4
NEAR = 0.35
"""Least cosine between the question and an added term."""
BLOCK = 512


def expand(context: ExpansionContext, which: IntArray) -> list[str | None]:
    """Add what belongs to the question's subject; questions that the language model leaves open are expanded from the corpus."""
    return suggested("related_concept", context, which, associated)


def associated(context: ExpansionContext, which: IntArray) -> list[str | None]:
    """Add the terms nearest to the idf-weighted mean of the question's term vectors."""
    words, known = context.words, context.batch.known[which]
    columns = np.flatnonzero(words.addable)
    aims, vectors = words.aims(known), words.term_vectors[columns]
    added: list[list[int]] = []
    for start in range(0, len(which), BLOCK):
        cosines = (aims[start : start + BLOCK] @ vectors.T).astype(np.float64)
        cosines[cosines < NEAR] = 0.0
        cosines[known[start : start + BLOCK][:, columns].toarray() > 0] = 0.0
        added += [[int(columns[place]) for place in chosen] for chosen in best(cosines, MOST)]
    return words.widened(context.asked(which), added)
