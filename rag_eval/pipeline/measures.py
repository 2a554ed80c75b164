"""Measure stages: ranking measures and stability, from the stored runs."""

import dataclasses
import functools
import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.config import GoldSetConfig, Level
from rag_eval.core.strategy import Strategy
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.intervals import MeasureRecord, aggregate, within_query
from rag_eval.measures.paired import PairedComparison, holm, paired_comparison
from rag_eval.measures.ranking import (
    collapse,
    labels_at,
    machine_name,
    precision_upper_bound,
    score_rankings,
    score_spans,
)
from rag_eval.measures.stability import (
    DELTA_S_TARGET,
    LAMBDA_REASONS,
    ann_recall,
    delta_s,
    equally_close,
    flip_matrix,
    lambda_states,
    mean_pairwise_rbo,
    shared_share,
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
from rag_eval.pipeline.retrieval import (
    IndexOpener,
    OpenIndex,
    RestatedPassages,
    RunFacts,
    StrategyRun,
    carried_by_units,
    guarded_search,
    open_index,
    ready_strategy,
    stability_embedding,
    unit_verdicts,
    units_for_gold,
)
from rag_eval.pipeline.runner import (
    Result,
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
from rag_eval.storage.artifacts import Artifact

# ---- Scores of one strategy by level, label and run. A run is one wording under one seed.

LEVELS: tuple[Level, ...] = ("document", "section", "span")
ALWAYS_K = 10
"""Cutoff of the headline figures in the report, whatever k a gold set sweeps."""


def labels_for(ks: Sequence[int]) -> dict[Level, tuple[str, ...]]:
    """Name the measures of each level."""
    cutoffs = sorted({*ks, ALWAYS_K})
    return {level: labels_at(level, cutoffs) for level in LEVELS}


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores of one strategy.

    Parameters
    ----------
    labels
        Columns by level.
    values
        Level -> float [n_runs, n_labels]; NaN when the query is ineligible at that level.
    upper
        Level -> float [n_runs, n_ks]: P@k if every unjudged item were relevant.
    top
        int [n_runs, ALWAYS_K]: the top documents, for the overlap of runs.
    variant, seed
        int [n_runs]: wording and seed of each run.
    failed
        bool [n_runs]: whether the retriever ended in an error. An empty result is no error.
    ran
        bool [n_runs]: whether the retriever was run on this wording; None means every wording.
        The scores of all other wordings are NaN.
    """

    labels: dict[Level, tuple[str, ...]]
    values: dict[Level, FloatArray]
    upper: dict[Level, FloatArray]
    top: IntArray
    variant: IntArray
    seed: IntArray
    failed: npt.NDArray[np.bool_]
    ran: npt.NDArray[np.bool_] | None = None

    def column(self, level: Level, label: str) -> FloatArray:
        """Return one measure, [n_runs]."""
        return self.values[level][:, self.labels[level].index(label)]

    def cube(self, level: Level, label: str, gold: GoldArrays) -> FloatArray:
        """Return one measure as [n_queries, n_wordings, n_seeds].

        Wording 0 is the original. Wordings that a query lacks are NaN.
        """
        wording, n_wordings = wording_of(gold)
        seeds = np.unique(self.seed)
        result = np.full((len(gold.queries), n_wordings, len(seeds)), np.nan)
        result[
            gold.query_of[self.variant], wording[self.variant], np.searchsorted(seeds, self.seed)
        ] = self.column(level, label)
        return result

    def per_query(
        self,
        level: Level,
        n_queries: int,
        gold: GoldArrays,
        variants: npt.NDArray[np.bool_] | None = None,
    ) -> FloatArray:
        """Average inside each query: float [n_queries, n_labels].

        Failed runs count 0. Ineligible queries are NaN. `variants`, bool [n_variants], limits the
        average to these wordings.
        """
        values = self.values[level]
        chosen = (
            values
            if variants is None
            else np.where(variants[self.variant][:, None], values, np.nan)
        )
        return within_query(chosen, gold.query_of[self.variant], n_queries)

    def ineligible(self, level: Level, n_queries: int, gold: GoldArrays) -> npt.NDArray[np.bool_]:
        """Mark the queries that cannot be scored at a level, bool [n_queries].

        A failed retrieval does not make a query ineligible.
        """
        return np.isnan(
            within_query(self.values[level][:, :1], gold.query_of[self.variant], n_queries)[:, 0]
        )

    def limited(self, ran: npt.NDArray[np.bool_], unmeasured: Iterable[Level]) -> "Scores":
        """Remove scores without meaning.

        These are the scores of wordings outside `ran`, bool [n_variants], and of unmeasured levels.
        """
        there = ran[self.variant]
        gone = set(unmeasured)
        values, upper = (
            {
                level: np.where((there & (level not in gone))[:, None], part, np.nan)
                for level, part in parts.items()
            }
            for parts in (self.values, self.upper)
        )
        return dataclasses.replace(
            self, values=values, upper=upper, failed=self.failed & there, ran=there
        )


def wording_of(gold: GoldArrays) -> tuple[IntArray, int]:
    """Return the wording number of each variant, and the number of wordings.

    Number 0 is the original. The paraphrase ids follow in sorted order.
    """
    names = gold.variants["paraphrase_id"]
    others = sorted(set(names) - {"original"})
    index = pd.Index(["original", *others])
    return np.asarray(index.get_indexer(pd.Index(names)), dtype=np.int64), len(index)


def wording_names(gold: GoldArrays) -> list[str]:
    """Return the names of the wordings by number."""
    return ["original", *sorted(set(gold.variants["paraphrase_id"]) - {"original"})]


def score_strategy(
    rows_by_seed: dict[int, IntArray],
    gold: GoldArrays,
    ks: Sequence[int],
    failed: pd.DataFrame | None = None,
) -> Scores:
    """Score every run of a strategy at every level.

    Parameters
    ----------
    rows_by_seed
        Seed -> int [n_variants, depth] chunk rows, -1 padded.
    gold
        The gold arrays.
    ks
        Cutoffs of the sweep.
    failed
        variant and seed of each retrieval that ended in an error.
    """
    seeds = sorted(rows_by_seed)
    rows = np.concatenate([rows_by_seed[seed] for seed in seeds])
    n_variants = len(gold.query_of)
    variant = np.tile(np.arange(n_variants), len(seeds))
    query = gold.query_of[variant]
    depth = rows.shape[1]
    documents = collapse(rows, gold.document_of_chunk, depth)
    labels = labels_for(ks)
    cutoffs = sorted({*ks, ALWAYS_K})
    values: dict[Level, FloatArray] = {
        "document": score_rankings(documents, gold.qrels_document, query, labels["document"])
    }
    upper: dict[Level, FloatArray] = {
        "document": np.stack(
            [precision_upper_bound(documents, gold.qrels_document, query, k) for k in cutoffs],
            axis=1,
        )
    }
    sections = collapse(rows, gold.section_of_chunk, depth)
    values["section"] = score_rankings(sections, gold.qrels_section, query, labels["section"])
    upper["section"] = np.stack(
        [precision_upper_bound(sections, gold.qrels_section, query, k) for k in cutoffs], axis=1
    )
    values["span"] = score_spans(rows, gold.spans, gold.qrels_chunk, query, labels["span"])
    run_seeds = np.repeat(np.array(seeds, dtype=np.int64), n_variants)
    broken = np.zeros(len(variant), dtype=bool)
    if failed is not None:
        broken[
            np.searchsorted(seeds, failed["seed"].to_numpy()) * n_variants
            + failed["variant"].to_numpy()
        ] = True
    return Scores(labels, values, upper, documents[:, :ALWAYS_K], variant, run_seeds, broken)


# ---- Measure stages: ranking measures and stability, from the stored runs.

BOOTSTRAP_SEED = 20_240_229
COMPARED = ("R@10", "RR", "nDCG@10")


def number(value: float) -> float | None:
    """Make a figure fit for JSON.

    NaN and infinity become null. Other figures keep twelve significant digits, so that equal inputs
    give equal bytes.
    """
    return float(f"{value:.12g}") if np.isfinite(value) else None


def interval_of(record: MeasureRecord) -> dict[str, Any]:
    """Write a figure outside the ranking measures: value, interval, denominators."""
    return {
        "value": number(record.value),
        "ci_low": number(record.ci_low),
        "ci_high": number(record.ci_high),
        "n_attempted": record.n_attempted,
        "n_scored": record.n_scored,
        "n_ineligible": record.n_ineligible,
        "n_groups": record.n_groups,
    }


class ScoredRuns:
    """The runs of all strategies with the gold set, scored on demand.

    Parameters
    ----------
    config
        The gold set's configuration.
    gold_variants, admitted_chunks
        The gold set, and the chunks of the rankings by row.
    runs
        Strategy -> its run, in the order of the configuration.
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
        """The gold over the chunks. Queries, variants and groups apply to every strategy."""
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
            carried = carried_by_units(gold, units)
            self._units_gold[name] = GoldArrays(gold, units_for_gold(units), carried)
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
    found = _scored.get(gold_variants)
    if found is None or (found.admitted_chunks, found.runs) != (admitted_chunks, dict(runs)):
        found = ScoredRuns(config, gold_variants, admitted_chunks, dict(runs))
        _scored[gold_variants] = found
    return found


class Runs(ScoredRuns):
    """The runs of an evaluation, for stages that are not rows of the graph yet."""

    def __init__(self, evaluation: Evaluation, opened: IndexOpener) -> None:
        self.evaluation, self.opened = evaluation, opened
        runner = evaluation.runner
        super().__init__(
            evaluation.config,
            runner.get(GoldVariants),
            runner.get(AdmittedChunks),
            {name: runner.get(StrategyRun, name) for name in runner.strategies},
        )
        shared = score_runs(self.config, self.gold_variants, self.admitted_chunks, self.runs)
        # `shared` is an instance of the base class, so its private attributes are known here.
        self._scores, self._units_gold = shared._scores, shared._units_gold  # noqa: SLF001

    def artifact(self, name: str) -> Artifact:
        """Return the run of one strategy."""
        return self.runs[name].artifact

    @property
    def keys(self) -> list[str]:
        """Keys of all runs."""
        return [self.artifact(name).key for name in self.names]


def _records(name: str, level: Level, runs: ScoredRuns) -> list[dict[str, Any]]:
    gold, scores = runs.gold, runs.scores(name)
    reason = runs.unmeasured(name).get(level)
    labels = scores.labels[level]
    query_of = gold.query_of[scores.variant]
    ineligible = scores.ineligible(level, len(gold.queries), gold)
    found = aggregate(
        labels,
        scores.values[level],
        gold.groups,
        BOOTSTRAP_SEED,
        query_of=query_of,
        failed=scores.failed,
        ineligible=ineligible,
    )
    cutoffs = sorted({*runs.config.k, ALWAYS_K})
    high: dict[str, float] = {}
    if level in scores.upper:
        upper = aggregate(
            [f"P@{k}" for k in cutoffs],
            scores.upper[level],
            gold.groups,
            BOOTSTRAP_SEED,
            query_of=query_of,
            failed=scores.failed,
            ineligible=ineligible,
            resamples=1,
        )
        high = {record.label: record.value for record in upper}
    return [
        {
            "label": record.label,
            "name": machine_name(record.label),
            "level": level,
            "value": number(record.value),
            **({} if reason is None else {"value_reason": reason}),
            "ci_low": number(record.ci_low),
            "ci_high": number(record.ci_high),
            "n_attempted": record.n_attempted,
            "n_scored": record.n_scored,
            "n_failed": record.n_failed,
            "n_ineligible": record.n_ineligible,
            "n_groups": record.n_groups,
            "judged_at_k": number(record.judged_at_k),
            **(
                {"value_if_unjudged_relevant": number(high[record.label])}
                if record.label in high
                else {}
            ),
        }
        for record in found
    ]


def comparison_rows(a: str, b: str, level: Level, found: PairedComparison) -> list[dict[str, Any]]:
    """Write a paired comparison as one row per compared measure, without the adjusted p."""
    return [
        {
            "a": a,
            "b": b,
            "measure": label,
            "level": level,
            "delta": number(found.delta[at]),
            "ci_low": number(found.ci_low[at]),
            "ci_high": number(found.ci_high[at]),
            "p": number(found.p[at]),
            "n_better": int(found.n_better[at]),
            "n_worse": int(found.n_worse[at]),
            "n_tied": int(found.n_tied[at]),
            "n_groups": int(found.n_groups[at]),
            "minimum_detectable": number(found.minimum_detectable[at]),
        }
        for at, label in enumerate(COMPARED)
    ]


def with_holm(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add Holm's adjusted p over all rows."""
    adjusted = holm([np.nan if row["p"] is None else row["p"] for row in rows])
    return [{**row, "p_adjusted": number(float(p))} for row, p in zip(rows, adjusted, strict=True)]


def _comparisons(runs: ScoredRuns, level: Level) -> list[dict[str, Any]]:
    """Compare every pair of strategies that are measured at the level.

    Holm's adjustment covers all pairs and measures. A pair is compared on the wordings that both
    strategies were run on.
    """
    n_queries = len(runs.gold.queries)
    rows = []
    for a, b in itertools.combinations(
        [name for name in runs.names if level not in runs.unmeasured(name)], 2
    ):
        both = runs.ran(a) & runs.ran(b)
        left, right = (
            runs.scores(name).per_query(level, n_queries, runs.gold, None if both.all() else both)[
                :, [runs.scores(name).labels[level].index(label) for label in COMPARED]
            ]
            for name in (a, b)
        )
        found = comparison_rows(
            a, b, level, paired_comparison(left, right, runs.gold.groups, BOOTSTRAP_SEED)
        )
        rows += [row if both.all() else {**row, "n_wordings": int(both.sum())} for row in found]
    return with_holm(rows)


def _ann_recall(runs: ScoredRuns, opened: OpenIndex, name: str) -> dict[str, Any] | None:
    """Measure recall of an approximate index against exact search over the same vectors.

    The recall is given by seed and k; None for exact strategies.
    """
    spec, embedding = runs.spec(name), runs.spec(name).embeds_with
    if embedding is None or spec.store_name != "chroma":
        return None
    gold, depth = runs.gold, runs.config.depth
    source, texts = opened.index.source(embedding), gold.variants["text"].tolist()
    vectors = source.query_vectors(texts)
    exact = ExactSearch(source.chunk_vectors()).search(vectors, depth)
    cutoffs = [k for k in sorted({*runs.config.k, ALWAYS_K}) if k <= depth]
    result: dict[str, Any] = {}
    for seed in runs.config.seeds:
        request = Request(texts, depth, seed)
        approximate = approximate_search(opened.index, embedding, vectors, request)
        values = np.stack([ann_recall(approximate.rows, exact.rows, k) for k in cutoffs], axis=1)
        found = aggregate(
            [f"ann_recall_at_{k}" for k in cutoffs],
            values,
            gold.groups,
            BOOTSTRAP_SEED,
            query_of=gold.query_of,
        )
        result[str(seed)] = {record.label: interval_of(record) for record in found}
    return {"by_seed": result}


def _per_query_frame(runs: ScoredRuns) -> pd.DataFrame:
    """Write one row for each strategy, level, query, wording and seed.

    A strategy without randomness has rows under every configured seed.
    """
    gold, config = runs.gold, runs.config
    every = [
        machine_name(label)
        for label in dict.fromkeys(
            itertools.chain.from_iterable(labels_for(config.k)[level] for level in LEVELS)
        )
    ]
    parts = []
    for name in runs.names:
        scores = runs.scores(name)
        seeds = sorted(set(scores.seed.tolist()))
        copies = (
            [(seed, scores.seed == seed) for seed in seeds]
            if len(seeds) > 1
            else [(seed, scores.seed == seeds[0]) for seed in config.seeds]
        )
        for level, (seed, rows) in itertools.product(LEVELS, copies):
            variant = scores.variant[rows]
            columns = {
                machine_name(label): scores.values[level][rows, at]
                for at, label in enumerate(scores.labels[level])
            }
            part = pd.DataFrame(
                {key: columns.get(key, np.full(len(variant), np.nan)) for key in every}
            )
            part.insert(0, "failed", scores.failed[rows])
            part.insert(0, "eligible", ~np.isnan(scores.values[level][rows, 0]))
            part.insert(0, "seed", seed)
            part.insert(0, "paraphrase_id", gold.variants["paraphrase_id"].to_numpy()[variant])
            part.insert(0, "group_id", gold.variants["group_id"].to_numpy()[variant])
            part.insert(0, "query_id", gold.variants["query_id"].to_numpy()[variant])
            part.insert(0, "level", level)
            part.insert(0, "strategy", name)
            parts.append(part)
    return pd.concat(parts, ignore_index=True)


@dataclasses.dataclass(frozen=True)
class RankingFacts:
    """Measures of every strategy and their paired comparisons for the report."""

    strategies: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]


class RankingMeasures(Result):
    """Ranking measures: PER_QUERY frame, figures, and the overlap of two strategies."""

    per_query: pd.DataFrame = frame_part()
    about: RankingFacts = json_part()
    overlap: dict[str, Any] = json_part()


def measure_rankings(
    work: Work,
    *,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
) -> RankingMeasures:
    """Score every run at every level, then aggregate and compare the scores."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    opened, strategies = open_index(work.evaluation, admitted_chunks), []
    with work.progress.step("Scoring rankings", len(scored.names), "strategies") as advance:
        for name in scored.names:
            by_level = (_records(name, level, scored) for level in LEVELS)
            measures = list(itertools.chain.from_iterable(by_level))
            recall = _ann_recall(scored, opened, name)
            strategies.append({"name": name, "measures": measures, "ann_recall": recall})
            advance(1)
    with work.progress.step("Comparing strategies"):
        comparisons = _comparisons(scored, work.config.level)
    with work.progress.step("Comparing lists"):
        overlap = _overlap(scored)
    return RankingMeasures(
        per_query=_per_query_frame(scored),
        about=RankingFacts(strategies=strategies, comparisons=comparisons),
        overlap=overlap,
    )


# ---- Overlap stage: whether two strategies find the same items, and gold of the same questions.


@dataclasses.dataclass(frozen=True)
class FirstLists:
    """First results of a strategy for the original wording of each question, under its first seed.

    Parameters
    ----------
    items
        int64 [n_queries, ALWAYS_K]: codes of documents or sections, best first, -1 padded.
        All strategies share the codes.
    there
        bool [n_queries]: whether the strategy was run on the wording and did not fail.
    hit
        float64 [n_queries]: Success@10 at the headline level; NaN when nothing can be judged.
    """

    items: IntArray
    there: npt.NDArray[np.bool_]
    hit: FloatArray


def _overlap(runs: ScoredRuns) -> dict[str, Any]:
    """Build the part `overlap` of the report: k, unit, and one entry per pair of strategies."""
    names = _Names()
    lists = {name: _first_lists(runs, name, names) for name in runs.names}
    return {
        "k": ALWAYS_K,
        "unit": _unit(runs),
        "level": runs.config.level,
        "pairs": _pairs(runs, lists),
    }


def _unit(runs: ScoredRuns) -> str:
    """Choose the unit of the overlap: sections if judged below documents, else documents."""
    return "document" if runs.config.level == "document" else "section"


class _Names:
    """Codes of names that all strategies share. Units of an external retriever are not chunks."""

    def __init__(self) -> None:
        self.index: pd.Index[Any] = pd.Index([], dtype=object)

    def codes(self, names: "pd.Index[Any]", strategy: str) -> IntArray:
        # A unit without a known section has a numbered section of its own. The strategy is part of
        # its name, because equal numbers of two strategies mean different sections.
        own = pd.Index(
            [
                f"{name}\x00{strategy}" if name.startswith("\x00") else name
                for name in names.tolist()
            ],
            dtype=object,
        )
        self.index = pd.Index([*self.index, *own.difference(self.index, sort=False)], dtype=object)
        return np.asarray(self.index.get_indexer(own), dtype=np.int64)


def _first_lists(runs: ScoredRuns, name: str, names: _Names) -> FirstLists:
    gold, own, scores = runs.gold, runs.gold_of(name), runs.scores(name)
    seed = runs.first_seed(name)
    n = len(gold.queries)
    variant = np.full(n, -1, dtype=np.int64)
    first = np.flatnonzero((gold.variants["paraphrase_id"] == ORIGINAL).to_numpy())
    variant[gold.query_of[first]] = first
    of_unit, labels = (
        (own.document_of_chunk, own.documents)
        if _unit(runs) == "document"
        else (own.section_of_chunk, own.sections)
    )
    collapsed = collapse(runs.rows(name)[seed][variant], of_unit, ALWAYS_K)
    codes = names.codes(labels, name)
    items = np.where(collapsed >= 0, codes[collapsed], -1) if len(codes) else collapsed
    row_of = np.full(len(gold.variants), -1, dtype=np.int64)
    at_seed = np.flatnonzero(scores.seed == seed)
    row_of[scores.variant[at_seed]] = at_seed
    row = row_of[variant]
    there = ~scores.failed[row] if scores.ran is None else ~scores.failed[row] & scores.ran[row]
    return FirstLists(items, there, scores.column(runs.config.level, f"Success@{ALWAYS_K}")[row])


def _pairs(runs: ScoredRuns, lists: dict[str, FirstLists]) -> list[dict[str, Any]]:
    pairs = list(itertools.combinations(runs.names, 2))
    if not pairs:
        return []
    unsure = (
        {name: runs.unmeasured(name).get("section") for name in runs.names}
        if _unit(runs) == "section"
        else {}
    )
    shared = np.full((len(runs.gold.queries), len(pairs)), np.nan)
    for at, (a, b) in enumerate(pairs):
        # A strategy that does not name sections cannot share a section.
        if not unsure.get(a) and not unsure.get(b):
            shared[:, at] = np.where(
                lists[a].there & lists[b].there,
                shared_share(lists[a].items, lists[b].items),
                np.nan,
            )
    # One call for all pairs lets them share the bootstrap resamples.
    records = aggregate(
        [f"overlap@{ALWAYS_K}"] * len(pairs), shared, runs.gold.groups, BOOTSTRAP_SEED
    )
    found = []
    for (a, b), record in zip(pairs, records, strict=True):
        why = next(
            (f"{name}: {unsure[name]}" for name in (a, b) if unsure.get(name)),
            "no question has a list of both",
        )
        figure = interval_of(record) | ({} if record.n_scored else {"value_reason": why})
        found.append({"a": a, "b": b, "overlap": figure, **_hits(runs, a, b, lists)})
    return found


def _hits(runs: ScoredRuns, a: str, b: str, lists: dict[str, FirstLists]) -> dict[str, Any]:
    """Count the questions with gold in both lists, in one list and in neither.

    Only questions that both strategies are judged on count.
    """
    left, right, level = lists[a].hit, lists[b].hit, runs.config.level
    known = ~np.isnan(left) & ~np.isnan(right)
    one, two = left[known] > 0, right[known] > 0
    counts = {"both": one & two, "only_a": one & ~two, "only_b": ~one & two, "neither": ~one & ~two}
    why = next(
        (
            f"{name}: {runs.unmeasured(name)[level]}"
            for name in (a, b)
            if level in runs.unmeasured(name)
        ),
        "no question is judged for both",
    )
    return (
        {name: int(part.sum()) for name, part in counts.items()}
        | {"n": int(known.sum())}
        | ({} if known.any() else {"n_reason": why})
    )


# ---- Stability stage: whether all wordings of a question find the same, close evidence.

NO_SECOND_RUN = (
    "no question has a second wording, and none was run under a second seed:"
    " whether one is convergent is not known"
)
ZONES = ("stable", "transitional", "risk", "undefined")
STATES = ("convergent", "recursive", "divergent", "chaotic", "undefined")


def _shares(values: np.ndarray, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "share": number(float(np.mean(values == name))) if len(values) else None,
            "n": int(np.sum(values == name)),
        }
        for name in names
    }


def _interval(values: FloatArray, runs: ScoredRuns, label: str) -> dict[str, Any]:
    """Aggregate one value per query into value, interval and denominators."""
    return interval_of(aggregate([label], values[:, None], runs.gold.groups, BOOTSTRAP_SEED)[0])


def _distances(
    runs: ScoredRuns, name: str, source: EmbeddingSource
) -> tuple[dict[str, Any], FloatArray]:
    """Measure delta_s to the question, to the gold evidence and to the decoy.

    Returns the figures, and the distance of each run to its question.
    """
    gold, scores = runs.gold, runs.scores(name)
    top, reason = _top_chunks(runs, name)
    chunks = source.chunk_vectors()
    questions = source.query_vectors(gold.variants["text"].tolist())
    distance = delta_s(questions[scores.variant], chunks, top)
    owner = gold.query_of[scores.variant]
    anchor, decoy = _evidence_vectors(runs, chunks)
    to_anchor, to_decoy = (
        np.where(np.asarray(part.any(axis=1))[owner], delta_s(part[owner], chunks, top), np.nan)
        for part in (anchor, decoy)
    )
    both = np.where(
        np.isnan(to_anchor) | np.isnan(to_decoy), np.nan, equally_close(to_anchor, to_decoy)
    )
    values = np.stack([distance, to_anchor, to_decoy, both], axis=1)
    names = ["delta_s", "to_anchor", "to_decoy", "anchor_and_decoy_equally_close"]
    failed_value = [1.0, 1.0, 1.0, 0.0]
    failed = scores.failed if reason is None else np.zeros(len(owner), dtype=bool)
    lacks = [~part.any(axis=1) for part in (anchor, decoy)]
    # A failed retrieval has no distance to evidence or a decoy that the question lacks.
    ineligible = np.stack(
        [np.zeros(len(gold.queries), dtype=bool), *lacks, lacks[0] | lacks[1]], axis=1
    )
    found = aggregate(
        names,
        values,
        gold.groups,
        BOOTSTRAP_SEED,
        query_of=owner,
        failed=failed,
        failed_value=failed_value,
        ineligible=ineligible,
    )
    question, *others = (
        interval_of(record) | ({} if reason is None else {"value_reason": reason})
        for record in found
    )
    within = within_query(np.where(failed, 1.0, distance), owner, len(gold.queries))[:, 0]
    figures = {
        **question,
        "target": f"<= {DELTA_S_TARGET}",
        "zones": _shares(zones(within), ZONES),
        **dict(zip(names[1:], others, strict=True)),
    }
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
    others = int((chunk_of < 0).sum())
    if others or not len(chunk_of):
        reason = (
            f"{others} of {len(chunk_of)} retrieved units are no chunks of this corpus,"
            " whose vectors are compared"
            if others
            else "nothing was retrieved"
        )
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


def same_rankings(by_seed: Iterable[np.ndarray]) -> bool:
    """Check whether the rankings of all wordings are the same under every seed."""
    first, *others = by_seed
    return all(np.array_equal(first, other) for other in others)


def _wordings(runs: ScoredRuns, name: str) -> tuple[dict[str, Any], list[str]]:
    """Measure how much the wording and the seed matter.

    Returns the lambda states, variance shares, flips, and the best and worst wording. The second
    value is the state of each question, empty for questions without gold.
    """
    gold, level, scores = runs.gold, runs.config.level, runs.scores(name)
    cutoffs = sorted({*runs.config.k, ALWAYS_K})
    ran = slice(None) if scores.ran is None else np.flatnonzero(scores.ran)
    owner = gold.query_of[scores.variant][ran]
    hits = scores.cube(level, f"Success@{ALWAYS_K}", gold)
    eligible = ~np.isnan(hits).all(axis=(1, 2))
    overlap = mean_pairwise_rbo(scores.top[ran], owner, len(gold.queries))
    states = lambda_states(hits[eligible], overlap[eligible])
    shares = variance_shares(scores.cube(level, f"R@{ALWAYS_K}", gold))
    together = np.full(len(gold.queries), np.nan)
    together[eligible] = np.where(states.state == "undefined", np.nan, states.convergent_and_hit)
    flips = {}
    for k in cutoffs:
        cube = scores.cube(level, f"Success@{k}", gold)
        known = ~np.isnan(cube)
        changes = np.full(len(cube), np.nan)
        several = known.any(axis=2).sum(axis=1) > 1
        changes[several] = np.nanmax(cube[several], axis=(1, 2)) != np.nanmin(
            cube[several], axis=(1, 2)
        )
        flips[f"hit_at_{k}"] = _interval(changes, runs, f"hit@{k} changes")
    convergent = _interval(together, runs, "convergent and hit")
    if convergent["value"] is None and eligible.any():
        convergent["value_reason"] = NO_SECOND_RUN
    matrix = flip_matrix(hits)
    spread = wording_range(scores.cube(level, f"R@{ALWAYS_K}", gold))
    state = np.full(len(gold.queries), "", dtype=object)
    state[eligible] = states.state
    figures = {
        "level": level,
        "rbo": _interval(np.where(eligible, overlap, np.nan), runs, "rbo"),
        "lambda": _shares(states.state, STATES),
        "reasons": {
            reason: {"n": int(np.sum(states.reason == reason)), "cause": cause}
            for reason, (_, cause) in LAMBDA_REASONS.items()
            if (states.reason == reason).any()
        },
        "n_queries": int(eligible.sum()),
        "convergent_and_hit": convergent,
        "variance_shares": {
            "query": number(shares.query),
            "paraphrase": number(shares.paraphrase),
            "seed": number(shares.seed),
        },
        "hit_changes_with_wording": flips,
        "flip_matrix": {
            "wordings": wording_names(gold),
            "share": [[number(float(x)) for x in row] for row in matrix.share],
            "n": matrix.n.tolist(),
        },
        "recall_at_10_by_wording": {
            name: _interval(getattr(spread, name), runs, name) for name in ("worst", "mean", "best")
        },
        "seeds_change_nothing": None
        if len(runs.config.seeds) == 1
        else same_rankings(runs.rows(name).values()),
    }
    return figures, [str(one) for one in state]


@dataclasses.dataclass(frozen=True)
class StabilityFacts:
    """The embedding of delta_s, and figures by strategy for the report."""

    embedding: str
    strategies: dict[str, dict[str, Any]]


class StabilityMeasures(Result):
    """Stability: delta_s by strategy, question, wording and seed; lambda_state by question."""

    per_run: pd.DataFrame = frame_part()
    per_query: pd.DataFrame = frame_part()
    about: StabilityFacts = json_part()


def measure_stability(
    work: Work,
    *,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
) -> StabilityMeasures:
    """Measure whether all wordings of a question find the same evidence, close to the question."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    opened = open_index(work.evaluation, admitted_chunks)
    source = opened.index.source(stability_embedding(work.config))
    figures, parts, lambdas = {}, [], []
    queries, variants = gold_variants.queries, gold_variants.variants
    with work.progress.step("Measuring stability", len(scored.names), "strategies") as advance:
        for name in scored.names:
            scores = scored.scores(name)
            distances, per_run = _distances(scored, name, source)
            wordings, states = _wordings(scored, name)
            figures[name] = {"delta_s": distances, **wordings}
            ids = queries["query_id"].to_numpy()
            lambdas.append(
                pd.DataFrame({"strategy": name, "query_id": ids, "lambda_state": states})
            )
            columns = {
                column: variants[column].to_numpy()[scores.variant]
                for column in ("query_id", "paraphrase_id")
            }
            values = {"strategy": name, **columns, "seed": scores.seed, "delta_s": per_run}
            parts.append(pd.DataFrame(values))
            advance(1)
    return StabilityMeasures(
        per_run=pd.concat(parts, ignore_index=True),
        per_query=pd.concat(lambdas, ignore_index=True),
        about=StabilityFacts(embedding=source.model, strategies=figures),
    )


# ---- Trust of the retrieved units, blocked chunks in results, and the cost of the trust filter.

MAX_EXAMPLES = 20


@dataclasses.dataclass(frozen=True)
class Judged:
    """Verdicts of the guard on the units of one strategy.

    These are trust, verdict and reasons by row, and the (wording, unit) pairs that are blocked only
    as a pair.
    """

    trust: FloatArray
    verdict: npt.NDArray[np.object_]
    reasons: list[list[str]]
    names: pd.DataFrame
    pairs: npt.NDArray[np.int64]


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


def _judged(guarded: _Guarded, name: str) -> Judged:
    runs = guarded.runs
    if runs.runs[name].has_own_units:
        units, texts = runs.units(name), runs.gold_variants.texts
        found = unit_verdicts(
            runs.config, guarded.corpus_chunks, guarded.evidence_trust, texts, units
        )
        names = units.rename(columns={"unit_id": "chunk_id"})[["chunk_id", "doc_id"]]
        return Judged(found.trust, found.verdict, found.reasons, names, found.pairs)
    facts = guarded.facts
    pairs = guarded.restated.codes(len(facts))
    return Judged(
        facts["trust"].to_numpy(),
        facts["verdict"].to_numpy(dtype=object),
        facts["reasons"].tolist(),
        facts[["chunk_id", "doc_id"]],
        pairs,
    )


def _retrieved(guarded: _Guarded, name: str) -> dict[str, Any]:
    """Measure mean trust of the first ten, and list every blocked chunk in the results."""
    runs = guarded.runs
    judged, gold, has_trust = _judged(guarded, name), runs.gold, runs.config.trust.configured
    n_units = max(1, len(judged.names))
    blocked_unit = judged.verdict == "blocked"
    means, owners = [], []
    n_retrieved = n_blocked = n_warned = 0
    examples: dict[int, dict[str, Any]] = {}
    chunk_ids, doc_ids, query_ids = (
        judged.names["chunk_id"].tolist(),
        judged.names["doc_id"].tolist(),
        gold.variants["query_id"].tolist(),
    )
    for rows in runs.rows(name).values():
        found = rows >= 0
        codes = np.arange(len(rows), dtype=np.int64)[:, None] * n_units + rows
        restates = np.isin(codes, judged.pairs) & found
        bad = (blocked_unit[rows] & found) | restates if len(judged.names) else found & False
        n_retrieved += int(found.sum())
        n_blocked += int(bad.sum())
        n_warned += (
            int(((judged.verdict == "warning")[rows] & found & ~bad).sum())
            if len(judged.names)
            else 0
        )
        for variant, place in zip(*np.nonzero(bad), strict=True):
            unit = int(rows[variant, place])
            reasons = [
                *judged.reasons[unit],
                *(["restates_query.retrieved"] if restates[variant, place] else []),
            ]
            first = {
                "chunk_id": chunk_ids[unit],
                "doc_id": doc_ids[unit],
                "query_id": query_ids[variant],
                "rank": int(place) + 1,
            }
            entry = examples.setdefault(unit, {**first, "reasons": reasons, "n": 0})
            entry["n"] += 1
        top = rows[:, :ALWAYS_K]
        trust = np.where(top >= 0, judged.trust[top] if len(judged.names) else 0.0, np.nan)
        with_any = (top >= 0).any(axis=1)
        mean = np.full(len(rows), np.nan)
        mean[with_any] = np.nanmean(trust[with_any], axis=1) if has_trust else np.nan
        means.append(mean)
        owners.append(gold.query_of)
    figure = interval_of(
        aggregate(
            ["avg_trust_score"],
            np.concatenate(means)[:, None],
            gold.groups,
            BOOTSTRAP_SEED,
            query_of=np.concatenate(owners),
        )[0]
    )
    return {
        "avg_trust": figure if has_trust else {**figure, "value_reason": NOT_CONFIGURED},
        "n_retrieved": n_retrieved,
        "n_blocked": n_blocked,
        "n_warned": n_warned,
        "blocked": sorted(examples.values(), key=lambda entry: (-entry["n"], entry["chunk_id"]))[
            :MAX_EXAMPLES
        ],
    }


NOT_CONFIGURED = (
    "the gold set names no trusted domains, authors or keys, so there is nothing to trust by"
)


def _other_scores(work: Work, guarded: _Guarded, name: str) -> Scores:
    """Score the strategy with the opposite setting of the trust filter."""
    runs, config, threshold = guarded.runs, work.config, work.config.trust.threshold or 0.0
    if runs.runs[name].has_own_units:
        return _external_filtered(guarded, name)
    opened = open_index(work.evaluation, runs.admitted_chunks)
    strategy = ready_strategy(
        work.evaluation, opened, runs.spec(name), runs.gold_variants, runs.about(name).steered_by
    )
    allowed = None
    if not config.trust.filter:
        allowed = np.asarray(guarded.facts["trust"].to_numpy() >= threshold)
    texts, rows = runs.gold_variants.texts, {}
    for seed in runs.about(name).seeds:
        found, _ = guarded_search(
            config, strategy, texts, seed, allowed=allowed, restated=guarded.restated
        )
        padded = np.full((len(found.rows), config.depth), -1, dtype=np.int64)
        padded[:, : found.rows.shape[1]] = found.rows
        rows[seed] = padded
    return score_strategy(rows, runs.gold_of(name), config.k, runs.runs[name].failed)


def _external_filtered(guarded: _Guarded, name: str) -> Scores:
    """Remove units under the threshold from the results of an outside retriever.

    The retriever cannot be asked for the units behind them.
    """
    runs = guarded.runs
    below = _judged(guarded, name).trust < (runs.config.trust.threshold or 0.0)
    rows = {}
    for seed, ranked in runs.rows(name).items():
        gone = (ranked < 0) | (below[ranked] if len(below) else True)
        order = np.argsort(gone, axis=1, kind="stable")
        rows[seed] = np.take_along_axis(np.where(gone, -1, ranked), order, axis=1)
    scores = score_strategy(rows, runs.gold_of(name), runs.config.k, runs.runs[name].failed)
    return scores.limited(runs.ran(name), runs.unmeasured(name))


def _filter_cost(work: Work, guarded: _Guarded) -> dict[str, Any]:
    """Compare recall with and without the trust filter, paired by question."""
    runs = guarded.runs
    spec, level = runs.config.trust, runs.config.level
    if spec.threshold is None:
        return {"value": None, "reason": "no trust.threshold is configured"}
    facts = guarded.facts
    rows = []
    for name in [name for name in runs.names if level not in runs.unmeasured(name)]:
        if runs.runs[name].has_own_units and spec.filter:
            # The source ranks without this filter. Filtered figures would describe another system.
            continue
        own, other = runs.scores(name), _other_scores(work, guarded, name)
        pair = (own, other) if spec.filter else (other, own)
        columns = [own.labels[level].index(label) for label in COMPARED]
        with_filter, without = (
            scores.per_query(level, len(runs.gold.queries), runs.gold)[:, columns]
            for scores in pair
        )
        found = paired_comparison(with_filter, without, runs.gold.groups, BOOTSTRAP_SEED)
        values = [
            aggregate(COMPARED, part, runs.gold.groups, BOOTSTRAP_SEED)
            for part in (with_filter, without)
        ]
        for at, row in enumerate(comparison_rows("with", "without", level, found)):
            rows.append(
                {
                    "strategy": name,
                    **{key: value for key, value in row.items() if key not in {"a", "b"}},
                    "with_filter": interval_of(values[0][at]),
                    "without_filter": interval_of(values[1][at]),
                }
            )
    return {
        "threshold": spec.threshold,
        "applied": spec.filter,
        "n_chunks": len(facts),
        "n_below": int((facts["trust"] < spec.threshold).sum()),
        "rows": [
            {key: value for key, value in row.items() if key != "p"} for row in with_holm(rows)
        ],
    }


class TrustMeasures(Result):
    """Trust of the units that each strategy retrieved, and the cost of the trust filter."""

    strategies: dict[str, dict[str, Any]] = json_part()
    filter: dict[str, Any] = json_part()


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
    """Measure the trust of the retrieved units, and the blocked chunks in results."""
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
) -> dict[str, Any]:
    """Show measures of one level with interval and denominators, by strategy."""
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
    return {
        f"measures_{level}": Table(("strategy", "label", figure, *denominators), rows),
        "n_undefined": count_undefined(rows, "value"),
    }


def describe_ranking(result: RankingMeasures) -> dict[str, Any]:
    """Show the headline measures at the headline level, and how strategies compare."""
    about = result.about
    figures = ("a", "b", "measure", "delta", "ci_low", "ci_high", "p_adjusted")
    counts = ("n_better", "n_worse", "n_tied", "n_groups", "minimum_detectable")
    level = result.overlap["level"]
    return {
        "level": level,
        **list_measures(about.strategies, level, HEADLINE),
        "comparisons": Table((*figures, *counts), about.comparisons),
    }


def describe_stability(result: StabilityMeasures) -> dict[str, Any]:
    """Show delta_s, lambda states, and the effect of wordings on the results."""
    about, rows = result.about, []
    for name, figures in about.strategies.items():
        parts = {
            "delta_s": figures["delta_s"],
            "convergent and hit": figures["convergent_and_hit"],
            "rbo": figures["rbo"],
            "hit@10 changes with wording": figures["hit_changes_with_wording"]["hit_at_10"],
        }
        rows += [{"strategy": name, "measure": label, **figure} for label, figure in parts.items()]
    columns = ("strategy", "measure", "value", "ci_low", "ci_high", "n_scored", "n_ineligible")
    states = [
        {"strategy": name, **{state: entry["n"] for state, entry in figures["lambda"].items()}}
        for name, figures in about.strategies.items()
    ]
    return {
        "embedding": about.embedding,
        "stability": Table(columns, rows),
        "n_undefined": count_undefined(rows, "value"),
        "lambda_states": Table(("strategy", *STATES), states),
    }


def describe_trust(result: TrustMeasures) -> dict[str, Any]:
    """Show the trust of the retrieved units, and the cost of the trust filter."""
    rows = [
        {**entry, **entry["avg_trust"], "strategy": name}
        for name, entry in result.strategies.items()
    ]
    cost = [
        row | {part: row[part]["value"] for part in ("with_filter", "without_filter")}
        for row in result.filter.get("rows", ())
    ]
    columns = ("strategy", "value", "ci_low", "ci_high", "n_scored", "n_retrieved", "n_blocked")
    of_filter = ("strategy", "measure", "with_filter", "without_filter", "delta", "ci_low")
    return {
        "retrieved": Table((*columns, "n_warned"), rows),
        "n_undefined": count_undefined(rows, "value"),
        "trust_filter": Table((*of_filter, "ci_high", "n_groups"), cost),
    }


# ---- Access for stages that are not rows of the graph yet.


def ranking_measures(runs: Runs) -> Artifact:
    """Return the stored ranking measures."""
    return runs.evaluation.runner.get(RankingMeasures).artifact


def stability_measures(runs: Runs) -> Artifact:
    """Return the stored stability measures."""
    return runs.evaluation.runner.get(StabilityMeasures).artifact


def overlap(runs: Runs) -> dict[str, Any]:
    """Return the part `overlap` of the report."""
    return runs.evaluation.runner.get(RankingMeasures).overlap
