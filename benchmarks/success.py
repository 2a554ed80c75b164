"""Judge the success criteria of the project on pandas_api, SciFact and XQuAD, and tune fusion.

success.py                 the last two, and the planted documents, where the public data is

The weight of BM25 in the weighted fusion is chosen on SciFact's train questions alone. Its test
questions then show tuned weights, 0.5/0.5 and reciprocal rank fusion side by side.
"""

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from timing import ROOT, data_folder

from rag_eval.core.parts import Embedding
from rag_eval.core.report import Report
from rag_eval.core.settings import Settings, telemetry_off
from rag_eval.core.strategy import Strategy
from rag_eval.pipeline.evaluation import Evaluation, open_beir, open_gold_set
from rag_eval.pipeline.measures import RankingMeasures
from rag_eval.pipeline.stages import evaluate_all
from rag_eval.reporting.terminal import Sheet, estimate, print_parts, success_table
from rag_eval.retrieval.kinds.hybrid import Hybrid

sys.path.insert(0, str(ROOT / "tests" / "reference"))
from poisoned_corpus import FORMS, PLAIN, STRATEGIES, UNTRUSTED, Poisoned, attack

WEIGHTS = tuple(at / 10 for at in range(1, 10))
TUNED_FOR = "nDCG@10"


def with_strategies(evaluation: Evaluation, more: Sequence[Strategy]) -> Evaluation:
    """Add strategies to an evaluation."""
    strategies = (*evaluation.config.strategies, *more)
    config = evaluation.config.model_copy(update={"strategies": strategies})
    return dataclasses.replace(evaluation, config=config)


def hybrids(vectors: Path, weights: Sequence[float]) -> list[Strategy]:
    """Make a hybrid strategy for each weight of BM25."""
    embedding = Embedding(vectors=str(vectors))
    return [
        Hybrid(
            name=f"w{10 * w:.0f}", kind="hybrid", alpha=w, beta=round(1 - w, 1), embedding=embedding
        )
        for w in weights
    ]


def tune(train: Evaluation, vectors: Path) -> float:
    """Choose the weight of BM25 with the best mean on the questions of `train`."""
    tried = hybrids(vectors, WEIGHTS)
    names = {strategy.name: w for strategy, w in zip(tried, WEIGHTS, strict=True)}
    evaluation = with_strategies(train, tried)
    with evaluation.lock:
        measures = evaluation.runner.get(RankingMeasures).about.strategies
    level = evaluation.config.level
    found = {
        entry.name: next(m for m in entry.measures if (m.label, m.level) == (TUNED_FOR, level))
        for entry in measures
        if entry.name in names
    }
    shown = ", ".join(f"{names[name]:.1f} {figure.value:.4f}" for name, figure in found.items())
    n = next(iter(found.values())).n_scored
    print(f"\nWeight of BM25, {TUNED_FOR} on {n} train questions of SciFact: {shown}")
    return names[max(found, key=lambda name: found[name].value or 0.0)]


def fusion_table(report: Report, tuned: float) -> Sheet:
    """Show the tuned fusion, 0.5/0.5 and reciprocal rank fusion beside the single retrievers."""
    titles = {
        "bm25": "BM25",
        "vector": "vectors",
        "hybrid": "weighted 0.5/0.5",
        "rrf": "reciprocal rank fusion",
        "tuned": f"weighted {tuned:.1f}/{1 - tuned:.1f}, tuned on train",
    }
    labels = ("nDCG@10", "R@10", "RR")
    rows = [
        [title, *(estimate(entry.measure(label, report.evaluation.level)) for label in labels)]
        for entry in report.strategies
        if (title := titles.get(entry.name))
    ]
    title = f"Fusion on {report.gold.name} ({report.gold.n_queries} questions)"
    return Sheet(title, ["strategy", *(f">{label}" for label in labels)], rows)


def blocked_table(data: Path) -> Sheet:
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
    return Sheet(title, ["form of attack", "goal", "verdict", "found"], rows)


def main() -> int:
    """Evaluate the collections and print a table for each."""
    telemetry_off()
    settings, console, data = Settings(), Console(), data_folder()
    evaluations, tuned = [open_gold_set(ROOT / "gold_sets" / "pandas_api", settings)], np.nan
    if data is not None:
        vectors = data / "embeddings" / "all-MiniLM-L6-v2.npz"

        def open_public(name: str, split: str) -> Evaluation:
            return open_beir(data / name, split, settings, vectors=vectors)

        tuned = tune(open_public("scifact", "train"), vectors)
        (best,), (half,) = hybrids(vectors, [tuned]), hybrids(vectors, [0.5])
        rrf = half.model_copy(update={"name": "rrf", "fusion": "rrf"})
        more = [best.model_copy(update={"name": "tuned"}), rrf]
        evaluations += [
            with_strategies(open_public("scifact", "test"), more),
            open_public("xquad", "test"),
        ]
    for result in evaluate_all(evaluations, settings):
        if any(entry.name == "tuned" for entry in result.report.strategies):
            print_parts(console, [fusion_table(result.report, tuned)])
        print_parts(console, [success_table(result.report)])
    if data is None:
        print("\nSciFact, XQuAD: not measured, the public data is not here (RAG_EVAL_TEST_DATA)")
    else:
        print_parts(console, [blocked_table(data)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
