"""Calibrated miss rates: what strategies are said to miss, what they were seen to miss, how they compare, and what that makes of the answers.

Belongs here: the report's parts `uncertainty` and `calibration`, from the stages before.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.answer_confidences import NO_INTERVAL, answer_confidences
from rag_eval.evaluation.calibration_steps import miss_rate_calibration, stored_calibration
from rag_eval.evaluation.claim_steps import miss_rate_claims, of_strategy
from rag_eval.evaluation.corpus_coverage import corpus_coverage
from rag_eval.evaluation.iterative_accounts import iterative_accounts
from rag_eval.evaluation.measure_steps import BOOTSTRAP_SEED, Runs, interval_of
from rag_eval.evaluation.miss_ranks import judged
from rag_eval.evaluation.outcome_steps import judged_claims, retrieval_outcomes
from rag_eval.evaluation.signal_steps import fingerprint_of
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.aggregate import aggregate
from rag_eval.records.gold_set import Iterative
from rag_eval.records.uncertainty import DISCOUNTING, TARGETS
from rag_eval.uncertainty.comparing import Misses, compare

RISKIEST = 10
NONE_JUDGED = "no question with a stated miss rate can be judged"
NOT_EARNED = (
    "the stated miss rates are {status}: no mean of them is shown as if it had been measured"
)


def calibrated_miss_rates(runs: Runs) -> dict[str, Any]:
    """Build the parts `uncertainty` and `calibration` of the report; done once an evaluation."""
    return runs.evaluation.once("calibrated miss rates", lambda: _calibrated_miss_rates(runs))


def _calibrated_miss_rates(runs: Runs) -> dict[str, Any]:
    spec, claims, outcomes, calibrated = (
        runs.evaluation.config.uncertainty,
        miss_rate_claims(runs),
        retrieval_outcomes(runs),
        miss_rate_calibration(runs),
    )
    stated = claims.json("about")["strategies"]
    frame = claims.frame("claims")
    uncertainty = {
        "target": spec.target,
        "k": spec.k,
        "level": runs.evaluation.config.level,
        "gold_source": outcomes["gold_source"],
        "strategies": {
            name: _strategy(runs, name, stated[name], frame[frame["strategy"] == name])
            | {"outcomes": outcomes["strategies"][name]}
            for name in runs.names
        },
        "corpus_coverage": corpus_coverage(runs),
        "answers": answer_confidences(runs),
        "iterative": {
            name: iterative_accounts(runs, name)
            for name in runs.names
            if isinstance(runs.spec(name), Iterative)
        },
    }
    calibration = {
        "target": spec.target,
        "k": spec.k,
        "strategies": {
            name: {key: value for key, value in calibrated[name].items() if key != "artifact"}
            for name in runs.names
        },
        **_comparison(runs, calibrated),
    }
    return {"uncertainty": uncertainty, "calibration": calibration}


def _strategy(
    runs: Runs, name: str, stated: dict[str, Any], claims: pd.DataFrame
) -> dict[str, Any]:
    gold, of = runs.gold, judged(runs, name)
    owner = gold.query_of[of.variant]
    k = runs.evaluation.config.uncertainty.k
    ineligible = runs.scores(name).ineligible(
        runs.evaluation.config.level, len(gold.queries), gold
    )  # what has no gold cannot be missed, not even by a retrieval that failed
    observed = {}
    for target in TARGETS:
        values = of.value(target, k)
        record = aggregate(
            [f"{target}_at_{k}"],
            values[:, None],
            gold.groups,
            BOOTSTRAP_SEED,
            query_of=owner,
            failed=of.failed,
            failed_value=[1.0],
            ineligible=ineligible,
        )[0]
        observed[target] = interval_of(record) | (
            {}
            if record.n_scored
            else {"value_reason": "no question of this gold set can be judged"}
        )
    earned = stated["status"] in DISCOUNTING
    usable = claims[
        claims["miss_rate"].notna() & claims["query_id"].isin(judged_claims(runs, name)["query_id"])
    ]  # beside what was observed stands what was stated of the same questions
    codes = pd.factorize(usable["query_id"])[0]
    groups = pd.factorize(usable.drop_duplicates("query_id")["group_id"])[0]
    mean = (
        interval_of(
            aggregate(
                ["miss_rate"],
                usable["miss_rate"].to_numpy()[:, None],
                groups,
                BOOTSTRAP_SEED,
                query_of=codes,
            )[0]
        )
        if len(usable)
        else {"value": None, "reason": NONE_JUDGED}
    )
    riskiest = (
        claims[claims["miss_rate"].notna()]
        .sort_values(["miss_rate", "claim_id"], ascending=[False, True])
        .head(RISKIEST)
    )
    return {
        "fingerprint": fingerprint_of(runs, name),
        "status": stated["status"],
        "calibrator": stated["calibrator"],
        "n_claims": len(claims),
        "n_absent": int(claims["miss_rate"].isna().sum()),
        "observed": observed,
        "stated": mean
        if earned
        else {"value": None, "reason": NOT_EARNED.format(status=stated["status"])},
        "riskiest": [
            {
                "query_id": row["query_id"],
                "paraphrase_id": row["paraphrase_id"],
                "seed": int(row["seed"]),
                **_rates(row),
            }
            for row in riskiest.to_dict("records")
        ],
        **({"reason": stated["reason"]} if stated["reason"] else {}),
    }


def _rates(row: Mapping[Any, Any]) -> dict[str, Any]:
    found = {
        name: None if np.isnan(row[name]) else float(row[name])
        for name in ("miss_rate", "ci_low", "ci_high")
    }
    return found | {f"{name}_reason": NO_INTERVAL for name, value in found.items() if value is None}


def first_claims(runs: Runs, name: str) -> pd.DataFrame:
    """Claims of the questions as they were first put, under the first seed, by query id, with `missed` and `predicted` (out of fold), both NaN without an outcome.

    Outcomes are those that the calibrator was fitted to, corrections among them, so that predictions are held against what they learned from.
    """
    frame = miss_rate_claims(runs).frame("claims").pipe(of_strategy, name)
    seed = runs.artifact(name).json("about")["seeds"][0]
    frame = frame[(frame["paraphrase_id"] == ORIGINAL) & (frame["seed"] == seed)]
    fitted = (
        stored_calibration(runs, name)
        .frame("predictions")
        .set_index("claim_id")[["missed", "predicted"]]
        .astype(float)
        .reindex(frame["claim_id"])
    )
    known = fitted.where(fitted["predicted"].notna())
    assigned: pd.DataFrame = frame.assign(
        missed=known["missed"].to_numpy(), predicted=known["predicted"].to_numpy()
    ).set_index("query_id")
    return assigned


def _comparison(runs: Runs, calibrated: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in runs.names if calibrated[name]["validation"] is not None]
    if len(names) < 2:  # noqa: PLR2004 - a pair
        return {
            "comparison": None,
            "comparison_reason": f"{len(names)} strategies have outcomes enough; a comparison needs two",
        }
    queries = runs.gold.queries["query_id"]
    parts = {name: first_claims(runs, name).reindex(queries) for name in names}
    common = np.all(
        [part["missed"].notna().to_numpy() for part in parts.values()], axis=0
    )  # every figure of every strategy over the same questions
    if not common.any():
        return {
            "comparison": None,
            "comparison_reason": "no question was judged for every strategy",
        }
    misses = [
        Misses(
            name,
            *(
                part[column].to_numpy(dtype=np.float64)[common]
                for column in ("missed", "predicted", "heuristic_v0")
            ),
        )
        for name, part in parts.items()
    ]
    return {
        "comparison": compare(
            misses, runs.gold.groups[common].astype(np.int64), seed=BOOTSTRAP_SEED
        ).to_json()
    }
