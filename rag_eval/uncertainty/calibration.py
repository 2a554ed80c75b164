"""Fit the miss rate of a strategy to judged retrievals, validate the fit, and accept it.

All outcomes so far decide the status of a strategy, and the calibrator of later runs.
"""

import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import numpy as np
import pandas as pd
from pydantic import Field

from rag_eval.core.arrays import FloatArray
from rag_eval.core.errors import quoted
from rag_eval.core.types import DISCOUNTING
from rag_eval.corpus.masking import mask
from rag_eval.measures.intervals import SEED
from rag_eval.measures.overlap import SharedGold
from rag_eval.storage.artifacts import Artifact, Parts
from rag_eval.storage.hashing import digest
from rag_eval.storage.home import Home
from rag_eval.uncertainty.calibrators import (
    CALIBRATOR_VERSION,
    Accepted,
    Outcomes,
    accepted_calibrator,
    keep_calibrator,
)
from rag_eval.uncertainty.claims import QRELS, no_prior
from rag_eval.uncertainty.conformal import Questions
from rag_eval.uncertainty.estimator import (
    ANY_AT_10,
    Floats,
    Miss,
    MissRateModel,
    Prior,
    Stored,
    cross_validate,
)
from rag_eval.uncertainty.miss_rate_report import (
    Condition,
    ConformalK,
    OutcomeCounts,
    Promotion,
    Standing,
    StrategyCalibration,
    Validation,
)
from rag_eval.uncertainty.outcomes import OF_GOLD, fit_rows, frame_of, question_id, select_current
from rag_eval.uncertainty.signals import SIGNALS
from rag_eval.uncertainty.status import (
    Series,
    Situation,
    count_outcomes,
    judge_status,
    promotions,
    suffice_to_fit,
)
from rag_eval.uncertainty.traffic import Claim, TrafficStore
from rag_eval.uncertainty.validation import Labelled, validate

REPEATS: Final = 3
"""Number of repeats with new folds, beside the folds of the stored model."""
PREDICTIONS: Final = 5_000
"""Number of further out-of-fold predictions above which repeats are skipped to save time."""


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration(Stored):
    """The calibration of a strategy's miss rate by its outcomes; few leave counts and conformal K.

    `predictions` [repeats, n] are out of fold, and not stored. `heuristic` validates heuristic_v0.
    """

    counts: OutcomeCounts
    conformal: list[ConformalK]
    model: MissRateModel | None = None
    predictions: Annotated[Floats | None, Field(exclude=True)] = None
    validation: Validation | None = None
    heuristic: Validation | None = None


def calibrate(
    labelled: Labelled,
    group_ids: Sequence[str],
    *,
    prior: Prior | None,
    checked_together: int,
    heuristic: FloatArray | None = None,
    questions: Questions | None = None,
    unlabelled: FloatArray | None = None,
    seed: int = SEED,
    miss: Miss = ANY_AT_10,
) -> Calibration:
    """Fit the miss rate to a strategy's outcomes, cross-validate the fit and judge it.

    `checked_together` counts the strategies and targets whose calibration is checked together.
    `heuristic` [n] is heuristic_v0 of the same retrievals, NaN where unknown. `questions` set
    conformal K. `unlabelled` [m, p] are signals of further queries, for the z-scores.
    """
    from sklearn import config_context
    from threadpoolctl import threadpool_limits

    counts, baseline = count_outcomes(labelled), None
    conformal = [] if questions is None else questions.conformal_k(seed=seed)
    if not suffice_to_fit(counts):
        return Calibration(counts, conformal)
    judge = functools.partial(validate, checked_together=checked_together, seed=seed)
    # In hundreds of fits to small matrices, threads would only wait for one another, and checks
    # of the same signals would take a third of the time.
    with threadpool_limits(limits=1), config_context(assume_finite=True):
        model = MissRateModel.fit(
            labelled, group_ids, prior=prior, seed=seed, miss=miss, unlabelled=unlabelled
        )
        repeats = min(REPEATS, PREDICTIONS // len(labelled))
        of_folds = model.predict(labelled.signals, labelled.names, group_ids)
        further = cross_validate(labelled, prior=prior, repeats=repeats, seed=seed)
        predictions = np.vstack([of_folds[None], further])
        if heuristic is not None:
            guessed = labelled.take(has_guess := np.isfinite(heuristic))
            if suffice_to_fit(count_outcomes(guessed)):
                baseline = judge(guessed, np.clip(heuristic[has_guess], 0, 1)[None, :])
        validation = judge(labelled, predictions)
    return Calibration(counts, conformal, model, predictions, validation, baseline)


# ---- The calibration of one strategy of a run, on the outcomes so far.

PARTIAL: Final = "a partial run (some strategies, or other vectors) does not change later runs"


@dataclasses.dataclass(frozen=True)
class GoldQuestions:
    """The questions of a gold set, which the questions of outcomes and of traffic join.

    `documents` has query_id and item_id of the gold documents.
    """

    queries: pd.DataFrame
    wordings: pd.DataFrame
    documents: pd.DataFrame

    @functools.cached_property
    def group_of(self) -> dict[str, str]:
        """Group of each question by its id."""
        return dict(zip(self.queries["query_id"], self.queries["group_id"], strict=True))

    @functools.cached_property
    def group_of_key(self) -> dict[tuple[str, str], str]:
        """First group by name of each ("document", id), and of each ("words", masked question)."""
        documents = zip(self.documents["item_id"], self.documents["query_id"], strict=True)
        wordings = zip(self.wordings["text"], self.wordings["query_id"], strict=True)
        keys = [(("document", name), query) for name, query in documents]
        keys += [(("words", question_id(mask(text).text)), query) for text, query in wordings]
        ordered = sorted(((self.group_of[query], key) for key, query in keys), reverse=True)
        return {key: group for group, key in ordered}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StrategyFacts:
    """What a run knows of one strategy before the fit.

    `signals` and `claims` have a row for each retrieval, `traffic` one for each counted claim of
    production traffic with its signals. `judged` are the ids of claims that this run's gold judges.
    `identity` holds what else decides the fit, as JSON values. `base_changes` as in `Situation`.
    """

    series: Series
    fingerprint: str
    signals: pd.DataFrame
    claims: pd.DataFrame
    traffic: pd.DataFrame
    judged: frozenset[str]
    unlabelled: FloatArray
    questions: Questions | None
    prior: Prior
    checked_together: int
    stale_after_days: float
    base_changes: bool | None
    identity: Sequence[object]


@dataclasses.dataclass(frozen=True)
class StrategyResult:
    """Calibration of one strategy: its part of the report, its predictions, and its traffic.

    `predictions` has claim_id, group_id, missed and predicted of the fitted outcomes. `traffic` has
    strategy, claim_id, query_id, group_id and predicted, NaN without a model.
    """

    report: StrategyCalibration
    predictions: pd.DataFrame
    traffic: pd.DataFrame


Keep = Callable[[object, Callable[[], Parts]], Artifact]
"""Function that returns the stored parts of an identity, or makes and stores them."""


def calibrate_strategy(
    facts: StrategyFacts,
    gold: GoldQuestions,
    outcomes: Outcomes,
    *,
    home: Home | None,
    keep: Keep,
    check_lock: Callable[[], None],
) -> StrategyResult:
    """Fit and validate a strategy's estimator, judge its status, and accept it for later runs.

    Fits to equal outcomes are reused by `keep`. A partial run has no `home`: it accepts nothing.
    """
    now = dt.datetime.now(dt.UTC)
    history, series = frame_of([]), facts.series
    if outcomes.store is not None:
        history = outcomes.store.history(
            strategy_fingerprint=facts.fingerprint, target=series.target, k=series.k
        )
    regroup = _join_questions(gold, outcomes, select_current(history), facts.traffic)
    facts = dataclasses.replace(facts, traffic=regroup(facts.traffic))
    fitting = _select_outcomes(facts, gold, regroup, history, fault=outcomes.fault, now=now)
    stored = keep(_identify_fit(facts, fitting), functools.partial(_fit_parts, facts, fitting))
    fit = Calibration.from_json(stored.json("about"))
    counts = fit.counts
    if fitting.refused:  # refused outcomes prove nothing, so their figures are hidden
        fit = Calibration(fit.counts, fit.conformal)
        nothing = dict.fromkeys(("outcomes", "groups", "groups_with_misses", "groups_with_hits"), 0)
        counts = OutcomeCounts(**nothing)
    standing = judge_status(
        counts,
        fit.validation,
        Situation(
            age_days=fitting.age_days,
            stale_after_days=facts.stale_after_days,
            n_unlabelled=len(facts.unlabelled),
            own_gold_only=bool(fitting.refused) and not outcomes.fault,
            no_prior=no_prior(series.target, series.k),
            trusted=fit.model is None or fit.model.head.trust > 0,
            base_changes=facts.base_changes,
        ),
    )
    calibrator, promotion = "", None
    if home is not None:
        body = None
        if fit.model is not None:
            body = _write_calibrator(facts, fitting, fit, now=now)
            body["discounts"] = standing.discounts
        if body is not None or not outcomes.fault:
            calibrator = _accept(home, facts, body, standing, now=now, check_lock=check_lock)
        promotion = _record(outcomes, facts, fit, standing, calibrator, now=now)
    report = StrategyCalibration(
        fingerprint=facts.fingerprint,
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
        why=_explain_absences(fit, fitting.refused, calibrator, is_partial=home is None),
    )
    predictions = stored.frame("predictions").assign(strategy=series.strategy)
    return StrategyResult(report, predictions, _predict_traffic(facts.traffic, fit.model))


Regroup = Callable[[pd.DataFrame], pd.DataFrame]
"""Function that gives rows (query_id, group_id) the groups of the gold where they share it."""


def _join_questions(
    gold: GoldQuestions, outcomes: Outcomes, current: pd.DataFrame, traffic: pd.DataFrame
) -> Regroup:
    """Join questions with gold questions of the same words, or with a gold document in common."""
    # Outcomes by gold are left out. Their questions are in the gold, or the gold dropped them.
    by_gold = (current["gold_source"] == QRELS) & current["note"].str.fullmatch(OF_GOLD)
    by_hand = current.loc[~by_gold, ["claim_id", "query_id", "group_id", "gold_documents"]]
    of_judged = dict(zip(by_hand["query_id"], by_hand["group_id"], strict=True))
    asked = traffic[["claim_id", "query_id", "group_id"]].assign(gold_documents="")
    rows, claims, joined = pd.concat([by_hand, asked]), dict[str, Claim](), dict[str, str]()
    if outcomes.store is not None and len(rows):
        claims = TrafficStore(outcomes.store.sql).by_id(set(rows["claim_id"]))
    for claim, query, recorded, documents in rows.itertuples(index=False):
        keys = [("words", query), *(("document", name) for name in documents)]
        if claim in claims:
            keys.append(("words", question_id(claims[claim].query)))
        group = of_judged.get(query, recorded)
        for name in filter(None, map(gold.group_of_key.get, keys)):
            joined[group] = min(joined.get(group, name), name)

    def find_group(query: str, recorded: str) -> str:
        group: str = of_judged.get(query, recorded)
        return gold.group_of.get(query, joined.get(group, group))

    def regroup(rows: pd.DataFrame) -> pd.DataFrame:
        groups = list(map(find_group, rows["query_id"], rows["group_id"]))
        return rows.assign(group_id=groups)

    return regroup


# ---- The outcomes for the fit.


@dataclasses.dataclass(frozen=True)
class _Fitting:
    """Outcomes of one strategy by claim id, with current groups and their median age."""

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


def _select_outcomes(
    facts: StrategyFacts,
    gold: GoldQuestions,
    regroup: Regroup,
    history: pd.DataFrame,
    *,
    fault: str,
    now: dt.datetime,
) -> _Fitting:
    """Select the outcomes for the fit of a calibrator."""
    rows = fit_rows(select_current(history)).sort_values("claim_id", kind="stable")
    # An outcome by gold counts only while the gold still judges the claim.
    is_current = ~rows["note"].str.fullmatch(OF_GOLD) | rows["claim_id"].isin(facts.judged)
    rows = regroup(rows[is_current].reset_index(drop=True))
    values = _signals_of_outcomes(facts, rows)
    # Leave out outcomes without signals, because their z-scores would describe an average
    # retrieval.
    has_signals = np.asarray(np.isfinite(values).any(axis=1))
    rows = rows[has_signals].reset_index(drop=True)
    refused = _explain_own_gold(rows, facts.series.strategy) or fault
    ages = pd.Timestamp(now) - pd.to_datetime(rows["at"], utc=True)
    days = np.maximum(ages.dt.total_seconds().to_numpy() / 86400, 0.0)
    is_new = rows["claim_id"].isin(facts.judged).to_numpy(dtype=bool)
    # Use the median age, because one recent outcome must not hide many old ones.
    age = float(np.median(np.where(is_new, 0.0, days))) if len(rows) else None
    # Give every claim of traffic an owner of its own. A question that is asked twice is not
    # another wording of itself.
    owner = rows["query_id"].where(is_new, "\x00" + rows["claim_id"])
    question = pd.factorize(owner.to_numpy(dtype=object))[0].astype(np.int64)
    labelled = Labelled(
        SIGNALS,
        values[has_signals],
        rows["missed"].to_numpy(dtype=bool),
        pd.factorize(rows["group_id"])[0].astype(np.int64),
        rows["weight"].to_numpy(dtype=np.float64),
        question,
        _share_gold(gold, rows.assign(question=question).drop_duplicates("question")),
    )
    return _Fitting(rows, labelled, refused, age, int((~has_signals).sum()))


def _explain_own_gold(rows: pd.DataFrame, strategy: str) -> str:
    """Say why gold that only the strategy's own retrieval found cannot calibrate it; else empty."""
    aliases = {strategy, *rows["strategy"], *rows["strategy_fingerprint"]}
    judged_from = set(map(tuple, rows["gold_strategies"]))
    if not judged_from or not all(names and aliases.issuperset(names) for names in judged_from):
        return ""
    name = quoted(strategy)
    return (
        f"the gold of all {len(rows)} outcomes of {name} was judged from what {name} itself"
        " retrieved, so its misses are invisible; accepted: outcomes whose gold_strategies are"
        " empty (qrels, a search of the corpus by hand), or name other strategies too"
    )


def _share_gold(gold: GoldQuestions, questions: pd.DataFrame) -> SharedGold:
    """Collect the gold documents of questions, or else of their group, by their code `question`."""
    documents = gold.documents
    of_gold = questions[["question", "query_id"]].merge(documents, on="query_id")
    is_other = ~questions["question"].isin(of_gold["question"])
    others = questions.loc[is_other, ["question", "group_id"]]
    by_group = documents.assign(group_id=documents["query_id"].map(gold.group_of))
    # columns without rows have no type of their own
    others, by_group = (frame.astype({"group_id": "str"}) for frame in (others, by_group))
    joined = others.merge(by_group[["group_id", "item_id"]], on="group_id", how="left")
    joined["item_id"] = joined["item_id"].fillna("\0" + joined["group_id"])
    pairs = pd.concat([of_gold, joined])
    items = pd.factorize(pairs["item_id"])[0]
    return SharedGold.of_pairs(pairs["question"].to_numpy(), items, len(questions))


def _signals_of_outcomes(facts: StrategyFacts, rows: pd.DataFrame) -> FloatArray:
    """Collect the signals of outcomes [n, p] from this run, or else as stored; NaN if missing."""
    names = list(SIGNALS)
    of_run = facts.signals[names].set_index(facts.claims["claim_id"])
    of_traffic = facts.traffic.set_index("claim_id")[names]
    current = pd.concat([of_run, of_traffic[~of_traffic.index.isin(of_run.index)]])
    values = np.array(current.reindex(rows["claim_id"]), dtype=np.float64)
    for place in np.flatnonzero(~rows["claim_id"].isin(current.index)):
        stored = rows["signals"].iloc[place]
        values[place] = [np.nan if stored.get(name) is None else stored[name] for name in SIGNALS]
    return values


# ---- The fit, and the calibrator of later runs.


def _identify_fit(facts: StrategyFacts, fitting: _Fitting) -> list[object]:
    names = list(SIGNALS)
    return [
        fitting.identity,
        *facts.identity,
        [facts.series.target, facts.series.k, facts.checked_together, facts.prior.id],
        pd.util.hash_pandas_object(facts.signals, index=False).tolist(),
        facts.traffic["claim_id"].tolist(),
        pd.util.hash_pandas_object(facts.traffic[names], index=False).tolist(),
    ]


def _fit_parts(facts: StrategyFacts, fitting: _Fitting) -> Parts:
    """Fit and validate: `about` is a `Calibration`, `predictions` has means out of fold."""
    rows, heuristic = fitting.rows, facts.claims.set_index("claim_id")["heuristic_v0"]
    fit = calibrate(
        fitting.labelled,
        rows["group_id"].tolist(),
        heuristic=heuristic.reindex(rows["claim_id"]).to_numpy(dtype=np.float64),
        questions=facts.questions,
        unlabelled=facts.unlabelled,
        prior=facts.prior,
        checked_together=facts.checked_together,
        miss=Miss(facts.series.target, facts.series.k),
    )
    mean = np.nan if fit.predictions is None else fit.predictions.mean(axis=0)
    predictions = rows[["claim_id", "group_id"]].assign(
        missed=fitting.labelled.missed, predicted=mean
    )
    return {"about": fit.to_json(), "predictions": predictions}


def _accept(
    home: Home,
    facts: StrategyFacts,
    body: dict[str, object] | None,
    standing: Standing,
    *,
    now: dt.datetime,
    check_lock: Callable[[], None],
) -> str:
    """Store and accept a calibrator, or demote the previous one. Return the stored id."""
    before = accepted_calibrator(home, facts.series)
    calibrator = "" if body is None else keep_calibrator(home, body)
    if name := calibrator or (before.calibrator_id if before else ""):
        accepted = Accepted(
            calibrator_id=name,
            strategy_fingerprint=facts.fingerprint,
            status=standing.status,
            at=now.isoformat(timespec="seconds"),
        )
        if before is None or accepted.model_copy(update={"at": before.at}) != before:
            check_lock()
            accepted.accept(home, facts.series)
    return calibrator


def _write_calibrator(
    facts: StrategyFacts, fitting: _Fitting, fit: Calibration, *, now: dt.datetime
) -> dict[str, object]:
    """Write a calibrator as JSON values; later runs read it as a `KeptCalibrator`."""
    rows = fitting.rows
    group_of_query = dict(zip(rows["query_id"], rows["group_id"], strict=True))
    sources = rows["gold_source"].value_counts().sort_index()
    written = fit.to_json()
    return {
        "schema_version": CALIBRATOR_VERSION,
        "gold_set": facts.series.dataset,
        **{name: getattr(facts.series, name) for name in ("strategy", "target", "k")},
        "strategy_fingerprint": facts.fingerprint,
        "gold_sources": {str(source): int(n) for source, n in sources.items()},
        "outcomes": fitting.identity,
        "fitted_at": now.isoformat(timespec="seconds"),
        **{name: written[name] for name in ("model", "validation", "conformal")},
        "group_of_query": group_of_query,
    }


def _record(
    outcomes: Outcomes,
    facts: StrategyFacts,
    fit: Calibration,
    standing: Standing,
    calibrator: str,
    *,
    now: dt.datetime,
) -> Promotion | None:
    """Record a change of status, and `stale` before it if another fingerprint earned the last."""
    if outcomes.store is None:
        return None
    sql, fingerprint = outcomes.store.sql, facts.fingerprint
    record = functools.partial(facts.series.record, sql, strategy_fingerprint=fingerprint, at=now)
    if any(
        change["new_status"] in DISCOUNTING and change["strategy_fingerprint"] != fingerprint
        for change in promotions(sql, facts.series)[-1:]
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
    """Predict the miss rates of claims of traffic by fits that did not see their group."""
    frame = traffic[["strategy", "claim_id", "query_id", "group_id"]]
    if model is None or frame.empty:
        return frame.assign(predicted=np.nan)
    values = traffic[list(SIGNALS)].to_numpy()
    folds = [fold.predict(values, SIGNALS) for fold in model.folds or (model.head,)]
    fitted = model.predict(values, SIGNALS, frame["group_id"].tolist())
    was_fitted = frame["group_id"].isin(list(model.fold_of_group))
    return frame.assign(predicted=np.where(was_fitted, fitted, np.mean(folds, axis=0)))


def _explain_absences(
    fit: Calibration, refused: str, calibrator: str, *, is_partial: bool
) -> dict[str, str]:
    """Say why parts of the report are absent, by name."""
    groups, misses = fit.counts.groups, fit.counts.groups_with_misses
    few = f"{groups} distinct groups with outcomes, {misses} of them with misses: too few to fit"
    why, absent = refused or f"{few} a calibrator", dict[str, str]()
    if fit.model is None:
        absent = dict.fromkeys(("estimator", "validation", "heuristic_v0"), why)
    if not calibrator:
        absent["calibrator"] = PARTIAL if is_partial else why
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
