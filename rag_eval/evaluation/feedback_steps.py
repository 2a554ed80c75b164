"""What users said of a strategy's retrievals, and what is to be done about it: audits. It never fits a calibrator and never changes a status.

Belongs here: the part `feedback` of a calibration. The count against stated miss rates is `uncertainty.complaints`.
"""

from typing import Any, Final

import pandas as pd

from rag_eval.evaluation.claim_steps import miss_rate_claims, of_strategy
from rag_eval.evaluation.drift_watch import in_force
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.outcome_steps import QRELS
from rag_eval.evaluation.outcome_store import current_outcomes, outcome_store
from rag_eval.evaluation.past_runs import known_fingerprints
from rag_eval.evaluation.signal_steps import fingerprint_of
from rag_eval.evaluation.traffic_steps import traffic
from rag_eval.records.outcomes import AUDITS, MISSED_BY_FEEDBACK
from rag_eval.records.problems import InputError
from rag_eval.records.uncertainty import DISCOUNTING
from rag_eval.uncertainty.complaints import LEVEL, complaint_room
from rag_eval.uncertainty.outcome_use import feedback_without_audit, standing_feedback
from rag_eval.uncertainty.promotions import Series, promotions

COMPLAINT: Final = "something_missing"
NAMED: Final = 10
"""Questions that are named; how many there are is said."""
NOTHING_STATED: Final = (
    "no calibrator was in force: no miss rate was stated that complaints could speak against"
)


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
        says hit (n, query_ids: the first NAMED); watch: by part `complaints.Room`, alarm of any, level; null with reason where nothing was stated;
        earlier: how many claims, kinds and audits due there are of the strategy's other fingerprints, of which nothing else here knows.
    """
    spec = runs.evaluation.config.uncertainty
    every = current_outcomes(
        runs.evaluation,
        strategy_fingerprint=fingerprint_of(runs, name),
        target=spec.target,
        k=spec.k,
    )
    said = standing_feedback(every)
    complained = set(said.loc[said["feedback"] == COMPLAINT, "claim_id"])
    gold = every[
        (every["gold_source"] == QRELS)
        & (every["missed"] == 0)
        & every["claim_id"].isin(complained)
    ]
    against = sorted(set(gold["query_id"]))
    return {
        **_counted(every),
        "contradicts_gold": {
            "n_claims": len(gold),
            "n_questions": len(against),
            "query_ids": against[:NAMED],
        },
        **_watch(runs, name, groups, complained),
        "earlier": _counted(_earlier(runs, name)),
    }


def _counted(frame: pd.DataFrame) -> dict[str, int]:
    said = standing_feedback(frame)
    kinds = {str(kind): int((said["feedback"] == kind).sum()) for kind in MISSED_BY_FEEDBACK}
    return {
        "n_claims": int(said["claim_id"].nunique()),
        **kinds,
        "audits_due": int((feedback_without_audit(frame)["feedback"] == COMPLAINT).sum()),
    }


def _earlier(runs: Runs, name: str) -> pd.DataFrame:
    """Feedback, with the audits of its claims, that this gold set's strategy had under another fingerprint, target or K; it judges other rankings.

    Whose a fingerprint was is known from kept runs and from changes of status: strategies of other gold sets may go by the same name.
    """
    evaluation, spec, now = (
        runs.evaluation,
        runs.evaluation.config.uncertainty,
        fingerprint_of(runs, name),
    )
    frame = current_outcomes(
        evaluation, strategy=name, gold_sources=["user_feedback", *sorted(AUDITS)]
    )
    frame = frame[
        (frame["strategy_fingerprint"] != now)
        | (frame["target"] != spec.target)
        | (frame["k"] != spec.k)
    ]
    opened = outcome_store(evaluation)
    if standing_feedback(frame).empty or isinstance(opened, InputError):
        return frame.iloc[:0]
    changes = promotions(opened.sql, Series(evaluation.config.name, name, spec.target, spec.k))
    own = {
        now,
        *known_fingerprints(evaluation.settings.home, evaluation.config.name, name),
        *(change.strategy_fingerprint for change in changes),
    }
    kept: pd.DataFrame = frame[frame["strategy_fingerprint"].isin(own)]
    return kept


def _watch(runs: Runs, name: str, groups: dict[str, str], complained: set[str]) -> dict[str, Any]:
    stated = stated_claims(runs, name, groups)
    if stated.empty:
        return {"watch": None, "watch_reason": NOTHING_STATED}
    found = complaint_room(
        stated["miss_rate"].to_numpy(dtype="float64"),
        stated["group_id"].tolist(),
        stated["claim_id"].tolist(),
        complained,
    )
    return {
        "watch": {
            "level": LEVEL,
            "alarm": any(room.alarm for room in found.values()),
            **{part: room.to_json() for part, room in found.items()},
        }
    }


def stated_claims(runs: Runs, name: str, groups: dict[str, str]) -> pd.DataFrame:
    """Claims with a miss rate of the calibrator in force: this run's own, of several seeds the first alone, and those of production traffic.

    Returns
    -------
    pandas.DataFrame
        claim_id, group_id, miss_rate (no NaN).
    """
    claims = miss_rate_claims(runs).frame("claims").pipe(of_strategy, name)
    first = runs.artifact(name).json("about")["seeds"][0]
    claims = claims[
        claims["status"].isin(DISCOUNTING) & claims["miss_rate"].notna() & (claims["seed"] == first)
    ][["claim_id", "group_id", "miss_rate"]]
    claims = claims.assign(
        group_id=[
            groups.get(claim, group)
            for claim, group in zip(claims["claim_id"], claims["group_id"], strict=True)
        ]
    )
    asked = traffic(runs, name).frame[["claim_id", "group_id"]]
    asked = asked.assign(
        group_id=[
            groups.get(claim, group)
            for claim, group in zip(asked["claim_id"], asked["group_id"], strict=True)
        ]
    )
    asked = asked.assign(
        miss_rate=in_force(runs, name, asked["claim_id"].tolist(), asked["group_id"].tolist())
    )
    stated: pd.DataFrame = pd.concat([claims, asked[asked["miss_rate"].notna()]], ignore_index=True)
    return stated
