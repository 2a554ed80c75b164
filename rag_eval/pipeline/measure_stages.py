"""Stages of measures: rankings, stability, missed questions, the measures of ragas, and trust."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.records import Absent, ComparedPair, Measure
from rag_eval.core.types import Level
from rag_eval.measures.answers import RagasFigure, measure_contexts
from rag_eval.measures.intervals import COMPARED, aggregate, paired_comparison
from rag_eval.measures.run_scores import ALWAYS_K, Scores, figure_of, score_strategy
from rag_eval.measures.stability import StabilityPart, measure_wordings
from rag_eval.measures.strategy_figures import (
    AnnRecall,
    SlicesPart,
    compare_strategies,
    compared_values,
    comparison_rows,
    list_scores,
    measure_strategy,
)
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusChunks,
    CorpusSnapshot,
    EvidenceTrust,
    GoldVariants,
)
from rag_eval.pipeline.evaluation import chosen_kinds
from rag_eval.pipeline.retrieval import CorpusIndex, open_index
from rag_eval.pipeline.runner import Result, Stage, Work, frame_part, json_part
from rag_eval.pipeline.strategy_runs import (
    ScoredRuns,
    StrategyRun,
    score_runs,
    search_depth,
    search_wordings,
)
from rag_eval.retrieval.ranking import Ranking
from rag_eval.trust.guard import UnitVerdicts, judge_units
from rag_eval.trust.trust_report import (
    NOT_CONFIGURED,
    BlockedRow,
    FilterRow,
    RetrievedTrust,
    TrustFilter,
    TrustPart,
)
from rag_eval.uncertainty import misses
from rag_eval.uncertainty.miss_rate_report import MissesPart
from rag_eval.uncertainty.opened_index import OpenIndex, stability_embedding


@dataclasses.dataclass(frozen=True)
class StrategyMeasures:
    """Ranking measures of one strategy."""

    name: str
    measures: list[Measure]
    ann_recall: AnnRecall | None


@dataclasses.dataclass(frozen=True)
class RankingFacts:
    """Measures of every strategy and their paired comparisons, at the headline level `level`."""

    level: Level
    strategies: list[StrategyMeasures]
    comparisons: list[ComparedPair]


class RankingMeasures(Result):
    """Ranking measures: by question and wording, figures, and those of the questions by tag.

    `per_query` has strategy, level, query_id, group_id, paraphrase_id, seed, eligible, failed, mrr,
    ndcg_at_10, and for each k recall, success, precision and the judged share.
    """

    per_query: pd.DataFrame = frame_part()
    about: RankingFacts = json_part()
    slices: SlicesPart = json_part()

    def report_part(self, _: Work) -> dict[str, object]:
        """Give the measures of the strategies, their paired comparisons, and the slices."""
        strategies = {
            entry.name: {"measures": entry.measures, "ann_recall": entry.ann_recall}
            for entry in self.about.strategies
        }
        comparisons, slices = self.about.comparisons, self.slices
        return {"strategies": strategies, "comparisons": comparisons, "slices": slices}


@Stage(
    "ranking_measures",
    "measures",
    reads=("k", "level", "depth", "seeds", "uncertainty.k"),
)
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
            measures, recall = measure_strategy(scored, opened.index, name)
            strategies.append(StrategyMeasures(name, measures, recall))
            advance(1)
    with work.progress.step("Comparing strategies"):
        comparisons = compare_strategies(scored)
    return RankingMeasures(
        per_query=list_scores(scored),
        about=RankingFacts(work.config.level, strategies, comparisons),
        slices=SlicesPart.of(scored),
    )


class StabilityMeasures(Result):
    """Stability: delta_s by strategy, question, wording and seed; lambda_state by question."""

    per_run: pd.DataFrame = frame_part()
    per_query: pd.DataFrame = frame_part()
    about: StabilityPart = json_part(report="stability")


@Stage(
    "stability_measures",
    "measures",
    stores=("embeddings",),
    reads=("k", "level", "depth", "seeds", "strategies"),
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
            figures[name], per_run, states = measure_wordings(scored, name, source)
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


class MissedQuestions(Result):
    """Missed questions of every strategy (MISSED), and their counts for the report."""

    missed: pd.DataFrame = frame_part()
    about: dict[str, MissesPart] = json_part(report="misses")


@Stage(
    "missed_questions",
    "measures",
    stores=("embeddings",),
    reads=("level", "depth", "strategies", "trust.filter", "trust.quarantine"),
    chosen=chosen_kinds,
)
def trace_misses(
    work: Work,
    *,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
    corpus_index: CorpusIndex,  # noqa: ARG001 - identifies the vectors of the opened index
) -> MissedQuestions:
    """Find the step that lost the gold of each missed question."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    opened, parts, about = open_index(work.evaluation, admitted_chunks), [], {}

    def search(name: str, variant: IntArray) -> Mapping[str, Ranking]:
        return _search_again(scored, opened, name, variant)

    with work.progress.step("Tracing misses", len(scored.names), "strategies") as advance:
        for name in scored.names:
            frame, about[name] = misses.trace_misses(scored, name, search)
            parts.append(frame)
            advance(1)
    return MissedQuestions(missed=pd.concat(parts, ignore_index=True), about=about)


def _search_again(
    runs: ScoredRuns, opened: OpenIndex, name: str, variant: IntArray
) -> Mapping[str, Ranking]:
    """Search as the run did, and return the list by step; none for an external strategy."""
    if name not in opened.strategies:
        return {}
    config, gold, n_chunks = runs.config, runs.gold_variants, len(opened.table)
    ignored = gold.own_documents(config, runs.chunks["doc_id"])
    lists = opened.strategies[name].trace(
        gold.variants["text"].iloc[variant].tolist(),
        search_depth(config, ignored, n_chunks),
        runs.first_seed(name),
        allowed=runs.admitted_chunks.passes if config.trust.filter else None,
    )
    place = np.full(len(gold.variants), -1, dtype=np.int64)
    place[variant] = np.arange(len(variant))
    owner = place[ignored // n_chunks]
    codes = (owner * n_chunks + ignored % n_chunks)[owner >= 0]
    return lists | {"ranked": lists["ranked"].without(codes, n_chunks)}


class RagasMeasures(Result):
    """Measures of ragas for the primary strategy, each beside our measure on equal inputs."""

    shown = ("figures",)
    figures: list[RagasFigure] = json_part(report="ragas")


@Stage(
    "ragas_measures",
    "measures",
    reads=("primary_strategy",),
    configured=lambda config: config.ragas,
)
def measure_with_ragas(
    work: Work,
    *,
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
    ranking_measures: RankingMeasures,
    runs: dict[str, StrategyRun],
) -> RagasMeasures:
    """Let ragas compute its measures that need no model, beside ours on equal inputs."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    with work.progress.step("Measuring with ragas"):
        figures = measure_contexts(scored, ranking_measures.per_query)
    return RagasMeasures(figures=figures)


# ---- Stage: trust of the retrieved units, and the cost of the trust filter.

_MAX_EXAMPLES = 20
"""Most blocked units of a strategy that the report names."""


class TrustMeasures(Result):
    """Trust of the units that each strategy retrieved, and the cost of the trust filter."""

    about: TrustPart = json_part()

    def report_part(self, _: Work) -> dict[str, object]:
        """Give the part `trust`."""
        return {"trust": self.about}


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
    corpus_snapshot: CorpusSnapshot,
    corpus_chunks: CorpusChunks,
    evidence_trust: EvidenceTrust,
    admitted_chunks: AdmittedChunks,
) -> TrustMeasures:
    """Measure the trust of retrieved chunks, and recall with and without the trust filter."""
    config = work.config.trust
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    facts = admitted_chunks.trust_of(evidence_trust)
    of_chunks = UnitVerdicts.of_chunks(facts)
    retrieved = {}
    with work.progress.step(
        "Judging the trust of what was retrieved", len(scored.names), "strategies"
    ) as advance:
        for name in scored.names:
            units = of_chunks
            if scored.runs[name].has_own_units:
                own_units, chunks = scored.units(name), corpus_chunks.chunks
                units = judge_units(own_units, chunks, evidence_trust.trust)
            retrieved[name] = _measure_retrieved(scored, name, units)
            advance(1)
    documents = corpus_snapshot.documents.set_index("doc_id")
    trust = evidence_trust.trust
    trust = trust.assign(
        source_url=documents["source_url"].loc[trust["doc_id"]].to_numpy(),
        is_indexed=np.isin(np.arange(len(trust)), admitted_chunks.rows),
    )
    cost = _filter_cost(work, scored, facts["trust"].to_numpy())
    blocked = gold_variants.blocked
    part = TrustPart.of(config, evidence_trust.about, trust, blocked, retrieved, cost)
    return TrustMeasures(about=part)


def _measure_retrieved(runs: ScoredRuns, name: str, units: UnitVerdicts) -> RetrievedTrust:
    """Measure mean trust of the first ten results, and list blocked units, most frequent first."""
    gold, by_seed = runs.gold, runs.rows(name)
    rows, has_trust = np.concatenate(list(by_seed.values())), runs.config.trust.configured
    means = np.full(len(rows), np.nan)
    if has_trust:
        # An empty place has row -1, which reads the appended last entry.
        first = rows[:, :ALWAYS_K]
        with_any = (first >= 0).any(axis=1)
        means[with_any] = np.nanmean(np.append(units.trust, np.nan)[first[with_any]], axis=1)
    asked = np.tile(gold.query_of, len(by_seed))
    record = aggregate(["avg_trust_score"], means[:, None], gold.shared, query_of=asked)[0]
    verdict = np.append(units.verdict, "")[rows]
    run, place = np.nonzero(verdict == "blocked")
    query_ids = gold.variants["query_id"].tolist()
    results = pd.DataFrame(
        {"unit": rows[run, place], "variant": run % len(query_ids), "rank": place + 1}
    )
    results["n"] = results.groupby("unit")["unit"].transform("size")
    results = results.drop_duplicates("unit").join(units.names, on="unit")
    results = results.sort_values(["n", "chunk_id"], ascending=[False, True]).head(_MAX_EXAMPLES)
    blocked = [
        BlockedRow.model_validate(
            {name: row[name] for name in ("chunk_id", "doc_id", "rank", "n")}
            | {"query_id": query_ids[row["variant"]], "reasons": units.reasons[row["unit"]]}
        )
        for row in results.to_dict("records")
    ]
    return RetrievedTrust(
        avg_trust=figure_of(record, None if has_trust else NOT_CONFIGURED),
        n_retrieved=int((rows >= 0).sum()),
        n_blocked=len(run),
        n_warned=int((verdict == "warning").sum()),
        blocked=blocked,
    )


def _filter_cost(work: Work, runs: ScoredRuns, trust: FloatArray) -> TrustFilter | Absent:
    """Compare recall with and without the trust filter, paired by question."""
    spec, level, gold = runs.config.trust, runs.config.level, runs.gold.shared
    if spec.threshold is None:
        return Absent(reason="no trust.threshold is configured")
    pairs, figures = [], []
    for name in runs.names:
        # An external source ranks without the trust filter. Filtered figures would describe another
        # system.
        if runs.runs[name].has_own_units or level in runs.unmeasured(name):
            continue
        scores, other = runs.scores(name), _other_scores(work, runs, name, trust)
        both = (scores, other) if spec.filter else (other, scores)
        filtered, whole = (compared_values(runs, part) for part in both)
        pairs.append((name, "", paired_comparison(filtered, whole, gold)))
        records = (aggregate(COMPARED, part, gold) for part in (filtered, whole))
        figures += [
            {"with_filter": figure_of(left), "without_filter": figure_of(right)}
            for left, right in zip(*records, strict=True)
        ]
    rows = [
        FilterRow.model_validate(
            {key: value for key, value in row.items() if key not in {"a", "b", "p"}}
            | {"strategy": row["a"], **both_figures}
        )
        for row, both_figures in zip(comparison_rows(pairs, level), figures, strict=True)
    ]
    return TrustFilter(
        threshold=spec.threshold,
        applied=spec.filter,
        n_chunks=len(trust),
        n_below=int((trust < spec.threshold).sum()),
        rows=rows,
    )


def _other_scores(work: Work, runs: ScoredRuns, name: str, trust: FloatArray) -> Scores:
    """Score the strategy with the opposite setting of the trust filter."""
    config = work.config
    rows = dict[int, IntArray]()
    run = runs.runs[name]
    opened = open_index(work.evaluation, runs.admitted_chunks)
    strategy = opened.ready(runs.spec(name), runs.gold_variants.variants, run.about.steered_by)
    passes = np.asarray(trust >= (config.trust.threshold or 0.0))
    for seed in run.about.seeds:
        ranked = search_wordings(
            config,
            strategy,
            runs.gold_variants.texts,
            seed,
            allowed=None if config.trust.filter else passes,
            ignored=runs.gold_variants.own_documents(config, runs.chunks["doc_id"]),
        )
        empty = ((0, 0), (0, config.depth - ranked.rows.shape[1]))
        rows[seed] = np.pad(ranked.rows.astype(np.int64), empty, constant_values=-1)
    return score_strategy(rows, runs.gold, config.k, run.failed)
