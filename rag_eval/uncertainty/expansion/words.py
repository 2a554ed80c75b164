"""The words of a corpus as expansions use them: how each term is written, which terms may be added to a question, which terms mean alike.

Belongs here: what is computed once per corpus. Which words a question gets is each strategy's matter.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rag_eval.corpus.analyzer import STOP_WORDS, words
from rag_eval.retrieval.chunk_table import ChunkTable
from rag_eval.uncertainty.batch import TermSpace

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MAX_WORD_CHARS = 40
"""No longer word of the corpus is added to a question: it is no word, and texts may be hostile."""
MAX_QUESTION_CHARS = 4000
"""So much of a question is expanded; what stands beyond is left out of the expanded text."""
DIMENSIONS = 128
CHUNKS_A_DIMENSION = 4
"""With as many dimensions as chunks nothing is latent: terms that never meet would stay unlike whatever company they keep."""
SVD_SEED, SVD_ITERATIONS = 0, 4
COMMON_SHARE = 0.1
"""A term in more chunks than this share tells nothing and is never added."""
RARE_CHUNKS = 2
"""A term in fewer chunks has no company to be judged by."""

Vectors = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


class CorpusWords:
    """Terms of one corpus.

    Parameters
    ----------
    table
        The chunks, with the analyzer and its vocabulary.
    space
        Their counts; made of `table.terms`.
    """

    def __init__(self, table: ChunkTable, space: TermSpace) -> None:
        if space.n_chunks != len(table) or space.n_terms != table.n_terms:
            raise ValueError(
                f"the term space is of {space.n_chunks} chunks and {space.n_terms} terms, the table of {len(table)} and {table.n_terms}"
            )
        self.table, self.space = table, space

    @functools.cached_property
    def surface(self) -> list[str]:
        """How each term is written most often ("values" for the stem "valu"); empty where only by words too long. Ties go to the first in the alphabet."""
        seen: Counter[str] = Counter()
        for text in self.table.texts:
            seen.update(words(text))
        for long in [word for word in seen if len(word) > MAX_WORD_CHARS or word in STOP_WORDS]:
            del seen[long]
        ranked = [word for word, _ in sorted(seen.items(), key=lambda item: (-item[1], item[0]))]
        found = [""] * self.space.n_terms
        for word, row in zip(ranked, self.table.query_terms(ranked), strict=True):
            if len(row) == 1 and row[0] < len(found) and not found[row[0]]:
                found[row[0]] = word
        return found

    @functools.cached_property
    def addable(self) -> npt.NDArray[np.bool_]:
        """Terms that may be added to a question: written with letters, neither too common nor too rare to be judged; bool [n_terms]."""
        lettered = np.array(
            [len(word) > 1 and not word.isdecimal() for word in self.surface], dtype=bool
        )
        most = max(COMMON_SHARE * self.space.n_chunks, RARE_CHUNKS)
        kept: npt.NDArray[np.bool_] = (
            lettered & (self.space.frequency >= RARE_CHUNKS) & (self.space.frequency <= most)
        )
        return kept

    @functools.cached_property
    def _weights(self) -> "csr_array":
        """(1 + ln tf) * idf of each chunk, rows of unit length, float32 [n_chunks, n_terms]."""
        weights = self.space.counts.copy()
        weights.data = ((1.0 + np.log(weights.data)) * self.space.idf[weights.indices]).astype(
            np.float32
        )
        return unit_rows(weights)

    @functools.cached_property
    def _basis(self) -> tuple[Vectors, Vectors]:
        from sklearn.utils.extmath import randomized_svd, svd_flip

        weights = self._weights
        size = min(DIMENSIONS, max(1, min(weights.shape) // CHUNKS_A_DIMENSION))
        if weights.nnz == 0:
            return np.zeros((weights.shape[0], 1), dtype=np.float32), np.zeros(
                (weights.shape[1], 1), dtype=np.float32
            )
        left, values, right = randomized_svd(
            weights, size, n_iter=SVD_ITERATIONS, random_state=SVD_SEED, flip_sign=False
        )
        left, right = svd_flip(left, right, u_based_decision=False)
        return unit((left * values).astype(np.float32)), unit((right.T * values).astype(np.float32))

    @property
    def term_vectors(self) -> Vectors:
        """Latent semantic vectors of terms, unit or zero, float32 [n_terms, d] (Deerwester et al., JASIS 1990): terms of like company are near."""
        return self._basis[1]

    @property
    def chunk_vectors(self) -> Vectors:
        """The same of chunks, float32 [n_chunks, d]."""
        return self._basis[0]

    def aims(self, known: "csr_array") -> Vectors:
        """Idf-weighted mean of the vectors of each question's terms, unit or zero, float32 [n, d]."""
        weights = known.copy()
        weights.data = self.space.idf[weights.indices].astype(np.float32)
        return unit(np.asarray(weights @ self.term_vectors, dtype=np.float32))

    def widened(self, questions: Sequence[str], added: Sequence[Sequence[int]]) -> list[str | None]:
        """Write each question with the words of terms after it; None where no word was added."""
        return [
            None
            if not its
            else f"{question[:MAX_QUESTION_CHARS]} {' '.join(self.surface[term] for term in its)}"
            for question, its in zip(questions, added, strict=True)
        ]


def unit(rows: Vectors) -> Vectors:
    """Rows of unit length; zero stays zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)


def unit_rows(rows: "csr_array") -> "csr_array":
    """Sparse rows of unit length; empty stays empty."""
    lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    made = rows.copy()
    made.data = (
        made.data / np.repeat(np.where(lengths > 0, lengths, 1.0), np.diff(made.indptr))
    ).astype(np.float32)
    return made


def best(scores: npt.NDArray[np.float64], most: int) -> list[list[int]]:
    """Columns of the highest positive scores of each row, highest first, ties by column.

    Parameters
    ----------
    scores
        [n, m]; rounded to six decimals before they are compared, because the last bits of a product depend on its batch.
    most
        At most so many columns a row.
    """
    width = min(most, scores.shape[1])
    if width == 0:
        return [[] for _ in scores]
    rounded = np.round(scores, 6)
    cut = np.partition(rounded, scores.shape[1] - width, axis=1)[:, scores.shape[1] - width]
    found = []
    for row, floor in zip(rounded, cut, strict=True):
        near = np.flatnonzero((row >= floor) & (row > 0))
        found.append(near[np.lexsort((near, -row[near]))][:width].tolist())
    return found
