"""Regression: the primary strategy, question by question, against the run that was accepted as the baseline.

Belongs here: when a drop counts, and what stands beside it. Where baselines are kept is `rag_eval.evaluation.baselines`.

A measure has fallen when its mean is lower than the baseline's by `gates.max_relative_drop` or more and the 95 % interval of the paired
difference lies wholly on the bad side of zero. The two-sided interval is taken although the alarm is one-sided: on 200 questions with a
base rate of 0.80 it still finds 2 % won and 10 % lost in 93 % of random draws, and 4 % won and 4 % lost alarms in 2 %. Every measure is
judged by itself; with several of them the chance of some false alarm is at most the sum.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.gates.compared_runs import MeasuredRun, by_query, differing
from rag_eval.gates.verdicts import GateResult, Status, is_configured, is_required
from rag_eval.measures.paired import paired_comparison
from rag_eval.records.gold_set import GoldSetConfig
from rag_eval.records.problems import quoted

GATE: Final = "regression"
SEED = 20_240_229
LOWER_IS_BETTER = (
    "delta_s",
    "latency",
    "cost",
    "answered_anyway",
    "refused_answerable",
    "failure_rate",
    "failed",
)
"""Beginnings of the names of measures that improve as they fall."""

_ROUNDING = 1e-9  # of a relative drop: 0.80 to 0.76 is 5 % whatever the last bit says


def higher_is_better(measure: str) -> bool:
    """Tell the direction in which a measure improves."""
    return not measure.startswith(LOWER_IS_BETTER)


def judge_drops(
    before: ArrayLike,
    now: ArrayLike,
    groups: ArrayLike,
    *,
    max_relative_drop: float,
    min_queries: int,
    higher: Sequence[bool],
    seed: int = SEED,
) -> list[tuple[Status, str, dict[str, Any]]]:
    """Hold per-query values against those of a baseline, measure by measure.

    Parameters
    ----------
    before, now
        `[n_queries, m]` values of the same queries, averaged inside the query; NaN = not scored.
    groups
        `[n_queries]` group code of each query: the unit of inference.
    max_relative_drop
        Share of the baseline's mean; a drop of this size or more whose interval excludes zero is a regression.
    min_queries
        Fewer groups than this are too few to say anything.
    higher
        `[m]` whether the measure improves as it rises.
    seed
        Of the bootstrap.

    Returns
    -------
    list
        Status, reason_code and evidence of each measure. `value`, `ci_low` and `ci_high` are of the paired difference now - before.

    Notes
    -----
    Questions that the baseline scored and this run did not cannot be shown not to have fallen: where they are a share of
    `max_relative_drop` or more, the evidence is insufficient.
    """
    left, right = (np.asarray(values, dtype=np.float64) for values in (before, now))
    difference = right - left
    found = paired_comparison(
        right,
        left,
        groups,
        seed,
        flips=1,
        higher_is_better=list(higher),
        unit_range=[not np.any(np.abs(column) > 1) for column in difference.T],
    )
    verdicts: list[tuple[Status, str, dict[str, Any]]] = []
    for at, up in enumerate(higher):
        paired = ~np.isnan(difference[:, at])
        n_before, n_paired = int(np.sum(~np.isnan(left[:, at]))), int(paired.sum())
        evidence: dict[str, Any] = {"n_scored": n_paired, "n_groups": int(found.n_groups[at])}
        lost = n_before - n_paired
        if lost:
            evidence["n_unpaired"] = lost
        if n_before and lost >= max_relative_drop * n_before:
            reason = f"{lost} of {n_before} questions that the baseline scored were not scored now"
            verdicts.append(
                ("insufficient_evidence", "not_measured", {**evidence, "reason": reason})
            )
            continue
        if not n_paired:
            verdicts.append(
                (
                    "insufficient_evidence",
                    "not_measured",
                    {**evidence, "reason": "no question was scored in both runs"},
                )
            )
            continue
        if found.n_groups[at] < min_queries:
            verdicts.append(
                (
                    "insufficient_evidence",
                    "too_few_queries",
                    {**evidence, "min_queries": min_queries},
                )
            )
            continue
        base, level = float(left[paired, at].mean()), float(right[paired, at].mean())
        evidence |= {
            "baseline": _rounded(base),
            "now": _rounded(level),
            "value": _rounded(found.delta[at]),
            "ci_low": _rounded(found.ci_low[at]),
            "ci_high": _rounded(found.ci_high[at]),
        }
        evidence |= {
            "n_better": int(found.n_better[at]),
            "n_worse": int(found.n_worse[at]),
            "n_tied": int(found.n_tied[at]),
        }
        fallen = base - level if up else level - base
        if base > 0:
            evidence["relative_drop"] = _rounded(fallen / base)
        if not np.isnan(found.minimum_detectable[at]):
            evidence["minimum_detectable"] = _rounded(found.minimum_detectable[at])
        enough = fallen > 0 if base <= 0 else fallen / base >= max_relative_drop - _ROUNDING
        sure = bool(
            found.ci_high[at] < 0 if up else found.ci_low[at] > 0
        )  # NaN, of a single group, is not sure
        verdicts.append(
            ("fail", "regression", evidence)
            if enough and sure
            else ("pass", "no_regression", evidence)
        )
    return verdicts


def _rounded(value: float) -> float:
    """Twelve significant digits, so that equal inputs give equal bytes."""
    return float(f"{float(value):.12g}")


def regression_gates(
    config: GoldSetConfig, before: MeasuredRun | None, now: MeasuredRun
) -> list[GateResult]:
    """Judge every measure of `gates.regression` at the headline level; nothing where the gold set does not ask for the gate.

    Parameters
    ----------
    config
        The gold set.
    before
        The accepted baseline; None where there is none.
    now
        The run that is judged.

    Returns
    -------
    list
        One result a measure: fail (`regression`), pass (`no_regression`), or insufficient evidence with the reason no_baseline,
        gold_differs, strategy_missing, not_measured or too_few_queries.
    """
    if not is_configured(config.gates, GATE):
        return []
    measures, strategy = list(dict.fromkeys(config.gates.regression)), config.primary_strategy
    about: dict[str, Any] = {
        "strategy": strategy,
        "level": config.level,
        "accepted": f"relative drop < {config.gates.max_relative_drop:g}, or not told from none",
    }

    def results(verdicts: Sequence[tuple[Status, str, dict[str, Any]]]) -> list[GateResult]:
        required = is_required(config.gates, GATE)
        return [
            GateResult(
                f"{GATE}.{measure}",
                GATE,
                status,
                code,
                {"measure": measure, **about, **evidence},
                required,
            )
            for measure, (status, code, evidence) in zip(measures, verdicts, strict=True)
        ]

    def without_evidence(code: str, reason: str) -> list[GateResult]:
        return results([("insufficient_evidence", code, {"reason": reason})] * len(measures))

    if before is None:
        return without_evidence(
            "no_baseline", "no run was accepted as the baseline yet: rag-eval baseline accept"
        )
    about |= {"baseline_run": quoted(before.run_id)}
    if before.gold_hash != now.gold_hash:
        reason = f"the baseline was judged by other gold ({quoted(before.gold_hash[:12])}, now {quoted(now.gold_hash[:12])}), so its figures cannot be paired: accept a run of this gold"
        return without_evidence("gold_differs", reason)
    if strategy not in set(before.per_query["strategy"]):
        return without_evidence(
            "strategy_missing", f"the baseline has no strategy {quoted(strategy)}"
        )
    different = differing(before, now, strategy)
    if different:
        about["different"] = different
    left, right = (by_query(run, strategy, config.level, measures) for run in (before, now))
    queries = left.index.union(right.index)
    left, right = left.reindex(queries), right.reindex(queries)
    group = right["group_id"].fillna(left["group_id"]).to_numpy(dtype=str)
    codes = np.unique(group, return_inverse=True)[1]
    return results(
        judge_drops(
            left[measures].to_numpy(dtype=np.float64),
            right[measures].to_numpy(dtype=np.float64),
            codes,
            max_relative_drop=config.gates.max_relative_drop,
            min_queries=config.gates.min_queries,
            higher=[higher_is_better(name) for name in measures],
        )
    )
