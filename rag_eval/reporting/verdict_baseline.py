"""An accepted baseline on a terminal: its figures with intervals and denominators, and who accepted what before."""

from collections.abc import Mapping, Sequence
from typing import Any

from rag_eval.reporting.terminal import SHOWN, interval
from rag_eval.reporting.verdict_rows import safe_text

MAX_SHOWN = 50


def baseline_lines(
    gold_set: str, report: Mapping[str, Any] | None, records: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Say what is accepted, one line each.

    Parameters
    ----------
    gold_set
        Its name.
    report
        The report of the baseline; None where there is none.
    records
        The history, oldest first; the newest is the baseline.
    """
    if report is None or not records:
        return [
            f"{safe_text(gold_set)}: no run was accepted as the baseline yet; accept one with rag-eval baseline accept"
        ]
    level, strategy = report["evaluation"]["level"], report["strategy"]
    lines = [
        f"{safe_text(gold_set)}: the baseline is run {safe_text(report['run_id'])}; strategy {safe_text(strategy)}, {safe_text(level)} level, gold {safe_text(report['gold']['hash'][:12])}"
    ]
    for entry in report["strategies"]:
        if entry["name"] == strategy:
            lines.append(f"  index {safe_text(entry['index_hash'])}")
            found = [
                record
                for record in entry["measures"]
                if record["level"] == level and record["label"] in SHOWN
            ]
            lines += [
                f"  {record['label']} {interval(record['value'], record['ci_low'], record['ci_high'])} over {record['n_scored']}/{record['n_attempted']} questions"
                for record in found
            ]
    lines.append(
        f"accepted {len(records)} time{'s' if len(records) != 1 else ''}, the newest first:"
    )
    for record in list(reversed(records))[:MAX_SHOWN]:
        forced = (
            f" FORCED past {safe_text(', '.join(map(str, record.get('failed_gates', []))))}"
            if record.get("forced")
            else ""
        )
        lines.append(
            f"  {safe_text(record['accepted_at'])} {safe_text(record['run_id'])} by {safe_text(record['who'])}: {safe_text(record['why'], 400)}{forced}"
        )
    return lines
