"""The signal stage: signals of a miss in every ranking, before any outcome is known."""

import dataclasses
from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.strategy import Strategy
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
from rag_eval.pipeline.index import (
    CorpusIndex,
    OpenIndex,
    batch_of,
    can_be_asked,
    chosen_kinds,
    open_index,
    ready_strategy,
)
from rag_eval.pipeline.retrieval import StrategyRun, read_ranking
from rag_eval.pipeline.runner import Result, Stage, Work, frame_part, json_part
from rag_eval.pipeline.scores import ScoredRuns, score_runs
from rag_eval.retrieval.ranking import Ranking
from rag_eval.uncertainty.calibrators import Outcomes, strategy_fingerprint
from rag_eval.uncertainty.expansion import ExpansionContext
from rag_eval.uncertainty.gaps import semantic_gaps
from rag_eval.uncertainty.heuristic import heuristic_v0
from rag_eval.uncertainty.signals import SIGNALS, RankedBatch, TermSpace, signals
from rag_eval.uncertainty.traffic import Claim, TrafficStore

MAX_GAPS = 5
"""Largest number of semantic gaps of a retrieval. The most severe ones stay."""


@dataclasses.dataclass(frozen=True)
class TrafficFacts:
    """Numbers of counted and uncounted claims of production traffic, with the reason."""

    counted: int = 0
    left_out: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class SignalFacts:
    """Fingerprint of a strategy, and facts on its signals."""

    fingerprint: str
    has_gaps: bool
    """Whether semantic gaps were computed. They need retrieved units that are chunks."""
    traffic: TrafficFacts


class RetrievalSignals(Result):
    """Signals of every retrieval of every strategy, with facts by strategy.

    `signals` has strategy, variant, seed, failed, heuristic_v0, and one column per signal, NaN if
    undefined. `gaps` has strategy, variant, seed, description, severity, mitigation; the most
    severe gap comes first. `traffic` has the counted claims of production traffic: strategy,
    claim_id, query_id, group_id, and the signals of the current retrieval.
    """

    signals: pd.DataFrame = frame_part()
    gaps: pd.DataFrame = frame_part()
    traffic: pd.DataFrame = frame_part()
    about: dict[str, SignalFacts] = json_part()

    def signals_of(self, name: str) -> pd.DataFrame:
        """Return the signals of one strategy."""
        return of_strategy(self.signals, name).reset_index(drop=True)

    def traffic_of(self, name: str) -> pd.DataFrame:
        """Return the claims of production traffic of one strategy."""
        return of_strategy(self.traffic, name).reset_index(drop=True)

    def unlabelled(self, name: str) -> FloatArray:
        """Return the signals of all known queries, float64 [n, p], as the base of z-scores."""
        own, traffic = self.signals_of(name).query("not failed"), self.traffic_of(name)
        return np.vstack([part[list(SIGNALS)].to_numpy() for part in (own, traffic)])


def of_strategy(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Select the rows of one strategy."""
    return frame[frame["strategy"] == name]


def _identify_traffic(
    work: Work, runs: Mapping[str, StrategyRun], corpus_index: CorpusIndex, **_: Result
) -> object:
    """Identify the imported claims of every strategy."""
    del corpus_index
    outcomes = Outcomes(work.evaluation.settings)
    if outcomes.store is None:
        return outcomes.fault
    claims = TrafficStore(outcomes.store.sql)
    return {
        name: [claim.claim_id for claim in claims.claims(_fingerprint(work, run))]
        for name, run in runs.items()
    }


def _fingerprint(work: Work, run: StrategyRun) -> str:
    spec = work.config.strategy(run.about.name)
    return strategy_fingerprint(work.config, spec, run.about.index_hash)


@Stage(
    "retrieval_signals",
    "uncertainty",
    stores=("embeddings", "traffic"),
    reads=("name", "level", "depth", "seeds", "strategies", "trust", "uncertainty.k"),
    outside=_identify_traffic,
    chosen=chosen_kinds,
)
def collect_signals(
    work: Work,
    *,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
    corpus_index: CorpusIndex,  # noqa: ARG001 - identifies the vectors of the opened index
) -> RetrievalSignals:
    """Compute the signals of a miss in every ranking, and in those of production traffic."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    opened = open_index(work.evaluation, admitted_chunks)
    parts, traffic, about = list[pd.DataFrame](), list[pd.DataFrame](), dict[str, SignalFacts]()
    gaps: list[tuple[str | int, ...]] = []
    with work.progress.step("Reading signals", len(scored.names), "strategies") as advance:
        for name in scored.names:
            batches = _stored_batches(scored, opened, name)
            has_gaps = all(batch.space is opened.terms for batch in batches.values())
            for seed, batch in batches.items():
                parts.append(_signal_rows(scored, name, seed, batch))
                if has_gaps:
                    gaps += _gap_rows(scored, opened, name, seed, batch)
            fingerprint = _fingerprint(work, runs[name])
            counted, facts = _count_traffic(work, scored, opened, name, fingerprint)
            traffic.append(counted)
            about[name] = SignalFacts(fingerprint, has_gaps, facts)
            advance(1)
    return RetrievalSignals(
        signals=pd.concat(parts, ignore_index=True),
        gaps=pd.DataFrame(gaps, columns=_GAP_COLUMNS),
        traffic=pd.concat(traffic, ignore_index=True),
        about=about,
    )


def _signal_rows(runs: ScoredRuns, name: str, seed: int, batch: RankedBatch) -> pd.DataFrame:
    k, failed = runs.config.uncertainty.k, runs.runs[name].failed
    broken = np.zeros(len(batch), dtype=bool)
    broken[failed.loc[failed["seed"] == seed, "variant"].to_numpy()] = True
    keys = pd.DataFrame(
        {
            "strategy": name,
            "variant": np.arange(len(batch), dtype=np.int64),
            "seed": seed,
            "failed": broken,
            "heuristic_v0": heuristic_v0(batch, k),
        }
    )
    values = pd.DataFrame(signals(batch, k), columns=list(SIGNALS))
    return pd.concat([keys, values], axis=1)[runs.ran(name)]


_GAP_COLUMNS: Final = ["strategy", "variant", "seed", "description", "severity", "mitigation"]


def _gap_rows(
    runs: ScoredRuns, opened: OpenIndex, name: str, seed: int, batch: RankedBatch
) -> list[tuple[str | int, ...]]:
    context = ExpansionContext(batch, runs.gold_variants.texts, opened.words)
    found = semantic_gaps(context, np.arange(len(batch)), runs.config.uncertainty.k)
    return [
        (name, variant, seed, gap.description, gap.severity, gap.mitigation)
        for variant, gaps in enumerate(found)
        for gap in gaps[:MAX_GAPS]
    ]


# ---- The stored run of a strategy as batches for the estimators of a miss, one per seed.


def _stored_batches(runs: ScoredRuns, opened: OpenIndex, name: str) -> dict[int, RankedBatch]:
    """Make the batches of a stored run by seed, with variants as rows.

    When all units of an external retriever are chunks of the corpus, the batches hold chunks.
    Otherwise the batches hold units, and the texts of the units are the term space. These batches
    have no second retriever, because a second retriever would return other units.
    """
    spec, texts = runs.spec(name), runs.gold_variants.texts
    question = np.asarray(runs.gold.query_of, dtype=np.int64)
    seeds, run = runs.about(name).seeds, runs.runs[name].run
    lists = {seed: read_ranking(run, seed, len(texts), runs.config.depth) for seed in seeds}
    if spec.own_units:
        units = runs.units(name)
        chunk_of = units["chunk"].to_numpy()
        if not len(chunk_of) or (chunk_of < 0).any():
            return _unit_batches(lists, units["text"].tolist(), texts, question)
        for seed, found in lists.items():
            rows = np.where(found.rows >= 0, chunk_of[np.maximum(found.rows, 0)], -1)
            lists[seed] = dataclasses.replace(found, rows=rows.astype(np.int32))
    return {
        seed: dataclasses.replace(
            batch_of(runs.config, opened, spec, texts, found), question=question
        )
        for seed, found in lists.items()
    }


def _unit_batches(
    lists: dict[int, Ranking], unit_texts: list[str], texts: list[str], question: IntArray
) -> dict[int, RankedBatch]:
    analyzer = Analyzer()
    terms = analyzer.index(unit_texts)
    n_terms = 1 + max((max(row) for row in terms if row), default=-1)
    space, query_terms = TermSpace(terms, n_terms), analyzer.index(texts)
    return {
        seed: RankedBatch(
            rows=found.rows,
            raw=found.raw,
            norm=found.norm,
            cosine=False,
            space=space,
            query_terms=query_terms,
            question=question,
        )
        for seed, found in lists.items()
    }


# ---- Claims of production traffic: search each question again for its signals.

AT_ONCE = 2000
"""Questions in one search, because the lists of a large import may not fit in memory."""


def _count_traffic(
    work: Work, runs: ScoredRuns, opened: OpenIndex, name: str, fingerprint: str
) -> tuple[pd.DataFrame, TrafficFacts]:
    """Search the questions of imported claims again; return the counted claims with signals."""
    store, spec = Outcomes(work.evaluation.settings).store, runs.spec(name)
    claims, reason = list[Claim](), ""
    if spec.own_units:
        reason = "an external retriever is not asked again"
    elif store is None:
        reason = "the table of claims cannot be read"
    elif not (claims := TrafficStore(store.sql).claims(fingerprint)):
        reason = "no claim was imported for the strategy's current configuration"
    texts = list(dict.fromkeys(claim.query for claim in claims))
    again = _search_again(work, runs, opened, spec, texts) if claims else {}
    asked = [claim for claim in claims if claim.query in again]
    counted = [claim for claim in asked if _agrees(claim, again[claim.query][0], opened, work)]
    keys = pd.DataFrame(
        [(name, claim.claim_id, claim.query_id, claim.group_id) for claim in counted],
        columns=["strategy", "claim_id", "query_id", "group_id"],
        dtype="str",
    )
    values = np.array([again[claim.query][1] for claim in counted], dtype=np.float64)
    frame = pd.DataFrame(values.reshape(-1, len(SIGNALS)), columns=list(SIGNALS))
    why = {
        "whose question has no vector, or failed here": len(claims) - len(asked),
        "whose first K ids share nothing with what is retrieved now": len(asked) - len(counted),
    }
    facts = TrafficFacts(
        counted=len(counted),
        left_out=len(claims) - len(counted),
        reason=reason or "; ".join(f"{n} {words}" for words, n in why.items() if n),
    )
    return pd.concat([keys, frame], axis=1), facts


_Again = tuple[list[int], FloatArray]
"""Current chunks of a question, best first, and signals."""


def _search_again(
    work: Work, runs: ScoredRuns, opened: OpenIndex, spec: Strategy, texts: list[str]
) -> dict[str, _Again]:
    """Search each question; one that fails, or that a file of vectors lacks, is left out.

    The trust filter applies as for the gold set.
    """
    config, again = work.config, dict[str, _Again]()
    steered_by = runs.about(spec.name).steered_by
    strategy = ready_strategy(work.evaluation, opened, spec, runs.gold_variants, steered_by)
    asked = [text for text in texts if can_be_asked(config, opened, spec, text)]
    allowed = runs.admitted_chunks.passes if config.trust.filter else None
    for start in range(0, len(asked), AT_ONCE):
        part = asked[start : start + AT_ONCE]
        found = strategy.search(part, config.depth, config.seeds[0], allowed=allowed)
        values = signals(batch_of(config, opened, spec, part, found), config.uncertainty.k)
        failed = np.zeros(len(part), dtype=bool) if found.failed is None else found.failed
        for text, rows, own, broken in zip(part, found.rows, values, failed, strict=True):
            if not broken:
                again[text] = rows[rows >= 0].tolist(), own
    return again


def _agrees(claim: Claim, chunks: list[int], opened: OpenIndex, work: Work) -> bool:
    """Tell whether a claim shares any of its first K ids with the current chunks."""
    stated, table = {name for name, _ in claim.retrieved[: claim.k]}, opened.table
    top = chunks[: max(claim.k, work.config.uncertainty.k)]
    now = {name for row in top for name in (table.chunk_ids[row], table.doc_ids[row])}
    return bool(stated & now) if stated else not top
