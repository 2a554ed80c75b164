"""Penalised logistic regression: many weights and penalties at once, and the covariance of one."""

import dataclasses
import functools

import numpy as np

from rag_eval.core.arrays import Float32Array, FloatArray, IntArray

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
    def _products(self) -> Float32Array:
        """Products of each two columns, [n, q (q + 1) / 2], in the order of `np.triu_indices`.

        Single precision suffices, because they serve coarse solutions only.
        """
        columns = np.ascontiguousarray(self.design.T, dtype=np.float32)
        q, n = columns.shape
        products = np.empty((q * (q + 1) // 2, n), dtype=np.float32)
        start = 0
        for j in range(q):
            np.multiply(columns[j], columns[j:], out=products[start : start + q - j])
            start += q - j
        return products.T

    @functools.cached_property
    def _places(self) -> IntArray:
        """Place of each pair of columns in `_products`, [q, q]."""
        q = self.design.shape[1]
        places = np.empty((q, q), dtype=np.int64)
        rows, columns = np.triu_indices(q)
        places[rows, columns] = places[columns, rows] = np.arange(len(rows))
        return places

    def _information(self, curvature: FloatArray, *, coarse: bool) -> FloatArray:
        """Compute ``design' diag(c) design`` for each row c of curvatures [m, n], [m, q, q]."""
        q = self.design.shape[1]
        information = np.empty((len(curvature), q, q))
        if coarse and len(curvature) > 1:  # a single problem does not repay the products
            products = curvature.astype(np.float32) @ self._products
            information[:] = products[:, self._places]
        else:
            for row, c in zip(information, curvature, strict=True):
                row[:] = (self.design.T * c) @ self.design
        return information

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
