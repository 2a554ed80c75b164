"""The trust stage: trust of the retrieved units, and the cost of the trust filter."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, IntArray
from rag_eval.core.records import Absent
from rag_eval.measures.gold_arrays import GoldArrays
from rag_eval.measures.intervals import aggregate
from rag_eval.measures.paired import paired_comparison
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusChunks,
    CorpusSnapshot,
    EvidenceTrust,
    GoldVariants,
)
from rag_eval.pipeline.index import chosen_kinds, open_index, ready_strategy
from rag_eval.pipeline.measures import COMPARED, compared_values, comparison_rows
from rag_eval.pipeline.retrieval import StrategyRun, search_wordings
from rag_eval.pipeline.runner import Result, Stage, Work, json_part
from rag_eval.pipeline.scores import (
    ALWAYS_K,
    ScoredRuns,
    Scores,
    figure_of,
    score_runs,
    score_strategy,
)
from rag_eval.trust.guard import UnitVerdicts, judge_units
from rag_eval.trust.summary import NOT_CONFIGURED, JudgedChunks, make_trust_part
from rag_eval.trust.trust_report import (
    BlockedRow,
    FilterRow,
    RetrievedTrust,
    TrustFilter,
    TrustPart,
)

MAX_EXAMPLES = 20


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
    guarded = _Guarded(scored, corpus_chunks, evidence_trust)
    strategies = {}
    with work.progress.step(
        "Judging the trust of what was retrieved", len(scored.names), "strategies"
    ) as advance:
        for name in scored.names:
            strategies[name] = _retrieved(guarded, name)
            advance(1)
    documents = corpus_snapshot.documents
    urls = dict(zip(documents["doc_id"].tolist(), documents["source_url"].tolist(), strict=True))
    part = make_trust_part(
        work.config.trust,
        evidence_trust.about,
        JudgedChunks(evidence_trust.trust, admitted_chunks.rows, urls),
        gold_variants.blocked,
        retrieved=strategies,
        cost=_filter_cost(work, guarded),
    )
    return TrustMeasures(about=part)


@dataclasses.dataclass(frozen=True)
class _Guarded:
    """The runs, with the guard's verdicts on the corpus."""

    runs: ScoredRuns
    corpus_chunks: CorpusChunks
    evidence_trust: EvidenceTrust

    @functools.cached_property
    def facts(self) -> pd.DataFrame:
        """EVIDENCE_TRUST of the admitted chunks."""
        return self.runs.admitted_chunks.trust_of(self.evidence_trust)


def _retrieved(guarded: _Guarded, name: str) -> RetrievedTrust:
    """Measure mean trust of the first ten results, and list every blocked chunk in the results."""
    runs, gold = guarded.runs, guarded.runs.gold
    units, names = _judge_units(guarded, name)
    by_seed = runs.rows(name)
    rows = np.concatenate(list(by_seed.values()))
    variant = np.tile(np.arange(len(gold.query_of)), len(by_seed))
    # An empty place has row -1, which reads the appended last entry.
    verdict = np.append(units.verdict, "")[rows]
    blocked = verdict == "blocked"
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
        n_warned=int((verdict == "warning").sum()),
        blocked=_list_blocked(units, names, gold, rows, blocked),
    )


def _judge_units(guarded: _Guarded, name: str) -> tuple[UnitVerdicts, pd.DataFrame]:
    """Return the guard's verdicts on the units of a strategy, and their chunk_id and doc_id."""
    runs = guarded.runs
    if runs.runs[name].has_own_units:
        units = runs.units(name)
        chunks, evidence = guarded.corpus_chunks.chunks, guarded.evidence_trust.trust
        verdicts = judge_units(units, chunks, evidence, runs.config.trust)
        return verdicts, units.rename(columns={"unit_id": "chunk_id"})[["chunk_id", "doc_id"]]
    facts = guarded.facts
    return UnitVerdicts(
        facts["trust"].to_numpy(),
        facts["verdict"].to_numpy(dtype=object),
        facts["reasons"].tolist(),
    ), facts[["chunk_id", "doc_id"]]


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
    query_ids = gold.variants["query_id"].tolist()
    examples = []
    for row in found.to_dict("records"):
        about = {name: row[name] for name in ("chunk_id", "doc_id", "rank", "n")}
        about |= {"query_id": query_ids[row["variant"]], "reasons": units.reasons[row["unit"]]}
        examples.append(BlockedRow.model_validate(about))
    return examples


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
        found = search_wordings(
            config,
            strategy,
            runs.gold_variants.texts,
            seed,
            allowed=allowed,
            ignored=runs.gold_variants.own_documents(config, runs.chunks["doc_id"]),
        )
        empty = ((0, 0), (0, config.depth - found.rows.shape[1]))
        rows[seed] = np.pad(found.rows.astype(np.int64), empty, constant_values=-1)
    return score_strategy(rows, runs.gold, config.k, run.failed)
