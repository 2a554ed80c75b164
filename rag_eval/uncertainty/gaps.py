"""Find semantic gaps: parts of a question that retrieved chunks do not cover, and their cures."""

import dataclasses
import itertools
from typing import Final, Literal

import numpy as np

from rag_eval.core.arrays import Float32Array, FloatArray, Int32Array, IntArray
from rag_eval.core.config import ExpansionName
from rag_eval.core.errors import quoted
from rag_eval.uncertainty.expansion import ExpansionContext, find_runs, is_identifier, weigh_by_idf

NAMED = 5
"""Largest number of the question's words that a description names."""
WORD_CHARS = 40
GapSeverity = Literal["low", "medium", "high"]
SEVERITIES: Final[tuple[GapSeverity, ...]] = ("low", "medium", "high")
LEVELS: Final[dict[ExpansionName, tuple[float, float, float]]] = {
    "related_concept": (0.15, 0.3, 0.5),
    "synonym": (0.0, 0.1, 0.3),
    "code_pattern": (0.0, 0.1, 0.3),
    "reformulation": (0.5, 0.7, 0.9),
    "hypernym": (0.0, 0.4, 0.7),
    "negative_sampling": (0.5, 0.7, 0.85),
    "hyponym": (0.3, 0.5, 0.8),
}
"""Extents above which a gap is low, medium and high, by the expansion that mends the gap.

Equally severe gaps keep this order, because earlier expansions recovered more misses on one half
of SciFact.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """A gap, described with the question's own words quoted, and the expansion that may mend it."""

    description: str
    severity: GapSeverity
    mitigation: ExpansionName


def semantic_gaps(context: ExpansionContext, which: IntArray, k: int = 10) -> list[list[Gap]]:
    """Find the gaps of some questions in their top k, the severest first.

    A word without content, such as "how", is no gap.
    """
    extents, uncovered = _extents(context, which, k, context.words.function_terms)
    surface = context.words.surface
    gaps_of: list[list[Gap]] = []
    for row, question in enumerate(which.tolist()):
        words = [surface[term] for term in uncovered[row]]
        gaps = []
        for name, level in _rank(extents, row):
            quoted_words = _name_words(name, context.questions[question], words, context)
            description = _describe(name, float(extents[name][row]), k, quoted_words)
            gaps.append(Gap(description, SEVERITIES[level], name))
        gaps_of.append(gaps)
    return gaps_of


def mitigations(context: ExpansionContext, which: IntArray, k: int) -> list[list[ExpansionName]]:
    """Name the expansions that may mend what the top k lack, the severest first.

    Every word counts here, as it did when `LEVELS` were set.
    """
    extents, _ = _extents(context, which, k)
    return [[name for name, _ in _rank(extents, row)] for row in range(len(which))]


def _rank(extents: dict[ExpansionName, FloatArray], row: int) -> list[tuple[ExpansionName, int]]:
    """Return the gaps of one question with the index of their severity, the severest first."""
    passed = {
        name: sum(float(extents[name][row]) > level for level in levels)
        for name, levels in LEVELS.items()
    }
    # an undefined extent (NaN) passes no level, so it is no gap
    gaps = [(name, count - 1) for name, count in passed.items() if count]
    return sorted(gaps, key=lambda gap: gap[1], reverse=True)


def _name_words(
    name: ExpansionName, question: str, uncovered: list[str], context: ExpansionContext
) -> str:
    """Quote the question's words that a gap concerns; empty if the gap concerns no words."""
    words: list[str] = []
    if name in {"synonym", "hypernym", "negative_sampling"}:
        words = uncovered
    elif name == "code_pattern":
        n_terms, runs = context.batch.space.n_terms, find_runs(question)
        words = [
            run
            for run, row in zip(runs, context.words.table.query_terms(runs), strict=True)
            if is_identifier(run)
            or any(term >= n_terms and term not in context.words.function_terms for term in row)
        ]
    chosen = list(dict.fromkeys(filter(None, words)))[:NAMED]
    return ", ".join(f"“{quoted(word, WORD_CHARS)}”" for word in chosen)


def _describe(name: ExpansionName, extent: float, k: int, terms: str) -> str:
    """Describe a gap of an extent in [0, 1]; `terms` are quoted words or empty."""
    share = f"{100 * extent:.0f} %"
    words = f": {terms}" if terms else ""
    return {
        "synonym": f"the first {k} results lack {share} of the question's words, weighted by"
        f" rarity{words}",
        "related_concept": f"no single result holds more than {100 * (1 - extent):.0f} % of the"
        " question's words, weighted by rarity",
        "code_pattern": "the corpus writes identifiers or words of the question in another"
        f" way{words}",
        "reformulation": f"{share} of the first {k} results are not among those of a second"
        " retriever",
        "hypernym": f"the question's words are rare and not all of them are found{words}",
        "negative_sampling": f"the first {k} results are much alike and leave out words of the"
        f" question{words}",
        "hyponym": "the question's words are general and no result is far ahead among the"
        f" first {k}",
    }[name]


def _extents(
    context: ExpansionContext, which: IntArray, k: int, left_out_terms: frozenset[int] = frozenset()
) -> tuple[dict[ExpansionName, FloatArray], list[list[int]]]:
    """Compute the extent of each gap in [0, 1], [n] each; NaN for an undefined extent.

    `left_out_terms` are no part of a question. Also returns the known terms of each question that
    no chunk of the top k holds, rarest first.
    """
    from scipy.sparse import csr_array

    batch, space = context.batch, context.batch.space
    rows, raw, asked_terms = batch.rows[which, :k], batch.raw[which, :k], batch.known[which]
    asked_terms.data[np.isin(asked_terms.indices, list(left_out_terms))] = 0
    asked_terms.eliminate_zeros()
    retrieved, most = rows >= 0, float(space.idf.max(initial=1.0))

    # Shares of each question's idf that the chunks hold: together, the best one, and the first.
    asked = weigh_by_idf(space, asked_terms)
    strangers = (set(batch.query_terms[place]) - left_out_terms for place in which.tolist())
    n_unknown = [sum(term >= space.n_terms for term in terms) for terms in strangers]
    missing = np.array(n_unknown, dtype=np.float64) * most
    total = np.asarray(asked.sum(axis=1)).ravel() + missing
    is_empty, total = total == 0, np.maximum(total, 1e-9)
    covered_idf = np.zeros((len(which), rows.shape[1]))
    union = csr_array(asked.shape, dtype=np.float64)
    for place in range(rows.shape[1]):
        present = space.counts[np.maximum(rows[:, place], 0)] > 0
        covered = asked.multiply(present).multiply(retrieved[:, [place]].astype(float)).tocsr()
        covered_idf[:, place] = np.asarray(covered.sum(axis=1)).ravel()
        union = union.maximum(covered)
    together = np.asarray(union.sum(axis=1)).ravel() / total + is_empty
    best = covered_idf.max(axis=1, initial=0.0) / total + is_empty
    first = (covered_idf[:, 0] if covered_idf.shape[1] else np.zeros(len(which))) / total
    left = (asked - union).tocsr()
    uncovered = []
    for start, end in itertools.pairwise(left.indptr):
        terms, values = left.indices[start:end], left.data[start:end]
        ranked = np.lexsort((terms, -values))
        uncovered.append([int(terms[at]) for at in ranked if values[at] > 0])

    counts, n_found = np.diff(asked_terms.indptr), retrieved.sum(axis=1)
    query = np.repeat(np.arange(len(which)), counts)
    rarity = np.bincount(
        query, space.idf[asked_terms.indices] / max(most, 1e-9), minlength=len(which)
    )
    rarity = np.where(counts > 0, rarity / np.maximum(counts, 1), np.nan)
    none = flat = np.full(len(which), np.nan)
    if rows.shape[1]:
        top = raw[:, 0]
        last = np.take_along_axis(raw, np.maximum(n_found - 1, 0)[:, None], axis=1)[:, 0]
        flat = np.where((n_found > 1) & (top > 0), last / np.where(top > 0, top, 1.0), np.nan)
    runs = [find_runs(text) for text in context.texts(which)]
    identifiers = np.array(
        [sum(map(is_identifier, of_question)) / max(len(of_question), 1) for of_question in runs]
    )
    left_out, others = np.clip(1.0 - together, 0.0, 1.0), batch.other_rows
    return {
        "synonym": left_out,
        "related_concept": np.clip(1.0 - best, 0.0, 1.0),
        "code_pattern": np.maximum(missing / total, identifiers * (1.0 - first)),
        "reformulation": none if others is None else 1.0 - _overlap(rows, others[which, :k]),
        "hypernym": rarity * left_out**0.5,
        "negative_sampling": _alikeness(context.words.chunk_vectors, rows) * (together < 1.0),
        "hyponym": (1.0 - rarity) * flat,
    }, uncovered


def _overlap(rows: Int32Array, others: Int32Array) -> FloatArray:
    """Compute the share of the shorter list that the other list holds; NaN if one is empty."""
    same = (rows[:, :, None] == others[:, None, :]) & (rows >= 0)[:, :, None]
    both = same.any(axis=2).sum(axis=1)
    size = np.minimum((rows >= 0).sum(axis=1), (others >= 0).sum(axis=1))
    return np.where(size > 0, both / np.maximum(size, 1), np.nan)


def _alikeness(vectors: Float32Array, rows: Int32Array) -> FloatArray:
    """Compute the mean cosine of retrieved chunks with each other; NaN for fewer than two."""
    retrieved = rows >= 0
    sums = np.where(retrieved[:, :, None], vectors[np.maximum(rows, 0)], 0.0).sum(axis=1)
    count = retrieved.sum(axis=1)
    pairs = (np.einsum("nd,nd->n", sums, sums) - count) / np.maximum(count * (count - 1), 1)
    return np.where(count > 1, pairs, np.nan).astype(np.float64)
