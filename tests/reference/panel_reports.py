"""A small report, written by hand.

It holds all that the panels of answers, trust, slices, history, cost and methods show.
"""

import copy
from typing import Any

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
        "n_groups": n - 3 if value is not None else 0,
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


def _answer_figure(name: str, value: float | None, **more: Any) -> dict[str, Any]:
    return {**estimate(value), "name": name, "n_failed": 1, "n_units": 31, **more}


def _answers(strategy: str) -> dict[str, Any]:
    return {
        "strategy": strategy,
        "modes": ["llm"],
        "embedding": None,
        "embedding_reason": "no question is answered in the deterministic mode",
        "model": "judge-1",
        "hash": HASH,
        "n_questions": 22,
        "attempts": {"attempts": 25, "schema_retries": 3, "adaptive_reruns": 0},
        "outcomes": {"answered": 17, "not_found": 3, "failed": 2},
        "codes": {"not_json": 2},
        "measures": [
            _answer_figure("groundedness", 0.71),
            _answer_figure("supported_share", 0.8),
            _answer_figure("failure_rate", 0.09),
            _answer_figure("failure_rate_not_json", 0.09),
        ],
        "gap": {
            "code": "FK019",
            "severity": "warning",
            "n_checked": 20,
            "n_flagged": 1,
            "flagged": [
                {"query_id": "q1", "reason": "content_unused", "answer": "Something else."}
            ],
        },
        "faithfulness": {
            **estimate(0.83, 0.7, 0.9, 9),
            "n_failed": 0,
            "sample_rate": 0.5,
            "n_sampled": 11,
            "failures": {"timeout": 2},
            "endpoint": "e",
            "model": "judge-2",
        },
        "usage": {
            "requests": 26,
            "retries": 1,
            "cached": 0,
            "tokens_in": 1200,
            "tokens_out": 300,
            "saved_tokens_in": 0,
            "saved_tokens_out": 0,
            "usage_missing": 0,
            "cost": 0.0375,
            "saved_cost": 0.0,
            "n_questions": 22,
            "cost_per_1k": 1.7045,
        },
    }


def _trust(names: tuple[str, ...]) -> dict[str, Any]:
    row = {
        "measure": "R@10",
        "level": "document",
        "delta": -0.02,
        "ci_low": -0.05,
        "ci_high": 0.01,
        "p_adjusted": 0.3,
        "n_better": 1,
        "n_worse": 3,
        "n_tied": 16,
        "n_groups": 17,
        "minimum_detectable": 0.07,
    }
    figure = {key: value for key, value in estimate(0.62).items() if key != "n_failed"}
    blocked = [
        {
            "chunk_id": HASH,
            "doc_id": "evil.md",
            "query_id": "q1",
            "rank": 3,
            "reasons": ["pattern.reply_instruction"],
            "n": 4,
        }
    ]
    return {
        "as_of": "2026-01-02",
        "notes": ["one note"],
        "configured": {"domains": 2, "authors": 1, "keys": 1, "manifest": True, "unlisted": "warn"},
        "scores": {
            "n_chunks": 90,
            "mean": 0.55,
            "min": 0.0,
            "max": 0.97,
            "histogram": [{"from": at / 10, "to": (at + 1) / 10, "n": 9} for at in range(10)],
        },
        "states": {
            "domain_state": {"allowed": 80, "lookalike": 10},
            "signature_state": {"valid": 90},
            "author_state": {"known": 40, "unknown": 50},
            "freshness_state": {"dated": 90},
        },
        "retrieved": {
            name: {
                "avg_trust": figure,
                "n_retrieved": 440,
                "n_blocked": 4 if not at else 0,
                "n_warned": 7,
                "blocked": blocked if not at else [],
            }
            for at, name in enumerate(names)
        },
        "filter": {
            "threshold": 0.4,
            "applied": False,
            "n_chunks": 90,
            "n_below": 12,
            "rows": [
                {"strategy": name, **row, "with_filter": figure, "without_filter": figure}
                for name in names
            ],
        },
        "poisoning": {
            "rules_version": "2",
            "quarantine": True,
            "n_chunks": 90,
            "n_documents": 30,
            "n_blocked": 2,
            "n_blocked_documents": 1,
            "n_warned": 5,
            "n_allowed": 0,
            "reasons": {"pattern.reply_instruction": 2, "topic_shift.inside_document": 5},
            "manifest": {
                "signature": "signed",
                "n_same": 28,
                "n_changed": 1,
                "n_not_in_manifest": 1,
                "n_gone": 1,
                "gone": ["old.md"],
            },
            "quarantined": [
                {
                    "chunk_id": HASH,
                    "doc_id": "evil.md",
                    "source_url": "https://example.org/evil",
                    "reasons": ["pattern.reply_instruction"],
                }
            ],
            "gold": {
                "n_documents": 12,
                "n_blocked": 1,
                "n_wholly_blocked": 1,
                "n_queries": 20,
                "n_queries_blocked": 2,
                "documents": [{"doc_id": "evil.md", "n_chunks": 2, "n_blocked": 2, "n_queries": 2}],
            },
            "at_retrieval": {
                "n_blocked_pairs": 3,
                "n_blocked_chunks": 2,
                "n_warned_pairs": 1,
                "dropped": dict.fromkeys(names, 1),
            },
        },
    }


def _slice(kind: str, name: str, names: tuple[str, ...], *, scored: bool = True) -> dict[str, Any]:
    figure = estimate(0.4, 0.2, 0.65, 8) if scored else estimate(None)
    entry = {
        "kind": kind,
        "name": name,
        "about": f"questions of {name}",
        "n_queries": 10,
        "n_groups": 7,
        "strategies": {each: {**figure, "miss": figure} for each in names},
    }
    return (
        entry
        | ({"abstention": estimate(0.3, 0.1, 0.5, 9)} if kind == "answerability" else {})
        | ({"words": {"low": 3, "high": 5}} if kind == "length" else {})
    )


def _night(at: int, names: tuple[str, ...], codes: tuple[str, ...] = ()) -> dict[str, Any]:
    short = {"ci_low": 0.4, "ci_high": 0.6}
    found = {
        "recall": {"value": 0.5 + at / 100, **short, "n_scored": 20},
        "mrr": {"value": 0.45, **short, "n_scored": 20},
        "miss_any": {"value": 0.3, **short, "n_scored": 20},
        "skill": {"value": 0.2, "ci_low": 0.1, "ci_high": 0.3},
        "status": "provisional",
        "latency_p95_ms": 4.5,
        "index_hash": f"bm25s:{HASH}",
    }
    first = "no run stands before it in this history"
    return {
        "run_id": f"202601{at + 1:02}T020000000Z-{at:08x}",
        "timestamp": f"2026-01-{at + 1:02}T02:00:00Z",
        "index_hash": f"bm25s:{HASH}",
        "chunks_hash": HASH,
        "rev": "r1",
        "gold_hash": HASH,
        "n_groups": 17,
        "level": "document",
        **({"comparable": not codes} if at else {"comparable": None, "comparable_reason": first}),
        **({"reason": "; ".join(codes)} if codes else {"reason": None, "reason_reason": first}),
        "reason_codes": list(codes),
        "strategies": {name: copy.deepcopy(found) for name in names},
        "gates": {"passed": 3, "failed": 1, "insufficient": 2},
        "is_this": False,
    }


def full(names: tuple[str, ...] = ("bm25", "vector", "rrf"), nights: int = 4) -> dict[str, Any]:
    """Return a report with all parts; the first name belongs to the primary strategy."""
    changes: dict[int, tuple[str, ...]] = {
        1: ("code_changed",),
        2: ("index_changed", "gold_changed"),
    }
    runs = [_night(at, names, changes.get(at, ())) for at in range(nights)]
    runs[-1]["is_this"] = True
    deltas = [
        {
            "strategy": name,
            "measure": "R@10",
            "before": 0.5,
            "after": 0.52,
            "delta": 0.02,
            "ci_low": -0.01,
            "ci_high": 0.05,
            "n_better": 3,
            "n_worse": 1,
            "n_tied": 16,
            "n_groups": 17,
        }
        for name in names
    ]
    figure = estimate(0.5)
    gate = {"gate": "acceptance", "required": False, "severity": "P2"}
    return {
        "strategy": names[0],
        "timestamp": "2026-01-04T02:00:00Z",
        "run_id": runs[-1]["run_id"],
        "content_hash": HASH * 2,
        "version": "0.1.0",
        "groundedness": 0.71,
        "faithfulness": 0.83,
        "cacheHitRate": 0.75,
        "code": {"version": HASH, "libraries": {"numpy": "2.4.6"}},
        "features": {"FEATURE_HYBRID_RETRIEVAL": False, "FEATURE_RAGAS_EVAL": True},
        "evaluation": {"k": [1, 10], "depth": 20, "level": "document", "primary": names[0]},
        "gold": {"name": "tiny", "hash": HASH, "version": "1", "seeds": [13]},
        "index": {
            "hash": f"bm25s:{HASH}",
            "rev": "r1",
            "corpus_rev": "r1",
            "chunks_hash": HASH,
            "analyzer": "a-1",
            "chunker": {"kind": "markdown", "max_tokens": 64, "overlap": 0},
            "embed_model": "",
            "n_documents": 30,
            "n_chunks": 90,
            "loader": "folder",
            "masked": {},
            "strategies": {
                name: {"index_hash": f"bm25s:{HASH}", "embed_model": ""} for name in names
            },
        },
        "strategies": [_strategy(name, at) for at, name in enumerate(names)],
        "embeddings": {"models": ["lsa-8"], "needed": 100, "embedded": 25},
        "reused": {"index": True, "runs": {name: at == 0 for at, name in enumerate(names)}},
        "answers": _answers(names[0]),
        "citations": {
            "n_citations": 31,
            "codes": {"unknown_snippet": 4, "quote_mismatch": 2, "ok": 25},
            "measures": [
                _answer_figure("coverage", 0.33, target=">= 0.70"),
                _answer_figure("citation_precision", 0.9, target=">= 0.85"),
                _answer_figure("citation_match_rate", 0.62, target=">= 0.95"),
                _answer_figure("citation_validity_rate", None),
            ],
        },
        "trust": _trust(names),
        "uncertainty": {
            "k": 10,
            "target": "miss_any",
            "level": "document",
            "strategies": {name: {"observed": {"miss_any": estimate(0.31)}} for name in names},
            "answers": {
                "n": 22,
                "synthesis_confidence": figure,
                "final_confidence": figure,
                "calibrated_confidence": estimate(None),
                "right_when_missed": {
                    "kind": "measured",
                    "value": 0.2,
                    "dataset": "d",
                    "n": 33,
                    "ci_low": 0.1,
                    "ci_high": 0.35,
                    "measured_at": "2026-01-02T03:04:05Z",
                },
            },
        },
        "gates": [
            {
                **gate,
                "id": "acceptance.citation_precision",
                "status": "pass",
                "reason_code": "met",
                "evidence": {
                    "accepted": ">= 0.8",
                    "measure": "citation_precision",
                    **estimate(0.9),
                },
            },
            {
                **gate,
                "id": "acceptance.latency_p95_ms",
                "status": "fail",
                "reason_code": "value_not_met",
                "evidence": {"accepted": "<= 3", "measure": "latency_p95_ms", "value": 3.75},
            },
        ],
        "slices": {
            "measure": "R@10",
            "target": "miss_any",
            "k": 10,
            "level": "document",
            "n_tags": 40,
            "n_tags_left_out": 38,
            "by": [
                _slice("answerability", "answerable", names),
                _slice("answerability", "unanswerable", names, scored=False),
                _slice("length", "short", names),
                _slice("tag", "io", names),
                _slice("tag", "dates", names),
            ],
        },
        "history": {"runs": runs, "n_left_out": 0, "unreadable": [], "n_unreadable": 0},
        "previous": {
            "run_id": runs[-2]["run_id"] if nights > 1 else runs[-1]["run_id"],
            "timestamp": "2026-01-03T02:00:00Z",
            "comparable": True,
            "reason_codes": [],
            "reasons": [],
            "deltas": deltas,
        },
    }
