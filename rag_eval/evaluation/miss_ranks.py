"""What the gold says of each retrieval: the rank of the first gold, and whether the retrieval missed.

Belongs here: from scores to ranks and targets at the gold set's headline level, one value a run (wording under a seed).
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from rag_eval.evaluation.measure_steps import Runs
from rag_eval.measures.levels import collapse, span_ranks
from rag_eval.measures.ranking import relevant_ranks
from rag_eval.records.uncertainty import Target

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Judged:
    """One strategy's runs, judged.

    Parameters
    ----------
    variant, seed
        int64 [n_runs] which wording under which seed.
    first
        float64 [n_runs] rank of the first gold, inf where none is within the depth, NaN where the question has no gold or the wording was not run.
    recall
        float64 [n_runs] share of the gold in the top K, NaN likewise.
    failed
        bool [n_runs] whether the retriever gave no answer at all.
    """

    variant: npt.NDArray[np.int64]
    seed: npt.NDArray[np.int64]
    first: FloatArray
    recall: FloatArray
    failed: npt.NDArray[np.bool_]

    def value(self, target: Target, k: int) -> FloatArray:
        """The target, float64 [n_runs]: 1 a miss and 0 a hit, or the share missed; NaN where nothing can be judged."""
        if target == "miss_frac":
            return 1 - self.recall
        missed = self.first > k if target == "miss_any" else self.recall < 1
        return np.where(
            np.isnan(self.first if target == "miss_any" else self.recall),
            np.nan,
            missed.astype(np.float64),
        )


def judged(runs: Runs, name: str) -> Judged:
    """Judge one strategy's runs at the headline level; a failed retrieval found nothing."""
    level, k, scores = (
        runs.evaluation.config.level,
        runs.evaluation.config.uncertainty.k,
        runs.scores(name),
    )
    reciprocal, recall = scores.column(level, "RR"), scores.column(level, f"R@{k}")
    with np.errstate(divide="ignore"):
        first = np.where(
            reciprocal > 0, 1 / reciprocal, np.where(np.isnan(reciprocal), np.nan, np.inf)
        )
    return Judged(
        scores.variant,
        scores.seed,
        np.asarray(np.round(first, 6), dtype=np.float64),
        recall,
        scores.failed,
    )


def gold_ranks(runs: Runs, name: str, variant: IntArray, seed: int) -> tuple[FloatArray, IntArray]:
    """Rank every gold item at the headline level, as `judged` ranks the first.

    Parameters
    ----------
    variant
        int64 [n] wordings.
    seed
        The run of theirs that is looked at.

    Returns
    -------
    rank, owner
        float64 and int64 [n_items]: the rank from 1, inf where the list lacks the item, and the place of its wording in `variant`.
    """
    level, gold = runs.evaluation.config.level, runs.gold_of(name)
    rows, query = runs.rows(name)[seed][variant], gold.query_of[variant]
    if level == "span":
        owner, rank = span_ranks(rows, gold.spans, query)
    elif level == "section":
        owner, rank = relevant_ranks(
            collapse(rows, gold.section_of_chunk, rows.shape[1]), gold.qrels_section, query
        )
    else:
        owner, rank = relevant_ranks(
            collapse(rows, gold.document_of_chunk, rows.shape[1]), gold.qrels_document, query
        )
    return rank, owner
