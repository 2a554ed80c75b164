"""pytest plugin: the fixture `rag_eval_gate` fails a test when retrieval got worse.

pytest imports this module in every run of an environment, so the module imports only pytest.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

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
    import rag_eval

    if gold_set is not None and run is None and qrels is None:
        result: Any = rag_eval.run(Path(gold_set)).report
        faults = _judge_gates(result)
    elif gold_set is not None or run is None or qrels is None:
        raise TypeError("rag_eval_gate takes a gold set, or run= and qrels=")
    elif baseline is None and floor is None:
        raise TypeError("rag_eval_gate needs baseline= or floor= beside run= and qrels=")
    else:
        runs = {"run": run} if baseline is None else {"baseline": baseline, "run": run}
        result = rag_eval.evaluate(runs, qrels, [measure])
        faults = [] if floor is None else _judge_floor(result, floor)
        faults += [] if baseline is None else _judge_drop(result)
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)
    return result


@pytest.fixture
def rag_eval_gate() -> Callable[..., Any]:
    """Fail a test when a gold set misses a required gate, or when a run got worse.

    The fixture is the function `_check_retrieval`.
    """
    return _check_retrieval


def _judge_gates(report: Any) -> list[str]:
    from rag_eval.reporting.verdicts import verdict_rows

    failures = [row for row in verdict_rows(report).rows if row.outcome == "failure"]
    lines = [f"  {row.id} {row.status} ({row.reason_code}): {row.evidence}" for row in failures]
    return [f"{report.gold.name}: required gates failed", *lines] if lines else []


def _judge_floor(result: Any, floor: float) -> list[str]:
    from rag_eval.core.config import Floor
    from rag_eval.gates.verdict import judge_floor
    from rag_eval.measures.ranking import machine_name

    ((_, measure),) = result.table.loc[["run"]].index
    figure = result.table.loc["run", measure][["value", "ci_low", "ci_high"]].dropna().to_dict()
    wanted = Floor(measure=machine_name(measure), direction=">=", bound=floor)
    judgement = judge_floor(wanted, figure, min_queries=0)
    if judgement.status == "pass":
        return []
    values = _values_of(result, "run", measure)
    missed = values[values < 1].sort_values(kind="stable")
    return [
        (
            f"{measure} is {_interval(figure)} over {len(values)} questions; accepted >= {floor:g} "
            f"for its lower bound ({judgement.reason_code})"
        ),
        f"{len(missed)} of {len(values)} questions are below 1:",
        *_list_questions([f"{name}  {value:.3f}" for name, value in missed.items()]),
    ]


def _judge_drop(result: Any) -> list[str]:
    from rag_eval.core.config import Gates
    from rag_eval.gates.regression import judge_drops

    ((_, measure),) = result.table.loc[["run"]].index
    before = _values_of(result, "baseline", measure)
    now = _values_of(result, "run", measure).reindex(before.index)
    drop: float = Gates.model_fields["max_relative_drop"].default
    columns = before.to_numpy()[:, None], now.to_numpy()[:, None], result.gold
    (judgement,) = judge_drops(*columns, max_relative_drop=drop, min_queries=0, higher=[True])
    if judgement.status == "pass":
        return []
    evidence: Any = judgement.evidence
    change = (now - before).sort_values(kind="stable")
    worse = change[change < 0].index
    return [
        (
            f"{measure} fell from {evidence['baseline']:.3f} to {evidence['now']:.3f}, difference "
            f"{_interval(evidence)} over {evidence['n_scored']} questions; accepted: a fall of "
            f"less than {drop:.0%}, or an interval that includes 0"
        ),
        f"{len(worse)} questions got worse and {(change > 0).sum()} better:",
        *_list_questions([f"{name}  {before[name]:.3f} -> {now[name]:.3f}" for name in worse]),
    ]


def _values_of(result: Any, run: str, measure: str) -> Any:
    """Return the values of a run by question."""
    rows = result.per_query
    return rows[rows["strategy"] == run].set_index("query_id")[measure]


def _interval(figure: Any) -> str:
    bounds = ", ".join(f"{figure[end]:.3f}" for end in ("ci_low", "ci_high") if end in figure)
    return f"{figure['value']:.3f} [{bounds or '-'}]"


def _list_questions(lines: list[str]) -> list[str]:
    from rag_eval.core.errors import quoted

    lines = [quoted(line) for line in lines]
    more = [f"  and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else []
    return [*(f"  {line}" for line in lines[:MAX_SHOWN]), *more]
