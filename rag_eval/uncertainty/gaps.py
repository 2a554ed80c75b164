"""Semantic gaps of a retrieval: what of the question the retrieved chunks leave open, how severe that is, and which expansion may mend it.

Belongs here: what can be seen without gold. How likely a gap means a miss is not known until outcomes say so: `miss_likelihood` is absent.
"""

import dataclasses
from typing import Any, Final, Literal

import numpy as np

from rag_eval.records.confidence import Absent, Confidence, as_json
from rag_eval.records.uncertainty import ExpansionName
from rag_eval.uncertainty.batch import FloatArray, IntArray, Rows, Vectors
from rag_eval.uncertainty.expansion.code_pattern import is_identifier, runs_of
from rag_eval.uncertainty.expansion.context import ExpansionContext
from rag_eval.uncertainty.gap_sentences import named_words, sentence

Severity = Literal["low", "medium", "high"]
SEVERITIES: Final[tuple[Severity, ...]] = ("low", "medium", "high")
LEVELS: Final[dict[ExpansionName, tuple[float, float, float]]] = {
    "related_concept": (0.15, 0.3, 0.5),
    "synonym": (0.0, 0.1, 0.3),
    "code_pattern": (0.0, 0.1, 0.3),
    "reformulation": (0.5, 0.7, 0.9),
    "hypernym": (0.0, 0.4, 0.7),
    "negative_sampling": (0.5, 0.7, 0.85),
    "hyponym": (0.3, 0.5, 0.8),
}
"""Extents above which a gap is low, medium, high; the order is that of equally severe ones: what recovered more on one half of SciFact comes first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """One gap.

    Parameters
    ----------
    description
        A sentence; the question's words in it are quoted.
    severity
        From its extent.
    mitigation
        The expansion that may mend it.
    miss_likelihood
        Absent until measured.
    """

    description: str
    severity: Severity
    mitigation: ExpansionName
    miss_likelihood: Confidence = dataclasses.field(
        default_factory=lambda: Absent(reason="uncalibrated")
    )

    def as_json(self) -> dict[str, Any]:
        """Write as a JSON object."""
        return {
            "description": self.description,
            "severity": self.severity,
            "mitigation": self.mitigation,
            "miss_likelihood": as_json(self.miss_likelihood),
        }


@dataclasses.dataclass(frozen=True)
class _Coverage:
    """Idf-weighted coverage of questions by their top K, shares [n]; unknown words count with the largest idf."""

    union: FloatArray
    best: FloatArray
    first: FloatArray
    unknown: FloatArray
    uncovered: list[list[int]]
    """Known terms of each question that no chunk of the top K holds, rarest first."""


def semantic_gaps(context: ExpansionContext, which: IntArray, k: int = 10) -> list[list[Gap]]:
    """Find the gaps of some questions, the severest first.

    Parameters
    ----------
    context
        Questions with their lists.
    which
        Questions to look at.
    k
        Ranks that count as retrieved.
    """
    cover = _coverage(context, which, k)
    extents, words = _extents(context, which, k, cover), context.words
    found: list[list[Gap]] = []
    for row, question in enumerate(which.tolist()):
        text = context.questions[question]
        its = [
            (
                SEVERITIES.index(severity),
                -place,
                Gap(
                    sentence(
                        name,
                        float(extents[name][row]),
                        k,
                        named_words(
                            name,
                            text,
                            [words.surface[term] for term in cover.uncovered[row]],
                            context,
                        ),
                    ),
                    severity,
                    name,
                ),
            )
            for place, name in enumerate(LEVELS)
            if (severity := _severity(name, float(extents[name][row]))) is not None
        ]
        found.append([gap for *_, gap in sorted(its, key=lambda item: item[:2], reverse=True)])
    return found


def _severity(name: ExpansionName, extent: float) -> Severity | None:
    """Severity of an extent; none below the lowest level, or where it is not defined."""
    passed = sum(extent > level for level in LEVELS[name])
    return SEVERITIES[passed - 1] if passed else None


def _coverage(context: ExpansionContext, which: IntArray, k: int) -> _Coverage:
    from scipy.sparse import csr_array

    batch, space = context.batch, context.batch.space
    asked = batch.known[which]
    asked.data = space.idf[asked.indices]
    known = np.asarray(asked.sum(axis=1)).ravel()
    most = float(space.idf.max(initial=1.0))
    missing = (
        np.array(
            [
                len({term for term in batch.query_terms[place] if term >= space.n_terms})
                for place in which.tolist()
            ],
            dtype=np.float64,
        )
        * most
    )
    total = np.maximum(known + missing, 1e-9)
    rows = batch.rows[which, :k]
    held = np.zeros((len(which), rows.shape[1]))
    union = csr_array(asked.shape, dtype=np.float64)
    for place in range(rows.shape[1]):
        there = rows[:, place] >= 0
        present = space.counts[np.maximum(rows[:, place], 0)] > 0
        covered = asked.multiply(present).tocsr()
        covered = covered.multiply(there[:, None].astype(np.float64)).tocsr()
        held[:, place] = np.asarray(covered.sum(axis=1)).ravel()
        union = union.maximum(covered)
    left = (asked - union).tocsr()
    uncovered = []
    for row in range(len(which)):
        part = slice(left.indptr[row], left.indptr[row + 1])
        its, values = left.indices[part], left.data[part]
        uncovered.append(
            [
                int(term)
                for term, value in sorted(
                    zip(its.tolist(), values.tolist(), strict=True),
                    key=lambda pair: (-pair[1], pair[0]),
                )
                if value > 0
            ]
        )
    first = held[:, 0] if held.shape[1] else np.zeros(len(which))
    return _Coverage(
        np.asarray(union.sum(axis=1)).ravel() / total,
        held.max(axis=1, initial=0.0) / total,
        first / total,
        missing / total,
        uncovered,
    )


def _extents(
    context: ExpansionContext, which: IntArray, k: int, cover: _Coverage
) -> dict[ExpansionName, FloatArray]:
    """Extent of each gap in [0, 1], [n] each; NaN where it is not defined."""
    batch, words = context.batch, context.words
    rows, raw = batch.rows[which, :k], batch.raw[which, :k]
    there = rows >= 0
    none = np.full(len(which), np.nan)
    last = (
        np.take_along_axis(raw, np.maximum(there.sum(axis=1) - 1, 0)[:, None], axis=1)[:, 0]
        if rows.shape[1]
        else none
    )
    flat = (
        np.where(
            (there.sum(axis=1) > 1) & (raw[:, 0] > 0),
            last / np.where(raw[:, 0] > 0, raw[:, 0], 1.0),
            np.nan,
        )
        if rows.shape[1]
        else none
    )
    known = batch.known[which]
    idf = words.space.idf[known.indices] / max(float(words.space.idf.max(initial=1.0)), 1e-9)
    counts = np.diff(known.indptr)
    query = np.repeat(np.arange(len(which)), counts)
    mean = np.bincount(query, idf, minlength=len(which)) / np.maximum(counts, 1)
    identifier = np.array(
        [_share_of_identifiers(context.questions[place]) for place in which.tolist()]
    )
    return {
        "synonym": np.clip(1.0 - cover.union, 0.0, 1.0),
        "related_concept": np.clip(1.0 - cover.best, 0.0, 1.0),
        "code_pattern": np.maximum(cover.unknown, identifier * (1.0 - cover.first)),
        "reformulation": none
        if batch.other_rows is None
        else 1.0 - _overlap(rows, batch.other_rows[which, :k]),
        "hypernym": np.where(counts > 0, mean, np.nan)
        * np.clip(1.0 - cover.union, 0.0, 1.0) ** 0.5,
        "negative_sampling": _alike(words.chunk_vectors, rows) * (cover.union < 1.0),
        "hyponym": np.where(counts > 0, 1.0 - mean, np.nan) * flat,
    }


def _share_of_identifiers(question: str) -> float:
    runs = runs_of(question)
    return sum(map(is_identifier, runs)) / len(runs) if runs else 0.0


def _overlap(rows: Rows, others: Rows) -> FloatArray:
    """Share of the shorter list that stands in the other."""
    both = (
        ((rows[:, :, None] == others[:, None, :]) & (rows >= 0)[:, :, None]).any(axis=2).sum(axis=1)
    )
    size = np.minimum((rows >= 0).sum(axis=1), (others >= 0).sum(axis=1))
    return np.where(size > 0, both / np.maximum(size, 1), np.nan)


def _alike(vectors: Vectors, rows: Rows) -> FloatArray:
    """Mean cosine of the retrieved chunks with each other; NaN for fewer than two."""
    there = rows >= 0
    sums = np.where(there[:, :, None], vectors[np.maximum(rows, 0)], 0.0).sum(axis=1)
    count = there.sum(axis=1)
    pairs = (np.einsum("nd,nd->n", sums, sums) - count) / np.maximum(count * (count - 1), 1)
    return np.where(count > 1, pairs, np.nan).astype(np.float64)
