"""The drift monitor tells whether outcomes still fit the miss rates that were predicted for them.

The monitor has two one-sided betting e-processes. They stay valid if somebody looks after every
outcome and stops at will. Outcomes of one group are averaged, and a group counts once. Later
outcomes of a group say little new and would break the martingale.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import numpy as np
from pydantic import Field, FiniteFloat

from rag_eval.core.arrays import FloatArray
from rag_eval.core.report import DriftWatch
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.stored import Stored

if TYPE_CHECKING:
    import pandas as pd

BETS: Final = (0.05, 0.1, 0.2, 0.35, 0.55, 0.8)
"""Shares of the wealth that are bet.

A loss is at most 1 + tolerance, so each share must be under 1 / (1 + tolerance).
"""
UNSTAKED, PACE = 0.8, 50.0
"""Share of the capital not staked before the first group, and scale in groups of its decline."""
FIRST_STAKES: Final = (math.log((1 - UNSTAKED) / len(BETS)),) * len(BETS)


def _unstaked(count: Any) -> Any:
    """Return the share of the initial capital that is not staked after `count` groups."""
    return UNSTAKED * (1 + np.asarray(count) / PACE) ** -0.5


def _compute_wealth(before: FloatArray, gains: FloatArray, stakes: FloatArray) -> FloatArray:
    """Compute w_t = gain_t * (w_(t-1) + stake_t), [2, groups, bets], by cumulative sums.

    `before` [2, bets], `gains` [2, groups, bets] and the result are logarithms. `stakes` [groups]
    is added to each bet before each group.
    """
    grown = np.cumsum(gains, axis=1)
    added = np.log(stakes)[None, :, None] - (grown - gains)
    added[:, 0] = np.logaddexp(added[:, 0], before)
    return np.asarray(np.logaddexp.accumulate(added, axis=1) + grown)


def _log_capital(wealth: FloatArray, count: Any) -> Any:
    """Compute the logarithm of the e-value; the last axis of `wealth` holds its parts."""
    waits = np.log(_unstaked(count))[..., None]
    parts = np.concatenate([wealth, np.broadcast_to(waits, (*wealth.shape[:-1], 1))], axis=-1)
    return np.logaddexp.reduce(parts, axis=-1)


LEVEL: Final = 0.02
"""Largest probability that an alarm is ever raised while both hypotheses hold."""
TOLERANCE: Final = 0.05
BAR: Final = 2 / LEVEL
"""Least e-value that raises an alarm."""
_LARGEST = 700.0  # exp of a larger number overflows a float

Direction = Literal["more misses than predicted", "fewer misses than predicted"]
DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)
Bets = Annotated[tuple[FiniteFloat, ...], Field(min_length=len(BETS), max_length=len(BETS))]


@dataclasses.dataclass(frozen=True)
class Drift(Stored):
    """The state of the monitor.

    `wealth` [2][bets] are logarithms of the wealth, for more and for fewer misses. `n` is the
    number of counted outcomes, and `groups` are their groups. The sums add up the means of the
    groups. `first_alarm_at` is the number of groups at the first alarm. Later outcomes do not
    change it.
    """

    wealth: tuple[Bets, Bets] = (FIRST_STAKES, FIRST_STAKES)
    n: int = 0
    groups: tuple[str, ...] = ()
    sum_missed: FiniteFloat = 0.0
    sum_predicted: FiniteFloat = 0.0
    first_alarm_at: int | None = None
    direction: Direction | None = None

    @property
    def alarm(self) -> bool:
        """Whether either hypothesis was ever rejected."""
        return self.first_alarm_at is not None

    @property
    def e_values(self) -> tuple[float, float]:
        """E-values for more misses than predicted plus the tolerance, and for fewer."""
        capital = _log_capital(np.asarray(self.wealth), np.full(2, len(self.groups)))
        high, low = np.exp(np.minimum(capital, _LARGEST)).tolist()
        return high, low

    def describe(self, since: str) -> DriftWatch:
        """Describe the state for a report; `since` as in `WatchState`."""
        n = len(self.groups)
        high, low = self.e_values
        return DriftWatch(
            alarm=self.alarm,
            direction=self.direction,
            first_alarm_at=self.first_alarm_at,
            e_high=high,
            e_low=low,
            bar=BAR,
            level=LEVEL,
            tolerance=TOLERANCE,
            n=self.n,
            n_groups=n,
            sum_missed=self.sum_missed,
            sum_predicted=self.sum_predicted,
            mean_missed=self.sum_missed / n if n else None,
            mean_predicted=self.sum_predicted / n if n else None,
            since=since or None,
            why={} if since else {"since": "the watch covers all outcomes"},
        )


def _watch(
    predicted: FloatArray, missed: FloatArray, groups: Sequence[str], state: Drift | None = None
) -> Drift:
    """Add outcomes, in the order in which they came; return the new state.

    `predicted` [n] are miss probabilities that were fixed before the outcome was known. `missed`
    [n] are outcomes 0 or 1 of a random sample. Complaints are no random sample. A group counts when
    its first outcome comes, with the mean of its outcomes in this call. Groups in `state` are left
    out. A state of None starts a monitor.
    """
    before = Drift() if state is None else state
    seen = set(before.groups)
    places: dict[str, int] = {}
    code = np.fromiter(
        (-1 if name in seen else places.setdefault(name, len(places)) for name in groups),
        dtype=np.int64,
        count=len(groups),
    )
    kept = code >= 0
    if not places:
        return before
    size = np.bincount(code[kept])
    mean_missed, mean_predicted = (
        np.bincount(code[kept], part[kept]) / size for part in (missed, predicted)
    )
    excess = mean_missed - mean_predicted
    gains = np.log1p(np.multiply.outer(np.stack([excess, -excess]) - TOLERANCE, np.asarray(BETS)))
    count = len(before.groups) + np.arange(len(places) + 1)
    stakes = -np.diff(_unstaked(count)) / len(BETS)
    wealth = _compute_wealth(np.asarray(before.wealth), gains, stakes)
    capital = _log_capital(wealth, count[1:])
    first, direction = before.first_alarm_at, before.direction
    over = (capital >= np.log(BAR)).any(axis=0)
    if first is None and over.any():
        at = int(np.argmax(over))
        first, direction = len(before.groups) + at + 1, DIRECTIONS[int(np.argmax(capital[:, at]))]
    high, low = (tuple(row.tolist()) for row in wealth[:, -1])
    return Drift(
        (high, low),
        before.n + int(kept.sum()),
        (*before.groups, *places),
        before.sum_missed + float(mean_missed.sum()),
        before.sum_predicted + float(mean_predicted.sum()),
        first,
        direction,
    )


NAME_DIGITS: Final = 16
WATCHED: Final = ("claim_id", "query_id", "group_id", "at", "predicted", "missed")
"""Columns of outcomes: `at` is the first judgement of the claim, `predicted` came before `at`."""


@dataclasses.dataclass(frozen=True)
class WatchState:
    """State of the monitor of one strategy, target and K; groups are hashes of questions."""

    fingerprint: str
    """Fingerprint of the watched strategy."""
    drift: Drift = dataclasses.field(default_factory=Drift)
    since: str = ""
    """Only outcomes after this time count. Empty means all outcomes of the fingerprint."""
    fed: frozenset[str] = frozenset()
    """Hashes of the questions whose outcomes were added.

    Groups are renamed when gold joins them, and outcomes may be recorded with an earlier time. So
    neither the group nor the time tells which outcomes were added.
    """
    demoted_at: str = ""
    """Time of the alarm that ended the status, or empty. A new monitor follows an alarm."""


def question_mark(query_id: str) -> str:
    """Hash a question's id to 16 hex digits."""
    return digest(["watched question", query_id], NAME_DIGITS)


def resume(kept: WatchState | None, fingerprint: str, now: str) -> WatchState:
    """Continue a kept state, or start a new state for another fingerprint or after an alarm.

    Without a state every outcome with a prediction counts. For another fingerprint a monitor starts
    at `now` (UTC text). So outcomes do not count twice if an earlier fingerprint comes back.
    """
    if kept is None:
        return WatchState(fingerprint)
    if kept.fingerprint != fingerprint:
        return WatchState(fingerprint, since=now)
    return WatchState(fingerprint, since=kept.demoted_at) if kept.demoted_at else kept


def feed(
    state: WatchState, outcomes: "pd.DataFrame", known: Iterable[tuple[str, str]]
) -> WatchState:
    """Add outcomes that the state has not seen, in order; adding them again changes nothing.

    `outcomes` have the columns WATCHED without NaN. No calibrator was fitted to an outcome that it
    predicted. `known` are (query_id, group_id) of all outcomes with the current groups. A group
    counts as added if one of its questions was added.
    """
    rows = outcomes[outcomes["at"] > state.since].sort_values(["at", "claim_id"], kind="stable")
    if state.fed and len(rows):
        seen = {
            group
            for query, group in {*known, *zip(rows["query_id"], rows["group_id"], strict=True)}
            if question_mark(query) in state.fed
        }
        rows = rows[~rows["group_id"].isin(seen)]
    if rows.empty:
        return state
    marks = {query: question_mark(query) for query in rows["query_id"].unique()}
    name_of = {
        group: marks[query]
        for group, query in rows.groupby("group_id", sort=False)["query_id"].min().items()
    }
    drift = _watch(
        rows["predicted"].to_numpy(dtype=np.float64),
        rows["missed"].to_numpy(dtype=np.float64),
        [name_of[group] for group in rows["group_id"]],
        state.drift,
    )
    return dataclasses.replace(state, drift=drift, fed=state.fed | frozenset(marks.values()))
