"""The calibration stage: from outcomes to stored calibrators and recorded promotions.

All outcomes so far decide the status of each strategy, and the calibrator of later runs. The
statistics are in `rag_eval.uncertainty`.
"""

import dataclasses
import datetime as dt
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from rag_eval.core.arrays import FloatArray
from rag_eval.core.errors import InputError
from rag_eval.core.types import DISCOUNTING
from rag_eval.corpus.masking import mask
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.intervals import SEED
from rag_eval.measures.overlap import SharedGold
from rag_eval.pipeline.claims import (
    OF_GOLD,
    QRELS,
    MissRateClaims,
    RetrievalOutcomes,
    no_prior,
    prior_of,
)
from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
from rag_eval.pipeline.index import steering_calibrator
from rag_eval.pipeline.retrieval import StrategyRun
from rag_eval.pipeline.runner import (
    Result,
    Stage,
    Work,
    file_part,
    frame_part,
    json_part,
)
from rag_eval.pipeline.scores import ScoredRuns, judge_runs, score_runs
from rag_eval.pipeline.signals import RetrievalSignals
from rag_eval.storage.artifacts import Artifact, Parts
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.calibration import Calibration, Judged, Task, calibrate
from rag_eval.uncertainty.calibrators import (
    CALIBRATOR_VERSION,
    Accepted,
    Outcomes,
    accept_calibrator,
    accepted_calibrator,
    keep_calibrator,
)
from rag_eval.uncertainty.conformal import Questions
from rag_eval.uncertainty.estimator import Miss, MissRateModel
from rag_eval.uncertainty.miss_rate_report import (
    Condition,
    OutcomeCounts,
    Promotion,
    Standing,
    StrategyCalibration,
)
from rag_eval.uncertainty.outcomes import (
    Asked,
    QuestionGroups,
    document_tie,
    fit_rows,
    frame_of,
    question_groups,
    question_id,
    refuse_own_gold,
    select_current,
    words_tie,
)
from rag_eval.uncertainty.scores import Labelled
from rag_eval.uncertainty.signals import SIGNALS
from rag_eval.uncertainty.status import Series, Situation, judge_status, promotions, record_status
from rag_eval.uncertainty.traffic import TrafficStore

PARTIAL: Final = "a partial run (some strategies, or other vectors) does not change later runs"
PICTURE: Final = "reliability.svg"


class MissRateCalibration(Result):
    """The calibration of every strategy on the outcomes so far.

    Attributes
    ----------
    strategies
        Part `calibration.strategies` of the report.
    predictions
        Outcomes of the fit: strategy, claim_id, missed, predicted (out of fold), group_id.
    traffic
        Claims of production traffic: strategy, claim_id, query_id, group_id, and the prediction
        of models that did not see their group; NaN without a model.
    """

    shown = ("strategies",)
    strategies: dict[str, StrategyCalibration] = json_part()
    predictions: pd.DataFrame = frame_part()
    traffic: pd.DataFrame = frame_part()
    reliability: bytes | None = file_part(PICTURE, default=None)

    @property
    def picture(self) -> Path | None:
        """The picture file, if any strategy was validated."""
        return self.artifact.path(PICTURE) if PICTURE in self.artifact.files else None


@Stage(
    "miss_rate_calibration",
    "uncertainty",
    stores=("outcomes", "calibrators", "traffic"),
    live=True,
    kinds=("json", "sql"),
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
    outcomes, now = Outcomes(work.evaluation.settings), dt.datetime.now(dt.UTC)
    facts = (scored, retrieval_signals, miss_rate_claims, retrieval_outcomes, outcomes, now)
    night = _Night(work, *facts)
    with work.progress.step("Calibrating miss rates", len(runs), "strategies") as advance:
        found = {}
        # Bases come first, because their calibrators steer iterative strategies.
        for name in sorted(scored.names, key=lambda one: scored.spec(one).base_name is not None):
            found[name] = _calibrate(night, name)
            advance(1)
    ordered = [found[name] for name in scored.names]
    strategies = {name: found[name][0] for name in scored.names}
    return MissRateCalibration(
        strategies=strategies,
        reliability=_draw(work, strategies),
        predictions=pd.concat([part for _, part, _ in ordered], ignore_index=True),
        traffic=pd.concat([part for *_, part in ordered], ignore_index=True),
    )


def _draw(work: Work, strategies: dict[str, StrategyCalibration]) -> bytes | None:
    """Draw the reliability diagrams of all strategies that were validated."""
    target = f"{work.config.uncertainty.target}@{work.config.uncertainty.k}"
    validations = {
        name: entry.validation.dump() for name, entry in strategies.items() if entry.validation
    }
    if not validations:
        return None

    def make() -> Parts:
        from rag_eval.reporting.html.panels.miss_rates import reliability_sheet

        return {PICTURE: reliability_sheet(validations, target).encode()}

    return work.keep("calibration_pictures", [target, validations], make).bytes(PICTURE)


@dataclasses.dataclass(frozen=True)
class _Night:
    """Common data of the calibrations of all strategies of one run."""

    work: Work
    runs: ScoredRuns
    signals: RetrievalSignals
    claims: MissRateClaims
    judged: RetrievalOutcomes
    outcomes: Outcomes
    now: dt.datetime

    @functools.cached_property
    def gold_ties(self) -> list[tuple[str, str]]:
        """List (query id, tie) for the words of every wording and for every gold document.

        The words are masked like the words of stored traffic.
        """
        gold = self.runs.gold_variants
        wordings, judged = gold.variants, gold.qrels_document
        judged = judged[judged["gain"] > 0]
        words = zip(wordings["query_id"], wordings["text"], strict=True)
        documents = zip(judged["query_id"], judged["item_id"], strict=True)
        return [
            *((query, words_tie(question_id(mask(text).text))) for query, text in words),
            *((query, document_tie(document)) for query, document in documents),
        ]


@dataclasses.dataclass(frozen=True)
class _Strategy:
    """What is known of one strategy before the fit.

    `history` has all recorded outcomes under the current fingerprint, `groups` joins the questions
    of outcomes and traffic with the gold's groups, and `traffic` are the claims of production
    traffic with these groups. `series` is the key of its calibrators and its status.
    """

    night: _Night
    name: str
    fingerprint: str
    series: Series
    history: pd.DataFrame
    groups: QuestionGroups
    signals: pd.DataFrame
    claims: pd.DataFrame
    traffic: pd.DataFrame

    @property
    def work(self) -> Work:
        return self.night.work


def _open_strategy(night: _Night, name: str) -> _Strategy:
    work, store, spec = night.work, night.outcomes.store, night.work.config.uncertainty
    fingerprint, history = night.signals.about[name].fingerprint, frame_of([])
    if store is not None:
        history = store.history(strategy_fingerprint=fingerprint, target=spec.target, k=spec.k)
    traffic = night.signals.traffic_of(name)
    groups = _join_questions(night, select_current(history), traffic)
    return _Strategy(
        night,
        name,
        fingerprint,
        Series(work.config.name, name, spec.target, spec.k),
        history,
        groups,
        night.signals.signals_of(name),
        night.claims.claims_of(name),
        _regroup(traffic, groups),
    )


def _regroup(rows: pd.DataFrame, groups: QuestionGroups) -> pd.DataFrame:
    pairs = zip(rows["query_id"], rows["group_id"], strict=True)
    return rows.assign(group_id=[groups.group(*pair) for pair in pairs])


def _join_questions(night: _Night, current: pd.DataFrame, traffic: pd.DataFrame) -> QuestionGroups:
    """Join the questions of current outcomes and of traffic with the gold's groups."""
    queries, store = night.runs.gold.queries, night.outcomes.store
    gold = dict(zip(queries["query_id"], queries["group_id"], strict=True))
    # Leave out the outcomes of this stage. Their questions are in the gold, or the gold dropped
    # the questions.
    of_stage = (current["gold_source"] == QRELS) & current["note"].str.fullmatch(OF_GOLD)
    columns = ["claim_id", "query_id", "group_id"]
    by_hand = current[~of_stage]
    rows = pd.concat([by_hand[columns], traffic[columns]])
    documents: list[Sequence[str]] = [
        *by_hand["gold_documents"],
        *([] for _ in range(len(traffic))),
    ]
    known = {}
    if store is not None and len(rows):
        known = TrafficStore(store.sql).by_id(set(rows["claim_id"]))
    asked = []
    for (claim, query, group), named in zip(rows.itertuples(index=False), documents, strict=True):
        ties = [document_tie(document) for document in named]
        if claim in known:
            ties.append(words_tie(question_id(known[claim].query)))
        asked.append(Asked(query, group, tuple(ties)))
    return question_groups(gold, night.gold_ties if asked else [], asked)


# ---- The outcomes for the fit.


@dataclasses.dataclass(frozen=True)
class _Fitting:
    """The outcomes of one strategy for the fit of a calibrator.

    `rows` and `labelled` hold the outcomes in the order of claim ids, with current groups.
    `refused` says why the outcomes cannot calibrate this strategy, else it is empty.
    `n_without_signals` counts the outcomes that were left out. `age_days` is the median age. An
    outcome that this run's gold judges again has age 0.
    """

    rows: pd.DataFrame
    labelled: Labelled
    refused: str
    age_days: float | None
    n_without_signals: int

    @property
    def identity(self) -> str:
        """Hash of the outcomes with their groups and inclusion probabilities, and of `refused`."""
        columns = ("outcome_id", "missed", "group_id", "inclusion_probability")
        return digest([*(self.rows[name].tolist() for name in columns), self.refused], 32)


def _select_outcomes(strategy: _Strategy) -> _Fitting:
    """Select the outcomes for the fit of a calibrator."""
    night = strategy.night
    rows = fit_rows(select_current(strategy.history)).sort_values("claim_id", kind="stable")
    tonight = set(night.judged.judged_of(strategy.name)["claim_id"])
    # An outcome of this stage counts only while the gold still judges the claim.
    is_current = ~rows["note"].str.fullmatch(OF_GOLD) | rows["claim_id"].isin(tonight)
    rows = _regroup(rows[is_current].reset_index(drop=True), strategy.groups)
    values = _signals_of_outcomes(strategy, rows)
    # Leave out outcomes without signals, because their z-scores would describe an average
    # retrieval.
    known = np.asarray(np.isfinite(values).any(axis=1))
    rows, refused = rows[known].reset_index(drop=True), night.outcomes.fault
    try:
        refuse_own_gold(rows, strategy.name)
    except InputError as error:
        refused = str(error.problems[0])
    ages = pd.Timestamp(night.now) - pd.to_datetime(rows["at"], utc=True)
    days = np.maximum(ages.dt.total_seconds().to_numpy() / 86400, 0.0)
    is_tonight = rows["claim_id"].isin(tonight).to_numpy(dtype=bool)
    # Use the median age, because one recent outcome must not hide many old ones.
    age = float(np.median(np.where(is_tonight, 0.0, days))) if len(rows) else None
    # Give every claim of traffic an owner of its own. A question that is asked twice is not
    # another wording of itself.
    owner = rows["query_id"].where(is_tonight, "\x00" + rows["claim_id"])
    labelled = Labelled(
        SIGNALS,
        values[known],
        rows["missed"].to_numpy(dtype=bool),
        pd.factorize(rows["group_id"])[0].astype(np.int64),
        rows["weight"].to_numpy(dtype=np.float64),
        question := pd.factorize(owner.to_numpy(dtype=object))[0].astype(np.int64),
        _share_gold(strategy, rows.assign(question=question).drop_duplicates("question")),
    )
    return _Fitting(rows, labelled, refused, age, int((~known).sum()))


def _share_gold(strategy: _Strategy, questions: pd.DataFrame) -> SharedGold:
    """Collect the gold documents of the questions of outcomes, by their code `question`.

    A question outside of the gold has the documents of the gold questions in its group. A group
    without gold counts as one document.
    """
    judged = strategy.night.runs.gold_variants.qrels_document
    judged = judged.loc[judged["gain"] > 0, ["query_id", "item_id"]]
    own = questions[["question", "query_id"]].merge(judged, on="query_id")
    others = questions.loc[~questions["question"].isin(own["question"]), ["question", "group_id"]]
    by_group = judged.assign(group_id=judged["query_id"].map(strategy.groups.of_gold))
    # columns without rows have no type of their own
    others, by_group = (frame.astype({"group_id": "str"}) for frame in (others, by_group))
    joined = others.merge(by_group[["group_id", "item_id"]], on="group_id", how="left")
    joined["item_id"] = joined["item_id"].fillna("\0" + joined["group_id"])
    pairs = pd.concat([own, joined])
    items = pd.factorize(pairs["item_id"])[0]
    return SharedGold.of_pairs(pairs["question"].to_numpy(), items, len(questions))


def _signals_of_outcomes(strategy: _Strategy, rows: pd.DataFrame) -> FloatArray:
    """Collect the signals of outcomes [n, p] from this run, or else from the stored outcomes.

    Missing signals are NaN. Stored audits of traffic have no signals, and outcomes of earlier
    versions may have fewer.
    """
    names = list(SIGNALS)
    own = strategy.signals[names].set_index(strategy.claims["claim_id"])
    other = strategy.traffic.set_index("claim_id")[names]
    known = pd.concat([own, other[~other.index.isin(own.index)]])
    values = np.array(known.reindex(rows["claim_id"]), dtype=np.float64)
    for place in np.flatnonzero(~rows["claim_id"].isin(known.index)):
        found = rows["signals"].iloc[place]
        values[place] = [np.nan if found.get(name) is None else found[name] for name in SIGNALS]
    return values


# ---- Fit, status and acceptance.


def _calibrate(night: _Night, name: str) -> tuple[StrategyCalibration, pd.DataFrame, pd.DataFrame]:
    """Calibrate a strategy. Return its part of the report, predictions and traffic."""
    strategy = _open_strategy(night, name)
    fitting = _select_outcomes(strategy)
    kept = _fit(strategy, fitting)
    fit = Calibration.from_json(kept.json("about"))
    counts = fit.counts
    if fitting.refused:  # refused outcomes prove nothing, so their figures are hidden
        fit = Calibration(fit.counts, fit.conformal)
        nothing = dict.fromkeys(("outcomes", "groups", "groups_with_misses", "groups_with_hits"), 0)
        counts = OutcomeCounts(**nothing)
    situation = _situation(strategy, fitting, fit.model)
    standing = judge_status(counts, fit.validation, situation)
    calibrator = _accept(strategy, fitting, fit, standing)
    promotion = _record(strategy, fit, standing, calibrator)
    report = StrategyCalibration(
        fingerprint=strategy.fingerprint,
        status=standing.status,
        calibrator=calibrator or None,
        counts=fit.counts,
        validation=fit.validation,
        heuristic_v0=fit.heuristic,
        conformal=fit.conformal,
        estimator=fit.model and _describe_model(fit.model),
        standing=standing,
        refused=fitting.refused or None,
        promotion=promotion,
        n_without_signals=fitting.n_without_signals,
        why=_explain_absences(strategy, fitting, fit, calibrator),
    )
    predictions = kept.frame("predictions").assign(strategy=name)
    return report, predictions, _predict_traffic(strategy.traffic, fit.model)


def _fit(strategy: _Strategy, fitting: _Fitting) -> Artifact:
    """Fit and validate a calibrator, or read the stored fit to equal outcomes.

    The parts are `about` (a `Calibration`) and `predictions` (means out of fold).
    """
    night, work, name = strategy.night, strategy.work, strategy.name
    spec, names = work.config.uncertainty, list(SIGNALS)
    prior, together = prior_of(work.config, name), len(night.runs.names)
    identity = [
        fitting.identity,
        night.runs.runs[name].id,
        night.runs.gold_variants.id,
        work.config.level,
        [spec.target, spec.k, together, prior.id],
        pd.util.hash_pandas_object(strategy.signals, index=False).tolist(),
        strategy.traffic["claim_id"].tolist(),
        pd.util.hash_pandas_object(strategy.traffic[names], index=False).tolist(),
    ]

    def make() -> Parts:
        rows, heuristic = fitting.rows, strategy.claims.set_index("claim_id")["heuristic_v0"]
        judged = Judged(
            fitting.labelled,
            rows["group_id"].tolist(),
            heuristic.reindex(rows["claim_id"]).to_numpy(dtype=np.float64),
            _questions(strategy),
            night.signals.unlabelled(name),
        )
        miss = Miss(spec.target, spec.k)
        task = Task(prior=prior, checked_together=together, seed=SEED, miss=miss)
        found = calibrate(judged, task)
        mean = np.nan if found.predictions is None else found.predictions.mean(axis=0)
        predictions = rows[["claim_id", "group_id"]].assign(
            missed=fitting.labelled.missed, predicted=mean
        )
        return {"about": found.to_json(), "predictions": predictions}

    return work.keep("calibration", identity, make)


def _questions(strategy: _Strategy) -> Questions | None:
    """Collect the first gold ranks of the original wordings; None if none is judged."""
    runs, name = strategy.night.runs, strategy.name
    gold, judgements, seed = runs.gold, judge_runs(runs, name), runs.first_seed(name)
    original = (gold.variants["paraphrase_id"].to_numpy() == ORIGINAL)[judgements.variant]
    first = original & (judgements.seed == seed) & ~np.isnan(judgements.first)
    if not first.any():
        return None
    groups = gold.groups[gold.query_of[judgements.variant[first]]].astype(np.int64)
    return Questions(judgements.first[first], groups, runs.config.depth)


def _situation(strategy: _Strategy, fitting: _Fitting, model: MissRateModel | None) -> Situation:
    """Collect what decides a status beside the figures of the fit."""
    night, spec = strategy.night, strategy.work.config.uncertainty
    runs, base_changes = night.runs, None
    own = runs.spec(strategy.name)
    if own.base_name is not None:
        index_hash = runs.about(own.base_name).index_hash
        now = steering_calibrator(strategy.work.evaluation, own, index_hash)
        base_changes = now != runs.about(strategy.name).steered_by
    return Situation(
        age_days=fitting.age_days,
        stale_after_days=spec.stale_after_days,
        n_unlabelled=len(night.signals.unlabelled(strategy.name)),
        own_gold_only=bool(fitting.refused) and not night.outcomes.fault,
        no_prior=no_prior(spec.target, spec.k),
        trusted=model is None or model.head.trust > 0,
        base_changes=base_changes,
    )


def _accept(strategy: _Strategy, fitting: _Fitting, fit: Calibration, standing: Standing) -> str:
    """Store and accept a calibrator, or demote the previous one. Return the stored id."""
    night, home = strategy.night, strategy.work.evaluation.home
    if strategy.work.evaluation.partial:
        return ""
    before = accepted_calibrator(home, strategy.series)
    at, calibrator = night.now.isoformat(timespec="seconds"), ""
    if fit.model is not None:
        body = _write_calibrator(strategy, fitting, fit, at)
        calibrator = keep_calibrator(home, {**body, "discounts": standing.discounts})
    elif before is None or night.outcomes.fault:
        return ""
    accepted = Accepted(
        calibrator_id=calibrator or (before.calibrator_id if before else ""),
        strategy_fingerprint=strategy.fingerprint,
        status=standing.status,
        at=at,
    )
    if before is None or accepted.model_copy(update={"at": before.at}) != before:
        strategy.work.evaluation.lock.check()
        accept_calibrator(home, strategy.series, accepted)
    return calibrator


def _write_calibrator(
    strategy: _Strategy, fitting: _Fitting, fit: Calibration, at: str
) -> dict[str, object]:
    """Write a calibrator as JSON values; later runs read it as a `KeptCalibrator`."""
    rows, queries = fitting.rows, strategy.night.runs.gold.queries
    own = dict(zip(queries["query_id"], queries["group_id"], strict=True))
    # Store changed groups too, so that no fit to the group of a question without an outcome
    # predicts the question.
    of_gold = strategy.groups.of_gold.items()
    group_of_query = {query: group for query, group in of_gold if group != own[query]}
    group_of_query |= dict(zip(rows["query_id"], rows["group_id"], strict=True))
    sources = rows["gold_source"].value_counts().sort_index()
    written = fit.to_json()
    return {
        "schema_version": CALIBRATOR_VERSION,
        "gold_set": strategy.series.dataset,
        **{name: getattr(strategy.series, name) for name in ("strategy", "target", "k")},
        "strategy_fingerprint": strategy.fingerprint,
        "gold_sources": {str(source): int(n) for source, n in sources.items()},
        "outcomes": fitting.identity,
        "fitted_at": at,
        "fitted_until": str(rows["at"].max()),
        **{name: written[name] for name in ("model", "validation", "conformal")},
        "group_of_query": group_of_query,
    }


def _record(
    strategy: _Strategy, fit: Calibration, standing: Standing, calibrator: str
) -> Promotion | None:
    """Record a change of status.

    When the last earned status belongs to another fingerprint, first record the status `stale`.
    The claims of this run did not use the calibrator of the other fingerprint.
    """
    night, store, fingerprint = strategy.night, strategy.night.outcomes.store, strategy.fingerprint
    if store is None or strategy.work.evaluation.partial:
        return None
    record = functools.partial(
        record_status, store.sql, strategy.series, strategy_fingerprint=fingerprint, at=night.now
    )
    last = promotions(store.sql, strategy.series)[-1:]
    if any(
        change["new_status"] in DISCOUNTING and change["strategy_fingerprint"] != fingerprint
        for change in last
    ):
        changed = Condition(
            name="same_fingerprint", met=False, found="changed", needed="unchanged", status="stale"
        )
        record(status="stale", figures=None, reasons=[changed])
    figures: dict[str, object] = {"counts": fit.counts.dump()}
    if fit.validation is not None:
        names = {"miss_rate", "brier", "skill", "auroc", "slope", "ece"}
        figures |= {name: getattr(fit.validation, name).dump() for name in names}
    unmet = [condition for condition in standing.conditions if not condition.met]
    return record(
        status=standing.status, figures=figures, reasons=unmet, calibrator_id=calibrator or None
    )


def _predict_traffic(traffic: pd.DataFrame, model: MissRateModel | None) -> pd.DataFrame:
    """Predict the miss rates of claims of traffic.

    The fold that left the group out predicts the claims of a fitted group. The mean of all folds
    predicts all other claims, so that all predictions are comparable.
    """
    frame = traffic[["strategy", "claim_id", "query_id", "group_id"]]
    if model is None or frame.empty:
        return frame.assign(predicted=np.nan)
    values = traffic[list(SIGNALS)].to_numpy()
    folds = [fold.predict(values, SIGNALS) for fold in model.folds or (model.head,)]
    own = model.predict(values, SIGNALS, frame["group_id"].tolist())
    was_fitted = frame["group_id"].isin(list(model.fold_of_group))
    return frame.assign(predicted=np.where(was_fitted, own, np.mean(folds, axis=0)))


def _explain_absences(
    strategy: _Strategy, fitting: _Fitting, fit: Calibration, calibrator: str
) -> dict[str, str]:
    """Say why parts of the report are absent, by name."""
    groups, misses = fit.counts.groups, fit.counts.groups_with_misses
    few = f"{groups} distinct groups with outcomes, {misses} of them with misses: too few to fit"
    why, absent = fitting.refused or f"{few} a calibrator", dict[str, str]()
    if fit.model is None:
        absent = dict.fromkeys(("estimator", "validation", "heuristic_v0"), why)
    if strategy.work.evaluation.partial:
        absent["calibrator"] = PARTIAL
    elif not calibrator:
        absent["calibrator"] = why
    return absent


def _describe_model(model: MissRateModel) -> dict[str, object]:
    """Describe an estimator: coefficients of z-scored signals in log-odds of a miss, by size."""
    head = model.head
    pairs = zip(head.names, head.coefficients.tolist(), strict=True)
    strongest = sorted(pairs, key=lambda pair: -abs(pair[1]))
    return {
        "intercept": head.intercept,
        "coefficients": [{"signal": name, "value": value} for name, value in strongest],
        "base_rate": head.rate,
        "trust": head.trust,
        "prior": model.prior or None,
        "n": model.n,
        "groups": model.groups,
        "misses": model.misses,
    }
