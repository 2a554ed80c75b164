"""Which outcomes may be used for what: those that fit a calibrator, gold that proves nothing, feedback that calls for an audit.

Belongs here: rules over the frame of outcomes. How a calibrator is fitted is not.
"""

from typing import Final

import pandas as pd

from rag_eval.records.outcomes import AUDITS, MISSED_BY_FEEDBACK
from rag_eval.records.problems import InputError, Problem, quoted

_THOROUGH: Final = {"deep_audit": 0, "human": 1, "qrels": 2, "llm_judge": 3}
"""Gold sources that can fit a calibrator, the most thorough first."""


def fit_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the outcomes that may fit a calibrator: judged, chosen with a known probability, and not a user's feedback.

    A claim that was judged from several sources under one target and K is one row: the judgement of the most thorough source (deep_audit,
    human, qrels, llm_judge), with the largest of the inclusion probabilities, as it would have been judged by chance of any of them.

    Returns
    -------
    pandas.DataFrame
        The same columns, `missed` bool, and `weight`, float64, 1 / inclusion probability (in what `OutcomeStore.current` gives that of any draw).
    """
    kept = frame[
        frame["missed"].notna()
        & frame["inclusion_probability"].notna()
        & (frame["gold_source"] != "user_feedback")
    ]
    key = ["claim_id", "target", "k"]
    largest = kept.groupby(key, sort=False)["inclusion_probability"].transform("max")
    order = kept["gold_source"].map(_THOROUGH).sort_values(kind="stable").index
    kept = kept.assign(
        inclusion_probability=largest, weight=1 / largest, missed=kept["missed"].astype(bool)
    )
    return kept.loc[order].drop_duplicates(key).sort_index().reset_index(drop=True)


def first_judgements(history: pd.DataFrame) -> pd.DataFrame:
    """Return the first judgement of each claim that could fit a calibrator, whatever superseded it since: until then its outcome was unknown.

    Parameters
    ----------
    history
        Every row of one target and K, as `OutcomeStore.history` gives them.
    """
    kept = history[
        history["missed"].notna()
        & history["inclusion_probability"].notna()
        & (history["gold_source"] != "user_feedback")
    ]
    return (
        kept.sort_values(["at", "outcome_id"], kind="stable")
        .drop_duplicates("claim_id")
        .reset_index(drop=True)
    )


def refuse_own_gold(frame: pd.DataFrame, strategy: str) -> None:
    """Refuse to calibrate a strategy on gold that was found by itself alone: what it never retrieves would never count as missed.

    Parameters
    ----------
    frame
        Outcomes as `OutcomeStore.current` gives them.
    strategy
        Its name or its fingerprint.

    Raises
    ------
    InputError
        `own_gold`: there are outcomes of the strategy, and the gold of every one was judged from its own retrieval only.
    """
    own_rows = frame[(frame["strategy"] == strategy) | (frame["strategy_fingerprint"] == strategy)]
    own = {strategy, *own_rows["strategy"], *own_rows["strategy_fingerprint"]}
    judged_from = set(map(tuple, own_rows["gold_strategies"]))
    if judged_from and all(names and own.issuperset(names) for names in judged_from):
        raise InputError(
            Problem(
                "own_gold",
                f"the gold of all {len(own_rows)} outcomes of {quoted(strategy)} was judged from what {quoted(strategy)} itself retrieved. What it never retrieves could not "
                "become gold, so its misses cannot show and a calibrator would learn that there are few",
                field="gold_strategies",
                found=", ".join(
                    sorted({quoted(name) for names in judged_from for name in names})[:5]
                ),
                accepted="outcomes whose gold depends on no strategy (gold_strategies is empty: qrels of a collection, a search of the corpus by hand), or was judged from other strategies' retrieval too",
            )
        )


def feedback_without_audit(frame: pd.DataFrame) -> pd.DataFrame:
    """Feedback on claims that no person has judged yet, complaints about something missing first, the newest of each first.

    Such audits are not chosen at random, so their outcomes have no inclusion probability and never fit a calibrator.
    """
    audited = frame.loc[frame["gold_source"].isin(AUDITS) & frame["missed"].notna(), "claim_id"]
    kept = standing_feedback(frame)
    kept = kept[~kept["claim_id"].isin(audited)].copy()
    kept["_first"] = kept["feedback"] != "something_missing"
    return (
        kept.sort_values(["_first", "at"], ascending=[True, False], kind="stable")
        .drop(columns="_first")
        .reset_index(drop=True)
    )


def standing_feedback(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep what users said and did not take back; of `evidence_not_relevant`, which judges nothing, a correction cannot be told from the row itself."""
    said = frame["gold_source"] == "user_feedback"
    taken_back = frame["missed"].isna() & frame["feedback"].map(MISSED_BY_FEEDBACK).notna()
    return frame[said & ~taken_back]
