"""A calibration on a terminal and as JSON: figures of every strategy with their intervals, and what keeps a status from being higher."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rag_eval.records.problems import quoted
from rag_eval.reporting.miss_rate_lines import LEVEL, feedback_lines, figure, k_for, unmet_of
from rag_eval.reporting.terminal import cell, new_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MAX_UNMET = 6
LABELS = {
    "fixed": "one K",
    "recall": "one K for expected recall",
    "adaptive": "K by predicted risk, mean",
    "mondrian": "K by third of predicted risk",
}


def calibration_json(found: Any) -> dict[str, Any]:
    """Write everything of a calibration (`Calibrated`) as JSON values."""
    return dataclasses.asdict(found)


def _error(part: Mapping[str, Any]) -> str:
    """A calibration error beside what calibrated predictions may have."""
    return f"{part['value']:.3f} ({part['null_limit']:.3f})"


def _figures(found: Any) -> "Table":
    target = f"{found.target}@{found.k}"
    columns = [
        ("strategy", "left"),
        ("status", "left"),
        ("outcomes/groups/misses", "right"),
        *((name, "right") for name in (target, "Brier", "skill")),
    ]
    table = new_table(
        f"Calibration of {target} on {quoted(found.gold_set)} (out of fold, 95 % intervals over groups)",
        columns,
    )
    for name, entry in found.strategies.items():
        counts, validation = entry["counts"], entry["validation"]
        shown = (
            ["-"] * 3
            if validation is None
            else [figure(validation[key]) for key in ("miss_rate", "brier", "skill")]
        )
        table.add_row(
            cell(name),
            cell(entry["status"]),
            f"{counts['outcomes']}/{counts['groups']}/{'-' if validation is None else validation['misses']}",
            *shown,
        )
    return table


def _errors(found: Any) -> "Table":
    columns = [
        ("strategy", "left"),
        *(
            (name, "right")
            for name in ("AUROC", "slope", "ECE (at most)", "smECE (at most)", "K for 90%")
        ),
    ]
    table = new_table(
        "How well predictions fit (at most: the limit of what calibrated predictions show by chance)",
        columns,
    )
    for name, entry in found.strategies.items():
        validation = entry["validation"]
        shown = (
            ["-"] * 4
            if validation is None
            else [
                *(figure(validation[key]) for key in ("auroc", "slope")),
                *(_error(validation[key]) for key in ("ece", "smece")),
            ]
        )
        table.add_row(cell(name), *shown, k_for(entry))
    return table


def show_calibration(console: "Console", found: Any) -> None:
    """Print a calibration (`Calibrated`)."""
    console.print(_figures(found))
    console.print(_errors(found))
    for name, entry in found.strategies.items():
        for line in _lines(name, entry, found.traffic[name]):
            console.print(line, markup=False, soft_wrap=True)


def _lines(name: str, entry: Mapping[str, Any], claims: Mapping[str, Any]) -> list[str]:
    lines = []
    unmet = unmet_of(entry)
    if unmet:
        shown = "; ".join(
            f"{condition['status']} needs {condition['name']} {quoted(condition['needed'], 80)}, found {quoted(condition['found'], 80)}"
            for condition in unmet[:MAX_UNMET]
        )
        lines.append(f"{quoted(name)}: {shown}")
    if entry["validation"] is not None:
        baseline, gap = entry["heuristic_v0"], entry["leakage_gap"]
        uncalibrated = (
            ""
            if baseline is None
            else f"heuristic_v0 has skill {baseline['skill']['value']:.2f}, AUROC {baseline['auroc']['value']:.2f}; "
        )
        lines.append(
            f"{quoted(name)}: {uncalibrated}folds that split groups would have feigned {gap['gap']:+.3f} of skill"
        )
    if found := conformal_text(entry):
        lines.append(f"{quoted(name)}: {found}")
    if entry["refused"]:
        lines.append(f"{quoted(name)} is not calibrated: {quoted(entry['refused'], 600)}")
    if entry["drift"]["alarm"]:
        lines.append(
            f"{quoted(name)}: DRIFT, {entry['drift']['direction']} after {entry['drift']['first_alarm_at']} groups"
        )
    if entry["promotion"] is not None:
        lines.append(
            f"{quoted(name)}: {entry['promotion']['old_status']} -> {entry['promotion']['new_status']}"
        )
    if entry["n_without_signals"]:
        lines.append(
            f"{quoted(name)}: {entry['n_without_signals']} outcomes left out, no signal of what was retrieved is known"
        )
    lines += feedback_lines(name, entry["feedback"])
    lines += _claim_lines(name, claims)
    if entry["calibrator"]:
        lines.append(
            f"{quoted(name)}: calibrator {entry['calibrator'][:16]}, fingerprint {entry['fingerprint']}"
        )
    return lines


def _claim_lines(name: str, claims: Mapping[str, Any]) -> list[str]:
    """Say how many claims of production traffic were counted in, and how many were left out and why."""
    lines = []
    if claims["counted"]:
        lines.append(f"{quoted(name)}: {claims['counted']} claims of production traffic counted in")
    if claims["n_unknown"]:
        lines.append(
            f"{quoted(name)}: {claims['n_unknown']} claims of production traffic left out, they say nothing here: {quoted(claims['reason'], 300)}"
        )
    if claims["n_differing"]:
        lines.append(
            f"{quoted(name)}: {claims['n_differing']} claims of production traffic left out, nothing of their first K is what this strategy retrieves now"
        )
    return lines


def conformal_text(entry: Mapping[str, Any]) -> str:
    """Say which K covers LEVEL of the questions, by method, what each covers of the riskiest third, and why there is none."""
    parts, about, n = (
        [],
        entry["conformal_methods"],
        {part["method"]: part["n"] for part in entry["conformal"]},
    )
    for method, label in LABELS.items():
        found = next(
            (
                part
                for part in entry["conformal"]
                if part["method"] == method and part["level"] == LEVEL
            ),
            None,
        )
        if found is None:
            if method in about and about[method] is None:
                parts.append(f"{label.removesuffix(', mean')}, none: {about[f'{method}_reason']}")
            continue
        ks = (
            [part["k"] for part in found["bins"]]
            if method == "mondrian"
            else [found["mean_k"] if method == "adaptive" else found["k"]]
        )
        shown = ", ".join(
            f"> {found['depth']:,}"
            if k is None
            else f"{k:,.1f}"
            if isinstance(k, float)
            else f"{k:,}"
            for k in ks
        )
        riskiest = found["riskiest"]
        absent = f"not attainable within {found['depth']:,}"
        said = "recall" if method == "recall" else "covered"
        covered = (
            ""
            if riskiest is None or riskiest["value"] is None
            else f" (riskiest third {said} {riskiest['value']:.2f} of {riskiest['n']})"
        )
        parts.append(
            f"{label} {shown if found['attainable'] or method == 'mondrian' else absent}{covered}"
        )
    if not parts:
        return ""
    left_out = (
        f"; by risk {about['without_risk']} of {n['fixed']} questions without an outcome, so without a risk, left out"
        if "adaptive" in n and about["without_risk"]
        else ""
    )
    return f"to find gold for {LEVEL:.0%} of new questions: " + "; ".join(parts) + left_out
