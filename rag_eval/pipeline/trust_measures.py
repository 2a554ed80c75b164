"""The trust stage: trust of the retrieved units, the guard's findings, and the filter's cost."""

from typing import Any

import numpy as np
import pandas as pd

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
from rag_eval.pipeline.index import chosen_kinds, open_index
from rag_eval.pipeline.retrieval import ScoredRuns, StrategyRun, score_runs, search_wordings
from rag_eval.pipeline.runner import Result, Stage, Work, json_part
from rag_eval.trust.guard import UnitVerdicts, judge_units
from rag_eval.trust.trust_report import (
    NOT_CONFIGURED,
    BlockedRow,
    FilterRow,
    RetrievedTrust,
    TrustFilter,
    TrustPart,
)

_MAX_EXAMPLES = 20
"""Most blocked units of a strategy that the report names."""


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
