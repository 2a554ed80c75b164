"""Split conformal K: the list depth at which a stated share of questions has gold in the list.

The unit of exchangeability is the group of questions that share gold. Take G calibration groups
and one new group in random order, and draw a question at random from the G + 1 groups. With
probability `level` or more, the rank of this question is at most the level's quantile of all
ranks. The ranks of the new group are unknown. They count as infinite, which only raises the
quantile. The size of the new group is unknown too. Coverage falls linearly with this size to first
order. So the mean size of the group of a random question replaces the size, which is exact for
equally large groups. The method uses every question and draws none, so the same data give the
same K.

The mean of recall@K over questions is a share of gold items. In this share, an item weighs
1 / the number of gold items of its question. So the same threshold on the ranks of all gold items
controls recall.

References: Papadopoulos et al. (2002), ECML: 345-356. Dunn, Wasserman, Ramdas (2023), JASA
118:2491-2502 (groups). Angelopoulos et al. (2024), ICLR, Conformal risk control.
"""

import dataclasses
from typing import Final

import numpy as np

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.report import ConformalK, ConformalMethod, CountedInterval, RiskBin
from rag_eval.measures.overlap import SharedGold
from rag_eval.uncertainty.scores import mean_figure
from rag_eval.uncertainty.stored import finite

LEVELS: Final = (0.8, 0.9, 0.95)
SPLITS: Final = 200
TEST_SHARE: Final = 1 / 3
"""Share of the groups that a split holds out."""
BINS: Final = 3
_ROUNDING = 1e-9
"""Tolerance as a share of the total weight, so that 9 of 10 equal weights reach 90 %."""


@dataclasses.dataclass(frozen=True, eq=False)
class Questions:
    """n judged questions of one strategy.

    `rank` [n] is the rank of the first gold from 1, inf where the list of `depth` has none.
    `group` [n] is the unit of inference, codes from 0. `risk` [n] is the miss probability that
    fits predicted without seeing the question's group. It is NaN where unknown, and `risk` is None
    if all are unknown.
    `gold_rank` and `gold_question` [m] are the rank of every gold item and the index of its
    question, if known.
    """

    rank: FloatArray
    group: IntArray
    depth: int
    risk: FloatArray | None = None
    gold_rank: FloatArray | None = None
    gold_question: IntArray | None = None

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def known_risk(self) -> BoolArray:
        """Tell which questions have a known risk, [n]."""
        return np.zeros(len(self), dtype=bool) if self.risk is None else ~np.isnan(self.risk)

    @property
    def methods(self) -> tuple[ConformalMethod, ...]:
        """List the methods that have the data they need."""
        recall: tuple[ConformalMethod, ...] = () if self.gold_rank is None else ("recall",)
        by_risk: tuple[ConformalMethod, ...] = ("mondrian",) if self.known_risk.any() else ()
        return ("fixed", *recall, *by_risk)

    def share_covered(self, method: ConformalMethod, k: FloatArray) -> FloatArray:
        """Return whether the top K of each question has gold, or recall@K for `recall`, [n].

        `k` is [n], inf where K is not attainable. A K of inf covers nothing. The recall of a
        question without gold items is NaN.
        """
        deep = np.where(np.isfinite(k), k, 0.0)
        if method != "recall" or self.gold_rank is None or self.gold_question is None:
            return (self.rank <= deep).astype(np.float64)
        items = np.bincount(self.gold_question, minlength=len(self)).astype(np.float64)
        found = (self.gold_rank <= deep[self.gold_question]).astype(np.float64)
        share: FloatArray = np.bincount(self.gold_question, found, minlength=len(self)) / np.where(
            items == 0, np.nan, items
        )
        return share


class Cell:
    """Ranks [m] that share one K, with the question [m] and the weight [m] of each."""

    def __init__(
        self, ranks: FloatArray, question: IntArray, weight: FloatArray, group: IntArray
    ) -> None:
        order = np.argsort(ranks, kind="stable")
        self._ranks = np.append(ranks[order], np.inf)
        self._question, self._weight, self._group = question[order], weight[order], group
        self._inside = np.zeros(len(group), dtype=bool)
        self._inside[question] = True

    def thresholds(self, use: BoolArray, levels: tuple[float, ...]) -> FloatArray:
        """Return the smallest rank up to which the weight reaches each level, [levels].

        `use` [n] says which questions calibrate. The ranks of one new group count as infinite. The
        threshold is inf if the finite ranks have too little weight.
        """
        held = np.cumsum(self._weight * use[self._question])
        sizes = np.bincount(self._group[self._inside & use])
        # The new group has the mean size of the group of a random question.
        mass = float((sizes**2).sum() / sizes.sum()) if len(sizes) else 1.0
        total = (held[-1] if len(held) else 0.0) + mass
        place = np.searchsorted(held, np.asarray(levels) * total - _ROUNDING * total)
        return np.asarray(self._ranks[place])


def _cut_thirds(questions: Questions) -> tuple[tuple[float, ...], IntArray]:
    """Return the two risks that part the thirds, and the third of each question [n], 0 to 2.

    A question without a known risk has -1.
    """
    if questions.risk is None or not questions.known_risk.any():
        return (), np.full(len(questions), -1)
    edges = np.quantile(questions.risk[questions.known_risk], np.arange(1, BINS) / BINS)
    place = np.searchsorted(edges, questions.risk, side="right")
    return tuple(edges.tolist()), np.where(questions.known_risk, place, -1)


class _Calibration:
    """One method over some questions: its cells, and the cell of each question [n]."""

    def __init__(self, questions: Questions, method: ConformalMethod) -> None:
        self.questions, self.method = questions, method
        self.edges, self.third = _cut_thirds(questions)
        n, group = len(questions), questions.group
        self._cell_of = np.zeros(n, dtype=np.int64)
        ones, places = np.ones(n), np.arange(n)
        if method == "recall" and questions.gold_rank is not None:
            owner = np.asarray(questions.gold_question)
            weight = 1.0 / np.bincount(owner, minlength=n)[owner]
            self._cells = [Cell(questions.gold_rank, owner, weight, group)]
        elif method == "mondrian":
            self._cell_of = self.third
            inside = [np.flatnonzero(self._cell_of == number) for number in range(BINS)]
            self._cells = [Cell(questions.rank[at], at, ones[at], group) for at in inside]
        else:
            self._cells = [Cell(questions.rank, places, ones, group)]

    def fit(self, use: BoolArray, levels: tuple[float, ...]) -> FloatArray:
        """Return the K of each level and cell, [levels, cells], inf where K is not attainable."""
        return np.stack([cell.thresholds(use, levels) for cell in self._cells], axis=1)

    def depths(self, k: FloatArray) -> FloatArray:
        """Return the K of each question [n] from the K of each cell."""
        return np.asarray(k[self._cell_of])

    def judge(
        self, levels: tuple[float, ...], splits: int, seed: int
    ) -> list[tuple[FloatArray, float, float]]:
        """Calibrate on random groups and judge on the others, for each level.

        Every method sees the same splits. Returns, by level, the share of splits that covered a
        question among those that held it out [n], the mean attainable K of held-out questions, and
        the share of held-out questions whose K lay beyond the depth; NaN where undefined.
        """
        data, rng = self.questions, np.random.default_rng(seed)
        codes, code = np.unique(data.group, return_inverse=True)
        n_test = round(TEST_SHARE * len(codes))
        covered, tested = np.zeros((len(levels), len(data))), np.zeros(len(data))
        total_k, attained = np.zeros(len(levels)), np.zeros(len(levels))
        for _ in range(splits):
            test = rng.permutation(len(codes))[code] < n_test
            tested += test
            for row, k in enumerate(map(self.depths, self.fit(~test, levels))):
                is_finite = np.isfinite(k) & test
                covered[row] += np.where(test, data.share_covered(self.method, k), 0.0)
                total_k[row] += k[is_finite].sum()
                attained[row] += is_finite.sum()
        with np.errstate(invalid="ignore", divide="ignore"):
            shares, mean_k = covered / tested, total_k / attained
            unattainable = 1 - attained / tested.sum()
        return list(zip(shares, mean_k.tolist(), unattainable.tolist(), strict=True))


def conformal_k(
    questions: Questions, levels: tuple[float, ...] = LEVELS, *, splits: int = SPLITS, seed: int = 0
) -> list[ConformalK]:
    """Calibrate every method that has its data, at every level in (0, 1).

    Results are ordered by method, then level. `recall` needs gold ranks. `mondrian` uses only the
    questions with a predicted risk. The seed draws the splits that estimate the coverage.
    """
    found = []
    for method in questions.methods:
        data = questions
        if method == "mondrian" and questions.risk is not None:
            known = questions.known_risk
            risk = questions.risk[known]
            data = Questions(questions.rank[known], questions.group[known], questions.depth, risk)
        calibration = _Calibration(data, method)
        thresholds = calibration.fit(np.ones(len(data), dtype=bool), levels)
        figures = calibration.judge(levels, splits, seed)
        for level, k, judged in zip(levels, thresholds, figures, strict=True):
            found.append(_describe(calibration, level, k, judged, splits))
    return found


def _describe(
    calibration: _Calibration,
    level: float,
    k: FloatArray,
    judged: tuple[FloatArray, float, float],
    splits: int,
) -> ConformalK:
    """Describe a rule with the K of each cell, [cells], and what `_Calibration.judge` found."""
    questions, method = calibration.questions, calibration.method
    covered, mean_k, unattainable = judged
    n, group = len(questions), questions.group
    gold = SharedGold.of_groups(group)
    within = questions.share_covered(method, np.full(n, float(questions.depth)))
    within = within[~np.isnan(within)]
    ks = [int(value) if np.isfinite(value) else None for value in k]

    def cover_third(number: int) -> CountedInterval:
        inside = calibration.third == number
        return mean_figure(covered[inside], gold.take(inside))

    bins = []
    if method == "mondrian":
        edges = (0.0, *calibration.edges, 1.0)
        bins = [
            RiskBin(k=ks[at], risk_low=edges[at], risk_high=edges[at + 1], coverage=cover_third(at))
            for at in range(BINS)
        ]
    rule = ConformalK(
        method=method,
        level=level,
        attainable=None not in ks,
        k=None if bins else ks[0],
        depth=questions.depth,
        n=n,
        n_groups=len(np.unique(group)),
        splits=splits,
        mean_k=finite(float(calibration.depths(k).mean())) if n else None,
        mean_k_held_out=finite(mean_k),
        bins=bins,
        coverage=mean_figure(covered, gold),
        riskiest=None if questions.risk is None else cover_third(BINS - 1),
        share_unattainable=finite(unattainable),
        within_depth=float(within.mean()) if len(within) else None,
        text="",
    )
    return rule.model_copy(update={"text": _state_promise(rule)})


def _state_promise(rule: ConformalK) -> str:
    """Write what K promises and the population that the promise averages over."""
    basis = (
        f"an average over questions like these {rule.n:,} ({rule.n_groups:,} independent groups),"
        " for this strategy fingerprint and this gold; it promises nothing for a single question"
    )
    recall = rule.method == "recall"
    if not rule.attainable:
        held = ""
        if rule.within_depth is not None:
            most = "of the questions have gold anywhere in them"
            most = "is the mean recall of whole lists" if recall else most
            held = f" ({rule.within_depth:.1%} {most})"
        partly = any(part.k is not None for part in rule.bins)
        where = " in every third of predicted risk" if partly else ""
        return (
            f"A level of {rule.level:.0%} is not attainable{where} within lists of"
            f" {rule.depth:,}{held}: {basis}."
        )
    ks = ", ".join(f"{k:,}" for k in ([part.k for part in rule.bins] or [rule.k]) if k is not None)
    share = f"at least {rule.level:.0%} of new questions are expected to have gold"
    stated = {
        "fixed": f"With K = {ks} {share} in the top K",
        "recall": f"With K = {ks} the expected recall@K is at least {rule.level:.0%}",
        "mondrian": f"With K = {ks} by third of predicted risk {share} in their top K, in each"
        " third",
    }[rule.method]
    risky = ""
    if rule.riskiest is not None and rule.riskiest.value is not None:
        verb = "was" if recall else "held for"
        risky = f"; in the riskiest third of the questions it {verb} {rule.riskiest.value:.1%}"
    return f"{stated}: {basis}{risky}."
