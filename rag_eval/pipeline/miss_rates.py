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
from rag_eval.core.config import DISCOUNTING, TARGETS, Status
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
    StrategyCalibration,
    StrategyMissRates,
    UncertaintyPart,
    number,
)
from rag_eval.core.types import (
    AUDITS,
    Absent,
    Confidence,
    Deterministic,
    Measured,
    as_json,
    effective,
)
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.intervals import aggregate, within_query
from rag_eval.measures.overlap import NamedGold, SharedGold, mean_interval
from rag_eval.pipeline.answers import AnswerMeasures, AnswerSet
from rag_eval.pipeline.calibration import MissRateCalibration
from rag_eval.pipeline.calibration_stores import Outcomes
from rag_eval.pipeline.claims import MissRateClaims, RetrievalOutcomes, Speaker
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusChunks, CorpusSnapshot, GoldVariants
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.index import CorpusIndex
from rag_eval.pipeline.misses import observe_misses
from rag_eval.pipeline.retrieval import StrategyRun
from rag_eval.pipeline.runner import (
    Chart,
    Result,
    Stage,
    Table,
    Work,
    count_undefined,
    file_part,
    json_part,
)
from rag_eval.pipeline.scores import (
    ScoredRuns,
    figure_of,
    judge_runs,
    open_runs,
    score_runs,
    score_strategy,
)
from rag_eval.pipeline.signals import RetrievalSignals, of_strategy
from rag_eval.storage.artifacts import home_lock
from rag_eval.uncertainty.audits import AuditStore
from rag_eval.uncertainty.comparing import Audited, Misses, compare
from rag_eval.uncertainty.confidence import (
    COVERAGE_SIGNAL,
    Line,
    MissRate,
    UncertainRetrieval,
    calibrated_confidence,
    describe_document,
    final_confidence,
    groundedness_confidence,
    reported_confidence,
    retrieval_confidence,
)
from rag_eval.uncertainty.gaps import Gap
from rag_eval.uncertainty.iterative import Iterative, harm, list_expansions
from rag_eval.uncertainty.outcomes import OutcomeStore, fit_rows

T = TypeVar("T")
UNCERTAIN_FILE: Final = "uncertain-retrievals.jsonl"

# ---- Confidence of each answer: its groundedness, discounted by the miss rate of its retrieval.

NO_ANSWERS = "the gold set configures no answers"
MIN_MISSED = 30
"""A share of right answers needs answers over missed retrievals from at least this many groups."""


def read_miss_rate(row: Mapping[Any, Any], by: Speaker) -> MissRate:
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
        by.discounts,
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


@dataclasses.dataclass(frozen=True)
class _Worth:
    """Confidence values of the answers of a run by query id; empty without answers.

    `strategy` gives the evidence of the answers. `right_when_missed` is the share of answers that
    cite gold despite a miss; None for too few answers.
    """

    strategy: str = ""
    by_query: Mapping[str, Mapping[str, Confidence]] = dataclasses.field(default_factory=dict)
    right_when_missed: Measured | None = None


def _weigh_answers(
    runs: ScoredRuns,
    claims: MissRateClaims,
    outcomes: RetrievalOutcomes,
    answers: AnswerSet | None,
    measures: AnswerMeasures | None,
) -> _Worth:
    """Compute the confidence values of every answer."""
    if answers is None or measures is None:
        return _Worth()
    strategy, scores = answers.about.strategy, measures.per_question.set_index("query_id")
    original, judged = _original(claims.claims_of(strategy), runs, strategy), outcomes.judged
    missed = judged.loc[
        judged["missed"] & judged["claim_id"].isin(original["claim_id"]), "query_id"
    ]
    over = scores[scores.index.isin(missed) & (scores["outcome"] == "answered")]
    over = over[over["n_gold"] > 0]
    groups = _group_of_query(runs)
    right, right_of_group = None, {}
    seen = pd.DataFrame(
        {
            "right": (over["n_correct"].to_numpy() > 0).astype(np.float64),
            "group": [groups[query] for query in over.index],
            "place": np.arange(len(over)),
        }
    )
    if seen["group"].nunique() >= MIN_MISSED:
        name, gold = (
            runs.gold_variants.about.hash[:16],
            runs.gold.named_gold.of(over.index.tolist()),
        )
        share = functools.partial(_share_right, gold=gold, name=name)
        # With the answers of its own group, the outcome of an answer would decide its confidence.
        right, right_of_group = share(seen), leave_groups_out(seen, share)
    rows = {row["query_id"]: row for row in original.to_dict("records")}
    by_query: dict[str, dict[str, Confidence]] = {}
    for answer in answers.answers:
        query, answered = answer.query_id, answer.outcome == "answered"
        if answer.mode == "deterministic":
            value = scores["groundedness"][query]
            known = answered and not pd.isna(value)
            synthesis = groundedness_confidence(float(value) if known else None)
        else:
            synthesis = reported_confidence(answer.confidence if answered else None, answer.mode)
        miss = read_miss_rate(rows[query], claims.speakers[strategy])
        of_others = right_of_group.get(groups[query], right)
        by_query[query] = {
            "synthesis_confidence": synthesis,
            "retrieval_confidence": retrieval_confidence(miss),
            "final_confidence": final_confidence(synthesis, miss),
            "calibrated_confidence": calibrated_confidence(synthesis, miss, of_others),
        }
    return _Worth(strategy, by_query, right)


def _group_of_query(runs: ScoredRuns) -> dict[str, int]:
    return dict(zip(runs.gold.queries["query_id"], runs.gold.groups.tolist(), strict=True))


def _share_right(seen: pd.DataFrame, gold: SharedGold, name: str) -> Measured:
    found = mean_interval(seen["right"].to_numpy(), gold.take(seen["place"].to_numpy()))
    value, low, high, _ = (float(end[0]) for end in found)
    return Measured(
        value=value,
        dataset=f"answers over missed retrievals, gold {name}",
        n=len(seen),
        ci_low=low,
        ci_high=high,
        measured_at=dt.datetime.now(dt.UTC),
    )


def _summarize(worth: _Worth, runs: ScoredRuns) -> AnswerConfidences | NotMeasured:
    """Average the confidence values of the answers."""
    found = list(worth.by_query.values())
    if not found:
        return NotMeasured(reason=NO_ANSWERS)
    shared = runs.gold.named_gold.of(list(worth.by_query))

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
        record = aggregate([name], values[:, None], shared)[0]
        absent = {one.reason for entry in found if isinstance(one := entry[name], Absent)}
        reason = f"absent for every answer: {', '.join(sorted(absent))}"
        return figure_of(record, None if record.n_scored else reason)

    few = f"fewer than {MIN_MISSED} independent questions were answered over a missed retrieval"
    return AnswerConfidences(
        n=len(found),
        synthesis_confidence=mean("synthesis_confidence"),
        final_confidence=mean("final_confidence"),
        calibrated_confidence=mean("calibrated_confidence"),
        right_when_missed=worth.right_when_missed,
        why={} if worth.right_when_missed else {"right_when_missed": few},
    )


def leave_groups_out(seen: pd.DataFrame, share: Callable[[pd.DataFrame], T]) -> dict[int, T]:
    """Compute a value for each group of `seen` (right, group) from the rows of all other groups.

    Groups of a single row share the computation with those of an equal one.
    """
    totals = seen.groupby("group")["right"].agg(["sum", "count"])
    kind_of = {
        group: ("alone", right) if count == 1 else ("group", group)
        for group, right, count in totals.itertuples()
    }
    example = {kind: group for group, kind in kind_of.items()}
    found = {kind: share(seen[seen["group"] != group]) for kind, group in example.items()}
    return {group: found[kind] for group, kind in kind_of.items()}


def _original(claims: pd.DataFrame, runs: ScoredRuns, name: str) -> pd.DataFrame:
    """Select the claims of the original wordings under the first seed."""
    is_first = claims["seed"] == runs.first_seed(name)
    return claims[(claims["paraphrase_id"] == ORIGINAL) & is_first]


# ---- Retrievable share of the corpus: counted from the index, not estimated.


def measure_coverage(
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
        # A run stops when the vector of an admitted chunk is missing.
        chunks_embedded={
            model: _count_share(
                index.about.n_chunks, len(kept), "chunks whose vectors are in the index"
            )
            for model in sorted({one.embed_model for one in index.about.strategies.values()} - {""})
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

NONE_JUDGED = "no question with a stated miss rate can be judged"
NOT_EARNED = "the stated miss rates are {status}, so their mean is not shown"
SHOWN: Final = frozenset({*DISCOUNTING, "prior"})
"""Statuses whose mean stated miss rate is shown, beside the status."""


class CalibratedMissRates(Result):
    """The parts `uncertainty` and `calibration` of the report, and a file with every retrieval."""

    uncertainty: UncertaintyPart = json_part()
    calibration: CalibrationPart = json_part()
    lines: bytes | Path = file_part(UNCERTAIN_FILE)

    def describe(self) -> dict[str, object]:
        """Show observed and claimed miss rates, and the differences between strategies."""
        part = self.uncertainty
        seen = {name: row.observed[part.target].triple for name, row in part.strategies.items()}
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
            "chart of observed miss rates": Chart(seen),
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
    coverage = measure_coverage(corpus_snapshot, corpus_chunks, admitted_chunks, corpus_index)
    worth = _weigh_answers(scored, claims, outcomes, answers, answer_measures)
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
        answers=_summarize(worth, scored),
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
        lambda: {UNCERTAIN_FILE: _write_lines(scored, claims, retrieval_signals, worth, coverage)},
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
            gold.shared,
            query_of=gold.query_of[of.variant],
            failed=of.failed,
            failed_value=[1.0],
            ineligible=ineligible,
        )[0]
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
    return compare(misses, runs.gold.shared.take(common)), ""


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
            runs.gold.shared.take(common),
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

SCHEMA_VERSION = 2


def _write_lines(
    runs: ScoredRuns,
    claims: MissRateClaims,
    signals: RetrievalSignals,
    worth: _Worth,
    coverage: CorpusCoverage,
) -> Iterator[bytes]:
    # A line has about 4 KB, so the lines are never all in memory.
    for name in runs.names:
        for line in _describe_retrievals(runs, name, claims, signals, worth, coverage=coverage):
            text = json.dumps(line, sort_keys=True, ensure_ascii=True, allow_nan=False)
            yield f"{text}\n".encode()


def _describe_retrievals(
    runs: ScoredRuns,
    name: str,
    claims: MissRateClaims,
    signals: RetrievalSignals,
    worth: _Worth,
    *,
    coverage: CorpusCoverage,
) -> Iterator[Line]:
    """Make the line of every claim of a strategy."""
    frame, first_seed = signals.signals_of(name), runs.first_seed(name)
    stated, by = claims.claims_of(name), claims.speakers[name]
    documents, expansions = _list_documents(runs, name), _expansions(runs, name)
    gaps = _list_gaps(signals, name) if signals.about[name].has_gaps else None
    answered = worth.by_query if worth.strategy == name else {}
    harder = stated["miss_rate"].rank(pct=True, method="max")
    columns = (frame["variant"], frame["seed"], frame[COVERAGE_SIGNAL], harder)
    facts = zip(*(column.tolist() for column in columns), strict=True)
    rows = zip(stated.to_dict("records"), facts, strict=True)
    for row, (variant, seed, covered, share) in rows:
        is_first = seed == first_seed
        found = UncertainRetrieval(
            documents=documents.get((variant, seed), []),
            miss_rate=read_miss_rate(row, by),
            heuristic_v0=row["heuristic_v0"],
            similar_judged=row["similar_judged"],
            coverage=covered,
            corpus=coverage,
            gaps=None if gaps is None else gaps.get((variant, seed), []),
            iterations=expansions.get(variant, []) if is_first else [],
            harder_share=share,
        )
        line: Line = {
            "schema_version": SCHEMA_VERSION,
            "strategy": name,
            **{part: row[part] for part in ("claim_id", "query_id", "paraphrase_id", "seed")},
            **found.as_json(),
        }
        if is_first and row["paraphrase_id"] == ORIGINAL and row["query_id"] in answered:
            values = answered[row["query_id"]]
            line["answer"] = {part: as_json(value) for part, value in values.items()}
        yield line


def _list_gaps(signals: RetrievalSignals, name: str) -> dict[tuple[int, int], list[Gap]]:
    """List the semantic gaps of every (variant, seed)."""
    found: dict[tuple[int, int], list[Gap]] = {}
    for row in of_strategy(signals.gaps, name).to_dict("records"):
        gap = Gap(row["description"], row["severity"], row["mitigation"])
        found.setdefault((row["variant"], row["seed"]), []).append(gap)
    return found


def _list_documents(runs: ScoredRuns, name: str) -> dict[tuple[int, int], list[Line]]:
    """List the first K results of every (variant, seed), best first."""
    frame, units, is_external = runs.runs[name].run, runs.units(name), runs.spec(name).own_units
    ids = units["unit_id" if is_external else "chunk_id"]
    texted = units if is_external else runs.admitted_chunks.artifact.frame("chunks", ["text"])
    found: dict[tuple[int, int], list[Line]] = {}
    top = frame[frame["k_final"] <= runs.config.uncertainty.k]
    top = top.sort_values(["variant", "seed", "k_final"], kind="stable")
    columns = ("variant", "seed", "chunk", "k_final", "score_raw")
    rows = zip(*(top[column].tolist() for column in columns), strict=True)
    chunk_ids, doc_ids = ids.to_numpy(), units["doc_id"].to_numpy()
    texts = texted["text"].to_numpy()
    for variant, seed, row, rank, score in rows:
        entry = describe_document(
            str(chunk_ids[row]), str(doc_ids[row]), rank, score, str(texts[row])
        )
        found.setdefault((variant, seed), []).append(entry)
    return found


def _expansions(runs: ScoredRuns, name: str) -> dict[int, list[Line]]:
    """List the expansions of an iterative strategy by variant; empty for other kinds."""
    frame = runs.runs[name].expansions
    return {} if frame is None else list_expansions(frame)
