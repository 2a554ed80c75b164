"""Stages of measures: rankings, stability, missed questions, and the measures of ragas."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd

from rag_eval.core.arrays import IntArray
from rag_eval.core.records import ComparedPair, Measure
from rag_eval.core.types import Level
from rag_eval.measures.answers import RagasFigure, measure_contexts
from rag_eval.measures.run_scores import LEVELS
from rag_eval.measures.stability import StabilityPart, measure_wordings
from rag_eval.measures.strategy_figures import (
    AnnRecall,
    SlicesPart,
    compare_strategies,
    list_scores,
    measure_approximation,
    measure_level,
    measure_slices,
)
from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
from rag_eval.pipeline.index import CorpusIndex, chosen_kinds, open_index
from rag_eval.pipeline.retrieval import ScoredRuns, StrategyRun, score_runs, search_depth
from rag_eval.pipeline.runner import Result, Stage, Work, frame_part, json_part
from rag_eval.retrieval.ranking import Ranking
from rag_eval.uncertainty import lost_gold
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
            measures = [row for level in LEVELS for row in measure_level(scored, name, level)]
            recall = measure_approximation(scored, opened.index, name)
            strategies.append(StrategyMeasures(name, measures, recall))
            advance(1)
    with work.progress.step("Comparing strategies"):
        comparisons = compare_strategies(scored)
    return RankingMeasures(
        per_query=list_scores(scored),
        about=RankingFacts(work.config.level, strategies, comparisons),
        slices=measure_slices(scored),
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
            frame, about[name] = lost_gold.trace_misses(scored, name, search)
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
