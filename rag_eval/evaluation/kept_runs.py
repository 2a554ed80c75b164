"""Runs that a home keeps, found by name and read whole; and the report that a verdict is asked for.

Belongs here: which run is meant. What is done with it is the business of `baselines`, `comparing` and the reports.
"""

import re
from pathlib import Path
from typing import Any

from rag_eval.evaluation.comparing import run_ids
from rag_eval.gold.set_names import gold_set_name
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.reporting.metrics_report import FILE_NAME
from rag_eval.reporting.verdict_reading import read_object, read_report, whole_report
from rag_eval.settings import Settings

_RUN_ID = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{8}")


def choose_run(home: Path, run: str, gold_set: str | None = None) -> str:
    """Find the id of a kept run by its id, the start of its id, `latest` or `previous`; of one gold set where it is named.

    Raises
    ------
    InputError
        No run goes by this name, or several do.
    """
    ids = run_ids(home, gold_set)
    places = {"latest": ids[-1:], "previous": ids[-2:-1]}
    found = (
        places[run]
        if run in places
        else [run_id for run_id in ids if run and run_id.startswith(run)]
    )
    if len(found) != 1:
        recent, whose = (
            ", ".join(ids[-5:]) or "none is kept here",
            "" if gold_set is None else f" of {quoted(gold_set)}",
        )
        raise InputError(
            Problem(
                "run_not_found",
                f"{len(found)} runs{whose} go by this name",
                file=str(home / "runs"),
                field="RUN",
                found=run,
                accepted=f"latest, previous, or one of: {recent}",
            )
        )
    return found[0]


def kept_run(home: Path, run_id: str) -> dict[str, Any]:
    """Read a kept run: gold_set, artifacts (keys by stage), report. The report is whole.

    Raises
    ------
    InputError
        It cannot be read, or is not as it was kept.
    """
    path = home / "runs" / f"{run_id}.json"
    kept = read_object(path)
    if (
        not _RUN_ID.fullmatch(run_id)
        or not isinstance(kept.get("report"), dict)
        or not isinstance(kept.get("artifacts"), dict)
        or not isinstance(kept.get("gold_set"), str)
    ):
        raise InputError(
            Problem("run_unreadable", "not a run as it was kept", file=str(path), found=run_id)
        )
    whole_report(kept["report"], path)
    return kept


def verdict_report(
    settings: Settings, gold_set: str | None = None, run: str | None = None
) -> tuple[str | None, dict[str, Any], Path | None]:
    """Find the report that a verdict is asked for.

    Parameters
    ----------
    settings
        Names home, reports and the primary gold set.
    gold_set
        Whose; default: the primary gold set, where no run is named by its id or path.
    run
        A kept run (as for `choose_run`) or the path of a report. None: the newest report in the folder of reports.

    Returns
    -------
    gold_set, report, folder
        Name of the gold set, None where only the report itself says it; the whole report; its folder, None for a kept run.

    Raises
    ------
    InputError
        There is no such report, or it is not whole.
    """
    if run is not None and (run.endswith(".json") or Path(run).is_dir()):
        path = Path(run) / FILE_NAME if Path(run).is_dir() else Path(run)
        return gold_set, read_report(path), path.parent
    if run is not None:
        whose = (
            gold_set
            if gold_set is not None or run not in {"latest", "previous"}
            else settings.primary_gold_set
        )
        kept = kept_run(settings.home, choose_run(settings.home, run, whose))
        return kept["gold_set"], kept["report"], None
    name = gold_set_name(gold_set or settings.primary_gold_set)
    folder = settings.reports / name
    return name, read_report(folder / FILE_NAME), folder
