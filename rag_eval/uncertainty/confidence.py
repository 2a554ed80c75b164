"""Confidence in an answer: its groundedness, discounted by the miss rate of its retrieval.

This file holds the stated miss rate (`MissRate`) and the confidence values that follow from it.
`estimator` estimates the miss rate.
"""

import dataclasses
import datetime as dt

from rag_eval.core.config import DISCOUNTING, Status, Target
from rag_eval.core.types import (
    Absent,
    Bounded,
    Confidence,
    Derived,
    Deterministic,
    Measured,
    effective,
)


@dataclasses.dataclass(frozen=True, slots=True)
class MissRate:
    """The stated probability that a retrieval missed, with its status, target, K and gold source.

    `value` is None without an estimate, and the interval is None if unknown. `gold_source` is None
    without outcomes, `measured_at` without a fit. `calibrator` is the id of the calibrator
    or of the prior, or `heuristic_v0`. It was fitted on `n_outcomes`.
    """

    value: float | None
    ci_low: float | None
    ci_high: float | None
    status: Status
    target: Target
    k: int
    gold_source: str | None
    calibrator: str
    n_outcomes: int = 0
    measured_at: dt.datetime | None = None


def retrieval_confidence(miss: MissRate) -> Confidence:
    """Compute 1 - miss rate and name the evidence for the hit rate as its input."""
    if miss.value is None:
        return Absent(reason="insufficient_data")
    hit = 1 - miss.value
    return Derived(
        value=hit, formula="1 - miss_rate", inputs={"hit_rate": _describe_evidence(miss, hit)}
    )


def _describe_evidence(miss: MissRate, hit: float) -> Confidence:
    if miss.status in {"uncalibrated", "stale"}:
        return Absent(reason="uncalibrated")
    counted = f"{miss.n_outcomes} outcomes, {miss.status}"
    if miss.ci_low is None or miss.ci_high is None:
        others = "other wordings of the question among them; no interval is known"
        basis = f"{counted}, {others}"
        return Bounded(low=0.0, high=1.0, basis=basis, citation=miss.calibrator)
    low, high = min(1 - miss.ci_high, hit), max(1 - miss.ci_low, hit)
    if miss.status == "measured" and miss.measured_at is not None:
        return Measured(
            value=hit,
            dataset=f"outcomes ({miss.gold_source}) of {miss.target}@{miss.k}",
            n=miss.n_outcomes,
            ci_low=low,
            ci_high=high,
            measured_at=miss.measured_at,
        )
    if miss.status == "prior":
        counted = "shipped prior coefficients, no outcomes of this strategy"
    return Bounded(low=low, high=high, basis=counted, citation=miss.calibrator)


def groundedness_confidence(groundedness: float | None) -> Confidence:
    """Compute the synthesis confidence of a deterministic answer: the mean groundedness.

    `groundedness` is the mean over the answer's sentences. It is None for an answer without
    sentences, and then the confidence is absent.
    """
    if groundedness is None:
        return Absent(reason="not_applicable")
    counted = Deterministic(
        value=groundedness,
        reason=(
            "counted: idf-weighted share of each sentence's words found in the evidence, "
            "mean over sentences"
        ),
    )
    formula = "mean groundedness of the answer's sentences"
    return Derived(value=groundedness, formula=formula, inputs={"groundedness": counted})


def reported_confidence(reported: float | None, system: str) -> Confidence:
    """Give the synthesis confidence that a model or recorded system reported; absent without it."""
    if reported is None:
        return Absent(reason="insufficient_data")
    basis = "reported by the system that answered, not checked here"
    stated = Bounded(low=0.0, high=reported, basis=basis, citation=system)
    return Derived(value=reported, formula="as reported by the system", inputs={"reported": stated})


def final_confidence(synthesis: Confidence, miss: MissRate) -> Derived:
    """Compute the conservative figure synthesis_confidence * (1 - miss_rate) for every answer.

    Act on `calibrated_confidence` instead: this figure also exists for uncalibrated miss rates.
    """
    retrieval = retrieval_confidence(miss)
    return Derived(
        value=effective(synthesis) * effective(retrieval),
        formula="synthesis_confidence * (1 - miss_rate)",
        inputs={"synthesis_confidence": synthesis, "retrieval_confidence": retrieval},
    )


def calibrated_confidence(
    synthesis: Confidence, miss: MissRate, right_when_missed: Measured | None = None
) -> Confidence:
    """Compute the confidence to act on; it is absent until the miss rate is at least provisional.

    `right_when_missed` is c0, the measured share of right answers among questions whose retrieval
    missed. With c0 the confidence is c (1 - m) + c0 m. Here c is `synthesis`, the confidence in the
    answer given its evidence, and m is the miss rate.
    """
    if miss.value is None or miss.status not in DISCOUNTING:
        return Absent(reason="uncalibrated")
    if isinstance(synthesis, Absent):
        return synthesis
    final = final_confidence(synthesis, miss)
    if right_when_missed is None:
        return final
    missed = 1 - effective(final.inputs["retrieval_confidence"])
    return Derived(
        value=min(final.value + right_when_missed.value * missed, 1.0),
        formula=f"{final.formula} + right_when_missed * miss_rate",
        inputs={**final.inputs, "right_when_missed": right_when_missed},
    )
