"""Judge the success criteria of the project on pandas_api, SciFact and XQuAD.

A gain is relative: mean of hybrid / mean of the other strategy - 1. It is met when the lower end
of its 95 % interval reaches the goal.

The last two, and the planted documents, are measured where the public data is.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pandas as pd
from rich.console import Console
from timing import ROOT, data_folder

from rag_eval.core.records import NOT_SCORED, Absent, Estimate, Triple
from rag_eval.core.settings import Settings, telemetry_off
from rag_eval.core.types import Level
from rag_eval.gates.gate import FIRST_RUN
from rag_eval.measures.answers import AnswersPart
from rag_eval.measures.overlap import NamedGold, SharedGold, ratio_interval
from rag_eval.measures.strategy_figures import StrategyPart
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.measure_stages import RankingMeasures
from rag_eval.pipeline.opening import open_beir, open_gold_set
from rag_eval.pipeline.stages import evaluate_all, open_runner
from rag_eval.pipeline.strategy_runs import open_runs
from rag_eval.reporting.report import Report
from rag_eval.reporting.tables import Table, print_parts

sys.path.insert(0, str(ROOT / "tests" / "reference"))
from poisoned_corpus import FORMS, PLAIN, STRATEGIES, UNTRUSTED, Poisoned, attack

Verdict = Literal["met", "not met", "not measurable", "not applicable"]


class Criterion(NamedTuple):
    """A success criterion; `found` is the figure for people, or the reason of its absence."""

    criterion: str
    goal: str
    verdict: Verdict
    found: str
    value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None


GAIN, P95_MS, TRUST, HITS, COST = 0.10, 3100.0, 0.60, 0.70, 5.0
MEASURES: Final = {"R@10": "recall_at_10", "MRR": "mrr"}
SINGLE: Final = ("bm25", "vector")
_NOT_COMPARED: Final = "there are no answers of an earlier system to compare with"
_NOT_PLANTED: Final = "no document of this corpus is known to be poisoned"
_NO_PRICE: Final = "no model with a price embeds or answers"
_UNCHANGED: Final = "nothing changed since the last run, so nothing new had to be embedded"
_NO_HYBRID: Final = "needs a hybrid strategy beside bm25 and vector"


def _relative_gain(
    ours: pd.Series, theirs: pd.Series, gold: SharedGold
) -> tuple[float, float, float]:
    """Return mean(ours) / mean(theirs) - 1 and its 95 % interval; NaN if theirs is 0.

    The series have one value a question.
    """
    ratio = ratio_interval(ours, theirs, gold, unit_range=False)
    return float(ratio.value[0]) - 1, float(ratio.low[0]) - 1, float(ratio.high[0]) - 1


def judge_success(report: Report, per_query: pd.DataFrame, gold: NamedGold) -> list[Criterion]:
    """Judge every criterion; `per_query` has the measures of each question, wording and seed."""
    named = {part.name: part for part in report.strategies}
    hybrids = [part for part in (report.primary, *named.values()) if part.kind == "hybrid"]
    single = [part.name for part in named.values() if part.kind in SINGLE and part.rerank is None]
    vectors = [name for name in single if named[name].kind == "vector"]
    judged = list[Criterion]()
    if hybrids and vectors:
        level = report.evaluation.level
        judged += _judge_gains(per_query, level, hybrids[0].name, vectors[0], single, gold=gold)
    else:
        judged += [_open(f"{label} of hybrid", _NO_HYBRID, is_due=False) for label in MEASURES]
    return [*judged, *_judge_figures(report, hybrids[0] if hybrids else report.primary)]


def _judge_gains(
    per_query: pd.DataFrame,
    level: Level,
    hybrid: str,
    vector: str,
    single: Sequence[str],
    *,
    gold: NamedGold,
) -> Iterator[Criterion]:
    """Compare hybrid with the vector retriever, and with the best single strategy."""
    rows = per_query[per_query["eligible"] & (per_query["level"] == level)]
    means = rows.pivot_table(index="query_id", columns="strategy", values=list(MEASURES.values()))
    shared = gold.of(means.index.tolist())
    for label, name in MEASURES.items():
        values = means[name]
        best = max(single, key=lambda strategy: float(values[strategy].mean()))
        roles = {vector: "single vector retriever"}
        roles[best] = f"{roles[best]} and the best" if best == vector else "best single strategy"
        for other, role in roles.items():
            criterion = f"{label}: {hybrid} against {other}, the {role}"
            theirs = values[other]
            gain, low, high = _relative_gain(values[hybrid], theirs, shared)
            over = f"{gain:+.1%} [{low:+.1%}, {high:+.1%}], {len(means)} questions"
            verdict = "met" if low >= GAIN else "not met"
            if theirs.mean() * (1 + GAIN) > 1:
                verdict = "not measurable"
                over += f"; {other} has {theirs.mean():.3f}, so the goal exceeds 1"
            yield _criterion(criterion, f">= +{GAIN:.0%}", verdict, over, (gain, low, high))


def _judge_figures(report: Report, hybrid: StrategyPart) -> Iterator[Criterion]:
    """Judge speed, answers, trust, poisoning, cost and cache of the hybrid or primary strategy."""
    latency, name = hybrid.latency_ms, hybrid.name
    if latency.p95 is None:
        yield _open("p95 latency", latency.why["p95"])
    else:
        verdict = "met" if latency.p95 <= P95_MS else "not met"
        found = f"{latency.p95:.1f} ms over {latency.n} queries of {name}"
        yield _criterion("p95 latency", f"<= {P95_MS:,.0f} ms", verdict, found, latency.p95)
    answers = report.answers
    for label in ("groundedness", "faithfulness"):
        reason, is_due = _NOT_COMPARED, not isinstance(answers, Absent)
        if isinstance(answers, Absent):
            reason = answers.reason
        elif label == "faithfulness" and answers.faithfulness.value is None:
            reason = f"{answers.faithfulness.why['value']}; {_NOT_COMPARED}"
        yield _open(f"{label}: +8 to 15 points", reason, is_due=is_due)
    trust = report.trust.retrieved[name].avg_trust
    yield _judge_trust(trust, f"{trust.n_scored} questions of {name}")
    yield _open("poisoned documents blocked: 100 %", _NOT_PLANTED)
    cost, usage = hybrid.cost_per_1k, answers.usage if isinstance(answers, AnswersPart) else {}
    total = (cost or 0.0) + float(str(usage.get("cost_per_1k", 0.0)))
    if cost is None:
        yield _open("cost", hybrid.why["cost_per_1k"])
    elif not total:
        yield _open("cost", _NO_PRICE, is_due=False)
    else:
        verdict = "met" if total <= COST else "not met"
        found = f"{total:.2f} for 1,000 questions"
        yield _criterion("cost", f"<= {COST:.2f}", verdict, found, total)
    if report.previous is None or report.cacheHitRate is None:
        yield _open("cache hit rate", FIRST_RUN, is_due=False)
    elif not report.previous.changes:
        yield _open("cache hit rate", _UNCHANGED, is_due=False)
    else:
        verdict = "met" if report.cacheHitRate >= HITS else "not met"
        found = f"{report.cacheHitRate:.2f} of {report.embeddings.needed:,} texts"
        yield _criterion("cache hit rate", f">= {HITS:.2f}", verdict, found, report.cacheHitRate)


def _judge_trust(trust: Estimate, over: str) -> Criterion:
    if trust.value is None:
        return _open("average trust", trust.why.get("value", NOT_SCORED))
    bounds = ""
    if trust.ci_low is not None and trust.ci_high is not None:
        bounds = f" [{trust.ci_low:.2f}, {trust.ci_high:.2f}]"
    bound = trust.value if trust.ci_low is None else trust.ci_low
    verdict = "met" if bound >= TRUST else "not met"
    found = f"{trust.value:.2f}{bounds}, {over}"
    return _criterion("average trust", f">= {TRUST:.2f}", verdict, found, trust.triple)


def _criterion(
    name: str, goal: str, verdict: Verdict, found: str, figure: float | Triple
) -> Criterion:
    triple = figure if isinstance(figure, tuple) else (figure, None, None)
    return Criterion(name, goal, verdict, found, *triple)


def _open(name: str, reason: str, *, is_due: bool = True) -> Criterion:
    """Make a criterion without a figure: not measurable, or not applicable if it is not due."""
    return Criterion(name, "", "not measurable" if is_due else "not applicable", reason)


def blocked_table(data: Path) -> Table:
    """Plant PoisonedRAG's passages in XQuAD, and count target questions that still get one."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for form in FORMS:
            if form == PLAIN:
                continue  # without the question in front, a passage is no attack on a ranking
            poisoned = Poisoned(attack(data, form, UNTRUSTED), STRATEGIES[0], Path(scratch))
            found = poisoned.outcome()
            verdict = "met" if found.poisoned == 0 else "not met"
            share = f"{1 - found.poisoned:.1%}, at least {1 - found.upper:.1%}, 100 questions"
            rows.append([form, "100 %", verdict, share])
    title = "Questions kept clear of planted passages, first five of BM25, with an allowlist"
    return Table.plain(title, ["form of attack", "goal", "verdict", "found"], rows)


def success_table(evaluation: Evaluation, report: Report) -> Table:
    """Show each success criterion with its verdict and its figure or reason."""
    per_query = open_runner(evaluation).get(RankingMeasures).per_query
    judged = judge_success(report, per_query, open_runs(open_runner(evaluation)).gold.named_gold)
    title = f"Success criteria on {report.gold.name}"
    return Table.plain(
        title, ["criterion", "goal", "verdict", "found"], [row[:4] for row in judged]
    )


def main() -> int:
    """Evaluate the collections and print a table for each."""
    telemetry_off()
    settings, console, data = Settings(), Console(), data_folder()
    evaluations = [open_gold_set(ROOT / "gold_sets" / "pandas_api", settings)]
    if data is not None:
        vectors = data / "embeddings" / "all-MiniLM-L6-v2.npz"
        evaluations += [
            open_beir(data / name, "test", settings, vectors=vectors)
            for name in ("scifact", "xquad")
        ]
    named = {evaluation.config.name: evaluation for evaluation in evaluations}
    for result in evaluate_all(evaluations, settings):
        evaluation = named[result.gold_set]
        with evaluation.lock:
            print_parts(console, [success_table(evaluation, result.report)])
    if data is None:
        print("\nSciFact, XQuAD: not measured, the public data is not here (RAG_EVAL_TEST_DATA)")
    else:
        print_parts(console, [blocked_table(data)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
