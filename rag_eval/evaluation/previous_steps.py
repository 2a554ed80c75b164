"""The previous run: whether this one may be compared with it, and the paired differences, question by question.

Belongs here: the last kept run of the same gold set beside this one. Against the accepted baseline: `baseline_steps`; any two runs: `comparing`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.evaluation.history_steps import changes, comparable, history, past_of, previous_run
from rag_eval.evaluation.measure_steps import (
    BOOTSTRAP_SEED,
    COMPARED,
    Runs,
    number,
    ranking_measures,
)
from rag_eval.evaluation.past_runs import PastRun, past_run
from rag_eval.measures.labels import machine_name
from rag_eval.measures.paired import paired_comparison
from rag_eval.reporting.null_reasons import with_reasons
from rag_eval.storage.artifacts import ArtifactStore

NO_PREVIOUS: Final = "no run of this gold set is kept from before"
GOLD_DIFFERS: Final = "the two were judged by different gold: the same question may have other targets, so nothing can be paired"
GONE: Final = "the per-query figures of the previous run are no longer in the home"
DAMAGED: Final = "the per-query figures of the previous run are not as they were kept"
NONE_IN_COMMON: Final = "the two have no strategy in common"
NOT_PAIRED: Final = "no question was scored in both runs"

FloatArray = npt.NDArray[np.float64]


def history_parts(runs: Runs, report: dict[str, Any], artifacts: dict[str, str]) -> dict[str, Any]:
    """Build the parts `history` and `previous` of a finished report; neither is hashed, as the past is not what this run found.

    Parameters
    ----------
    runs
        The stored runs of this evaluation.
    report
        Its finished report: id and time are read from it.
    artifacts
        Keys of its artifacts, as they will be kept.
    """
    now = past_run(
        {"gold_set": runs.evaluation.config.name, "artifacts": artifacts, "report": report}
    )
    past, before = past_of(runs.evaluation), previous_run(runs.evaluation)
    if before is None:
        return with_previous(past_part=history(past, now), previous=None)
    found = changes(before, now)
    previous = {
        "run_id": before.run_id,
        "timestamp": before.timestamp,
        "comparable": comparable(found),
        "reason_codes": list(found),
        "reasons": list(found.values()),
        **_deltas(runs, before, now),
    }
    return with_previous(past_part=history(past, now), previous=previous)


def with_previous(past_part: dict[str, Any], previous: dict[str, Any] | None) -> dict[str, Any]:
    """Put both parts together, every null with its reason."""
    parts: dict[str, Any] = with_reasons(
        {"history": past_part, "previous": previous}
        | ({"previous_reason": NO_PREVIOUS} if previous is None else {})
    )
    return parts


def _deltas(runs: Runs, before: PastRun, now: PastRun) -> dict[str, Any]:
    """Paired differences this run - previous run of every strategy that both have, at this run's headline level; null with the reason where nothing can be paired."""
    if before.gold_hash != now.gold_hash:
        return {"deltas": None, "deltas_reason": GOLD_DIFFERS}
    names = [name for name in runs.names if name in before.strategies]
    if not names:
        return {"deltas": None, "deltas_reason": NONE_IN_COMMON}
    kept = (
        None
        if before.ranking is None
        else ArtifactStore(runs.evaluation.settings.home / "artifacts").get(
            "ranking", before.ranking
        )
    )
    if kept is None:
        return {"deltas": None, "deltas_reason": GONE}
    queries, level = runs.gold.queries["query_id"].tolist(), runs.evaluation.config.level
    there = means_of(ranking_measures(runs).path("per_query.parquet"), names, queries, level)
    try:
        past = means_of(kept.path("per_query.parquet"), names, queries, level)
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError):
        return {"deltas": None, "deltas_reason": DAMAGED}
    return {"deltas": delta_rows(names, there, past, runs.gold.groups)}


def means_of(path: Path, names: Sequence[str], queries: Sequence[str], level: str) -> FloatArray:
    """Mean of each compared measure inside each question: float64 [n_queries, 3 x n_strategies], NaN where the run has none.

    Raises
    ------
    OSError, ValueError, KeyError, TypeError, NotImplementedError
        The file is not one of per-query figures.
    """
    columns = [machine_name(label) for label in COMPARED]
    frame = pd.read_parquet(
        path, columns=["strategy", "level", "query_id", *columns], filters=[("level", "==", level)]
    )
    by_query = frame.groupby(["strategy", "query_id"])[columns].mean()
    parts = [
        by_query.reindex(pd.MultiIndex.from_product([[name], queries])).to_numpy(dtype=np.float64)
        for name in names
    ]
    values = np.concatenate(parts, axis=1)
    if ((values < 0) | (values > 1)).any():
        raise ValueError("values outside 0 to 1")
    return values


def delta_rows(
    names: Sequence[str], now: FloatArray, before: FloatArray, groups: npt.NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Paired differences now - before, one row a strategy and measure.

    Parameters
    ----------
    names
        Strategies, n of them.
    now, before
        [n_queries, 3 x n] means inside each question under the compared measures, strategy by strategy; NaN = not scored.
    groups
        [n_queries] group codes, the unit of inference.
    """
    found = paired_comparison(
        now, before, groups, BOOTSTRAP_SEED, flips=1
    )  # no p is shown, so none is paid for
    both = ~np.isnan(now) & ~np.isnan(before)
    rows = []
    for at, (name, label) in enumerate((name, label) for name in names for label in COMPARED):
        scored = both[:, at]
        means = {
            key: number(float(values[scored, at].mean())) if scored.any() else None
            for key, values in (("before", before), ("after", now))
        }
        rows.append(
            {
                "strategy": name,
                "measure": label,
                **means,
                **(
                    {}
                    if scored.any()
                    else {"before_reason": NOT_PAIRED, "after_reason": NOT_PAIRED}
                ),
                "delta": number(found.delta[at]),
                "ci_low": number(found.ci_low[at]),
                "ci_high": number(found.ci_high[at]),
                "n_better": int(found.n_better[at]),
                "n_worse": int(found.n_worse[at]),
                "n_tied": int(found.n_tied[at]),
                "n_groups": int(found.n_groups[at]),
            }
        )
    return rows
