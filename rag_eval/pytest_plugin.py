"""pytest plugin: the fixture `rag_eval_gate` fails a test when retrieval got worse.

pytest imports this module in every run of an environment, so the module imports only pytest.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from rag_eval.core.report import Report
    from rag_eval.storage.home import Home

MAX_SHOWN: Final = 20
"""Largest number of questions in a message."""


def _check_retrieval(
    gold_set: str | Path | None = None,
    *,
    run: Any = None,
    qrels: Any = None,
    baseline: Any = None,
    measure: str = "R@10",
    floor: float | None = None,
) -> Any:
    """Fail the test if a gold set misses a required gate, or if a run got worse.

    Parameters
    ----------
    gold_set
        Folder of a gold set. It is evaluated, and its required gates must pass.
    run, qrels
        Instead of a gold set: a run and judgements in the forms of `rag_eval.evaluate`.
    baseline
        An earlier run. The mean may not be lower by 5 % or more with a 95 % interval of the
        paired difference below 0. This is the rule of the gate `regression`.
    measure
        A measure of ir_measures.
    floor
        The least value. The lower bound of the 95 % interval must reach it.

    Returns
    -------
    Report or EvaluatedRuns
        The report of the gold set, or the result of `rag_eval.evaluate`.

    Raises
    ------
    InputError
        The gold set, the run or the judgements cannot be used.
    TypeError
        The arguments are neither a gold set, nor a run with judgements and something to reach.
    """
    if gold_set is not None and run is None and qrels is None:
        return _check_gold_set(Path(gold_set))
    if gold_set is not None or run is None or qrels is None:
        raise TypeError("rag_eval_gate takes a gold set, or run= and qrels=")
    if baseline is None and floor is None:
        raise TypeError("rag_eval_gate needs baseline= or floor= beside run= and qrels=")
    import rag_eval
    from rag_eval.measures.ranking import standard_label

    measure = standard_label(measure)
    runs = {"run": run} if baseline is None else {"baseline": baseline, "run": run}
    result = rag_eval.evaluate(runs, qrels, [measure])
    faults = []
    if floor is not None:
        faults += _judge_floor(result, measure, floor)
    if baseline is not None:
        faults += _judge_drop(result, measure)
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)
    return result


@pytest.fixture
def rag_eval_gate() -> Callable[..., Any]:
    """Fail a test when a gold set misses a required gate, or when a run got worse.

    The fixture is the function `_check_retrieval`.
    """
    return _check_retrieval


# ---- Runs.


def _judge_floor(result: Any, measure: str, floor: float) -> list[str]:
    from rag_eval.core.config import Floor
    from rag_eval.gates.floors import judge_floor
    from rag_eval.measures.ranking import machine_name

    row = result.table.loc["run", measure]
    figure = {name: float(row[name]) for name in ("value", "ci_low", "ci_high")}
    bounds = {name: value for name, value in figure.items() if value == value}  # noqa: PLR0124 - NaN
    wanted = Floor(measure=machine_name(measure), direction=">=", bound=floor)
    judged = judge_floor(wanted, bounds, min_queries=0)
    if judged.status == "pass":
        return []
    values = result.per_query.query("strategy == 'run'").set_index("query_id")[measure]
    missed = values[values < 1].sort_values(kind="stable")
    found = f"{measure} is {_interval(figure)} over {len(values)} questions"
    return [
        f"{found}; accepted >= {floor:g} for its lower bound ({judged.reason_code})",
        *_list(f"{len(missed)} of {len(values)} questions are below 1", missed.items()),
    ]


def _judge_drop(result: Any, measure: str) -> list[str]:
    from rag_eval.core.config import Gates
    from rag_eval.gates.regression import judge_drops

    rows = result.per_query.set_index(["query_id", "group_id"])
    before, now = (rows.loc[rows["strategy"] == name, measure] for name in ("baseline", "run"))
    now = now.reindex(before.index)
    drop: float = Gates.model_fields["max_relative_drop"].default
    columns = before.to_numpy()[:, None], now.to_numpy()[:, None], result.gold
    (judged,) = judge_drops(*columns, max_relative_drop=drop, min_queries=0, higher=[True])
    if judged.status == "pass":
        return []
    of: Mapping[str, Any] = judged.evidence
    head = (
        f"{measure} fell from {of['baseline']:.3f} to {of['now']:.3f}, difference {_interval(of)} "
        f"over {of['n_scored']} questions; accepted: a fall of less than {drop:.0%}, or an "
        "interval that includes 0"
    )
    by_query = (values.droplevel("group_id").to_dict() for values in (before, now))
    return [head, *_list_changes(*by_query)]


# ---- A gold set.


def _check_gold_set(folder: Path) -> "Report":
    """Evaluate a gold set with the settings of this folder; fail the test if a gate failed."""
    import rag_eval
    from rag_eval.core.settings import Settings
    from rag_eval.reporting.verdicts import verdict_rows
    from rag_eval.storage.home import open_home

    report = rag_eval.run(folder).report
    verdict = verdict_rows(report)
    if not verdict.failed:
        return report
    lines = [f"{report.gold.name}: required gates failed"]
    lines += [
        f"  {row.id} {row.status} ({row.reason_code}): {row.evidence}"
        for row in verdict.rows
        if row.outcome == "failure"
    ]
    lines += _list_differences(open_home(Settings()), report)
    pytest.fail("\n".join(lines), pytrace=False)


def _list_differences(home: "Home", report: "Report") -> list[str]:
    """List the questions that differ from the baseline, else those to look at first."""
    from rag_eval.gates.regression import mean_by_query
    from rag_eval.pipeline.comparisons import load_baseline
    from rag_eval.pipeline.history import open_run

    gold_set = report.gold.name
    baseline = load_baseline(home, gold_set)
    if baseline is None:
        first = (
            (one.query_id, f"found by {one.primary.n_found} of {one.primary.n_runs} retrievals")
            for one in report.look_first or []
        )
        return _list("questions to look at first", first) if report.look_first else []
    now = open_run(home, report.run_id, gold_set).per_query()
    about = report.strategy, report.evaluation.level, ["recall_at_10"]
    before, after = (
        mean_by_query(frame, *about)["recall_at_10"].dropna().to_dict()
        for frame in (baseline.per_query, now)
    )
    return _list_changes(before, after)


# ---- Texts.


def _interval(figure: Mapping[str, Any]) -> str:
    bounds = (figure.get("ci_low"), figure.get("ci_high"))
    low, high = ("-" if bound is None or bound != bound else f"{bound:.3f}" for bound in bounds)  # noqa: PLR0124 - NaN
    return f"{figure['value']:.3f} [{low}, {high}]"


def _list_changes(before: Mapping[Any, float], now: Mapping[Any, float]) -> list[str]:
    changed = {name: now[name] - before[name] for name in before if name in now}
    worse = sorted((change, name) for name, change in changed.items() if change < 0)
    better = sum(change > 0 for change in changed.values())
    rows = ((name, f"{before[name]:.3f} -> {now[name]:.3f}") for _, name in worse)
    return _list(f"{len(worse)} questions got worse and {better} better", rows)


def _list(title: str, rows: Iterable[tuple[str, object]]) -> list[str]:
    """Write a title and at most MAX_SHOWN questions with their values."""
    from rag_eval.core.errors import quoted

    shown = list(rows)
    lines = [
        f"  {quoted(name)}  {value:.3f}"
        if isinstance(value, float)
        else f"  {quoted(name)}  {value}"
        for name, value in shown[:MAX_SHOWN]
    ]
    more = len(shown) - len(lines)
    return [f"{title}:" if lines else title, *lines, *([f"  and {more} more"] if more else [])]
