"""The trust stage: trust of the retrieved units, and the cost of the trust filter."""

from typing import Any

import numpy as np

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.records import Absent
from rag_eval.measures.intervals import COMPARED, aggregate, paired_comparison
from rag_eval.measures.run_scores import ALWAYS_K, Scores, figure_of, score_strategy
from rag_eval.measures.strategy_figures import compared_values, comparison_rows
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusChunks,
    CorpusSnapshot,
    EvidenceTrust,
    GoldVariants,
)
from rag_eval.pipeline.open_strategies import chosen_kinds, open_index
from rag_eval.pipeline.runner import Result, Stage, Work, json_part
from rag_eval.pipeline.runs import ScoredRuns, StrategyRun, score_runs, search_wordings
from rag_eval.trust.guard import UnitVerdicts, judge_units, verdicts_of_chunks
from rag_eval.trust.summary import (
    NOT_CONFIGURED,
    JudgedChunks,
    average_trust,
    make_trust_filter,
    make_trust_part,
    summarise_retrieved,
)
from rag_eval.trust.trust_report import RetrievedTrust, TrustFilter, TrustPart


class TrustMeasures(Result):
    """Trust of the units that each strategy retrieved, and the cost of the trust filter."""

    about: TrustPart = json_part()

    def report_part(self, _: Work) -> dict[str, Any]:
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
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    facts = admitted_chunks.trust_of(evidence_trust)
    of_chunks = verdicts_of_chunks(facts)
    strategies = {}
    with work.progress.step(
        "Judging the trust of what was retrieved", len(scored.names), "strategies"
    ) as advance:
        for name in scored.names:
            units = of_chunks
            if scored.runs[name].has_own_units:
                own_units, chunks = scored.units(name), corpus_chunks.chunks
                units = judge_units(own_units, chunks, evidence_trust.trust)
            strategies[name] = _measure_retrieved(scored, name, units)
            advance(1)
    documents = corpus_snapshot.documents
    urls = dict(zip(documents["doc_id"].tolist(), documents["source_url"].tolist(), strict=True))
    part = make_trust_part(
        work.config.trust,
        evidence_trust.about,
        JudgedChunks(evidence_trust.trust, admitted_chunks.rows, urls),
        gold_variants.blocked,
        retrieved=strategies,
        cost=_filter_cost(work, scored, facts["trust"].to_numpy()),
    )
    return TrustMeasures(about=part)


def _measure_retrieved(runs: ScoredRuns, name: str, units: UnitVerdicts) -> RetrievedTrust:
    """Measure mean trust of the first ten results, and list every blocked unit in the results."""
    gold, by_seed = runs.gold, runs.rows(name)
    rows, has_trust = np.concatenate(list(by_seed.values())), runs.config.trust.configured
    means = np.full(len(rows), np.nan)
    if has_trust:
        means = average_trust(units.trust, rows[:, :ALWAYS_K])
    asked = np.tile(gold.query_of, len(by_seed))
    record = aggregate(["avg_trust_score"], means[:, None], gold.shared, query_of=asked)[0]
    average = figure_of(record, None if has_trust else NOT_CONFIGURED)
    return summarise_retrieved(units, gold.variants["query_id"].tolist(), rows, average)


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
            (figure_of(left), figure_of(right)) for left, right in zip(*records, strict=True)
        ]
    return make_trust_filter(spec, trust, comparison_rows(pairs, level), figures)


def _other_scores(work: Work, runs: ScoredRuns, name: str, trust: FloatArray) -> Scores:
    """Score the strategy with the opposite setting of the trust filter."""
    config = work.config
    rows = dict[int, IntArray]()
    run = runs.runs[name]
    opened = open_index(work.evaluation, runs.admitted_chunks)
    variants = runs.gold_variants.variants
    strategy = opened.ready(runs.spec(name), variants, run.about.steered_by)
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
