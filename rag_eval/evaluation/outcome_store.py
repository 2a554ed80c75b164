"""The table of outcomes as one evaluation sees it: opened once, or the reason why it cannot be used.

Belongs here: opening and reading. A database that cannot be used costs the night's outcomes and calibration, which is said; the report stands without them.
"""

from typing import Any

import pandas as pd

from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.trace_steps import open_sql_store
from rag_eval.records.problems import InputError
from rag_eval.uncertainty.outcome_rows import TABLE, as_frame
from rag_eval.uncertainty.outcomes import OutcomeStore


def outcome_store(evaluation: Evaluation) -> OutcomeStore | InputError:
    """Open the table of outcomes; why it cannot be used where it cannot. The answer stays the same within an evaluation."""
    return evaluation.once("outcome store", lambda: _opened(evaluation))


def _opened(evaluation: Evaluation) -> OutcomeStore | InputError:
    try:
        return OutcomeStore(open_sql_store(evaluation))
    except InputError as error:
        return error


def unusable(evaluation: Evaluation) -> str:
    """Why the table of outcomes cannot be used, for a report: without its place, which is this machine's business; empty where it can be used."""
    opened = outcome_store(evaluation)
    if not isinstance(opened, InputError):
        return ""
    problem = opened.problems[0]
    return f"the outcomes can neither be read nor written: {problem.code}, {problem.message}"


def current_outcomes(evaluation: Evaluation, **where: Any) -> pd.DataFrame:
    """Read what stands now, as `OutcomeStore.current` does; no row where the table cannot be used."""
    opened = outcome_store(evaluation)
    return (
        as_frame({name: [] for name in TABLE.column_names})
        if isinstance(opened, InputError)
        else opened.current(**where)
    )
