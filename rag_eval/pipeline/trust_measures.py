"""The trust stage: trust of the retrieved units, the guard's findings, and the filter's cost."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from rag_eval.core.arrays import FloatArray, IntArray, number
from rag_eval.core.errors import quoted
from rag_eval.core.records import Absent
from rag_eval.corpus.masking import mask_shown_address
from rag_eval.gold.lint import BlockedGold
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
    BlockedRow,
    FilterRow,
    Poisoning,
    RetrievedTrust,
    TrustConfigured,
    TrustFilter,
    TrustPart,
    TrustScores,
)

_NOT_CONFIGURED: Final = (
    "the gold set names no trusted domains, authors or keys, so trust is not known"
)
_MAX_QUARANTINED, _MAX_ID = 50, 200
_MAX_EXAMPLES = 20
"""Most blocked units of a strategy that the report names."""
_STATES = ("domain_state", "signature_state", "author_state", "freshness_state")


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
    documents, trust = corpus_snapshot.documents, evidence_trust.trust
    urls = dict(zip(documents["doc_id"].tolist(), documents["source_url"].tolist(), strict=True))
    part = TrustPart(
        as_of=evidence_trust.about.as_of,
        notes=evidence_trust.about.notes,
        configured=TrustConfigured(
            domains=len(config.domains),
            authors=len(config.authors),
            keys=len(config.keys),
            manifest=config.manifest is not None,
            unlisted=config.unlisted,
        ),
        scores=_summarise_scores(trust),
        states={name: dict(sorted(Counter(trust[name]).items())) for name in _STATES},
        retrieved=retrieved,
        filter=_filter_cost(work, scored, facts["trust"].to_numpy()),
        poisoning=_summarise_guard(
            work, evidence_trust, admitted_chunks.rows, urls, gold_variants.blocked, retrieved
        ),
    )
    return TrustMeasures(about=part)


def _summarise_scores(trust: pd.DataFrame) -> TrustScores | Absent:
    """Summarise the trust of all chunks, including quarantined ones."""
    values = trust["trust"].dropna().to_numpy()
    if not len(values):
        return Absent(reason=_NOT_CONFIGURED)
    summary = {name: number(getattr(values, name)()) for name in ("mean", "min", "max")}
    return TrustScores.model_validate({"n_chunks": len(values), **summary})


def _summarise_guard(  # noqa: PLR0917 - the parts of one summary
    work: Work,
    evidence: EvidenceTrust,
    admitted: IntArray,
    urls: Mapping[str, str],
    gold: BlockedGold,
    retrieved: Mapping[str, RetrievedTrust],
) -> Poisoning:
    """Describe the findings of the guard, with at most fifty relevant documents and chunks."""
    config, trust = work.config.trust, evidence.trust
    blocked = trust[trust["verdict"] == "blocked"]
    left_out = trust[~np.isin(np.arange(len(trust)), admitted)] if config.withheld else blocked
    reasons = Counter(code for codes in trust["reasons"].tolist() for code in codes)
    documents = [
        document.model_copy(update={"doc_id": quoted(document.doc_id, _MAX_ID)})
        for document in gold.documents[:_MAX_QUARANTINED]
    ]
    return Poisoning.model_validate(
        {
            "rules_version": evidence.about.rules_version,
            "quarantine": config.quarantine,
            "n_chunks": len(trust),
            "n_documents": int(trust["doc_id"].nunique()),
            "n_quarantined": len(trust) - len(admitted),
            "n_blocked": len(blocked),
            "n_blocked_documents": int(blocked["doc_id"].nunique()),
            "n_warned": int((trust["verdict"] == "warning").sum()),
            "n_allowed": int((trust["allowed_by"] != "").sum()),
            "reasons": dict(sorted(reasons.items())),
            "manifest": evidence.about.manifest,
            "quarantined": [
                {
                    "chunk_id": row["chunk_id"],
                    "doc_id": quoted(row["doc_id"], _MAX_ID),
                    "source_url": quoted(mask_shown_address(urls[row["doc_id"]]), _MAX_ID),
                    "reasons": list(row["reasons"]),
                }
                for row in left_out.head(_MAX_QUARANTINED).to_dict("records")
            ],
            "gold": gold.model_copy(update={"documents": documents}),
            "retrieved": {
                name: sum(getattr(part, name) for part in retrieved.values())
                for name in ("n_retrieved", "n_blocked", "n_warned")
            },
        }
    )


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
        avg_trust=figure_of(record, None if has_trust else _NOT_CONFIGURED),
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
