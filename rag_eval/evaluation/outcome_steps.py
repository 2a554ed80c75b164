"""Outcome stage: what the gold says of every claim, appended to the table of outcomes. Repeats of a night on the same index add nothing."""

import datetime as dt
from typing import Any

import numpy as np

from rag_eval.evaluation.claim_steps import miss_rate_claims
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.miss_ranks import judged
from rag_eval.evaluation.signal_steps import strategy_signals
from rag_eval.evaluation.trace_steps import open_sql_store
from rag_eval.records.outcomes import Outcome, Shown
from rag_eval.records.uncertainty import GoldSource
from rag_eval.uncertainty.outcomes import OutcomeStore

QRELS: GoldSource = "qrels"


def retrieval_outcomes(runs: Runs) -> dict[str, Any]:
    """Record an outcome for every claim whose question has gold; done once an evaluation.

    Returns
    -------
    dict
        By strategy: n_claims, n_judged, n_missed, added (new in the table), already_there; gold_source.
    """
    return runs.evaluation.once("outcomes", lambda: _retrieval_outcomes(runs))


def _retrieval_outcomes(runs: Runs) -> dict[str, Any]:
    evaluation = runs.evaluation
    store, now, found = OutcomeStore(open_sql_store(evaluation)), dt.datetime.now(dt.UTC), dict[str, Any]()
    with evaluation.progress.step("Recording outcomes", len(runs.names), "strategies") as advance:
        for name in runs.names:
            outcomes, n_claims = _outcomes(runs, name, now)
            recorded = store.record(outcomes)
            found[name] = {
                "n_claims": n_claims,
                "n_judged": len(outcomes),
                "n_missed": sum(bool(outcome.missed) for outcome in outcomes),
                "added": len(recorded.added),
                "already_there": len(recorded.already_there),
            }
            advance(1)
    return {"gold_source": QRELS, "strategies": found}


def _outcomes(runs: Runs, name: str, now: dt.datetime) -> tuple[list[Outcome], int]:
    spec, made = runs.evaluation.config.uncertainty, strategy_signals(runs, name)
    claims = miss_rate_claims(runs).frame("claims").query("strategy == @name").reset_index(drop=True)
    frame, names = made.frame("signals"), made.json("about")["names"]
    of = judged(runs, name)
    at = {(variant, seed): row for row, (variant, seed) in enumerate(zip(of.variant.tolist(), of.seed.tolist(), strict=True))}
    missed = of.value(spec.target, spec.k)[[at[pair] for pair in zip(frame["variant"].tolist(), frame["seed"].tolist(), strict=True)]]
    values = frame[names].to_numpy()
    judgeable = ~np.isnan(missed) & ~frame["failed"].to_numpy()
    outcomes = []
    for row in np.flatnonzero(judgeable).tolist():
        claim = claims.iloc[row]
        signals = {signal: None if np.isnan(value) else float(value) for signal, value in zip(names, values[row].tolist(), strict=True)}
        outcomes.append(
            Outcome.model_validate(
                {
                    "claim_id": claim["claim_id"],
                    "query_id": claim["query_id"],
                    "group_id": claim["group_id"],
                    "strategy": name,
                    "strategy_fingerprint": claim["strategy_fingerprint"],
                    "target": spec.target,
                    "k": spec.k,
                    "missed": bool(missed[row]),
                    "gold_source": QRELS,
                    "inclusion_probability": 1.0,
                    "signals": signals,
                    "shown": Shown(value=float(claim["miss_rate"]), status=claim["status"], calibrator=claim["calibrator"]),
                    "at": now,
                }
            )
        )
    return outcomes, len(claims)
