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


class Parts(NamedTuple):
    """Parts of the formula that come from one retrieval, [n] each."""

    tail_density: FloatArray
    near_threshold: IntArray
    complexity: FloatArray

    def guess(self, history: float | FloatArray = HISTORY) -> FloatArray:
        """Compute the miss rates [n]."""
        near = np.minimum(self.near_threshold / 10, 0.3)
        total = 0.3 * self.tail_density + near + HISTORY_WEIGHT * history + 0.1 * self.complexity
        return np.asarray(np.minimum(0.9, total), dtype=np.float64)


def read_parts(similarity: FloatArray, has_chunk: BoolArray, n_words: IntArray) -> Parts:
    """Compute the parts of the formula.

    `similarity` [n, k] are scores in [0, 1] where `has_chunk`. `n_words` [n] counts the distinct
    content words of each question.
    """
    in_tail = (has_chunk & (similarity >= LOW) & (similarity < HIGH)).sum(axis=1)
    count = has_chunk.sum(axis=1)
    density = np.where(count > 0, in_tail / np.maximum(count, 1), DENSEST)
    return Parts(
        np.minimum(density, DENSEST),
        np.asarray((has_chunk & (similarity > LOW) & (similarity < HIGH)).sum(axis=1)),
        np.minimum(1.0, n_words / 10),
    )


def heuristic_v0(batch: RankedBatch, k: int = 10) -> FloatArray:
    """Guess miss rates [n] in [0.09, 0.64] by FORMULA, without similar judged questions.

    Similarities are the cosines of the first k chunks, clipped to [0, 1], or their scores divided
    by the question's top score. tail_density is the share of scores s with 0.3 <= s < 0.5, at most
    0.5. near_threshold counts the scores with 0.3 < s < 0.5. complexity is min(1, distinct content
    words / 10). The share in a list shorter than k is over the list.
    """
    has_chunk = batch.rows[:, :k] >= 0
    raw = np.where(has_chunk, batch.raw[:, :k], 0.0)
    if not batch.cosine:
        top = raw.max(axis=1, keepdims=True, initial=0.0)
        raw = np.divide(raw, top, out=np.zeros_like(raw), where=top > 0)
    words = np.array([len(set(terms)) for terms in batch.query_terms], dtype=np.int64)
    return read_parts(np.clip(raw, 0.0, 1.0), has_chunk, words).guess()


def signal_frame(
    batch: RankedBatch, k: int, strategy: str, seed: int, failed: BoolArray
) -> pd.DataFrame:
    """Write the signals of a batch as rows of a strategy's wordings, with `heuristic_v0`."""
    keys = pd.DataFrame(
        {
            "strategy": strategy,
            "variant": np.arange(len(batch), dtype=np.int64),
            "seed": seed,
            "failed": failed,
            HEURISTIC: heuristic_v0(batch, k),
        }
    )
    return pd.concat([keys, pd.DataFrame(signals(batch, k), columns=list(SIGNALS))], axis=1)


def estimate(query: str, scores: Sequence[float], missed: Sequence[bool] | None) -> Derived:
    """Guess the miss rate of one retrieval, with every part of the formula as a named input.

    `scores` are at least 0 or cosines. If one is above 1, all are divided by the top score.
    `missed` are the outcomes of similar judged questions.
    """
    similarity = np.array([list(scores)], dtype=np.float64)
    similarity = np.clip(similarity / max(1.0, similarity.max(initial=0.0)), 0.0, 1.0)
    n_words = len(set(Analyzer().index([query])[0]))
    parts = read_parts(similarity, np.ones(similarity.shape, dtype=bool), np.array([n_words]))
    density, near = float(parts.tail_density[0]), int(parts.near_threshold[0])
    rate, history = _describe_history(missed or ())
    counted = f"counted: share of {len(scores)} scores s with 0.3 <= s < 0.5, at most 0.5"
    near_words = f"counted: {near} scores s with 0.3 < s < 0.5; min(near_threshold / 10, 0.3)"
    return Derived(
        value=float(parts.guess(rate)[0]),
        formula=f"{HEURISTIC}, uncalibrated: {FORMULA}",
        inputs={
            "tail_density": Deterministic(
                value=density, reason=counted if scores else "0.5 for an empty list"
            ),
            "near_threshold": Deterministic(value=min(near / 10, 0.3), reason=near_words),
            "history": history,
            "complexity": Deterministic(
                value=float(parts.complexity[0]),
                reason=f"counted: {n_words} distinct content words; at most 10 count",
            ),
        },
    )


# ---- History: the shrunk miss rate of similar judged questions.

SIMILAR = 0.5
"""Least share of common content words (Jaccard index) of two similar questions."""
STRENGTH = 5.0
"""Number of questions as which the constant HISTORY counts in a history."""
BLOCK = 1000
"""Questions compared at once, because the products of a large gold set may not fit in memory."""


def _shrink(misses: FloatArray, n: IntArray) -> FloatArray:
    """Draw the observed miss rate of few questions towards HISTORY, [n]."""
    return np.asarray((misses + STRENGTH * HISTORY) / (n + STRENGTH))


def _describe_history(missed: Sequence[bool]) -> tuple[float, Confidence]:
    """Return the history of the formula and its provenance."""
    n, misses = len(missed), sum(map(bool, missed))
    if not n:
        basis = f"no similar judged question is known, so the formula takes {HISTORY}"
        return HISTORY, Bounded(low=0.0, high=1.0, basis=basis, citation=HEURISTIC)
    rate = float(_shrink(np.array([misses]), np.array([n]))[0])
    observed = Deterministic(value=misses / n, reason=f"counted: {misses} of {n} similar questions")
    formula = f"(misses + {STRENGTH:g} * {HISTORY}) / ({n} + {STRENGTH:g})"
    return rate, Derived(value=rate, formula=formula, inputs={"observed": observed})


class JudgedTexts(NamedTuple):
    """Judged questions: text, group, and the share of their judged wordings that missed, [m]."""

    texts: Sequence[str]
    groups: Sequence[str]
    missed: FloatArray


def similar_history(
    texts: Sequence[str], groups: Sequence[str], past: JudgedTexts
) -> tuple[FloatArray, IntArray]:
    """Compute the history of n questions, and the number of similar judged questions behind it.

    A judged question is similar if it shares at least half of the content words of both. Judged
    questions of the question's own group do not count: they would tell its own outcome. Without a
    similar question the history is HISTORY.
    """
    from scipy.sparse import csr_array

    analyzer, n = Analyzer(), len(texts)
    rows = [sorted(set(row)) for row in analyzer.index([*texts, *past.texts])]
    n_terms = len(analyzer.vocabulary)
    words = csr_array(count_matrix(rows, n_terms), shape=(len(rows), n_terms))
    sizes, judged_words = np.array([len(row) for row in rows]), words[n:].T.tocsr()
    codes = {group: code for code, group in enumerate(dict.fromkeys([*groups, *past.groups]))}
    group, judged_group = (
        np.array([codes[name] for name in names], dtype=np.int64) for names in (groups, past.groups)
    )
    misses, counts = np.zeros(n), np.zeros(n, dtype=np.int64)
    for start in range(0, n, BLOCK):
        common = (words[start : min(start + BLOCK, n)] @ judged_words).tocoo()
        at, other = common.row + start, common.col
        union = sizes[at] + sizes[n + other] - common.data
        chosen = (common.data >= SIMILAR * union) & (group[at] != judged_group[other])
        at, other = at[chosen], other[chosen]
        misses += np.bincount(at, past.missed[other], minlength=n)
        counts += np.bincount(at, minlength=n)
    return _shrink(misses, counts), counts


def with_history(guess: FloatArray, history: FloatArray) -> FloatArray:
    """Replace the constant history in guesses of `heuristic_v0` [n].

    The sum of all parts is at most 0.85, so the limit of 0.9 changes no guess.
    """
    return guess + HISTORY_WEIGHT * (history - HISTORY)
