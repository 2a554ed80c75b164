"""Measure stages: ranking measures and stability, from the stored runs."""

import dataclasses
import functools
import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.config import GoldSetConfig, Level
from rag_eval.core.frames import DELTA_S, PER_QUERY
from rag_eval.core.report import (
    Absent,
    AnnRecall,
    BlockedRow,
    ComparedPair,
    DeltaS,
    Figure,
    FilterRow,
    Measure,
    OverlapPair,
    OverlapPart,
    RetrievedTrust,
    Share,
    StabilityPart,
    StrategyStability,
    TrustFilter,
    number,
)
from rag_eval.core.strategy import Strategy
from rag_eval.corpus.chunking import Ranges
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.intervals import MeasureRecord, aggregate, within_query
from rag_eval.measures.paired import PairedComparison, holm, paired_comparison
from rag_eval.measures.ranking import (
    Qrels,
    collapse,
    labels_at,
    machine_name,
    precision_upper_bound,
    score_rankings,
    score_spans,
    span_carriers,
)
from rag_eval.measures.stability import (
    CAUSES,
    DELTA_S_TARGET,
    SAME_DISTANCE,
    ann_recall,
    delta_s,
    flip_matrix,
    lambda_states,
    mean_pairwise_rbo,
    variance_shares,
    wording_range,
    zones,
)
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusChunks,
    EvidenceTrust,
    GoldArrays,
    GoldVariants,
)
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.external import UnitVerdicts, unit_verdicts
from rag_eval.pipeline.retrieval import (
    OpenIndex,
    RestatedPassages,
    RunFacts,
    StrategyRun,
    chosen_kinds,
    guarded_search,
    open_index,
    ready_strategy,
    stability_embedding,
)
from rag_eval.pipeline.runner import (
    Chart,
    Result,
    Stage,
    Table,
    Work,
    count_undefined,
    frame_part,
    json_part,
)
from rag_eval.reporting.terminal import interval as format_interval
from rag_eval.retrieval.dense import ExactSearch, approximate_search
from rag_eval.retrieval.embedding.source import EmbeddingSource
from rag_eval.retrieval.strategies import Request

# ---- Scores of one strategy by level, label and run. A run is one wording under one seed.

LEVELS: tuple[Level, ...] = ("document", "section", "span")
ALWAYS_K = 10
"""Cutoff of the headline figures in the report. Every sweep includes this cutoff."""


def cutoffs_of(ks: Sequence[int]) -> list[int]:
    """Return the cutoffs of a sweep with the cutoff of the headline figures."""
    return sorted({*ks, ALWAYS_K})


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
        wording, names = wording_of(gold)
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


def wording_of(gold: GoldArrays) -> tuple[IntArray, list[str]]:
    """Return the wording number of each variant, and the names of the wordings by number.

    Number 0 is the original. The paraphrase ids follow in sorted order.
    """
    ids = gold.variants["paraphrase_id"]
    names = [ORIGINAL, *sorted(set(ids) - {ORIGINAL})]
    return np.asarray(pd.Index(names).get_indexer(pd.Index(ids)), dtype=np.int64), names


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
    values: dict[Level, FloatArray] = {}
    upper: dict[Level, FloatArray] = {}
    judged: tuple[tuple[Level, IntArray, Qrels], ...] = (
        ("document", documents, gold.qrels_document),
        ("section", collapse(rows, gold.section_of_chunk, depth), gold.qrels_section),
    )
    for level, items, qrels in judged:
        values[level] = score_rankings(items, qrels, query, labels[level])
        bounds = [precision_upper_bound(items, qrels, query, k) for k in cutoffs]
        upper[level] = np.stack(bounds, axis=1)
    values["span"] = score_spans(rows, gold.spans, gold.qrels_chunk, query, labels["span"])
    broken = np.zeros(len(variant), dtype=bool)
    if failed is not None:
        at_seed = np.searchsorted(seeds, failed["seed"].to_numpy())
        broken[at_seed * n_variants + failed["variant"].to_numpy()] = True
    run_seeds = np.repeat(np.array(seeds, dtype=np.int64), n_variants)
    return Scores(labels, values, upper, documents[:, :ALWAYS_K], variant, run_seeds, broken)


# ---- Figures, and the scored runs of all strategies.

COMPARED = ("R@10", "RR", "nDCG@10")


def interval_fields(record: MeasureRecord) -> dict[str, object]:
    return {
        "value": number(record.value),
        "ci_low": number(record.ci_low),
        "ci_high": number(record.ci_high),
        "n_attempted": record.n_attempted,
        "n_scored": record.n_scored,
        "n_ineligible": record.n_ineligible,
        "n_effective": number(record.n_effective),
    }


def figure_of(record: MeasureRecord, reason: str | None = None) -> Figure:
    """Make a figure of the report, with the reason for a missing value."""
    why = {} if reason is None else {"value": reason}
    return Figure.model_validate({**interval_fields(record), "why": why})


def _units_for_gold(units: pd.DataFrame) -> pd.DataFrame:
    """Prepare units for the gold arrays.

    A unit without a known section becomes a section of its own, which no judgement names.
    """
    numbered = pd.Series(
        [f"\x00{row}" for row in range(len(units))], index=units.index, dtype="str"
    )
    return units.assign(section_id=units["section_id"].where(units["section_id"] != "", numbered))


def _carried_by_units(gold: GoldVariants, units: pd.DataFrame) -> pd.DataFrame:
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
    doc = documents.get_indexer(pd.Index(spans["doc_id"]))
    span, carriers = span_carriers(
        Ranges(doc, spans["start"].to_numpy(), spans["end"].to_numpy()),
        Ranges(own["doc"].to_numpy(), own["start"].to_numpy(), own["end"].to_numpy()),
    )
    unit = own["unit"].to_numpy()[carriers]
    frame = pd.DataFrame(
        {
            "span": np.concatenate([of_chunks["span"], span]).astype(np.int64),
            "chunk": np.concatenate([of_chunks["unit"], unit]).astype(np.int64),
        }
    )
    return frame.sort_values(["span", "chunk"], ignore_index=True)


class ScoredRuns:
    """The runs of all strategies with the gold set, scored on demand.

    `runs` maps each strategy to its run, in the order of the configuration. The rankings hold rows
    of the admitted chunks.
    """

    def __init__(
        self,
        config: GoldSetConfig,
        gold_variants: GoldVariants,
        admitted_chunks: AdmittedChunks,
        runs: Mapping[str, StrategyRun],
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
        return next(spec for spec in self.config.strategies if spec.name == name)

    def about(self, name: str) -> RunFacts:
        """Return the facts for the report on one strategy's run."""
        return self.runs[name].about

    def first_seed(self, name: str) -> int:
        """Return the first seed of a strategy's run."""
        return self.about(name).seeds[0]

    @functools.cached_property
    def gold(self) -> GoldArrays:
        """Gold arrays over the chunks. Queries, variants and groups apply to every strategy."""
        return GoldArrays(self.gold_variants, self.chunks)

    @functools.cached_property
    def chunks(self) -> pd.DataFrame:
        """The names of the chunks, without their texts."""
        return self.admitted_chunks.names

    def units(self, name: str) -> pd.DataFrame:
        """Return the units of a strategy by row: chunks, or the UNITS of another system."""
        units = self.runs[name].units
        return self.chunks if units is None else units

    def gold_of(self, name: str) -> GoldArrays:
        """Return the gold over the units of one strategy."""
        if not self.runs[name].has_own_units:
            return self.gold
        if name not in self._units_gold:
            gold, units = self.gold_variants, self.units(name)
            carried = _carried_by_units(gold, units)
            self._units_gold[name] = GoldArrays(gold, _units_for_gold(units), carried)
        return self._units_gold[name]

    def unmeasured(self, name: str) -> dict[Level, str]:
        """Return the levels at which a strategy cannot be judged, with the reason."""
        return self.about(name).unmeasured

    def ran(self, name: str) -> np.ndarray:
        """Mark the wordings that a strategy was run on, bool [n_variants]."""
        ran, not_run = np.ones(len(self.gold.variants), dtype=bool), self.runs[name].not_run
        if not_run is not None:
            ran[not_run["variant"].to_numpy()] = False
        return ran

    def rows(self, name: str) -> dict[int, IntArray]:
        """Return the rows of the strategy's units by seed."""
        return self.runs[name].rows(len(self.gold.variants), self.config.depth)

    def scores(self, name: str) -> Scores:
        """Return the scores of one strategy."""
        if name not in self._scores:
            run = self.runs[name]
            scores = score_strategy(self.rows(name), self.gold_of(name), self.config.k, run.failed)
            if run.has_own_units:
                scores = scores.limited(self.ran(name), self.unmeasured(name))
            self._scores[name] = scores
        return self._scores[name]


def open_runs(evaluation: Evaluation) -> ScoredRuns:
    """Score the runs of an evaluation outside of a stage."""
    runner = evaluation.runner
    runs = {name: runner.get(StrategyRun, name) for name in runner.strategies}
    return score_runs(evaluation.config, runner.get(GoldVariants), runner.get(AdmittedChunks), runs)


_scored: "weakref.WeakKeyDictionary[GoldVariants, ScoredRuns]" = weakref.WeakKeyDictionary()


def score_runs(
    config: GoldSetConfig,
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
    runs: Mapping[str, StrategyRun],
) -> ScoredRuns:
    """Combine runs and gold. Stages of one process with equal inputs share the scores."""
    scored = _scored.get(gold_variants)
    if scored is None or (scored.admitted_chunks, scored.runs) != (admitted_chunks, dict(runs)):
        scored = ScoredRuns(config, gold_variants, admitted_chunks, dict(runs))
        _scored[gold_variants] = scored
    return scored


# ---- Ranking measures stage: figures by level, paired comparisons, recall of an approximate index.


def _measures(runs: ScoredRuns, name: str, level: Level) -> list[Measure]:
    gold, scores = runs.gold, runs.scores(name)
    reason = runs.unmeasured(name).get(level)
    average = functools.partial(
        aggregate,
        gold=gold.shared,
        query_of=gold.query_of[scores.variant],
        failed=scores.failed,
        ineligible=scores.ineligible(level, gold),
    )
    upper: dict[str, float] = {}
    if level in scores.upper:
        labels = [f"P@{k}" for k in cutoffs_of(runs.config.k)]
        records = average(labels, scores.upper[level])
        upper = {record.label: record.value for record in records}
    measures = []
    for record in average(scores.labels[level], scores.values[level]):
        why = {} if reason is None else {"value": reason}
        if level == "span" and np.isnan(record.judged_at_k):
            why["judged_at_k"] = "text that was not quoted is not judged"
        parts: dict[str, object] = {
            **interval_fields(record),
            "label": record.label,
            "name": machine_name(record.label),
            "level": level,
            "n_failed": record.n_failed,
            "judged_at_k": number(record.judged_at_k),
            "why": why,
        }
        if record.label in upper:
            parts["value_if_unjudged_relevant"] = number(upper[record.label])
        measures.append(Measure.model_validate(parts))
    return measures


def delta_of(found: PairedComparison, at: int) -> dict[str, float | None]:
    """Write the fields of `PairedDelta` for one column of a comparison."""
    figures = ("delta", "ci_low", "ci_high", "n_effective")
    counts = ("n_better", "n_worse", "n_tied")
    return {name: number(getattr(found, name)[at]) for name in figures} | {
        name: int(getattr(found, name)[at]) for name in counts
    }


Row = dict[str, str | float | None]


def comparison_rows(pairs: Iterable[tuple[str, str, PairedComparison]], level: Level) -> list[Row]:
    """Write paired comparisons as one row per pair and measure.

    Holm's adjustment covers all rows.
    """
    rows: list[Row] = [
        {
            "a": a,
            "b": b,
            "measure": label,
            "level": level,
            **delta_of(found, at),
            "p": number(found.p[at]),
            "minimum_detectable": number(found.minimum_detectable[at]),
        }
        for a, b, found in pairs
        for at, label in enumerate(COMPARED)
    ]
    adjusted = holm([np.nan if row["p"] is None else float(row["p"]) for row in rows])
    return [row | {"p_adjusted": number(float(p))} for row, p in zip(rows, adjusted, strict=True)]


def compared_values(
    runs: ScoredRuns, scores: Scores, variants: BoolArray | None = None
) -> FloatArray:
    """Return the compared measures by query, float [n_queries, n_compared]."""
    level = runs.config.level
    columns = [scores.labels[level].index(label) for label in COMPARED]
    return scores.per_query(level, runs.gold, variants)[:, columns]


def _comparisons(runs: ScoredRuns) -> list[ComparedPair]:
    """Compare every pair of strategies that are measured at the headline level.

    A pair is compared on the wordings that both strategies were run on.
    """
    level, pairs, wordings = runs.config.level, [], []
    measured = [name for name in runs.names if level not in runs.unmeasured(name)]
    for a, b in itertools.combinations(measured, 2):
        both = runs.ran(a) & runs.ran(b)
        left, right = (
            compared_values(runs, runs.scores(name), None if both.all() else both)
            for name in (a, b)
        )
        pairs.append((a, b, paired_comparison(left, right, runs.gold.shared)))
        n = {} if both.all() else {"n_wordings": int(both.sum())}
        wordings += [n] * len(COMPARED)
    rows = zip(comparison_rows(pairs, level), wordings, strict=True)
    return [ComparedPair.model_validate(row | n) for row, n in rows]


def _ann_recall(runs: ScoredRuns, opened: OpenIndex, name: str) -> AnnRecall | None:
    """Measure recall of an approximate index against exact search over the same vectors.

    The recall is given by seed and k; None for exact strategies.
    """
    spec = runs.spec(name)
    embedding = spec.embeds_with
    if embedding is None or spec.store_name != "chroma":
        return None
    gold, depth, texts = runs.gold, runs.config.depth, runs.gold.variants["text"].tolist()
    source = opened.index.source(embedding)
    vectors = source.query_vectors(texts)
    exact = ExactSearch(source.chunk_vectors()).search(vectors, depth)
    cutoffs = [k for k in cutoffs_of(runs.config.k) if k <= depth]
    by_seed = {}
    for seed in runs.config.seeds:
        found = approximate_search(opened.index, embedding, vectors, Request(texts, depth, seed))
        records = aggregate(
            [f"ann_recall_at_{k}" for k in cutoffs],
            np.stack([ann_recall(found.rows, exact.rows, k) for k in cutoffs], axis=1),
            gold.shared,
            query_of=gold.query_of,
        )
        by_seed[str(seed)] = {record.label: figure_of(record) for record in records}
    return AnnRecall(by_seed=by_seed)


def _per_query_frame(runs: ScoredRuns) -> pd.DataFrame:
    """Write one row for each strategy, level, query, wording and seed.

    A strategy without randomness has rows under every configured seed.
    """
    parts: list[pd.DataFrame] = []
    identity = runs.gold.variants[["query_id", "group_id", "paraphrase_id"]]
    for name in runs.names:
        scores = runs.scores(name)
        seeds = sorted(set(scores.seed.tolist()))
        copies = [(seed, seed) for seed in seeds]
        if len(seeds) == 1:
            copies = [(seed, seeds[0]) for seed in runs.config.seeds]
        names = dict.fromkeys(
            machine_name(label) for level in LEVELS for label in scores.labels[level]
        )
        for level, (seed, own) in itertools.product(LEVELS, copies):
            rows = scores.seed == own
            values, columns = scores.values[level][rows], map(machine_name, scores.labels[level])
            part = identity.iloc[scores.variant[rows]].reset_index(drop=True)
            part.insert(0, "level", level)
            part.insert(0, "strategy", name)
            part = part.assign(
                seed=seed, eligible=~np.isnan(values[:, 0]), failed=scores.failed[rows]
            )
            measured = pd.DataFrame(values, columns=list(columns)).reindex(columns=list(names))
            parts.append(pd.concat([part, measured], axis=1))
    return pd.concat(parts, ignore_index=True)


@dataclasses.dataclass(frozen=True)
class StrategyMeasures:
    """Ranking measures of one strategy."""

    name: str
    measures: list[Measure]
    ann_recall: AnnRecall | None


@dataclasses.dataclass(frozen=True)
class RankingFacts:
    """Measures of every strategy and their paired comparisons for the report."""

    strategies: list[StrategyMeasures]
    comparisons: list[ComparedPair]


class RankingMeasures(Result):
    """Ranking measures: PER_QUERY frame, figures, and the overlap of two strategies."""

    per_query: pd.DataFrame = frame_part()
    about: RankingFacts = json_part()
    overlap: OverlapPart = json_part()

    def describe(self) -> dict[str, object]:
        """Show the headline measures at the headline level, and how strategies compare."""
        figures = ("a", "b", "measure", "delta", "ci_low", "ci_high", "p_adjusted")
        counts = ("n_better", "n_worse", "n_tied", "n_effective", "minimum_detectable")
        level, entries = self.overlap.level, self.artifact.json("about")
        return {
            "level": level,
            **list_measures(entries["strategies"], level, HEADLINE),
            "comparisons": Table((*figures, *counts), entries["comparisons"]),
        }


@Stage("ranking_measures", "measures", reads=("k", "level", "depth", "seeds"), columns=PER_QUERY)
def measure_rankings(
    work: Work,
    *,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
) -> RankingMeasures:
    """Measure and compare the strategies at every level: recall, MRR, nDCG and more."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    opened, strategies = open_index(work.evaluation, admitted_chunks), []
    with work.progress.step("Scoring rankings", len(scored.names), "strategies") as advance:
        for name in scored.names:
            measures = [one for level in LEVELS for one in _measures(scored, name, level)]
            strategies.append(StrategyMeasures(name, measures, _ann_recall(scored, opened, name)))
            advance(1)
    with work.progress.step("Comparing strategies"):
        comparisons = _comparisons(scored)
    with work.progress.step("Comparing lists"):
        overlap = _overlap(scored)
    return RankingMeasures(
        per_query=_per_query_frame(scored),
        about=RankingFacts(strategies=strategies, comparisons=comparisons),
        overlap=overlap,
    )


# ---- Overlap of two strategies: whether they find gold of the same questions.


def _overlap(runs: ScoredRuns) -> OverlapPart:
    level = runs.config.level
    pairs = []
    for pair in itertools.combinations(runs.names, 2):
        # The first wording is the original one.
        cubes = (runs.scores(name).cube(level, f"Success@{ALWAYS_K}", runs.gold) for name in pair)
        left, right = (cube[:, 0, 0] for cube in cubes)
        known = ~np.isnan(left) & ~np.isnan(right)
        one, two = left[known] > 0, right[known] > 0
        counts: dict[str, int | str] = {
            "both": int((one & two).sum()),
            "only_a": int((one & ~two).sum()),
            "only_b": int((~one & two).sum()),
            "neither": int((~one & ~two).sum()),
            "n": int(known.sum()),
        }
        if not known.any():
            reasons = [
                f"{name}: {why}" for name in pair if (why := runs.unmeasured(name).get(level))
            ]
            counts["n_reason"] = (reasons or ["no question is judged for both"])[0]
        pairs.append(OverlapPair.model_validate({"a": pair[0], "b": pair[1], **counts}))
    return OverlapPart(k=ALWAYS_K, level=level, pairs=pairs)


# ---- Stability stage: whether all wordings of a question find the same, close evidence.

NO_SECOND_RUN = (
    "no question has a second wording, and none was run under a second seed, so convergence "
    "is not known"
)
ZONES = ("stable", "transitional", "risk", "undefined")
STATES = ("convergent", "recursive", "divergent", "chaotic", "undefined")


def _shares(values: np.ndarray, names: tuple[str, ...]) -> dict[str, Share]:
    counts = {name: int(np.sum(values == name)) for name in names}
    return {
        name: Share(share=number(n / len(values)) if len(values) else None, n=n)
        for name, n in counts.items()
    }


def _figure(values: FloatArray, runs: ScoredRuns, label: str, reason: str | None = None) -> Figure:
    """Aggregate one value per query."""
    records = aggregate([label], values[:, None], runs.gold.shared)
    return figure_of(records[0], reason)


def _distances(runs: ScoredRuns, name: str, source: EmbeddingSource) -> tuple[DeltaS, FloatArray]:
    """Measure delta_s to the question, to the gold evidence and to the decoy.

    Returns the figures, and the distance of each run to its question.
    """
    gold, scores = runs.gold, runs.scores(name)
    top, reason = _top_chunks(runs, name)
    chunks = source.chunk_vectors()
    questions = source.query_vectors(gold.variants["text"].tolist())
    distance = delta_s(questions[scores.variant], chunks, top)
    owner = gold.query_of[scores.variant]
    targets = _evidence_vectors(runs, chunks)
    lacks = [np.asarray(~part.any(axis=1)) for part in targets]
    to_anchor, to_decoy = (
        np.where(lack[owner], np.nan, delta_s(part[owner], chunks, top))
        for part, lack in zip(targets, lacks, strict=True)
    )
    between = np.abs(to_anchor - to_decoy)
    close = np.where(np.isnan(between), np.nan, between <= SAME_DISTANCE)
    failed = scores.failed if reason is None else np.zeros(len(owner), dtype=bool)
    names = ["delta_s", "to_anchor", "to_decoy", "anchor_and_decoy_equally_close"]
    records = aggregate(
        names,
        np.stack([distance, to_anchor, to_decoy, close], axis=1),
        gold.shared,
        query_of=owner,
        failed=failed,
        failed_value=[1.0, 1.0, 1.0, 0.0],
        # A failed retrieval has no distance to evidence or a decoy that the question lacks.
        ineligible=np.stack([np.zeros_like(lacks[0]), *lacks, lacks[0] | lacks[1]], axis=1),
    )
    within = within_query(np.where(failed, 1.0, distance), owner, len(gold.queries))[:, 0]
    others = zip(names[1:], (figure_of(record, reason) for record in records[1:]), strict=True)
    figures = DeltaS.model_validate(
        {
            **interval_fields(records[0]),
            "why": {} if reason is None else {"value": reason},
            "target": f"<= {DELTA_S_TARGET}",
            "zones": _shares(zones(within), ZONES),
            **dict(others),
        }
    )
    return figures, distance


def _top_chunks(runs: ScoredRuns, name: str) -> tuple[np.ndarray, str | None]:
    """Return the chunk rows of the top places of each run.

    When a retrieved unit is not a chunk of the corpus, all places are empty and a reason is given.
    """
    rows = runs.rows(name)
    top = np.concatenate([rows[seed][:, :ALWAYS_K] for seed in sorted(rows)])
    if not runs.spec(name).own_units:
        return top, None
    chunk_of = runs.units(name)["chunk"].to_numpy()
    others, reason = int((chunk_of < 0).sum()), "nothing was retrieved"
    if others:
        reason = (
            f"{others} of {len(chunk_of)} retrieved units are no chunks of this corpus,"
            " whose vectors are compared"
        )
    if others or not len(chunk_of):
        return np.full(top.shape, -1, dtype=np.int64), reason
    return np.where(top >= 0, chunk_of[top], -1), None


def _evidence_vectors(runs: ScoredRuns, chunks: np.ndarray) -> tuple[FloatArray, FloatArray]:
    """Average the vectors of the chunks with each query's gold spans, and of its decoy.

    Queries without spans or without a decoy have zero rows.
    """
    gold, frame = runs.gold, runs.chunks
    n = len(gold.queries)
    anchor, decoy = (np.zeros((n, chunks.shape[1])) for _ in range(2))
    spans = np.repeat(
        np.arange(len(gold.spans.carrier_indptr) - 1), np.diff(gold.spans.carrier_indptr)
    )
    query_of_span = np.repeat(np.arange(n), np.diff(gold.spans.indptr))
    np.add.at(anchor, query_of_span[spans], chunks[gold.spans.carriers])
    decoys = runs.gold_variants.decoys
    query_index = pd.Index(gold.queries["query_id"])
    for query_id, doc_id, section_id in zip(
        decoys["query_id"], decoys["doc_id"], decoys["section_id"], strict=True
    ):
        there = (frame["section_id"] == section_id) if section_id else (frame["doc_id"] == doc_id)
        decoy[query_index.get_loc(query_id)] += chunks[there.to_numpy()].sum(axis=0)
    return anchor, decoy


def _stability(
    runs: ScoredRuns, name: str, distances: DeltaS
) -> tuple[StrategyStability, list[str]]:
    """Measure how much the wording and the seed matter.

    The second value is the lambda state of each question, empty for questions without gold.
    """
    gold, level, scores = runs.gold, runs.config.level, runs.scores(name)
    ran = slice(None) if scores.ran is None else np.flatnonzero(scores.ran)
    hits, recall = (scores.cube(level, f"{label}@{ALWAYS_K}", gold) for label in ("Success", "R"))
    eligible = ~np.isnan(hits).all(axis=(1, 2))
    owner = gold.query_of[scores.variant][ran]
    overlap = mean_pairwise_rbo(scores.top[ran], owner, len(gold.queries))
    states = lambda_states(hits[eligible], overlap[eligible])
    together = np.full(len(gold.queries), np.nan)
    together[eligible] = np.where(states.state == "undefined", np.nan, states.convergent_and_hit)
    unknown = NO_SECOND_RUN if eligible.any() and np.isnan(together).all() else None
    flips = {}
    for k in cutoffs_of(runs.config.k):
        cube = scores.cube(level, f"Success@{k}", gold)
        several = (~np.isnan(cube)).any(axis=2).sum(axis=1) > 1
        changes = np.full(len(cube), np.nan)
        low, high = (take(cube[several], axis=(1, 2)) for take in (np.nanmin, np.nanmax))
        changes[several] = high != low
        flips[f"hit_at_{k}"] = _figure(changes, runs, f"hit@{k} changes")
    flip_share, flip_n = flip_matrix(hits)
    first, *others = runs.rows(name).values()
    state = np.full(len(gold.queries), "", dtype=object)
    state[eligible] = states.state
    figures = StrategyStability.model_validate(
        {
            "level": level,
            "n_queries": int(eligible.sum()),
            "delta_s": distances,
            "rbo": _figure(np.where(eligible, overlap, np.nan), runs, "rbo"),
            "lambda": _shares(states.state, STATES),
            "reasons": {
                reason: {"n": int(np.sum(states.reason == reason)), "cause": cause}
                for reason, cause in CAUSES.items()
                if (states.reason == reason).any()
            },
            "convergent_and_hit": _figure(together, runs, "convergent and hit", unknown),
            "variance_shares": {
                part: number(share) for part, share in variance_shares(recall)._asdict().items()
            },
            "hit_changes_with_wording": flips,
            "flip_matrix": {
                "wordings": wording_of(gold)[1],
                "share": [[number(x) for x in row] for row in flip_share.tolist()],
                "n": flip_n.tolist(),
            },
            "recall_at_10_by_wording": {
                part: _figure(values, runs, part) for part, values in wording_range(recall).items()
            },
            "seeds_change_nothing": None
            if len(runs.config.seeds) == 1
            else all(np.array_equal(first, other) for other in others),
        }
    )
    return figures, [str(one) for one in state]


class StabilityMeasures(Result):
    """Stability: delta_s by strategy, question, wording and seed; lambda_state by question."""

    per_run: pd.DataFrame = frame_part()
    per_query: pd.DataFrame = frame_part()
    about: StabilityPart = json_part()

    def describe(self) -> dict[str, object]:
        """Show delta_s, lambda states, and the effect of wordings on the results."""
        rows: list[dict[str, object]] = []
        for name, figures in self.about.strategies.items():
            parts = {
                "delta_s": figures.delta_s,
                "convergent and hit": figures.convergent_and_hit,
                "rbo": figures.rbo,
                "hit@10 changes with wording": figures.hit_changes_with_wording["hit_at_10"],
            }
            rows += [
                {"strategy": name, "measure": label, **part.dump()} for label, part in parts.items()
            ]
        columns = ("strategy", "measure", "value", "ci_low", "ci_high", "n_scored", "n_ineligible")
        states = [
            {"strategy": name, **{state: entry.n for state, entry in figures.lambda_states.items()}}
            for name, figures in self.about.strategies.items()
        ]
        return {
            "embedding": self.about.embedding,
            "chart of hit@10 that changes with wording": Chart(
                {
                    name: figures.hit_changes_with_wording["hit_at_10"].triple
                    for name, figures in self.about.strategies.items()
                }
            ),
            "stability": Table(columns, rows),
            "n_undefined": count_undefined(rows, "value"),
            "lambda_states": Table(("strategy", *STATES), states),
        }


@Stage(
    "stability_measures",
    "measures",
    stores=("embeddings",),
    reads=("k", "level", "depth", "seeds", "strategies"),
    columns=DELTA_S,
)
def measure_stability(
    work: Work,
    *,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
) -> StabilityMeasures:
    """Measure whether a question finds the same evidence under every wording."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    opened = open_index(work.evaluation, admitted_chunks)
    source = opened.index.source(stability_embedding(work.config))
    figures, parts, lambdas = {}, [], []
    with work.progress.step("Measuring stability", len(scored.names), "strategies") as advance:
        for name in scored.names:
            scores = scored.scores(name)
            distances, per_run = _distances(scored, name, source)
            figures[name], states = _stability(scored, name, distances)
            per_query = gold_variants.queries[["query_id"]].assign(lambda_state=states)
            per_query.insert(0, "strategy", name)
            lambdas.append(per_query)
            ids = gold_variants.variants[["query_id", "paraphrase_id"]].iloc[scores.variant]
            part = ids.reset_index(drop=True).assign(seed=scores.seed, delta_s=per_run)
            part.insert(0, "strategy", name)
            parts.append(part)
            advance(1)
    return StabilityMeasures(
        per_run=pd.concat(parts, ignore_index=True),
        per_query=pd.concat(lambdas, ignore_index=True),
        about=StabilityPart(embedding=source.model, strategies=figures),
    )


# ---- Trust of the retrieved units, blocked chunks in results, and the cost of the trust filter.

MAX_EXAMPLES = 20
NOT_CONFIGURED = "the gold set names no trusted domains, authors or keys, so trust is not known"


@dataclasses.dataclass(frozen=True)
class _Guarded:
    """The runs, with the guard's verdicts on corpus and questions."""

    runs: ScoredRuns
    corpus_chunks: CorpusChunks
    evidence_trust: EvidenceTrust
    restated: RestatedPassages

    @functools.cached_property
    def facts(self) -> pd.DataFrame:
        """EVIDENCE_TRUST of the admitted chunks."""
        return self.runs.admitted_chunks.trust_of(self.evidence_trust)


def _judge_units(guarded: _Guarded, name: str) -> tuple[UnitVerdicts, pd.DataFrame]:
    """Return the guard's verdicts on the units of a strategy, and their chunk_id and doc_id."""
    runs = guarded.runs
    if runs.runs[name].has_own_units:
        units, texts = runs.units(name), runs.gold_variants.texts
        verdicts = unit_verdicts(
            runs.config, guarded.corpus_chunks, guarded.evidence_trust, texts, units
        )
        return verdicts, units.rename(columns={"unit_id": "chunk_id"})[["chunk_id", "doc_id"]]
    facts = guarded.facts
    return UnitVerdicts(
        facts["trust"].to_numpy(),
        facts["verdict"].to_numpy(dtype=object),
        facts["reasons"].tolist(),
        guarded.restated.codes(len(facts)),
    ), facts[["chunk_id", "doc_id"]]


def _retrieved(guarded: _Guarded, name: str) -> RetrievedTrust:
    """Measure mean trust of the first ten results, and list every blocked chunk in the results."""
    runs, gold = guarded.runs, guarded.runs.gold
    units, names = _judge_units(guarded, name)
    by_seed = runs.rows(name)
    rows = np.concatenate(list(by_seed.values()))
    variant = np.tile(np.arange(len(gold.query_of)), len(by_seed))
    # An empty place has row -1, which reads the appended last entry.
    verdict = np.append(units.verdict, "")[rows]
    restates = np.isin(variant[:, None] * max(1, len(names)) + rows, units.pairs) & (rows >= 0)
    blocked = (verdict == "blocked") | restates
    top, means = rows[:, :ALWAYS_K], np.full(len(rows), np.nan)
    has_trust, with_any = runs.config.trust.configured, (top >= 0).any(axis=1)
    if has_trust:
        means[with_any] = np.nanmean(np.append(units.trust, np.nan)[top[with_any]], axis=1)
    records = aggregate(
        ["avg_trust_score"],
        means[:, None],
        gold.shared,
        query_of=gold.query_of[variant],
    )
    return RetrievedTrust(
        avg_trust=figure_of(records[0], None if has_trust else NOT_CONFIGURED),
        n_retrieved=int((rows >= 0).sum()),
        n_blocked=int(blocked.sum()),
        n_warned=int(((verdict == "warning") & ~blocked).sum()),
        blocked=_list_blocked(units, names, gold, rows, blocked),
    )


def _list_blocked(
    units: UnitVerdicts, names: pd.DataFrame, gold: GoldArrays, rows: IntArray, blocked: BoolArray
) -> list[BlockedRow]:
    """List the units at the blocked places (both [n_runs, depth]), the most frequent ones first."""
    run, place = np.nonzero(blocked)
    found = pd.DataFrame(
        {"unit": rows[run, place], "variant": run % len(gold.query_of), "rank": place + 1}
    )
    found["n"] = found.groupby("unit")["unit"].transform("size")
    found = found.drop_duplicates("unit").join(names, on="unit")
    found = found.sort_values(["n", "chunk_id"], ascending=[False, True]).head(MAX_EXAMPLES)
    pairs = set(units.pairs.tolist())
    query_ids = gold.variants["query_id"].tolist()
    examples = []
    for row in found.to_dict("records"):
        reasons = list(units.reasons[row["unit"]])
        if row["variant"] * len(names) + row["unit"] in pairs:
            reasons.append("restates_query.retrieved")
        about = {name: row[name] for name in ("chunk_id", "doc_id", "rank", "n")}
        about |= {"query_id": query_ids[row["variant"]], "reasons": reasons}
        examples.append(BlockedRow.model_validate(about))
    return examples


def _other_scores(work: Work, guarded: _Guarded, name: str) -> Scores:
    """Score the strategy with the opposite setting of the trust filter."""
    runs, config = guarded.runs, work.config
    threshold, rows = config.trust.threshold or 0.0, dict[int, IntArray]()
    run = runs.runs[name]
    opened = open_index(work.evaluation, runs.admitted_chunks)
    strategy = ready_strategy(
        work.evaluation, opened, runs.spec(name), runs.gold_variants, run.about.steered_by
    )
    allowed = None
    if not config.trust.filter:
        allowed = np.asarray(guarded.facts["trust"].to_numpy() >= threshold)
    for seed in run.about.seeds:
        found, _ = guarded_search(
            config,
            strategy,
            runs.gold_variants.texts,
            seed,
            allowed=allowed,
            restated=guarded.restated,
        )
        empty = ((0, 0), (0, config.depth - found.rows.shape[1]))
        rows[seed] = np.pad(found.rows.astype(np.int64), empty, constant_values=-1)
    return score_strategy(rows, runs.gold, config.k, run.failed)


def _filter_cost(work: Work, guarded: _Guarded) -> TrustFilter | Absent:
    """Compare recall with and without the trust filter, paired by question."""
    runs, facts = guarded.runs, guarded.facts
    spec, level, gold = runs.config.trust, runs.config.level, runs.gold.shared
    if spec.threshold is None:
        return Absent(reason="no trust.threshold is configured")
    pairs, figures = [], []
    for name in runs.names:
        # An external source ranks without the trust filter. Filtered figures would describe another
        # system.
        if runs.runs[name].has_own_units or level in runs.unmeasured(name):
            continue
        own, other = runs.scores(name), _other_scores(work, guarded, name)
        filtered, whole = (
            compared_values(runs, scores)
            for scores in ((own, other) if spec.filter else (other, own))
        )
        pairs.append((name, "", paired_comparison(filtered, whole, gold)))
        records = (aggregate(COMPARED, part, gold) for part in (filtered, whole))
        figures += [tuple(map(figure_of, both)) for both in zip(*records, strict=True)]
    rows = [
        FilterRow.model_validate(
            {key: value for key, value in row.items() if key not in {"a", "b", "p"}}
            | {"strategy": row["a"], "with_filter": both[0], "without_filter": both[1]}
        )
        for row, both in zip(comparison_rows(pairs, level), figures, strict=True)
    ]
    return TrustFilter(
        threshold=spec.threshold,
        applied=spec.filter,
        n_chunks=len(facts),
        n_below=int((facts["trust"] < spec.threshold).sum()),
        rows=rows,
    )


class TrustMeasures(Result):
    """Trust of the units that each strategy retrieved, and the cost of the trust filter."""

    strategies: dict[str, RetrievedTrust] = json_part()
    filter: TrustFilter | Absent = json_part()

    def describe(self) -> dict[str, object]:
        """Show the trust of the retrieved units, and the cost of the trust filter."""
        rows = [
            {**entry.dump(), **entry.avg_trust.dump(), "strategy": name}
            for name, entry in self.strategies.items()
        ]
        cost = []
        if isinstance(self.filter, TrustFilter):
            for row in self.filter.rows:
                values = {
                    part: getattr(row, part).value for part in ("with_filter", "without_filter")
                }
                cost.append(row.dump() | values)
        columns = ("strategy", "value", "ci_low", "ci_high", "n_scored", "n_retrieved", "n_blocked")
        of_filter = ("strategy", "measure", "with_filter", "without_filter", "delta", "ci_low")
        return {
            "retrieved": Table((*columns, "n_warned"), rows),
            "n_undefined": count_undefined(rows, "value"),
            "trust_filter": Table((*of_filter, "ci_high", "n_effective"), cost),
        }


@Stage(
    "trust_measures",
    "measures",
    reads=("trust", "k", "level", "depth", "strategies"),
    chosen=chosen_kinds,
)
def measure_trust(
    work: Work,
    *,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    corpus_chunks: CorpusChunks,
    evidence_trust: EvidenceTrust,
    admitted_chunks: AdmittedChunks,
    restated_passages: RestatedPassages,
) -> TrustMeasures:
    """Measure the trust of retrieved chunks, and recall with and without the trust filter."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    guarded = _Guarded(scored, corpus_chunks, evidence_trust, restated_passages)
    strategies = {}
    with work.progress.step(
        "Judging the trust of what was retrieved", len(scored.names), "strategies"
    ) as advance:
        for name in scored.names:
            strategies[name] = _retrieved(guarded, name)
            advance(1)
    return TrustMeasures(strategies=strategies, filter=_filter_cost(work, guarded))


# ---- Descriptions of these results for people.

HEADLINE = ("R@10", "RR", "nDCG@10", "Success@10", "Judged@10")


def list_measures(
    strategies: Sequence[Mapping[str, Any]], level: str, labels: Sequence[str]
) -> dict[str, object]:
    """Show measures of one level with interval and denominators, and a chart of the first."""
    figure = "value [95 % interval]"
    denominators = ("n_scored", "n_attempted", "n_failed", "n_ineligible")
    rows = [
        {
            "strategy": entry["name"],
            figure: format_interval(record["value"], record["ci_low"], record["ci_high"]),
            **record,
        }
        for label in labels
        for entry in strategies
        for record in entry["measures"]
        if record["level"] == level and record["label"] == label
    ]
    drawn = {
        row["strategy"]: (row["value"], row["ci_low"], row["ci_high"])
        for row in rows
        if row["label"] == labels[0]
    }
    return {
        f"chart of {labels[0]}": Chart(drawn),
        f"measures_{level}": Table(("strategy", "label", figure, *denominators), rows),
        "n_undefined": count_undefined(rows, "value"),
    }
