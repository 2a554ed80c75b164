"""How fresh a document is, on a day that the caller names: never on the day the code runs, so equal inputs give equal trust.

Belongs here: dates -> states, ages and factors.
"""

import datetime as dt
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from rag_eval.records.trust import FRESH, STALE, YEAR_DAYS, FreshnessState

_TOLERATED_DAYS = 1
"""A date one day ahead is a matter of time zones; one further ahead cannot be true."""
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _age(text: str, as_of: dt.date) -> float:
    if not _DAY.fullmatch(text):
        return np.nan
    try:
        return float((as_of - dt.date.fromisoformat(text)).days)
    except ValueError:  # the 31st of February
        return np.nan


def age_days(text: str, as_of: dt.date) -> int | None:
    """Days from a date to `as_of`, negative for a date after it, None where there is no date or it cannot be read."""
    age = _age(text, as_of)
    return None if np.isnan(age) else int(age)


def freshness(dates: Sequence[str], as_of: dt.date) -> pd.DataFrame:
    """State and factor of each date.

    Parameters
    ----------
    dates
        YYYY-MM-DD, empty where unknown; anything else is unknown too.
    as_of
        The day on which age is counted.

    Returns
    -------
    pandas.DataFrame
        `state`: dated, future (more than a day after `as_of`) or unknown; `factor`: max(0.7, 1 - 0.3 * age / 365), and 0.7 for future and
        unknown dates, since a date must not buy trust.

    Examples
    --------
    >>> import datetime as dt
    >>> freshness(["2026-01-01", "", "2027-01-01"], dt.date(2026, 1, 1)).to_dict("list")
    {'state': ['dated', 'unknown', 'future'], 'factor': [1.0, 0.7, 0.7]}
    """
    ages = {text: _age(text, as_of) for text in set(dates)}
    age = np.fromiter((ages[text] for text in dates), dtype=float, count=len(dates))
    unknown, future = np.isnan(age), age < -_TOLERATED_DAYS
    fallen = np.maximum(STALE, FRESH - (FRESH - STALE) * np.maximum(age, 0.0) / YEAR_DAYS)
    names: tuple[FreshnessState, FreshnessState, FreshnessState] = ("unknown", "future", "dated")
    state = np.select([unknown, future], [names[0], names[1]], default=names[2])
    return pd.DataFrame(
        {
            "state": pd.Series(state, dtype="str"),
            "factor": np.where(unknown | future, STALE, fallen),
        }
    )
