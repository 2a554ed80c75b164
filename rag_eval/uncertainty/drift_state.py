"""The drift watch over many nights: what it has seen, what it must not see again, and when it starts anew.

Belongs here: the state between nights. The test is `drift`; which outcomes had a miss rate predicted for them is decided where claims are known.

A refit does not restart the watch: what is watched is whether the miss rates that this strategy states come true, whoever stated them. It restarts
when the strategy becomes another one, and after an alarm has cost the status: both end what was predicted so far.
"""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.drift import Drift, watch

if TYPE_CHECKING:
    import pandas as pd

NAME_DIGITS: Final = 16
WATCHED: Final = ("claim_id", "query_id", "group_id", "at", "predicted", "missed")
"""Columns of outcomes that the watch is fed with: `at` is when the claim was first judged, `predicted` what was said before that."""


@dataclasses.dataclass(frozen=True)
class WatchState:
    """What the watch of one strategy, target and K has come to.

    Parameters
    ----------
    fingerprint
        Of the strategy whose miss rates are watched.
    drift
        The watch. Its groups are named by hashes of questions.
    since
        Outcomes up to this time belong to no watch or to an earlier one; empty: all of the fingerprint count.
    fed
        Hashes of the questions whose outcomes were fed. By questions and not by groups or times: groups are renamed when gold joins them, and
        outcomes may be recorded with an earlier time than what was fed already. One for each question, however many nights there were.
    demoted_at
        When an alarm had cost the status; empty while there was none. What comes after is another watch.
    """

    fingerprint: str
    drift: Drift = dataclasses.field(default_factory=Drift)
    since: str = ""
    fed: frozenset[str] = frozenset()
    demoted_at: str = ""

    def demoted(self, at: str) -> "WatchState":
        """Remember that the alarm was acted on."""
        return dataclasses.replace(self, demoted_at=at)


def question_mark(query_id: str) -> str:
    """Hash of a question's id, 16 hex digits: what the state keeps of it."""
    return digest(["watched question", query_id], NAME_DIGITS)


def resumed(kept: WatchState | None, fingerprint: str, now: str) -> WatchState:
    """Go on with a kept state, or start anew: without one, for another fingerprint, and after an alarm that was acted on.

    Parameters
    ----------
    kept
        None where there is none: every outcome that had a prediction counts then.
    now
        UTC text as outcomes have it. A watch of another fingerprint starts here, so that outcomes of one that comes back are not counted twice.
    """
    if kept is None:
        return WatchState(fingerprint)
    if kept.fingerprint != fingerprint:
        return WatchState(fingerprint, since=now)
    return WatchState(fingerprint, since=kept.demoted_at) if kept.demoted_at else kept


def fed(
    state: WatchState, outcomes: "pd.DataFrame", known: Iterable[tuple[str, str]]
) -> WatchState:
    """Add outcomes that the state has not seen, in the order in which they came; feeding them again changes nothing.

    Parameters
    ----------
    state
        Of the outcomes before.
    outcomes
        WATCHED; `predicted` and `missed` without NaN. Each prediction by a calibrator that was not fitted to its outcome.
    known
        (query_id, group_id) of every outcome there is, groups as they are now: a group with one question that was fed was fed.
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
    drift = watch(
        rows["predicted"].to_numpy(dtype=np.float64),
        rows["missed"].to_numpy(dtype=np.float64),
        [name_of[group] for group in rows["group_id"]],
        state.drift,
    )
    return dataclasses.replace(state, drift=drift, fed=state.fed | frozenset(marks.values()))
