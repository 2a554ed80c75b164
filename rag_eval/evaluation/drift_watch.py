"""Which outcomes the drift watch of a strategy is fed with, and its state from night to night.

Belongs here: finding the miss rate that was predicted for an outcome before it was known. The state is `uncertainty.drift_state`, its file `calibrator_files`.
"""

import datetime as dt

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.evaluation.calibrator_files import keep_watch, kept_watch
from rag_eval.evaluation.fingerprints import accepted
from rag_eval.evaluation.group_steps import groups_of
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.outcome_store import outcome_store, unusable
from rag_eval.evaluation.signal_steps import fingerprint_of
from rag_eval.evaluation.traffic_steps import traffic
from rag_eval.records.problems import InputError
from rag_eval.records.uncertainty import DISCOUNTING
from rag_eval.uncertainty.drift_state import WATCHED, WatchState, fed, resumed
from rag_eval.uncertainty.model import MissRateModel
from rag_eval.uncertainty.outcome_rows import utc_text
from rag_eval.uncertainty.outcome_use import first_judgements
from rag_eval.uncertainty.signals import SIGNALS


def drift_state(runs: Runs, name: str, standing: pd.DataFrame, now: dt.datetime) -> WatchState:
    """Go on with the watch of a strategy over what has come since; nothing is written.

    Parameters
    ----------
    standing
        Outcomes that may fit a calibrator as they stand now, groups as they are now: claim_id, query_id, group_id, missed.
    now
        When the outcomes were read.

    Raises
    ------
    InputError
        The kept state is not as it was written.
    """
    evaluation, spec, opened = (
        runs.evaluation,
        runs.evaluation.config.uncertainty,
        outcome_store(runs.evaluation),
    )
    fingerprint = fingerprint_of(runs, name)
    kept = kept_watch(evaluation.settings.home, evaluation.config.name, name, spec.target, spec.k)
    state = resumed(kept, fingerprint, utc_text(now))
    if isinstance(opened, InputError):
        return state
    first = first_judgements(
        opened.history(strategy_fingerprint=fingerprint, target=spec.target, k=spec.k)
    )
    known = [
        *groups_of(runs, name).of_gold.items(),
        *zip(standing["query_id"], standing["group_id"], strict=True),
    ]
    return fed(state, _predicted(runs, name, first, standing), known)


def keep_drift(runs: Runs, name: str, state: WatchState) -> None:
    """Keep a state for the next night, unless this is a partial evaluation or outcomes cannot be read."""
    evaluation, spec = runs.evaluation, runs.evaluation.config.uncertainty
    if evaluation.partial or unusable(evaluation):
        return
    place = (evaluation.settings.home, evaluation.config.name, name, spec.target, spec.k)
    if state != (
        kept_watch(*place) or WatchState(state.fingerprint)
    ):  # a watch that has seen nothing leaves nothing
        keep_watch(*place, state=state)


def _predicted(runs: Runs, name: str, first: pd.DataFrame, standing: pd.DataFrame) -> pd.DataFrame:
    """Outcomes (WATCHED) that had a miss rate before they were known.

    A claim of the gold set was shown one when it was made. Audits of production traffic were not: the calibrator in force predicts them, where it
    was fitted before they were judged. A claim that was judged before, by whomever, may have been fitted then: its first judgement counts.
    """
    rows = standing.merge(
        first[["claim_id", "at", "shown_value", "shown_status"]].rename(columns={"at": "first_at"}),
        on="claim_id",
        validate="one_to_one",
        suffixes=("_now", ""),
    )
    shown = (rows["shown_status"].isin(DISCOUNTING) & rows["shown_value"].notna()).to_numpy()
    values = rows["shown_value"].to_numpy(dtype=np.float64).copy()
    values[~shown] = np.nan
    audited = np.flatnonzero(
        ~shown
        & _after_fit(runs, name, rows["first_at"])
        & rows["claim_id"].isin(set(traffic(runs, name).frame["claim_id"])).to_numpy()
    )
    if len(audited):
        values[audited] = in_force(
            runs,
            name,
            rows["claim_id"].to_numpy()[audited].tolist(),
            rows["group_id"].to_numpy()[audited].tolist(),
        )
    made = rows.assign(
        at=rows["first_at"], predicted=values, missed=rows["missed"].astype(np.float64)
    )[list(WATCHED)]
    kept: pd.DataFrame = made[np.isfinite(values)].reset_index(drop=True)
    return kept


def _after_fit(runs: Runs, name: str, at: "pd.Series[str]") -> npt.NDArray[np.bool_]:
    """Whether times are later than everything that the calibrator in force was fitted to."""
    found = accepted(runs.evaluation, name, fingerprint_of(runs, name))
    if found.body is None or found.status not in DISCOUNTING:
        return np.zeros(len(at), dtype=bool)
    # calibrators of earlier versions say only when they were fitted
    until: str = found.body.get("fitted_until") or utc_text(
        dt.datetime.fromisoformat(found.body["fitted_at"])
    )
    return np.array([moment > until for moment in at], dtype=bool)


def in_force(
    runs: Runs, name: str, claim_ids: list[str], groups: list[str]
) -> npt.NDArray[np.float64]:
    """Predict claims of production traffic by the calibrator in force, float64 [n]; NaN where none is.

    Parameters
    ----------
    claim_ids
        Among `traffic(runs, name)`.
    groups
        Their groups as they are now: of one that was fitted the fold speaks that left it out.
    """
    found = accepted(runs.evaluation, name, fingerprint_of(runs, name))
    if found.body is None or found.status not in DISCOUNTING:
        return np.full(len(claim_ids), np.nan)
    claims = traffic(runs, name)
    known, question = (
        claims.known(),
        dict(zip(claims.frame["claim_id"], claims.frame["query_id"], strict=True)),
    )
    fitted_as = found.body["group_of_query"]
    of = [
        fitted_as.get(question[claim], group)
        for claim, group in zip(claim_ids, groups, strict=True)
    ]
    return MissRateModel.from_json(found.body["model"]).predict(
        np.array([known[claim] for claim in claim_ids], dtype=np.float64).reshape(
            len(claim_ids), len(SIGNALS)
        ),
        SIGNALS,
        of,
    )
