"""Outcome stage: what the gold says of every claim, appended to the table of outcomes. Repeats of a night on the same index add nothing."""

import datetime as dt
import math
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.claim_steps import miss_rate_claims, of_strategy
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.miss_ranks import judged
from rag_eval.evaluation.outcome_store import outcome_store, unusable
from rag_eval.evaluation.signal_steps import fingerprint_of, strategy_signals
from rag_eval.records.outcomes import MAX_NUMBER, Outcome, Shown
from rag_eval.records.problems import InputError
from rag_eval.records.uncertainty import GoldSource
from rag_eval.uncertainty.naming import new_outcome
from rag_eval.uncertainty.outcomes import OutcomeStore

QRELS: GoldSource = "qrels"
OF_GOLD = r"gold [0-9a-f]{16}(: instead of [0-9a-f]+)?"
"""Notes that this stage gives; whoever corrects by hand gives another."""


def retrieval_outcomes(runs: Runs) -> dict[str, Any]:
    """Record an outcome for every claim whose question has gold; done once an evaluation.

    Returns
    -------
    dict
        By strategy: n_claims, n_judged, n_missed, added (new in the table), already_there; gold_source; not_recorded, why nothing was, empty where it was.
    """
    return runs.evaluation.once("outcomes", lambda: _retrieval_outcomes(runs))


def _retrieval_outcomes(runs: Runs) -> dict[str, Any]:
    evaluation = runs.evaluation
    opened, now, found = outcome_store(evaluation), dt.datetime.now(dt.UTC), dict[str, Any]()
    because = f"gold {gold_variants(evaluation).json('about')['hash'][:16]}"
    with evaluation.progress.step("Recording outcomes", len(runs.names), "strategies") as advance:
        for name in runs.names:
            claims = judged_claims(runs, name)
            added = (
                0
                if isinstance(opened, InputError)
                else _record(opened, runs, name, claims, now=now, because=because)
            )
            found[name] = {
                "n_claims": int((miss_rate_claims(runs).frame("claims")["strategy"] == name).sum()),
                "n_judged": len(claims),
                "n_missed": int(claims["missed"].sum()),
                "added": added,
                "already_there": 0 if isinstance(opened, InputError) else len(claims) - added,
            }
            advance(1)
    return {"gold_source": QRELS, "strategies": found, "not_recorded": unusable(evaluation)}


def _record(
    store: OutcomeStore,
    runs: Runs,
    name: str,
    claims: pd.DataFrame,
    *,
    now: dt.datetime,
    because: str,
) -> int:
    """Add what is new of one strategy, corrections of what another gold said among it; how many rows that were, at most one a claim."""
    there = _there(store, runs, name, claims)
    fresh = claims[~there]
    again = _heard_again(store, fresh, because)
    offered = [
        outcome.model_copy(update={"note": again.get(outcome.claim_id, "")})
        for outcome in _outcomes(runs, name, fresh, now)
    ]
    return len(store.record(offered, because=because).added)


def _heard_again(store: OutcomeStore, claims: pd.DataFrame, because: str) -> dict[str, str]:
    """Notes for claims of which this gold was heard before and another gold's judgement stands: gold that goes back is a reason of its own.

    What a person corrected has none, so the store leaves it alone.
    """
    if claims.empty:
        return {}
    first = claims.iloc[0]
    history = store.history(
        strategy_fingerprint=first["strategy_fingerprint"],
        target=first["target"],
        k=int(first["k"]),
        gold_sources=[QRELS],
        claim_ids=claims["claim_id"].tolist(),
    )
    heard = set(history.loc[history["note"].str.startswith(because), "claim_id"])
    last = history[~history["outcome_id"].isin(history["supersedes"])]
    turned = last[
        last["claim_id"].isin(heard)
        & last["note"].str.fullmatch(OF_GOLD)
        & ~last["note"].str.startswith(because)
    ]
    return {
        claim: f"instead of {outcome}"
        for claim, outcome in zip(turned["claim_id"], turned["outcome_id"], strict=True)
    }


def judged_claims(runs: Runs, name: str) -> pd.DataFrame:
    """Claims of one strategy that the gold judges: CLAIMS, `missed`, `row` (of the strategy's signals).

    Of several seeds the first alone: the same wording under another seed is hardly another retrieval, and would vouch for itself.
    """
    spec, frame = runs.evaluation.config.uncertainty, strategy_signals(runs, name).frame("signals")
    claims = miss_rate_claims(runs).frame("claims").pipe(of_strategy, name).reset_index(drop=True)
    of = judged(runs, name)
    place = pd.Series(
        np.arange(len(of.variant)), index=pd.MultiIndex.from_arrays([of.variant, of.seed])
    )
    missed = of.value(spec.target, spec.k)[
        place.loc[pd.MultiIndex.from_arrays([frame["variant"], frame["seed"]])].to_numpy()
    ]
    judgeable = (
        ~np.isnan(missed)
        & ~frame["failed"].to_numpy()
        & (frame["seed"] == runs.artifact(name).json("about")["seeds"][0]).to_numpy()
    )
    kept: pd.DataFrame = claims.assign(missed=missed == 1, row=np.arange(len(claims)))[
        judgeable
    ].reset_index(drop=True)
    return kept


def _there(store: OutcomeStore, runs: Runs, name: str, claims: pd.DataFrame) -> np.ndarray:
    """Which of these judgements stand in the table already, bool [n]; most do, on every night but the first."""
    spec = runs.evaluation.config.uncertainty
    standing = store.current(
        strategy_fingerprint=fingerprint_of(runs, name),
        target=spec.target,
        k=spec.k,
        gold_sources=[QRELS],
    )
    kept = dict(zip(standing["claim_id"], standing["missed"], strict=True))
    return np.array(
        [
            kept.get(claim) == missed
            for claim, missed in zip(claims["claim_id"], claims["missed"].tolist(), strict=True)
        ],
        dtype=bool,
    )


def _outcomes(runs: Runs, name: str, claims: pd.DataFrame, now: dt.datetime) -> list[Outcome]:
    made = strategy_signals(runs, name)
    names = made.json("about")["names"]
    # a retriever's own scores may be as large as numbers in JSON are exact, and ratios of them larger than an outcome may hold
    values = np.clip(
        made.frame("signals")[names].to_numpy()[claims["row"].to_numpy()], -MAX_NUMBER, MAX_NUMBER
    ).tolist()
    return [
        new_outcome(
            **{
                key: claim[key]
                for key in (
                    "claim_id",
                    "query_id",
                    "group_id",
                    "strategy",
                    "strategy_fingerprint",
                    "target",
                    "k",
                    "missed",
                )
            },
            gold_source=QRELS,
            inclusion_probability=1.0,
            signals={
                signal: None if math.isnan(value) else value
                for signal, value in zip(names, row, strict=True)
            },
            shown=Shown(
                value=claim["miss_rate"], status=claim["status"], calibrator=claim["calibrator"]
            ),
            at=now,
        )
        for claim, row in zip(claims.to_dict("records"), values, strict=True)
    ]
