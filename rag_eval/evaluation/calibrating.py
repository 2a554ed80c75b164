"""Calibration outside the nightly run: of one gold set, on the outcomes so far, and strategies compared for researchers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.calibration_steps import calibration_of, miss_rate_calibration
from rag_eval.evaluation.index_steps import IndexOpener
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.measure_steps import BOOTSTRAP_SEED, Runs
from rag_eval.evaluation.outcome_store import outcome_store
from rag_eval.evaluation.traffic_steps import traffic
from rag_eval.evaluation.uncertainty_steps import first_claims
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.storage.locking import home_lock
from rag_eval.uncertainty.comparing import Comparison, Misses, compare
from rag_eval.uncertainty.model import MissRateModel
from rag_eval.uncertainty.signals import SIGNALS


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """A gold set, calibrated.

    Parameters
    ----------
    gold_set, target, k
        Of what.
    strategies
        By name, as `miss_rate_calibration` gives them.
    traffic
        Claims of production traffic that were counted in, by strategy.
    """

    gold_set: str
    target: str
    k: int
    strategies: dict[str, Any]
    traffic: dict[str, int]


def calibrate_gold_set(evaluation: Evaluation) -> Calibrated:
    """Calibrate every strategy on the outcomes so far, those of this gold set's own judgements among them; what is stored already is used again."""
    with home_lock(evaluation.settings.home):
        _must_be_usable(evaluation)
        runs = Runs(evaluation, IndexOpener(evaluation))
        found, spec = miss_rate_calibration(runs), evaluation.config.uncertainty
        return Calibrated(evaluation.config.name, spec.target, spec.k, found, {name: len(traffic(runs, name).frame) for name in runs.names})


def compare_strategies(evaluation: Evaluation, names: Sequence[str]) -> Comparison:
    """Compare strategies on the questions of the gold set as they were first put, and on claims of production traffic without outcomes.

    Raises
    ------
    InputError
        A name that the gold set does not have, or a strategy with too few outcomes to be calibrated.
    """
    there = [spec.name for spec in evaluation.config.strategies]
    unknown = [name for name in names if name not in there]
    if unknown:
        raise InputError(Problem("unknown_strategy", f"{evaluation.config.name} has no such strategy", field="STRATEGY", found=", ".join(map(quoted, unknown)), accepted=", ".join(there)))
    with home_lock(evaluation.settings.home):
        _must_be_usable(evaluation)
        runs = Runs(evaluation, IndexOpener(evaluation))
        found = miss_rate_calibration(runs)
        few = [name for name in names if found[name]["validation"] is None]
        if few:
            why = str(found[few[0]]["estimator_reason"])
            raise InputError(Problem("too_few_outcomes", f"{quoted(few[0])} cannot be compared: {why}", field="STRATEGY", found=", ".join(map(quoted, few)), accepted="strategies that are provisional or better"))
        return _compared(runs, names)


def _must_be_usable(evaluation: Evaluation) -> None:
    """Raise why the outcomes cannot be read: without them there is nothing to calibrate on."""
    opened = outcome_store(evaluation)
    if isinstance(opened, InputError):
        raise opened


def _compared(runs: Runs, names: Sequence[str]) -> Comparison:
    queries = runs.gold.queries
    parts = {name: first_claims(runs, name).reindex(queries["query_id"]) for name in names}
    live = {name: _predicted(runs, name) for name in names}
    ids = pd.Index(sorted({query for part in live.values() for query in part.index} - set(queries["query_id"])))
    group_of = {query: group for part in live.values() for query, group in part["group_id"].items()}
    group = pd.factorize(np.concatenate([queries["group_id"].to_numpy(dtype=object), np.array([group_of[query] for query in ids], dtype=object)]))[0].astype(np.int64)
    none = np.full(len(ids), np.nan)
    misses = [
        Misses(
            name,
            np.concatenate([part["missed"].to_numpy(dtype=np.float64), none]),
            np.concatenate([part["predicted"].to_numpy(dtype=np.float64), live[name]["predicted"].reindex(ids).to_numpy(dtype=np.float64)]),
            np.concatenate([part["heuristic_v0"].to_numpy(dtype=np.float64), none]),
        )
        for name, part in parts.items()
    ]
    return compare(misses, group, seed=BOOTSTRAP_SEED)


def _predicted(runs: Runs, name: str) -> pd.DataFrame:
    """Calibrated miss rates of production traffic: mean by query, with its group."""
    found = traffic(runs, name)
    model = MissRateModel.from_json(calibration_of(runs, name)["model"])
    value = model.predict(found.signals, SIGNALS, found.frame["group_id"].tolist()) if len(found.frame) else np.zeros(0)
    frame: pd.DataFrame = found.frame.assign(predicted=value).groupby("query_id").agg(predicted=("predicted", "mean"), group_id=("group_id", "first"))
    return frame
