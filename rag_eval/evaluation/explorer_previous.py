"""The run before this one: the newest kept run of the same gold set, and what each question's figure was in it.

Belongs here: finding and reading it. What cannot be read is named and never ends the run; a kept run is data that others may have changed.
"""

import dataclasses
import datetime as dt
import re
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from rag_eval.evaluation.comparing import run_ids
from rag_eval.evaluation.explorer_rankings import FloatArray
from rag_eval.evaluation.history_steps import changes as named_changes
from rag_eval.evaluation.history_steps import comparable, past_of
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.run_basis import basis_of
from rag_eval.evaluation.scoring import ALWAYS_K
from rag_eval.measures.labels import machine_name
from rag_eval.records.problems import InputError, quoted
from rag_eval.reporting.verdict_reading import read_object

_RUN_ID: Final = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{8}")
_KEY: Final = re.compile(r"[0-9a-f]{8,64}")
MAX_NAMED: Final = 3
"""Unreadable runs that are named; more are counted."""
MAX_LOOKED_AT: Final = 200
"""Kept runs of any gold set that are read, the newest first."""
NOT_KNOWN = "what its figures rest on cannot be read"
NO_RUN = "no earlier run of this gold set is kept"


@dataclasses.dataclass(frozen=True)
class Previous:
    """What is known of the run before.

    Parameters
    ----------
    run_id
        Its id; None where there is none.
    ranking
        Folder of its ranking artifact; None where its figures cannot be held against this run's.
    reason
        Why there is none or no comparison, and which kept runs could not be read; empty where nothing is to be said.
    comparable
        Whether figures of the two are of the same thing, by the rule of the report's history; None where there is no run or nobody knows.
    changed
        What their figures rest on and is not the same, a sentence each.
    """

    run_id: str | None
    ranking: Path | None
    reason: str
    comparable: bool | None = None
    changed: tuple[str, ...] = ()


def _kept(path: Path) -> tuple[str, str, str]:
    """Gold set, gold hash and key of the ranking of a kept run.

    Raises
    ------
    InputError
        It cannot be read.
    TypeError, KeyError
        It is not as it was kept.
    """
    kept = read_object(path)
    found = kept["gold_set"], kept["report"]["gold"]["hash"], kept["artifacts"]["ranking"]
    if not all(isinstance(part, str) for part in found) or not _KEY.fullmatch(found[2]):
        raise TypeError("gold set, gold hash or ranking is no name")
    return found


def previous_run(runs: Runs) -> Previous:
    """Find the newest kept run of this gold set from before now, and what it does not have in common with this one."""
    found = _newest(runs)
    if found.run_id is None:
        return found
    past = next((run for run in past_of(runs.evaluation).runs if run.run_id == found.run_id), None)
    if past is None:
        return dataclasses.replace(found, changed=(NOT_KNOWN,))
    changed = named_changes(past, basis_of(runs))
    return dataclasses.replace(
        found, comparable=comparable(changed), changed=tuple(changed.values())
    )


def _newest(runs: Runs) -> Previous:
    evaluation, unreadable = runs.evaluation, list[str]()
    home = evaluation.settings.home
    now = (
        f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S%f}"[:-3] + "Z"
    )  # what a wrong clock dates after now is not from before: the report's `previous` leaves it out too
    named = [run_id for run_id in run_ids(home) if _RUN_ID.fullmatch(run_id) and run_id < now]
    for run_id in named[: -MAX_LOOKED_AT - 1 : -1]:
        try:
            gold_set, gold_hash, key = _kept(home / "runs" / f"{run_id}.json")
        except (InputError, TypeError, KeyError):
            unreadable.append(run_id)
            continue
        if gold_set != evaluation.config.name:
            continue
        artifact = evaluation.store.get("ranking", key)
        if gold_hash != evaluation.gold.gold_hash:
            return Previous(run_id, None, _said("it was judged by other gold", unreadable))
        if artifact is None:
            return Previous(
                run_id, None, _said("its figures by question are no longer in the home", unreadable)
            )
        return Previous(run_id, artifact.folder, _said("", unreadable))
    return Previous(
        None,
        None,
        _said(
            NO_RUN
            if len(named) <= MAX_LOOKED_AT
            else f"{NO_RUN} among the newest {MAX_LOOKED_AT} runs",
            unreadable,
        ),
    )


def _said(reason: str, unreadable: list[str]) -> str:
    """Put the reason and the names of runs that could not be read into one line."""
    if not unreadable:
        return reason
    more = f" and {len(unreadable) - MAX_NAMED} more" if len(unreadable) > MAX_NAMED else ""
    damaged = (
        f"kept runs that cannot be read were passed over: {', '.join(unreadable[:MAX_NAMED])}{more}"
    )
    return f"{reason}; {damaged}" if reason else damaged


def changes(previous: Previous, runs: Runs, values: FloatArray) -> tuple[FloatArray, str]:
    """What each question's recall at 10 gained since the previous run, float [n_strategies, n_questions], NaN where it cannot be said; and the reason as it stands now.

    Parameters
    ----------
    previous
        Of `previous_run`.
    values
        This run's figures, of the same shape.
    """
    nothing = np.full(values.shape, np.nan)
    if previous.ranking is None:
        return nothing, previous.reason
    column, level = machine_name(f"R@{ALWAYS_K}"), runs.evaluation.config.level
    try:
        frame = pd.read_parquet(
            previous.ranking / "per_query.parquet",
            columns=["strategy", "query_id", column],
            filters=[("level", "==", level)],
        )
        means = (
            frame.groupby(["strategy", "query_id"], sort=False)[column].mean().unstack("strategy")
        )  # noqa: PD010 - one column a strategy, each pair once
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"its figures by question cannot be read ({quoted(type(error).__name__)})"
        return nothing, f"{why}; {previous.reason}" if previous.reason else why
    before = (
        means.reindex(index=runs.gold.queries["query_id"], columns=runs.names)
        .to_numpy(dtype=np.float64)
        .T
    )
    return np.round(values - before, 12), previous.reason


def identity(previous: Previous) -> list[Any]:
    """Part of a memo key that stands for the previous run."""
    return [
        previous.run_id,
        None if previous.ranking is None else previous.ranking.name,
        previous.reason,
        previous.comparable,
        list(previous.changed),
    ]
