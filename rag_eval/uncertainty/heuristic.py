"""`heuristic_v0`: the specified guess at a miss rate, from the scores of a retrieval.

The guess needs no outcomes of the retriever, is always `uncalibrated`, and is the baseline of every
comparison. Only its history, the miss rate of similar judged questions, comes from outcomes.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.corpus.analyzer import Analyzer, count_matrix
from rag_eval.uncertainty.confidence import Bounded, Confidence, Derived, Deterministic
from rag_eval.uncertainty.signals import SIGNALS, RankedBatch, signals

HEURISTIC: Final = "heuristic_v0"
FORMULA: Final = (
    "min(0.9, 0.3 * tail_density + min(near_threshold / 10, 0.3) + 0.3 * history"
    " + 0.1 * complexity)"
)
LOW, HIGH = 0.3, 0.5
"""Bounds of the scores in the tail, and of the scores near the threshold."""
DENSEST = 0.5
"""Largest tail density, and the tail density of an empty list."""
HISTORY, HISTORY_WEIGHT = 0.3, 0.3
"""History of a question without similar judged questions, and its weight in the formula."""


def _read_parts(
    similarity: FloatArray, has_chunk: BoolArray, n_words: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Compute tail density, near_threshold term and complexity of each retrieval, [n] each."""
    below, count = has_chunk & (similarity < HIGH), has_chunk.sum(axis=1)
    in_tail, near = ((below & part).sum(axis=1) for part in (similarity >= LOW, similarity > LOW))
    density = np.where(count > 0, in_tail / np.maximum(count, 1), DENSEST)
    return np.minimum(density, DENSEST), np.minimum(near / 10, 0.3), np.minimum(n_words / 10, 1.0)


def _guess(parts: tuple[FloatArray, FloatArray, FloatArray], history: float) -> FloatArray:
    density, near, complexity = parts
    total = 0.3 * density + near + HISTORY_WEIGHT * history + 0.1 * complexity
    return np.asarray(np.minimum(0.9, total), dtype=np.float64)


def heuristic_v0(batch: RankedBatch, k: int = 10) -> FloatArray:
    """Guess miss rates [n] in [0.09, 0.64] by FORMULA, without similar judged questions.

    Similarities are the cosines of the first k chunks, clipped to [0, 1], or their scores divided
    by the question's top score. The share in a list shorter than k is over the list.
    """
    has_chunk = batch.rows[:, :k] >= 0
    raw = np.where(has_chunk, batch.raw[:, :k], 0.0)
    if not batch.cosine:
        top = raw.max(axis=1, keepdims=True, initial=0.0)
        raw = np.divide(raw, top, out=np.zeros_like(raw), where=top > 0)
    words = np.array([len(set(terms)) for terms in batch.query_terms], dtype=np.int64)
    return _guess(_read_parts(np.clip(raw, 0.0, 1.0), has_chunk, words), HISTORY)


def signal_frame(
    batch: RankedBatch, k: int, strategy: str, seed: int, failed: BoolArray
) -> pd.DataFrame:
    """Write the signals of a batch as rows of a strategy's wordings, with `heuristic_v0`."""
    frame = pd.DataFrame(signals(batch, k), columns=list(SIGNALS))
    columns = {
        "strategy": strategy,
        "variant": np.arange(len(batch), dtype=np.int64),
        "seed": seed,
        "failed": failed,
        HEURISTIC: heuristic_v0(batch, k),
    }
    return pd.concat([pd.DataFrame(columns), frame], axis=1)


def estimate(query: str, scores: Sequence[float], missed: Sequence[bool] | None) -> Derived:
    """Guess the miss rate of one retrieval, with every part of the formula as a named input.

    `scores` are at least 0 or cosines. If one is above 1, all are divided by the top score.
    `missed` are the outcomes of similar judged questions.
    """
    similarity = np.array([list(scores)], dtype=np.float64)
    similarity = np.clip(similarity / max(1.0, similarity.max(initial=0.0)), 0.0, 1.0)
    n_words = len(set(Analyzer().index([query])[0]))
    parts = _read_parts(similarity, np.ones(similarity.shape, dtype=bool), np.array([n_words]))
    rate, history = _describe_history(missed or ())
    n_near = int(((similarity > LOW) & (similarity < HIGH)).sum())
    tail = f"counted: share of {len(scores)} scores s with 0.3 <= s < 0.5, at most 0.5"
    reasons = {
        "tail_density": tail if scores else "0.5 for an empty list",
        "near_threshold": f"counted: {n_near} scores s with 0.3 < s < 0.5;"
        " min(near_threshold / 10, 0.3)",
        "complexity": f"counted: {n_words} distinct content words; at most 10 count",
    }
    density, near, complexity = (
        Deterministic(value=float(part[0]), reason=reason)
        for part, reason in zip(parts, reasons.values(), strict=True)
    )
    return Derived(
        value=float(_guess(parts, rate)[0]),
        formula=f"{HEURISTIC}, uncalibrated: {FORMULA}",
        inputs={
            "tail_density": density,
            "near_threshold": near,
            "history": history,
            "complexity": complexity,
        },
    )


# ---- History: the shrunk miss rate of similar judged questions.

SIMILAR = 0.5
"""Least share of common content words (Jaccard index) of two similar questions."""
STRENGTH = 5.0
"""Number of questions as which the constant HISTORY counts in a history."""
BLOCK = 1000
"""Questions compared at once, because the products of a large gold set may not fit in memory."""


def _describe_history(missed: Sequence[bool]) -> tuple[float, Confidence]:
    """Return the history of the formula and its provenance."""
    n, misses = len(missed), sum(map(bool, missed))
    if not n:
        basis = f"no similar judged question is known, so the formula takes {HISTORY}"
        return HISTORY, Bounded(low=0.0, high=1.0, basis=basis, citation=HEURISTIC)
    rate = (misses + STRENGTH * HISTORY) / (n + STRENGTH)
    observed = Deterministic(value=misses / n, reason=f"counted: {misses} of {n} similar questions")
    formula = f"(misses + {STRENGTH:g} * {HISTORY}) / ({n} + {STRENGTH:g})"
    return rate, Derived(value=rate, formula=formula, inputs={"observed": observed})


class JudgedTexts(NamedTuple):
    """Judged questions: text, group, and the share of their judged wordings that missed, [m]."""

    texts: Sequence[str]
    groups: Sequence[str]
    missed: FloatArray

    def _similar_history(
        self, texts: Sequence[str], groups: Sequence[str]
    ) -> tuple[FloatArray, IntArray]:
        """Compute the history of n questions, and the number of similar judged questions behind it.

        A judged question is similar if it shares at least half of the content words of both. Judged
        questions of the question's own group do not count: they would tell its own outcome. Without
        a similar question the history is HISTORY.
        """
        from scipy.sparse import csr_array

        analyzer, n = Analyzer(), len(texts)
        rows = [sorted(set(row)) for row in analyzer.index([*texts, *self.texts])]
        n_terms = len(analyzer.vocabulary)
        words = csr_array(count_matrix(rows, n_terms), shape=(len(rows), n_terms))
        sizes, judged_words = np.array([len(row) for row in rows]), words[n:].T.tocsr()
        group = pd.factorize(np.array([*groups, *self.groups], dtype=object))[0]
        misses, counts = np.zeros(n), np.zeros(n, dtype=np.int64)
        for start in range(0, n, BLOCK):
            common = (words[start : min(start + BLOCK, n)] @ judged_words).tocoo()
            at, other = common.row + start, common.col
            union = sizes[at] + sizes[n + other] - common.data
            similar = (common.data >= SIMILAR * union) & (group[at] != group[n + other])
            misses += np.bincount(at[similar], self.missed[other[similar]], minlength=n)
            counts += np.bincount(at[similar], minlength=n)
        return np.asarray((misses + STRENGTH * HISTORY) / (counts + STRENGTH)), counts

    def refine(
        self, guess: FloatArray, texts: Sequence[str], groups: Sequence[str]
    ) -> tuple[FloatArray, IntArray]:
        """Replace the constant history in guesses of `heuristic_v0` [n].

        Returns guesses with the history of similar judged questions, and their number. The sum of
        all parts is at most 0.85, so the limit of 0.9 changes no guess.
        """
        history, n_similar = self._similar_history(texts, groups)
        return guess + HISTORY_WEIGHT * (history - HISTORY), n_similar
