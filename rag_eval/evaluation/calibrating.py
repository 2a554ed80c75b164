"""Calibration outside the nightly run: of one gold set, on the outcomes so far, and strategies compared for researchers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rag_eval.evaluation.calibration_steps import calibration_of, miss_rate_calibration
from rag_eval.evaluation.group_steps import groups_of_traffic
from rag_eval.evaluation.index_steps import IndexOpener
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.measure_steps import BOOTSTRAP_SEED, Runs
from rag_eval.evaluation.outcome_store import current_outcomes, outcome_store
from rag_eval.evaluation.signal_steps import fingerprint_of
from rag_eval.evaluation.traffic_steps import Traffic, traffic
from rag_eval.evaluation.uncertainty_steps import first_claims
from rag_eval.records.outcomes import AUDITS
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.storage.locking import home_lock
from rag_eval.uncertainty.comparing import Comparison, Misses, compare
from rag_eval.uncertainty.inclusion import chances
from rag_eval.uncertainty.labelled import FloatArray
from rag_eval.uncertainty.model import MissRateModel
from rag_eval.uncertainty.outcome_use import fit_rows
from rag_eval.uncertainty.prediction_powered import Audited
from rag_eval.uncertainty.signals import SIGNALS

SAME = 1e-9
"""Relative difference under which two inclusion probabilities are the same number, computed in another order."""


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """A gold set, calibrated.

    Parameters
    ----------
    gold_set, target, k
        Of what.
    strategies
        By name, as `miss_rate_calibration` gives them.
    traffic
        Claims of production traffic by strategy: `counted` in; `n_unknown`, which say nothing here, and `n_differing`, whose lists are not what the
        strategy retrieves, were left out; `reason` says why there are none, or which are unknown (empty where there is nothing to say).
    """

    gold_set: str
    target: str
    k: int
    strategies: dict[str, Any]
    traffic: dict[str, dict[str, Any]]


def calibrate_gold_set(evaluation: Evaluation) -> Calibrated:
    """Calibrate every strategy on the outcomes so far, those of this gold set's own judgements among them; what is stored already is used again."""
    with home_lock(evaluation.settings.home):
        _must_be_usable(evaluation)
        runs = Runs(evaluation, IndexOpener(evaluation))
        found, spec = miss_rate_calibration(runs), evaluation.config.uncertainty
        return Calibrated(
            evaluation.config.name,
            spec.target,
            spec.k,
            found,
            {name: _counted(traffic(runs, name)) for name in runs.names},
        )


def _counted(found: Traffic) -> dict[str, Any]:
    return {
        "counted": len(found.frame),
        "n_unknown": found.n_unknown,
        "n_differing": found.n_differing,
        "reason": found.reason,
    }


def compare_strategies(evaluation: Evaluation, names: Sequence[str]) -> Comparison:
    """Compare strategies on the questions of the gold set, as they were first put, that every one of them was judged on.

    Prediction-powered estimates alone are of production traffic: the claims of each strategy's fingerprint, labelled where a random audit
    judged them; of a pair, the questions that both have claims of.

    Raises
    ------
    InputError
        A name that the gold set does not have, a strategy with too few outcomes to be calibrated, or no question that all were judged on.
    """
    there = [spec.name for spec in evaluation.config.strategies]
    unknown = [name for name in names if name not in there]
    if unknown:
        raise InputError(
            Problem(
                "unknown_strategy",
                f"{evaluation.config.name} has no such strategy",
                field="STRATEGY",
                found=", ".join(map(quoted, unknown)),
                accepted=", ".join(there),
            )
        )
    with home_lock(evaluation.settings.home):
        _must_be_usable(evaluation)
        runs = Runs(evaluation, IndexOpener(evaluation))
        found = miss_rate_calibration(runs)
        few = [name for name in names if found[name]["validation"] is None]
        if few:
            why = str(found[few[0]]["estimator_reason"])
            raise InputError(
                Problem(
                    "too_few_outcomes",
                    f"{quoted(few[0])} cannot be compared: {why}",
                    field="STRATEGY",
                    found=", ".join(map(quoted, few)),
                    accepted="strategies that are provisional or better",
                )
            )
        return _compared(runs, names)


def _must_be_usable(evaluation: Evaluation) -> None:
    """Raise why the outcomes cannot be read: without them there is nothing to calibrate on."""
    opened = outcome_store(evaluation)
    if isinstance(opened, InputError):
        raise opened


def _compared(runs: Runs, names: Sequence[str]) -> Comparison:
    parts = {
        name: first_claims(runs, name).reindex(runs.gold.queries["query_id"]) for name in names
    }
    judged = np.all([part["missed"].notna().to_numpy() for part in parts.values()], axis=0)
    if not judged.any():
        raise InputError(
            Problem(
                "nothing_in_common",
                "no question of the gold set is judged for all of these strategies",
                field="STRATEGY",
                found=", ".join(map(quoted, names)),
                accepted="strategies that were run on the same questions",
            )
        )
    misses = [
        Misses(
            name,
            *(
                part[column].to_numpy(dtype=np.float64)[judged]
                for column in ("missed", "predicted", "heuristic_v0")
            ),
        )
        for name, part in parts.items()
    ]
    return compare(
        misses,
        runs.gold.groups[judged].astype(np.int64),
        seed=BOOTSTRAP_SEED,
        audited={name: _audited(runs, name) for name in names},
    )


def _audited(runs: Runs, name: str) -> Audited:
    """Claims of production traffic of a strategy with what audits found, where these are a simple random sample; predictions are from models that did not see their group."""
    spec, found, fingerprint, opened = (
        runs.evaluation.config.uncertainty,
        traffic(runs, name),
        fingerprint_of(runs, name),
        outcome_store(runs.evaluation),
    )
    if isinstance(opened, InputError) or not len(found.frame):
        return Audited.nothing(
            f"no claim of production traffic of {quoted(name)} can be used: {found.reason or 'all differ from what it retrieves now'}"
        )
    claims = found.frame["claim_id"].tolist()
    rows = fit_rows(
        current_outcomes(
            runs.evaluation,
            strategy_fingerprint=fingerprint,
            target=spec.target,
            k=spec.k,
            gold_sources=sorted(AUDITS),
        )
    )
    rows = rows[rows["claim_id"].isin(claims)]
    if rows.empty:
        return Audited.nothing(
            f"none of the {len(claims):,} claims of production traffic of {quoted(name)} has an audit with a known inclusion probability for {spec.target}@{spec.k}"
        )
    least, most = rows["inclusion_probability"].min(), rows["inclusion_probability"].max()
    if not np.isclose(least, most, rtol=SAME, atol=0):
        return Audited.nothing(
            f"the audits of {quoted(name)} were drawn with unequal probabilities, {least:.3g} to {most:.3g}: they are no simple random sample"
        )
    chance = chances(opened.sql, fingerprint, spec.target)
    after = sum(chance.get(claim) == 0 for claim in claims)
    if after:
        return Audited.nothing(
            f"{after:,} of the {len(claims):,} claims of production traffic of {quoted(name)} came in after the last draw that was judged: those audited are no sample of all of them"
        )
    missed = rows.set_index("claim_id")["missed"].reindex(claims).to_numpy(dtype=np.float64)
    group_of = groups_of_traffic(runs, name)
    groups = tuple(group_of[claim] for claim in claims)
    return Audited(
        tuple(claims),
        tuple(found.frame["query_id"]),
        groups,
        missed,
        _predicted(runs, name, found.signals, groups),
    )


def _predicted(runs: Runs, name: str, signals: FloatArray, groups: Sequence[str]) -> FloatArray:
    """Calibrated miss rates: of a group that was fitted by the fold that left it out, of any other the mean of all folds, so that both come from the same kind of model."""
    model = MissRateModel.from_json(calibration_of(runs, name)["model"])
    fitted = np.array([group in model.fold_of_group for group in groups], dtype=bool)
    new = np.mean(
        [
            dataclasses.replace(model, head=fold, fold_of_group={}).predict(signals, SIGNALS)
            for fold in model.folds or (model.head,)
        ],
        axis=0,
    )
    return np.where(
        fitted, model.predict(signals, SIGNALS, groups), np.asarray(new, dtype=np.float64)
    )
