"""Betting against the hypothesis that predictions are right within a tolerance: the capital is the evidence.

Belongs here: bets, stakes and what becomes of them. What is bet on, and what an alarm is, stands in `drift`.

Notes
-----
Null hypothesis, for "more misses than predicted": given all that came before, the mean of (missed - predicted) of the next group of
questions is at most the tolerance; for "fewer", likewise with the sign turned. Under it every product of (1 + bet * (mean - tolerance)) with
a bet fixed before the group is seen is a non-negative supermartingale, and so is any sum of such products with fixed weights. By Ville's
inequality a sum that starts at 1 ever reaches 2 / level with probability level / 2 at most: one may look after every outcome, and stop or
go on at will. Bets are constants and do not look at the prediction, so the hypothesis is one about the average question, not every risk.

Drift begins at some time, mostly not the first day, and a product that has lost for a year needs as long to recover. So only a part of the
capital is staked at once; the rest is staked little by little, so that after t groups `UNSTAKED * (1 + t / PACE) ** -0.5` of it still waits.

References
----------
Waudby-Smith & Ramdas (2024), JRSS-B 86:1-27, Estimating means of bounded random variables by betting. Ville (1939). Shafer (2021), JRSS-A
184:407-431 (capital as evidence).
"""

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

BETS: Final = (0.05, 0.1, 0.2, 0.35, 0.55, 0.8)
"""Shares of the wealth; a loss is at most 1 + tolerance, so a bet must stay under 1 / (1 + tolerance)."""
UNSTAKED, PACE = 0.8, 50.0
"""Share of the capital that is not staked before the first group, and how fast it is."""
FIRST_STAKES: Final = (math.log((1 - UNSTAKED) / len(BETS)),) * len(BETS)


def unstaked(count: Any) -> Any:
    """Share of the capital that waits after `count` groups."""
    return UNSTAKED * (1 + np.asarray(count) / PACE) ** -0.5


def staked(before: FloatArray, gains: FloatArray, stakes: FloatArray) -> FloatArray:
    """Logarithms of what the stakes became, [2, groups, bets]: w_t = gain_t * (w_(t-1) + stake_t), as cumulative sums.

    Parameters
    ----------
    before
        float64 [2, bets] logarithms before the first of these groups.
    gains
        float64 [2, groups, bets] logarithms of 1 + bet * excess.
    stakes
        float64 [groups] what is added to each bet before each group.
    """
    grown = np.cumsum(gains, axis=1)
    added = np.log(stakes)[None, :, None] - (grown - gains)
    added[:, 0] = np.logaddexp(added[:, 0], before)
    return np.asarray(np.logaddexp.accumulate(added, axis=1) + grown)


def log_capital(wealth: FloatArray, count: Any) -> Any:
    """Logarithm of the e-value: what waits and what the stakes became, over the last axis, without overflow."""
    waits = np.log(unstaked(count))[..., None]
    parts = np.concatenate([wealth, np.broadcast_to(waits, (*wealth.shape[:-1], 1))], axis=-1)
    return np.logaddexp.reduce(parts, axis=-1)
