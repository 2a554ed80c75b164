"""Signals of a miss: cheap figures of a ranked list, vectorised over the batch. They are signals, never confidence.

Belongs here: the list of signals and the one function that computes them all. What each means stands in its module.
"""

import dataclasses
from typing import Final

import numpy as np

from rag_eval.uncertainty.batch import FloatArray, RankedBatch
from rag_eval.uncertainty.signals.agreement import agreement, cross_scores
from rag_eval.uncertainty.signals.coverage import coverage
from rag_eval.uncertainty.signals.evidence import Evidence, Postings
from rag_eval.uncertainty.signals.score_shape import score_shape
from rag_eval.uncertainty.signals.specificity import specificity

FAMILIES: Final = (score_shape, coverage, agreement, cross_scores, specificity)
SIGNALS: Final[tuple[str, ...]] = (
    *("tail_ratio", "top_gap", "score_sd", "wig", "nqc", "cut_gap"),
    *("cover_union", "cover_best", "cover_top", "cover_rarest"),
    *("overlap", "rbo", "other_first", "first_in_other"),
    *("lexical_top", "lexical_mean", "lexical_other", "cosine_top", "cosine_mean", "cosine_other"),
    *("idf_mean", "idf_max", "length", "unknown"),
)
SINGLE_PREDICTORS: Final[tuple[str, ...]] = ("nqc", "wig", "tail_ratio", "cover_union")
"""Signals that are reported alone too, as others use them."""

BLOCK_PLACES = 200_000
"""Places of lists (queries x K) that are looked at together: bounds the memory."""


def signals(batch: RankedBatch, k: int) -> FloatArray:
    """All SIGNALS of a batch.

    Parameters
    ----------
    batch
        n ranked lists.
    k
        Cutoff of the target, at least 1.

    Returns
    -------
    array
        float64 [n, len(SIGNALS)], NaN where a signal is not defined for a query.

    Raises
    ------
    ValueError
        k is under 1.
    """
    if k < 1:
        raise ValueError(f"k: found {k}, accepted at least 1")
    found = np.full((len(batch), len(SIGNALS)), np.nan)
    postings = Postings(batch.space)
    step = max(1, BLOCK_PLACES // (10 * k))
    for start in range(0, len(batch), step):
        block = slice(start, start + step)
        evidence = Evidence(_rows(batch, block), k, postings)
        by_name = {name: values for family in FAMILIES for name, values in family(evidence).items()}
        found[block] = np.stack([by_name[name] for name in SIGNALS], axis=1)
    return found


def _rows(batch: RankedBatch, block: slice) -> RankedBatch:
    """Part of a batch; what is not a list of queries is shared."""
    names = ("rows", "raw", "norm", "query_terms", "other_rows", "other_raw", "query_vectors", "question")
    parts = {name: getattr(batch, name) for name in names}
    return dataclasses.replace(batch, **{name: part[block] for name, part in parts.items() if part is not None})
