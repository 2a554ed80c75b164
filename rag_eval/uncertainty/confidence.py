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

    Parameters
    ----------
    value
        Probability in [0, 1]; None if there is no estimate.
    ci_low, ci_high
        95 % interval; None if it is unknown.
    status, target, k
        Status of the figure, and the target and K that it describes.
    gold_source
        Sources of the outcomes behind the figure; None if there are no outcomes.
    calibrator
        Id of the calibrator, of the prior, or `heuristic_v0`.
    n_outcomes
        Number of outcomes that the calibrator was fitted on.
    measured_at
        Time of the fit; None if nothing was fitted.
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

    @property
    def discounts(self) -> bool:
        """Whether the status permits to discount an answer's confidence by this miss rate."""
        return self.value is not None and self.status in DISCOUNTING


def retrieval_confidence(miss: MissRate) -> Confidence:
    """Compute 1 - miss rate and name the evidence for the hit rate as its input."""
    if miss.value is None:
        return Absent(reason="insufficient_data")
    return Derived(
        value=1 - miss.value,
        formula="1 - miss_rate",
        inputs={"hit_rate": _behind(miss, miss.value)},
    )


def _behind(miss: MissRate, value: float) -> Confidence:
    if miss.status in {"uncalibrated", "stale"}:
        return Absent(reason="uncalibrated")
    if miss.ci_low is None or miss.ci_high is None:
        return Bounded(
            low=0.0,
            high=1.0,
            basis=(
                f"{miss.n_outcomes} outcomes, {miss.status}, other wordings of the question among "
                "them; no interval is known"
            ),
            citation=miss.calibrator,
        )
    low, high = min(1 - miss.ci_high, 1 - value), max(1 - miss.ci_low, 1 - value)
    if miss.status == "measured" and miss.measured_at is not None:
        return Measured(
            value=1 - value,
            dataset=f"outcomes ({miss.gold_source}) of {miss.target}@{miss.k}",
            n=miss.n_outcomes,
            ci_low=low,
            ci_high=high,
            measured_at=miss.measured_at,
        )
    basis = (
        "shipped prior coefficients, no outcomes of this strategy"
        if miss.status == "prior"
        else f"{miss.n_outcomes} outcomes, {miss.status}"
    )
    return Bounded(low=low, high=high, basis=basis, citation=miss.calibrator)


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
    return Derived(
        value=groundedness,
        formula="mean groundedness of the answer's sentences",
        inputs={"groundedness": counted},
    )


def reported_confidence(reported: float | None, system: str) -> Confidence:
    """Give the synthesis confidence that a model or recorded system reported; absent without it."""
    if reported is None:
        return Absent(reason="insufficient_data")
    stated = Bounded(
        low=0.0,
        high=reported,
        basis="reported by the system that answered, not checked here",
        citation=system,
    )
    return Derived(value=reported, formula="as reported by the system", inputs={"reported": stated})


def final_confidence(synthesis: Confidence, miss: MissRate) -> Derived:
    """Compute the conservative figure synthesis_confidence * (1 - miss_rate) for every answer.

    Act on `calibrated_confidence` instead: this figure also exists for uncalibrated miss rates.
    """
    retrieval = retrieval_confidence(miss)
    inputs = {"synthesis_confidence": synthesis, "retrieval_confidence": retrieval}
    return Derived(
        value=effective(synthesis) * effective(retrieval),
        formula="synthesis_confidence * (1 - miss_rate)",
        inputs=inputs,
    )


def calibrated_confidence(
    synthesis: Confidence, miss: MissRate, right_when_missed: Measured | None = None
) -> Confidence:
    """Compute the confidence to act on; it is absent until the miss rate is at least provisional.

    Parameters
    ----------
    synthesis
        Confidence in the answer given its evidence.
    miss
        The miss rate of the retrieval.
    right_when_missed
        c0, the measured share of right answers among questions whose retrieval missed. With it the
        confidence is c (1 - m) + c0 m, where c is `synthesis` and m the miss rate.
    """
    if not miss.discounts or isinstance(synthesis, Absent):
        return Absent(
            reason="uncalibrated"
            if not miss.discounts
            else synthesis.reason
            if isinstance(synthesis, Absent)
            else "uncalibrated"
        )
    retrieval = retrieval_confidence(miss)
    found = effective(synthesis) * effective(retrieval)
    inputs = {"synthesis_confidence": synthesis, "retrieval_confidence": retrieval}
    if right_when_missed is None:
        return Derived(value=found, formula="synthesis_confidence * (1 - miss_rate)", inputs=inputs)
    value = min(found + right_when_missed.value * (1 - effective(retrieval)), 1.0)
    return Derived(
        value=value,
        formula="synthesis_confidence * (1 - miss_rate) + right_when_missed * miss_rate",
        inputs={**inputs, "right_when_missed": right_when_missed},
    )
