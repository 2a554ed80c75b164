"""Judge the success criteria of the project: met, not met, or not measurable, with intervals.

success.py                 pandas_api, SciFact and XQuAD (the last two where the public data is)

A gain is relative: the mean of hybrid over the mean of the other strategy, minus 1. Its interval
resamples groups of questions. A gain is met when it reaches the goal and its interval excludes 0.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from timing import ROOT, data_folder

from rag_eval.core.report import Report
from rag_eval.core.settings import Settings, telemetry_off
from rag_eval.pipeline.evaluation import open_beir, open_gold_set
from rag_eval.pipeline.run import evaluate_all

GAIN, P95_MS, TRUST, HITS, COST = 0.10, 3100.0, 0.60, 0.70, 5.0
MEASURES = {"R@10": "recall_at_10", "MRR": "mrr"}
SINGLE = ("bm25", "vector")
RESAMPLES, SEED = 2000, 0


@dataclasses.dataclass(frozen=True)
class Judged:
    """One criterion on one collection."""

    criterion: str
    goal: str
    verdict: str
    found: str = ""


def relative_gain(
    ours: Sequence[float], theirs: Sequence[float], groups: Sequence[str]
) -> tuple[float, float, float]:
    """Return mean(ours) / mean(theirs) - 1 and its 95 % interval; one value a question."""
    group = pd.factorize(np.asarray(groups))[0]
    a, b = (np.bincount(group, np.asarray(its, dtype=float)) for its in (ours, theirs))
    if not b.sum():
        return np.nan, np.nan, np.nan
    drawn = np.random.default_rng(SEED).multinomial(len(a), np.full(len(a), 1 / len(a)), RESAMPLES)
    low, high = np.quantile(drawn @ a / np.maximum(drawn @ b, 1e-12) - 1, (0.025, 0.975))
    return float(a.sum() / b.sum() - 1), float(low), float(high)


def question_means(per_query: pd.DataFrame, level: str) -> pd.DataFrame:
    """Average the wordings and seeds of each question: rows (group, question), a column a pair."""
    rows = per_query[per_query["eligible"] & (per_query["level"] == level)]
    return rows.pivot_table(
        index=["group_id", "query_id"], columns="strategy", values=list(MEASURES.values())
    )


def judge_gains(per_query: pd.DataFrame, level: str) -> Iterator[Judged]:
    """Compare hybrid with the vector retriever and with the best single one."""
    means = question_means(per_query, level)
    groups = means.index.get_level_values("group_id").tolist()
    for label, name in MEASURES.items():
        values = means[name]
        best = max(SINGLE, key=lambda strategy: float(values[strategy].mean()))
        for against, title in (("vector", "the vector retriever"), (best, f"the best ({best})")):
            gain, low, high = relative_gain(
                values["hybrid"].tolist(), values[against].tolist(), groups
            )
            yield Judged(
                f"{label}: hybrid against {title}",
                f">= +{GAIN:.0%}",
                "met" if gain >= GAIN and low > 0 else "not met",
                f"{gain:+.1%} [{low:+.1%}, {high:+.1%}], {len(means)} questions",
            )


def judge_report(report: Report) -> Iterator[Judged]:
    """Judge what the report says of the hybrid strategy, of trust, cost and cache."""
    hybrid = next(part for part in report.strategies if part.name == "hybrid")
    p95, trust = hybrid.latency_ms.p95, report.trust.retrieved["hybrid"].avg_trust
    cost, hits = hybrid.cost_per_1k, report.cacheHitRate

    def at_most(criterion: str, goal: float, value: float | None, found: str) -> Judged:
        if value is None:
            return Judged(criterion, f"<= {goal}", "not measurable", "the report has no value")
        return Judged(criterion, f"<= {goal}", "met" if value <= goal else "not met", found)

    queries = f"{p95:.1f} ms over {hybrid.latency_ms.n} queries" if p95 else ""
    yield at_most("p95 of a query in ms", P95_MS, p95, queries)
    yield at_most("cost of 1,000 questions", COST, cost, str(cost))
    if trust.value is None:
        yield Judged("average trust", f">= {TRUST}", "not measurable", "no source is trusted yet")
    else:
        interval = f"{trust.value:.2f} [{trust.ci_low:.2f}, {trust.ci_high:.2f}]"
        found = f"{interval}, {trust.n_scored} questions"
        verdict = "met" if trust.value >= TRUST else "not met"
        yield Judged("average trust", f">= {TRUST}", verdict, found)
    if report.previous is None or hits is None:
        yield Judged("cache hit rate", f">= {HITS}", "not applicable", "a first run has no cache")
    else:
        verdict = "met" if hits >= HITS else "not met"
        yield Judged("cache hit rate", f">= {HITS}", verdict, f"{hits:.2f}")
    planted = "no planted document; the tests of the guard plant some"
    yield Judged("poisoned documents blocked", "100 %", "not measurable", planted)
    earlier = "no answers of an earlier system to compare with"
    yield Judged("groundedness", "+8 points", "not measurable", earlier)
    yield Judged("faithfulness", "+8 points", "not measurable", f"no judge; {earlier}")


def judge(report: Report, folder: Path) -> list[Judged]:
    """Judge all criteria of one evaluated collection with the reports in `folder`."""
    per_query = pd.read_parquet(folder / "per-query.parquet")
    level = report.evaluation.level
    return [*judge_gains(per_query, level), *judge_report(report)]


def main() -> int:
    """Evaluate the collections and print a table for each."""
    telemetry_off()
    settings = Settings()
    evaluations = [open_gold_set(ROOT / "gold_sets" / "pandas_api", settings)]
    data = data_folder()
    for name in ("scifact", "xquad") if data else ():
        vectors = data / "embeddings" / "all-MiniLM-L6-v2.npz"
        evaluations.append(open_beir(data / name, "test", settings, vectors=vectors))
    for outcome in evaluate_all(evaluations, settings):
        print(f"\n{outcome.gold_set}")
        for its in judge(outcome.report, outcome.folder):
            print(f"  {its.verdict:15} {its.criterion:42} {its.goal:10} {its.found}")
    if data is None:
        print("\nscifact, xquad: not measured, the public data is not here (RAG_EVAL_TEST_DATA)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
