"""History: this run after the kept ones of its gold set, night after night, and what breaks the line between two of them.

Belongs here: what differs between two runs that their figures rest on. What is taken from a kept run is `past_runs`.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.past_runs import Past, PastRun, past_runs
from rag_eval.evaluation.run_basis import RunBasis

MAX_RUNS: Final = 60
NOT_SAID: Final = "the run's report does not say it: too little to say it from, or a version that did not measure it"
NO_REVISION: Final = (
    "the run's report has no revision that could be shown: a name without personal data or markup"
)
CODES: Final = (
    "gold_changed",
    "chunks_changed",
    "index_changed",
    "configuration_changed",
    "strategies_changed",
    "code_changed",
)
MAX_NAMED: Final = 5


def past_of(evaluation: Evaluation) -> Past:
    """Kept runs of this gold set from before this one, read once an evaluation; what a wrong clock dates after now is not from before."""

    def read() -> Past:
        now = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S%f")[:-3]
        return past_runs(
            evaluation.settings.home, evaluation.config.name, before=f"{now}Z", limit=MAX_RUNS - 1
        )

    return evaluation.once("past", read)


def previous_run(evaluation: Evaluation) -> PastRun | None:
    """Return the last kept run of this gold set from before this one; None where there is none."""
    past = past_of(evaluation).runs
    return past[-1] if past else None


def changes(before: PastRun, now: PastRun | RunBasis) -> dict[str, str]:
    """Name what the figures of two runs rest on and is not the same: code -> sentence, in the order of CODES; empty where nothing differs."""
    both = sorted(set(before.strategies) & set(now.strategies))
    pairs = {name: (before.strategies[name], now.strategies[name]) for name in both}
    other_index = [
        name for name, (was, is_now) in pairs.items() if was.index_hash != is_now.index_hash
    ]
    configured = [
        name for name, (was, is_now) in pairs.items() if was.configuration != is_now.configuration
    ]
    new, gone = (
        sorted(set(one.strategies) - set(other.strategies))
        for one, other in ((now, before), (before, now))
    )
    found = {}
    if before.gold_hash != now.gold_hash:
        found["gold_changed"] = (
            f"the gold differs: {before.gold_hash[:12]} before, {now.gold_hash[:12]} now"
        )
    if before.chunks_hash != now.chunks_hash:
        found["chunks_changed"] = (
            f"the chunks differ: {before.chunks_hash[:12]} before, {now.chunks_hash[:12]} now"
        )
    if other_index:
        found["index_changed"] = f"the index differs of {_named(other_index)}"
    if before.settings != now.settings or configured:
        parts = (
            ["the level, cutoffs, depth, primary strategy, seeds or what a miss is"]
            if before.settings != now.settings
            else []
        ) + ([f"strategies {_named(configured)}"] if configured else [])
        found["configuration_changed"] = f"configured otherwise: {'; '.join(parts)}"
    if new or gone:
        found["strategies_changed"] = "; ".join(
            f"{what}: {_named(names)}"
            for what, names in (("new strategies", new), ("strategies no longer there", gone))
            if names
        )
    if before.code != now.code:
        found["code_changed"] = (
            "the code differs: another version of rag_eval or of the libraries underneath"
        )
    return found


def comparable(changed: Mapping[str, str]) -> bool:
    """Whether figures of two runs are figures of the same thing: other code may have changed them, which is said, but did not change what they are of."""
    return not set(changed) - {"code_changed"}


def _named(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (
        f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    )


def history(past: Past, now: PastRun) -> dict[str, Any]:
    """Build the part `history` of the report: the kept runs, oldest first, then this one."""
    runs = [*past.runs, now]
    entries = [
        _entry(run, before, is_this=run is now)
        for run, before in zip(runs, [None, *runs], strict=False)
    ]
    return {
        "runs": entries,
        "n_left_out": past.n_left_out,
        "unreadable": past.unreadable,
        "n_unreadable": past.n_unreadable,
    }


def _entry(run: PastRun, before: PastRun | None, *, is_this: bool) -> dict[str, Any]:
    found = {} if before is None else changes(before, run)
    first = "no run stands before it in this history"
    compared = (
        {"comparable": None, "comparable_reason": first}
        if before is None
        else {"comparable": comparable(found)}
    )
    why = (
        {"reason": "; ".join(found.values())}
        if found
        else {
            "reason": None,
            "reason_reason": first if before is None else "comparable with the run before it",
        }
    )
    return {
        "run_id": run.run_id,
        "timestamp": run.timestamp,
        "index_hash": run.index_hash,
        "chunks_hash": run.chunks_hash,
        **({"rev": run.rev} if run.rev is not None else {"rev": None, "rev_reason": NO_REVISION}),
        "gold_hash": run.gold_hash,
        "n_groups": run.n_groups,
        "level": run.level,
        **compared,
        **why,
        "reason_codes": list(found),
        "strategies": {
            name: _or_reason(
                entry.model_dump(exclude={"index_hash", "configuration", "fingerprint"})
            )
            | {"index_hash": entry.index_hash}
            for name, entry in run.strategies.items()
        },
        "gates": {
            "passed": run.gates["pass"],
            "failed": run.gates["fail"],
            "insufficient": run.gates["insufficient_evidence"],
        },
        "is_this": is_this,
    }


def _or_reason(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {**parts, **{f"{key}_reason": NOT_SAID for key, value in parts.items() if value is None}}
