"""The estimator of miss rates: fitted to outcomes so that no query is judged by a fit of its group.

`Prior` holds the coefficients that were fitted on public collections. `fit_head` makes a single
fit. `MissRateModel` is the stored estimator. `heuristic_v0` guesses without outcomes.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple, Self, get_args

import numpy as np

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.config import BinaryTarget
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.calibrators import (
    StoredCalibrator,
    Uncalibrated,
    choose_calibrator,
)
from rag_eval.uncertainty.regression import Regression, log_loss
from rag_eval.uncertainty.scores import Labelled, grouped_folds, random_folds
from rag_eval.uncertainty.signals import RankedBatch
from rag_eval.uncertainty.stored import Floats, JsonObject, NullableFloat, Stored

PRIOR_FILE: Final = "prior.json"
Kind = Literal["any", "bm25", "vector", "hybrid"]
"""Kinds of strategies with a prior, because a signal differs for lexical and dense lists."""
PRIOR_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
PENALTIES: Final = np.array([1e4, 1e3, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0])
"""Candidate precisions of a coefficient around 0 or the prior, strongest first."""
N_FOLDS: Final = 10
INNER_FOLDS: Final = 5
FLOOR: Final = {True: 250.0, False: 100.0}
"""FLOOR / min(misses, hits) is the least penalty, with a prior (True) or without (False)."""
LEAST_INTERCEPT_SD, PRIOR_SLOPE_SD = 1.5, 0.25
"""Least SD of the intercept, and SD (around 1) of the factor on all prior coefficients."""
CLIP: Final = 4.0
"""Bound of the z-scores: one strange query must not decide a coefficient or its own rate."""
Z95: Final = 1.959963984540054


@dataclasses.dataclass(frozen=True)
class Prior:
    """Coefficients over z-scored signals, and how much they differ between collections.

    `names` and `coefficients` have p values. `spread` has 1 + p standard deviations, that of the
    intercept first. The log-odds of a miss are intercept + z-scores @ coefficients.
    """

    names: tuple[str, ...]
    coefficients: tuple[float, ...]
    intercept: float
    spread: tuple[float, ...]
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def id(self) -> str:
        """Return a hash of the names and numbers of the prior, 16 hex digits."""
        names = ("coefficients", "intercept", "names", "spread")
        return digest({name: getattr(self, name) for name in names}, 16)

    def over(self, names: Sequence[str]) -> FloatArray:
        """Return the coefficients of `names` in their order; 0 for an unknown signal."""
        known = dict(zip(self.names, self.coefficients, strict=True))
        return np.array([known.get(name, 0.0) for name in names])

    def spread_over(self, names: Sequence[str]) -> FloatArray:
        """Return the spread of each coefficient of `names`; the mean for an unknown signal."""
        known = dict(zip(self.names, self.spread[1:], strict=True))
        usual = float(np.mean(self.spread[1:])) if self.names else 0.0
        return np.array([known.get(name, usual) for name in names])

    def to_json(self) -> JsonObject:
        """Write the prior as JSON values, exactly."""
        rows = zip(self.names, self.coefficients, self.spread[1:], strict=True)
        return {
            "intercept": {"value": self.intercept, "spread": self.spread[0]},
            "coefficients": [
                {"signal": name, "value": value, "spread": spread} for name, value, spread in rows
            ],
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read a prior from JSON values that `to_json` wrote."""
        rows, intercept = document["coefficients"], document["intercept"]
        return cls(
            tuple(row["signal"] for row in rows),
            tuple(row["value"] for row in rows),
            intercept["value"],
            (intercept["spread"], *(row["spread"] for row in rows)),
            document["provenance"],
        )


@functools.lru_cache(maxsize=len(PRIOR_KINDS))
def load_prior(kind: Kind = "any") -> Prior:
    """Read the shipped prior of a kind of strategy; `any` was fitted on all kinds together."""
    text = (files("rag_eval.uncertainty") / PRIOR_FILE).read_text(encoding="utf-8")
    document = json.loads(text)
    provenance = {**document["provenance"], "kind": kind}
    return Prior.from_json(document[kind] | {"provenance": provenance})


class Scaling(NamedTuple):
    """Mean and standard deviation of each signal, [p]; the scale of a constant signal is 1."""

    mean: FloatArray
    scale: FloatArray

    def z(self, signals: FloatArray) -> FloatArray:
        """Compute z-scores [n, p] within +-CLIP, 0 where a signal is not defined."""
        z: FloatArray = np.clip((signals - self.mean) / self.scale, -CLIP, CLIP)
        z[np.isnan(z)] = 0.0
        return z


def fit_scaling(signals: FloatArray) -> Scaling:
    """Fit the scaling of signals [n, p]; a signal without any value has mean 0 and scale 1."""
    defined = np.isfinite(signals)
    n = np.maximum(defined.sum(axis=0), 1)
    mean = np.where(defined, signals, 0.0).sum(axis=0) / n
    spread = np.sqrt((np.where(defined, signals - mean, 0.0) ** 2).sum(axis=0) / n)
    return Scaling(mean, np.where(spread > 1e-12 * (1 + np.abs(mean)), spread, 1.0))


@dataclasses.dataclass(frozen=True, eq=False)
class Head(Stored):
    """A single fit: log-odds are intercept + z-scores @ coefficients [p], then calibrated.

    `mean` and `scale` [p] are the scaling of the signals. `penalty` is the chosen precision of the
    coefficients, NaN where nothing was fitted.
    """

    names: tuple[str, ...]
    mean: Floats
    scale: Floats
    intercept: float
    coefficients: Floats
    penalty: NullableFloat
    calibrator: StoredCalibrator

    def z_scores(self, signals: FloatArray, names: Sequence[str]) -> FloatArray:
        """Compute z-scores in the head's order, [n, p], from signals in any order.

        Raises ValueError where a signal is missing; further signals are ignored.
        """
        places = {name: place for place, name in enumerate(names)}
        missing = [name for name in self.names if name not in places]
        if missing:
            raise ValueError(f"signals are missing: {', '.join(missing)}")
        ordered = signals[:, [places[name] for name in self.names]]
        return Scaling(self.mean, self.scale).z(ordered)

    def predict(self, signals: FloatArray, names: Sequence[str]) -> FloatArray:
        """Predict the probability of a miss, [n] in (0, 1)."""
        z = self.z_scores(signals, names)
        return self.calibrator.apply(self.intercept + z @ self.coefficients)


@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """A head and the regression that it solves; `back` as in `_pose`."""

    head: Head
    _regression: Regression
    _solution: FloatArray
    _weight: FloatArray
    _weaker: FloatArray
    _back: FloatArray

    def covariance(self, group: IntArray) -> FloatArray:
        """Compute the covariance of the intercept and the coefficients, [1 + p, 1 + p].

        The best penalty is uncertain too, so the next weaker penalty widens the interval.
        """
        within = self._regression.covariance(self._solution, self._weight, self._weaker, group)
        return np.asarray(self._back @ within @ self._back.T)


def fit_head(
    labelled: Labelled,
    *,
    prior: Prior | None,
    rng: np.random.Generator,
    unlabelled: FloatArray | None = None,
) -> Fitted:
    """Fit once: penalty and calibrator are chosen on inner grouped folds, by log loss.

    Coefficients are drawn towards the prior, or towards 0. `unlabelled` holds signals [m, p] of
    further retrievals of the strategy, for the z-scores. `rng` deals the inner folds. Weights are
    scaled to add up to Kish's effective sample size, because unequal weights carry less
    information.
    """
    outcome = labelled.missed.astype(np.float64)
    weight = labelled.weight * (labelled.weight.sum() / (labelled.weight**2).sum())
    seen = labelled.signals if unlabelled is None else np.vstack([labelled.signals, unlabelled])
    scaled = fit_scaling(seen)
    regression, penalties, back = _pose(scaled.z(labelled.signals), outcome, labelled.names, prior)
    fold = grouped_folds(labelled.group, INNER_FOLDS, rng)
    events = max(min(weight @ outcome, weight @ (1 - outcome)), 1.0)
    considered = int((FLOOR[prior is not None] / events <= PENALTIES).sum())
    train = (fold != np.arange(fold.max() + 1)[:, None]) * weight
    chosen, log_odds = 0, regression.design @ regression.centre
    if len(train) > 1:  # a single group cannot be held out, so keep the strongest penalty
        chosen, log_odds = _choose_penalty(regression, penalties[:considered], weight, train)
    found = regression.solve(weight[None], penalties[chosen][None])[0, 0]
    calibrator = choose_calibrator(log_odds, outcome, weight, labelled.group, fold)
    if calibrator.name != "none":  # coarse log-odds can choose a calibrator but not fit it
        exact = regression.solve(train, penalties[chosen][None])[fold, 0]
        log_odds = (exact * regression.design).sum(axis=1)
        calibrator = choose_calibrator(log_odds, outcome, weight, labelled.group, fold)
    solution = back @ found
    penalty = float(PENALTIES[chosen])
    head = Head(labelled.names, *scaled, float(solution[0]), solution[1:], penalty, calibrator)
    weaker = penalties[min(chosen + 1, len(PENALTIES) - 1)]
    return Fitted(head, regression, found, weight, weaker, back)


def _pose(
    z: FloatArray, outcome: FloatArray, names: Sequence[str], prior: Prior | None
) -> tuple[Regression, FloatArray, FloatArray]:
    """Return the regression, its penalties [len(PENALTIES), q] and the matrix `back` [1 + p, q].

    `back` turns a solution into the intercept and the coefficients.
    """
    n, p = z.shape
    ones, fixed = np.ones((n, 1)), np.ones((len(PENALTIES), 1))
    strength = np.repeat(PENALTIES[:, None], p, axis=1)
    if prior is None:
        penalties = np.hstack([fixed / LEAST_INTERCEPT_SD**2, strength])
        return Regression(np.hstack([ones, z]), outcome, np.zeros(1 + p)), penalties, np.eye(1 + p)
    # The prior's log-odds are a separate column, because few outcomes suffice to fit one factor.
    # More outcomes also fit the differences from the prior.
    known = prior.over(names)
    back = np.zeros((1 + p, 2 + p))
    back[0, 0] = 1
    back[1:, 1], back[1:, 2:] = known, np.eye(p)
    intercept = fixed / max(prior.spread[0], LEAST_INTERCEPT_SD) ** 2
    penalties = np.hstack([intercept, fixed / PRIOR_SLOPE_SD**2, strength])
    design = np.hstack([ones, (z @ known)[:, None], z])
    centre = np.array([prior.intercept, 1.0, *np.zeros(p)])
    return Regression(design, outcome, centre), penalties, back


def _choose_penalty(
    regression: Regression, penalties: FloatArray, weight: FloatArray, train: FloatArray
) -> tuple[int, FloatArray]:
    """Return the index of the penalty with the lowest out-of-fold log loss, and log-odds [n].

    The log-odds are out of fold under this penalty. `train` [folds, n] are the weights of each
    fold's fit. Of equally good penalties the strongest wins. The solutions are coarse and start
    from a solution for all rows.
    """
    middle = penalties[len(penalties) // 2][None]
    start = regression.solve(weight[None], middle, coarse=True)[0, 0]
    log_odds = np.empty((len(penalties), len(weight)))
    fits = regression.solve(train, penalties, start=start, coarse=True)
    for rows, found in zip(train == 0, fits, strict=True):
        log_odds[:, rows] = found @ regression.design[rows].T
    chosen = int(np.argmin((weight * log_loss(log_odds, regression.outcome)).sum(axis=1)))
    return chosen, log_odds[chosen]


class Miss(NamedTuple):
    """Event that counts as a miss."""

    target: BinaryTarget = "miss_any"
    k: int = 10


ANY_AT_10: Final = Miss()
"""The target that the shipped prior was fitted to."""


@dataclasses.dataclass(frozen=True, eq=False)
class MissRateModel(Stored):
    """The stored estimator of one strategy's miss rate.

    `head` is fitted to all outcomes and serves queries of groups without outcomes. `covariance` is
    the covariance of its intercept and coefficients, cluster-robust by group. Each fit in `folds`
    leaves a tenth of the groups out. `fold_of_group` names the fit that did not see a group. Both
    are empty if nothing was fitted. `prior` is the id of the prior, or empty. `n`, `groups` and
    `misses` count the outcomes of the fit.
    """

    target: BinaryTarget
    k: int
    head: Head
    covariance: Floats
    folds: tuple[Head, ...]
    fold_of_group: Mapping[str, int]
    prior: str
    n: int
    groups: int
    misses: int
    schema_version: Literal[1] = 1

    def predict(
        self, signals: FloatArray, names: Sequence[str], group_ids: Sequence[str] | None = None
    ) -> FloatArray:
        """Predict the probability of a miss, [n] in (0, 1).

        `signals` [n, p] are not z-scored, NaN where not defined. `names` [p] are their names. A
        query of a fitted group is predicted by the fit that did not see the group. Without group
        ids all groups are new. Raises ValueError if a signal of the model is missing.
        """
        value: FloatArray = self._predict_with_bounds(signals, names, group_ids)[0]
        return value

    def interval(
        self, signals: FloatArray, names: Sequence[str], group_ids: Sequence[str] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return low and high of the 95 % interval of the probability of a miss, [n] each.

        The covariance of the coefficients gives an interval of the log-odds. The calibrator turns
        its bounds into probabilities.
        """
        value, low, high = self._predict_with_bounds(signals, names, group_ids)
        return np.minimum(low, value), np.maximum(high, value)

    def _predict_with_bounds(
        self, signals: FloatArray, names: Sequence[str], group_ids: Sequence[str] | None
    ) -> FloatArray:
        """Compute value, low and high, [3, n]."""
        fold = np.full(len(signals), -1)
        if group_ids is not None:
            fold = np.array([self.fold_of_group.get(group, -1) for group in group_ids], dtype=int)
        result = np.empty((3, len(signals)))
        for number in np.unique(fold):
            rows, head = fold == number, self.head if number < 0 else self.folds[number]
            z = head.z_scores(signals[rows], names)
            log_odds = head.intercept + z @ head.coefficients
            design = np.hstack([np.ones((len(z), 1)), z])
            variance = np.einsum("ni,ij,nj->n", design, self.covariance, design)
            reach = Z95 * np.sqrt(np.maximum(variance, 0.0))
            for part, shifted in enumerate((log_odds, log_odds - reach, log_odds + reach)):
                result[part, rows] = head.calibrator.apply(shifted)
        return result


def fit_model(
    labelled: Labelled,
    group_ids: Sequence[str],
    *,
    prior: Prior | None,
    seed: int,
    miss: Miss = ANY_AT_10,
    unlabelled: FloatArray | None = None,
) -> MissRateModel:
    """Fit the estimator to outcomes, and ten times more without a tenth of the groups.

    `group_ids` names the group of each row. `seed` deals the folds. `unlabelled` as in `fit_head`.
    """
    n_groups = len(set(group_ids))
    rng = np.random.default_rng(seed)
    whole = fit_head(labelled, prior=prior, rng=rng, unlabelled=unlabelled)
    fold = grouped_folds(labelled.group, N_FOLDS, rng)
    folds: tuple[Head, ...] = ()
    if n_groups > 1:
        folds = tuple(
            fit_head(
                labelled.take(fold != number), prior=prior, rng=rng, unlabelled=unlabelled
            ).head
            for number in np.unique(fold)
        )
    return MissRateModel(
        target=miss.target,
        k=miss.k,
        head=whole.head,
        covariance=whole.covariance(labelled.group),
        folds=folds,
        fold_of_group=dict(sorted(zip(group_ids, fold.tolist(), strict=True))) if folds else {},
        prior=prior.id if prior else "",
        n=len(labelled),
        groups=n_groups,
        misses=int(labelled.missed.sum()),
    )


def model_from_prior(
    prior: Prior, names: Sequence[str], unlabelled: FloatArray, miss: Miss = ANY_AT_10
) -> MissRateModel:
    """Build the estimator of a strategy without outcomes: the prior over its own z-scores.

    Takes names [p] and signals [m, p] of the strategy's own queries. The log-odds are multiplied
    by ``1 / sqrt(1 + pi v / 8)``, where v is their mean variance between collections. The result is
    near the mean probability over collections. The coefficients without the factor would give the
    probability of an average collection (MacKay 1992, Neural Computation 4:720-736).
    """
    scaled = fit_scaling(unlabelled)
    spread = np.concatenate([prior.spread[:1], prior.spread_over(names)]) ** 2
    variance = (
        spread[0] + float((scaled.z(unlabelled) ** 2).mean(axis=0) @ spread[1:])
        if len(unlabelled)
        else float(spread.sum())
    )
    factor = 1 / float(np.sqrt(1 + np.pi * variance / 8))
    log_odds = factor * prior.intercept, factor * prior.over(names)
    head = Head(tuple(names), *scaled, *log_odds, np.nan, Uncalibrated())
    return MissRateModel(
        miss.target, miss.k, head, np.diag(spread), (), {}, prior.id, n=0, groups=0, misses=0
    )


def cross_validate(
    labelled: Labelled,
    *,
    prior: Prior | None,
    repeats: int = 20,
    seed: int = 0,
    folds: Literal["grouped", "random"] = "grouped",
) -> FloatArray:
    """Predict out of fold, [repeats, n], with z-scores, penalty and calibrator inside the fold.

    Each repeat deals ten new folds. `random` folds, outer and inner, split groups. They only show
    how much split groups flatter the figures. The prior must not be fitted on these outcomes.
    Raises ValueError for fewer than two groups, because no group could be held out.
    """
    if len(np.unique(labelled.group)) < 2:  # noqa: PLR2004 - one to fit, one to hold out
        raise ValueError("cross-validation needs outcomes of at least two groups")
    if folds == "random":
        labelled = dataclasses.replace(labelled, group=np.arange(len(labelled), dtype=np.int64))
    result = np.empty((repeats, len(labelled)))
    for row, rng in zip(result, np.random.default_rng(seed).spawn(repeats), strict=True):
        fold = (
            grouped_folds(labelled.group, N_FOLDS, rng)
            if folds == "grouped"
            else random_folds(len(labelled), N_FOLDS, rng)
        )
        for number in np.unique(fold):
            held = fold == number
            head = fit_head(labelled.take(~held), prior=prior, rng=rng).head
            row[held] = head.predict(labelled.signals[held], labelled.names)
    return result


TAIL, NEAR = (0.3, 0.5), (0.25, 0.35)
"""Ranges [from, to) of scores in the tail, and of scores near the tail's lower bound 0.3."""
HISTORY, CEILING = 0.3, 0.9
"""Constant in place of the missing history of similar queries, and the highest guess."""


def heuristic_v0(batch: RankedBatch, k: int = 10) -> FloatArray:
    """Guess miss rates [n] in [0.09, 0.64] without outcomes, as the baseline of comparisons.

    min(0.9, 0.3 tail_density + min(near_threshold / 10, 0.3) + 0.3 history + 0.1 complexity).
    Similarities are the cosines of the first k chunks, clipped to [0, 1], or their scores divided
    by the query's top score. tail_density is the share of them in [0.3, 0.5), at most 0.5.
    near_threshold counts similarities in [0.25, 0.35). history is 0.3, because there are no data.
    complexity is min(1, distinct terms / 10). The share in a list shorter than k is over the list.
    An empty list gets a low guess. The formula stays unchanged, because it is the baseline. The
    guess is never a confidence.
    """
    held = batch.rows[:, :k] >= 0
    raw = np.where(held, batch.raw[:, :k], 0.0)
    if not batch.cosine:
        top = raw.max(axis=1, keepdims=True, initial=0.0)
        raw = np.divide(raw, top, out=np.zeros_like(raw), where=top > 0)
    similarity = np.clip(raw, 0.0, 1.0)
    in_tail = (held & (similarity >= TAIL[0]) & (similarity < TAIL[1])).sum(axis=1)
    near = (held & (similarity >= NEAR[0]) & (similarity < NEAR[1])).sum(axis=1)
    density = np.minimum(in_tail / np.maximum(held.sum(axis=1), 1), 0.5)
    words = np.array([len(set(terms)) for terms in batch.query_terms], dtype=np.float64)
    guess: FloatArray = np.minimum(
        CEILING,
        0.3 * density
        + np.minimum(near / 10, 0.3)
        + 0.3 * HISTORY
        + 0.1 * np.minimum(1.0, words / 10),
    )
    return guess
