"""A small report, written by hand.

It holds all that the panels of answers, trust, slices, history, cost and methods show.
"""

import copy
from pathlib import Path
from typing import Any

import yaml

HOSTILE = (
    "<script>alert(1)</script>",
    "$x_1$ \\input{a}",
    "</svg></section>",
    "=HYPERLINK(1)",
    "a\u202eb\u200bc",
    "日本語の名前",
    "n" * 1000,
    '" onload="x',
)
HASH = "0123456789abcdef" * 2


def estimate(
    value: float | None = 0.5,
    low: float | None = 0.4,
    high: float | None = 0.6,
    n: int = 20,
    **more: Any,
) -> dict[str, Any]:
    ends = (
        {"ci_low": low, "ci_high": high}
        if value is not None
        else {
            "ci_low": None,
            "ci_low_reason": "nothing was scored",
            "ci_high": None,
            "ci_high_reason": "nothing was scored",
            "value_reason": "nothing was scored",
        }
    )
    return {
        "value": value,
        **ends,
        "n_attempted": n + 2,
        "n_scored": n if value is not None else 0,
        "n_ineligible": 2,
        "n_effective": n - 3 if value is not None else 0,
        **more,
    }


def _measure(label: str, value: float | None) -> dict[str, Any]:
    name = {"RR": "mrr"}.get(label, label.lower().replace("@", "_at_"))
    return {
        **estimate(value),
        "label": label,
        "name": name,
        "level": "document",
        "n_failed": 0,
        "judged_at_k": 0.4,
    }


def _strategy(name: str, at: int) -> dict[str, Any]:
    p50 = 1.25 + at
    return {
        "name": name,
        "kind": "bm25",
        "index_hash": f"bm25s:{HASH}",
        "embed_model": "",
        "configuration": {"name": name, "kind": "bm25", "k1": 0.9, "nested": {"deep": [1, "two"]}},
        "rerank": None,
        "seeds": {"configured": [13], "matter": False},
        "n_runs": 22,
        "n_empty": 0,
        "n_failed": 0,
        "first_failure": None,
        "first_failure_reason": "no retrieval failed",
        "measures": [_measure("R@10", 0.61 - 0.1 * at), _measure("RR", 0.5)],
        "ann_recall": {"by_seed": {"13": {"ann_recall_at_10": estimate(0.97, 0.95, 0.99)}}}
        if at
        else None,
        **({} if at else {"ann_recall_reason": "this strategy searches exactly"}),
        "latency_ms": {
            "n": 60,
            "p50": p50,
            "p95": 3 * p50,
            "p99": 5 * p50,
            "measured_at": "2026-01-02T03:04:05Z",
        },
        "cost_per_1k": 0.0125 * at,
    }


def _fill_trust(trust: dict[str, Any], names: tuple[str, ...]) -> None:
    """Add the parts of strategies; only the first strategy retrieved a blocked chunk."""
    figure = estimate(0.62)
    compared = {"measure": "R@10", "level": "document", "delta": -0.02, "ci_low": -0.05}
    compared |= {"ci_high": 0.01, "p_adjusted": 0.3, "n_better": 1, "n_worse": 3, "n_tied": 16}
    compared |= {"n_effective": 17, "minimum_detectable": 0.07}
    compared |= {"with_filter": figure, "without_filter": figure}
    blocked = {"chunk_id": HASH, "doc_id": "evil.md", "query_id": "q1", "rank": 3, "n": 4}
    blocked["reasons"] = ["pattern.reply.your_reply"]
    nothing = {"avg_trust": figure, "n_retrieved": 440, "n_blocked": 0, "n_warned": 7}
    trust["retrieved"] = {name: {**nothing, "blocked": []} for name in names}
    trust["retrieved"][names[0]] |= {"n_blocked": 4, "blocked": [blocked]}
    trust["filter"]["rows"] = [{"strategy": name, **compared} for name in names]
    counts = {"n_retrieved": 440 * len(names), "n_blocked": 4, "n_warned": 7 * len(names)}
    trust["poisoning"]["retrieved"] = counts


def full(names: tuple[str, ...] = ("bm25", "vector", "rrf")) -> dict[str, Any]:
    """Return a report with all parts; the first name belongs to the primary strategy."""
    delta = {"measure": "R@10", "before": 0.5, "after": 0.52, "delta": 0.02, "ci_low": -0.01}
    delta |= {"ci_high": 0.05, "n_better": 3, "n_worse": 1, "n_tied": 16, "n_effective": 17}
    report = yaml.safe_load(Path(__file__).with_name("panel_report.yaml").read_text("utf-8"))
    report["strategy"] = report["evaluation"]["primary"] = report["answers"]["strategy"] = names[0]
    report["run_id"] = "20260104T020000000Z-00000003"
    report["strategies"] = [_strategy(name, at) for at, name in enumerate(names)]
    hashes = {"index_hash": f"bm25s:{HASH}", "embed_model": ""}
    report["index"]["strategies"] = {name: dict(hashes) for name in names}
    report["reused"]["runs"] = {name: at == 0 for at, name in enumerate(names)}
    _fill_trust(report["trust"], names)
    observed = {"observed": {"miss_any": estimate(0.31)}}
    report["uncertainty"]["strategies"] = {name: copy.deepcopy(observed) for name in names}
    report["previous"]["run_id"] = "20260103T020000000Z-00000002"
    report["previous"]["deltas"] = [{"strategy": name, **delta} for name in names]
    figure = {**estimate(0.4, 0.2, 0.65, 8), "miss": estimate(None)}
    report["slices"]["by"] = [
        {"tag": tag, "n_queries": 10, "strategies": dict.fromkeys(names, figure)}
        for tag in ("io", "dates")
    ]
    return report
