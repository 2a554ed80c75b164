"""What more outcomes bring, and what folds that split groups would have feigned.

Belongs here: skill by number of training outcomes, and the leakage gap. Validation of one set of predictions: `validation`.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rag_eval.measures.arrays import FloatArray
from rag_eval.uncertainty.labelled import Labelled
from rag_eval.uncertainty.scores import brier_skill

Fitter = Callable[[Labelled, Labelled], FloatArray]
"""(train, test) -> probability of a miss for each of the test."""
HELD_OUT = 0.25
"""Share of the groups that each draw holds out."""


@dataclasses.dataclass(frozen=True)
class LearningPoint:
    """Brier skill on held-out groups after training on about `wanted` outcomes.

    Parameters
    ----------
    wanted, outcomes
        Training outcomes asked for, and the mean number trained on (whole groups are taken until there are enough).
    skill, low, high
        Mean over the draws, and the middle 95 % of the draws: their spread, no confidence interval of the mean. NaN with no draw.
    held_out
        Mean number of outcomes that each draw was judged on.
    draws, without_both
        Draws that could train on as many and held out both misses and hits, and those among them whose training outcomes were all misses
        or all hits; these predict the training miss rate with half a miss and half a hit added, as a model cannot be fitted to them.
    """

    wanted: int
    outcomes: float
    skill: float
    low: float
    high: float
    held_out: float
    draws: int
    without_both: int

    def to_json(self) -> dict[str, Any]:
        """Write as a JSON object, NaN as null."""
        return {
            name: value if math.isfinite(value) else None
            for name, value in dataclasses.asdict(self).items()
        }


def learning_curve(
    labelled: Labelled, fitter: Fitter, sizes: Sequence[int], repeats: int, seed: int
) -> tuple[LearningPoint, ...]:
    """Brier skill on held-out groups by number of training outcomes.

    Parameters
    ----------
    labelled
        Outcomes; each draw holds out a quarter of the groups and trains on the first of the others, in random order.
    fitter
        Fits the train part and predicts the test part.
    sizes
        Numbers of training outcomes.
    repeats
        Draws. All sizes of a draw share the held-out groups, and smaller training sets are parts of larger ones.
    seed
        Of the draws.
    """
    if min(sizes, default=1) < 1 or repeats < 1:
        raise ValueError(f"sizes {list(sizes)}, {repeats} repeats; accepted: 1 or more of each")
    rng = np.random.default_rng(seed)
    _, group = np.unique(labelled.group, return_inverse=True)
    n_groups = int(group.max(initial=-1)) + 1
    found: list[list[tuple[float, int, int, bool]]] = [[] for _ in sizes]
    for _ in range(repeats):
        place = rng.permutation(n_groups)[group]
        held_out = place < round(HELD_OUT * n_groups)
        test, rest = labelled.take(held_out), np.flatnonzero(~held_out)
        rest = rest[np.argsort(place[rest], kind="stable")]
        ends = (
            np.flatnonzero(np.diff(place[rest], append=n_groups)) + 1
        )  # where a group is complete
        for at, size in enumerate(sizes):
            enough = ends[ends >= size]
            if len(enough) and len(test):
                train = labelled.take(rest[: enough[0]])
                both = 0 < int(train.missed.sum()) < len(train)
                predicted = fitter(train, test) if both else _smoothed_rate(train, len(test))
                found[at].append(
                    (
                        float(brier_skill(predicted, test.missed, test.group, test.weight)),
                        len(train),
                        len(test),
                        not both,
                    )
                )
    return tuple(_point(size, draws) for size, draws in zip(sizes, found, strict=True))


def _smoothed_rate(train: Labelled, n: int) -> FloatArray:
    return np.full(
        n, (float(train.weight[train.missed].sum()) + 0.5) / (float(train.weight.sum()) + 1)
    )


def _point(size: int, draws: list[tuple[float, int, int, bool]]) -> LearningPoint:
    judged = np.array([draw for draw in draws if math.isfinite(draw[0])], dtype=np.float64).reshape(
        -1, 4
    )
    if not len(judged):
        return LearningPoint(size, math.nan, math.nan, math.nan, math.nan, math.nan, 0, 0)
    low, high = np.quantile(judged[:, 0], [0.025, 0.975])
    skill, outcomes, held_out, without = judged.mean(axis=0)
    return LearningPoint(
        size,
        float(outcomes),
        float(skill),
        float(low),
        float(high),
        float(held_out),
        len(judged),
        round(without * len(judged)),
    )


@dataclasses.dataclass(frozen=True)
class LeakageGap:
    """Skill under folds that split groups (`random`), under folds that do not (`grouped`), and what the first feigned."""

    random: float
    grouped: float
    gap: float

    def to_json(self) -> dict[str, float]:
        """Write as a JSON object."""
        return dataclasses.asdict(self)


def leakage_gap(skill_random: float, skill_grouped: float) -> LeakageGap:
    """Skill that comes only from having seen other members of a group: random minus grouped, in Brier skill."""
    return LeakageGap(skill_random, skill_grouped, skill_random - skill_grouped)
