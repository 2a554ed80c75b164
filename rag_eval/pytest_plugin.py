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
    baseline: Any = None,
    qrels: Any = None,
    measure: str = "R@10",
) -> Any:
    """Fail the test if a gold set misses a required gate, or if a run is worse than a baseline.

    Parameters
    ----------
    gold_set
        Folder of a gold set. It is evaluated, and its required gates must pass.
    run, baseline, qrels
        Instead of a gold set: a run, an earlier run and judgements in the forms of
        `rag_eval.evaluate`. The mean may not be lower by 5 % or more with a 95 % interval of the
        paired difference below 0. This is the rule of the gate `regression`.
    measure
        A measure of ir_measures.

    Returns
    -------
    Report or EvaluatedRuns
        The report of the gold set, or the result of `rag_eval.evaluate`.

    Raises
    ------
    InputError
        The gold set, a run or the judgements cannot be used.
    TypeError
        The arguments are neither a gold set, nor two runs with judgements.
    """
    import rag_eval

    given = [part is not None for part in (gold_set, run, baseline, qrels)]
    if given == [True, False, False, False]:
        result: Any = rag_eval.run(Path(str(gold_set))).report
        faults = _judge_gates(result)
    elif given == [False, True, True, True]:
        result = rag_eval.evaluate({"baseline": baseline, "run": run}, qrels, [measure])
        faults = _judge_drop(result)
    else:
        raise TypeError("rag_eval_gate takes a gold set, or run=, baseline= and qrels=")
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


def _judge_drop(result: Any) -> list[str]:
    from rag_eval.core.config import Gates
    from rag_eval.core.errors import quoted
    from rag_eval.gates.verdict import judge_drops

    ((_, measure),) = result.table.loc[["run"]].index
    rows = result.per_query  # in the order of the questions of `gold`
    values = rows.pivot(index="query_id", columns="strategy", values=measure)
    values = values.reindex(rows["query_id"].unique())
    drop: float = Gates.model_fields["max_relative_drop"].default
    columns = values[["baseline"]].to_numpy(), values[["run"]].to_numpy(), result.gold
    (judgement,) = judge_drops(*columns, max_relative_drop=drop, min_queries=0, higher=[True])
    if judgement.status == "pass":
        return []
    evidence: Any = judgement.evidence
    change = (values["run"] - values["baseline"]).sort_values(kind="stable")
    worse = change[change < 0].index
    bounds = ", ".join(f"{evidence[end]:.3f}" for end in ("ci_low", "ci_high"))
    lines = [
        f"  {quoted(name)}  {before:.3f} -> {now:.3f}"
        for name, before, now in values.loc[worse[:MAX_SHOWN], ["baseline", "run"]].itertuples()
    ]
    return [
        (
            f"{measure} fell from {evidence['baseline']:.3f} to {evidence['now']:.3f}, difference "
            f"{evidence['value']:.3f} [{bounds}] over {evidence['n_scored']} questions; accepted: "
            f"a fall of less than {drop:.0%}, or an interval that includes 0"
        ),
        f"{len(worse)} questions got worse and {(change > 0).sum()} better:",
        *lines,
        *([f"  and {len(worse) - MAX_SHOWN} more"] if len(worse) > MAX_SHOWN else []),
    ]
