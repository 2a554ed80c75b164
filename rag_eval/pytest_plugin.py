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

    absent = [part is None for part in (run, baseline, qrels)]
    if gold_set is not None and all(absent):
        result: Any = rag_eval.run(gold_set).report
        faults = _failed_gates(result)
    elif gold_set is None and not any(absent):
        result = rag_eval.evaluate({"baseline": baseline, "run": run}, qrels, [measure])
        faults = _drop(result)
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


def _failed_gates(report: Any) -> list[str]:
    from rag_eval.reporting.verdicts import verdict_rows

    failures = [row for row in verdict_rows(report).rows if row.outcome == "failure"]
    lines = [f"  {row.id} {row.status} ({row.reason_code}): {row.evidence}" for row in failures]
    return [f"{report.gold.name}: required gates failed", *lines] if lines else []


def _drop(result: Any) -> list[str]:
    from rag_eval.core.config import Gates
    from rag_eval.core.errors import quoted
    from rag_eval.gates.verdict import judge_drops

    ((_, measure),) = result.table.loc[["run"]].index
    rows = result.per_query  # in the order of the questions of `gold`
    before, now = (
        rows[rows["strategy"] == name].set_index("query_id")[measure]
        for name in ("baseline", "run")
    )
    drop: float = Gates.model_fields["max_relative_drop"].default
    columns = before.to_numpy()[:, None], now.to_numpy()[:, None], result.gold
    (judgement,) = judge_drops(*columns, max_relative_drop=drop, min_queries=0, higher=[True])
    if judgement.status == "pass":
        return []
    evidence: Any = judgement.evidence
    change = (now - before).sort_values(kind="stable")
    worse = change[change < 0].index
    more = len(worse) - MAX_SHOWN
    return [
        (
            f"{measure} fell from {evidence['baseline']:.3f} to {evidence['now']:.3f}, difference "
            f"{evidence['value']:.3f} [{evidence['ci_low']:.3f}, {evidence['ci_high']:.3f}] over "
            f"{evidence['n_scored']} questions; accepted: a fall of less than {drop:.0%}, or an "
            "interval that includes 0"
        ),
        f"{len(worse)} questions got worse and {(change > 0).sum()} better:",
        *(f"  {quoted(q)}  {before[q]:.3f} -> {now[q]:.3f}" for q in worse[:MAX_SHOWN]),
        *([f"  and {more} more"] if more > 0 else []),
    ]
