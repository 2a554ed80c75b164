"""Conformal K with everything that must stand beside it: coverage on held-out groups, the riskiest third, what is not attainable.

Belongs here: the result, its JSON and its sentence. How K is found is `conformal` and `conformal_risk`.
"""

import dataclasses
from typing import Any

import numpy as np

from rag_eval.uncertainty.conformal import FloatArray, IntArray
from rag_eval.uncertainty.conformal_risk import BINS
from rag_eval.uncertainty.conformal_splits import (
    BY_RISK,
    Method,
    Questions,
    Rule,
    SplitFigures,
    calibrated,
    divide,
    fitted,
    over_splits,
)
from rag_eval.uncertainty.figures import Figure, finite, mean_figure

LEVELS = (0.8, 0.9, 0.95)
SPLITS = 200
CURVE_AT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Predicted risks at which the K of the adaptive rule is written down."""


@dataclasses.dataclass(frozen=True)
class RiskBin:
    """K of one third of predicted risk, and what it covers there on held-out groups; `risk_low` <= risk < `risk_high`."""

    risk_low: float
    risk_high: float
    k: int | None
    coverage: Figure


@dataclasses.dataclass(frozen=True)
class ConformalK:
    """One conformal rule at one level.

    Parameters
    ----------
    method, level
        What was asked for.
    k
        The one K of `fixed` and `recall`; None where it is not attainable within `depth`, and for the other methods.
    depth
        Length of the lists that were looked at.
    exponent, factor
        Of the adaptive rule K(r) = 1 + floor(factor * odds(r) ** exponent), at most `depth`; None for other methods and where not attainable.
    curve
        (predicted risk, K) pairs of the adaptive rule.
    bins
        K by third of predicted risk, for `mondrian`.
    mean_k
        Mean K of the rule over the questions; None where not attainable.
    mean_k_held_out, coverage, riskiest, share_unattainable
        On held-out groups over `splits` random splits: mean K, share of questions covered (expected recall for `recall`), the same in the
        riskiest third of predicted risk (of the questions whose risk is known), and the share whose K lay beyond the depth, which count as not covered.
    coverage_by_group
        The coverage when every group counts once instead of every question.
    within_depth
        Share of questions with any gold within the depth, for `recall` the mean recall of the whole lists: no K can cover more.
    n, n_groups, splits
        Questions (of the methods by risk: those whose risk is known), groups, splits.
    """

    method: Method
    level: float
    k: int | None
    depth: int
    exponent: float | None
    factor: float | None
    curve: tuple[tuple[float, int], ...]
    bins: tuple[RiskBin, ...]
    mean_k: float | None
    mean_k_held_out: float | None
    coverage: Figure
    coverage_by_group: float | None
    riskiest: Figure | None
    share_unattainable: float | None
    within_depth: float | None
    n: int
    n_groups: int
    splits: int

    @property
    def attainable(self) -> bool:
        """Whether every K of the rule lies within the depth."""
        return (
            self.k is not None
            or self.factor is not None
            or (bool(self.bins) and all(part.k is not None for part in self.bins))
        )

    @property
    def text(self) -> str:
        """The sentence that goes with the number."""
        basis = f"an average over questions like these {self.n:,} ({self.n_groups:,} independent groups), for this strategy fingerprint and this gold; it promises nothing for a single question"
        if not self.attainable:
            most = (
                "is the mean recall of whole lists"
                if self.method == "recall"
                else "of the questions have gold anywhere in them"
            )
            held = "" if self.within_depth is None else f" ({self.within_depth:.1%} {most})"
            where = (
                " in every third of predicted risk"
                if self.bins and any(part.k is not None for part in self.bins)
                else ""
            )
            return f"A level of {self.level:.0%} is not attainable{where} within lists of {self.depth:,}{held}: {basis}."
        was = "was" if self.method == "recall" else "held for"
        risky = (
            ""
            if self.riskiest is None or self.riskiest.value is None
            else f"; in the riskiest third of the questions it {was} {self.riskiest.value:.1%}"
        )
        return f"{self._rule()}: {basis}{risky}."

    def _rule(self) -> str:
        share = f"at least {self.level:.0%} of new questions are expected to have gold"
        if self.method == "recall":
            return f"With K = {self.k:,} the expected recall@K is at least {self.level:.0%}"
        if self.method == "adaptive":
            return f"With K by predicted risk (mean {self.mean_k:.1f}) {share} in their top K"
        if self.method == "mondrian":
            return f"With K = {', '.join(f'{part.k:,}' for part in self.bins)} by third of predicted risk {share} in their top K, in each third"
        return f"With K = {self.k:,} {share} in the top K"

    def to_json(self) -> dict[str, Any]:
        """Write everything as JSON values; what is not known is null."""
        plain = dataclasses.asdict(self)
        plain["curve"] = [{"risk": risk, "k": k} for risk, k in self.curve]
        plain["bins"] = [
            {**dataclasses.asdict(part), "coverage": part.coverage._asdict()} for part in self.bins
        ]
        plain["coverage"] = self.coverage._asdict()
        plain["riskiest"] = None if self.riskiest is None else self.riskiest._asdict()
        return {**plain, "attainable": self.attainable, "text": self.text}


def conformal_k(
    questions: Questions, levels: tuple[float, ...] = LEVELS, *, splits: int = SPLITS, seed: int = 0
) -> tuple[ConformalK, ...]:
    """Calibrate every method that there is data for at every level.

    Parameters
    ----------
    questions
        Judged questions of one strategy.
    levels
        Figures of questions to be covered, each in (0, 1).
    splits, seed
        Of the random group splits that estimate the coverage; the seed also draws which groups fit the scale.

    Returns
    -------
    tuple of ConformalK
        By method, then level: `fixed`; `recall` with gold ranks; `adaptive` and `mondrian` with predicted risks, over the questions that have one.

    Raises
    ------
    ValueError
        A level that is none, or fewer than one split.
    """
    if splits < 1:
        raise ValueError(f"{splits} splits; accepted: 1 or more")
    methods, known = questions.methods(), questions.with_risk()
    by_risk = tuple(method for method in methods if method in BY_RISK)
    if not by_risk or known is questions:
        return _over(questions, methods, levels, splits, seed)
    return _over(questions, methods[: -len(by_risk)], levels, splits, seed) + _over(
        known, by_risk, levels, splits, seed
    )


def _over(
    questions: Questions,
    methods: tuple[Method, ...],
    levels: tuple[float, ...],
    splits: int,
    seed: int,
) -> tuple[ConformalK, ...]:
    """Calibrate some methods on all of these questions."""
    part = divide(questions.group, 0.0, np.random.default_rng(seed))
    scale = fitted(questions, part)
    figures = over_splits(questions, levels, splits, seed, methods)
    return tuple(
        _result(
            questions,
            calibrated(questions, part, method, level, scale),
            level,
            figures[method, level],
            splits,
        )
        for method, level in figures
    )


def _result(
    questions: Questions, rule: Rule, level: float, seen: SplitFigures, splits: int
) -> ConformalK:
    deep = rule.depths(questions)
    one = rule.method in {"fixed", "recall"}
    adaptive = rule.method == "adaptive" and bool(np.isfinite(rule.k[0]))
    bins = None if questions.risk is None else rule.scale.bin(questions.risk)
    held = questions.covered(rule.method, np.full(len(questions.rank), float(questions.depth)))
    held = held[~np.isnan(held)]  # a question without gold items has no recall
    return ConformalK(
        method=rule.method,
        level=level,
        k=_whole(rule.k[0]) if one else None,
        depth=questions.depth,
        exponent=rule.scale.exponent if adaptive else None,
        factor=float(rule.k[0]) if adaptive else None,
        curve=_curve(rule, questions.depth) if adaptive else (),
        bins=_risk_bins(questions, rule, seen.covered) if rule.method == "mondrian" else (),
        mean_k=finite(float(deep.mean())) if len(deep) else None,
        mean_k_held_out=finite(seen.mean_k),
        coverage=mean_figure(seen.covered, questions.group),
        coverage_by_group=_by_group(seen.covered, questions.group),
        riskiest=None
        if bins is None
        else mean_figure(seen.covered[bins == BINS - 1], questions.group[bins == BINS - 1]),
        share_unattainable=finite(seen.unattainable),
        within_depth=float(held.mean()) if len(held) else None,
        n=len(deep),
        n_groups=len(np.unique(questions.group)),
        splits=splits,
    )


def _risk_bins(questions: Questions, rule: Rule, covered: FloatArray) -> tuple[RiskBin, ...]:
    if questions.risk is None:
        return ()
    bins = rule.scale.bin(questions.risk)
    edges = (0.0, *rule.scale.edges, 1.0)
    shares = [
        mean_figure(covered[bins == place], questions.group[bins == place])
        for place in range(len(edges) - 1)
    ]
    return tuple(
        RiskBin(edges[place], edges[place + 1], _whole(rule.k[place]), share)
        for place, share in enumerate(shares)
    )


def _curve(rule: Rule, depth: int) -> tuple[tuple[float, int], ...]:
    at = np.asarray(CURVE_AT)
    places = Questions(np.ones(len(at)), np.arange(len(at)), depth, at)
    return tuple(zip(CURVE_AT, rule.depths(places).astype(np.int64).tolist(), strict=True))


def _by_group(values: FloatArray, group: IntArray) -> float | None:
    there = ~np.isnan(values)
    if not there.any():
        return None
    _, at, sizes = np.unique(group[there], return_inverse=True, return_counts=True)
    return float(np.average(values[there], weights=1.0 / sizes[at]))


def _whole(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None
