"""Claim stage: the miss rate that is stated for every retrieval, by the calibrator that was accepted before the run, else by the prior, else by the heuristic.

Belongs here: which estimator speaks for a strategy, and the CLAIMS frame. What the claims turn out to be worth is `calibration_steps`.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from rag_eval.evaluation.fingerprints import Accepted, accepted
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.outcome_store import current_outcomes
from rag_eval.evaluation.signal_steps import fingerprint_of, strategy_signals
from rag_eval.evaluation.traffic_steps import traffic
from rag_eval.records.gold_set import External
from rag_eval.records.uncertainty import CLAIMS, DISCOUNTING, PRIOR_QUERIES, BinaryTarget, Status
from rag_eval.storage.artifacts import Artifact
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.branch import Branch
from rag_eval.uncertainty.estimator import from_prior
from rag_eval.uncertainty.labelled import FloatArray
from rag_eval.uncertainty.model import MissRateModel
from rag_eval.uncertainty.naming import claim_id_of
from rag_eval.uncertainty.outcome_use import fit_rows
from rag_eval.uncertainty.prior import Prior, load_prior

HEURISTIC, PRIOR = "heuristic_v0", "prior:"
PRIOR_TARGET: Final[tuple[BinaryTarget, int]] = ("miss_any", 10)
"""What the shipped prior was fitted to."""


@dataclasses.dataclass(frozen=True)
class Speaker:
    """What states a strategy's miss rates.

    Parameters
    ----------
    model
        The estimator; None where only the heuristic is left.
    status
        What its figures have earned.
    name
        Id of the calibrator, `prior:<id>` or `heuristic_v0`.
    reason
        Why it is no better one.
    n_outcomes, fitted_at
        Outcomes behind it, and when it was fitted.
    branch
        What speaks for questions whose other wordings were judged, and what that has earned; None where that is the model too.
    group_of_query
        Query id -> its group when the model was fitted: by that the fit is chosen that did not see it, whatever the gold says of groups since.
    gold_sources
        Where the judgements of the outcomes behind it come from.
    """

    model: MissRateModel | None
    status: Status
    name: str
    reason: str
    n_outcomes: int = 0
    fitted_at: dt.datetime | None = None
    branch: tuple[Branch, Status] | None = None
    group_of_query: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gold_sources: tuple[str, ...] = ()


def speaker(
    found: Accepted,
    prior: Prior,
    names: tuple[str, ...],
    unlabelled: FloatArray,
    *,
    target: BinaryTarget,
    k: int,
) -> Speaker:
    """Choose what states a strategy's miss rates.

    Parameters
    ----------
    found
        The calibrator accepted before this run.
    prior
        Shipped coefficients for this kind of strategy.
    names, unlabelled
        Signals of the strategy's queries, float64 [n, p], which the prior is z-scored on: `unlabelled_signals`.
    target, k
        What a miss is.
    """
    if found.body is not None and found.status in {"provisional", "measured"}:
        model = MissRateModel.from_json(found.body["model"])
        wordings = found.body["wordings"]
        used = wordings is not None and wordings["used"] and wordings["status"] in DISCOUNTING
        branch = (Branch.from_json(wordings["model"]), wordings["status"]) if used else None
        fitted_at = dt.datetime.fromisoformat(found.body["fitted_at"])
        return Speaker(
            model,
            found.status,
            found.calibrator_id,
            "",
            model.n,
            fitted_at,
            branch,
            found.body["group_of_query"],
            tuple(found.body["gold_sources"]),
        )
    stale = found.status == "stale"
    why = (
        f"calibrator {found.calibrator_id} no longer holds"
        if stale
        else "no outcomes had been calibrated on when this run started"
    )
    if len(unlabelled) < PRIOR_QUERIES:
        return Speaker(
            None,
            "stale" if stale else "uncalibrated",
            HEURISTIC,
            f"{why}; {len(unlabelled)} queries, the prior needs {PRIOR_QUERIES}",
        )
    if missing := no_prior(target, k):
        return Speaker(None, "stale" if stale else "uncalibrated", HEURISTIC, f"{why}; {missing}")
    return Speaker(
        from_prior(prior, names, unlabelled, k=k),
        "stale" if stale else "prior",
        f"{PRIOR}{prior.id}",
        why,
    )


def no_prior(target: BinaryTarget, k: int) -> str:
    """Say why no shipped prior can speak for a target and K; empty where one can, and then there is one for every kind of strategy."""
    return (
        ""
        if (target, k) == PRIOR_TARGET
        else f"no prior is shipped for {target}@{k}, only for {PRIOR_TARGET[0]}@{PRIOR_TARGET[1]}"
    )


def unlabelled_signals(runs: Runs, name: str) -> FloatArray:
    """Signals of all queries of a strategy that are known, this run's own and those of production traffic, float64 [n, p]: what z-scores rest on, and are counted by."""
    made = strategy_signals(runs, name)
    own = made.frame("signals").query("not failed")[list(made.json("about")["names"])].to_numpy()
    return np.vstack([own, traffic(runs, name).signals])


def prior_of(runs: Runs, name: str) -> Prior:
    """Read the shipped prior for the kind of a strategy."""
    base = runs.evaluation.config.base_of(runs.spec(name))
    return load_prior("any" if isinstance(base, External) else base.kind)


def speaker_of(runs: Runs, name: str) -> Speaker:
    """Choose what states the miss rates of one strategy of this evaluation; the choice stays the same within it."""
    spec = runs.evaluation.config.uncertainty

    def choose() -> Speaker:
        names = tuple(strategy_signals(runs, name).json("about")["names"])
        return speaker(
            accepted(runs.evaluation, name, fingerprint_of(runs, name)),
            prior_of(runs, name),
            names,
            unlabelled_signals(runs, name),
            target=spec.target,
            k=spec.k,
        )

    return runs.evaluation.once(f"speaker {name}", choose)


def miss_rate_claims(runs: Runs) -> Artifact:
    """State a miss rate for every retrieval of every strategy. Parts: claims (CLAIMS), about (by strategy: fingerprint, status, calibrator, reason)."""
    return runs.evaluation.once("claims", lambda: _miss_rate_claims(runs))


def _miss_rate_claims(runs: Runs) -> Artifact:
    evaluation, spec = runs.evaluation, runs.evaluation.config.uncertainty
    speakers = {name: speaker_of(runs, name) for name in runs.names}
    histories = {
        name: _history(runs, name) for name, by in speakers.items() if by.branch is not None
    }
    spoken = [
        [
            name,
            strategy_signals(runs, name).key,
            by.name,
            by.status,
            None if by.branch is None else by.branch[1],
            _identity(histories.get(name)),
            _scaled_by(runs, name, by),
        ]
        for name, by in speakers.items()
    ]
    key = evaluation.key("claims", spoken, spec.target, spec.k)

    def make() -> dict[str, Any]:
        with evaluation.progress.step("Stating miss rates", len(speakers), "strategies") as advance:
            parts = []
            for name, by in speakers.items():
                parts.append(_claims(runs, name, by, histories.get(name)))
                advance(1)
        about = {
            name: {
                "fingerprint": fingerprint_of(runs, name),
                "status": by.status,
                "calibrator": by.name,
                "reason": by.reason,
                "n_outcomes": by.n_outcomes,
            }
            for name, by in speakers.items()
        }
        return {
            "claims": CLAIMS.check(pd.concat(parts, ignore_index=True)),
            "about": {"strategies": about},
        }

    return evaluation.memo("claims", key, make)


def _claims(runs: Runs, name: str, by: Speaker, history: pd.DataFrame | None) -> pd.DataFrame:
    spec, made = runs.evaluation.config.uncertainty, strategy_signals(runs, name)
    frame, names = made.frame("signals"), tuple(made.json("about")["names"])
    variants = runs.gold.variants.iloc[frame["variant"].to_numpy()]
    fingerprint = fingerprint_of(runs, name)
    value, low, high = (
        frame["heuristic_v0"].to_numpy().copy(),
        np.full(len(frame), np.nan),
        np.full(len(frame), np.nan),
    )
    if by.model is not None:
        features = frame[list(names)].to_numpy()
        groups = [
            by.group_of_query.get(query, group)
            for query, group in zip(variants["query_id"], variants["group_id"], strict=True)
        ]
        value = by.model.predict(features, names, groups)
        low, high = by.model.interval(features, names, groups)
    ids = [
        claim_id_of(fingerprint, *parts)
        for parts in zip(
            variants["query_id"],
            variants["paraphrase_id"],
            frame["seed"].tolist(),
            variants["text"],
            strict=True,
        )
    ]
    status = np.full(len(frame), by.status, dtype=object)
    if by.branch is not None and history is not None:
        first = runs.artifact(name).json("about")["seeds"][0]
        own = [
            claim_id_of(fingerprint, query, put, first, text)
            for query, put, text in zip(
                variants["query_id"], variants["paraphrase_id"], variants["text"], strict=True
            )
        ]
        misses, judged = _others(
            history[history["claim_id"].isin(own)], variants["query_id"].tolist(), own
        )
        better = by.branch[0].predict(features, names, misses, judged, groups)
        spoken = np.isfinite(better)
        status = np.where(spoken, by.branch[1], by.status).astype(object)
        value, low, high = (
            np.where(spoken, better, value),
            np.where(spoken, np.nan, low),
            np.where(spoken, np.nan, high),
        )
    failed = frame["failed"].to_numpy()
    return pd.DataFrame(
        {
            "claim_id": ids,
            "query_id": variants["query_id"].to_numpy(),
            "paraphrase_id": variants["paraphrase_id"].to_numpy(),
            "group_id": variants["group_id"].to_numpy(),
            "seed": frame["seed"].to_numpy(),
            "strategy": name,
            "strategy_fingerprint": fingerprint,
            "target": spec.target,
            "k": spec.k,
            "miss_rate": np.where(failed, np.nan, value),
            "ci_low": np.where(failed, np.nan, low),
            "ci_high": np.where(failed, np.nan, high),
            "status": np.where(failed, "absent", status).astype(object),
            "calibrator": by.name,
            "heuristic_v0": np.where(failed, np.nan, frame["heuristic_v0"].to_numpy()),
        }
    )


def _scaled_by(runs: Runs, name: str, by: Speaker) -> list[str]:
    """Claims of production traffic that the prior's z-scores rest on too."""
    return (
        traffic(runs, name).frame["claim_id"].tolist()
        if by.model is not None and by.name.startswith(PRIOR)
        else []
    )


def of_strategy(claims: pd.DataFrame, name: str) -> pd.DataFrame:
    """Keep the claims of one strategy."""
    return claims[claims["strategy"] == name]


def _history(runs: Runs, name: str) -> pd.DataFrame:
    """Outcomes that stood before this run for wordings of this strategy: claim_id, query_id, missed, weight."""
    spec = runs.evaluation.config.uncertainty
    frame = fit_rows(
        current_outcomes(
            runs.evaluation,
            strategy_fingerprint=fingerprint_of(runs, name),
            target=spec.target,
            k=spec.k,
        )
    )
    return frame[["claim_id", "query_id", "missed", "weight"]].sort_values(
        "claim_id", ignore_index=True
    )


def _identity(history: pd.DataFrame | None) -> str:
    return (
        ""
        if history is None
        else digest([history["claim_id"].tolist(), history["missed"].tolist()])
    )


def _others(
    history: pd.DataFrame, query_ids: list[str], claim_ids: list[str]
) -> tuple[FloatArray, FloatArray]:
    """Weighted misses and number of the judged wordings of each question, that of `claim_ids` itself left out."""
    weighted = history.assign(misses=history["weight"] * history["missed"])
    sums = (
        weighted.groupby("query_id")[["misses", "weight"]]
        .sum()
        .reindex(query_ids, fill_value=0.0)
        .to_numpy()
    )
    own = (
        weighted.set_index("claim_id")[["misses", "weight"]]
        .reindex(claim_ids, fill_value=0.0)
        .to_numpy()
    )
    misses, judged = (
        np.where(sums[:, 1] - own[:, 1] > 0.5, sums[:, at] - own[:, at], 0.0) for at in (0, 1)
    )  # a wording weighs 1 or more: less is rounding  # noqa: PLR2004
    return np.maximum(misses, 0.0), judged
