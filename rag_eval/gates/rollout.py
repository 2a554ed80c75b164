"""Promote, hold or roll back a candidate strategy, from paired values of a base and a candidate.

A candidate is rolled back when it is more than 5 % worse and the 95 % interval excludes zero.
It is promoted when the interval excludes a degradation of 5 % or more. Otherwise it is held,
with the number of independent questions that would decide.
"""

import dataclasses
import math
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.core.arrays import FloatArray
from rag_eval.core.records import number
from rag_eval.measures.overlap import SharedGold, mean_interval, ratio_interval
from rag_eval.measures.paired import FEW_DIFFERING, paired_comparison
from rag_eval.storage.hashing import text_hash

Action = Literal["promote", "hold", "roll_back"]
STAGES: Final = (10, 50, 100)
"""Per cent of the questions that the candidate answers in each stage of a rollout."""
MIN_QUESTIONS: Final = 30
"""Fewest independent questions for a decision."""
MAX_DEGRADATION: Final = 0.05
POWER: Final = 0.8

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


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a candidate, with its reasons and figures.

    `reasons`: Stable code -> sentence; at least one.
    `questions_needed`: Independent questions for a decision with 80 % power, if the difference
      stays the same. None if the action is a decision, or if the number is unknown.
    `figures`: n_questions, n_effective, n_unpaired, n_better, n_worse, n_tied; base, candidate
      (means) with _low and _high; difference (candidate - base), degradation (relative, positive
      is worse), each with _low and _high. None where a figure cannot be computed.
    """

    action: Action
    reasons: dict[str, str]
    questions_needed: int | None
    figures: dict[str, float | int | None]


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
    figures: dict[str, float | int | None] = {
        "n_questions": len(left),
        "n_effective": 0.0,
        "n_unpaired": n_unpaired,
    }
    if not len(left):
        reasons = {"too_few_questions": "no question was scored with both strategies"}
        return Decision("hold", reasons, None, figures)
    unit = not np.any(np.abs(right - left) > 1)
    found = paired_comparison(right, left, gold, higher_is_better=higher_is_better, unit_range=unit)
    n_effective = float(found.n_effective[0])
    figures |= {name: int(getattr(found, name)[0]) for name in ("n_better", "n_worse", "n_tied")}
    figures["n_effective"] = number(n_effective)
    both = np.stack([left, right], axis=1)
    mean = mean_interval(both, gold, unit_range=bool(((both >= 0) & (both <= 1)).all()))
    ends = float(found.ci_low[0]), float(found.ci_high[0])
    loss = left - right if higher_is_better else right - left
    loss_ends = (-ends[1], -ends[0]) if higher_is_better else ends
    degradation = _degradation(left, loss, loss_ends, gold)
    for name, triple in (
        ("base", (mean.value[0], mean.low[0], mean.high[0])),
        ("candidate", (mean.value[1], mean.low[1], mean.high[1])),
        ("difference", (found.delta[0], *ends)),
        ("degradation", degradation),
    ):
        for end, value in zip(("", "_low", "_high"), triple, strict=True):
            figures[f"{name}{end}"] = number(value)
    action, reasons = _judge(figures, degradation, surely_worse=loss_ends[0] > 0)
    needed = _questions_needed(degradation, n_effective) if action == "hold" else None
    return Decision(action, reasons, needed, figures)


def _degradation(
    base: FloatArray,
    loss: FloatArray,
    ends: tuple[float, float],
    gold: SharedGold,
) -> tuple[float, float, float]:
    """Compute the relative degradation and its interval; NaN if the base's mean is not positive.

    `loss` is how much worse the candidate is on each question, `ends` the interval of its mean.
    """
    mean = float(base.mean())
    if mean <= 0:
        return math.nan, math.nan, math.nan
    worse = float(loss.mean()) / mean
    low, high = (end / mean for end in ends)
    # Where few questions differ, the wider interval of the difference stays.
    if np.count_nonzero(np.abs(loss) > _TIE) >= FEW_DIFFERING:
        spread = ratio_interval(loss, base, gold, unit_range=False)
        low, high = float(spread.low[0]), float(spread.high[0])
    # Twelve significant digits, so that rounding errors change no bound and no byte.
    worse, low, high = (float(f"{value:.12g}") for value in (worse, low, high))
    return worse, low, high


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _judge(
    figures: dict[str, float | int | None],
    degradation: tuple[float, float, float],
    *,
    surely_worse: bool,
) -> tuple[Action, dict[str, str]]:
    """Decide, with the reasons as code -> sentence."""
    worse, _, high = degradation
    questions, unpaired = (int(figures[name] or 0) for name in ("n_questions", "n_unpaired"))
    n = figures["n_effective"] or 0.0
    seen = f"on {questions} questions (worth {n:.0f} independent ones)"
    value, *bounds = map(_percent, degradation)
    shown = f"{value} [{', '.join(bounds)}]"
    if n < MIN_QUESTIONS:
        sentence = f"{n:.0f} independent questions are too few; at least {MIN_QUESTIONS} are needed"
        return "hold", {"too_few_questions": sentence}
    if surely_worse and not worse <= MAX_DEGRADATION:  # NaN if the base scores 0
        by = f"by {shown}, more than {_percent(MAX_DEGRADATION)}"
        if math.isnan(worse):
            by = f"the base scores {figures['base']:g}"
        sentence = f"the candidate is worse {seen}: {by}; the interval excludes zero"
        return "roll_back", {"degraded": sentence}
    reasons = {}
    if math.isnan(worse):
        reasons["no_base"] = (
            f"the base scores {figures['base']:g} {seen}; a relative degradation is undefined"
        )
    elif high >= MAX_DEGRADATION:
        reasons["not_excluded"] = (
            f"a degradation of {_percent(high)} is still possible {seen}: {shown}, "
            "positive is worse"
        )
    total = unpaired + questions
    if unpaired and unpaired >= MAX_DEGRADATION * total:
        reasons["not_paired"] = f"{unpaired} of {total} questions were scored with the base only"
    if reasons:
        return "hold", reasons
    bound = _percent(MAX_DEGRADATION)
    sentence = f"a degradation of {bound} or more is excluded {seen}: {shown}, positive is worse"
    return "promote", {"not_worse": sentence}


def _questions_needed(degradation: tuple[float, float, float], n_effective: float) -> int | None:
    """Count the independent questions that would decide if the degradation stays the same.

    With power 0.8 of a two-sided test at 5 %, n = ((z[0.975] + z[0.8]) * spread / difference) ** 2
    + z[0.975] ** 2 / 2, where `spread` is the standard deviation of the difference; the last part
    is for the t distribution.

    References
    ----------
    Guenther (1981), Sample size formulas for normal theory t tests, The American Statistician 35.
    """
    from scipy.special import ndtri, stdtrit

    worse, low, high = degradation
    if n_effective <= 1 or not math.isfinite(high - low):
        return None
    spread = (high - low) / 2 / float(stdtrit(n_effective - 1, 0.975)) * math.sqrt(n_effective)
    difference = worse if worse > MAX_DEGRADATION else MAX_DEGRADATION - max(worse, 0.0)
    if difference <= _TIE:
        return None
    z, power = (float(ndtri(share)) for share in (0.975, POWER))
    n = math.ceil(((z + power) * spread / difference) ** 2 + z**2 / 2)
    needed = max(n, MIN_QUESTIONS)
    return needed if needed > n_effective else None
