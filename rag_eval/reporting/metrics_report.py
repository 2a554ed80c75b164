"""`retrieval-metrics.json`: its shape, its content_hash, and how it is written."""

import datetime as dt
import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from rag_eval.corpus.outgoing import masked_tree, shown
from rag_eval.records.snippets import SNIPPET_CHARS
from rag_eval.reporting.null_reasons import with_reasons
from rag_eval.storage.atomic import write_text
from rag_eval.storage.hashing import digest

_UNPRINTABLE = re.compile(
    r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ud800-\udfff\ufeff]"
)

SCHEMA_VERSION = 1
FILE_NAME = "retrieval-metrics.json"

VOLATILE = frozenset(
    {
        *(
            "cacheHitRate",
            "cacheHitRate_reason",
            "calibration",
            "code",
            "content_hash",
            "drift",
            "embeddings",
            "history",
            "previous",
            "previous_reason",
        ),
        *("reused", "run_id", "timestamp", "uncertainty", "vector_store"),
    }
)
"""Top-level keys that say when, after which runs, against which accepted baseline, with which calibrators, where, by which code and how fast, not what was found."""

IDS = frozenset({"query_id", "hash", "index_hash", "chunks_hash", "version", "file"})
"""Keys whose values name something and are left as they are."""
MAX_PROBLEM_CHARS = {
    "found": SNIPPET_CHARS,
    "message": 2 * SNIPPET_CHARS,
    "accepted": 2 * SNIPPET_CHARS,
}

VOLATILE_OF_ANSWERS = frozenset({"usage"})
VOLATILE_OF_STRATEGY = frozenset({"cost_per_1k", "latency_ms"})
VOLATILE_MEASURES = ("latency", "cache_hit_rate", "cost")


def stable_part(report: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out everything that may differ between two runs on equal inputs; of a gate on such a figure only what was asked stays."""
    part = {key: value for key, value in report.items() if key not in VOLATILE}
    part["strategies"] = [
        {key: value for key, value in entry.items() if key not in VOLATILE_OF_STRATEGY}
        for entry in report.get("strategies", [])
    ]
    part["answers"] = {
        key: value
        for key, value in report.get("answers", {}).items()
        if key not in VOLATILE_OF_ANSWERS
    }
    part["trust"] = {key: value for key, value in report.get("trust", {}).items() if key != "as_of"}
    part["gates"] = [_stable_gate(gate) for gate in report.get("gates", [])]
    return part


def _stable_gate(gate: Mapping[str, Any]) -> dict[str, Any]:
    evidence = gate.get("evidence", {})
    if gate.get("gate") != "regression" and not str(evidence.get("measure", "")).startswith(
        VOLATILE_MEASURES
    ):
        return dict(gate)
    return {
        "id": gate.get("id"),
        "required": gate.get("required"),
        "accepted": evidence.get("accepted"),
    }


def content_hash(report: Mapping[str, Any]) -> str:
    """Hash of what was found; equal for equal inputs, whatever the time, the machine's speed and the state of the caches."""
    return digest(stable_part(report), 64)


def outgoing_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Mask every text of a report, and cut what a warning about the gold set quotes: it may be a source's."""
    masked: dict[str, Any] = masked_tree(dict(body), IDS)
    gold = masked.get("gold")
    if isinstance(gold, dict) and gold.get("warnings"):
        gold["warnings"] = [
            {
                name: shown(value, MAX_PROBLEM_CHARS[name])
                if name in MAX_PROBLEM_CHARS and isinstance(value, str)
                else value
                for name, value in warning.items()
            }
            for warning in gold["warnings"]
        ]
    return masked


def finish(body: dict[str, Any], now: dt.datetime) -> dict[str, Any]:
    """Add content_hash, run_id and timestamp to a report's body.

    Parameters
    ----------
    body
        Everything that was found.
    now
        Time of the run, with a time zone.
    """
    report: dict[str, Any] = with_reasons({**outgoing_body(body), "schema_version": SCHEMA_VERSION})
    report["content_hash"] = content_hash(report)
    moment = now.astimezone(dt.UTC)
    report["timestamp"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    report["run_id"] = f"{moment.strftime('%Y%m%dT%H%M%S%f')[:-3]}Z-{report['content_hash'][:8]}"
    return report


def dumps(report: Mapping[str, Any]) -> str:
    """JSON as files hold it: sorted keys, two spaces, UTF-8, LF, no NaN. What a terminal would act on is escaped: the file may be printed as it is."""
    text = json.dumps(report, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match.group()):04x}", text) + "\n"


def write_report(report: Mapping[str, Any], *paths: Path) -> None:
    """Write the same report to every path, each atomically, in the order given."""
    text = dumps(report)
    for path in paths:
        write_text(path, text)


def schema() -> dict[str, Any]:
    """Return the published JSON Schema of the report."""
    text = (
        resources.files("rag_eval.reporting")
        .joinpath("retrieval-metrics.schema.json")
        .read_text(encoding="utf-8")
    )
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def first_fault(report: Mapping[str, Any]) -> tuple[str, str] | None:
    """Check a report against its schema: None, or where the first fault is and what it is."""
    import jsonschema

    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(schema()).iter_errors(report)
    )
    return None if error is None else (error.json_path, error.message)
