"""Ranking measures of many rankings at once, computed by ir-measures.

Belongs here: handing rankings and relevance judgements to ir-measures as cheaply as possible. Not here: collapsing chunks to
documents (`levels`), averages and intervals (`aggregate`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.measures.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    as_codes,
    as_rankings,
    csr,
    expand,
    ranks,
)
from rag_eval.measures.labels import parse_label


class Qrels(NamedTuple):
    """Judgements of every query in CSR form.

    Parameters
    ----------
    indptr
        `[n_queries + 1]`; query q was judged on the entries `indptr[q]` to `indptr[q + 1]`.
    items, gains
        `[n_judgements]` each: item code, and relevance grade; 0 or less = judged not relevant.
    """

    indptr: IntArray
    items: IntArray
    gains: IntArray

    @classmethod
    def from_rows(
        cls, query_codes: ArrayLike, item_codes: ArrayLike, gains: ArrayLike, n_queries: int
    ) -> "Qrels":
        """Build from long form: one (query, item, gain) a row, in any order, no pair twice."""
        indptr, items, grades = csr(query_codes, n_queries, item_codes, gains)
        return cls(indptr, items, grades)

    @property
    def n_relevant(self) -> IntArray:
        """Number of relevant items of each query, `[n_queries]`; where it is 0 the query is ineligible."""
        query = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        return np.bincount(query[self.gains > 0], minlength=len(self.indptr) - 1)


def score_rankings(
    items: ArrayLike, qrels: Qrels, query_of: ArrayLike, labels: Sequence[str]
) -> FloatArray:
    """Score every ranking under every label.

    Parameters
    ----------
    items
        `[n_rankings, depth]` item codes, best first, -1 = padding, no item twice in a row.
    qrels
        Judgements, by query code.
    query_of
        `[n_rankings]` query code of each ranking.
    labels
        ir-measures names: `R@10`, `Success@5`, `RR`, `RR@10`, `nDCG@10`, `P@5`, `AP`, `Judged@10`.

    Returns
    -------
    array
        `[n_rankings, n_labels]` in [0, 1]. A ranking without items scores 0. A ranking of a query without relevant items is NaN
        under every label: there is nothing to find, so it is ineligible, neither 0 nor 1.

    Raises
    ------
    InputError
        An unknown label.
    ValueError
        Arrays of the wrong shape, padding before an item, or a judged item twice in a ranking.

    Notes
    -----
    A measure depends on a ranking only through the gains at its positions and the gains it missed. So documents are renamed by
    their position, which lets all rankings of one length share one run dictionary; rankings with the same pattern of gains (both
    seeds, say) are scored once; and no ranking is passed deeper than the deepest cutoff asked for.
    """
    rankings, query = as_rankings(items, "items"), as_codes(query_of, "query_of")
    if len(rankings) != len(query):
        raise ValueError(f"{len(rankings)} rankings but query_of has {len(query)} rows")
    cutoffs = {name: parse_label(name)[1] for name in labels}
    scores = np.full((len(rankings), len(labels)), np.nan)
    eligible = np.flatnonzero(qrels.n_relevant[query] > 0)
    if not len(eligible) or not labels:
        return scores
    judged = _judged_pairs(rankings[eligible], qrels, query[eligible])
    for whole in (
        False,
        True,
    ):  # measures without a cutoff need the whole ranking, the others must not pay for it
        chosen = [name for name in cutoffs if (cutoffs[name] is None) == whole]
        if chosen:
            depth = (
                rankings.shape[1]
                if whole
                else min(rankings.shape[1], max(cutoffs[name] or 0 for name in chosen))
            )
            values = _score(
                judged, np.count_nonzero(rankings[eligible, :depth] >= 0, axis=1), depth, chosen
            )
            for column, name in enumerate(labels):
                if name in chosen:
                    scores[eligible, column] = values[:, chosen.index(name)]
    return scores


def relevant_ranks(
    items: ArrayLike, qrels: Qrels, query_of: ArrayLike
) -> tuple[IntArray, FloatArray]:
    """Rank of every relevant item of every ranking.

    Parameters
    ----------
    items, qrels, query_of
        As for `score_rankings`.

    Returns
    -------
    owner, rank
        `[n_pairs]` each: the ranking, and the rank from 1, inf where the ranking lacks the item.
    """
    rankings, query = as_rankings(items, "items"), as_codes(query_of, "query_of")
    owner, entry = expand(qrels.indptr, query)
    relevant = qrels.gains[entry] > 0
    owner = owner[relevant]
    found = ranks(rankings, owner, qrels.items[entry[relevant]])
    return owner, np.where(found > 0, found, np.inf)


class _Judged(NamedTuple):
    """Every (ranking, judged item) pair, ordered by ranking."""

    row: IntArray
    rank: IntArray
    gain: IntArray
    profile: IntArray  # [n_rankings]: rankings of equal profile have the same gains to find


def _judged_pairs(rankings: IntArray, qrels: Qrels, query: IntArray) -> _Judged:
    row, entry = expand(qrels.indptr, query)
    rank = ranks(rankings, row, qrels.items[entry])
    gain = np.maximum(qrels.gains[entry], 0)
    n_queries = len(qrels.indptr) - 1
    order = np.lexsort((qrels.gains, np.repeat(np.arange(n_queries), np.diff(qrels.indptr))))
    gains = np.maximum(qrels.gains[order], 0)
    codes: dict[bytes, int] = {}
    bounds = zip(qrels.indptr[:-1].tolist(), qrels.indptr[1:].tolist(), strict=True)
    relevant = (gains[start:stop] for start, stop in bounds)
    profile = np.fromiter(
        (codes.setdefault(part[part > 0].tobytes(), len(codes)) for part in relevant),
        np.int64,
        n_queries,
    )
    return _Judged(row, rank, gain, profile[query])


def _score(judged: _Judged, lengths: IntArray, depth: int, labels: list[str]) -> FloatArray:
    """Values `[n_rankings, n_labels]` of rankings cut at `depth`."""
    found: BoolArray = (judged.rank > 0) & (judged.rank <= depth)
    pattern = np.full((len(lengths), depth + 2), -1, dtype=np.int32)
    pattern[:, 0], pattern[:, 1] = judged.profile, lengths
    pattern[judged.row[found], judged.rank[found] + 1] = judged.gain[found]
    _, first, same = np.unique(
        pattern.view(f"V{pattern.itemsize * (depth + 2)}").ravel(),
        return_index=True,
        return_inverse=True,
    )

    number = np.full(len(lengths), -1)
    number[first] = np.arange(len(first))
    kept = np.flatnonzero(
        (number[judged.row] >= 0) & (found | (judged.gain > 0))
    )  # unjudged and missed irrelevant items change nothing
    order = kept[np.argsort(number[judged.row[kept]], kind="stable")]
    counts = np.bincount(number[judged.row[order]], minlength=len(first))
    ends = np.cumsum(counts)
    within = np.arange(len(order)) - np.repeat(ends - counts, counts)
    names = [
        str(position) for position in range(depth + int(counts.max(initial=0)))
    ]  # by position; what was missed gets the names after
    item = np.array(names, dtype=object)[
        np.where(found[order], judged.rank[order] - 1, depth + within)
    ].tolist()
    gain = judged.gain[order].tolist()
    shared = {
        n: {name: float(depth - at) for at, name in enumerate(names[:n])}
        for n in np.unique(lengths).tolist()
    }
    qrels = {
        str(i): dict(zip(item[end - n : end], gain[end - n : end], strict=True))
        for i, (end, n) in enumerate(zip(ends.tolist(), counts.tolist(), strict=True))
    }
    run = {
        str(i): shared[n] for i, n in enumerate(lengths[first].tolist()) if n
    }  # an empty ranking is left out: ir-measures gives it 0
    return _call_ir_measures(qrels, run, labels)[same]


def _call_ir_measures(
    qrels: dict[str, dict[str, int]], run: dict[str, dict[str, float]], labels: list[str]
) -> FloatArray:
    import ir_measures

    # Built from its parts: ir_measures.parse_measure needs ast.Num, which Python 3.12 deprecates and 3.14 lacks.
    parts = [parse_label(name) for name in labels]
    measures = [
        getattr(ir_measures, name) if cutoff is None else getattr(ir_measures, name) @ cutoff
        for name, cutoff in parts
    ]
    column = {measure: at for at, measure in enumerate(measures)}
    values = np.zeros((len(qrels), len(labels)))
    for metric in ir_measures.iter_calc(measures, qrels, run):
        values[int(metric.query_id), column[metric.measure]] = metric.value
    return values
