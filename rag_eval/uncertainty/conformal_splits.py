"""What a conformal K covers, estimated on groups that did not calibrate it: repeated random splits of the groups.

Belongs here: judged questions, the K that each method gives them from calibration groups, and the repeated splits. What is said of the
result is `conformal_report`.
"""

import dataclasses
from typing import Literal

import numpy as np

from rag_eval.uncertainty.conformal import BoolArray, FloatArray, IntArray, check, fixed_k, recall_k
from rag_eval.uncertainty.conformal_risk import (
    FIT_SHARE,
    RiskScale,
    adaptive_factor,
    bin_depths,
    depths,
    fit_exponent,
    thirds,
)

Method = Literal["fixed", "recall", "adaptive", "mondrian"]
"""One K for the share of questions with gold; one K for expected recall; K by predicted risk; one K for each third of predicted risk."""
BY_RISK: tuple[Method, ...] = ("adaptive", "mondrian")
"""Methods that look at questions whose risk is known, and at no others."""
TEST_SHARE = 1 / 3
"""Share of the groups that a split holds out."""


@dataclasses.dataclass(frozen=True)
class Questions:
    """n judged questions of one strategy.

    Parameters
    ----------
    rank
        float64 [n] rank of the first gold, from 1; inf where the list of `depth` has none.
    group
        int64 [n] unit of inference.
    depth
        Length of the lists.
    risk
        float64 [n] predicted miss probability, from models that did not see the question's group, NaN where none is known; None where there is none at all.
    gold_rank, gold_question
        float64 and int64 [m]: rank of every gold item (inf = not in the list) and the index of its question; None where not known.
    """

    rank: FloatArray
    group: IntArray
    depth: int
    risk: FloatArray | None = None
    gold_rank: FloatArray | None = None
    gold_question: IntArray | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        check(self.rank, self.group, self.depth)
        if self.risk is not None and (
            self.risk.shape != self.rank.shape
            or not (np.isnan(self.risk) | ((self.risk >= 0) & (self.risk <= 1))).all()
        ):
            raise ValueError("risk must be one probability in [0, 1] a question, or NaN")
        if (self.gold_rank is None) != (self.gold_question is None):
            raise ValueError("gold_rank and gold_question go together")
        if self.gold_rank is not None and self.gold_question is not None:
            if len(self.gold_rank) != len(self.gold_question) or (
                len(self.gold_question)
                and not 0 <= self.gold_question.min() <= self.gold_question.max() < len(self.rank)
            ):
                raise ValueError(
                    "gold_question must name a question, 0 to n - 1, for every gold rank"
                )
            check(self.gold_rank, self.group[self.gold_question], self.depth)

    def methods(self) -> tuple[Method, ...]:
        """Name the methods that there is data for."""
        recall: tuple[Method, ...] = ("recall",) if self.gold_rank is not None else ()
        by_risk = BY_RISK if self.risk is not None and not np.isnan(self.risk).all() else ()
        return ("fixed", *recall, *by_risk)

    def with_risk(self) -> "Questions":
        """Keep the questions whose risk is known, without the ranks of their gold items where any is left out: methods by risk need none."""
        known = np.zeros(len(self.rank), dtype=bool) if self.risk is None else ~np.isnan(self.risk)
        return (
            self
            if known.all()
            else Questions(
                self.rank[known],
                self.group[known],
                self.depth,
                None if self.risk is None else self.risk[known],
            )
        )

    def covered(self, method: Method, k: FloatArray) -> FloatArray:
        """Whether gold stands in the top K of each question (its recall@K for `recall`), [n]; 0 where K is inf: not attainable."""
        attained = np.isfinite(k)
        if method != "recall" or self.gold_rank is None or self.gold_question is None:
            return ((self.rank <= k) & attained).astype(np.float64)
        found = ((self.gold_rank <= k[self.gold_question]) & attained[self.gold_question]).astype(
            np.float64
        )
        items = np.bincount(self.gold_question, minlength=len(self.rank))
        share: FloatArray = np.bincount(
            self.gold_question, found, minlength=len(self.rank)
        ) / np.where(items == 0, np.nan, items)
        return share


@dataclasses.dataclass(frozen=True)
class Part:
    """Which groups fit the exponent and which calibrate; [n] masks over questions. Methods without an exponent calibrate on both."""

    fit: BoolArray
    calibrate: BoolArray


def divide(group: IntArray, test_share: float, rng: np.random.Generator) -> Part:
    """Draw groups: `test_share` of them held out (in neither mask), `FIT_SHARE` of the others to fit, the rest to calibrate."""
    codes, at = np.unique(group, return_inverse=True)
    place = rng.permutation(len(codes))[at]
    n_test = round(test_share * len(codes))
    n_fit = round(FIT_SHARE * (len(codes) - n_test))
    return Part((place >= n_test) & (place < n_test + n_fit), place >= n_test + n_fit)


@dataclasses.dataclass(frozen=True)
class Rule:
    """How deep the list of a question is, calibrated: one K, K by bin, or K by risk; inf = not attainable.

    Parameters
    ----------
    k
        float64: [1] for one K, [BINS] for bins of risk, [1] the factor of the scale for `adaptive`.
    scale
        Of the methods that use the risk.
    """

    method: Method
    k: FloatArray
    scale: RiskScale

    def depths(self, questions: Questions) -> FloatArray:
        """K of every question, [n]."""
        if self.method == "mondrian" and questions.risk is not None:
            return np.asarray(self.k[self.scale.bin(questions.risk)])
        if self.method == "adaptive" and questions.risk is not None:
            q = float(self.k[0])
            return (
                depths(q, self.scale.scale(questions.risk), questions.depth)
                if np.isfinite(q)
                else np.full(len(questions.rank), np.inf)
            )
        return np.full(len(questions.rank), self.k[0])


def calibrated(
    questions: Questions, part: Part, method: Method, level: float, scale: RiskScale
) -> Rule:
    """Calibrate one method at one level on the groups of `part`."""
    use = part.calibrate if method == "adaptive" else part.calibrate | part.fit
    rank, group = questions.rank[use], questions.group[use]
    if method == "adaptive" and questions.risk is not None:
        return Rule(
            method,
            np.array([adaptive_factor(rank, questions.risk[use], group, scale, level)]),
            scale,
        )
    if method == "mondrian" and questions.risk is not None:
        return Rule(method, bin_depths(rank, group, scale.bin(questions.risk[use]), level), scale)
    if (
        method == "recall"
        and questions.gold_rank is not None
        and questions.gold_question is not None
    ):
        mine = use[questions.gold_question]
        k = recall_k(
            questions.gold_rank[mine],
            (np.cumsum(use) - 1)[questions.gold_question[mine]],
            group,
            questions.depth,
            level,
        )
    else:
        k = fixed_k(rank, group, questions.depth, level)
    return Rule(method, np.array([np.inf if k is None else float(k)]), scale)


def fitted(questions: Questions, part: Part) -> RiskScale:
    """Fit the exponent on the groups of `part` that fit; bins are the thirds of all predicted risks, which no outcome decides. Unknown risks decide nothing."""
    if questions.risk is None:
        return RiskScale(0.0, ())
    known = ~np.isnan(questions.risk)
    fit = part.fit & known
    return RiskScale(
        fit_exponent(questions.rank[fit], questions.risk[fit], questions.depth),
        thirds(questions.risk[known]),
    )


@dataclasses.dataclass(frozen=True)
class SplitFigures:
    """What one method at one level did over all splits.

    Parameters
    ----------
    covered
        float64 [n] mean over the splits that held the question out; NaN where none did.
    mean_k
        Mean K over held-out questions and splits in which it was attainable; NaN where never.
    unattainable
        Share of held-out questions (over all splits) whose K lay beyond the depth; they count as not covered.
    """

    covered: FloatArray
    mean_k: float
    unattainable: float


def over_splits(
    questions: Questions,
    levels: tuple[float, ...],
    splits: int,
    seed: int,
    methods: tuple[Method, ...] | None = None,
) -> dict[tuple[Method, float], SplitFigures]:
    """Calibrate on random groups and look at the others, `splits` times; every method (None: all that there is data for) and level sees the same splits."""
    rng, n = np.random.default_rng(seed), len(questions.rank)
    keys = [
        (method, level)
        for method in (questions.methods() if methods is None else methods)
        for level in levels
    ]
    covered, deep, attained = (np.zeros((len(keys), n)) for _ in range(3))
    tested = np.zeros(n)
    by_risk = any(method in BY_RISK for method, _ in keys)
    for _ in range(splits):
        part = divide(questions.group, TEST_SHARE, rng)
        test = ~(part.fit | part.calibrate)
        scale = fitted(questions, part) if by_risk else RiskScale(0.0, ())
        tested += test
        for row, (method, level) in enumerate(keys):
            k = calibrated(questions, part, method, level, scale).depths(questions)
            finite = np.isfinite(k) & test
            covered[row] += np.where(test, questions.covered(method, k), 0.0)
            deep[row] += np.where(finite, k, 0.0)
            attained[row] += finite
    shares = covered / np.where(tested == 0, np.nan, tested)
    total = tested.sum()
    return {
        key: SplitFigures(
            shares[row],
            float(deep[row].sum() / attained[row].sum()) if attained[row].any() else float("nan"),
            float(1 - attained[row].sum() / total) if total else float("nan"),
        )
        for row, key in enumerate(keys)
    }
