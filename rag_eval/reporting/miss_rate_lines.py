"""Miss rates on a terminal: what strategies were seen to miss, what is said of the next question, and what that has earned."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rag_eval.records.problems import quoted
from rag_eval.records.uncertainty import DISCOUNTING
from rag_eval.reporting.terminal import cell, interval, new_table

if TYPE_CHECKING:
    from rich.table import Table

LEVEL = 0.9
MAX_UNMET = 3


def figure(part: Mapping[str, Any] | None) -> str:
    """Write a figure of a validation with its interval; a dash where there is none."""
    return "-" if part is None else interval(part["value"], part["low"], part["high"])


def k_for(entry: Mapping[str, Any]) -> str:
    """Write the conformal K of a strategy at LEVEL."""
    found = next(
        (
            part
            for part in entry["conformal"]
            if part["method"] == "fixed" and part["level"] == LEVEL
        ),
        None,
    )
    if found is None:
        return "-"
    return f"{found['k']:,}" if found["k"] is not None else f"> {found['depth']:,}"


def unmet_of(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Conditions that keep a status from being higher, in the order of the ladder; of a stale one first those that made it stale."""
    unmet = [condition for condition in entry["standing"]["conditions"] if not condition["met"]]
    return (
        sorted(unmet, key=lambda condition: condition["status"] != "stale")
        if entry["status"] == "stale"
        else unmet
    )


def miss_rates_table(report: Mapping[str, Any]) -> "Table":
    """Observed miss rate, what the estimator has earned, and the K that finds gold for most questions, by strategy."""
    target, k = report["uncertainty"]["target"], report["uncertainty"]["k"]
    columns = [
        ("strategy", "left"),
        (f"{target}@{k}", "right"),
        ("judged", "right"),
        ("status", "left"),
        ("skill", "right"),
        (f"K for {LEVEL:.0%}", "right"),
    ]
    table = new_table(
        f"Miss rates, {report['uncertainty']['level']} level (95 % intervals over groups; skill: of predictions for groups that were not fitted)",
        columns,
    )
    for name, seen in report["uncertainty"]["strategies"].items():
        entry = report["calibration"]["strategies"][name]
        observed, validation = seen["observed"][target], entry["validation"]
        table.columns[0].no_wrap = table.columns[3].no_wrap = True
        table.add_row(
            cell(name + (" *" if name == report["strategy"] else "")),
            interval(observed["value"], observed["ci_low"], observed["ci_high"]),
            f"{observed['n_scored']}/{observed['n_attempted']}",
            cell(entry["status"]),
            figure(None if validation is None else validation["skill"]),
            k_for(entry),
        )
    return table


def miss_rate_lines(report: Mapping[str, Any]) -> list[str]:
    """What the table does not say: which estimator spoke in this run, what keeps a status down, promotions, drift, confidence of answers, iterative rounds."""
    part, calibration, primary = report["uncertainty"], report["calibration"], report["strategy"]
    seen, entry = part["strategies"][primary], calibration["strategies"][primary]
    lines = [
        f"this run's miss rates of {quoted(primary)} are {seen['status']}, from {quoted(seen['calibrator'][:24])}"
        + (f": {quoted(seen['reason'], 200)}" if "reason" in seen else "")
    ]
    unmet = unmet_of(entry)
    if unmet:
        shown = "; ".join(
            f"{condition['name']} {quoted(condition['found'], 80)}, needed {quoted(condition['needed'], 80)}"
            for condition in unmet[:MAX_UNMET]
        )
        since = (
            "from the next run on"
            if entry["calibrator"] or entry["status"] not in DISCOUNTING
            else f"by these outcomes ({entry['calibrator_reason']})"
        )
        lines.append(f"{quoted(primary)} is {entry['status']} {since}; not more, because: {shown}")
    changes: dict[str, list[str]] = {}
    for name, other in calibration["strategies"].items():
        if other["promotion"] is not None:
            changes.setdefault(
                f"{other['promotion']['old_status']} -> {other['promotion']['new_status']}", []
            ).append(quoted(name))
    lines += [f"{change}: {', '.join(names)}" for change, names in changes.items()]
    for name, other in calibration["strategies"].items():
        if other["refused"]:
            lines.append(f"{quoted(name)} is not calibrated: {quoted(other['refused'], 400)}")
        if other["drift"]["alarm"]:
            lines.append(
                f"{quoted(name)}: DRIFT, {other['drift']['direction']} after {other['drift']['first_alarm_at']} groups"
            )
        lines += feedback_lines(name, other["feedback"])
    answers = part["answers"]
    if "n" in answers:
        named = (
            ("synthesis_confidence", "grounded"),
            ("final_confidence", "discounted by miss rate"),
            ("calibrated_confidence", "calibrated, to act on"),
        )
        shown = "; ".join(
            f"{label} {interval(answers[name]['value'], answers[name]['ci_low'], answers[name]['ci_high'])}"
            for name, label in named
        )
        lines.append(
            f"confidence, mean over the {answers['synthesis_confidence']['n_scored']} of {answers['n']} answers that say something: {shown}"
        )
    for name, rounds in part["iterative"].items():
        whole = rounds["accounts"][0]
        difference = interval(whole["delta"], whole["ci_low"], whole["ci_high"])
        lines.append(
            f"{quoted(name)} over {quoted(rounds['base'])}: expanded {whole['triggered']} of {whole['questions']} wordings, recovered {whole['recovered']}, lost {whole['lost']}, "
            f"recall@{rounds['k']} {difference} over {whole['n_groups']} groups: {whole['verdict']}"
        )
    return lines


def feedback_lines(name: str, said: Mapping[str, Any]) -> list[str]:
    """What users said of a strategy's retrievals, now and on earlier indexes, and what is to be audited; nothing where nobody said anything."""
    earlier = said.get("earlier") or {"n_claims": 0}
    before = (
        [f"{quoted(name)}: on an earlier index or configuration: {_said(earlier)}"]
        if earlier["n_claims"]
        else []
    )
    if not said["n_claims"]:
        return before
    lines = [f"{quoted(name)}: {_said(said)}", *before]
    against = said["contradicts_gold"]
    if against["n_questions"]:
        shown, left = (
            ", ".join(quoted(query, 40) for query in against["query_ids"]),
            against["n_questions"] - len(against["query_ids"]),
        )
        lines.append(
            f"{quoted(name)}: users miss something where the gold says hit, questions {shown}{f' and {left} more' if left else ''}"
        )
    for part, label in (
        ("every_claim", "all claims"),
        ("least_risky_third", "the third of claims with the lowest miss rates"),
    ):
        room = None if said["watch"] is None else said["watch"][part]
        if room is not None and room["alarm"]:
            lines.append(
                f"{quoted(name)}: AUDIT NOW, users complain in {room['complaints']} of {room['n_groups']} groups of {label}, and the stated miss rates leave room for {room['upper']} "
                "(no status is changed by that): rag-eval audit list --feedback, rag-eval audit draw"
            )
    return lines


def _said(part: Mapping[str, Any]) -> str:
    """How many claims users said something of, what, and how many of these are to be audited."""
    kinds = ", ".join(
        f"{part[kind]} {kind.replace('_', ' ')}"
        for kind in ("something_missing", "evidence_not_relevant", "nothing_missing")
        if part[kind]
    )
    due = (
        f"; {part['audits_due']} to audit: rag-eval audit list --feedback"
        if part["audits_due"]
        else ""
    )
    return f"feedback on {part['n_claims']} claims ({kinds}), which fits no calibrator{due}"
