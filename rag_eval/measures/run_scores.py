"""Scores of the stored runs: every wording and seed of a strategy, and the gold as arrays."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, Ranges, find_overlaps, number
from rag_eval.core.config import GoldSetConfig
from rag_eval.core.records import Figure
from rag_eval.core.strategy import Strategy
from rag_eval.core.types import Level, Target
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.intervals import MeasureRecord, aggregate, within_query
from rag_eval.measures.overlap import NamedGold, SharedGold
from rag_eval.measures.ranking import Qrels, Spans, collapse, labels_at, score_rankings

LEVELS: tuple[Level, ...] = ("document", "section", "span")
ALWAYS_K = 10
"""Cutoff of the headline figures in the report. Every sweep includes this cutoff."""
MEASURE: Final = "R@10"
"""Measure of single questions in the explorer and of the slices."""


def cutoffs_of(ks: Sequence[int]) -> list[int]:
    """Return the cutoffs of a sweep with the cutoff of the headline figures."""
    return sorted({*ks, ALWAYS_K})


# ---- The gold as arrays.


class GoldFrames(Protocol):
    """Frames of a gold set over one corpus, as the stage of the gold set gives them."""

    queries: pd.DataFrame
    variants: pd.DataFrame
    qrels_document: pd.DataFrame
    qrels_section: pd.DataFrame
    spans: pd.DataFrame
    span_chunks: pd.DataFrame


class GoldArrays:
    """The stored gold as arrays for the measures.

    `chunks` are the units of the rankings by row, with doc_id and section_id: chunks, or the units
    of an external retriever. `carried` (SPAN_CHUNKS) says which units carry which gold span;
    default: the chunks that carry the spans.
    `documents` and `sections` are names by code, and both have a code_of_chunk array [n_chunks].
    `query_of`, [n_variants], is the query row of each variant.
    """

    def __init__(
        self, gold: GoldFrames, chunks: pd.DataFrame, carried: pd.DataFrame | None = None
    ) -> None:
        self.queries, self.variants = gold.queries, gold.variants
        query_index = pd.Index(self.queries["query_id"])
        self.query_of = query_index.get_indexer(self.variants["query_id"])
        self.groups = pd.factorize(self.queries["group_id"], sort=True)[0]
        judged = gold.qrels_document
        answerable = self.queries.loc[self.queries["answerable"], "query_id"]
        self._without_relevant = set(answerable) - set(judged.loc[judged["gain"] > 0, "query_id"])
        documents = pd.Index(sorted(chunks["doc_id"].unique()))
        sections = pd.Index(sorted(chunks["section_id"].unique()))
        self.document_of_chunk = documents.get_indexer(chunks["doc_id"])
        self.section_of_chunk = sections.get_indexer(chunks["section_id"])
        self.qrels_document, self.documents = self._qrels(judged, query_index, documents)
        self.qrels_section, self.sections = self._qrels(gold.qrels_section, query_index, sections)
        carried = gold.span_chunks if carried is None else carried
        self.span_query = query_index.get_indexer(gold.spans["query_id"])
        order = np.argsort(self.span_query, kind="stable")
        owner = self.span_query[order]
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        carrier_span = place[carried["span"].to_numpy(dtype=np.int64)]
        carriers = carried["chunk"].to_numpy(dtype=np.int64)
        by_span = np.argsort(carrier_span, kind="stable")
        self.spans = Spans(
            np.searchsorted(owner, np.arange(len(self.queries) + 1)),
            np.searchsorted(carrier_span[by_span], np.arange(len(order) + 1)),
            carriers[by_span],
        )
        pairs = np.unique(np.stack([owner[carrier_span], carriers], axis=1), axis=0)
        self.qrels_chunk = Qrels.from_rows(
            pairs[:, 0], pairs[:, 1], np.ones(len(pairs), dtype=np.int64), len(self.queries)
        )

    @classmethod
    def of_units(cls, gold: GoldFrames, units: pd.DataFrame) -> "GoldArrays":
        """Take the units of another system, which name no section or one that has no judgement."""
        numbered = pd.Series([f"\x00{row}" for row in range(len(units))], units.index, "str")
        sections = units["section_id"].where(units["section_id"] != "", numbered)
        return cls(gold, units.assign(section_id=sections), _carried_by_units(gold, units))

    @functools.cached_property
    def shared(self) -> SharedGold:
        """The relevant documents that the questions share, for intervals and tests."""
        question = np.repeat(np.arange(len(self.queries)), np.diff(self.qrels_document.indptr))
        relevant = self.qrels_document.gains > 0
        return SharedGold.of_pairs(
            question[relevant], self.qrels_document.items[relevant], len(self.queries)
        )

    @property
    def named_gold(self) -> NamedGold:
        """The shared gold with the ids of the questions."""
        return NamedGold(self.queries["query_id"].tolist(), self.shared)

    @functools.cached_property
    def wordings(self) -> tuple[IntArray, list[str]]:
        """The wording number of each variant, and the names of the wordings by number.

        Number 0 is the original. The paraphrase ids follow in sorted order.
        """
        ids = self.variants["paraphrase_id"]
        names = [ORIGINAL, *sorted(set(ids) - {ORIGINAL})]
        return np.asarray(pd.Index(names).get_indexer(pd.Index(ids)), dtype=np.int64), names

    def rank(self, rows: IntArray, level: Level, variant: IntArray) -> tuple[FloatArray, IntArray]:
        """Rank every gold item at a level in the lists `rows` of wordings, int [n_lists, depth].

        Returns for [n_items] the rank from 1, inf when the list lacks the item, and the position of
        its wording in `variant`.
        """
        query = self.query_of[variant]
        if level == "span":
            ranked = self.spans.rank(rows, query)
            return ranked.rank, ranked.owner
        of_chunk, qrels = self.document_of_chunk, self.qrels_document
        if level == "section":
            of_chunk, qrels = self.section_of_chunk, self.qrels_section
        owner, rank = qrels.rank_relevant(collapse(rows, of_chunk, rows.shape[1]), query)
        return rank, owner

    def _qrels(
        self, frame: pd.DataFrame, query_index: pd.Index, items: pd.Index
    ) -> tuple[Qrels, pd.Index]:
        # trec_eval scores 0 where nothing judged is relevant, so an item that no ranking holds is.
        lost = frame[frame["query_id"].isin(self._without_relevant)].drop_duplicates("query_id")
        frame = pd.concat([frame, lost.assign(item_id="\0" + lost["query_id"], gain=1)])
        # A judged document without text has no chunk. A code of its own makes it a miss.
        items = items.append(pd.Index(sorted(set(frame["item_id"]) - set(items))))
        qrels = Qrels.from_rows(
            query_index.get_indexer(pd.Index(frame["query_id"])),
            items.get_indexer(pd.Index(frame["item_id"])),
            frame["gain"].to_numpy(),
            len(query_index),
        )
        return qrels, items


def _carried_by_units(gold: GoldFrames, units: pd.DataFrame) -> pd.DataFrame:
    """Find the gold spans that units carry, as a SPAN_CHUNKS frame.

    A unit that equals a chunk carries the spans of the chunk. Another unit carries a span when the
    overlap is at least half of the shorter text. Chunks have a second-best rule. Units have none,
    because the other units of the source are unknown.
    """
    spans, place = gold.spans, units[["chunk", "start", "end"]].assign(unit=np.arange(len(units)))
    of_chunks = gold.span_chunks.merge(place[place["chunk"] >= 0], on="chunk")
    documents = pd.Index(spans["doc_id"].unique())
    place["doc"] = documents.get_indexer(pd.Index(units["doc_id"]))
    own = place[(place["chunk"] < 0) & (place["start"] >= 0) & (place["doc"] >= 0)]
    wanted = spans.assign(doc=documents.get_indexer(pd.Index(spans["doc_id"])))
    ranges, extents = (
        Ranges(*(frame[name].to_numpy() for name in ("doc", "start", "end")))
        for frame in (wanted, own)
    )
    span, row = find_overlaps(ranges, extents)
    start = np.maximum(ranges.start[span], extents.start[row])
    end = np.minimum(ranges.end[span], extents.end[row])
    shorter = np.minimum((ranges.end - ranges.start)[span], (extents.end - extents.start)[row])
    carries = 2 * (end - start) >= shorter
    pairs = pd.DataFrame({"span": span, "chunk": own["unit"].to_numpy()[row]})[carries]
    same = of_chunks[["span", "unit"]].rename(columns={"unit": "chunk"})
    carried: pd.DataFrame = pd.concat([same, pairs]).astype(np.int64)
    return carried.sort_values(["span", "chunk"], ignore_index=True)


# ---- The scores of a strategy.


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores of one strategy; a run is one wording under one seed.

    By level: `labels` are the columns of `values`, float [n_runs, n_labels], NaN for an ineligible
    query. `upper`, float [n_runs, n_cutoffs], is P@k if every unjudged item were relevant. `top`,
    int [n_runs, ALWAYS_K], are the first documents. `variant` and `seed`, int [n_runs], name the
    run. `failed`, bool [n_runs], marks errors; an empty result is no error. `ran`, bool [n_runs],
    marks the wordings that the retriever was run on; None means all. Scores of wordings outside the
    run are NaN.
    """

    labels: dict[Level, tuple[str, ...]]
    values: dict[Level, FloatArray]
    upper: dict[Level, FloatArray]
    top: IntArray
    variant: IntArray
    seed: IntArray
    failed: BoolArray
    ran: BoolArray | None = None

    def column(self, level: Level, label: str) -> FloatArray:
        """Return one measure, [n_runs]."""
        return self.values[level][:, self.labels[level].index(label)]

    def cube(self, level: Level, label: str, gold: GoldArrays) -> FloatArray:
        """Return one measure as [n_queries, n_wordings, n_seeds].

        Wording 0 is the original. Wordings that a query lacks are NaN.
        """
        wording, names = gold.wordings
        seeds = np.unique(self.seed)
        result = np.full((len(gold.queries), len(names), len(seeds)), np.nan)
        result[
            gold.query_of[self.variant], wording[self.variant], np.searchsorted(seeds, self.seed)
        ] = self.column(level, label)
        return result

    def per_query(
        self, level: Level, gold: GoldArrays, variants: BoolArray | None = None
    ) -> FloatArray:
        """Average inside each query, [n_queries, n_labels]; NaN for an ineligible query.

        `variants`, bool [n_variants], limits the average to these wordings.
        """
        values = self.values[level]
        if variants is not None:
            values = np.where(variants[self.variant][:, None], values, np.nan)
        return within_query(values, gold.query_of[self.variant], len(gold.queries))

    def ineligible(self, level: Level, gold: GoldArrays) -> BoolArray:
        """Mark the queries that cannot be scored at a level, bool [n_queries]."""
        return np.isnan(self.per_query(level, gold)[:, 0])

    def limited(self, ran: BoolArray, unmeasured: Iterable[Level]) -> "Scores":
        """Blank scores of wordings outside `ran`, bool [n_variants], and of unmeasured levels."""
        has_run, gone = ran[self.variant], set(unmeasured)

        def limit(parts: dict[Level, FloatArray]) -> dict[Level, FloatArray]:
            return {
                level: np.where((has_run & (level not in gone))[:, None], part, np.nan)
                for level, part in parts.items()
            }

        failed = self.failed & has_run
        values, upper = limit(self.values), limit(self.upper)
        return dataclasses.replace(self, values=values, upper=upper, failed=failed, ran=has_run)


def score_strategy(
    rows_by_seed: Mapping[int, IntArray],
    gold: GoldArrays,
    ks: Sequence[int],
    failed: pd.DataFrame | None = None,
) -> Scores:
    """Score every run of a strategy at every level.

    `rows_by_seed` has the rows of the units, int [n_variants, depth], -1 padded. `ks` are the
    cutoffs of the sweep. `failed` has the variant and seed of each retrieval with an error.
    """
    seeds = sorted(rows_by_seed)
    rows = np.concatenate([rows_by_seed[seed] for seed in seeds])
    n_variants, depth = len(gold.query_of), rows.shape[1]
    variant = np.tile(np.arange(n_variants), len(seeds))
    query, cutoffs = gold.query_of[variant], cutoffs_of(ks)
    labels = {level: labels_at(level, cutoffs) for level in LEVELS}
    documents = collapse(rows, gold.document_of_chunk, depth)
    sections = collapse(rows, gold.section_of_chunk, depth)
    values: dict[Level, FloatArray] = {
        "document": score_rankings(documents, gold.qrels_document, query, labels["document"]),
        "section": score_rankings(sections, gold.qrels_section, query, labels["section"]),
        "span": gold.spans.score(rows, gold.qrels_chunk, query, labels["span"]),
    }
    scores = Scores(
        labels,
        values,
        {},
        documents[:, :ALWAYS_K],
        variant,
        np.repeat(np.array(seeds, dtype=np.int64), n_variants),
        np.zeros(len(variant), dtype=bool),
    )
    judged: tuple[tuple[Level, IntArray], ...] = ("document", documents), ("section", sections)
    for level, items in judged:
        parts = [scores.column(level, f"{name}@{k}") for name in ("P", "Judged") for k in cutoffs]
        precision, share = np.stack(parts, axis=1).reshape(len(rows), 2, -1).transpose(1, 0, 2)
        scores.upper[level] = _precision_upper_bounds(precision, share, items, cutoffs)
    if failed is not None:
        at_seed = np.searchsorted(seeds, failed["seed"].to_numpy())
        scores.failed[at_seed * n_variants + failed["variant"].to_numpy()] = True
    return scores


def _precision_upper_bounds(
    precision: FloatArray, judged: FloatArray, items: IntArray, cutoffs: Sequence[int]
) -> FloatArray:
    """Return P@k of rankings `items` if all unjudged items were relevant, [n, n_cutoffs].

    `precision` and `judged` are P@k and Judged@k. Empty positions of a shorter ranking stay
    irrelevant (TREC). P@k itself counts unjudged items as irrelevant, so it is the lower bound.
    """
    n_ranked = np.minimum(np.count_nonzero(items >= 0, axis=1)[:, None], cutoffs)
    return np.asarray(precision + (1 - judged) * n_ranked / cutoffs)


# ---- The scored runs of all strategies.


class RankedRuns:
    """The runs of all strategies with the gold set, scored on demand.

    `runs` maps each strategy to its run, in the order of the configuration. The rankings hold rows
    of the admitted chunks.
    """

    def __init__(
        self,
        config: GoldSetConfig,
        gold_variants: Any,
        admitted_chunks: Any,
        runs: Mapping[str, Any],
    ) -> None:
        self.config = config
        self.gold_variants, self.admitted_chunks, self.runs = gold_variants, admitted_chunks, runs
        self._scores: dict[str, Scores] = {}
        self._units_gold: dict[str, GoldArrays] = {}

    @property
    def names(self) -> list[str]:
        """Names of the strategies, in the order of the configuration."""
        return list(self.runs)

    def spec(self, name: str) -> Strategy:
        """Return the configuration of one strategy."""
        return self.config.strategy(name)

    def first_seed(self, name: str) -> int:
        """Return the first seed of a strategy's run."""
        return int(self.runs[name].about.seeds[0])

    @functools.cached_property
    def gold(self) -> GoldArrays:
        """Gold arrays over the chunks. Queries, variants and groups apply to every strategy."""
        return GoldArrays(self.gold_variants, self.chunks)

    @functools.cached_property
    def chunks(self) -> pd.DataFrame:
        """The names of the chunks, without their texts."""
        names: pd.DataFrame = self.admitted_chunks.names
        return names

    def units(self, name: str) -> pd.DataFrame:
        """Return the units of a strategy by row: chunks, or the UNITS of another system."""
        units: pd.DataFrame | None = self.runs[name].units
        return self.chunks if units is None else units

    def gold_of(self, name: str) -> GoldArrays:
        """Return the gold over the units of one strategy."""
        if not self.runs[name].has_own_units:
            return self.gold
        if name not in self._units_gold:
            self._units_gold[name] = GoldArrays.of_units(self.gold_variants, self.units(name))
        return self._units_gold[name]

    def unmeasured(self, name: str) -> dict[Level, str]:
        """Return the levels at which a strategy cannot be judged, with the reason."""
        levels: dict[Level, str] = self.runs[name].about.unmeasured
        return levels

    def ran(self, name: str) -> BoolArray:
        """Mark the wordings that a strategy was run on, bool [n_variants]."""
        ran, not_run = np.ones(len(self.gold.variants), dtype=bool), self.runs[name].not_run
        if not_run is not None:
            ran[not_run["variant"].to_numpy()] = False
        return ran

    def rows(self, name: str) -> dict[int, IntArray]:
        """Return the rows of the strategy's units by seed, [n_variants, depth], -1 padded."""
        rows: dict[int, IntArray]
        rows = self.runs[name].rows(len(self.gold.variants), self.config.depth)
        return rows

    def scores(self, name: str) -> Scores:
        """Return the scores of one strategy."""
        if name not in self._scores:
            run = self.runs[name]
            scores = score_strategy(self.rows(name), self.gold_of(name), self.config.k, run.failed)
            if run.has_own_units:
                scores = scores.limited(self.ran(name), self.unmeasured(name))
            self._scores[name] = scores
        return self._scores[name]

    def recall(self) -> FloatArray:
        """Average recall at 10 over wordings and seeds: float [n_strategies, n_questions]."""
        level, at = self.config.level, labels_at(self.config.level, cutoffs_of(self.config.k))
        tables = [self.scores(name).per_query(level, self.gold) for name in self.names]
        return np.stack([table[:, at.index(MEASURE)] for table in tables])

    def aggregate(
        self,
        name: str,
        labels: Sequence[str],
        values: FloatArray,
        level: Level,
        failed_value: float = 0.0,
    ) -> list[MeasureRecord]:
        """Aggregate values of every run, float [n_runs, n_labels], at a level.

        A failed retrieval counts as `failed_value`, unless its question is ineligible.
        """
        gold, scores = self.gold, self.scores(name)
        return aggregate(
            labels,
            values,
            gold.shared,
            query_of=gold.query_of[scores.variant],
            failed=scores.failed,
            failed_value=failed_value,
            ineligible=scores.ineligible(level, gold),
        )


# ---- Judgements of the gold on each retrieval.


@dataclasses.dataclass(frozen=True)
class RunJudgements:
    """The runs of one strategy, judged at the headline level.

    All arrays are [n_runs]. `variant` and `seed` name the run. `first` is the rank of the first
    gold item, inf when none is within the depth. `recall` is the share of the gold in the top K.
    Both are NaN for questions without gold and for wordings outside the run. `failed` says whether
    the retriever ended in an error.
    """

    variant: IntArray
    seed: IntArray
    first: FloatArray
    recall: FloatArray
    failed: BoolArray

    def missed(self, target: Target, k: int) -> FloatArray:
        """Return the target [n_runs]: 1 for a miss, 0 for a hit, or the missed share.

        Runs without a judgement are NaN.
        """
        if target == "miss_frac":
            return 1 - self.recall
        value = self.first if target == "miss_any" else self.recall
        missed = value > k if target == "miss_any" else value < 1
        return np.where(np.isnan(value), np.nan, missed.astype(np.float64))


def judge_runs(runs: RankedRuns, name: str) -> RunJudgements:
    """Judge the runs of one strategy. A failed retrieval counts as an empty result."""
    level, scores = runs.config.level, runs.scores(name)
    reciprocal = scores.column(level, "RR")
    recall = scores.column(level, f"R@{runs.config.uncertainty.k}")
    with np.errstate(divide="ignore"):
        first = np.where(np.isnan(reciprocal), np.nan, 1 / reciprocal)
    first = np.asarray(np.round(first, 6), dtype=np.float64)
    return RunJudgements(scores.variant, scores.seed, first, recall, scores.failed)


# ---- Figures of the report.


def interval_fields(record: MeasureRecord) -> dict[str, object]:
    """Write the fields of `Figure` for a record."""
    floats = {name: number(getattr(record, name)) for name in ("value", "ci_low", "ci_high")}
    counts = {name: getattr(record, name) for name in ("n_attempted", "n_scored", "n_ineligible")}
    return {**floats, **counts, "n_effective": number(record.n_effective)}


def figure_of(record: MeasureRecord, reason: str | None = None) -> Figure:
    """Make a figure of the report, with the reason for a missing value."""
    why = {} if reason is None else {"value": reason}
    return Figure.model_validate({**interval_fields(record), "why": why})
