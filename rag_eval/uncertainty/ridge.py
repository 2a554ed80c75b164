"""Penalised logistic regression, exactly solved for many weights and penalties of one design at a time, and its covariance.

Belongs here: the numerics. Not here: what the columns mean, how a penalty is chosen (`head`).
"""

import numpy as np

from rag_eval.uncertainty.labelled import FloatArray, IntArray

MAX_STEPS, MAX_HALVINGS = 100, 40
TOLERANCE = 1e-12
"""Newton decrement (twice the distance to the minimum, in units of log likelihood) at which a problem is solved."""
LIMIT = 30.0
"""Log-odds are kept within +-LIMIT where they become probabilities, so that these are never 0 or 1."""


def sigmoid(log_odds: FloatArray) -> FloatArray:
    """Probability of log-odds, in (0, 1), never 0 or 1."""
    probability: FloatArray = 0.5 + 0.5 * np.tanh(np.clip(log_odds, -LIMIT, LIMIT) / 2)
    return probability


def log_loss(log_odds: FloatArray, outcome: FloatArray) -> FloatArray:
    """Minus log likelihood of 0/1 outcomes, elementwise, from log-odds (no probability is formed, nothing is clipped)."""
    loss: FloatArray = (
        np.maximum(log_odds, 0) + np.log1p(np.exp(-np.abs(log_odds))) - outcome * log_odds
    )
    return loss


def solve(
    design: FloatArray,
    outcome: FloatArray,
    weight: FloatArray,
    penalty: FloatArray,
    centre: FloatArray,
) -> FloatArray:
    """Minimise ``sum_i w_i log_loss_i + sum_j penalty_j (b_j - centre_j)^2 / 2`` by Newton steps with halving, m problems at once.

    Parameters
    ----------
    design
        float64 [n, q]; an intercept is a column of ones.
    outcome
        float64 [n] 0 or 1.
    weight
        float64 [m, n], 0 or more; a row with weight 0 is not seen.
    penalty
        float64 [m, q], 0 or more; give each column of the design a penalty or enough rows, or the problem has no single solution.
    centre
        float64 [q] what the penalty draws towards.

    Returns
    -------
    array
        float64 [m, q] coefficients.

    Raises
    ------
    ArithmeticError
        A problem was not solved in 100 steps: its columns differ in size by more than doubles can hold; z-scores never do.

    References
    ----------
    le Cessie & van Houwelingen (1992), Applied Statistics 41:191-201.
    """
    m, q = penalty.shape
    upper = np.triu_indices(q)
    products = _products(design)
    result = np.repeat(centre[None, :], m, axis=0)
    active = np.arange(m)
    value = _objective(result, (design, outcome, weight, penalty, centre))
    for _ in range(MAX_STEPS):
        at, w, lam = result[active], weight[active], penalty[active]
        mean = sigmoid(at @ design.T)
        gradient = (w * (mean - outcome)) @ design + lam * (at - centre)
        hessian = np.empty((len(active), q, q))
        hessian[:, upper[0], upper[1]] = (w * mean * (1 - mean)) @ products
        hessian[:, upper[1], upper[0]] = hessian[:, upper[0], upper[1]]
        hessian[:, np.arange(q), np.arange(q)] += lam + TOLERANCE
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        open_ = (gradient * step).sum(axis=1) > TOLERANCE * (1 + value[active])
        if not open_.any():
            return result
        active, at, step = active[open_], at[open_], step[open_]
        result[active], value[active] = _descend(
            at, step, value[active], (design, outcome, weight[active], penalty[active], centre)
        )
    raise ArithmeticError(
        f"{len(active)} of {m} logistic regressions were not solved in {MAX_STEPS} steps"
    )


def _products(design: FloatArray) -> FloatArray:
    """[n, q (q + 1) / 2] products of each two columns, in the order of `np.triu_indices`; kept column by column, which is written and read in one go."""
    columns = np.ascontiguousarray(design.T)
    q, n = columns.shape
    products = np.empty((q * (q + 1) // 2, n))
    at = 0
    for j in range(q):
        np.multiply(columns[j], columns[j:], out=products[at : at + q - j])
        at += q - j
    return products.T


def _objective(
    at: FloatArray, problem: tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]
) -> FloatArray:
    design, outcome, weight, penalty, centre = problem
    total: FloatArray = (weight * log_loss(at @ design.T, outcome)).sum(axis=1) + 0.5 * (
        penalty * (at - centre) ** 2
    ).sum(axis=1)
    return total


def _descend(
    at: FloatArray,
    step: FloatArray,
    value: FloatArray,
    problem: tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Take the Newton step, halved where it would not lower the objective."""
    factor = np.ones(len(at))
    for _ in range(MAX_HALVINGS):
        tried = at - factor[:, None] * step
        found = _objective(tried, problem)
        worse = found > value + 1e-9 * (1 + np.abs(value))
        if not worse.any():
            break
        factor[worse] /= 2
    return tried, found


def covariance(
    design: FloatArray,
    outcome: FloatArray,
    *,
    weight: FloatArray,
    penalty: FloatArray,
    coefficients: FloatArray,
    group: IntArray,
) -> FloatArray:
    """Cluster-robust covariance of penalised coefficients, with the bias that the penalty brings.

    ``H^-1 (M + P) H^-1``: H the penalised Hessian, P the penalty, M the sum of squared group scores times G / (G - 1), with residuals
    divided by 1 - leverage because a fit draws near to its own rows. Were the rows independent and the model true, M would estimate H - P and the whole
    would be H^-1, the posterior covariance, whose intervals cover on average over the points because they count the bias as variance.

    Parameters
    ----------
    design, outcome
        As in `solve`.
    weight
        float64 [n].
    penalty, coefficients
        float64 [q].
    group
        int [n]; rows of a group may depend on each other.

    Returns
    -------
    array
        float64 [q, q].

    References
    ----------
    Liang & Zeger (1986), Biometrika 73:13-22. MacKinnon & White (1985), J. Econometrics 29:305-325 (leverage).
    Nychka (1988), JASA 83:1134-1143; Marra & Wood (2012), Scand. J. Statistics 39:53-74.
    """
    mean = sigmoid(design @ coefficients)
    information = (design * (weight * mean * (1 - mean))[:, None]).T @ design
    inverse = np.linalg.inv(information + np.diag(penalty + TOLERANCE))
    _, code = np.unique(group, return_inverse=True)
    n_groups = int(code.max(initial=-1)) + 1
    scores = np.zeros((n_groups, design.shape[1]))
    leverage = weight * mean * (1 - mean) * np.einsum("ni,ij,nj->n", design, inverse, design)
    residual = (outcome - mean) / np.maximum(1 - leverage, 0.1)
    np.add.at(scores, code, (weight * residual)[:, None] * design)
    whole: FloatArray = (
        inverse @ (n_groups / max(n_groups - 1, 1) * scores.T @ scores + np.diag(penalty)) @ inverse
    )
    return whole
