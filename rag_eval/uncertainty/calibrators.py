"""The calibrators to choose from, and the choice: one is switched on only where it earns it; the default is none.

Belongs here: their names, reading and writing them, and which one is taken. What each is stands in `calibrator_kinds`; how the log-odds come
about in `head`; how good the result is, in the validation.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rag_eval.records.uncertainty import CalibratorName
from rag_eval.uncertainty.calibrator_kinds import (
    Beta,
    Calibrator,
    Isotonic,
    Platt,
    Uncalibrated,
    VennAbers,
)
from rag_eval.uncertainty.labelled import FloatArray, IntArray
from rag_eval.uncertainty.ridge import log_loss
from rag_eval.uncertainty.venn_abers import Steps

KINDS: Final[Mapping[CalibratorName, type[Calibrator]]] = {
    "none": Uncalibrated,
    "platt": Platt,
    "beta": Beta,
    "isotonic": Isotonic,
    "venn_abers": VennAbers,
}
FEWEST: Final[Mapping[CalibratorName, int]] = {
    "none": 0,
    "platt": 25,
    "beta": 100,
    "isotonic": 400,
    "venn_abers": 400,
}
"""Outcomes under which a calibrator is not considered: isotonic and Venn-ABERS cost skill under 400."""
NOISE = 2.0
"""Standard errors (over groups) by which the out-of-fold log loss must fall before a calibrator is switched on."""


def _steps(listed: Mapping[str, Sequence[float]]) -> Steps:
    return Steps(np.array(listed["knots"]), np.array(listed["at"]), np.array(listed["between"]))


def written(calibrator: Calibrator) -> dict[str, Any]:
    """Write a calibrator as JSON."""
    return {"name": calibrator.name, "parameters": calibrator.parameters()}


def read(document: Mapping[str, Any]) -> Calibrator:
    """Read what `written` wrote, exactly."""
    given = document["parameters"]
    match document["name"]:
        case "none":
            return Uncalibrated()
        case "platt":
            return Platt(given["intercept"], given["slope"])
        case "beta":
            return Beta(given["intercept"], given["a"], given["b"])
        case "isotonic":
            return Isotonic(_steps(given["steps"]), given["edge"])
        case "venn_abers":
            return VennAbers(_steps(given["low"]), _steps(given["high"]), given["edge"])
        case other:
            raise ValueError(f"found calibrator {other!r}, accepted {', '.join(KINDS)}")


def choose(
    log_odds: FloatArray, missed: FloatArray, weight: FloatArray, group: IntArray, fold: IntArray
) -> Calibrator:
    """Choose a calibrator by its out-of-fold log loss, and fit it to everything.

    Each is fitted on the other folds and judged on the one left out. It stands against none by the mean difference of log loss, summed by
    group; the one with the lowest log loss among those better than none by more than `NOISE` standard errors is taken, else none.

    Parameters
    ----------
    log_odds
        float64 [n] out-of-fold log-odds of the estimator.
    missed, weight
        float64 [n] outcomes 0/1 and weights.
    group, fold
        int [n] group and fold codes; folds do not split groups.

    Returns
    -------
    Calibrator
        Fitted to all n; `Uncalibrated` where nothing is better.
    """
    base = log_loss(log_odds, missed)
    _, code = np.unique(group, return_inverse=True)
    best: type[Calibrator] = Uncalibrated
    most = 0.0
    for name, fewest in FEWEST.items():
        if name == "none" or len(missed) < fewest:
            continue
        gain = np.zeros(len(missed))
        for at in np.unique(fold):
            held = fold == at
            if held.all():
                break
            value = (
                KINDS[name].fit(log_odds[~held], missed[~held], weight[~held]).apply(log_odds[held])
            )
            gain[held] = base[held] + np.log(np.where(missed[held] > 0, value, 1 - value))
        by_group = np.bincount(code, weights=weight * gain)
        if by_group.sum() > max(most, NOISE * float(np.sqrt((by_group**2).sum()))):
            best, most = KINDS[name], float(by_group.sum())
    return best.fit(log_odds, missed, weight)
