"""BM25 over what a question means: its own terms and their synonyms, as one score for each stretch of the question.

A term t scores s(t, d) as in `lexical`, but 0 where the list ignores it; a meaning m of several terms the mean of theirs, where a chunk has them all, else 0. Then

    concept(t, d) = sqrt(s(t, d)^2 + sum over meanings m of t of (v(t, m) * s(m, d))^2)
    concept(p, d) = sqrt((sum over terms t of p of concept(t, d))^2 + sum over meanings m of phrase p of (|p| * v(p, m) * s(m, d))^2)
    v(p, m) = weight * min(1, idf(p) / idf(m))

with idf(p) the largest among the phrase's terms, and no limit where the corpus lacks one. A question scores the sum over its stretches
(`BoundExpansion.phrases`). The 2-norm is that of the extended Boolean model's OR (Salton, Fox, Wu, CACM 1983): several synonyms support each
other, but a chunk that has them all is far from counting as many times. v keeps a synonym from counting as rarer than what it stands for.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_eval.retrieval.synonyms.expansion import BoundExpansion, Mean, Phrase

SCORING = "norm-2"
"""Name of the formula above; part of an index_hash. Any change of behaviour changes it."""


class ExpandedScores:
    """Scores of chunks for widened questions.

    Parameters
    ----------
    data, indices, indptr
        s(t, d) as compressed rows: one row a term, one column a chunk.
    n_terms, n_chunks
        Shape; terms at or above n_terms are unknown.
    """

    def __init__(
        self,
        data: npt.NDArray[np.float32],
        indices: npt.NDArray[np.int32],
        indptr: npt.NDArray[np.int64],
        n_terms: int,
        n_chunks: int,
    ) -> None:
        self._terms = _csr(
            (data.astype(np.float64), indices, indptr[: n_terms + 1]), (n_terms, n_chunks)
        )
        self._there = _csr(
            (np.ones(len(data)), indices, indptr[: n_terms + 1]), (n_terms, n_chunks)
        )
        frequency = np.diff(self._terms.indptr)
        self._idf = np.log1p((n_chunks - frequency + 0.5) / (frequency + 0.5))
        self._known = frequency > 0

    def dense(
        self, expansion: BoundExpansion, rows: Sequence[Sequence[int]]
    ) -> npt.NDArray[np.float64]:
        """Score every chunk for each query, [n, n_chunks].

        Each distinct term, phrase and meaning of the batch is scored once. Their order is by term ids, whatever else is asked, so that a
        query's sum has the same bits alone and in a batch.
        """
        cut = expansion.phrases(rows)
        tokens = {
            term: place for place, term in enumerate(sorted({term for row in rows for term in row}))
        }
        phrases = {
            phrase: len(tokens) + place
            for place, phrase in enumerate(
                sorted({phrase for its in cut for phrase in its if len(phrase) > 1})
            )
        }
        singles, several = [(term,) for term in tokens], list(phrases)
        scores = self._widened(self._terms_of(singles, expansion.ignored), singles, expansion)
        if several:
            from scipy.sparse import vstack

            parts = [
                (place, tokens[term], 1.0)
                for place, phrase in enumerate(several)
                for term in phrase
            ]
            sums = _entries(parts, (len(several), len(tokens))) @ scores
            scores = vstack([scores, self._widened(sums, several, expansion)], format="csr")
        asked = [
            (query, tokens[phrase[0]] if len(phrase) == 1 else phrases[phrase], 1.0)
            for query, its in enumerate(cut)
            for phrase in its
        ]
        return np.asarray((_entries(asked, (len(rows), scores.shape[0])) @ scores).toarray())

    def _has(self, phrase: Phrase) -> bool:
        return all(term < len(self._known) and self._known[term] for term in phrase)

    def _rarity(self, phrase: Phrase) -> float:
        return float(self._idf[list(phrase)].max()) if self._has(phrase) else np.inf

    def _terms_of(self, singles: Sequence[Phrase], ignored: frozenset[int]) -> Any:
        known = [
            (place, term, 1.0)
            for place, (term,) in enumerate(singles)
            if self._has((term,)) and term not in ignored
        ]
        return _entries(known, (len(singles), len(self._known))) @ self._terms

    def _widened(self, scores: Any, phrases: Sequence[Phrase], expansion: BoundExpansion) -> Any:
        """Add the meanings of phrases to their scores, CSR [len(phrases), n_chunks]."""
        found: list[tuple[int, Mean]] = [
            (place, mean)
            for place, phrase in enumerate(phrases)
            for mean in expansion.means(phrase)
            if self._has(mean.terms)
        ]
        if not found:
            return scores
        means = {
            terms: place for place, terms in enumerate(sorted({mean.terms for _, mean in found}))
        }
        meant, rarity = self._together(list(means))
        rarest = [self._rarity(phrase) for phrase in phrases]
        values = [
            (
                place,
                means[mean.terms],
                len(phrases[place])
                * mean.weight
                * min(1.0, rarest[place] / max(rarity[means[mean.terms]], 1e-9)),
            )
            for place, mean in found
        ]
        weights = _entries(values, (len(phrases), len(means)))
        return (scores.power(2) + weights.power(2) @ meant.power(2)).sqrt()

    def _together(self, means: Sequence[Phrase]) -> tuple[Any, npt.NDArray[np.float64]]:
        """Scores of meanings, CSR [len(means), n_chunks]: 0 where a chunk lacks one of its terms; and their mean idf."""
        distinct = [tuple(dict.fromkeys(terms)) for terms in means]
        member = _entries(
            [(place, term, 1.0) for place, terms in enumerate(distinct) for term in terms],
            (len(means), len(self._known)),
        )
        sizes = member.sum(axis=1)
        whole = (member @ self._there).tocoo()
        kept = whole.data >= sizes[whole.row]
        complete = _csr(
            (1.0 / sizes[whole.row[kept]], (whole.row[kept], whole.col[kept])), whole.shape
        )
        return (member @ self._terms).multiply(complete).tocsr(), np.asarray(
            member @ self._idf / sizes
        )


def _csr(parts: Any, shape: tuple[int, int]) -> Any:
    from scipy.sparse import csr_array

    return csr_array(parts, shape=shape)


def _entries(entries: Sequence[tuple[int, int, float]], shape: tuple[int, int]) -> Any:
    """CSR of (row, column, value); equal places add up."""
    rows, columns, values = (
        np.array([entry[i] for entry in entries], dtype=kind)
        for i, kind in enumerate((np.int64, np.int64, np.float64))
    )
    return _csr((values, (rows, columns)), shape)
