"""The stages of miss rates: signals, claims, outcomes, calibration, and what the report says.

Signals and claims are made before the gold is read. The outcomes of the claims then calibrate the
miss rates of later runs. The statistics are in `rag_eval.uncertainty`.
"""

import dataclasses
import datetime as dt
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from rag_eval.core.arrays import FloatArray
from rag_eval.core.records import Absent
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.run_scores import judge_runs
from rag_eval.pipeline.answer_stages import NO_ANSWERS, AnswerMeasures, AnswerSet
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusChunks, CorpusSnapshot, GoldVariants
from rag_eval.pipeline.evaluation import chosen_kinds
from rag_eval.pipeline.retrieval import CorpusIndex, open_index
from rag_eval.pipeline.runner import (
    WHOLE,
    Result,
    Runner,
    Stage,
    Work,
    file_part,
    frame_part,
    json_part,
)
from rag_eval.pipeline.strategy_runs import ScoredRuns, StrategyRun, score_runs
from rag_eval.uncertainty.calibration import GoldQuestions, StrategyFacts, calibrate_strategy
from rag_eval.uncertainty.calibrators import Outcomes, find_accepted, strategy_fingerprint
from rag_eval.uncertainty.claims import (
    QRELS,
    UNCERTAIN_FILE,
    AnswerGold,
    AnswerWorth,
    RateSource,
    StatedRetrievals,
    choose_source,
    original_claims,
    prior_of,
    record_judged,
    state_rates,
    uncertain_retrievals,
)
from rag_eval.uncertainty.confidence import CorpusCoverage
from rag_eval.uncertainty.conformal import Questions
from rag_eval.uncertainty.expansion import ExpansionContext
from rag_eval.uncertainty.heuristic import signal_frame
from rag_eval.uncertainty.iterative import account_for_rounds, semantic_gaps
from rag_eval.uncertainty.miss_rate_report import (
    AddedOutcomes,
    CalibrationPart,
    StrategyCalibration,
    UncertaintyPart,
)
from rag_eval.uncertainty.misses import compare_stated, observe_misses
from rag_eval.uncertainty.opened_index import (
    OpenIndex,
    TrafficFacts,
    steering_calibrator,
)
from rag_eval.uncertainty.signals import SIGNALS, RankedBatch
from rag_eval.uncertainty.status import Series
from rag_eval.uncertainty.traffic import (
    Claim,
    PoweredEstimate,
    TrafficStore,
    estimate_traffic,
)


def _of_strategy(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Select the rows of one strategy."""
    return frame[frame["strategy"] == name].reset_index(drop=True)


# ---- Stage: signals of a miss in every ranking, before any outcome is known.

MAX_GAPS: Final = 5
"""Largest number of semantic gaps of a retrieval. The most severe ones stay."""
_GAP_COLUMNS: Final = ["strategy", "variant", "seed", "description", "severity", "mitigation"]


@dataclasses.dataclass(frozen=True)
class SignalFacts:
    """Fingerprint of a strategy, and facts on its signals.

    Semantic gaps need retrieved units that are chunks.
    """

    fingerprint: str
    has_gaps: bool
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
        return _of_strategy(self.signals, name)

    def unlabelled(self, name: str) -> FloatArray:
        """Return the signals of all known queries, float64 [n, p], as the base of z-scores."""
        of_gold, traffic = self.signals_of(name).query("not failed"), self.traffic
        parts = (of_gold, _of_strategy(traffic, name))
        return np.vstack([part[list(SIGNALS)].to_numpy() for part in parts])


def _fingerprint(work: Work, run: StrategyRun) -> str:
    spec = work.config.strategy(run.about.name)
    return strategy_fingerprint(work.config, spec, run.about.index_hash)


def _identify_traffic(work: Work, runs: Mapping[str, StrategyRun], **_: Result) -> object:
    """Identify the imported claims of every strategy."""
    outcomes = Outcomes(work.settings)
    if outcomes.store is None:
        return outcomes.fault
    claims = TrafficStore(outcomes.store.sql)
    prints = {name: _fingerprint(work, run) for name, run in runs.items()}
    return {
        name: [claim.claim_id for claim in claims.claims(strategy_fingerprint=fingerprint)]
        for name, fingerprint in prints.items()
    }


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
    parts, traffic, facts_of = list[pd.DataFrame](), list[pd.DataFrame](), dict[str, SignalFacts]()
    gaps: list[tuple[str | int, ...]] = []
    with work.progress.step("Reading signals", len(scored.names), "strategies") as advance:
        for name in scored.names:
            batches = opened.stored_batches(scored, name)
            has_gaps = all(batch.space is opened.terms for batch in batches.values())
            for seed, batch in batches.items():
                parts.append(_signal_rows(scored, name, seed, batch))
                if has_gaps:
                    gaps += _gap_rows(scored, opened, name, seed, batch)
            fingerprint = _fingerprint(work, runs[name])
            counted, facts = _count_traffic(work, scored, opened, name, fingerprint)
            traffic.append(counted)
            facts_of[name] = SignalFacts(fingerprint, has_gaps, facts)
            advance(1)
    return RetrievalSignals(
        signals=pd.concat(parts, ignore_index=True),
        gaps=pd.DataFrame(gaps, columns=_GAP_COLUMNS),
        traffic=pd.concat(traffic, ignore_index=True),
        about=facts_of,
    )


def _signal_rows(runs: ScoredRuns, name: str, seed: int, batch: RankedBatch) -> pd.DataFrame:
    failed, broken = runs.runs[name].failed, np.zeros(len(batch), dtype=bool)
    broken[failed.loc[failed["seed"] == seed, "variant"].to_numpy()] = True
    return signal_frame(batch, runs.config.uncertainty.k, name, seed, broken)[runs.ran(name)]


def _gap_rows(
    runs: ScoredRuns, opened: OpenIndex, name: str, seed: int, batch: RankedBatch
) -> list[tuple[str | int, ...]]:
    context = ExpansionContext(batch, runs.gold_variants.texts, opened.words)
    gaps_of = semantic_gaps(context, np.arange(len(batch)), runs.config.uncertainty.k)
    return [
        (name, variant, seed, gap.description, gap.severity, gap.mitigation)
        for variant, gaps in enumerate(gaps_of)
        for gap in gaps[:MAX_GAPS]
    ]


def _count_traffic(
    work: Work, runs: ScoredRuns, opened: OpenIndex, name: str, fingerprint: str
) -> tuple[pd.DataFrame, TrafficFacts]:
    """Search the questions of imported claims again; return the counted claims with signals."""
    store, claims, reason = Outcomes(work.settings).store, list[Claim](), ""
    if runs.spec(name).own_units:
        reason = "an external retriever is not asked again"
    elif store is None:
        reason = "the table of claims cannot be read"
    elif not (claims := TrafficStore(store.sql).claims(strategy_fingerprint=fingerprint)):
        reason = "no claim was imported for the strategy's current configuration"
    return opened.count_traffic(runs, name, claims, reason)


# ---- Stage: state the miss rate of every retrieval, before the gold is read.


class MissRateClaims(Result):
    """The claimed miss rates of every retrieval (CLAIMS), and their source by strategy."""

    shown = ("sources",)
    claims: pd.DataFrame = frame_part()
    sources: dict[str, RateSource] = json_part()

    def claims_of(self, name: str) -> pd.DataFrame:
        """Return the claims of one strategy, in the order of its signals."""
        return _of_strategy(self.claims, name)


def _identify_outcomes(work: Work, retrieval_signals: RetrievalSignals, **_: object) -> object:
    """Identify the outcomes of every strategy that the table holds."""
    prints = [facts.fingerprint for facts in retrieval_signals.about.values()]
    return Outcomes(work.settings).state(prints)


def _identify_sources(work: Work, retrieval_signals: RetrievalSignals, **_: object) -> list[object]:
    """Identify accepted calibrators with their status, and the outcomes of judged questions."""
    accepted = {
        name: find_accepted(work.evaluation.home, work.config, name, facts.fingerprint)
        for name, facts in retrieval_signals.about.items()
    }
    calibrators = {name: [each.calibrator_id, each.status] for name, each in accepted.items()}
    return [_identify_outcomes(work, retrieval_signals), calibrators]


@Stage(
    "miss_rate_claims",
    "uncertainty",
    stores=("calibrators", "outcomes"),
    reads=("name", "strategies", "uncertainty.target", "uncertainty.k"),
    outside=_identify_sources,
)
def state_miss_rates(
    work: Work,
    *,
    retrieval_signals: RetrievalSignals,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
) -> MissRateClaims:
    """State a miss rate for every retrieval, by the calibrator accepted before this run.

    Without an accepted calibrator, the prior or the uncalibrated heuristic states it.
    """
    parts, sources, outcomes = [], {}, Outcomes(work.settings)
    with work.progress.step("Stating miss rates", len(runs), "strategies") as advance:
        for name, facts in retrieval_signals.about.items():
            fingerprint = facts.fingerprint
            accepted = find_accepted(work.evaluation.home, work.config, name, fingerprint)
            sources[name], model = choose_source(
                work.config, name, accepted, fingerprint, retrieval_signals.unlabelled(name)
            )
            frame, body = retrieval_signals.signals_of(name), accepted.usable
            claims = state_rates(
                work.config.uncertainty,
                sources[name],
                model,
                frame,
                gold_variants.variants.iloc[frame["variant"].to_numpy()],
                judged=outcomes.judged_texts(work.config, fingerprint, gold_variants.queries),
                group_at_fit={} if body is None else body.group_of_query,
            )
            parts.append(claims)
            advance(1)
    return MissRateClaims(claims=pd.concat(parts, ignore_index=True), sources=sources)


# ---- Stage: judge every claim with the gold. Repeated nights on one index add nothing.


class RetrievalOutcomes(Result):
    """Outcomes of the claims that the gold judges: strategy, claim_id, query_id, missed.

    `not_recorded` is the reason why nothing was written to the table; empty when it was written.
    """

    shown = ("strategies",)
    judged: pd.DataFrame = frame_part()
    strategies: dict[str, AddedOutcomes] = json_part()
    not_recorded: str = json_part()


@Stage(
    "retrieval_outcomes",
    "uncertainty",
    stores=("outcomes",),
    reads=WHOLE,
    outside=_identify_outcomes,
    live=True,
)
def record_outcomes(
    work: Work,
    *,
    miss_rate_claims: MissRateClaims,
    retrieval_signals: RetrievalSignals,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
) -> RetrievalOutcomes:
    """Append the gold's judgement of every claim to the table of outcomes.

    A repeated run adds nothing. Only the first of several seeds counts: the same wording under
    another seed is nearly the same retrieval, so its outcome would only repeat the first.
    """
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    outcomes, because = Outcomes(work.settings), f"gold {gold_variants.about.hash[:16]}"
    counts, parts, spec = {}, [], work.config.uncertainty
    with work.progress.step("Recording outcomes", len(runs), "strategies") as advance:
        for name in scored.names:
            claims, frame = miss_rate_claims.claims_of(name), retrieval_signals.signals_of(name)
            judgements = judge_runs(scored, name)
            keys = pd.MultiIndex.from_arrays([judgements.variant, judgements.seed])
            values = pd.Series(judgements.missed(spec.target, spec.k), index=keys)
            missed = values.loc[pd.MultiIndex.from_frame(frame[["variant", "seed"]])].to_numpy()
            first = (frame["seed"] == scored.first_seed(name)).to_numpy()
            counted = ~np.isnan(missed) & ~frame["failed"].to_numpy() & first
            outcome_rows, added, n_before = claims.assign(missed=missed == 1)[counted], 0, 0
            if outcomes.store is not None:
                added = record_judged(
                    outcomes.store,
                    outcome_rows,
                    frame,
                    spec=spec,
                    fingerprint=retrieval_signals.about[name].fingerprint,
                    because=because,
                )
                n_before = len(outcome_rows) - added
            counts[name] = AddedOutcomes(
                n_claims=len(claims),
                n_judged=len(outcome_rows),
                n_missed=int(outcome_rows["missed"].sum()),
                added=added,
                already_there=n_before,
            )
            parts.append(outcome_rows[["strategy", "claim_id", "query_id", "missed"]])
            advance(1)
    return RetrievalOutcomes(
        judged=pd.concat(parts, ignore_index=True),
        strategies=counts,
        not_recorded=outcomes.fault,
    )


# ---- Stage: from outcomes to stored calibrators and recorded promotions.


class MissRateCalibration(Result):
    """The calibration of every strategy on the outcomes so far: part `calibration.strategies`.

    `predictions` has the outcomes of the fit: strategy, claim_id, missed, predicted (out of fold),
    group_id. `traffic` has the claims of production traffic: strategy, claim_id, query_id,
    group_id, and the prediction of models that did not see their group; NaN without a model.
    """

    shown = ("strategies",)
    strategies: dict[str, StrategyCalibration] = json_part()
    predictions: pd.DataFrame = frame_part()
    traffic: pd.DataFrame = frame_part()


def _identify_calibration(
    work: Work, retrieval_signals: RetrievalSignals, runs: Mapping[str, StrategyRun], **_: object
) -> object:
    """Identify outcomes, accepted calibrators, and the day where outcomes may grow too old."""
    prints = [facts.fingerprint for facts in retrieval_signals.about.values()]
    grow_old = Outcomes(work.settings).grow_old(prints)
    return {
        "sources": _identify_sources(work, retrieval_signals),
        "day": dt.datetime.now(dt.UTC).date().isoformat() if grow_old else "",
        "steering": {name: _steering_now(work, runs, name) for name in runs},
        "partial": work.evaluation.partial,
    }


def _steering_now(work: Work, runs: Mapping[str, StrategyRun], name: str) -> str | None:
    """Return the calibrator that would steer the rounds of a strategy now; None without a base."""
    spec = work.config.strategy(name)
    if spec.base_name is None:
        return None
    index_hash = runs[spec.base_name].about.index_hash
    return steering_calibrator(work.evaluation.home, work.config, spec, index_hash)


@Stage(
    "miss_rate_calibration",
    "uncertainty",
    stores=("outcomes", "calibrators", "traffic"),
    reads=WHOLE,
    outside=_identify_calibration,
    live=True,
)
def calibrate_miss_rates(
    work: Work,
    *,
    retrieval_outcomes: RetrievalOutcomes,
    miss_rate_claims: MissRateClaims,
    retrieval_signals: RetrievalSignals,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
) -> MissRateCalibration:
    """Fit each strategy's estimator to its outcomes, and validate it on held-out groups.

    The status decides whether later runs use it. Fits to equal outcomes are reused.
    """
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    outcomes, results = Outcomes(work.settings), {}
    judgements, evaluation = gold_variants.qrels_document, work.evaluation
    spec = work.config.uncertainty
    documents = judgements.loc[judgements["gain"] > 0, ["query_id", "item_id"]]
    gold = GoldQuestions(scored.gold.queries, gold_variants.variants, documents)
    with work.progress.step("Calibrating miss rates", len(runs), "strategies") as advance:
        # Bases come first, because their calibrators steer iterative strategies.
        for name in sorted(scored.names, key=lambda each: scored.spec(each).base_name is not None):
            steering = _steering_now(work, runs, name)
            results[name] = calibrate_strategy(
                StrategyFacts(
                    series=Series(work.config.name, name, spec.target, spec.k),
                    fingerprint=retrieval_signals.about[name].fingerprint,
                    signals=retrieval_signals.signals_of(name),
                    claims=miss_rate_claims.claims_of(name),
                    traffic=_of_strategy(retrieval_signals.traffic, name),
                    judged=frozenset(_of_strategy(retrieval_outcomes.judged, name)["claim_id"]),
                    unlabelled=retrieval_signals.unlabelled(name),
                    questions=_questions(scored, name),
                    prior=prior_of(work.config, name),
                    checked_together=len(scored.names),
                    stale_after_days=spec.stale_after_days,
                    base_changes=None
                    if steering is None
                    else steering != runs[name].about.steered_by,
                    identity=[runs[name].id, gold_variants.id, work.config.level],
                ),
                gold,
                outcomes,
                home=None if evaluation.partial else evaluation.home,
                keep=functools.partial(work.keep, "calibration"),
                check_lock=evaluation.lock.check,
            )
            advance(1)
    ordered = [results[name] for name in scored.names]
    return MissRateCalibration(
        strategies={name: results[name].report for name in scored.names},
        predictions=pd.concat([result.predictions for result in ordered], ignore_index=True),
        traffic=pd.concat([result.traffic for result in ordered], ignore_index=True),
    )


def _questions(runs: ScoredRuns, name: str) -> Questions | None:
    """Collect the first gold ranks of the original wordings; None if none is judged."""
    gold, judgements, seed = runs.gold, judge_runs(runs, name), runs.first_seed(name)
    original = (gold.variants["paraphrase_id"].to_numpy() == ORIGINAL)[judgements.variant]
    first = original & (judgements.seed == seed) & ~np.isnan(judgements.first)
    if not first.any():
        return None
    groups = gold.groups[gold.query_of[judgements.variant[first]]].astype(np.int64)
    return Questions(judgements.first[first], groups, runs.config.depth)


# ---- Stage: compare claims with observations, and state the confidence of the answers.


class CalibratedMissRates(Result):
    """The parts `uncertainty` and `calibration` of the report, and a file with every retrieval."""

    shown = ("uncertainty", "calibration")
    uncertainty: UncertaintyPart = json_part(report="uncertainty")
    calibration: CalibrationPart = json_part(report="calibration")
    lines: bytes | Path = file_part(UNCERTAIN_FILE)


@Stage("calibrated_miss_rates", "uncertainty", reads=WHOLE)
def compare_miss_rates(
    work: Work,
    *,
    miss_rate_calibration: MissRateCalibration,
    retrieval_outcomes: RetrievalOutcomes,
    miss_rate_claims: MissRateClaims,
    retrieval_signals: RetrievalSignals,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    corpus_snapshot: CorpusSnapshot,
    corpus_chunks: CorpusChunks,
    admitted_chunks: AdmittedChunks,
    corpus_index: CorpusIndex,
    answers: AnswerSet | None,
    answer_measures: AnswerMeasures | None,
) -> CalibratedMissRates:
    """Compare observed and stated miss rates, and compute the confidence of the answers."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    spec, claims, outcomes = work.config.uncertainty, miss_rate_claims, retrieval_outcomes
    indexed, n_chunks = admitted_chunks.names, corpus_chunks.about.n_chunks
    documents, n_vectors = corpus_snapshot.documents, corpus_index.n_vectors
    coverage = CorpusCoverage.of(documents, indexed, n_chunks, n_vectors)
    worth = _weigh(scored, claims, outcomes, answers, answer_measures)
    cutoffs, pairs = observe_misses(scored)
    uncertainty = UncertaintyPart(
        target=spec.target,
        k=spec.k,
        level=work.config.level,
        gold_source=QRELS,
        strategies={
            name: claims.sources[name].describe(
                scored,
                name,
                claims.claims_of(name),
                judged=_of_strategy(outcomes.judged, name),
                added=outcomes.strategies[name],
            )
            for name in scored.names
        },
        corpus_coverage=coverage,
        answers=worth.summarize(scored.gold.named_gold) or Absent(reason=NO_ANSWERS),
        iterative={
            name: account_for_rounds(scored, name)
            for name in scored.names
            if scored.spec(name).base_name is not None
        },
        cutoffs=cutoffs,
        pairs=pairs,
    )
    calibrated = miss_rate_calibration.strategies
    fitted = [name for name in scored.names if calibrated[name].validation is not None]
    claims_of = {name: claims.claims_of(name) for name in fitted}
    comparison, reason = compare_stated(scored, claims_of, miss_rate_calibration.predictions)
    calibration = CalibrationPart(
        target=spec.target,
        k=spec.k,
        strategies=calibrated,
        comparison=comparison,
        why={"comparison": reason} if reason else {},
    )
    retrievals = {
        name: StatedRetrievals(
            retrieval_signals.signals_of(name),
            claims.claims_of(name),
            claims.sources[name],
            _of_strategy(retrieval_signals.gaps, name) if facts.has_gaps else None,
        )
        for name, facts in retrieval_signals.about.items()
    }
    made_from = (claims, retrieval_signals, outcomes, gold_variants, admitted_chunks)
    optional = filter(None, (answers, answer_measures))
    identity = [result.id for result in (*made_from, *runs.values(), *optional)]
    lines = work.keep(
        "uncertain",
        identity,
        lambda: {UNCERTAIN_FILE: uncertain_retrievals(scored, retrievals, worth, coverage)},
    )
    return CalibratedMissRates(
        uncertainty=uncertainty, calibration=calibration, lines=lines.path(UNCERTAIN_FILE)
    )


def _weigh(
    runs: ScoredRuns,
    claims: MissRateClaims,
    outcomes: RetrievalOutcomes,
    answers: AnswerSet | None,
    measures: AnswerMeasures | None,
) -> AnswerWorth:
    """Compute the confidence values of every answer."""
    if answers is None or measures is None:
        return AnswerWorth()
    name, gold, outcome_rows = answers.about.strategy, runs.gold, outcomes.judged
    original = original_claims(claims.claims_of(name), runs, name)
    is_missed = outcome_rows["missed"] & outcome_rows["claim_id"].isin(original["claim_id"])
    group_of = dict(zip(gold.queries["query_id"], gold.groups.tolist(), strict=True))
    return AnswerWorth.of(
        name,
        answers.answers,
        measures.per_question.set_index("query_id"),
        original,
        source=claims.sources[name],
        missed=outcome_rows.loc[is_missed, "query_id"].tolist(),
        gold=AnswerGold(group_of, gold.named_gold, runs.gold_variants.about.hash),
    )


# ---- Calibration outside the nightly run, with the miss rate of production traffic.


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """A calibrated gold set: part `calibration.strategies` of its report, and the traffic.

    `traffic` has the counted claims of each strategy. `estimates` has the miss rate of the claims
    of the last draw, or the reason why there is none.
    """

    gold_set: str
    target: str
    k: int
    strategies: dict[str, StrategyCalibration]
    traffic: dict[str, TrafficFacts]
    estimates: dict[str, PoweredEstimate | str]


def calibrate_gold_set(runner: Runner) -> Calibrated:
    """Calibrate every strategy on the outcomes so far, with this gold set's judgements."""
    evaluation = runner.evaluation
    with evaluation.lock:
        opened = Outcomes(evaluation.settings)
        if opened.store is None:
            raise opened.error or RuntimeError("the outcomes cannot be opened")
        spec, store = evaluation.config.uncertainty, opened.store
        calibration, facts = runner.get(MissRateCalibration), runner.get(RetrievalSignals).about
        names = list(calibration.strategies)
        traffic = {name: _of_strategy(calibration.traffic, name) for name in names}
        return Calibrated(
            evaluation.config.name,
            spec.target,
            spec.k,
            calibration.strategies,
            {name: facts[name].traffic for name in names},
            {
                name: estimate_traffic(
                    store, facts[name].fingerprint, spec.target, spec.k, traffic[name]
                )
                for name in names
            },
        )
