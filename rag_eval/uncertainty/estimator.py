"""The estimator of miss rates: logistic regression over signals, trusted as far as it helps.

`fit_head` fits scikit-learn's penalised logistic regression once. The shipped `Prior` enters as one
more column, so that outcomes decide its level and its slope. A test of the signals as a whole says
how far the outcomes support the fit; so far the stated rate moves away from the base rate.
`MissRateModel` is the stored estimator.
"""

import dataclasses
import functools
import heapq
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import ArrayLike
from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.types import BinaryTarget
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.validation import Labelled

PRIOR_FILE: Final = "prior.json"
Kind = Literal["any", "bm25", "vector", "hybrid"]
"""Kinds of strategies with a prior, because a signal differs for lexical and dense lists."""
PRIOR_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
SIGNALS_SD: Final = {True: 1.0, False: 1.8}
"""Expected SD of the log-odds by all signals together: around the prior (True), or without a prior.

A penalty that inner folds choose gains less than 0.02 of skill and needs many times the fits.
"""
SLOPE_PENALTY: Final = 0.25
"""Precision of the factor on the prior's log-odds, around 0: few outcomes suffice to learn it."""
DOUBT: Final = 3.5
"""Deviations of the test of all signals that a fit needs before it is trusted at all.

The section `harm` of benchmarks/miss_rate.py shows what other values cost and protect.
"""
N_FOLDS: Final = 10
CLIP: Final = 4.0
"""Bound of the z-scores: one strange query must not decide a coefficient or its own rate."""
LIMIT: Final = 30.0
"""Bound of the log-odds, so that probabilities are never 0 or 1."""
Z95: Final = 1.959963984540054


def sigmoid(log_odds: FloatArray) -> FloatArray:
    """Turn log-odds into probabilities in (0, 1)."""
    return np.asarray(1 / (1 + np.exp(-np.clip(log_odds, -LIMIT, LIMIT))))


# ---- Records that are stored as JSON values, by the annotations of their fields.

Floats = Annotated[
    FloatArray,
    PlainValidator(lambda values: np.array(values, dtype=np.float64)),
    PlainSerializer(lambda values: values.tolist()),
]
"""An array that is stored as nested lists without rounding."""


# Callers ignore a type error: mypy checks __hash__ of instances, but the key is the class.
@functools.cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class Stored:
    """A dataclass that is stored as JSON values."""

    def to_json(self) -> dict[str, object]:
        """Write the fields as JSON values, exactly."""
        values: dict[str, object] = _adapter(type(self)).dump_python(self, mode="json")  # type: ignore[arg-type]  # see above
        return values

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read fields from JSON values that `to_json` wrote; further keys are ignored."""
        record: Self = _adapter(cls).validate_python(document)  # type: ignore[arg-type]  # see above
        return record


# ---- The shipped prior.


@dataclasses.dataclass(frozen=True)
class Prior(Stored):
    """Coefficients over z-scored signals, and how much collections differ from them.

    `names` and `coefficients` have p values. The log-odds of a miss are intercept + z-scores @
    coefficients. `spread` is the standard deviation of these log-odds between collections.
    """

    names: tuple[str, ...]
    coefficients: tuple[float, ...]
    intercept: float
    spread: float

    @functools.cached_property
    def id(self) -> str:
        """Hash of the names and numbers of the prior, 16 hex digits."""
        return digest(dataclasses.asdict(self), 16)

    def over(self, names: Sequence[str]) -> FloatArray:
        """Return the coefficients of `names` in their order; 0 for an unknown signal."""
        by_name = dict(zip(self.names, self.coefficients, strict=True))
        return np.array([by_name.get(name, 0.0) for name in names])

    @classmethod
    def shipped(cls, kind: Kind = "any") -> Self:
        """Read the shipped prior of a kind of strategy; `any` was fitted on all kinds together."""
        return cls.from_json(_read_priors()[kind])

    @staticmethod
    def fitted_on() -> str:
        """Name the kinds of collections that the shipped priors were fitted on."""
        kinds = _read_priors()["provenance"]["fitted_on"]
        return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items())


@functools.cache
def _read_priors() -> Mapping[str, Any]:
    text = (files("rag_eval.uncertainty") / PRIOR_FILE).read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return document


# ---- A single fit.


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
    """A single fit: the base rate, moved towards the fitted probability as far as it is trusted.

    ``rate + trust * (sigmoid(intercept + z-scores @ coefficients) - rate)``. `mean` and `scale` [p]
    are the scaling of the signals. `trust` 0 states the base rate for every query, 1 the fit.
    """

    names: tuple[str, ...]
    mean: Floats
    scale: Floats
    intercept: float
    coefficients: Floats
    rate: float
    trust: float = 1.0

    def z_scores(self, signals: FloatArray, names: Sequence[str]) -> FloatArray:
        """Compute z-scores in the head's order, [n, p], from signals in any order.

        Raises ValueError where a signal is missing; further signals are ignored.
        """
        places = {name: place for place, name in enumerate(names)}
        if missing := [name for name in self.names if name not in places]:
            raise ValueError(f"signals are missing: {', '.join(missing)}")
        ordered = signals[:, [places[name] for name in self.names]]
        return Scaling(self.mean, self.scale).z(ordered)

    def log_odds(self, signals: FloatArray, names: Sequence[str]) -> FloatArray:
        """Compute the fitted log-odds, [n]."""
        return np.asarray(self.z_scores(signals, names) @ self.coefficients + self.intercept)

    def predict(self, signals: FloatArray, names: Sequence[str]) -> FloatArray:
        """Predict the probability of a miss, [n] in (0, 1)."""
        return self.mix(sigmoid(self.log_odds(signals, names)))

    def mix(self, fitted: FloatArray) -> FloatArray:
        """Move the base rate towards fitted probabilities, [n]."""
        return self.rate + self.trust * (fitted - self.rate)


def fit_head(
    labelled: Labelled, *, prior: Prior | None, unlabelled: FloatArray | None = None
) -> Head:
    """Fit once, and trust the fit as far as the outcomes support it.

    Coefficients are drawn towards a multiple of the prior, which is learned too, or towards 0.
    `unlabelled` holds signals [m, p] of further retrievals, for the z-scores. Equal outcomes give
    the smoothed rate for every query.
    """
    missed, p = labelled.missed, labelled.signals.shape[1]
    weight = _effective(labelled.weight)
    rate = float((weight @ missed + 0.5) / (weight.sum() + 1))
    every_signal = (
        labelled.signals if unlabelled is None else np.vstack([labelled.signals, unlabelled])
    )
    scaled = fit_scaling(every_signal)
    if missed.all() or not missed.any():
        level = float(np.log(rate) - np.log1p(-rate))
        return Head(labelled.names, *scaled, level, np.zeros(p), rate, 0.0)
    from sklearn.linear_model import LogisticRegression

    z, penalty = scaled.z(labelled.signals), p / SIGNALS_SD[prior is not None] ** 2
    direction = np.zeros(p) if prior is None else prior.over(labelled.names)
    # The penalty falls on the coefficient, so a column that is c times larger has 1 / c**2 of it.
    wide = direction * np.sqrt(penalty / SLOPE_PENALTY)
    model = LogisticRegression(C=1 / penalty, solver="newton-cholesky")
    model.fit(np.column_stack([z, z @ wide]), missed, sample_weight=weight)
    coefficients = model.coef_[0, :p] + model.coef_[0, p] * wide
    residual = weight * (missed - np.average(missed, weights=weight))
    scores = residual[:, None] * (z - np.average(z, axis=0, weights=weight))
    trust = _earn_trust(scores, labelled.group, _expected_spread(prior, labelled.names))
    return Head(labelled.names, *scaled, float(model.intercept_[0]), coefficients, rate, trust)


def _expected_spread(prior: Prior | None, names: Sequence[str]) -> FloatArray:
    """Return the covariance of the coefficients before any outcome, [p, p].

    Z-scored signals share the expected variance.
    """
    shared = SIGNALS_SD[prior is not None] ** 2 / len(names)
    direction = np.zeros(len(names)) if prior is None else prior.over(names)
    return np.asarray(np.eye(len(names)) * shared + np.outer(direction, direction) / SLOPE_PENALTY)


def _fit_covariance(head: Head, labelled: Labelled, *, prior: Prior | None) -> FloatArray:
    """Compute the posterior covariance of a fit's intercept and coefficients, [1 + p, 1 + p].

    That is the inverse of the penalised information. Its intervals cover on average over the
    points, because they count the bias of the penalty as variance (Nychka 1988, JASA 83:1134-1143).
    """
    weight = _effective(labelled.weight)
    mean = sigmoid(head.log_odds(labelled.signals, labelled.names))
    z = Scaling(head.mean, head.scale).z(labelled.signals)
    design = np.hstack([np.ones((len(z), 1)), z])
    information = (design.T * (weight * mean * (1 - mean))) @ design
    information[1:, 1:] += np.linalg.inv(_expected_spread(prior, labelled.names))
    return np.asarray(np.linalg.inv(information))


def _effective(weight: FloatArray) -> FloatArray:
    """Scale weights to add up to Kish's effective sample size, as unequal weights tell less."""
    return np.asarray(weight * (weight.sum() / (weight**2).sum()))


def _earn_trust(scores: FloatArray, group: IntArray, spread: FloatArray) -> float:
    """Compute how far outcomes support a fit, 0 to 1.

    `scores` [n, p] are the derivatives of the log likelihood at coefficients of 0, and `spread`
    [p, p] the covariance of coefficients that the penalty expects. The global test asks whether
    groups agree on the direction: it adds up ``u_g' spread u_h`` over pairs of groups with scores
    u, and divides by the deviation of this sum for signals of noise (Goeman, van de Geer & van
    Houwelingen 2006, JRSS B 68:477-493). The trust for a ratio z is ``1 - (DOUBT / z)**2``, 0 below
    DOUBT. Outcomes of one group do not support one another.
    """
    _, code = np.unique(group, return_inverse=True)
    by_group = np.zeros((int(code.max()) + 1, scores.shape[1]))
    np.add.at(by_group, code, scores)
    total, weighted = by_group.sum(axis=0), by_group @ spread
    alone = (weighted * by_group).sum(axis=1)
    agreement = total @ spread @ total - alone.sum()
    inner = by_group.T @ weighted
    deviation = np.sqrt(max(2 * float((inner * inner.T).sum() - (alone**2).sum()), 0.0))
    return 1 - (DOUBT * deviation / agreement) ** 2 if agreement > DOUBT * deviation else 0.0


# ---- The stored estimator.


class Miss(NamedTuple):
    """Event that counts as a miss."""

    target: BinaryTarget = "miss_any"
    k: int = 10


ANY_AT_10: Final = Miss()
"""The target that the shipped prior was fitted to."""


@dataclasses.dataclass(frozen=True, eq=False)
class MissRateModel(Stored):
    """The stored estimator of one strategy's miss rate.

    `head` is fitted to all outcomes and serves queries of groups without outcomes; `covariance` is
    that of its intercept and coefficients. Each fit in `folds` leaves a tenth of the groups out,
    and `fold_of_group` names the fit that did not see a group. `prior` is the id of the prior, or
    empty. `n`, `groups` and `misses` count the outcomes of the fit.
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
    schema_version: Literal[2] = 2

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

        The covariance of the coefficients gives an interval of the fitted log-odds. It is widened
        to the stated probability where that is drawn to the base rate.
        """
        value, low, high = self._predict_with_bounds(signals, names, group_ids)
        return np.minimum(low, value), np.maximum(high, value)

    def _predict_with_bounds(
        self, signals: FloatArray, names: Sequence[str], group_ids: Sequence[str] | None
    ) -> FloatArray:
        """Compute value, low and high, [3, n]."""
        groups = [""] * len(signals) if group_ids is None else group_ids
        fold = np.array([self.fold_of_group.get(group, -1) for group in groups], dtype=int)
        result = np.empty((3, len(signals)))
        for number in np.unique(fold):
            rows, head = fold == number, self.head if number < 0 else self.folds[number]
            log_odds, z = head.log_odds(signals[rows], names), head.z_scores(signals[rows], names)
            design = np.hstack([np.ones((len(z), 1)), z])
            reach = Z95 * np.sqrt(np.einsum("ni,ij,nj->n", design, self.covariance, design))
            value = head.mix(sigmoid(log_odds))
            result[:, rows] = value, sigmoid(log_odds - reach), sigmoid(log_odds + reach)
        return result

    @classmethod
    def fit(
        cls,
        labelled: Labelled,
        group_ids: Sequence[str],
        *,
        prior: Prior | None,
        seed: int,
        miss: Miss = ANY_AT_10,
        unlabelled: FloatArray | None = None,
    ) -> Self:
        """Fit the estimator to outcomes, and ten times more without a tenth of the groups.

        `group_ids` names the group of each row. `seed` deals the folds. `unlabelled` as in
        `fit_head`. Raises ValueError for fewer than two groups, because none could be held out.
        """
        fold = _deal_folds(labelled.group, np.random.default_rng(seed))
        whole, *folds = (
            fit_head(labelled.take(fold != number), prior=prior, unlabelled=unlabelled)
            for number in range(-1, int(fold.max()) + 1)
        )
        return cls(
            target=miss.target,
            k=miss.k,
            head=whole,
            covariance=_fit_covariance(whole, labelled, prior=prior),
            folds=tuple(folds),
            fold_of_group=dict(sorted(zip(group_ids, fold.tolist(), strict=True))),
            prior=prior.id if prior else "",
            n=len(labelled),
            groups=len(set(group_ids)),
            misses=int(labelled.missed.sum()),
        )

    @classmethod
    def from_prior(
        cls, prior: Prior, names: Sequence[str], unlabelled: FloatArray, miss: Miss = ANY_AT_10
    ) -> Self:
        """Build the estimator of a strategy without outcomes: the prior over its z-scores [m, p].

        The log-odds are multiplied by ``1 / sqrt(1 + pi v / 8)``, where v is their variance between
        collections, which gives the mean probability over collections (MacKay 1992, Neural
        Computation 4:720-736).
        """
        scaled = fit_scaling(unlabelled)
        factor = 1 / float(np.sqrt(1 + np.pi * prior.spread**2 / 8))
        level = factor * prior.intercept
        rate = float(1 / (1 + np.exp(-level)))
        head = Head(tuple(names), *scaled, level, factor * prior.over(names), rate)
        return cls(
            miss.target,
            miss.k,
            head,
            covariance=np.diag([prior.spread**2, *np.zeros(len(names))]),
            folds=(),
            fold_of_group={},
            prior=prior.id,
            n=0,
            groups=0,
            misses=0,
        )


def _deal_folds(group: IntArray, rng: np.random.Generator) -> IntArray:
    fold = _grouped_folds(group, N_FOLDS, rng)
    if not fold.any():
        raise ValueError("cross-validation needs outcomes of at least two groups")
    return fold


def _grouped_folds(group: ArrayLike, n_folds: int, rng: np.random.Generator) -> IntArray:
    """Deal whole groups into folds of nearly equal size; return fold codes from 0, [n].

    Groups are dealt from the largest to the smallest, equal sizes in random order. Each group goes
    into the smallest fold so far. With fewer groups than folds, each group is a fold.

    >>> _grouped_folds([5, 5, 5, 8, 8, 9], 2, np.random.default_rng(0)).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    _, code = np.unique(np.asarray(group, dtype=np.int64), return_inverse=True)
    sizes = np.bincount(code)
    order = rng.permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    heap = [(0, fold) for fold in range(n_folds)]
    fold_of = np.zeros(len(sizes), dtype=np.int64)
    for at, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        dealt, fold = heap[0]
        fold_of[at] = fold
        heapq.heapreplace(heap, (dealt + size, fold))
    return fold_of[code]


def cross_validate(
    labelled: Labelled, *, prior: Prior | None, repeats: int = 20, seed: int = 0
) -> FloatArray:
    """Predict out of fold, [repeats, n], with z-scores, fit and trust inside the fold.

    Each repeat deals ten new folds. The prior must not be fitted on these outcomes. Raises
    ValueError for fewer than two groups, because no group could be held out.
    """
    result = np.empty((repeats, len(labelled)))
    for row, rng in zip(result, np.random.default_rng(seed).spawn(repeats), strict=True):
        fold = _deal_folds(labelled.group, rng)
        for number in range(int(fold.max()) + 1):
            held_out = fold == number
            head = fit_head(labelled.take(~held_out), prior=prior)
            row[held_out] = head.predict(labelled.signals[held_out], labelled.names)
    return result
