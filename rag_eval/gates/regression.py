"""The gate `regression`: the primary strategy, question by question, against the baseline.

A measure has fallen when two things hold. Its mean is lower than the baseline's by
`gates.max_relative_drop` or more, and the 95 % interval of the paired difference excludes zero.
The interval is two-sided although the alarm is one-sided, so a false alarm is rarer than 1 in 20.
`catches_drop` is the drop that the gate finds with 80 % power on these questions: it says how
little a gate over few questions can see. Every measure is judged by itself, so the chance of some
false alarm is at most their sum.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rag_eval.core.arrays import number
from rag_eval.core.errors import quoted
from rag_eval.gates.gate import Gate, GateInputs, Judgement, Priority
from rag_eval.measures.intervals import PairedComparison, paired_comparison
from rag_eval.measures.overlap import SharedGold

LOWER_IS_BETTER: Final = (
    "delta_s",
    "latency",
    "cost",
    "answered_anyway",
    "refused_answerable",
    "failure_rate",
    "failed",
)
"""Beginnings of the names of measures that improve as they fall."""
_STEPS = 20  # of the iteration that finds a drop and the variance after it
_ROUNDING = 1e-9  # tolerance of a relative drop, so that 0.80 to 0.76 counts as 5 %


def higher_is_better(measure: str) -> bool:
    """Tell whether a measure improves as it rises."""
    return not measure.startswith(LOWER_IS_BETTER)


def with_delta_s(per_query: pd.DataFrame, per_run: pd.DataFrame) -> pd.DataFrame:
    """Add delta_s of each retrieval, a part of the stability stage, to the per-query figures.

    A failed retrieval counts 1, as in the report. A strategy without any delta_s has none.
    """
    keys = ["strategy", "query_id", "paraphrase_id", "seed"]
    joined = per_query.merge(
        per_run[[*keys, "delta_s"]], on=keys, how="left", validate="many_to_one"
    )
    # A strategy that ignores the seed ran under one seed and has a row under each.
    by_wording = per_run.groupby(keys[:-1])["delta_s"].mean().rename("of_wording")
    joined = joined.join(by_wording, on=keys[:-1])
    value = joined["delta_s"].fillna(joined["of_wording"])
    measured = value.notna().groupby(joined["strategy"]).transform("any")
    return joined.drop(columns="of_wording").assign(
        delta_s=value.mask(joined["failed"] & measured, 1.0)
    )


def judge_drops(
    before: ArrayLike,
    now: ArrayLike,
    gold: SharedGold,
    *,
    max_relative_drop: float,
    min_queries: int,
    higher: Sequence[bool],
) -> list[Judgement]:
    """Compare values of the same questions in two runs, measure by measure.

    `before` and `now` are [n_queries, m] means inside each question, NaN where not scored.
    `gold` is that of the questions. Figures of the evidence are of now - before.

    A question that only the baseline scored may have fallen. Where such questions are a share of
    `max_relative_drop` or more, the evidence is insufficient.
    """
    left, right = (np.asarray(values, dtype=np.float64) for values in (before, now))
    difference = right - left
    compared = paired_comparison(
        right,
        left,
        gold,
        higher_is_better=list(higher),
        unit_range=[not np.any(np.abs(column) > 1) for column in difference.T],
    )
    judgements = []
    for at, up in enumerate(higher):
        paired = ~np.isnan(difference[:, at])
        n_before, n_paired = int(np.sum(~np.isnan(left[:, at]))), int(paired.sum())
        n_effective = float(compared.n_effective[at])
        evidence: dict[str, object] = {"n_scored": n_paired, "n_effective": number(n_effective)}
        lost = n_before - n_paired
        if lost:
            evidence["n_unpaired"] = lost
        code = "not_measured"
        if n_before and lost >= max_relative_drop * n_before:
            why = f"{lost} of {n_before} questions that the baseline scored were not scored now"
            evidence["reason"] = why
        elif not n_paired:
            evidence["reason"] = "no question was scored in both runs"
        elif n_effective < min_queries:
            code, evidence["min_queries"] = "too_few_queries", min_queries
        else:
            means = float(left[paired, at].mean()), float(right[paired, at].mean())
            judgements.append(_judge_drop(compared, at, means, evidence, max_relative_drop, up=up))
            continue
        judgements.append(Judgement("insufficient_evidence", code, evidence))
    return judgements


def _judge_drop(
    compared: PairedComparison,
    at: int,
    means: tuple[float, float],
    evidence: dict[str, object],
    max_relative_drop: float,
    *,
    up: bool,
) -> Judgement:
    """Judge one measure whose questions can be paired."""
    base, level = means
    value, low, high = (field[at] for field in (compared.delta, compared.ci_low, compared.ci_high))
    fallen = base - level if up else level - base
    figures = {"baseline": base, "now": level, "value": value, "ci_low": low, "ci_high": high}
    if base > 0:
        figures["relative_drop"] = fallen / base
    least = float(compared.minimum_detectable[at])
    if not np.isnan(least):
        least = _catchable_drop(least, base, float(compared.n_effective[at]), up=up)
        figures["catches_drop"] = max(least, max_relative_drop * base)
    evidence |= {name: number(figure) for name, figure in figures.items()}
    for name in ("n_better", "n_worse", "n_tied"):
        evidence[name] = int(getattr(compared, name)[at])
    enough = fallen > 0 if base <= 0 else fallen / base >= max_relative_drop - _ROUNDING
    # The bound of a single question is NaN, which compares as false.
    sure = high < 0 if up else low > 0
    if enough and sure:
        return Judgement("fail", "regression", evidence)
    return Judgement("pass", "no_regression", evidence)


def _catchable_drop(least: float, base: float, n: float, *, up: bool) -> float:
    """Return the drop that is found with 80 % power, from the smallest detectable difference.

    The differences of rates vary more after a drop towards 0.5. Their variance is taken to grow as
    the mean of the binomial variances before and after. Half a question that misses and half a
    question that hits keep the variance of a perfect baseline above 0.
    """
    if not 0 <= base <= 1:
        return least
    start, drop = (base * n + 0.5) / (n + 1), least
    for _ in range(_STEPS):
        fallen = min(max(start - drop if up else start + drop, 0.0), 1.0)
        growth = fallen * (1 - fallen) / (start * (1 - start))
        drop = least * math.sqrt((1 + growth) / 2)
    return drop


class RegressionGate(Gate):
    """Every measure of `gates.regression` at the headline level, against the accepted baseline."""

    name = "regression"
    severity: Priority = "P2"

    def judge(self, inputs: GateInputs) -> Iterator[Judgement]:
        """Judge each measure, or give the reason why the two runs cannot be paired."""
        config, baseline = inputs.config, inputs.baseline
        gates, strategy = config.gates, config.primary_strategy
        measures = list(dict.fromkeys(gates.regression))
        about: dict[str, object] = {
            "strategy": strategy,
            "level": config.level,
            "accepted": f"relative drop < {gates.max_relative_drop:g}, or not significant",
        }
        if baseline is not None:
            about["baseline_run"] = quoted(baseline.run_id)
        code, reason = _find_obstacle(inputs)
        if baseline is None or code:
            judgements = [Judgement("insufficient_evidence", code, {"reason": reason})]
            judgements *= len(measures)
        else:
            if baseline.changes:
                about["different"] = list(baseline.changes.values())
            left, right = (
                _mean_by_query(per_query, strategy, config.level, measures)
                for per_query in (baseline.per_query, inputs.per_query)
            )
            queries = left.index.union(right.index)
            left, right = left.reindex(queries), right.reindex(queries)
            judgements = judge_drops(
                left[measures].to_numpy(dtype=np.float64),
                right[measures].to_numpy(dtype=np.float64),
                inputs.gold.of(queries.tolist()),
                max_relative_drop=gates.max_relative_drop,
                min_queries=gates.min_queries,
                higher=[higher_is_better(name) for name in measures],
            )
        for measure, (status, code, evidence, _) in zip(measures, judgements, strict=True):
            yield Judgement(status, code, {"measure": measure, **about, **evidence}, measure)


def _find_obstacle(inputs: GateInputs) -> tuple[str, str]:
    """Return code and reason why the run and the baseline cannot be compared; empty if they can."""
    baseline, strategy = inputs.baseline, inputs.config.primary_strategy
    if inputs.baseline_fault:
        return "baseline_damaged", f"the baseline cannot be used: {inputs.baseline_fault}"
    if baseline is None:
        advice = "rag-eval gate --accept"
        return "no_baseline", f"no run was accepted as the baseline yet: {advice}"
    if "gold_changed" in baseline.changes:
        return "gold_differs", (
            f"{baseline.changes['gold_changed']}, so figures cannot be paired: "
            "accept a run of this gold"
        )
    if strategy not in set(baseline.per_query["strategy"]):
        return "strategy_missing", f"the baseline has no strategy {quoted(strategy)}"
    return "", ""


def _mean_by_query(
    per_query: pd.DataFrame, strategy: str, level: str, measures: list[str]
) -> pd.DataFrame:
    """Mean of each measure inside each question; NaN for unknown measures."""
    chosen = per_query[(per_query["strategy"] == strategy) & (per_query["level"] == level)]
    by_query = chosen.groupby("query_id", sort=True)
    measured = [name for name in measures if name in per_query.columns]
    return by_query[measured].mean().reindex(columns=measures)
