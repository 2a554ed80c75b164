"""What each answer is worth: its groundedness, discounted by the miss rate of its retrieval.

Belongs here: which claim belongs to which answer, and the measured share of right answers where retrieval missed. The formulas are `uncertainty.answer_confidence`.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from rag_eval.evaluation.answer_frames import from_artifact
from rag_eval.evaluation.answer_measure_steps import answer_measures
from rag_eval.evaluation.answer_steps import answers
from rag_eval.evaluation.claim_steps import miss_rate_claims, of_strategy, speaker_of
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.measure_steps import BOOTSTRAP_SEED, Runs, interval_of
from rag_eval.evaluation.outcome_steps import judged_claims
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.aggregate import aggregate
from rag_eval.measures.intervals import clustered_interval
from rag_eval.records.confidence import Absent, Confidence, Measured, as_json, effective
from rag_eval.uncertainty.answer_confidence import (
    MissRate,
    calibrated_confidence,
    final_confidence,
    groundedness_confidence,
    reported_confidence,
    retrieval_confidence,
)

Found = TypeVar("Found")

NO_ANSWERS = "the gold set configures no answers"
NO_INTERVAL = "what stated it knows no interval"
MIN_MISSED = 30
"""Answers over missed retrievals, in distinct groups, that a share of right ones needs before it is used."""


def miss_rate_of(runs: Runs, row: Mapping[Any, Any]) -> MissRate:
    """Read the stated miss rate of one claim (a row of CLAIMS)."""
    by = speaker_of(runs, row["strategy"])
    known = {
        name: None if np.isnan(row[name]) else float(row[name])
        for name in ("miss_rate", "ci_low", "ci_high")
    }
    source = ", ".join(by.gold_sources) or None
    return MissRate(
        known["miss_rate"],
        known["ci_low"],
        known["ci_high"],
        row["status"],
        row["target"],
        int(row["k"]),
        source,
        row["calibrator"],
        by.n_outcomes,
        by.fitted_at,
    )


def answer_confidences(runs: Runs) -> dict[str, Any]:
    """Summarise the confidence of the answers; null with the reason where there are none."""
    found = runs.evaluation.once("answer confidences", lambda: _confidences(runs))
    if not found:
        return {"value": None, "reason": NO_ANSWERS}
    groups = dict(zip(runs.gold.queries["query_id"], runs.gold.groups, strict=True))
    group = pd.factorize(np.array([groups[query_id] for query_id in found]))[0]

    def mean(name: str) -> dict[str, Any]:
        said = [
            not isinstance(entry[name], Absent)
            and not isinstance(entry["synthesis_confidence"], Absent)
            for entry in found.values()
        ]  # what answered nothing has nothing to discount
        values = np.array(
            [
                effective(entry[name]) if there else np.nan
                for entry, there in zip(found.values(), said, strict=True)
            ]
        )
        record = interval_of(aggregate([name], values[:, None], group, BOOTSTRAP_SEED)[0])
        return record | (
            {}
            if record["value"] is not None
            else {"value_reason": _reason([entry[name] for entry in found.values()])}
        )

    right = right_when_missed(runs)
    return {
        "n": len(found),
        **{
            name: mean(name)
            for name in ("synthesis_confidence", "final_confidence", "calibrated_confidence")
        },
        "right_when_missed": None if right is None else as_json(right),
        **(
            {}
            if right is not None
            else {
                "right_when_missed_reason": f"fewer than {MIN_MISSED} independent questions were answered over a missed retrieval"
            }
        ),
    }


def _reason(values: list[Confidence]) -> str:
    reasons = sorted({value.reason for value in values if isinstance(value, Absent)})
    return f"absent for every answer: {', '.join(reasons)}"


def confidences(runs: Runs) -> dict[str, dict[str, Any]]:
    """Return the confidence values of every answer by query id, as JSON objects; empty where no answers were made."""
    found = runs.evaluation.once("answer confidences", lambda: _confidences(runs))
    return {
        query_id: {name: as_json(value) for name, value in entry.items()}
        for query_id, entry in found.items()
    }


def _confidences(runs: Runs) -> dict[str, dict[str, Confidence]]:
    made, measured = answers(runs), answer_measures(runs)
    if made is None or measured is None:
        return {}
    name = made.json("about")["strategy"]
    claims = _first_claims(runs, name)
    grounded = dict(
        zip(
            measured.frame("per_question")["query_id"],
            measured.frame("per_question")["groundedness"],
            strict=True,
        )
    )
    right = _right_of_others(runs)
    found: dict[str, dict[str, Confidence]] = {}
    for answer in from_artifact(made):
        value = grounded[answer.query_id]
        said = answer.outcome == "answered"
        if answer.mode == "deterministic":
            synthesis = groundedness_confidence(
                None if not said or pd.isna(value) else float(value)
            )
        else:
            synthesis = reported_confidence(answer.confidence if said else None, answer.mode)
        miss = miss_rate_of(runs, claims[answer.query_id])
        found[answer.query_id] = {
            "synthesis_confidence": synthesis,
            "retrieval_confidence": retrieval_confidence(miss),
            "final_confidence": final_confidence(synthesis, miss),
            "calibrated_confidence": calibrated_confidence(
                synthesis, miss, right.get(answer.query_id)
            ),
        }
    return found


def _first_claims(runs: Runs, name: str) -> dict[str, dict[str, Any]]:
    frame = miss_rate_claims(runs).frame("claims").pipe(of_strategy, name)
    frame = frame[
        (frame["paraphrase_id"] == ORIGINAL)
        & (frame["seed"] == runs.artifact(name).json("about")["seeds"][0])
    ]
    return {row["query_id"]: row for row in frame.to_dict("records")}


def right_when_missed(runs: Runs) -> Measured | None:
    """Measure c0: the share of answers that cite gold although the retrieval missed; None while too few were seen."""

    def measure() -> Measured | None:
        seen = _answered_over_misses(runs)
        return None if seen is None else _share(runs, seen)

    return runs.evaluation.once("right when missed", measure)


def _right_of_others(runs: Runs) -> dict[str, Measured]:
    """c0 for each question of the gold set, measured without the answers of its own group; empty while too few were seen.

    With them an answer would be worth what it turned out to be worth itself.
    """
    seen, whole = _answered_over_misses(runs), right_when_missed(runs)
    if seen is None or whole is None:
        return {}
    of_group = left_out(seen, lambda others: _share(runs, others))
    return {
        query: of_group.get(group, whole)
        for query, group in zip(
            runs.gold.queries["query_id"], runs.gold.groups.tolist(), strict=True
        )
    }


def left_out(seen: pd.DataFrame, share: Callable[[pd.DataFrame], Found]) -> dict[int, Found]:
    """Compute something for each group of `seen` (right, group) on the rows of all others; groups with equal rows leave the same behind."""
    totals = seen.groupby("group")["right"].agg(["sum", "count"])
    kind_of = dict(
        zip(totals.index.tolist(), totals.itertuples(index=False, name=None), strict=True)
    )
    example = {kind: group for group, kind in kind_of.items()}
    found = {kind: share(seen[seen["group"] != group]) for kind, group in example.items()}
    return {group: found[kind] for group, kind in kind_of.items()}


def _answered_over_misses(runs: Runs) -> pd.DataFrame | None:
    """Answers to questions whose retrieval missed: right (0 or 1), group; None while they are of fewer than MIN_MISSED groups."""
    return runs.evaluation.once("answered over misses", lambda: _over_misses(runs))


def _over_misses(runs: Runs) -> pd.DataFrame | None:
    made, measured = answers(runs), answer_measures(runs)
    if made is None or measured is None:
        return None
    name = made.json("about")["strategy"]
    first = {row["claim_id"] for row in _first_claims(runs, name).values()}
    claims = judged_claims(runs, name)
    missed = claims[claims["missed"] & claims["claim_id"].isin(first)]
    per_question = measured.frame("per_question").set_index("query_id")
    chosen = per_question.loc[
        [query for query in missed["query_id"] if query in per_question.index]
    ]
    chosen = chosen[(chosen["outcome"] == "answered") & (chosen["n_gold"] > 0)]
    groups = dict(zip(runs.gold.queries["query_id"], runs.gold.groups.tolist(), strict=True))
    seen = pd.DataFrame(
        {
            "right": (chosen["n_correct"].to_numpy() > 0).astype(np.float64),
            "group": [groups[query] for query in chosen.index],
        }
    )
    return seen if seen["group"].nunique() >= MIN_MISSED else None


def _share(runs: Runs, seen: pd.DataFrame) -> Measured:
    value, low, high = (
        float(part[0])
        for part in clustered_interval(
            seen["right"].to_numpy(), seen["group"].to_numpy(), BOOTSTRAP_SEED
        )
    )
    gold = gold_variants(runs.evaluation).json("about")["hash"][:16]
    return Measured(
        value=value,
        dataset=f"answers over missed retrievals, gold {gold}",
        n=len(seen),
        ci_low=low,
        ci_high=high,
        measured_at=dt.datetime.now(dt.UTC),
    )
