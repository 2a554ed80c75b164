"""Calibration stage: what the outcomes so far make of each strategy's miss rate, which status that earns, and which calibrator later runs use.

Belongs here: from the table of outcomes to kept calibrators and recorded promotions. The statistics are `rag_eval.uncertainty`.
"""

import dataclasses
import datetime as dt
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.calibrator_files import (
    Accepted,
    accept_calibrator,
    accepted_calibrator,
    keep_calibrator,
)
from rag_eval.evaluation.claim_steps import (
    miss_rate_claims,
    no_prior,
    of_strategy,
    prior_of,
    unlabelled_signals,
)
from rag_eval.evaluation.drift_watch import drift_state, keep_drift
from rag_eval.evaluation.feedback_steps import feedback_part
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.group_steps import groups_of, groups_of_traffic
from rag_eval.evaluation.iterative_steps import steered_otherwise
from rag_eval.evaluation.measure_steps import BOOTSTRAP_SEED, Runs
from rag_eval.evaluation.miss_ranks import gold_ranks, judged
from rag_eval.evaluation.outcome_steps import OF_GOLD, judged_claims, retrieval_outcomes
from rag_eval.evaluation.outcome_store import current_outcomes, outcome_store, unusable
from rag_eval.evaluation.signal_steps import fingerprint_of, strategy_signals
from rag_eval.evaluation.traffic_steps import traffic
from rag_eval.gold.files import ORIGINAL
from rag_eval.records.gold_set import Bm25, Hybrid, Iterative, Vector
from rag_eval.records.problems import InputError
from rag_eval.records.uncertainty import DISCOUNTING
from rag_eval.storage.artifacts import Artifact
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.calibration import Calibration, calibrate
from rag_eval.uncertainty.conformal_splits import Questions
from rag_eval.uncertainty.drift_state import WatchState
from rag_eval.uncertainty.labelled import FloatArray, IntArray, Labelled
from rag_eval.uncertainty.ladder import Checked, Condition, Counts, Standing, standing
from rag_eval.uncertainty.outcome_rows import utc_text
from rag_eval.uncertainty.outcome_use import fit_rows, refuse_own_gold
from rag_eval.uncertainty.promotions import Promotion, Series, promotions, record_status

PARTIAL = "a run of some of the strategies, or with other vectors, decides nothing for later runs"


@dataclasses.dataclass(frozen=True)
class Fitting:
    """The outcomes of one strategy that may fit a calibrator.

    Parameters
    ----------
    frame
        Their rows, by claim id, with current group ids.
    labelled
        Them as arrays.
    watch
        The watch over outcomes whose miss rate had been predicted before they were known, those of this night among them.
    refused
        Why these outcomes may not calibrate this strategy; empty where they may.
    n_without_signals
        Outcomes that are left out because nothing is known of what was retrieved: audits of traffic that says nothing here, imports without signals.
    age_days
        Median over the outcomes; those that this run's gold judges again are new. None without any.
    """

    frame: pd.DataFrame
    labelled: Labelled
    watch: WatchState
    refused: str
    age_days: float | None
    n_without_signals: int

    @property
    def identity(self) -> str:
        """Identity of what was judged and how."""
        return digest(
            [
                self.frame["outcome_id"].tolist(),
                self.frame["missed"].tolist(),
                self.frame["group_id"].tolist(),
                self.frame["inclusion_probability"].tolist(),
                self.refused,
            ],
            32,
        )


def fitting(runs: Runs, name: str, now: dt.datetime) -> Fitting:
    """Read the outcomes of one strategy of this evaluation."""
    spec, fingerprint = runs.evaluation.config.uncertainty, fingerprint_of(runs, name)
    every = current_outcomes(
        runs.evaluation, strategy_fingerprint=fingerprint, target=spec.target, k=spec.k
    )
    refused = unusable(runs.evaluation)
    rows = fit_rows(every).sort_values("claim_id", kind="stable").reset_index(drop=True)
    tonight = set(judged_claims(runs, name)["claim_id"])
    rows = rows[~rows["note"].str.fullmatch(OF_GOLD) | rows["claim_id"].isin(tonight)].reset_index(
        drop=True
    )  # a question that the gold no longer has is judged by nobody
    groups = groups_of(runs, name)
    rows["group_id"] = [
        groups.group(query, group)
        for query, group in zip(rows["query_id"], rows["group_id"], strict=True)
    ]
    names = tuple(strategy_signals(runs, name).json("about")["names"])
    signals = _signals(rows, names, {**traffic(runs, name).known(), **_current(runs, name, names)})
    known = np.asarray(
        np.isfinite(signals).any(axis=1)
    )  # z-scores of nothing would be those of an average retrieval
    rows = rows[known].reset_index(drop=True)
    try:
        refuse_own_gold(rows, name)
    except InputError as error:
        refused = str(error.problems[0])
    days = np.maximum(
        (pd.Timestamp(now) - pd.to_datetime(rows["at"], utc=True)).dt.total_seconds().to_numpy()
        / 86400,
        0.0,
    )
    # what tonight's gold judges again is as old as tonight; half of the outcomes must be recent, so that one of yesterday makes no old ones young
    age = (
        float(np.median(np.where(rows["claim_id"].isin(tonight), 0.0, days))) if len(rows) else None
    )
    return Fitting(
        rows,
        _labelled(rows, names, signals[known], tonight),
        drift_state(runs, name, rows, now),
        refused,
        age,
        int((~known).sum()),
    )


def _current(runs: Runs, name: str, names: tuple[str, ...]) -> dict[str, FloatArray]:
    """Signals of this run's own claims, by claim id: an outcome that an earlier version recorded may lack some."""
    claims = of_strategy(miss_rate_claims(runs).frame("claims"), name)
    return dict(
        zip(
            claims["claim_id"],
            strategy_signals(runs, name).frame("signals")[list(names)].to_numpy(),
            strict=True,
        )
    )


def _signals(
    rows: pd.DataFrame, names: tuple[str, ...], known: dict[str, FloatArray]
) -> FloatArray:
    """Signals of outcomes, float64 [n, p]: of their claims where these are known, else as they were recorded."""
    values = np.array(
        [
            [np.nan if found.get(name) is None else found[name] for name in names]
            for found in rows["signals"]
        ],
        dtype=np.float64,
    ).reshape(len(rows), len(names))
    for place, claim in enumerate(
        rows["claim_id"]
    ):  # audits of traffic bring judgements, the claims their signals
        if claim in known:
            values[place] = known[claim]
    return values


def _labelled(
    rows: pd.DataFrame, names: tuple[str, ...], values: FloatArray, gold_claims: set[str]
) -> Labelled:
    # one question asked again and again in traffic is no other wording of itself
    wording_of = [
        query if claim in gold_claims else f"\x00{claim}"
        for claim, query in zip(rows["claim_id"], rows["query_id"], strict=True)
    ]
    group, question = (
        pd.factorize(rows["group_id"])[0].astype(np.int64),
        pd.factorize(np.array(wording_of, dtype=object))[0].astype(np.int64),
    )
    return Labelled(
        names,
        values,
        rows["missed"].to_numpy(dtype=bool),
        group,
        rows["weight"].to_numpy(dtype=np.float64),
        question,
    )


def miss_rate_calibration(runs: Runs) -> dict[str, Any]:
    """Calibrate every strategy on the outcomes so far; done once an evaluation.

    Returns
    -------
    dict
        By strategy: calibrator (its id; null with reason), standing, drift, feedback, refused, promotion (null where the status stays), artifact (key) and
        everything that `Calibration.to_json` says but the model.
    """
    return runs.evaluation.once("calibration", lambda: _miss_rate_calibration(runs))


def _miss_rate_calibration(runs: Runs) -> dict[str, Any]:
    retrieval_outcomes(runs)
    now = dt.datetime.now(dt.UTC)
    with runs.evaluation.progress.step(
        "Calibrating miss rates", len(runs.names), "strategies"
    ) as advance:
        found = {}
        for name in sorted(
            runs.names, key=lambda one: isinstance(runs.spec(one), Iterative)
        ):  # bases first: what they learn steers the others
            found[name] = _strategy(runs, name, now)
            advance(1)
    return {name: found[name] for name in runs.names}


def calibration_artifact(runs: Runs, name: str, of: Fitting) -> Artifact:
    """Fit and judge, or read what was fitted to the same outcomes. Parts: about (`Calibration.to_json`), predictions (claim_id, mean out-of-fold prediction)."""
    evaluation, spec = runs.evaluation, runs.evaluation.config.uncertainty
    made = strategy_signals(runs, name)
    key = evaluation.key(
        "calibration",
        of.identity,
        made.key,
        gold_variants(evaluation).key,
        spec.target,
        spec.k,
        len(runs.names),
        prior_of(runs, name).id,
        traffic(runs, name).frame["claim_id"].tolist(),
    )

    def make() -> dict[str, Any]:
        heuristic = _heuristic(runs, name, of.frame)
        questions, rows = _questions(runs, name, of.frame)
        found = calibrate(
            of.labelled,
            heuristic,
            questions,
            group_ids=of.frame["group_id"].tolist(),
            prior=prior_of(runs, name),
            target=spec.target,
            k=spec.k,
            checked_together=len(runs.names),
            seed=BOOTSTRAP_SEED,
            unlabelled=unlabelled_signals(runs, name),
            question_rows=rows,
        )
        return {"about": found.to_json(), "predictions": _predictions(of, found)}

    return evaluation.memo("calibration", key, make)


def stored_calibration(runs: Runs, name: str) -> Artifact:
    """Return what `miss_rate_calibration` fitted to this strategy's outcomes; parts as in `calibration_artifact`."""
    key = miss_rate_calibration(runs)[name]["artifact"]
    found = runs.evaluation.store.get("calibration", key)
    if found is None:
        raise RuntimeError(f"{name}: the calibration {key} is no longer in the store")
    return found


def calibration_of(runs: Runs, name: str) -> dict[str, Any]:
    """Return everything of a calibration but its predictions, the fitted model among it."""
    about: dict[str, Any] = stored_calibration(runs, name).json("about")
    return about


def _predictions(of: Fitting, found: Calibration) -> pd.DataFrame:
    value = (
        np.full(len(of.frame), np.nan)
        if found.predictions is None
        else found.predictions.mean(axis=0)
    )
    return pd.DataFrame(
        {
            "claim_id": of.frame["claim_id"],
            "missed": of.labelled.missed,
            "predicted": value,
            "group_id": of.frame["group_id"],
        }
    )


def _heuristic(runs: Runs, name: str, rows: pd.DataFrame) -> np.ndarray:
    """heuristic_v0 of the claims that this run makes again; NaN for outcomes of other queries."""
    claims = miss_rate_claims(runs).frame("claims").pipe(of_strategy, name)
    known = dict(zip(claims["claim_id"], claims["heuristic_v0"], strict=True))
    return np.array([known.get(claim, np.nan) for claim in rows["claim_id"]], dtype=np.float64)


def _questions(
    runs: Runs, name: str, outcomes: pd.DataFrame
) -> tuple[Questions | None, IntArray | None]:
    """Ranks of the first gold and of all gold of every question as it was first put, under the first seed, and the row of each one's outcome (-1: none)."""
    gold, of = runs.gold, judged(runs, name)
    seed = runs.artifact(name).json("about")["seeds"][0]
    first = (
        (gold.variants["paraphrase_id"].to_numpy() == ORIGINAL)[of.variant]
        & (of.seed == seed)
        & ~np.isnan(of.first)
    )
    if not first.any():
        return None, None
    claims = miss_rate_claims(runs).frame("claims").pipe(of_strategy, name)
    claims = claims[(claims["paraphrase_id"] == ORIGINAL) & (claims["seed"] == seed)]
    claim_of, row_of = (
        dict(zip(claims["query_id"], claims["claim_id"], strict=True)),
        {claim: row for row, claim in enumerate(outcomes["claim_id"])},
    )
    asked = gold.variants["query_id"].to_numpy()[of.variant[first]]
    rows = np.array([row_of.get(claim_of.get(query, ""), -1) for query in asked], dtype=np.int64)
    rank, owner = gold_ranks(runs, name, of.variant[first], seed)
    return Questions(
        of.first[first],
        gold.groups[gold.query_of[of.variant[first]]].astype(np.int64),
        runs.evaluation.config.depth,
        gold_rank=rank,
        gold_question=owner,
    ), rows


def _strategy(runs: Runs, name: str, now: dt.datetime) -> dict[str, Any]:
    evaluation, spec = runs.evaluation, runs.evaluation.config.uncertainty
    of, fingerprint = fitting(runs, name, now), fingerprint_of(runs, name)
    artifact = calibration_artifact(runs, name, of)
    about = artifact.json("about")
    if of.refused:  # figures of outcomes that prove nothing are not shown either
        about = {
            **about,
            "model": None,
            "validation": None,
            "heuristic_v0": None,
            "leakage_gap": None,
            "wordings": None,
            "learning_curve": [],
        }

    def stands(counts: Counts, validation: dict[str, Any] | None) -> Standing:
        return standing(
            counts,
            None if validation is None else Checked.from_json(validation),
            fingerprint_changed=False,
            drift_alarm=of.watch.drift.alarm,
            age_days=of.age_days,
            stale_after_days=spec.stale_after_days,
            own_gold_only=bool(of.refused) and not unusable(evaluation),
            n_unlabelled=len(unlabelled_signals(runs, name)),
            no_prior=no_prior(spec.target, spec.k),
            base_changes=_base_changes(runs, name),
        )

    earned = stands(
        Counts(**about["counts"]) if not of.refused else Counts(0, 0, 0, 0), about["validation"]
    )
    wordings = about["wordings"]
    if wordings is not None:  # the branch speaks under a status of its own
        judged_by = wordings["validation"]
        own = Counts(
            judged_by["n"],
            judged_by["groups"],
            judged_by["groups_with_misses"],
            judged_by["groups_with_hits"],
        )
        wordings = {**wordings, "status": stands(own, judged_by).status}
        about = {**about, "wordings": wordings}
    keep_drift(
        runs, name, of.watch
    )  # before the calibrator is accepted that these outcomes fit: whoever is killed between finds them counted, once
    before = accepted_calibrator(
        evaluation.settings.home, evaluation.config.name, name, spec.target, spec.k
    )
    calibrator = ""
    if about["model"] is not None and not of.refused and not evaluation.partial:
        body = {
            "schema_version": 1,
            "gold_set": evaluation.config.name,
            "strategy": name,
            "strategy_fingerprint": fingerprint,
            "target": spec.target,
            "k": spec.k,
            "gold_sources": {
                source: int(n)
                for source, n in sorted(of.frame["gold_source"].value_counts().items())
            },
            "outcomes": of.identity,
            "fitted_until": str(of.frame["at"].max()),
            "model": about["model"],
            "validation": about["validation"],
            "conformal": about["conformal"],
            "wordings": wordings,
            "group_of_query": {
                **_regrouped(runs, name),
                **dict(zip(of.frame["query_id"], of.frame["group_id"], strict=True)),
            },
        }
        calibrator = keep_calibrator(
            evaluation.settings.home, {**body, "fitted_at": now.isoformat(timespec="seconds")}
        )
        accept = Accepted(
            calibrator_id=calibrator,
            strategy_fingerprint=fingerprint,
            status=earned.status,
            at=now.isoformat(timespec="seconds"),
        )
        if before is None or (before.calibrator_id, before.status, before.strategy_fingerprint) != (
            calibrator,
            earned.status,
            fingerprint,
        ):
            accept_calibrator(
                evaluation.settings.home,
                evaluation.config.name,
                name,
                spec.target,
                spec.k,
                accepted=accept,
            )
    elif (
        before is not None
        and not evaluation.partial
        and not unusable(evaluation)
        and (before.status, before.strategy_fingerprint) != (earned.status, fingerprint)
    ):
        lower = Accepted(
            calibrator_id=before.calibrator_id,
            strategy_fingerprint=fingerprint,
            status=earned.status,
            at=now.isoformat(timespec="seconds"),
        )
        accept_calibrator(
            evaluation.settings.home,
            evaluation.config.name,
            name,
            spec.target,
            spec.k,
            accepted=lower,
        )  # a demotion holds for the next run too
    promotion = _recorded(
        runs,
        name,
        earned,
        fingerprint=fingerprint,
        figures=_figures(about),
        calibrator=calibrator,
        now=now,
    )
    if (
        of.watch.drift.alarm and earned.status == "stale"
    ):  # it has cost the status: the next night starts another watch
        keep_drift(runs, name, of.watch.demoted(utc_text(now)))
    said = feedback_part(
        runs,
        name,
        {
            **groups_of_traffic(runs, name),
            **dict(zip(of.frame["claim_id"], of.frame["group_id"], strict=True)),
        },
    )
    described = _described(about, of, earned, calibrator, promotion) | (
        {"calibrator_reason": PARTIAL} if evaluation.partial else {}
    )
    return described | {"feedback": said, "artifact": artifact.key, "fingerprint": fingerprint}


def _base_changes(runs: Runs, name: str) -> bool | None:
    """Whether an iterative strategy's next rankings are others because its base has another calibrator since this run; None for any other strategy."""
    spec = runs.spec(name)
    base = runs.evaluation.config.base_of(spec)
    if not isinstance(spec, Iterative) or not isinstance(base, Bm25 | Vector | Hybrid):
        return None
    return steered_otherwise(
        runs.evaluation, spec, base, str(runs.artifact(base.name).json("about")["index_hash"])
    )


def _regrouped(runs: Runs, name: str) -> dict[str, str]:
    """Groups of the gold's questions that traffic joined to others, by query id: one without an outcome must not be predicted by what was fitted to its group."""
    own = dict(zip(runs.gold.queries["query_id"], runs.gold.queries["group_id"], strict=True))
    return {
        query: group
        for query, group in groups_of(runs, name).of_gold.items()
        if group != own[query]
    }


def _recorded(
    runs: Runs,
    name: str,
    earned: Standing,
    *,
    fingerprint: str,
    figures: dict[str, Any] | None,
    calibrator: str,
    now: dt.datetime,
) -> Promotion | None:
    """Write down a change of status; of an earned one that was another fingerprint's, first that it went stale: this run's claims were made without it."""
    spec, opened = runs.evaluation.config.uncertainty, outcome_store(runs.evaluation)
    if isinstance(opened, InputError) or runs.evaluation.partial:
        return None
    series = Series(runs.evaluation.config.name, name, spec.target, spec.k)
    before = promotions(opened.sql, series)
    if (
        before
        and before[-1].new_status in DISCOUNTING
        and before[-1].strategy_fingerprint != fingerprint
    ):
        changed = Condition(
            "same_fingerprint", met=False, found="changed", needed="unchanged", status="stale"
        )
        record_status(
            opened.sql,
            series,
            "stale",
            strategy_fingerprint=fingerprint,
            figures=None,
            reasons=(dataclasses.asdict(changed),),
            at=now,
        )
    unmet = tuple(dataclasses.asdict(condition) for condition in earned.unmet)
    return record_status(
        opened.sql,
        series,
        earned.status,
        strategy_fingerprint=fingerprint,
        figures=figures,
        reasons=unmet,
        calibrator_id=calibrator or None,
        at=now,
    )


def _figures(about: dict[str, Any]) -> dict[str, Any] | None:
    """The few figures that a promotion is remembered with."""
    if about["validation"] is None:
        return {"counts": about["counts"]}
    return {
        "counts": about["counts"],
        **{
            name: about["validation"][name]
            for name in ("miss_rate", "brier", "skill", "auroc", "slope", "ece", "smece")
        },
    }


def _described(
    about: dict[str, Any],
    of: Fitting,
    earned: Standing,
    calibrator: str,
    promotion: Promotion | None,
) -> dict[str, Any]:
    why = (
        of.refused
        or f"{about['counts']['groups']} distinct groups with outcomes, {about['counts']['groups_with_misses']} of them with misses: too few to fit a calibrator"
    )
    drift = {
        name: value
        for name, value in of.watch.drift.to_json().items()
        if name not in {"groups", "wealth"}
    }
    return {
        **{name: value for name, value in about.items() if name not in {"model", "wordings"}},
        "other_wordings": None
        if about["wordings"] is None
        else {name: value for name, value in about["wordings"].items() if name != "model"},
        **(
            {}
            if about["wordings"] is not None
            else {
                "other_wordings_reason": "too few wordings whose question has another judged wording"
            }
        ),
        "calibrator": calibrator or None,
        **({} if calibrator else {"calibrator_reason": why}),
        "estimator": None if about["model"] is None else _estimator(about["model"]),
        **(
            {}
            if about["model"] is not None
            else {
                "estimator_reason": why,
                "validation_reason": why,
                "heuristic_v0_reason": why,
                "leakage_gap_reason": why,
            }
        ),
        "status": earned.status,
        "standing": earned.to_json(),
        "drift": {
            **drift,
            "since": of.watch.since or None,
            **(
                {}
                if of.watch.since
                else {"since_reason": "it has watched from the first outcome on"}
            ),
        },
        "refused": of.refused or None,
        "n_without_signals": of.n_without_signals,
        "promotion": None
        if promotion is None
        else {
            "old_status": promotion.old_status,
            "new_status": promotion.new_status,
            "at": promotion.at,
        },
    }


def _estimator(model: dict[str, Any]) -> dict[str, Any]:
    """The estimator as people read it: coefficients of z-scored signals in log-odds of a miss, strongest first."""
    head = model["head"]
    strongest = sorted(
        zip(head["names"], head["coefficients"], strict=True), key=lambda pair: -abs(pair[1])
    )
    return {
        "intercept": head["intercept"],
        "coefficients": [{"signal": name, "value": value} for name, value in strongest],
        "penalty": head["penalty"],
        "calibrator": head["calibrator"]["name"],
        "prior": model["prior"] or None,
        "n": model["n"],
        "groups": model["groups"],
        "misses": model["misses"],
    }
