"""Promote, hold or roll back a candidate strategy, from paired values of a base and a candidate.

A candidate is rolled back when it is more than 5 % worse and the 95 % interval excludes zero.
It is promoted when the interval excludes a degradation of 5 % or more. Otherwise it is held.
"""

import dataclasses
import math
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.core.arrays import FloatArray, number
from rag_eval.measures.intervals import FEW_DIFFERING, paired_comparison
from rag_eval.measures.overlap import SharedGold, ratio_interval
from rag_eval.storage.hashing import text_hash

Action = Literal["promote", "hold", "roll_back"]
STAGES: Final = (10, 50, 100)
"""Per cent of the questions that the candidate answers in each stage of a rollout."""
MIN_QUESTIONS: Final = 30
"""Fewest independent questions for a decision."""
MAX_DEGRADATION: Final = 0.05

_HEX_DIGITS = 13  # 52 bits, because a float holds each such value exactly
_TIE = 1e-12  # smaller differences are rounding errors


def assign(question_id: str, share: float, salt: str) -> bool:
    """Tell whether the candidate answers a question while it answers `share` of all questions.

    `question_id`: Stable id or text of the question. Equal ids are assigned equally.
    `share`: From 0 to 1. A question that is assigned at 0.1 is assigned at 0.5 too.
    `salt`: Name of the rollout. Another salt gives an independent assignment.

    The first 52 bits of SHA-256 over salt, a zero byte and id, divided by 2 ** 52, are below
    `share`.

    Examples
    --------
    >>> assign("q17", 0.1, "hybrid"), assign("q17", 0.5, "hybrid")
    (False, True)
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; accepted: 0 to 1")
    return int(text_hash(f"{salt}\0{question_id}")[:_HEX_DIGITS], 16) / 16.0**_HEX_DIGITS < share


class Range(NamedTuple):
    """A value and its 95 % interval; None where it is undefined."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a candidate, with its reasons and figures.

    `reasons`: Stable code -> sentence; at least one.
    `base`, `candidate`: Means over the questions that both were scored on.
    `difference`: candidate - base. `degradation`: Relative to the base, positive is worse.
    """

    action: Action
    reasons: dict[str, str]
    n_questions: int
    n_effective: float
    base: float | None
    candidate: float | None
    difference: Range
    degradation: Range


def decide(
    base: ArrayLike,
    candidate: ArrayLike,
    gold: SharedGold,
    *,
    higher_is_better: bool = True,
) -> Decision:
    """Decide about a candidate.

    `base`, `candidate`: `[n_questions]` values of the two strategies; NaN = not scored.
    `gold`: Gold of the questions.

    The interval of the difference is that of `paired_comparison`. The interval of the relative
    degradation uses the linearised spread of the ratio of the two means.
    """
    left, right = np.asarray(base, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    paired = ~np.isnan(left) & ~np.isnan(right)
    n_unpaired = int((~np.isnan(left) & np.isnan(right)).sum())
    left, right, gold = left[paired], right[paired], gold.take(paired)
    if not len(left):
        reasons = {"too_few_questions": "no question was scored with both strategies"}
        return Decision("hold", reasons, 0, 0.0, None, None, Range(), Range())
    unit = not np.any(np.abs(right - left) > 1)
    pair = paired_comparison(right, left, gold, higher_is_better=higher_is_better, unit_range=unit)
    low, high = float(pair.ci_low[0]), float(pair.ci_high[0])
    loss = left - right if higher_is_better else right - left
    ends = (-high, -low) if higher_is_better else (low, high)
    figures = Decision(
        action="hold",
        reasons={},
        n_questions=len(left),
        n_effective=float(pair.n_effective[0]),
        base=number(left.mean()),
        candidate=number(right.mean()),
        difference=Range(*map(number, (float(pair.delta[0]), low, high))),
        degradation=_degradation(left, loss, ends, gold),
    )
    action, reasons = _judge(figures, n_unpaired, surely_worse=ends[0] > 0)
    return dataclasses.replace(figures, action=action, reasons=reasons)


def _degradation(
    base: FloatArray, loss: FloatArray, ends: tuple[float, float], gold: SharedGold
) -> Range:
    """Compute the relative degradation and its interval; undefined if the base's mean is 0.

    `loss` is how much worse the candidate is on each question, `ends` the interval of its mean.
    """
    mean = float(base.mean())
    if mean <= 0:
        return Range()
    low, high = (end / mean for end in ends)
    # Where few questions differ, the wider interval of the difference stays.
    if np.count_nonzero(np.abs(loss) > _TIE) >= FEW_DIFFERING:
        spread = ratio_interval(loss, base, gold, unit_range=False)
        low, high = float(spread.low[0]), float(spread.high[0])
    return Range(*map(number, (float(loss.mean()) / mean, low, high)))


def _judge(
    figures: Decision, n_unpaired: int, *, surely_worse: bool
) -> tuple[Action, dict[str, str]]:
    """Decide, with the reasons as code -> sentence."""
    worse = math.nan if figures.degradation.value is None else figures.degradation.value
    high = math.nan if figures.degradation.high is None else figures.degradation.high
    on = f"on {figures.n_questions} questions (worth {figures.n_effective:.0f} independent ones)"
    if figures.n_effective < MIN_QUESTIONS:
        sentence = f"fewer than {MIN_QUESTIONS} independent questions {on}"
        return "hold", {"too_few_questions": sentence}
    if surely_worse and not worse <= MAX_DEGRADATION:  # NaN if the base scores 0
        return "roll_back", {
            "degraded": f"the candidate is more than {MAX_DEGRADATION:.0%} worse {on}, and the "
            "interval excludes zero"
        }
    reasons = {}
    if math.isnan(worse):
        reasons["no_base"] = f"the base scores 0 {on}; a relative degradation is undefined"
    elif high >= MAX_DEGRADATION:
        reasons["not_excluded"] = f"a degradation of {high:.1%} is still possible {on}"
    total = n_unpaired + figures.n_questions
    if n_unpaired >= MAX_DEGRADATION * total:
        reasons["not_paired"] = f"{n_unpaired} of {total} questions were scored with the base only"
    if reasons:
        return "hold", reasons
    return "promote", {
        "not_worse": f"a degradation of {MAX_DEGRADATION:.0%} or more is excluded {on}"
    }
