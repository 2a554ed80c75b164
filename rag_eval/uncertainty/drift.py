"""Whether outcomes still fit the miss rates that were predicted for them: two one-sided betting e-processes, watched after every outcome.

Belongs here: the watch and its state. What an alarm does to a status is the ladder's business.

The test is that of `betting`: one may look after every outcome, and stop or go on at will. Outcomes of one group are averaged before they
count, and a group counts once: later outcomes of a group that was seen say little new given the earlier ones, and would break the martingale.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from rag_eval.records.problems import InputError, Problem
from rag_eval.uncertainty.betting import BETS, FIRST_STAKES, log_capital, staked, unstaked

FloatArray = npt.NDArray[np.float64]

LEVEL = 0.02
"""Probability of any alarm, ever, while both hypotheses hold."""
TOLERANCE = 0.05
MAX_TOLERANCE = 0.2
_SHOWN = 700.0  # exp of more is no float

Direction = Literal["more misses than predicted", "fewer misses than predicted"]
DIRECTIONS: Final[tuple[Direction, Direction]] = (
    "more misses than predicted",
    "fewer misses than predicted",
)


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
    wealth: tuple[tuple[float, ...], tuple[float, ...]] = (FIRST_STAKES, FIRST_STAKES)
    n: int = 0
    groups: tuple[str, ...] = ()
    sum_missed: float = 0.0
    sum_predicted: float = 0.0
    first_alarm_at: int | None = None
    direction: Direction | None = None
    trace: FloatArray = dataclasses.field(
        default_factory=lambda: np.zeros((0, 2)), compare=False, repr=False
    )

    def __post_init__(self) -> None:
        """Refuse levels and tolerances that are none."""
        if not (0 < self.level < 1 and 0 <= self.tolerance <= MAX_TOLERANCE):
            raise ValueError(
                f"level {self.level}, tolerance {self.tolerance}; accepted: a level between 0 and 1, a tolerance of 0 to {MAX_TOLERANCE}"
            )

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
        return float(np.exp(min(log_capital(np.asarray(self.wealth[0]), len(self.groups)), _SHOWN)))

    @property
    def e_low(self) -> float:
        """Evidence for fewer misses than predicted minus the tolerance."""
        return float(np.exp(min(log_capital(np.asarray(self.wealth[1]), len(self.groups)), _SHOWN)))

    def to_json(self) -> dict[str, Any]:
        """Write the state and what it shows as JSON values."""
        state = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "trace"
        }
        n_groups = len(self.groups)
        means = {
            name: getattr(self, f"sum_{name}") / n_groups if n_groups else None
            for name in ("missed", "predicted")
        }
        shown = {
            "alarm": self.alarm,
            "e_high": self.e_high,
            "e_low": self.e_low,
            "bar": self.bar,
            "n_groups": n_groups,
            "mean_missed": means["missed"],
            "mean_predicted": means["predicted"],
        }
        return {
            **state,
            "wealth": [list(row) for row in self.wealth],
            "groups": list(self.groups),
            **shown,
        }

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
            state = cls(
                float(value["level"]),
                float(value["tolerance"]),
                (high, low),
                int(value["n"]),
                groups,
                *sums,
                None if at is None else int(at),
                direction,
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _unreadable(f"{type(error).__name__}: {error}") from error
        if not (
            len(high) == len(low) == len(BETS)
            and len(set(groups)) == len(groups)
            and np.isfinite([*high, *low, *sums]).all()
        ):
            raise _unreadable(f"{len(high)} and {len(low)} bets, {len(groups)} groups, sums {sums}")
        if (
            (at is None) != (direction is None)
            or direction not in (None, *DIRECTIONS)
            or not (state.first_alarm_at is None or 1 <= state.first_alarm_at <= len(groups))
        ):
            raise _unreadable(f"an alarm at {at} in the direction {direction}")
        return state


def _unreadable(found: str) -> InputError:
    return InputError(
        Problem(
            "bad_drift_state",
            "The stored state of the drift watch cannot be read; start it anew from the outcomes.",
            found=found,
        )
    )


def watch(
    predicted: FloatArray, missed: FloatArray, groups: Sequence[str], state: Drift | None = None
) -> Drift:
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
        raise ValueError(
            f"{len(p)} predictions, {len(y)} outcomes, {len(groups)} groups; accepted: as many of each"
        )
    if not (((y >= 0) & (y <= 1)).all() and ((p >= 0) & (p <= 1)).all()):
        raise ValueError("predictions and outcomes must lie in [0, 1]")
    seen = set(before.groups)
    places: dict[str, int] = {}
    code = np.fromiter(
        (-1 if name in seen else places.setdefault(name, len(places)) for name in groups),
        dtype=np.int64,
        count=len(groups),
    )
    kept = code >= 0
    if not places:
        return dataclasses.replace(before, trace=np.zeros((0, 2)))
    size = np.bincount(code[kept])
    mean_missed, mean_predicted = (np.bincount(code[kept], part[kept]) / size for part in (y, p))
    excess = mean_missed - mean_predicted
    gains = np.log1p(
        np.multiply.outer(np.stack([excess, -excess]) - before.tolerance, np.asarray(BETS))
    )
    count = len(before.groups) + np.arange(len(places) + 1)
    wealth = staked(np.asarray(before.wealth), gains, -np.diff(unstaked(count)) / len(BETS))
    trace = log_capital(wealth, count[1:])
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
