"""What unjudged items could change: bounds of precision-like measures, and which Judged@k stands beside which label.

Belongs here: the two extreme assumptions on unjudged items. Recall-like measures have no bounds: the number of relevant items that
were never judged is unknown, so `Judged@k` stands beside them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.measures.arrays import FloatArray, as_codes, as_rankings, expand, ranks
from rag_eval.measures.labels import parse_label
from rag_eval.measures.ranking import Qrels
from rag_eval.records.problems import InputError


class PrecisionBounds(NamedTuple):
    """P@k of each ranking, `[n]` each; `value` counts unjudged items as irrelevant, as TREC does, so it equals `low`."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


def precision_bounds(
    items: ArrayLike, qrels: Qrels, query_of: ArrayLike, k: int
) -> PrecisionBounds:
    """P@k with all unjudged items irrelevant, and with all of them relevant.

    Parameters
    ----------
    items
        `[n, depth]` item codes, best first, -1 = padding.
    qrels
        Judgements, by query code.
    query_of
        `[n]` query code of each ranking.
    k
        Cutoff; the denominator is k, also for shorter rankings (TREC), whose empty positions are irrelevant under both assumptions.

    Returns
    -------
    PrecisionBounds
        NaN where the query has no relevant item (ineligible).
    """
    if k < 1:
        raise ValueError(f"k is {k}; accepted: 1 or more")
    rankings, query = as_rankings(items, "items")[:, :k], as_codes(query_of, "query_of")
    row, entry = expand(qrels.indptr, query)
    found = ranks(rankings, row, qrels.items[entry]) > 0
    relevant = np.bincount(row[found & (qrels.gains[entry] > 0)], minlength=len(query)).astype(
        np.float64
    )
    judged = np.bincount(row[found], minlength=len(query))
    unjudged = np.count_nonzero(rankings >= 0, axis=1) - judged
    relevant[qrels.n_relevant[query] == 0] = np.nan
    low = relevant / k
    return PrecisionBounds(low, low.copy(), (relevant + unjudged) / k)


def judged_label(label: str) -> str | None:
    """Label of the judgement rate that stands beside a measure: `Judged@10` for `R@10`, `Judged` for `RR`; None for other names."""
    try:
        name, cutoff = parse_label(label)
    except InputError:
        return None
    if name == "Judged":
        return None
    return "Judged" if cutoff is None else f"Judged@{cutoff}"
