"""The stage of calibrated miss rates: compare claims with observations."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import FloatArray
from rag_eval.core.config import Uncertainty
from rag_eval.core.records import Absent as NotMeasured
from rag_eval.core.records import Figure, number
from rag_eval.core.types import DISCOUNTING, TARGETS, Status
from rag_eval.measures.intervals import aggregate, within_query
from rag_eval.measures.overlap import NamedGold
from rag_eval.pipeline.answer_stages import AnswerMeasures, AnswerSet
from rag_eval.pipeline.calibration import MissRateCalibration
from rag_eval.pipeline.claims import MissRateClaims, RetrievalOutcomes
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusChunks, CorpusSnapshot, GoldVariants
from rag_eval.pipeline.index import CorpusIndex
from rag_eval.pipeline.misses import observe_misses
from rag_eval.pipeline.retrieval import StrategyRun
from rag_eval.pipeline.runner import (
    Result,
    Runner,
    Stage,
    Work,
    file_part,
    json_part,
)
from rag_eval.pipeline.scores import (
    ScoredRuns,
    figure_of,
    judge_runs,
    score_runs,
    score_strategy,
)
from rag_eval.pipeline.signals import RetrievalSignals, TrafficFacts, of_strategy
from rag_eval.pipeline.uncertain import (
    UNCERTAIN_FILE,
    measure_coverage,
    original_claims,
    summarize_answers,
    weigh_answers,
    write_lines,
)
from rag_eval.uncertainty.calibrators import Outcomes
from rag_eval.uncertainty.comparing import Misses, compare
from rag_eval.uncertainty.iterative import Iterative, harm
from rag_eval.uncertainty.miss_rate_report import (
    CalibrationPart,
    IterativeAccount,
    MissComparison,
    StrategyCalibration,
    StrategyMissRates,
    UncertaintyPart,
)
from rag_eval.uncertainty.outcome_records import AUDITS
from rag_eval.uncertainty.outcomes import OutcomeStore, fit_rows
from rag_eval.uncertainty.traffic import PoweredEstimate, TrafficStore, prediction_powered

NONE_JUDGED = "no question with a stated miss rate can be judged"
NOT_EARNED = "the stated miss rates are {status}, so their mean is not shown"
SHOWN: Final = frozenset({*DISCOUNTING, "prior"})
"""Statuses whose mean stated miss rate is shown, beside the status."""


class CalibratedMissRates(Result):
    """The parts `uncertainty` and `calibration` of the report, and a file with every retrieval."""

    shown = ("uncertainty", "calibration")
    uncertainty: UncertaintyPart = json_part()
    calibration: CalibrationPart = json_part()
    lines: bytes | Path = file_part(UNCERTAIN_FILE)

    def report_part(self, _: Work) -> dict[str, object]:
        """Give the parts `uncertainty` and `calibration`."""
        return {"uncertainty": self.uncertainty, "calibration": self.calibration}


@Stage("calibrated_miss_rates", "uncertainty", live=True)
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
    coverage = measure_coverage(corpus_snapshot, corpus_chunks, admitted_chunks, corpus_index)
    worth = weigh_answers(scored, claims, outcomes, answers, answer_measures)
    cutoffs, pairs = observe_misses(scored)
    uncertainty = UncertaintyPart(
        target=spec.target,
        k=spec.k,
        level=work.config.level,
        gold_source=outcomes.gold_source,
        strategies={
            name: _describe_strategy(scored, name, claims, outcomes) for name in scored.names
        },
        corpus_coverage=coverage,
        answers=summarize_answers(worth, scored),
        iterative={
            name: _account_for_rounds(scored, name)
            for name in scored.names
            if scored.spec(name).base_name is not None
        },
        cutoffs=cutoffs,
        pairs=pairs,
    )
    comparison, reason = _compare_all(scored, claims, miss_rate_calibration)
    calibration = CalibrationPart(
        target=spec.target,
        k=spec.k,
        strategies=miss_rate_calibration.strategies,
        comparison=comparison,
        why={"comparison": reason} if reason else {},
    )
    made_from = (claims, retrieval_signals, outcomes, gold_variants, admitted_chunks)
    identity = [*(one.id for one in made_from), *(run.id for run in runs.values())]
    identity += [one.id for one in (answers, answer_measures) if one is not None]
    lines = work.keep(
        "uncertain",
        identity,
        lambda: {UNCERTAIN_FILE: write_lines(scored, claims, retrieval_signals, worth, coverage)},
    )
    return CalibratedMissRates(
        uncertainty=uncertainty, calibration=calibration, lines=lines.path(UNCERTAIN_FILE)
    )


def _describe_strategy(
    runs: ScoredRuns, name: str, claims: MissRateClaims, outcomes: RetrievalOutcomes
) -> StrategyMissRates:
    """Combine the claims of one strategy with the observed misses."""
    gold, of, k = runs.gold, judge_runs(runs, name), runs.config.uncertainty.k
    by, stated = claims.speakers[name], claims.claims_of(name)
    observed = {}
    for target in TARGETS:
        missed = of.missed(target, k)[:, None]
        labels, level = [f"{target}_at_{k}"], runs.config.level
        # A question without gold cannot be missed, even by a failed retrieval.
        record = runs.aggregate(name, labels, missed, level, failed_value=1.0)[0]
        none_judged = None if record.n_scored else "no question of this gold set can be judged"
        observed[target] = figure_of(record, none_judged)
    with_rate = stated[stated["miss_rate"].notna()]
    return StrategyMissRates(
        fingerprint=by.fingerprint,
        status=by.status,
        calibrator=by.calibrator,
        n_claims=len(stated),
        n_absent=len(stated) - len(with_rate),
        observed=observed,
        stated=_mean_stated(with_rate, outcomes.judged_of(name), gold.named_gold, by.status)
        if by.status in SHOWN
        else NotMeasured(reason=NOT_EARNED.format(status=by.status)),
        outcomes=outcomes.strategies[name],
        **({"reason": by.reason} if by.reason else {}),
    )


def _mean_stated(
    claims: pd.DataFrame, judged: pd.DataFrame, gold: NamedGold, status: Status
) -> Figure | NotMeasured:
    """Average the claims of the judged questions.

    The interval of a `prior` is the mean of the claims' bounds. They hold the spread of levels
    between collections, which is common to all questions and far wider than their own spread.
    """
    usable = claims[claims["query_id"].isin(judged["query_id"])]
    if usable.empty:
        return NotMeasured(reason=NONE_JUDGED)
    query, names = pd.factorize(usable["query_id"])
    columns = ["miss_rate", "ci_low", "ci_high"]
    shared = gold.of(names.tolist())
    mean, low, high = aggregate(columns, usable[columns].to_numpy(), shared, query_of=query)
    stated = figure_of(mean)
    if status != "prior":
        return stated
    return stated.model_copy(update={"ci_low": number(low.value), "ci_high": number(high.value)})


def _compare_all(
    runs: ScoredRuns, claims: MissRateClaims, calibration: MissRateCalibration
) -> tuple[MissComparison | None, str]:
    """Compare all calibrated strategies; None with the reason when there is no comparison."""
    names = [name for name in runs.names if calibration.strategies[name].validation is not None]
    if len(names) < 2:  # noqa: PLR2004 - a pair
        return None, f"{len(names)} strategies have enough outcomes; a comparison needs two"
    misses, common = _misses(runs, claims, calibration, names)
    if not common.any():
        return None, "no question was judged for every strategy"
    return compare(misses, runs.gold.shared.take(common)), ""


def _misses(
    runs: ScoredRuns, claims: MissRateClaims, calibration: MissRateCalibration, names: Sequence[str]
) -> tuple[list[Misses], npt.NDArray[np.bool_]]:
    """Collect misses and predictions of the questions that were judged for every strategy.

    The questions have their original wording and the first seed. The outcomes are those of the
    calibrator's fit, with corrections, because predictions must match their training data.

    Returns
    -------
    list of Misses, bool [n_queries]
        Misses by strategy, and the mask of their questions.
    """
    queries, columns = runs.gold.queries["query_id"], ["missed", "predicted", "heuristic_v0"]
    fitted = calibration.predictions.set_index("claim_id")[["missed", "predicted"]].astype(float)
    parts = {}
    for name in names:
        frame = original_claims(claims.claims_of(name), runs, name).set_index("claim_id")
        known = fitted.where(fitted["predicted"].notna()).reindex(frame.index)
        frame = frame.assign(missed=known["missed"], predicted=known["predicted"])
        parts[name] = frame.set_index("query_id").reindex(queries)[columns]
    common = np.all([part["missed"].notna().to_numpy() for part in parts.values()], axis=0)
    return [
        Misses(name, *(part[column].to_numpy(dtype=np.float64)[common] for column in columns))
        for name, part in parts.items()
    ], common


def _account_for_rounds(runs: ScoredRuns, name: str) -> IterativeAccount:
    """Describe the rounds of an iterative strategy under the first seed."""
    run, spec = runs.runs[name], Iterative.model_validate(runs.spec(name))
    about, gold, k = run.about.iterative, runs.gold, runs.config.uncertainty.k
    if about is None or run.rounds is None or run.expansions is None:
        raise RuntimeError(f"{name} was not run in rounds")
    rounds, level = list(run.rounds), runs.config.level

    def recall(rows: np.ndarray) -> FloatArray:
        scores = score_strategy({0: rows.astype(np.int64)}, gold, [k])
        return scores.column(level, f"R@{k}")

    def mean_recall(rows: np.ndarray) -> float | None:
        values = within_query(recall(rows)[:, None], gold.query_of, len(gold.queries))
        return number(float(np.nanmean(values))) if np.isfinite(values).any() else None

    found = harm(rounds, run.expansions, recall, gold.shared.take(gold.query_of))
    return IterativeAccount(
        base=spec.base,
        basis=about.basis,
        min_recall=spec.min_recall,
        stops=about.stops,
        not_viable=about.not_viable,
        suggestions_failed=about.suggestions_failed,
        recall_before=mean_recall(rounds[0]),
        recall_after=mean_recall(rounds[-1]),
        k=k,
        accounts=[account.as_json() for account in found],
        verdict=found[0].verdict,
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
        spec = evaluation.config.uncertainty
        calibration = runner.get(MissRateCalibration)
        facts, store = runner.get(RetrievalSignals).about, opened.store
        return Calibrated(
            evaluation.config.name,
            spec.target,
            spec.k,
            calibration.strategies,
            {name: facts[name].traffic for name in calibration.strategies},
            {
                name: _estimate_traffic(
                    store, facts[name].fingerprint, spec, of_strategy(calibration.traffic, name)
                )
                for name in calibration.strategies
            },
        )


def _estimate_traffic(
    store: OutcomeStore, fingerprint: str, spec: Uncertainty, traffic: pd.DataFrame
) -> PoweredEstimate | str:
    """Estimate the miss rate of the production traffic that the last draw was made from.

    The labels are those of the drawn claims, by people. The predictions come from models that did
    not see the claim's group. Returns the reason where there is no estimate.
    """
    draw = TrafficStore(store.sql).last_draw(fingerprint, spec.target)
    if draw is None:
        return "no claim of production traffic was drawn: rag-eval audit draw"
    traffic = traffic[traffic["claim_id"].isin(draw.population)]
    where = {"strategy_fingerprint": fingerprint, "target": spec.target, "k": spec.k}
    rows = fit_rows(store.current(**where, gold_source=sorted(AUDITS)))
    labels = rows[rows["claim_id"].isin(draw.drawn)].set_index("claim_id")["missed"]
    missed = labels.reindex(traffic["claim_id"]).to_numpy(dtype=np.float64)
    if np.isnan(missed).all():
        return f"no drawn claim that counts was judged by a person for {spec.target}@{spec.k}"
    group = pd.factorize(traffic["group_id"], sort=True)[0].astype(np.int64)
    return prediction_powered(missed, traffic["predicted"].to_numpy(), group)
