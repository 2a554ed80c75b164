"""The viewer's pages: Jinja2 with everything escaped, and what would be invisible written out.

Belongs here: templates and how figures and times are written. What stands in them comes from `runs`.
"""

import datetime as dt
import functools
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rag_eval.reporting.html.untrusted import visible
from rag_eval.viewer.runs import Damaged, Estimate, Kept, Page

_FOLDER: Final = Path(__file__).parent / "templates"
_GATES: Final = {
    "pass": "passed",
    "fail": "failed",
    "insufficient_evidence": "without enough evidence",
}
LEFT_OUT: Final = "–"


def moment(text: str) -> str:
    """Write a time as a person reads it, in UTC; the text itself where it is none.

    Examples
    --------
    >>> moment("2026-11-22T13:08:24Z")
    '2026-11-22 13:08 UTC'
    """
    try:
        return dt.datetime.fromisoformat(text).astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError):  # a year that UTC takes beyond what a year can be
        return visible(text)


def estimate(found: Estimate | None) -> str:
    """Write a figure with its interval, three digits.

    Examples
    --------
    >>> estimate(Estimate(0.4587, 0.4023, 0.5181, 132)), estimate(None)
    ('0.459 [0.402, 0.518]', '–')
    """
    if found is None:
        return LEFT_OUT
    between = (
        "" if found.low is None or found.high is None else f" [{found.low:.3f}, {found.high:.3f}]"
    )
    return f"{found.value:.3f}{between}"


def gates(run: Kept) -> str:
    """Write how many gates passed, failed, or could not be judged.

    Only what there is; a dash where the gold set asks for none.
    """
    return (
        ", ".join(f"{number} {_GATES[status]}" for status, number in run.gates.items() if number)
        or LEFT_OUT
    )


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"visible": visible, "moment": moment, "estimate": estimate, "gates": gates}
    made.tests["damaged"] = lambda row: isinstance(row, Damaged)
    return made


def _page(template: str, **context: Any) -> str:
    return _environment().get_template(template).render(**context)


def runs_page(page: Page, *, token: str, read_only: bool) -> str:
    """Render the list of runs; `token` is what the page sends along with changes, empty where there are none."""
    return _page("runs.html", page=page, token=token, read_only=read_only)


def run_page(run: Kept, *, token: str, explorer: bool, feedback: bool, why_no_feedback: str) -> str:
    """Render the page of a run.

    Parameters
    ----------
    run
        Which.
    token
        What the page sends along with feedback.
    explorer
        Whether the run keeps what is explored.
    feedback
        Whether feedback can be given.
    why_no_feedback
        Why not.
    """
    return _page(
        "run.html",
        run=run,
        token=token,
        explorer=explorer,
        feedback=feedback,
        why_no_feedback=why_no_feedback,
    )
