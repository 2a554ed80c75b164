"""The success criteria are judged by relative gains with intervals."""

import numpy as np
import pandas as pd
import pytest

from rag_eval.core.records import Absent, Figure
from rag_eval.gates.gate import PreviousPart
from rag_eval.measures.answers import AnswersPart
from rag_eval.measures.overlap import NamedGold, SharedGold
from rag_eval.measures.strategy_report import Latency, StrategyPart
from rag_eval.reporting.report import Embeddings, Report
from rag_eval.trust.trust_report import RetrievedTrust, TrustPart

APART = SharedGold.of_groups(np.arange(4))


@pytest.fixture
def success(project_root, monkeypatch):
    monkeypatch.syspath_prepend(str(project_root / "benchmarks"))
    return pytest.importorskip("success", reason="the benchmarks are not there")


def test_a_gain_is_the_ratio_of_means_and_copies_add_nothing(success):
    rng = np.random.default_rng(3)
    theirs = rng.uniform(0.2, 0.6, 60)
    gold, twice = SharedGold.of_groups(np.arange(60)), np.tile(np.arange(60), 2)
    gain, low, high = success._relative_gain(1.2 * theirs, theirs, gold)
    assert (gain, low, high) == pytest.approx((0.2, 0.2, 0.2))
    ours = theirs * rng.uniform(0.8, 1.6, 60)
    gain, low, high = success._relative_gain(ours, theirs, gold)
    assert gain == pytest.approx(ours.sum() / theirs.sum() - 1)
    assert low < gain < high
    _, *copied = success._relative_gain(ours[twice], theirs[twice], gold.take(twice))
    assert copied == pytest.approx([low, high], abs=0.02)


@pytest.mark.parametrize(
    ("hybrid", "bm25", "verdict"),
    [
        ([0.9, 0.9, 0.8, 0.9], [0.5, 0.6, 0.5, 0.5], "met"),
        ([0.5, 0.6, 0.5, 0.5], [0.5, 0.6, 0.5, 0.5], "not met"),
        ([0.9, 0.1, 0.9, 0.3], [0.5, 0.6, 0.5, 0.4], "not met"),  # +10 %, interval holds 0
        ([0.6, 0.75, 0.53, 0.65], [0.5, 0.6, 0.5, 0.5], "not met"),  # +20 %, interval from 8 %
        ([0.9, 1.0, 1.0, 1.0], [0.9, 0.9, 0.9, 1.0], "not measurable"),
    ],
)
def test_hybrid_is_held_against_the_better_single_strategy(success, hybrid, bm25, verdict):
    values = {"bm25": bm25, "vector": [0.4, 0.4, 0.4, 0.4], "hybrid": hybrid}
    rows = [
        {"strategy": name, "level": "document", "query_id": f"q{at}", "group_id": f"g{at}"}
        | {"paraphrase_id": wording, "eligible": True, "recall_at_10": value + shift, "mrr": value}
        for name, column in values.items()
        for at, value in enumerate(column)
        for wording, shift in (("original", 0.05), ("p1", -0.05))
    ]
    frame, gold = pd.DataFrame(rows), NamedGold(["q0", "q1", "q2", "q3"], APART)
    judged = list(
        success._judge_gains(frame, "document", "hybrid", "vector", ["bm25", "vector"], gold=gold)
    )
    best = [one for one in judged if "bm25, the best single strategy" in one.criterion]
    assert [one.verdict for one in best] == [verdict] * 2
    assert all("4 questions" in one.found for one in judged)
    assert all(one.ci_low <= one.value <= one.ci_high for one in judged)


def judge_figures(
    success,
    *,
    trust=(0.7, 0.65, 0.75),
    cost=0.0,
    answers=0.0,
    rate=0.9,
    changes=None,
    previous=True,
):
    """Judge a run with these figures; return criterion -> verdict."""
    names = ("value", "ci_low", "ci_high")
    figure = Figure.model_construct(**dict(zip(names, trust, strict=True)), n_scored=9)
    before = PreviousPart.model_construct(changes=changes or {})
    usage = AnswersPart.model_construct(
        usage={"cost_per_1k": answers}, faithfulness=Figure.model_construct(value=0.5)
    )
    report = Report.model_construct(
        answers=usage if answers else Absent(reason="no answers"),
        trust=TrustPart.model_construct(
            retrieved={"hybrid": RetrievedTrust.model_construct(avg_trust=figure)}
        ),
        previous=before if previous else None,
        cacheHitRate=rate,
        embeddings=Embeddings.model_construct(needed=10),
    )
    latency = Latency.model_construct(p95=5.0, n=4)
    part = StrategyPart.model_construct(name="hybrid", cost_per_1k=cost, latency_ms=latency)
    return {one.criterion: one.verdict for one in success._judge_figures(report, part)}


@pytest.mark.parametrize(
    ("criterion", "figures", "verdict"),
    [
        ("average trust", {"trust": (0.7, 0.6, 0.8)}, "met"),
        ("average trust", {"trust": (0.7, 0.59, 0.8)}, "not met"),
        ("average trust", {"trust": (0.7, None, None)}, "met"),
        ("cost", {}, "not applicable"),
        ("cost", {"cost": 0.1}, "met"),
        ("cost", {"cost": 0.1, "answers": 5.0}, "not met"),
        ("cache hit rate", {}, "not applicable"),
        ("cache hit rate", {"previous": False}, "not applicable"),
        ("cache hit rate", {"changes": {"corpus": "2 documents changed"}}, "met"),
        ("cache hit rate", {"changes": {"corpus": "2 documents changed"}, "rate": 0.1}, "not met"),
    ],
)
def test_a_figure_is_judged_by_its_bound_and_only_where_it_applies(
    success, criterion, figures, verdict
):
    assert judge_figures(success, **figures)[criterion] == verdict
