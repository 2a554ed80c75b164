"""The trust and poisoning part of the report, and `evidence-trust.jsonl`: one line a chunk."""

import datetime as dt
import json
from collections import Counter
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.corpus.outgoing import shown_address
from rag_eval.evaluation.guard_steps import restated
from rag_eval.evaluation.measure_steps import Runs, number
from rag_eval.evaluation.trust_measure_steps import NOT_CONFIGURED, trust_measures
from rag_eval.evaluation.trust_steps import evidence_trust
from rag_eval.gates.trust import poisoning_gate, trust_gate
from rag_eval.gates.verdicts import GateResult
from rag_eval.records.problems import quoted
from rag_eval.storage.artifacts import Artifact
from rag_eval.trust.scores import explain_factors

FILE_NAME = "evidence-trust.jsonl"
SCHEMA_VERSION = 1
BINS = 10
MAX_QUARANTINED = 50
MAX_ID = 200
STATES = ("domain_state", "signature_state", "author_state", "freshness_state")


def records_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a frame as plain mappings."""
    return [
        dict(zip(frame.columns.tolist(), row, strict=True))
        for row in frame.itertuples(index=False, name=None)
    ]


def evidence_line_schema() -> dict[str, Any]:
    """Return the published JSON Schema of a line of evidence-trust.jsonl."""
    loaded: dict[str, Any] = json.loads(
        resources.files("rag_eval.evaluation")
        .joinpath("evidence-trust-line.schema.json")
        .read_text(encoding="utf-8")
    )
    return loaded


def evidence_lines(trust: Artifact, as_of: str) -> bytes:
    """One JSON line a chunk, in the order of chunks: the eight keys of the contract and schema_version."""
    frame = trust.frame("trust")
    lines, day = [], dt.date.fromisoformat(as_of)
    for row in records_of(frame):
        line = {
            "schema_version": SCHEMA_VERSION,
            "chunkId": row["chunk_id"],
            "trustScore": number(row["trust"]),
            "domain": row["domain"] or None,
            "signature": row["signature_state"],
            "timestamp": row["date"] or None,
            "factors": explain_factors(row, day),
            "blocked": row["verdict"] == "blocked",
            "reasons": list(row["reasons"]),
        }
        lines.append(json.dumps(line, sort_keys=True, ensure_ascii=True, allow_nan=False))
    return "".join(f"{line}\n" for line in lines).encode()


def _scores(frame: pd.DataFrame) -> dict[str, Any]:
    """Distribution of trust over all chunks, quarantined ones included."""
    values = frame["trust"].dropna().to_numpy()
    if not len(values):
        return {"value": None, "reason": NOT_CONFIGURED}
    counts = np.histogram(values, bins=BINS, range=(0.0, 1.0))[0]
    return {
        "n_chunks": len(values),
        "mean": number(float(values.mean())),
        "min": number(float(values.min())),
        "max": number(float(values.max())),
        "histogram": [
            {"from": at / BINS, "to": (at + 1) / BINS, "n": int(count)}
            for at, count in enumerate(counts)
        ],
    }


def _quarantined(frame: pd.DataFrame, documents: pd.DataFrame) -> list[dict[str, Any]]:
    urls = dict(zip(documents["doc_id"].tolist(), documents["source_url"].tolist(), strict=True))
    poor = frame[frame["verdict"] == "blocked"].head(MAX_QUARANTINED)
    return [
        {
            "chunk_id": row["chunk_id"],
            "doc_id": quoted(row["doc_id"], MAX_ID),
            "source_url": quoted(shown_address(urls[row["doc_id"]]), MAX_ID),
            "reasons": list(row["reasons"]),
        }
        for row in records_of(poor)
    ]


def _guard(
    runs: Runs, about: dict[str, Any], frame: pd.DataFrame, documents: pd.DataFrame
) -> dict[str, Any]:
    reasons: Counter[str] = Counter(code for codes in frame["reasons"].tolist() for code in codes)
    dropped = {name: runs.artifact(name).json("about").get("n_dropped", 0) for name in runs.names}
    verdicts = frame["verdict"]
    return {
        "rules_version": about["rules_version"],
        "quarantine": runs.evaluation.config.trust.quarantine,
        "n_chunks": len(frame),
        "n_documents": int(frame["doc_id"].nunique()),
        "n_blocked": int((verdicts == "blocked").sum()),
        "n_blocked_documents": int(frame.loc[verdicts == "blocked", "doc_id"].nunique()),
        "n_warned": int((verdicts == "warning").sum()),
        "n_allowed": int((frame["allowed_by"] != "").sum()),
        "reasons": {code: int(count) for code, count in sorted(reasons.items())},
        "manifest": about["manifest"],
        "quarantined": _quarantined(frame, documents),
        "at_retrieval": {**restated(runs.evaluation).json("about"), "dropped": dropped},
    }


def trust_body(runs: Runs, documents: pd.DataFrame) -> dict[str, Any]:
    """avgTrustScore, poisonedBlocked and the part `trust`; every null with its reason."""
    evaluation = runs.evaluation
    stored, measured = evidence_trust(evaluation), trust_measures(runs).json("about")
    about, frame = stored.json("about"), stored.frame("trust")
    primary = measured["strategies"][evaluation.config.primary_strategy]["avg_trust"]
    guard = _guard(runs, about, frame, documents)
    states = {name: dict(sorted(Counter(frame[name].tolist()).items())) for name in STATES}
    configured = evaluation.config.trust
    return {
        "avgTrustScore": primary["value"],
        **(
            {}
            if primary["value"] is not None
            else {"avgTrustScore_reason": primary.get("value_reason", NOT_CONFIGURED)}
        ),
        "poisonedBlocked": guard["n_blocked"] + guard["at_retrieval"]["n_blocked_chunks"]
        if configured.quarantine
        else 0,
        "trust": {
            "as_of": about["as_of"],
            "notes": about["notes"],
            "configured": {
                "domains": len(configured.domains),
                "authors": len(configured.authors),
                "keys": len(configured.keys),
                "manifest": configured.manifest is not None,
                "unlisted": configured.unlisted,
            },
            "scores": _scores(frame),
            "states": states,
            "retrieved": measured["strategies"],
            "filter": measured["filter"],
            "poisoning": guard,
        },
    }


def trust_gates(runs: Runs, part: dict[str, Any]) -> list[GateResult]:
    """Judge gate I (source trust) and gate P (poisoning) where the gold set asks for them."""
    config = runs.evaluation.config
    retrieved = part["retrieved"]
    figure = retrieved[config.primary_strategy]["avg_trust"]
    return [
        *trust_gate(config, {**figure, "reason": figure.get("value_reason", "")}),
        *poisoning_gate(
            config,
            {name: {**entry, "examples": entry["blocked"]} for name, entry in retrieved.items()},
        ),
    ]
