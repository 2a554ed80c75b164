"""Ranking measures of many rankings at once, computed by ir-measures."""

import dataclasses
import difflib
import itertools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.core.arrays import (
    FloatArray,
    IntArray,
    expand_ranges,
)
from rag_eval.core.errors import InputError, quoted

if TYPE_CHECKING:
    from rag_eval.core.types import Level

# ---- Joins between rankings and ragged lists, without a loop over documents.

PADDING = -1


def as_codes(codes: ArrayLike, name: str, ndim: int = 1) -> IntArray:
    """Return integers of the wanted number of dimensions as int64, else raise `ValueError`."""
    array = np.asarray(codes)
    if array.ndim != ndim or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"{name}: {array.ndim}-dimensional {array.dtype}; accepted: {ndim}-dimensional integers"
        )
    return array.astype(np.int64, copy=False)


def as_rankings(rankings: ArrayLike, name: str) -> IntArray:
    """Return rankings [n, depth] as int64.

    Raises `ValueError` if padding precedes an item, or for an item that is in a ranking twice,
    because every measure would count it twice.
    """
    array = as_codes(rankings, name, ndim=2)
    gaps = (array[:, 1:] >= 0) & (array[:, :-1] < 0)
    if gaps.any():
        row = int(np.argmax(gaps.any(axis=1)))
        raise ValueError(f"{name}: row {row} has padding before an item; accepted: -1 at the end")
    ordered = np.sort(array, axis=1)
    repeats = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if repeats.any():
        row = int(np.argmax(repeats.any(axis=1)))
        raise ValueError(f"{name}: row {row} has an item more than once; accepted: each item once")
    return array


def as_values(values: ArrayLike) -> FloatArray:
    """Return values [n] or [n, m] as floats [n, m]."""
    array = np.asarray(values, dtype=np.float64)
    return array[:, None] if array.ndim == 1 else array


def expand(indptr: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """List every entry of CSR rows, in order; `rows` may name a row several times.

    Returns the position in `rows` that an entry belongs to, and the position of the entry.
    """
    return expand_ranges(indptr[rows], indptr[rows + 1] - indptr[rows])


def ranks(rankings: IntArray, rows: IntArray, items: IntArray) -> IntArray:
    """Find the rank, from 1, of item `items[i]` in ranking `rows[i]`; 0 for an absent item."""
    n, depth = rankings.shape
    if not len(items) or not rankings.size:
        return np.zeros(len(items), dtype=np.int64)
    width = max(int(rankings.max()), int(items.max())) + 1
    wanted, inverse = np.unique(rows * width + items, return_inverse=True)
    keys = (rankings + np.arange(n)[:, None] * width).ravel()
    # Keys rise from ranking to ranking, so neighbouring searches touch neighbouring memory. That is
    # faster than sorting the rankings.
    at = np.minimum(np.searchsorted(wanted, keys), len(wanted) - 1)
    hits = np.flatnonzero((wanted[at] == keys) & (rankings.ravel() >= 0))
    rank: IntArray = np.zeros(len(wanted), dtype=np.int64)
    rank[at[hits]] = hits % depth + 1
    result: IntArray = rank[inverse]
    return result


# ---- The one list of ranking measures, and their names.


@dataclasses.dataclass(frozen=True)
class Measure:
    """A ranking measure of ir-measures. To add a measure, add a line to MEASURES."""

    label: str
    """Name in ir-measures and on screen, such as `R`."""
    name: str
    """Name in JSON, MLflow and `acceptance`, such as `recall`."""
    is_swept: bool = False
    """Whether every run measures it at each k of the gold set."""
    always: str = ""
    """Label that every run measures whatever its k, such as `nDCG@10`; empty for none."""
    needs_cutoff: bool = False
    of_spans: Callable[["SpanRanks", int | None], FloatArray] | None = None
    """Function of the value over gold spans; None if the value over carrier chunks is equal."""
    aliases: str = ""
    """Names in trec_eval, ranx, BEIR and other tools besides `label` and `name`, without `_`."""
    has_spans: bool = True
    """Whether spans can be scored; `Judged` cannot, because unquoted text was not judged."""


MEASURES = (
    Measure("R", "recall", is_swept=True, needs_cutoff=True, of_spans=lambda at, k: at.recall(k)),
    Measure(
        "Success",
        "success",
        is_swept=True,
        needs_cutoff=True,
        of_spans=lambda spans, k: spans.success(k),
        aliases="hit hits hitrate hr accuracy",
    ),
    Measure("P", "precision", is_swept=True, needs_cutoff=True),
    Measure(
        "RR",
        "mrr",
        always="RR",
        of_spans=lambda spans, k: spans.reciprocal(k),
        aliases="reciprank reciprocalrank meanreciprocalrank",
    ),
    Measure("nDCG", "ndcg", always="nDCG@10"),
    Measure("AP", "map", aliases="averageprecision meanaverageprecision"),
    Measure("Judged", "judged", is_swept=True, has_spans=False),
)
"""All ranking measures.

Success@k is also called "hit rate" and, wrongly, "recall@k". The mean of RR is MRR.
"""
_BY_LABEL = {measure.label: measure for measure in MEASURES}
_BY_NAME = {
    name.casefold(): measure
    for measure in MEASURES
    for name in (measure.label, measure.name, *measure.aliases.split())
}
_LABEL = re.compile(r"([A-Za-z _-]{1,40}?)(?:(?:_cut|_at)?[@_.]([1-9]\d{0,5}|[kK]))?")


def parse_label(label: str) -> tuple[str, int | None]:
    """Split a label into measure and cutoff: `R@10` is ("R", 10), `RR` is ("RR", None).

    The usual names of other tools are read too: `recall@10`, `ndcg_cut_10`, `P_5`, `recip_rank`,
    `hit_rate@5`, `MAP`. Raises `InputError` for a label that MEASURES does not have.
    """
    match = _LABEL.fullmatch(label)
    name = re.sub("[ _-]", "", match[1]).casefold() if match else ""
    measure, cutoff = _BY_NAME.get(name), match[2] if match else None
    if measure and (cutoff.isdecimal() if cutoff else not measure.needs_cutoff):
        return measure.label, int(cutoff) if cutoff else None
    accepted = ", ".join(
        f"{one.label}@k" if one.needs_cutoff else f"{one.label}, {one.label}@k" for one in MEASURES
    )
    near = [measure.label] if measure else difflib.get_close_matches(name, _BY_NAME, n=1)
    at = cutoff if cutoff and cutoff.isdecimal() else "10"
    hint = f"; did you mean {_BY_NAME[near[0].casefold()].label}@{at}?" if near else ""
    message = f"no such ranking measure{hint}"
    raise InputError.of("unknown_measure", message, found=quoted(label), accepted=accepted)


def machine_name(label: str) -> str:
    """Return the name for JSON, MLflow and `acceptance`: `R@10` is `recall_at_10`."""
    name, cutoff = parse_label(label)
    machine = _BY_LABEL[name].name
    return machine if cutoff is None else f"{machine}_at_{cutoff}"


def find_machine_name(name: str) -> str:
    """Return the machine name of a measure for any of its names; another text stays as it is."""
    try:
        return machine_name(name)
    except InputError:
        return name


def labels_at(level: "Level", ks: Sequence[int]) -> tuple[str, ...]:
    """List the labels that every run measures at a level, for the k of its gold set."""
    measures = [one for one in MEASURES if one.has_spans or level != "span"]
    swept = {one.label: [f"{one.label}@{k}" for k in ks] for one in measures if one.is_swept}
    judged = swept.pop("Judged", [])
    always = [one.always for one in measures if one.always]
    return (*itertools.chain.from_iterable(swept.values()), *always, *judged)


# ---- Scores of rankings of documents, sections or chunks.


class Qrels(NamedTuple):
    """Judgements of every query in CSR form.

    Query q was judged on the entries from `indptr[q]` to `indptr[q + 1]` of `items` (codes) and
    `gains` (grades; 0 or less is judged not relevant).
    """

    indptr: IntArray
    items: IntArray
    gains: IntArray

    @classmethod
    def from_rows(
        cls, query_codes: ArrayLike, item_codes: ArrayLike, gains: ArrayLike, n_queries: int
    ) -> "Qrels":
        """Build judgements from rows (query, item, gain) in any order, without repeated pairs."""
        query = as_codes(query_codes, "query_codes")
        order = np.argsort(query, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(query, minlength=n_queries))])
        items, grades = as_codes(item_codes, "item_codes"), as_codes(gains, "gains")
        return cls(indptr.astype(np.int64), items[order], grades[order])

    @property
    def n_relevant(self) -> IntArray:
        """Number of relevant items of each query, [n_queries]; a query with 0 is ineligible."""
        query = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        return np.bincount(query[self.gains > 0], minlength=len(self.indptr) - 1)

    def rank_relevant(self, items: ArrayLike, query_of: ArrayLike) -> tuple[IntArray, FloatArray]:
        """Rank every relevant item in every ranking; arguments as for `score_rankings`.

        Returns [n_pairs] each: the ranking, and the rank from 1, inf where the ranking lacks the
        item.
        """
        rankings, query = as_rankings(items, "items"), as_codes(query_of, "query_of")
        owner, entry = expand(self.indptr, query)
        relevant = self.gains[entry] > 0
        owner = owner[relevant]
        rank = ranks(rankings, owner, self.items[entry[relevant]])
        return owner, np.where(rank > 0, rank, np.inf)


def score_rankings(
    items: ArrayLike, qrels: Qrels, query_of: ArrayLike, labels: Sequence[str]
) -> FloatArray:
    """Score every ranking under every label by ir-measures, [n, n_labels].

    `items` is [n, depth] item codes, best first, -1 = padding, no item twice in a row; `query_of`
    [n] has the query of each ranking. Labels are ir-measures names such as `R@10`, `RR`, `AP`.
    A value is 0 for an empty ranking, and NaN for a query without relevant items, which is
    ineligible.
    """
    rankings, query = as_rankings(items, "items"), as_codes(query_of, "query_of")
    if len(rankings) != len(query):
        raise ValueError(f"{len(rankings)} rankings but query_of has {len(query)} rows")
    is_eligible = qrels.n_relevant[query] > 0
    values = np.zeros((len(rankings), len(labels)))
    values[~is_eligible] = np.nan
    scored = np.flatnonzero(is_eligible & (rankings >= 0).any(axis=1))
    cutoffs = np.array([parse_label(label)[1] or 0 for label in labels], dtype=np.int64)
    # Only measures without a cutoff read whole rankings, because deep ones are seldom alike.
    for columns, depth in (
        (np.flatnonzero(cutoffs), cutoffs.max(initial=0)),
        (np.flatnonzero(cutoffs == 0), rankings.shape[1]),
    ):
        if len(scored) and len(columns):
            cut = rankings[scored, :depth]
            parts = _score(cut, qrels, query[scored], [labels[at] for at in columns.tolist()])
            values[np.ix_(scored, columns)] = parts
    return values


def _score(rankings: IntArray, qrels: Qrels, query: IntArray, labels: Sequence[str]) -> FloatArray:
    """Score rankings that are not empty, each pattern of gains once, [n, n_labels]."""
    import ir_measures

    # Do not use ir_measures.parse_measure: it needs ast.Num, which Python 3.14 lacks.
    measures = [
        getattr(ir_measures, name) if cutoff is None else getattr(ir_measures, name) @ cutoff
        for name, cutoff in map(parse_label, labels)
    ]
    first, alike = _find_alike(rankings, qrels, query)
    rows, values = first.tolist(), np.zeros((len(rankings), len(labels)))
    names = np.arange(max(rankings.max(), qrels.items.max()) + 1).astype(str).astype(object)
    scores = np.arange(rankings.shape[1], 0, -1.0).tolist()
    gains, bounds = np.maximum(qrels.gains, 0).tolist(), qrels.indptr
    judgements = {
        code: dict(zip(names[qrels.items[start:end]], gains[start:end], strict=True))
        for code in set(query[rows].tolist())
        for start, end in [bounds[code : code + 2]]
    }
    by_row = {str(row): judgements[query[row]] for row in rows}
    run = {
        str(row): dict(zip(names[ranking[ranking >= 0]], scores, strict=False))
        for row in rows
        for ranking in [rankings[row]]
    }
    column = {measure: at for at, measure in enumerate(measures)}
    for metric in ir_measures.iter_calc(measures, by_row, run):
        values[int(metric.query_id), column[metric.measure]] = metric.value
    return values[first][alike]


def _find_alike(rankings: IntArray, qrels: Qrels, query: IntArray) -> tuple[IntArray, IntArray]:
    """Group rankings whose measures are equal: the first of each group, and the group of each.

    A measure depends on the gains at the ranks and on all gains of the query, not on names, and
    most rankings hold one or two relevant items.
    """
    profiles: dict[bytes, int] = {}
    bounds = itertools.pairwise(qrels.indptr.tolist())
    gains = (np.sort(qrels.gains[start:end]).tobytes() for start, end in bounds)
    profile = np.array([profiles.setdefault(part, len(profiles)) for part in gains])
    owner, entry = expand(qrels.indptr, query)
    rank = ranks(rankings, owner, qrels.items[entry])
    is_ranked = rank > 0
    lowest = int(qrels.gains.min(initial=0))
    unjudged = np.where(rankings >= 0, lowest - 1, lowest - 2)
    pattern = np.column_stack([profile[query], unjudged])
    pattern[owner[is_ranked], rank[is_ranked]] = qrels.gains[entry[is_ranked]]
    keys = np.ascontiguousarray(pattern).view(f"V{pattern.itemsize * pattern.shape[1]}").ravel()
    _, first, alike = np.unique(keys, return_index=True, return_inverse=True)
    return first, alike


# ---- From chunk rankings to the level that is scored: documents, sections, evidence spans.


def collapse(chunks: ArrayLike, group_of_chunk: ArrayLike, depth_out: int) -> IntArray:
    """Turn rankings of chunks into rankings of documents or sections, each at its best rank.

    `chunks` is [n, depth] chunk codes, best first, -1 = padding; `group_of_chunk` has the document
    or section code of each chunk. Returns [n, depth_out] group codes, each once in its row.
    """
    rankings = as_codes(chunks, "chunks", ndim=2)
    group_of = as_codes(group_of_chunk, "group_of_chunk")
    out = np.full((len(rankings), depth_out), PADDING, dtype=np.int64)
    if not rankings.size or not len(group_of):
        return out
    groups = np.where(rankings >= 0, group_of[rankings], PADDING)
    # The sort must be stable, so that the best rank comes first inside a group.
    order = np.argsort(groups, axis=1, kind="stable")
    ordered = np.take_along_axis(groups, order, axis=1)
    leads = ordered >= 0
    leads[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    first = np.zeros_like(leads)
    np.put_along_axis(first, order, leads, axis=1)
    place = np.cumsum(first, axis=1) - 1
    row, column = np.nonzero(first & (place < depth_out))
    out[row, place[row, column]] = groups[row, column]
    return out


class Spans(NamedTuple):
    """Gold spans of every query, and the chunks that carry each span, both in CSR form.

    Query q has the spans from `indptr[q]` to `indptr[q + 1]`. Span s is carried by the chunks
    `carriers[carrier_indptr[s]:carrier_indptr[s + 1]]`. A span without a carrier stays in the
    denominator, because no ranking can find it.
    """

    indptr: IntArray
    carrier_indptr: IntArray
    carriers: IntArray

    def rank(self, chunks: ArrayLike, query_of: ArrayLike) -> "SpanRanks":
        """Find the first chunk that carries each gold span of each ranking.

        `chunks` is [n, depth] chunk codes, best first, -1 = padding. `query_of` is [n].
        """
        rankings, query = as_codes(chunks, "chunks", ndim=2), as_codes(query_of, "query_of")
        owner, span = expand(self.indptr, query)
        pair, entry = expand(self.carrier_indptr, span)
        rank = ranks(rankings, owner[pair], self.carriers[entry])
        best = np.full(len(owner), np.inf)
        np.minimum.at(best, pair, np.where(rank > 0, rank, np.inf))
        return SpanRanks(owner, best, len(query))

    def score(
        self, rows: ArrayLike, qrels: Qrels, query_of: ArrayLike, labels: Sequence[str]
    ) -> FloatArray:
        """Score rankings of chunks, [n, n_labels]; NaN without a gold span.

        `qrels` judges chunks. The carriers of a span are relevant. A measure without `of_spans`
        scores the chunks.
        """
        ranked = self.rank(rows, query_of)
        rules = [(_BY_LABEL[name].of_spans, k) for name, k in map(parse_label, labels)]
        by_chunk = [label for label, (rule, _) in zip(labels, rules, strict=True) if rule is None]
        of_chunks = iter(np.nan_to_num(score_rankings(rows, qrels, query_of, by_chunk)).T)
        columns = [next(of_chunks) if rule is None else rule(ranked, k) for rule, k in rules]
        values = np.stack(columns, axis=1)
        values[np.isnan(ranked.first)] = np.nan
        return values


@dataclasses.dataclass(frozen=True)
class SpanRanks:
    """Ranks of the gold spans of n rankings."""

    owner: IntArray
    """Ranking of each (ranking, span) pair, [n_pairs]."""
    rank: FloatArray
    """Rank, from 1, of the first chunk that carries the span, [n_pairs]; inf without a carrier."""
    n: int

    @property
    def first(self) -> FloatArray:
        """The rank of the first chunk that carries any span, [n]; NaN without a gold span."""
        first = np.full(self.n, np.nan)
        first[self.owner] = np.inf
        np.minimum.at(first, self.owner, self.rank)
        return first

    def recall(self, k: int | None) -> FloatArray:
        """Return the share of the gold spans that the top k chunks carry, [n]."""
        n_spans = np.bincount(self.owner, minlength=self.n).astype(np.float64)
        n_spans[n_spans == 0] = np.nan
        hits = self.owner if k is None else self.owner[self.rank <= k]
        return np.asarray(np.bincount(hits, minlength=self.n) / n_spans)

    def success(self, k: int | None) -> FloatArray:
        """Tell whether any of the top k chunks carries a gold span, [n]."""
        is_hit = (self.first <= (np.inf if k is None else k)).astype(float)
        return np.where(np.isnan(self.first), np.nan, is_hit)

    def reciprocal(self, k: int | None) -> FloatArray:
        """Return 1 / rank of the first chunk that carries a gold span, [n]."""
        first = self.first
        return 1.0 / (first if k is None else np.where(first > k, np.inf, first))
