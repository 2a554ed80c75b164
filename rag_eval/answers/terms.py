"""Terms of a batch as sparse matrices, and how much each says.

Belongs here: analysis and weights. What is measured with them is `features`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_eval.answers.function_words import FUNCTION_WORDS
from rag_eval.answers.pool import Pool
from rag_eval.answers.widening import Widening
from rag_eval.corpus.analyzer import Analyzer, count_matrix
from rag_eval.retrieval.synonyms.expansion import Expansion

SATURATION, LENGTH_SHARE = 0.9, 0.4
"""BM25's k1 and b, as for retrieval."""

AVERAGE_TERMS = 12.0
"""Terms of a sentence, stop words aside: the mean over CLAPnq, SciFact and XQuAD is 12.6."""


class TermWeights:
    """How much terms say: idf over a background of texts, scaled to (0, 1].

    weight(t) = ln(1 + (N - df + 0.5) / (df + 0.5)) / ln(1 + (N + 0.5) / 0.5), so that a term which no text has weighs 1.

    Parameters
    ----------
    frequencies
        Term (as `rag_eval.corpus.analyzer` makes it) -> number of texts that have it.
    n_texts
        Number of texts. Without any, every term weighs 1.
    """

    def __init__(self, frequencies: Mapping[str, int] | None = None, n_texts: int = 0) -> None:
        self.frequencies = dict(frequencies or {})
        self.n_texts = n_texts

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> "TermWeights":
        """Count the texts that a corpus is made of."""
        analyzer = Analyzer()
        rows = analyzer.index(texts)
        _, columns, _ = count_matrix(rows, len(analyzer.vocabulary))
        counts = np.bincount(columns, minlength=len(analyzer.vocabulary))
        return cls(dict(zip(analyzer.vocabulary, counts.tolist(), strict=True)), len(texts))

    def of(self, vocabulary: Mapping[str, int]) -> npt.NDArray[np.float64]:
        """Weights by term id, float64 [len(vocabulary)]."""
        if self.n_texts == 0:
            return np.ones(len(vocabulary))
        found = np.fromiter(
            (self.frequencies.get(term, 0) for term in vocabulary),
            dtype=np.float64,
            count=len(vocabulary),
        )
        n = float(self.n_texts)
        return np.asarray(
            np.log1p((np.maximum(n - found, 0) + 0.5) / (found + 0.5)) / np.log1p((n + 0.5) / 0.5)
        )


class PoolTerms:
    """The terms of a pool.

    Parameters
    ----------
    pool
        Questions and texts.
    weights
        How much terms say.
    expansion
        Synonyms: a question term that a text lacks counts in part where the text has a synonym, in all matrices but those of pairs. The
        columns of such terms follow those of the vocabulary, and `n_terms` counts them.

    Attributes
    ----------
    questions, units, titles, passages
        CSR of 0 and 1, one row each, and between them where only a synonym is there; `passages` are distinct texts without titles. Function
        words are left out of questions.
    saturated
        CSR [n_units, n_terms]: counts as BM25 saturates them.
    unit_lengths
        Terms of each unit.
    weights
        float64 [n_terms].
    """

    def __init__(
        self, pool: Pool, weights: TermWeights, expansion: Expansion | None = None
    ) -> None:
        from scipy.sparse import csr_array

        analyzer = Analyzer()
        functional = {term for row in analyzer.index(FUNCTION_WORDS) for term in row}
        questions = analyzer.index(pool.questions)
        asked = [[term for term in row if term not in functional] for row in questions]
        said, named = (
            analyzer.index(pool.unit_texts),
            analyzer.index([title.replace("_", " ") for title in pool.titles]),
        )
        widening = None if expansion is None else Widening(expansion, analyzer, questions, asked)
        n_terms = len(analyzer.vocabulary)

        def counts(rows: Sequence[Sequence[int]]) -> Any:
            return csr_array(count_matrix(rows, n_terms), shape=(len(rows), n_terms))

        def present(matrix: Any) -> Any:
            matrix = matrix.copy()
            matrix.data = np.minimum(matrix.data, 1.0)
            return matrix

        units = counts(said)
        self.questions, self.units, self.titles = (
            present(counts(asked)),
            present(units),
            present(counts(named)),
        )
        self.passages = present((pool.membership @ units).tocsr())
        self.unit_lengths = units.sum(axis=1)
        # a unit's length counts against that of an average sentence, not of the batch: an answer may not depend on what else is asked
        longer = 1.0 - LENGTH_SHARE + LENGTH_SHARE * self.unit_lengths / AVERAGE_TERMS
        self.saturated = units
        rows = np.repeat(np.arange(units.shape[0]), np.diff(units.indptr))
        self.saturated.data = units.data / (units.data + SATURATION * longer[rows])
        self.weights = weights.of(analyzer.vocabulary)
        if widening is not None:
            self._widen(widening)
        self._pairs(asked, said, functional, n_terms)

    def _widen(self, widening: Widening) -> None:
        from scipy.sparse import csr_array

        shape = (len(widening.asked), widening.n_terms + len(widening.terms))
        self.questions = csr_array(count_matrix(widening.asked, shape[1]), shape=shape)
        self.units, self.titles, self.passages, self.saturated = (
            widening.widen(matrix)
            for matrix in (self.units, self.titles, self.passages, self.saturated)
        )
        self.weights = np.concatenate([self.weights, self.weights[widening.terms]])

    def _pairs(
        self, asked: list[list[int]], said: list[list[int]], functional: set[int], n_terms: int
    ) -> None:
        """Neighbouring terms, function words left out, of the questions and of the units."""
        from scipy.sparse import csr_array

        wanted = _neighbouring(asked, n_terms)
        there = _neighbouring(
            [[term for term in row if term not in functional] for row in said], n_terms
        )
        known = np.unique(wanted[1])
        place = np.minimum(np.searchsorted(known, there[1]), max(len(known) - 1, 0))
        kept = known[place] == there[1] if len(known) else np.zeros(len(there[1]), dtype=bool)

        def matrix(rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], n_rows: int) -> Any:
            found = csr_array(
                (np.ones(len(rows)), (rows, columns)), shape=(n_rows, max(len(known), 1))
            )
            found.sum_duplicates()
            found.data = np.minimum(found.data, 1.0)
            return found

        self._asked_pairs = matrix(wanted[0], np.searchsorted(known, wanted[1]), len(asked))
        self._said_pairs = matrix(there[0][kept], place[kept], len(said))

    def pair_share(
        self, question_of: npt.NDArray[np.int64], unit_of: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Share of a question's neighbouring terms that are neighbours in a unit, [n_candidates]; 0 where the question has none."""
        shared = self._said_pairs[unit_of].multiply(self._asked_pairs[question_of]).sum(axis=1)
        return np.asarray(shared / np.maximum(self._asked_pairs.sum(axis=1), 1.0)[question_of])


def _neighbouring(
    rows: list[list[int]], n_terms: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row and code of each pair of neighbouring terms."""
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    flat = np.fromiter(
        (term for row in rows for term in row), dtype=np.int64, count=int(lengths.sum())
    )
    of = np.repeat(np.arange(len(rows)), lengths)
    same = of[1:] == of[:-1]
    low, high = (
        np.minimum(flat[1:], flat[:-1]),
        np.maximum(flat[1:], flat[:-1]),
    )  # "average speed" is "speed on average"
    return of[1:][same], (low * n_terms + high)[same]
