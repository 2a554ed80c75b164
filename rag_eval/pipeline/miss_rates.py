"""Calibrated miss rates: compare claims with observations, and discount the answers."""

import dataclasses
import datetime as dt
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import FloatArray
from rag_eval.core.config import DISCOUNTING, TARGETS
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.report import Absent as NotMeasured
from rag_eval.core.report import (
    AnswerConfidences,
    CalibrationPart,
    CorpusCoverage,
    CoverageCount,
    Figure,
    IterativeAccount,
    MissComparison,
    RiskyRetrieval,
    StrategyCalibration,
    StrategyMissRates,
    UncertaintyPart,
    number,
)
from rag_eval.core.types import (
    AUDITS,
    Absent,
    Confidence,
    Derived,
    Deterministic,
    Measured,
    as_json,
    effective,
)
from rag_eval.corpus.masking import mask_snippet
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.intervals import aggregate, clustered_interval, within_query
from rag_eval.pipeline.answers import AnswerMeasures, AnswerSet
from rag_eval.pipeline.calibration import MissRateCalibration, RetrievalOutcomes
from rag_eval.pipeline.claims import (
    MissRateClaims,
    Outcomes,
    RetrievalSignals,
    Speaker,
    judge_runs,
    of_strategy,
)
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusChunks, CorpusSnapshot, GoldVariants
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.measures import (
    BOOTSTRAP_SEED,
    ScoredRuns,
    figure_of,
    open_runs,
    score_runs,
    score_strategy,
)
from rag_eval.pipeline.retrieval import CorpusIndex, StrategyRun
from rag_eval.pipeline.runner import (
    Result,
    Stage,
    Table,
    Work,
    count_undefined,
    file_part,
    json_part,
)
from rag_eval.storage.artifacts import home_lock
from rag_eval.uncertainty.audits import AuditStore
from rag_eval.uncertainty.comparing import Audited, Misses, compare
from rag_eval.uncertainty.confidence import (
    MissRate,
    calibrated_confidence,
    final_confidence,
    groundedness_confidence,
    reported_confidence,
    retrieval_confidence,
)
from rag_eval.uncertainty.iterative import Iterative, harm
from rag_eval.uncertainty.outcomes import OutcomeStore, fit_rows

T = TypeVar("T")
UNCERTAIN_FILE: Final = "uncertain-retrievals.jsonl"

# ---- Confidence of each answer: its groundedness, discounted by the miss rate of its retrieval.

NO_ANSWERS = "the gold set configures no answers"
NO_INTERVAL = "the estimator of this value has no interval"
MIN_MISSED = 30
"""A share of right answers needs answers over missed retrievals from at least this many groups."""


def _read_miss_rate(row: Mapping[Any, Any], by: Speaker) -> MissRate:
    """Read the miss rate in a row of CLAIMS."""
    return MissRate(
        _known(row["miss_rate"]),
        _known(row["ci_low"]),
        _known(row["ci_high"]),
        row["status"],
        row["target"],
        int(row["k"]),
        ", ".join(by.gold_sources) or None,
        row["calibrator"],
        by.n_outcomes,
        by.fitted_at,
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


class AnswerWorth:
    """Confidence of the answers of a run.

    Parameters
    ----------
    runs
        The runs of all strategies with the gold.
    claims, outcomes
        The claimed miss rates, and the observed misses.
    answers, measures
        The answers and their measures; None without configured answers.
    """

    def __init__(
        self,
        runs: ScoredRuns,
        claims: MissRateClaims,
        outcomes: RetrievalOutcomes,
        answers: AnswerSet | None,
        measures: AnswerMeasures | None,
    ) -> None:
        self._runs, self._claims, self._outcomes = runs, claims, outcomes
        self._answers, self._measures = answers, measures
        self.strategy = answers.about.strategy if answers else ""
        """The strategy that gives the evidence of the answers; empty without answers."""

    @functools.cached_property
    def _per_question(self) -> pd.DataFrame:
        assert self._measures is not None
        return self._measures.per_question.set_index("query_id")

    @functools.cached_property
    def _first_claims(self) -> dict[str, Mapping[Any, Any]]:
        frame = _original(self._claims.claims_of(self.strategy), self._runs, self.strategy)
        return {row["query_id"]: row for row in frame.to_dict("records")}

    @functools.cached_property
    def by_query(self) -> dict[str, dict[str, Confidence]]:
        """Compute the confidence values of every answer by query id; empty without answers."""
        if self._answers is None:
            return {}
        by, right, found = self._claims.speakers[self.strategy], self._right_of_others(), {}
        grounded = self._per_question["groundedness"]
        for answer in self._answers.answers:
            answered = answer.outcome == "answered"
            if answer.mode == "deterministic":
                value = grounded[answer.query_id]
                known = answered and not pd.isna(value)
                synthesis = groundedness_confidence(float(value) if known else None)
            else:
                reported = answer.confidence if answered else None
                synthesis = reported_confidence(reported, answer.mode)
            miss = _read_miss_rate(self._first_claims[answer.query_id], by)
            found[answer.query_id] = {
                "synthesis_confidence": synthesis,
                "retrieval_confidence": retrieval_confidence(miss),
                "final_confidence": final_confidence(synthesis, miss),
                "calibrated_confidence": calibrated_confidence(
                    synthesis, miss, right.get(answer.query_id)
                ),
            }
        return found

    def summarize(self) -> AnswerConfidences | NotMeasured:
        """Summarise the confidence of the answers."""
        found = list(self.by_query.values())
        if not found:
            return NotMeasured(reason=NO_ANSWERS)
        groups = dict(zip(self._runs.gold.queries["query_id"], self._runs.gold.groups, strict=True))
        group = pd.factorize(np.array([groups[query_id] for query_id in self.by_query]))[0]

        def mean(name: str) -> Figure:
            # A question without an answer has nothing to discount.
            values = np.array(
                [
                    np.nan
                    if isinstance(entry[name], Absent)
                    or isinstance(entry["synthesis_confidence"], Absent)
                    else effective(entry[name])
                    for entry in found
                ]
            )
            record = aggregate([name], values[:, None], group, BOOTSTRAP_SEED)[0]
            if record.n_scored:
                return figure_of(record)
            absent = {one.reason for entry in found if isinstance(one := entry[name], Absent)}
            return figure_of(record, f"absent for every answer: {', '.join(sorted(absent))}")

        few = f"fewer than {MIN_MISSED} independent questions were answered over a missed retrieval"
        right = self.right_when_missed
        return AnswerConfidences(
            n=len(found),
            synthesis_confidence=mean("synthesis_confidence"),
            final_confidence=mean("final_confidence"),
            calibrated_confidence=mean("calibrated_confidence"),
            right_when_missed=right,
            why={"right_when_missed": few} if right is None else {},
        )

    @functools.cached_property
    def _over_misses(self) -> pd.DataFrame | None:
        """Collect `right` (0 or 1) and `group` of the answers whose retrieval missed the gold.

        None when the answers belong to fewer than MIN_MISSED groups.
        """
        if self._answers is None:
            return None
        judged = self._outcomes.judged_of(self.strategy)
        first = {row["claim_id"] for row in self._first_claims.values()}
        missed = judged.loc[judged["missed"] & judged["claim_id"].isin(first), "query_id"]
        chosen = self._per_question.loc[missed[missed.isin(self._per_question.index)].tolist()]
        chosen = chosen[(chosen["outcome"] == "answered") & (chosen["n_gold"] > 0)]
        gold = self._runs.gold
        groups = dict(zip(gold.queries["query_id"], gold.groups.tolist(), strict=True))
        right = (chosen["n_correct"].to_numpy() > 0).astype(np.float64)
        seen = pd.DataFrame({"right": right, "group": [groups[query] for query in chosen.index]})
        return seen if seen["group"].nunique() >= MIN_MISSED else None

    @functools.cached_property
    def right_when_missed(self) -> Measured | None:
        """Compute the share of answers that cite gold despite a miss; None for too few answers."""
        return None if self._over_misses is None else self._share(self._over_misses)

    def _right_of_others(self) -> dict[str, Measured]:
        """Compute `right_when_missed` for each query id without the answers of the query's group.

        With these answers, the outcome of an answer would decide the confidence of the answer.
        """
        if self._over_misses is None or self.right_when_missed is None:
            return {}
        of_group, gold = leave_groups_out(self._over_misses, self._share), self._runs.gold
        pairs = zip(gold.queries["query_id"], gold.groups.tolist(), strict=True)
        return {query: of_group.get(group, self.right_when_missed) for query, group in pairs}

    def _share(self, seen: pd.DataFrame) -> Measured:
        right, group = seen["right"].to_numpy(), seen["group"].to_numpy()
        ends = clustered_interval(right, group, BOOTSTRAP_SEED)
        value, low, high = (float(end[0]) for end in ends)
        gold = self._runs.gold_variants.about.hash[:16]
        return Measured(
            value=value,
            dataset=f"answers over missed retrievals, gold {gold}",
            n=len(seen),
            ci_low=low,
            ci_high=high,
            measured_at=dt.datetime.now(dt.UTC),
        )


def leave_groups_out(seen: pd.DataFrame, share: Callable[[pd.DataFrame], T]) -> dict[int, T]:
    """Compute a value for each group of `seen` (right, group) from the rows of all other groups.

    Groups with equal rows share the computation.
    """
    totals = seen.groupby("group")["right"].agg(["sum", "count"])
    kind_of = dict(zip(totals.index.tolist(), totals.itertuples(index=False), strict=True))
    example = {kind: group for group, kind in kind_of.items()}
    found = {kind: share(seen[seen["group"] != group]) for kind, group in example.items()}
    return {group: found[kind] for group, kind in kind_of.items()}


def _original(claims: pd.DataFrame, runs: ScoredRuns, name: str) -> pd.DataFrame:
    """Select the claims of the original wordings under the first seed."""
    is_first = claims["seed"] == runs.first_seed(name)
    return claims[(claims["paraphrase_id"] == ORIGINAL) & is_first]


# ---- Retrievable share of the corpus: counted from the index, not estimated.


def _measure_coverage(
    corpus: CorpusSnapshot, chunks: CorpusChunks, admitted: AdmittedChunks, index: CorpusIndex
) -> CorpusCoverage:
    """Count the shares of documents indexed, of text in chunks, and of chunks with vectors."""
    documents, cut = corpus.documents, chunks.about.n_chunks
    kept = admitted.artifact.frame("chunks", ["doc_id", "start", "end"])
    length = int(documents["text"].str.len().sum())
    in_chunks = "characters of the documents that an indexed chunk holds"
    return CorpusCoverage(
        documents_indexed=_count_share(
            kept["doc_id"].nunique(), len(documents), "documents with an indexed chunk"
        ),
        text_in_chunks=_count_share(count_covered(kept), length, in_chunks),
        chunks_admitted=_count_share(len(kept), cut, "chunks that the poisoning guard admitted"),
        chunks_embedded={
            model: _count_share(
                entry.added + entry.kept, len(kept), "chunks whose vectors are in the store"
            )
            for model, entry in sorted(index.changes.vectors.items())
        },
    )


def _count_share(part: int, whole: int, what: str) -> CoverageCount:
    value = min(part / whole, 1.0) if whole else 0.0
    counted = Deterministic(value=value, reason=f"counted: {part} of {whole} {what}")
    return CoverageCount(n=part, of=whole, confidence=counted)


def count_covered(chunks: pd.DataFrame) -> int:
    """Count the characters in at least one chunk. Chunks of a document may overlap."""
    ordered = chunks.sort_values(["doc_id", "start"], kind="stable")
    start, end = (ordered[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    reached = ordered["end"].groupby(ordered["doc_id"]).cummax()
    before = reached.groupby(ordered["doc_id"]).shift(fill_value=0).to_numpy(dtype=np.int64)
    return int(np.maximum(end - np.maximum(start, before), 0).sum())


# ---- Calibrated miss rates: claimed, observed and compared.

RISKIEST = 10
NONE_JUDGED = "no question with a stated miss rate can be judged"
NOT_EARNED = "the stated miss rates are {status}, so their mean is not shown as a measured figure"


class CalibratedMissRates(Result):
    """The parts `uncertainty` and `calibration` of the report, and a file with every retrieval."""

    uncertainty: UncertaintyPart = json_part()
    calibration: CalibrationPart = json_part()
    lines: bytes | Path = file_part(UNCERTAIN_FILE)

    def describe(self) -> dict[str, object]:
        """Show observed and claimed miss rates, and the differences between strategies."""
        part = self.uncertainty
        rows = [
            {"strategy": name, "status": entry.status, "stated": entry.stated.value}
            | entry.observed[part.target].dump()
            for name, entry in part.strategies.items()
        ]
        columns = ("strategy", "status", "value", "ci_low", "ci_high", "n_scored", "stated")
        comparison = self.calibration.comparison
        differences = [
            row.dump() | row.delta.dump() for row in (comparison.differences if comparison else ())
        ]
        return {
            "target": f"{part.target}@{part.k}",
            "observed": Table(columns, rows),
            "n_undefined": count_undefined(rows, "value"),
            "differences": Table(
                ("a", "b", "measure", "value", "low", "high", "p_holm"), differences
            ),
        }


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
    coverage = _measure_coverage(corpus_snapshot, corpus_chunks, admitted_chunks, corpus_index)
    worth = AnswerWorth(scored, claims, outcomes, answers, answer_measures)
    uncertainty = UncertaintyPart(
        target=spec.target,
        k=spec.k,
        level=work.config.level,
        gold_source=outcomes.gold_source,
        strategies={
            name: _describe_strategy(scored, name, claims, outcomes) for name in scored.names
        },
        corpus_coverage=coverage,
        answers=worth.summarize(),
        iterative={
            name: _account_for_rounds(scored, name)
            for name in scored.names
            if scored.spec(name).base_name is not None
        },
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
        lambda: {
            UNCERTAIN_FILE: _write_lines(work, scored, claims, retrieval_signals, worth, coverage)
        },
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
    # A question without gold cannot be missed, even by a failed retrieval.
    ineligible = runs.scores(name).ineligible(runs.config.level, gold)
    observed = {}
    for target in TARGETS:
        record = aggregate(
            [f"{target}_at_{k}"],
            of.missed(target, k)[:, None],
            gold.groups,
            BOOTSTRAP_SEED,
            query_of=gold.query_of[of.variant],
            failed=of.failed,
            failed_value=[1.0],
            ineligible=ineligible,
        )[0]
        none_judged = None if record.n_scored else "no question of this gold set can be judged"
        observed[target] = figure_of(record, none_judged)
    with_rate = stated[stated["miss_rate"].notna()]
    riskiest = with_rate.sort_values(["miss_rate", "claim_id"], ascending=[False, True])
    return StrategyMissRates(
        fingerprint=by.fingerprint,
        status=by.status,
        calibrator=by.calibrator,
        n_claims=len(stated),
        n_absent=len(stated) - len(with_rate),
        observed=observed,
        stated=_mean_stated(with_rate, outcomes.judged_of(name))
        if by.status in DISCOUNTING
        else NotMeasured(reason=NOT_EARNED.format(status=by.status)),
        riskiest=[_describe_risk(row) for row in riskiest.head(RISKIEST).to_dict("records")],
        outcomes=outcomes.strategies[name],
        **({"reason": by.reason} if by.reason else {}),
    )


def _mean_stated(claims: pd.DataFrame, judged: pd.DataFrame) -> Figure | NotMeasured:
    """Average the claims of the judged questions."""
    usable = claims[claims["query_id"].isin(judged["query_id"])]
    if usable.empty:
        return NotMeasured(reason=NONE_JUDGED)
    record = aggregate(
        ["miss_rate"],
        usable["miss_rate"].to_numpy()[:, None],
        pd.factorize(usable.drop_duplicates("query_id")["group_id"])[0],
        BOOTSTRAP_SEED,
        query_of=pd.factorize(usable["query_id"])[0],
    )[0]
    return figure_of(record)


def _describe_risk(row: Mapping[Any, Any]) -> RiskyRetrieval:
    rates = {name: _known(row[name]) for name in ("miss_rate", "ci_low", "ci_high")}
    why = {name: NO_INTERVAL for name, value in rates.items() if value is None}
    names = ("query_id", "paraphrase_id", "seed")
    return RiskyRetrieval.model_validate(
        {**{name: row[name] for name in names}, **rates, "why": why}
    )


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
        frame = _original(claims.claims_of(name), runs, name).set_index("claim_id")
        known = fitted.where(fitted["predicted"].notna()).reindex(frame.index)
        frame = frame.assign(missed=known["missed"], predicted=known["predicted"])
        parts[name] = frame.set_index("query_id").reindex(queries)[columns]
    common = np.all([part["missed"].notna().to_numpy() for part in parts.values()], axis=0)
    return [
        Misses(name, *(part[column].to_numpy(dtype=np.float64)[common] for column in columns))
        for name, part in parts.items()
    ], common


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
    groups = runs.gold.groups[common].astype(np.int64)
    return compare(misses, groups, seed=BOOTSTRAP_SEED), ""


def _account_for_rounds(runs: ScoredRuns, name: str) -> IterativeAccount:
    """Describe the rounds of an iterative strategy under the first seed."""
    run, spec = runs.runs[name], Iterative.model_validate(runs.spec(name))
    about, gold, k = run.about.iterative, runs.gold, runs.config.uncertainty.k
    if about is None or run.rounds is None or run.expansions is None:
        raise RuntimeError(f"{name} was not run in rounds")
    rounds, level = list(run.rounds), runs.config.level

    def recall(rows: np.ndarray) -> FloatArray:
        scores = score_strategy({0: rows.astype(np.int64)}, gold, runs.config.k)
        return scores.column(level, f"R@{k}")

    def mean_recall(rows: np.ndarray) -> float | None:
        values = within_query(recall(rows)[:, None], gold.query_of, len(gold.queries))
        return number(float(np.nanmean(values))) if np.isfinite(values).any() else None

    group = gold.groups[gold.query_of].astype(np.int64)
    found = harm(rounds, run.expansions, recall, group, seed=BOOTSTRAP_SEED)
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


# ---- Calibration outside the nightly run, and strategies compared for researchers.

SAME = 1e-9
"""Tolerance for equal inclusion probabilities, which may differ by rounding."""


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """A calibrated gold set: part `calibration.strategies` of its report, and the traffic."""

    gold_set: str
    target: str
    k: int
    strategies: dict[str, StrategyCalibration]
    traffic: dict[str, dict[str, object]]


def calibrate_gold_set(evaluation: Evaluation) -> Calibrated:
    """Calibrate every strategy on the outcomes so far, with this gold set's judgements."""
    with home_lock(evaluation.settings.home):
        _require_outcomes(evaluation)
        spec, runner = evaluation.config.uncertainty, evaluation.runner
        found = runner.get(MissRateCalibration).strategies
        about = runner.get(RetrievalSignals).about
        traffic = {name: dataclasses.asdict(about[name].traffic) for name in found}
        return Calibrated(evaluation.config.name, spec.target, spec.k, found, traffic)


def compare_strategies(evaluation: Evaluation, names: Sequence[str]) -> MissComparison:
    """Compare strategies on the questions that were judged for all of them.

    The questions have their original wording. Only prediction-powered estimates use production
    traffic. They use the claims of each strategy's fingerprint, with labels from a random audit. A
    pair uses the questions with claims of both strategies.

    Raises
    ------
    InputError
        A strategy does not exist or has too few outcomes, or no question was judged for all.
    """
    known = [spec.name for spec in evaluation.config.strategies]
    unknown = [name for name in names if name not in known]
    if unknown:
        message = f"{evaluation.config.name} has no such strategy"
        raise _refuse("unknown_strategy", message, unknown, ", ".join(known))
    with home_lock(evaluation.settings.home):
        outcomes = _require_outcomes(evaluation)
        calibration = evaluation.runner.get(MissRateCalibration)
        found = calibration.strategies
        few = [name for name in names if found[name].validation is None]
        if few:
            message = f"{quoted(few[0])} cannot be compared: {found[few[0]].why['estimator']}"
            accepted = "strategies that are provisional or better"
            raise _refuse("too_few_outcomes", message, few, accepted)
        runs = open_runs(evaluation)
        claims = evaluation.runner.get(MissRateClaims)
        misses, common = _misses(runs, claims, calibration, names)
        if not common.any():
            message = "no question of the gold set is judged for all of these strategies"
            accepted = "strategies that were run on the same questions"
            raise _refuse("nothing_in_common", message, names, accepted)
        return compare(
            misses,
            runs.gold.groups[common].astype(np.int64),
            seed=BOOTSTRAP_SEED,
            audited={name: _read_audits(evaluation, outcomes, name) for name in names},
        )


def _refuse(code: str, message: str, names: Sequence[str], accepted: str) -> InputError:
    found = ", ".join(map(quoted, names))
    return InputError.of(code, message, field="STRATEGY", found=found, accepted=accepted)


def _require_outcomes(evaluation: Evaluation) -> OutcomeStore:
    """Open the outcomes. Calibration is impossible without them."""
    opened = Outcomes(evaluation)
    if opened.store is None:
        raise opened.error or RuntimeError("the outcomes cannot be opened")
    return opened.store


def _read_audits(evaluation: Evaluation, store: OutcomeStore, name: str) -> Audited:
    """Read the claims of production traffic with the labels of audits from a random sample.

    The predictions come from models that did not see the claim's group.
    """
    spec, runner, label = evaluation.config.uncertainty, evaluation.runner, quoted(name)
    about = runner.get(RetrievalSignals).about[name]
    traffic = of_strategy(runner.get(MissRateCalibration).traffic, name)
    if traffic.empty:
        why = about.traffic.reason or "all differ from what it retrieves now"
        return Audited.nothing(f"no claim of production traffic of {label} can be used: {why}")
    claims, target = traffic["claim_id"].tolist(), f"{spec.target}@{spec.k}"
    subject = f"the {len(claims):,} claims of production traffic of {label}"
    rows = fit_rows(
        store.current(
            strategy_fingerprint=about.fingerprint,
            target=spec.target,
            k=spec.k,
            gold_source=sorted(AUDITS),
        )
    )
    rows = rows[rows["claim_id"].isin(claims)]
    if rows.empty:
        return Audited.nothing(
            f"none of {subject} has an audit with a known inclusion probability for {target}"
        )
    least, most = rows["inclusion_probability"].min(), rows["inclusion_probability"].max()
    if not np.isclose(least, most, rtol=SAME, atol=0):
        return Audited.nothing(
            f"the audits of {label} were drawn with unequal probabilities, {least:.3g} to"
            f" {most:.3g}: they are no simple random sample"
        )
    judged = set(rows["claim_id"])
    after = AuditStore(store.sql).count_unaudited(about.fingerprint, spec.target, judged, claims)
    if after:
        return Audited.nothing(
            f"{after:,} of {subject} belong to no draw that was judged: the audited claims are no"
            " sample of all claims"
        )
    missed = rows.set_index("claim_id")["missed"].reindex(claims).to_numpy(dtype=np.float64)
    return Audited(
        tuple(claims),
        tuple(traffic["query_id"]),
        tuple(traffic["group_id"]),
        missed,
        traffic["predicted"].to_numpy(),
    )


# ---- `uncertain-retrievals.jsonl`: one line for every retrieval of every strategy.

SCHEMA_VERSION = 1
COVERAGE_SIGNAL = "cover_union"
Line = dict[str, object]
"""A line of the file, or an object in it."""
_shown = functools.lru_cache(maxsize=100_000)(mask_snippet)
"""Mask a text. Results are cached, because ids and words recur."""


def _write_lines(  # noqa: PLR0917 - the results behind a line
    work: Work,
    runs: ScoredRuns,
    claims: MissRateClaims,
    signals: RetrievalSignals,
    worth: AnswerWorth,
    coverage: CorpusCoverage,
) -> Iterator[bytes]:
    confidence = {
        "documents_indexed": as_json(coverage.documents_indexed.confidence),
        "text_in_chunks": as_json(coverage.text_in_chunks.confidence),
        "chunks_admitted": as_json(coverage.chunks_admitted.confidence),
    }
    title = "Writing uncertain retrievals"
    with work.progress.step(title, len(runs.names), "strategies") as advance:
        for name in runs.names:
            # A line has about 4 KB, so the lines are never all in memory.
            for line in _Lines(runs, name, claims, signals, worth).write(confidence):
                text = json.dumps(line, sort_keys=True, ensure_ascii=True, allow_nan=False)
                yield f"{text}\n".encode()
            advance(1)


@dataclasses.dataclass(frozen=True)
class _Lines:
    """Writer of the lines of one strategy."""

    runs: ScoredRuns
    name: str
    claims: MissRateClaims
    signals: RetrievalSignals
    worth: AnswerWorth

    def write(self, corpus_coverage: Mapping[str, object]) -> Iterator[Line]:
        """Write a line for every claim."""
        frame, first_seed = self.signals.signals_of(self.name), self.runs.first_seed(self.name)
        claims, by = self.claims.claims_of(self.name), self.claims.speakers[self.name]
        documents, expansions, gaps = self._documents(), self._expansions(), self._gaps()
        answered = self.worth.by_query if self.worth.strategy == self.name else {}
        coverage = frame[COVERAGE_SIGNAL].to_numpy()
        harder = claims["miss_rate"].rank(pct=True, method="max").to_numpy()
        keys = list(zip(frame["variant"].tolist(), frame["seed"].tolist(), strict=True))
        for at, row in enumerate(claims.to_dict("records")):
            key, miss = keys[at], _read_miss_rate(row, by)
            is_first = row["seed"] == first_seed
            steps = expansions.get(key[0], []) if is_first else []
            covered: Line = {"signal": COVERAGE_SIGNAL, "value": number(coverage[at])}
            if covered["value"] is None:
                covered["value_reason"] = "the question has no word to be covered"
            uncertainty: Line = {
                "estimated_recall": as_json(
                    retrieval_confidence(miss) if miss.status == "measured" else UNCALIBRATED
                ),
                "query_difficulty": as_json(_difficulty(miss, float(harder[at]))),
                "corpus_coverage": corpus_coverage,
                "semantic_gaps": None if gaps is None else gaps.get(key, []),
            }
            if gaps is None:
                uncertainty["semantic_gaps_reason"] = (
                    "the retriever returned its own units, which the corpus does not describe"
                )
            line = {
                "schema_version": SCHEMA_VERSION,
                "strategy": self.name,
                **{part: row[part] for part in ("claim_id", "query_id", "paraphrase_id", "seed")},
                "documents": documents.get(key, []),
                "miss_rate": _describe_claim(row, miss),
                "query_expansions": [{part: step[part] for part in EXPANSION} for step in steps],
                "coverage_estimate": covered,
                "retrieval_confidence": as_json(retrieval_confidence(miss)),
                "uncertainty": uncertainty,
                "iterations": steps,
            }
            if is_first and row["paraphrase_id"] == ORIGINAL and row["query_id"] in answered:
                values = answered[row["query_id"]]
                line["answer"] = {part: as_json(value) for part, value in values.items()}
            yield line

    def _gaps(self) -> dict[tuple[int, int], list[Line]] | None:
        """Collect the semantic gaps of every (variant, seed); None when gaps were not computed."""
        if not self.signals.about[self.name].has_gaps:
            return None
        found: dict[tuple[int, int], list[Line]] = {}
        unknown = as_json(UNCALIBRATED)
        for row in of_strategy(self.signals.gaps, self.name).to_dict("records"):
            gap = {
                "description": _shown(row["description"]),
                "severity": row["severity"],
                "mitigation": row["mitigation"],
                "miss_likelihood": unknown,
            }
            found.setdefault((row["variant"], row["seed"]), []).append(gap)
        return found

    def _documents(self) -> dict[tuple[int, int], list[Line]]:
        """Collect the first K results of every (variant, seed), best first."""
        frame, units = self.runs.runs[self.name].run, self.runs.units(self.name)
        own = self.runs.spec(self.name).own_units
        ids = units["unit_id" if own else "chunk_id"]
        found: dict[tuple[int, int], list[Line]] = {}
        top = frame[frame["k_final"] <= self.runs.config.uncertainty.k]
        top = top.sort_values(["variant", "seed", "k_final"], kind="stable")
        top = top.assign(
            chunk_id=[_shown(str(name)) for name in ids.to_numpy()[top["chunk"]]],
            doc_id=[_shown(str(name)) for name in units["doc_id"].to_numpy()[top["chunk"]]],
        )
        columns = ["variant", "seed", "chunk_id", "doc_id", "k_final", "score_raw"]
        for variant, seed, chunk_id, doc_id, rank, score in zip(
            *(top[column].tolist() for column in columns), strict=True
        ):
            entry = {"chunk_id": chunk_id, "doc_id": doc_id, "rank": rank, "score": number(score)}
            found.setdefault((variant, seed), []).append(entry)
        return found

    def _expansions(self) -> dict[int, list[Line]]:
        """Collect the expansions of an iterative strategy by variant; empty for other kinds."""
        frame, found = self.runs.runs[self.name].expansions, dict[int, list[Line]]()
        for row in [] if frame is None else frame.to_dict("records"):
            line = {
                str(key): number(value) if isinstance(value, float) else value
                for key, value in row.items()
                if key != "question"
            }
            line |= {key: _shown(row[key]) for key in ("original", "expanded")}
            found.setdefault(row["question"], []).append(line)
        return found


UNCALIBRATED: Final = Absent(reason="uncalibrated")
EXPANSION: Final = ("original", "expanded", "strategy", "result_count", "found_unique_results")


def _describe_claim(row: Mapping[Any, Any], miss: MissRate) -> Line:
    """Describe a claim in JSON values, with a reason for each null."""
    columns = {"value": "miss_rate", **{n: n for n in ("ci_low", "ci_high", "heuristic_v0")}}
    found: Line = {name: number(row[column]) for name, column in columns.items()}
    why = "the retrieval failed" if found["value"] is None else NO_INTERVAL
    found |= {f"{name}_reason": why for name, value in found.items() if value is None}
    found |= {name: row[name] for name in ("target", "k", "status", "calibrator")}
    found["gold_source"] = miss.gold_source
    if not miss.gold_source:
        found["gold_source_reason"] = "it is based on no outcome"
    return found


def _difficulty(miss: MissRate, share_at_most: float) -> Confidence:
    """Compute the share of this run's retrievals with a higher miss rate than the question."""
    if miss.status != "measured" or np.isnan(share_at_most):
        return UNCALIBRATED
    return Derived(
        value=min(max(1 - share_at_most, 0.0), 1.0),
        formula="share of this run's retrievals with a higher miss rate",
        inputs={"retrieval_confidence": retrieval_confidence(miss)},
    )
