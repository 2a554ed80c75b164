"""Promote, hold or roll back: what paired outcomes of the current strategy and a candidate allow.

Belongs here: the decision and its reasons. Which questions are asked is `rollout_assignment`, how many are needed `rollout_size`.

A candidate is rolled back when it is more than 5 % worse and the 95 % interval of the difference excludes zero. It is promoted when enough
independent questions were seen and the interval excludes a degradation of 5 % or more: not being shown to be worse is not enough.
"""

import dataclasses
import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.gates.rollout_size import SEED, questions_needed
from rag_eval.measures.arrays import FloatArray, IntArray, as_codes
from rag_eval.measures.intervals import RESAMPLES, clustered_interval
from rag_eval.measures.paired import FEW_DIFFERING, PairedComparison, paired_comparison

Action = Literal["promote", "hold", "roll_back"]
MIN_GROUPS = 30
"""Independent questions under which nothing is decided, however bad they look."""

_TIE = 1e-12  # differences of this size are rounding


class Reason(NamedTuple):
    """Stable machine name, and one sentence with the figures."""

    code: str
    sentence: str


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """When a candidate goes and when it comes back.

    Parameters
    ----------
    max_degradation
        Share of the current strategy's mean that the candidate may be worse by.
    min_groups
        Fewer independent questions decide nothing.
    higher_is_better
        Whether the measure improves as it rises.
    power
        With which it is said how many more questions would do.
    """

    max_degradation: float = 0.05
    min_groups: int = MIN_GROUPS
    higher_is_better: bool = True
    power: float = 0.8


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What follows from the evidence.

    Parameters
    ----------
    action
        promote, hold or roll_back.
    reasons
        Why; at least one.
    figures
        n_questions, n_groups, n_new_groups, needed, n_unpaired, n_better, n_worse, n_tied; current, candidate (means) with _low and
        _high; difference, ci_low,
        ci_high (candidate - current); degradation, degradation_low, degradation_high (relative, positive is worse). None = cannot be said.
    """

    action: Action
    reasons: tuple[Reason, ...]
    figures: dict[str, float | int | None]


def decide(
    current: ArrayLike,
    candidate: ArrayLike,
    groups: ArrayLike,
    needed: int,
    rule: Rule | None = None,
    *,
    fresh: ArrayLike | None = None,
    resamples: int = RESAMPLES,
) -> Decision:
    """Decide about a candidate from the questions that it answers at the present stage.

    Parameters
    ----------
    current, candidate
        `[n_questions]` values of the two strategies; NaN = not scored.
    groups
        `[n_questions]` group code of each question: the unit of inference.
    needed
        Independent questions that must have been seen before the candidate is promoted.
    rule
        Default: `Rule()`.
    fresh
        `[n_questions]` which questions are new at this stage and so count towards `needed`; default: all. A question that promoted the
        candidate once cannot do so again; the interval rests on all of them.
    resamples
        Of the bootstrap.

    Raises
    ------
    ValueError
        Shapes that do not fit.

    Notes
    -----
    The interval of the difference is that of `paired_comparison`. That of the relative degradation is the same, with the spread of the
    ratio of the two means (linearised, as of a ratio estimator) instead of that of their difference.
    """
    rule = rule or Rule()
    left, right, codes = (
        np.asarray(current, dtype=np.float64),
        np.asarray(candidate, dtype=np.float64),
        as_codes(groups, "groups"),
    )
    new = np.ones(len(left), dtype=bool) if fresh is None else np.asarray(fresh, dtype=bool)
    if not left.shape == right.shape == codes.shape == new.shape:
        raise ValueError(
            f"current has shape {left.shape}, candidate {right.shape}, groups {codes.shape}, fresh {new.shape}; accepted: the same questions in all"
        )
    paired = ~np.isnan(left) & ~np.isnan(right)
    n_unpaired = int((~np.isnan(left) & np.isnan(right)).sum())
    left, right, codes, new = left[paired], right[paired], codes[paired], new[paired]
    figures: dict[str, float | int | None] = {
        "n_questions": len(left),
        "n_groups": len(np.unique(codes)),
        "n_new_groups": len(np.unique(codes[new])),
        "needed": needed,
        "n_unpaired": n_unpaired,
    }
    if not len(left):
        return Decision(
            "hold",
            (
                Reason(
                    "too_few_questions",
                    f"no question was scored with both strategies; {rule.min_groups} independent ones decide something, {needed} may promote",
                ),
            ),
            figures,
        )
    found = paired_comparison(
        right,
        left,
        codes,
        SEED,
        flips=1,
        resamples=resamples,
        higher_is_better=rule.higher_is_better,
        unit_range=not np.any(np.abs(right - left) > 1),
    )
    worse, low, high = _degradation((left, right), codes, found, rule, resamples)
    both = np.stack([left, right], axis=1)
    mean = clustered_interval(
        both, codes, SEED, resamples, unit_range=bool(((both >= 0) & (both <= 1)).all())
    )
    figures |= {
        "n_better": int(found.n_better[0]),
        "n_worse": int(found.n_worse[0]),
        "n_tied": int(found.n_tied[0]),
        **{
            f"{name}{end}": _number(part[at])
            for at, name in enumerate(("current", "candidate"))
            for end, part in (("", mean.value), ("_low", mean.low), ("_high", mean.high))
        },
        "difference": _number(found.delta[0]),
        "ci_low": _number(found.ci_low[0]),
        "ci_high": _number(found.ci_high[0]),
        "degradation": _number(worse),
        "degradation_low": _number(low),
        "degradation_high": _number(high),
    }
    return _judge(figures, rule)


def _degradation(
    values: tuple[FloatArray, FloatArray],
    groups: IntArray,
    found: PairedComparison,
    rule: Rule,
    resamples: int,
) -> tuple[float, float, float]:
    """Relative degradation and its interval; NaN where the current mean is not positive."""
    current, candidate = values
    base = float(current.mean())
    if base <= 0:
        return math.nan, math.nan, math.nan
    loss = current - candidate if rule.higher_is_better else candidate - current
    worse = float(loss.mean()) / base
    sums = np.bincount(
        np.unique(groups, return_inverse=True)[1], weights=np.where(np.abs(loss) <= _TIE, 0.0, loss)
    )
    if (
        np.count_nonzero(np.abs(sums) > _TIE) < FEW_DIFFERING
    ):  # too few to resample: the interval of the difference knows what to do about it
        ends = -found.ci_high[0] / base, -found.ci_low[0] / base
        low, high = ends if rule.higher_is_better else (-ends[1], -ends[0])
        return worse, float(low), float(high)
    spread = paired_comparison(
        (loss - worse * current) / base,
        np.zeros_like(loss),
        groups,
        SEED,
        flips=1,
        resamples=resamples,
        unit_range=False,
    )
    return worse, worse + float(spread.ci_low[0]), worse + float(spread.ci_high[0])


def _number(value: float) -> float | None:
    """Twelve significant digits, so that equal inputs give equal bytes; None for NaN."""
    return float(f"{float(value):.12g}") if math.isfinite(value) else None


def _judge(figures: dict[str, float | int | None], rule: Rule) -> Decision:
    n, new, needed, unpaired = (
        int(figures[name] or 0) for name in ("n_groups", "n_new_groups", "needed", "n_unpaired")
    )
    questions, worse, low, high = (
        figures[name]
        for name in ("n_questions", "degradation", "degradation_low", "degradation_high")
    )
    seen = f"on {questions} questions ({n} independent)"
    if n < rule.min_groups:
        return Decision(
            "hold",
            (
                Reason(
                    "too_few_questions",
                    f"{n} independent questions decide nothing; {rule.min_groups} decide something, {needed} may promote",
                ),
            ),
            figures,
        )
    sure = _excludes_zero(figures, rule)
    if sure and (worse is None or worse > rule.max_degradation):
        told = (
            f"by {_percent(worse)} [{_percent(low)}, {_percent(high)}]"
            if worse is not None
            else f"where the current strategy scores {figures['current']:g}"
        )
        return Decision(
            "roll_back",
            (
                Reason(
                    "degraded",
                    f"the candidate is worse {told} {seen}: more than {_percent(rule.max_degradation)}, and the interval excludes zero",
                ),
            ),
            figures,
        )
    reasons = []
    if worse is None or low is None or high is None:
        reasons.append(
            Reason(
                "no_base",
                f"the current strategy scores {figures['current']:g} {seen}: a relative degradation cannot be said, a person must decide",
            )
        )
    elif high >= rule.max_degradation:
        reasons.append(
            Reason(
                "not_excluded",
                f"the interval {seen} still allows a degradation of {_percent(high)} (seen: {_percent(worse)}){_more(worse, low, high, n, rule)}",
            )
        )
    if new < needed:
        reasons.append(
            Reason(
                "more_questions",
                f"{new} of {needed} independent questions that are new at this stage were seen; {needed - new} more are needed",
            )
        )
    if unpaired and unpaired >= rule.max_degradation * (unpaired + int(questions or 0)):
        reasons.append(
            Reason(
                "not_paired",
                f"{unpaired} of {unpaired + int(questions or 0)} questions were scored with the current strategy only: those could all be lost",
            )
        )
    if reasons:
        return Decision("hold", tuple(reasons), figures)
    return Decision(
        "promote",
        (
            Reason(
                "not_worse",
                f"the interval {seen} excludes a degradation of {_percent(rule.max_degradation)}: {_percent(worse)} [{_percent(low)}, {_percent(high)}], positive is worse",
            ),
            Reason(
                "enough_questions",
                f"{new} of {needed} independent questions that are new at this stage were seen",
            ),
        ),
        figures,
    )


def _excludes_zero(figures: dict[str, float | int | None], rule: Rule) -> bool:
    """Tell whether the interval of the difference lies wholly on the bad side of zero."""
    low, high = figures["ci_low"], figures["ci_high"]
    return low is not None and high is not None and (high < 0 if rule.higher_is_better else low > 0)


def _more(worse: float, low: float, high: float, n: int, rule: Rule) -> str:
    """Say how many more questions would exclude the degradation, if what was seen is how it is."""
    from scipy.stats import t

    room = rule.max_degradation - max(worse, 0.0)
    spread = (high - low) / 2 / float(t.ppf(0.975, n - 1)) * math.sqrt(n)
    if room <= 0:
        return ""
    more = questions_needed(spread, room, rule.power) - n
    return (
        f"; about {more} more independent questions would exclude it with {rule.power * 100:.0f} % power if it is as seen"
        if more > 0
        else ""
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"
