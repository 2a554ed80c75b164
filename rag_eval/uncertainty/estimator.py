"""The estimator of miss rates: fitted to outcomes so that no query is judged by a fit of its group.

The estimator is a penalised logistic regression over signals. `Prior` holds the coefficients that
were fitted on public collections. `fit_head` makes a single fit. A calibrator is a monotone map
from its log-odds to the probability of a miss. `MissRateModel` is the stored estimator.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, get_args

import numpy as np
from pydantic import PlainSerializer, PlainValidator

from rag_eval.core.arrays import BoolArray, Float32Array, FloatArray, IntArray
from rag_eval.core.config import BinaryTarget, CalibratorName
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.scores import Labelled, grouped_folds, random_folds
from rag_eval.uncertainty.stored import Floats, NullableFloat, Stored

# ---- Penalised logistic regression: many weights and penalties at once, and a covariance.

MAX_STEPS, MAX_HALVINGS = 100, 40
TOLERANCE = 1e-12
"""Twice the largest distance to the minimum of a solved problem, in units of log likelihood."""
COARSE = 1e-6
"""Limit like TOLERANCE before the last coarse step, which about squares the distance."""
LIMIT = 30.0
"""Bound of the log-odds, so that probabilities are never 0 or 1."""


def sigmoid(log_odds: FloatArray) -> FloatArray:
    """Turn log-odds into probabilities in (0, 1)."""
    return np.asarray(1 / (1 + np.exp(-np.clip(log_odds, -LIMIT, LIMIT))))


def log_loss(log_odds: FloatArray, outcome: FloatArray) -> FloatArray:
    """Compute minus the log likelihood of each 0/1 outcome, without forming probabilities."""
    # NumPy vectorises log but not log1p. The sum is at least 1, so both agree to 1e-16.
    loss = np.log(1 + np.exp(-np.abs(log_odds)))
    loss += np.maximum(log_odds, 0)
    loss -= outcome * log_odds
    return np.asarray(loss)


@dataclasses.dataclass(frozen=True, eq=False)
class Regression:
    """A design [n, q], outcomes 0/1 [n], and the centre [q] towards which penalties draw.

    For an intercept, add a column of ones to the design.
    """

    design: FloatArray
    outcome: FloatArray
    centre: FloatArray

    @functools.cached_property
    def _pairs(self) -> tuple[Float32Array, IntArray]:
        """Products of each two columns, [n, q (q + 1) / 2], and the place of each pair, [q, q].

        Single precision suffices, because the products serve coarse solutions only.
        """
        q = self.design.shape[1]
        rows, others = np.triu_indices(q)
        places = np.empty((q, q), dtype=np.int64)
        places[rows, others] = places[others, rows] = np.arange(len(rows))
        columns = np.ascontiguousarray(self.design.T, dtype=np.float32)
        return (columns[rows] * columns[others]).T, places

    def _information(self, curvature: FloatArray, *, coarse: bool) -> FloatArray:
        """Compute ``design' diag(c) design`` for each row c of curvatures [m, n], [m, q, q]."""
        if coarse and len(curvature) > 1:  # a single problem does not repay the products
            products, places = self._pairs
            return (curvature.astype(np.float32) @ products).astype(np.float64)[:, places]
        return np.stack([(self.design.T * row) @ self.design for row in curvature])

    def solve(
        self,
        weight: FloatArray,
        penalty: FloatArray,
        *,
        start: FloatArray | None = None,
        coarse: bool = False,
    ) -> FloatArray:
        """Minimise ``sum w_i log_loss_i + sum penalty_j (b_j - centre_j)^2 / 2`` by Newton steps.

        Every row of weights [m, n] is solved with every row of penalties [l, q]; both are 0 or
        more. Returns coefficients [m, l, q]. Steps begin at `start` [q], else at the centre. A
        `coarse` solution is off by about COARSE in units of log likelihood. See le Cessie & van
        Houwelingen (1992), Applied Statistics 41:191-201.

        Raises ArithmeticError if 100 steps do not suffice. That happens if columns differ in size
        by more than doubles can hold, which never occurs with z-scores.
        """
        m, (n_penalties, q) = len(weight), penalty.shape
        weights, penalties = np.repeat(weight, n_penalties, axis=0), np.tile(penalty, (m, 1))
        result = np.tile(self.centre if start is None else start, (len(weights), 1))
        log_odds = result @ self.design.T
        value = self._objective(result, log_odds, weights, penalties)
        active = np.arange(len(weights))
        diagonal = np.arange(q)
        for step_number in range(MAX_STEPS):
            at, w, lam = result[active], weights[active], penalties[active]
            mean = sigmoid(log_odds)
            gradient = (w * (mean - self.outcome)) @ self.design + lam * (at - self.centre)
            if step_number:
                hessian = self._information(w * mean * (1 - mean), coarse=coarse)
            else:  # all penalties start at one point and so share the data's part of the Hessian
                first = self._information(weight * (mean[0] * (1 - mean[0])), coarse=coarse)
                hessian = np.repeat(first, n_penalties, axis=0)
            hessian[:, diagonal, diagonal] += lam + TOLERANCE
            step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
            decrement = (gradient * step).sum(axis=1)
            unsolved = decrement > TOLERANCE * (1 + value[active])
            active, at, step = active[unsolved], at[unsolved], step[unsolved]
            if len(active):
                result[active], log_odds, value[active] = self._descend(
                    at, step, value[active], weights[active], penalties[active]
                )
            if coarse:
                remaining = decrement[unsolved] > COARSE
                active, log_odds = active[remaining], log_odds[remaining]
            if not len(active):
                return result.reshape(m, n_penalties, q)
        raise ArithmeticError(
            f"{len(active)} of {len(result)} logistic regressions were not solved"
            f" in {MAX_STEPS} steps"
        )

    def _objective(
        self, at: FloatArray, log_odds: FloatArray, weight: FloatArray, penalty: FloatArray
    ) -> FloatArray:
        loss = np.vecdot(weight, log_loss(log_odds, self.outcome))
        total: FloatArray = loss + 0.5 * (penalty * (at - self.centre) ** 2).sum(axis=1)
        return total

    def _descend(
        self,
        at: FloatArray,
        step: FloatArray,
        value: FloatArray,
        weight: FloatArray,
        penalty: FloatArray,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Take the Newton step, and halve the step until the objective does not rise.

        Returns coefficients, their log-odds and their objectives.
        """
        factor = np.ones(len(at))
        for _ in range(MAX_HALVINGS):
            tried = at - factor[:, None] * step
            log_odds = tried @ self.design.T
            reached = self._objective(tried, log_odds, weight, penalty)
            worse = reached > value + 1e-9 * (1 + np.abs(value))
            if not worse.any():
                break
            factor[worse] /= 2
        return tried, log_odds, reached

    def covariance(
        self, coefficients: FloatArray, weight: FloatArray, penalty: FloatArray, group: IntArray
    ) -> FloatArray:
        """Compute the cluster-robust covariance [q, q], with the bias that the penalty brings.

        ``H^-1 (M + P) H^-1``: H is the penalised Hessian, P the penalty, M the sum of squared
        group scores times G / (G - 1). Residuals are divided by 1 - leverage, because a fit draws
        near to its own rows. With independent rows and a true model, M estimates H - P. Then the
        result is the posterior covariance H^-1. Intervals from this covariance cover on average
        over the points, because they count the bias as variance.

        References: Liang & Zeger (1986), Biometrika 73:13-22. MacKinnon & White (1985),
        J. Econometrics 29:305-325. Nychka (1988), JASA 83:1134-1143. Marra & Wood (2012), Scand.
        J. Statistics 39:53-74.
        """
        design = self.design
        mean = sigmoid(design @ coefficients)
        curvature = weight * mean * (1 - mean)
        inverse = np.linalg.inv(
            (design * curvature[:, None]).T @ design + np.diag(penalty + TOLERANCE)
        )
        leverage = curvature * ((design @ inverse) * design).sum(axis=1)
        residual = (self.outcome - mean) / np.maximum(1 - leverage, 0.1)
        _, code = np.unique(group, return_inverse=True)
        n_groups = int(code.max(initial=-1)) + 1
        scores = np.zeros((n_groups, design.shape[1]))
        np.add.at(scores, code, (weight * residual)[:, None] * design)
        middle = n_groups / max(n_groups - 1, 1) * scores.T @ scores + np.diag(penalty)
        covariance: FloatArray = inverse @ middle @ inverse
        return covariance


# ---- Calibrators. One is used only if it clearly lowers the out-of-fold log loss.

SLOPE_SD, INTERCEPT_SD = 0.25, 1.0
"""SD of the priors of slope (mean 1) and intercept (0), as few outcomes fit a free slope badly."""
FEWEST: Final[Mapping[CalibratorName, int]] = {"platt": 25, "isotonic": 400}
"""Least number of outcomes of each calibrator; with under 400, isotonic regression costs skill."""
NOISE = 2.0
"""Number of standard errors over groups by which a calibrator must lower the log loss."""


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """A step function: `at` [m] holds values at sorted `knots`, `between` [m + 1] all others."""

    knots: Floats
    at: Floats
    between: Floats

    def __call__(self, x: FloatArray) -> FloatArray:
        """Compute the value at each x."""
        place = np.searchsorted(self.knots, x, side="left")
        inside = np.minimum(place, len(self.knots) - 1)
        return np.where(self.knots[inside] == x, self.at[inside], self.between[place])


def fit_steps(score: FloatArray, missed: FloatArray | BoolArray, weight: FloatArray) -> Steps:
    """Fit miss rates that rise with the score, by weighted least squares; [n] each, weights > 0.

    Between two knots the value is the mean of both values. Outside the knots the nearest value
    holds.
    """
    from scipy.optimize import isotonic_regression

    knots, code = np.unique(score, return_inverse=True)
    mass = np.bincount(code, weights=weight)
    misses = np.bincount(code, weights=weight * missed)
    at = np.clip(isotonic_regression(misses / mass, weights=mass).x, 0.0, 1.0)
    padded = np.concatenate([at[:1], at, at[-1:]])
    return Steps(knots, at, (padded[1:] + padded[:-1]) / 2)


@dataclasses.dataclass(frozen=True)
class Calibrator(Stored):
    """A fitted monotone map from log-odds to the probability of a miss.

    This one, `none`, fits nothing and keeps the estimator's own probabilities.
    """

    name: ClassVar[CalibratorName] = "none"

    @classmethod
    def fit(cls, log_odds: FloatArray, missed: FloatArray, weight: FloatArray) -> list[Self]:  # noqa: ARG003 - fits nothing
        """Fit one calibrator for each row of weights [m, n]; outcomes of weight 0 do not count."""
        return [cls()] * len(weight)

    def apply(self, log_odds: FloatArray) -> FloatArray:
        """Compute probabilities in (0, 1) that never decrease with the log-odds."""
        return sigmoid(log_odds)


@dataclasses.dataclass(frozen=True)
class Platt(Calibrator):
    """``sigmoid(intercept + slope * log_odds)``, slope 0 or more, drawn towards 1 (Platt 1999)."""

    name: ClassVar[CalibratorName] = "platt"
    intercept: float
    slope: float

    @classmethod
    def fit(cls, log_odds: FloatArray, missed: FloatArray, weight: FloatArray) -> list[Self]:
        """Fit by maximum a posteriori.

        The problem is convex. So a negative slope is replaced by the best solution with slope 0.
        """
        penalty = np.array([[INTERCEPT_SD**-2, SLOPE_SD**-2]])
        design = np.column_stack([np.ones(len(log_odds)), log_odds])
        best = Regression(design, missed, np.array([0.0, 1.0])).solve(weight, penalty)[:, 0]
        falling = best[:, 1] < 0
        if falling.any():
            flat = Regression(design[:, :1], missed, np.zeros(1))
            best[falling, 0] = flat.solve(weight[falling], penalty[:, :1])[:, 0, 0]
            best[falling, 1] = 0.0
        return [cls(*row) for row in best.tolist()]

    def apply(self, log_odds: FloatArray) -> FloatArray:
        """Compute probabilities."""
        return sigmoid(self.intercept + self.slope * log_odds)


@dataclasses.dataclass(frozen=True)
class Isotonic(Calibrator):
    """Isotonic regression, kept `edge` = 1 / (total weight + 2) away from 0 and 1.

    The edge exists because few outcomes without a miss do not prove a miss rate of 0.
    """

    name: ClassVar[CalibratorName] = "isotonic"
    steps: Steps
    edge: float

    @classmethod
    def fit(cls, log_odds: FloatArray, missed: FloatArray, weight: FloatArray) -> list[Self]:
        """Fit by pool adjacent violators."""
        return [
            cls(fit_steps(log_odds[w > 0], missed[w > 0], w[w > 0]), 1 / (float(w.sum()) + 2))
            for w in weight
        ]

    def apply(self, log_odds: FloatArray) -> FloatArray:
        """Compute probabilities."""
        return np.clip(self.steps(log_odds), self.edge, 1 - self.edge)


CALIBRATORS: Final[Mapping[CalibratorName, type[Calibrator]]] = {
    kind.name: kind for kind in (Calibrator, Platt, Isotonic)
}


def _read_calibrator(document: Mapping[str, Any]) -> Calibrator:
    name = document["name"]
    if name not in CALIBRATORS:
        raise ValueError(f"found calibrator {name!r}, accepted {', '.join(CALIBRATORS)}")
    return CALIBRATORS[name].from_json(document["parameters"])


StoredCalibrator = Annotated[
    Calibrator,
    PlainValidator(_read_calibrator),
    PlainSerializer(lambda fitted: {"name": fitted.name, "parameters": fitted.to_json()}),
]
"""A calibrator of any kind, stored as its name and its parameters."""


def unknown_calibrators(document: Any) -> list[str]:
    """List the calibrator names in a stored document that CALIBRATORS does not have, sorted."""
    if isinstance(document, list):
        return sorted({name for part in document for name in unknown_calibrators(part)})
    if not isinstance(document, dict):
        return []
    own = document.get("calibrator")
    name = own.get("name") if isinstance(own, dict) else None
    unknown = {str(name)} if name is not None and name not in CALIBRATORS else set()
    return sorted(unknown.union(*map(unknown_calibrators, document.values())))


def choose_calibrator(
    log_odds: FloatArray, missed: FloatArray, weight: FloatArray, group: IntArray, fold: IntArray
) -> Calibrator:
    """Choose a calibrator by its out-of-fold log loss, and fit it to everything.

    Takes out-of-fold log-odds, outcomes 0/1, weights, and codes of groups and folds, [n] each. No
    fold may split a group. Each kind is judged on each fold after a fit to the other folds. Gains
    in log loss are summed by group. The kind with the largest gain wins if the gain exceeds
    `NOISE` standard errors. Otherwise the choice is `none`.
    """
    best = Calibrator
    held = fold == np.unique(fold)[:, None]
    if len(held) > 1:
        base, most = log_loss(log_odds, missed), 0.0
        _, code = np.unique(group, return_inverse=True)
        for name, fewest in FEWEST.items():
            if len(missed) < fewest:
                continue
            gain = np.empty(len(missed))
            fits = CALIBRATORS[name].fit(log_odds, missed, ~held * weight)
            for rows, fitted in zip(held, fits, strict=True):
                value = fitted.apply(log_odds[rows])
                gain[rows] = base[rows] + np.log(np.where(missed[rows] > 0, value, 1 - value))
            by_group = np.bincount(code, weights=weight * gain)
            if by_group.sum() > max(most, NOISE * float(np.sqrt((by_group**2).sum()))):
                best, most = CALIBRATORS[name], float(by_group.sum())
    return best.fit(log_odds, missed, weight[None])[0]


# ---- The prior, the fits, and the stored estimator.

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
class Prior(Stored):
    """Coefficients over z-scored signals, and how much they differ between collections.

    `names` and `coefficients` have p values. `spread` has 1 + p standard deviations, that of the
    intercept first. The log-odds of a miss are intercept + z-scores @ coefficients.
    """

    names: tuple[str, ...]
    coefficients: tuple[float, ...]
    intercept: float
    spread: tuple[float, ...]

    @functools.cached_property
    def id(self) -> str:
        """Hash of the names and numbers of the prior, 16 hex digits."""
        return digest(dataclasses.asdict(self), 16)

    def over(self, names: Sequence[str]) -> FloatArray:
        """Return the coefficients of `names` in their order; 0 for an unknown signal."""
        known = dict(zip(self.names, self.coefficients, strict=True))
        return np.array([known.get(name, 0.0) for name in names])

    def spread_over(self, names: Sequence[str]) -> FloatArray:
        """Return the spread of each coefficient of `names`; the mean for an unknown signal."""
        known = dict(zip(self.names, self.spread[1:], strict=True))
        usual = float(np.mean(self.spread[1:])) if self.names else 0.0
        return np.array([known.get(name, usual) for name in names])


@functools.cache
def load_prior(kind: Kind = "any") -> Prior:
    """Read the shipped prior of a kind of strategy; `any` was fitted on all kinds together."""
    text = (files("rag_eval.uncertainty") / PRIOR_FILE).read_text(encoding="utf-8")
    return Prior.from_json(json.loads(text)[kind])


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


class Fitted(NamedTuple):
    """A head, and the covariance of its intercept and coefficients, [1 + p, 1 + p], by groups."""

    head: Head
    covariance: Callable[[IntArray], FloatArray]


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

    def covariance(group: IntArray) -> FloatArray:
        # The best penalty is uncertain too, so the next weaker penalty widens the interval.
        weaker = penalties[min(chosen + 1, len(PENALTIES) - 1)]
        within = regression.covariance(found, weight, weaker, group)
        return np.asarray(back @ within @ back.T)

    return Fitted(head, covariance)


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
    head = Head(tuple(names), *scaled, *log_odds, np.nan, Calibrator())
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
