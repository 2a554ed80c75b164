"""Whether outcomes still fit the miss rates that were predicted for them: two one-sided betting e-processes, watched after every outcome.

Belongs here: the watch and its state. What an alarm does to a status is the ladder's business.

Notes
-----
Null hypothesis, for "more misses than predicted": given all that came before, the mean of (missed - predicted) of the next group of
questions is at most the tolerance; for "fewer", likewise with the sign turned. Under it every product of (1 + bet * (mean - tolerance)) with
a bet fixed before the group is seen is a non-negative supermartingale, and so is any sum of such products with fixed weights. By Ville's
inequality a sum that starts at 1 ever reaches 2 / level with probability level / 2 at most: one may look after every outcome, and stop or
go on at will. Bets are constants and do not look at the prediction, so the hypothesis is one about the average question, not every risk.

Drift begins at some time, mostly not the first day, and a product that has lost for a year needs as long to recover. So only a part of the
capital is staked at once; the rest is staked little by little, so that after t groups `UNSTAKED * (1 + t / PACE) ** -0.5` of it still waits.

Outcomes of one group are averaged before they count, and a group counts once: later outcomes of a group that was seen say little new
given the earlier ones, and would break the martingale.

References
----------
Waudby-Smith & Ramdas (2024), JRSS-B 86:1-27, Estimating means of bounded random variables by betting. Ville (1939).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from rag_eval.records.problems import InputError, Problem

FloatArray = npt.NDArray[np.float64]

LEVEL = 0.02
"""Probability of any alarm, ever, while both hypotheses hold."""
TOLERANCE = 0.05
BETS: Final = (0.05, 0.1, 0.2, 0.35, 0.55, 0.8)
"""Shares of the wealth; a loss is at most 1 + tolerance, so a bet must stay under 1 / (1 + tolerance)."""
MAX_TOLERANCE = 0.2
UNSTAKED, PACE = 0.8, 50.0
"""Share of the capital that is not staked before the first group, and how fast it is."""
_SHOWN = 700.0  # exp of more is no float
_FIRST_STAKES: Final = (math.log((1 - UNSTAKED) / len(BETS)),) * len(BETS)

Direction = Literal["more misses than predicted", "fewer misses than predicted"]
DIRECTIONS: Final[tuple[Direction, Direction]] = ("more misses than predicted", "fewer misses than predicted")


@dataclasses.dataclass(frozen=True)
class Drift:
    """The state of the watch.

    Parameters
    ----------
    wealth
        Logarithm of what was staked on each bet and what became of it, for more and for fewer misses, 2 x len(BETS).
    n, groups
        Outcomes that counted, and the ids of their groups: a group counts once.
    sum_missed, sum_predicted
        Over groups, of their means.
    first_alarm_at
        How many groups had counted at the first alarm; None while there was none. An alarm stays.
    direction
        Of the first alarm.
    level, tolerance
        Of the test.
    trace
        float64 [groups added last, 2] logarithms of both e-values after each group; not stored.
    """

    level: float = LEVEL
    tolerance: float = TOLERANCE
    wealth: tuple[tuple[float, ...], tuple[float, ...]] = (_FIRST_STAKES, _FIRST_STAKES)
    n: int = 0
    groups: tuple[str, ...] = ()
    sum_missed: float = 0.0
    sum_predicted: float = 0.0
    first_alarm_at: int | None = None
    direction: Direction | None = None
    trace: FloatArray = dataclasses.field(default_factory=lambda: np.zeros((0, 2)), compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse levels and tolerances that are none."""
        if not (0 < self.level < 1 and 0 <= self.tolerance <= MAX_TOLERANCE):
            raise ValueError(f"level {self.level}, tolerance {self.tolerance}; accepted: a level between 0 and 1, a tolerance of 0 to {MAX_TOLERANCE}")

    @property
    def alarm(self) -> bool:
        """Whether either hypothesis was ever rejected."""
        return self.first_alarm_at is not None

    @property
    def bar(self) -> float:
        """The e-value that is an alarm."""
        return 2 / self.level

    @property
    def e_high(self) -> float:
        """Evidence for more misses than predicted plus the tolerance."""
        return float(np.exp(min(_log_capital(np.asarray(self.wealth[0]), len(self.groups)), _SHOWN)))

    @property
    def e_low(self) -> float:
        """Evidence for fewer misses than predicted minus the tolerance."""
        return float(np.exp(min(_log_capital(np.asarray(self.wealth[1]), len(self.groups)), _SHOWN)))

    def to_json(self) -> dict[str, Any]:
        """Write the state and what it shows as JSON values."""
        state = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "trace"}
        n_groups = len(self.groups)
        means = {name: getattr(self, f"sum_{name}") / n_groups if n_groups else None for name in ("missed", "predicted")}
        shown = {"alarm": self.alarm, "e_high": self.e_high, "e_low": self.e_low, "bar": self.bar, "n_groups": n_groups, "mean_missed": means["missed"], "mean_predicted": means["predicted"]}
        return {**state, "wealth": [list(row) for row in self.wealth], "groups": list(self.groups), **shown}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Drift":
        """Read a stored state; what can be computed from it is not read.

        Raises
        ------
        InputError
            It is not a state that `to_json` wrote.
        """
        try:
            high, low = (tuple(float(bet) for bet in row) for row in value["wealth"])
            groups = tuple(str(name) for name in value["groups"])
            at, direction = value["first_alarm_at"], value["direction"]
            sums = float(value["sum_missed"]), float(value["sum_predicted"])
            state = cls(float(value["level"]), float(value["tolerance"]), (high, low), int(value["n"]), groups, *sums, None if at is None else int(at), direction)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable(f"{type(error).__name__}: {error}") from error
        if not (len(high) == len(low) == len(BETS) and len(set(groups)) == len(groups) and np.isfinite([*high, *low, *sums]).all()):
            raise _unreadable(f"{len(high)} and {len(low)} bets, {len(groups)} groups, sums {sums}")
        if (at is None) != (direction is None) or direction not in {None, *DIRECTIONS}:
            raise _unreadable(f"an alarm at {at} in the direction {direction}")
        return state


def _unreadable(found: str) -> InputError:
    return InputError(Problem("bad_drift_state", "The stored state of the drift watch cannot be read; start it anew from the outcomes.", found=found))


def watch(predicted: FloatArray, missed: FloatArray, groups: Sequence[str], state: Drift | None = None) -> Drift:
    """Add outcomes, in the order in which they came, to a watch.

    Parameters
    ----------
    predicted
        float64 [n] miss probabilities that were shown (or one calibrated rate, repeated), fixed before the outcome was known.
    missed
        [n] outcomes, 0 or 1. Of a random sample: complaints are none.
    groups
        n group ids. A group counts when its first outcome comes, with the mean of its outcomes in this call; groups in `state` are left out.
    state
        Of the outcomes before; None starts a watch with the standard level and tolerance. `Drift(level=..., tolerance=...)` starts another.

    Returns
    -------
    Drift
        The new state; `trace` holds the groups added now.

    Raises
    ------
    ValueError
        Parts of different lengths, or values outside [0, 1].
    """
    before = Drift() if state is None else state
    y, p = np.asarray(missed, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if not len(y) == len(p) == len(groups) or y.ndim != 1 or p.ndim != 1:
        raise ValueError(f"{len(p)} predictions, {len(y)} outcomes, {len(groups)} groups; accepted: as many of each")
    if not (((y >= 0) & (y <= 1)).all() and ((p >= 0) & (p <= 1)).all()):
        raise ValueError("predictions and outcomes must lie in [0, 1]")
    seen = set(before.groups)
    places: dict[str, int] = {}
    code = np.fromiter((-1 if name in seen else places.setdefault(name, len(places)) for name in groups), dtype=np.int64, count=len(groups))
    kept = code >= 0
    if not places:
        return dataclasses.replace(before, trace=np.zeros((0, 2)))
    size = np.bincount(code[kept])
    mean_missed, mean_predicted = (np.bincount(code[kept], part[kept]) / size for part in (y, p))
    excess = mean_missed - mean_predicted
    gains = np.log1p(np.multiply.outer(np.stack([excess, -excess]) - before.tolerance, np.asarray(BETS)))
    count = len(before.groups) + np.arange(len(places) + 1)
    wealth = _staked(np.asarray(before.wealth), gains, -np.diff(_unstaked(count)) / len(BETS))
    trace = _log_capital(wealth, count[1:])
    first, direction = before.first_alarm_at, before.direction
    over = (trace >= np.log(before.bar)).any(axis=0)
    if first is None and over.any():
        at = int(np.argmax(over))
        first, direction = len(before.groups) + at + 1, DIRECTIONS[int(np.argmax(trace[:, at]))]
    high, low = (tuple(row.tolist()) for row in wealth[:, -1])
    return Drift(
        before.level,
        before.tolerance,
        (high, low),
        before.n + int(kept.sum()),
        (*before.groups, *places),
        before.sum_missed + float(mean_missed.sum()),
        before.sum_predicted + float(mean_predicted.sum()),
        first,
        direction,
        trace.T,
    )


def _unstaked(count: Any) -> Any:
    """Share of the capital that waits after `count` groups."""
    return UNSTAKED * (1 + np.asarray(count) / PACE) ** -0.5


def _staked(before: FloatArray, gains: FloatArray, stakes: FloatArray) -> FloatArray:
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


def _log_capital(wealth: FloatArray, count: Any) -> Any:
    """Logarithm of the e-value: what waits and what the stakes became, over the last axis, without overflow."""
    waits = np.log(_unstaked(count))[..., None]
    parts = np.concatenate([wealth, np.broadcast_to(waits, (*wealth.shape[:-1], 1))], axis=-1)
    return np.logaddexp.reduce(parts, axis=-1)
