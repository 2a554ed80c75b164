"""What users said of a strategy's retrievals, and what is to be done about it: audits. It never fits a calibrator and never changes a status.

Belongs here: the part `feedback` of a calibration. The count against stated miss rates is `uncertainty.complaints`.
"""

from typing import Any, Final

import pandas as pd

from rag_eval.evaluation.claim_steps import miss_rate_claims, of_strategy
from rag_eval.evaluation.drift_watch import in_force
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.outcome_steps import QRELS
from rag_eval.evaluation.outcome_store import current_outcomes
from rag_eval.evaluation.signal_steps import fingerprint_of
from rag_eval.evaluation.traffic_steps import traffic
from rag_eval.records.outcomes import MISSED_BY_FEEDBACK
from rag_eval.records.uncertainty import DISCOUNTING
from rag_eval.uncertainty.complaints import LEVEL, complaint_room
from rag_eval.uncertainty.outcome_use import feedback_without_audit, standing_feedback

COMPLAINT: Final = "something_missing"
NAMED: Final = 10
"""Questions that are named; how many there are is said."""
NOTHING_STATED: Final = "no calibrator was in force: no miss rate was stated that complaints could speak against"


def feedback_part(runs: Runs, name: str, groups: dict[str, str]) -> dict[str, Any]:
    """Count the feedback on one strategy as it stands now, and hold complaints against what was stated and what the gold says.

    Parameters
    ----------
    groups
        Claim id -> its group as the calibration knows it; claims that are not among them keep their own.

    Returns
    -------
    dict
        n_claims with feedback, of each kind how many; audits_due: complaints that nobody has audited; contradicts_gold: complaints where the gold
        says hit (n, query_ids: the first NAMED); watch: by part `complaints.Room`, alarm of any, level; null with reason where nothing was stated.
    """
    spec = runs.evaluation.config.uncertainty
    every = current_outcomes(runs.evaluation, strategy_fingerprint=fingerprint_of(runs, name), target=spec.target, k=spec.k)
    said = standing_feedback(every)
    complained = set(said.loc[said["feedback"] == COMPLAINT, "claim_id"])
    gold = every[(every["gold_source"] == QRELS) & (every["missed"] == 0) & every["claim_id"].isin(complained)]
    against = sorted(set(gold["query_id"]))
    return {
        "n_claims": int(said["claim_id"].nunique()),
        **{kind: int((said["feedback"] == kind).sum()) for kind in MISSED_BY_FEEDBACK},
        "audits_due": int((feedback_without_audit(every)["feedback"] == COMPLAINT).sum()),
        "contradicts_gold": {"n_claims": len(gold), "n_questions": len(against), "query_ids": against[:NAMED]},
        **_watch(runs, name, groups, complained),
    }


def _watch(runs: Runs, name: str, groups: dict[str, str], complained: set[str]) -> dict[str, Any]:
    stated = stated_claims(runs, name, groups)
    if stated.empty:
        return {"watch": None, "watch_reason": NOTHING_STATED}
    found = complaint_room(stated["miss_rate"].to_numpy(dtype="float64"), stated["group_id"].tolist(), stated["claim_id"].tolist(), complained)
    return {"watch": {"level": LEVEL, "alarm": any(room.alarm for room in found.values()), **{part: room.to_json() for part, room in found.items()}}}


def stated_claims(runs: Runs, name: str, groups: dict[str, str]) -> pd.DataFrame:
    """Claims with a miss rate of the calibrator in force: this run's own, of several seeds the first alone, and those of production traffic.

    Returns
    -------
    pandas.DataFrame
        claim_id, group_id, miss_rate (no NaN).
    """
    claims = miss_rate_claims(runs).frame("claims").pipe(of_strategy, name)
    first = runs.artifact(name).json("about")["seeds"][0]
    claims = claims[claims["status"].isin(DISCOUNTING) & claims["miss_rate"].notna() & (claims["seed"] == first)][["claim_id", "group_id", "miss_rate"]]
    claims = claims.assign(group_id=[groups.get(claim, group) for claim, group in zip(claims["claim_id"], claims["group_id"], strict=True)])
    asked = traffic(runs, name).frame[["claim_id", "group_id"]]
    asked = asked.assign(group_id=[groups.get(claim, group) for claim, group in zip(asked["claim_id"], asked["group_id"], strict=True)])
    asked = asked.assign(miss_rate=in_force(runs, name, asked["claim_id"].tolist(), asked["group_id"].tolist()))
    stated: pd.DataFrame = pd.concat([claims, asked[asked["miss_rate"].notna()]], ignore_index=True)
    return stated
