"""The tables of draws, the lines that an auditor fills in, and what can be counted of both.

Belongs here: forms. How claims are drawn is `audits`.
"""

from typing import Any, Final

import numpy as np
import pandas as pd

from rag_eval.records.outcomes import AUDITS
from rag_eval.storage.sql_tables import ColumnSpec, TableSpec
from rag_eval.uncertainty.sampling import FloatArray, from_json

DRAWS: Final = TableSpec(
    "audit_draws",
    (
        ColumnSpec("draw_id", "text", required=True),
        ColumnSpec("claim_id", "text", required=True),
        ColumnSpec("target", "text", required=True),
        ColumnSpec("k", "integer", required=True),
        ColumnSpec("stratum", "integer", required=True),
        ColumnSpec("inclusion_probability", "float", required=True),
        ColumnSpec("at", "text", required=True),
    ),
    indexes=(("draw_id",),),
    unique=(("claim_id", "target"),),
)
FRAMES: Final = TableSpec(
    "audit_frames",
    (
        ColumnSpec("draw_id", "text", required=True),
        ColumnSpec("strategy", "text", required=True),
        ColumnSpec("strategy_fingerprint", "text", required=True),
        ColumnSpec("target", "text", required=True),
        ColumnSpec("depth", "integer", required=True),
        ColumnSpec("n", "integer", required=True),
        ColumnSpec("population", "integer", required=True),
        ColumnSpec("seed", "integer", required=True),
        ColumnSpec("strata", "json", required=True),
        ColumnSpec("batch", "integer", required=True),
        ColumnSpec("number", "integer", required=True),
        ColumnSpec("at", "text", required=True),
    ),
    unique=(("draw_id",), ("strategy_fingerprint", "target", "number")),
)
"""What each draw was made from: all claims of a fingerprint up to import `batch` that no earlier draw had taken."""


def judged_of(drawn: list[dict[str, Any]], outcomes: pd.DataFrame) -> dict[str, int]:
    """Count the claims of each draw that an auditor has judged; outcomes as `OutcomeStore.current` gives them."""
    audited = outcomes[outcomes["gold_source"].isin(AUDITS) & outcomes["missed"].notna()]
    done = set(zip(audited["claim_id"], audited["target"], strict=True))
    counts: dict[str, int] = {}
    for row in drawn:
        counts[row["draw_id"]] = counts.get(row["draw_id"], 0) + (
            (row["claim_id"], row["target"]) in done
        )
    return counts


def left_by(
    frames: list[dict[str, Any]], rows: list[dict[str, Any]], risk: FloatArray
) -> FloatArray:
    """Probability that the earlier draws took none of some claims, float64 [n]."""
    left = np.ones(len(rows), dtype=np.float64)
    batch = np.array([row["batch"] for row in rows], dtype=np.int64)
    for frame in frames:
        strata = from_json(frame["strata"])
        left *= np.where(batch <= frame["batch"], 1 - strata.probability[strata.of(risk)], 1.0)
    return left


def line(row: dict[str, Any], draw_id: str, target: str, depth: int) -> dict[str, Any]:
    """What the auditor reads, then what the auditor fills in."""
    read = {
        "draw_id": draw_id,
        "claim_id": row["claim_id"],
        "query": row["query"],
        "target": target,
        "k": row["k"],
        "depth": depth,
        "retrieved": [name for name, _ in row["retrieved"][:depth]],
    }
    return {
        **read,
        "missed": None,
        "missed_content": None,
        "gold_source": None,
        "audit_depth": None,
        "gold_strategies": [row["strategy_fingerprint"]],
        "gold_documents": [],
        "note": "",
    }
