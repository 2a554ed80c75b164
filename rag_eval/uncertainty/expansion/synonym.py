"""Synonyms: the terms nearest to a question's own terms in the corpus's term space.

A term takes the place of another when it keeps the same company, which is what nearness of latent semantic vectors says.
"""

import numpy as np

from rag_eval.uncertainty.expansion.context import ExpansionContext, IntArray
from rag_eval.uncertainty.expansion.words import best

NEAREST = 1
"""Words added for one term of the question."""
MOST = 4
"""Words added to a question."""
NEAR = 0.45
"""Least cosine of two terms."""
MIN_IDF = 1.5
"""A term in more than about a fifth of the chunks has no meaning of its own to be said otherwise."""
BLOCK = 512


def expand(context: ExpansionContext, which: IntArray) -> list[str | None]:
    """Add the nearest terms of the corpus to each question's terms, those of the rarest terms first."""
    words, known = context.words, context.batch.known[which]
    meant = np.unique(known.indices)
    meant = meant[(words.space.idf[meant] >= MIN_IDF) & (words.space.frequency[meant] > 0)]
    near = dict(zip(meant.tolist(), _nearest(context, meant), strict=True))
    added = []
    for row in range(len(which)):
        its = known.indices[known.indptr[row] : known.indptr[row + 1]]
        held = set(its.tolist())
        ranked = sorted(
            (-words.space.idf[term] * cosine, other)
            for term in held
            for other, cosine in near.get(term, ())
            if other not in held
        )
        added.append(list(dict.fromkeys(other for _, other in ranked))[:MOST])
    return words.widened(context.asked(which), added)


def _nearest(context: ExpansionContext, terms: IntArray) -> list[list[tuple[int, float]]]:
    """(term, cosine) of the nearest addable terms of each term, nearest first."""
    words = context.words
    columns = np.flatnonzero(words.addable)
    vectors = words.term_vectors[columns]
    found = []
    for start in range(0, len(terms), BLOCK):
        part = terms[start : start + BLOCK]
        cosines = (words.term_vectors[part] @ vectors.T).astype(np.float64)
        cosines[columns[None, :] == part[:, None]] = 0.0
        cosines[cosines < NEAR] = 0.0
        found += [
            [(int(columns[place]), round(float(row[place]), 6)) for place in chosen]
            for row, chosen in zip(cosines, best(cosines, NEAREST), strict=True)
        ]
    return found
