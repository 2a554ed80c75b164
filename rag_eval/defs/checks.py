"""Checks: three that block, yielded by the assets they guard, and one for each gate of the report, which never block.

Belongs here: descriptions and results. Gates are judged by `rag_eval.gates` when the report is made; here they are shown.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from rag_eval.defs import names
from rag_eval.defs.metadata import MAX_ROWS, Metadata, clear_failures, native, table
from rag_eval.defs.resources import Evaluations, Session

DESCRIPTIONS = {
    names.INDEX_NOT_EMPTY: "There is something to retrieve.",
    names.INDEX_IDENTITY: "The index that was opened is the one that follows from corpus, chunker and strategies.",
    names.RETRIEVAL_GAP: "Every answer cites or uses what was retrieved for it, refers to it, or says that nothing relevant was found (FK019). A warning: never repaired automatically.",
    names.GOLD_LINT: "The gold set has no error, and every target resolves in this corpus revision.",
}


def spec(key: dg.AssetCheckKey) -> dg.AssetCheckSpec:
    """Describe a blocking check."""
    return dg.AssetCheckSpec(
        key.name, asset=key.asset_key, blocking=True, description=DESCRIPTIONS[key]
    )


def warning_spec(key: dg.AssetCheckKey) -> dg.AssetCheckSpec:
    """Describe a check that stops nothing."""
    return dg.AssetCheckSpec(
        key.name, asset=key.asset_key, blocking=False, description=DESCRIPTIONS[key]
    )


def retrieval_gap(session: Session) -> dg.AssetCheckResult:
    """Show the answers that leave what was retrieved unused."""
    from rag_eval.evaluation.answer_measure_steps import answer_measures

    made = answer_measures(session.runs)
    if made is None:
        raise RuntimeError("this gold set has no answers")
    gap = made.json("about")["gap"]
    flagged = gap["flagged"]
    metadata = {
        "n_checked": gap["n_checked"],
        "n_flagged": gap["n_flagged"],
        "flagged": table(("query_id", "reason", "answer"), flagged),
    }
    description = (
        f"{gap['n_flagged']} of {gap['n_checked']} answers leave what was retrieved unused"
    )
    return result(
        names.RETRIEVAL_GAP,
        passed=not gap["n_flagged"],
        metadata=metadata,
        warning=True,
        description=description,
    )


def result(
    key: dg.AssetCheckKey,
    *,
    passed: bool,
    metadata: Metadata,
    warning: bool = False,
    description: str | None = None,
) -> dg.AssetCheckResult:
    """Return the result of a check."""
    severity = dg.AssetCheckSeverity.WARN if warning else dg.AssetCheckSeverity.ERROR
    return dg.AssetCheckResult(
        passed=passed,
        asset_key=key.asset_key,
        check_name=key.name,
        metadata=metadata,
        severity=severity,
        description=description,
    )


def index_identity(session: Session) -> dg.AssetCheckResult:
    """Compare every strategy's stored index_hash with the planned one."""
    from rag_eval.evaluation.index_steps import corpus_index, planned_identity

    planned = planned_identity(session.evaluation)
    there: Mapping[str, Mapping[str, str]] = corpus_index(session.evaluation, session.opened).json(
        "about"
    )["strategies"]
    rows = [
        {
            "strategy": name,
            "planned": plan["index_hash"],
            "found": there.get(name, {}).get("index_hash"),
        }
        for name, plan in planned.items()
    ]
    different = [row for row in rows if row["planned"] != row["found"]]
    metadata = {
        "n_strategies": len(rows),
        "n_different": len(different),
        "index_hashes": table(("strategy", "planned", "found"), [*different, *rows][:MAX_ROWS]),
    }
    return result(names.INDEX_IDENTITY, passed=not different, metadata=metadata)


def _gate_result(gate: str, entries: list[dict[str, Any]]) -> dg.AssetCheckResult:
    """Show one gate; whether a required one ends the run is said by gate_verdict."""
    poor = [entry for entry in entries if entry["status"] != "pass"]
    evidence = entries[0]["evidence"] if len(entries) == 1 else {}
    shown: Metadata = {
        name: native(value)
        for name, value in evidence.items()
        if isinstance(value, (str, int, float, bool))
    }
    if len(entries) > 1:
        shown["gates"] = table(("id", "status", "reason_code"), entries)
    status = poor[0]["status"] if poor else "pass"
    reasons = "; ".join(
        dict.fromkeys(
            str(entry["evidence"].get("reason") or entry["reason_code"]) for entry in poor
        )
    )
    shown |= {
        "status": status,
        "required": any(entry["required"] for entry in entries),
        "reason_codes": ", ".join(dict.fromkeys(entry["reason_code"] for entry in entries)),
    }
    description = f"{status}: {reasons}" if poor else "pass"
    return result(
        names.gate_check(gate),
        passed=not poor,
        metadata=shown,
        warning=True,
        description=description,
    )


def gate_results(
    report: Mapping[str, Any], gates: Mapping[dg.AssetCheckKey, str]
) -> Iterator[dg.AssetCheckResult]:
    """Give a result for each of these gates that the report has."""
    for gate in gates.values():
        entries = [entry for entry in report["gates"] if gate in (entry["id"], entry["gate"])]
        if entries:
            yield _gate_result(gate, entries)


def gate_checks(gates: list[str]) -> list[dg.AssetChecksDefinition]:
    """Make the checks of the report: the union over all gold sets, of which a run takes those of its configuration."""
    if not gates:
        return []
    known = {names.gate_check(gate): gate for gate in gates}
    specs = [
        dg.AssetCheckSpec(
            key.name,
            asset=key.asset_key,
            description=f"Gate {gate} of the report, where the gold set asks for it.",
        )
        for key, gate in known.items()
    ]

    @dg.multi_asset_check(name="report_gates", specs=specs, can_subset=True)
    def report_gates(
        context: dg.AssetCheckExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> Iterator[dg.AssetCheckResult]:
        with clear_failures():
            report = evaluations.open(context.partition_key).report
        yield from gate_results(
            report,
            {key: gate for key, gate in known.items() if key in context.selected_asset_check_keys},
        )

    return [report_gates]
