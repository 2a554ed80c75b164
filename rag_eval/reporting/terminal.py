"""Print reports, calibrations, comparisons, outcomes and chunks on a terminal.

Texts of strangers go through `quoted` or `mask_snippet`; rich markup in them is never read.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from rag_eval.core.config import DISCOUNTING
from rag_eval.core.errors import Problem, quoted
from rag_eval.core.report import (
    Absent,
    AnswerConfidences,
    AnswersPart,
    CitationsPart,
    ComparedPair,
    Condition,
    Estimate,
    Feedback,
    FeedbackCounts,
    GatePart,
    Interval,
    IterativeAccount,
    Open,
    Report,
    StrategyCalibration,
    TrustFilter,
)
from rag_eval.core.types import FIXES, Answer, snippet
from rag_eval.corpus.masking import mask_shown_address, mask_snippet
from rag_eval.reporting.exports import latex_table, write_csv
from rag_eval.reporting.metrics_report import Outgoing
from rag_eval.uncertainty.comparing import Comparison, Measure, PredictionPowered, powered_figure
from rag_eval.uncertainty.scores import Figure

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

# ---- Figures, cells and tables.

SHOWN: Final = ("R@10", "RR", "nDCG@10")
STATUS_STYLE: Final = {"pass": "green", "fail": "red", "insufficient_evidence": "yellow"}


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """Write a figure with its interval; a dash where nothing was scored."""
    if value is None:
        return "-"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.2f}, {high:.2f}]"


def estimate(figure: Estimate | Interval | None) -> str:
    """Write an estimate of a report with its interval; a dash for None."""
    if figure is None:
        return "-"
    if isinstance(figure, Interval):
        return interval(figure.value, figure.low, figure.high)
    return interval(figure.value, figure.ci_low, figure.ci_high)


def difference(value: Any, low: Any, high: Any) -> str:
    """Write a signed difference with its interval; a dash where there is none."""
    if value is None:
        return "-"
    bounds = "" if low is None or high is None else f" [{low:+.2f}, {high:+.2f}]"
    return f"{value:+.3f}{bounds}"


def make_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence["str | Text"] | None],
    *,
    unbroken: Sequence[int] = (),
    caption: str = "",
) -> "Table":
    """Make a table.

    A column whose name starts with > is aligned at the right. None in place of a row begins a new
    section. The columns `unbroken` are never wrapped.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=Text(caption) if caption else None,
        caption_justify="left",
    )
    for at, name in enumerate(columns):
        right = name.startswith(">")
        table.add_column(
            name.removeprefix(">"),
            justify="right" if right else "left",
            no_wrap=right or at in unbroken,
        )
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def print_lines(console: "Console", lines: Iterable[str]) -> None:
    """Print lines as they are: no markup, and no line is broken."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _list_counts(counts: Mapping[str, int]) -> str:
    """Write counts by name, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {quoted(name)}" for name, count in ordered)


# ---- The report: what was measured, measures, answers, trust, gates.


def _headline(report: Report) -> list[str]:
    """Name what was measured on what."""
    gold, index = report.gold, report.index
    masking = "" if index.masked is not None else "; masking of personal data is OFF"
    seeds = ", ".join(str(seed) for seed in gold.seeds)
    return [
        (
            f"{quoted(gold.name)} version {quoted(gold.version)}: {gold.n_queries} questions "
            f"({gold.n_queries - gold.n_answerable} unanswerable), {gold.n_paraphrases} "
            f"paraphrases, {gold.n_groups} independent groups, seeds {seeds}"
        ),
        (
            f"corpus {quoted(index.rev)}: {index.n_documents:,} documents, "
            f"{index.n_chunks:,} chunks; gold hash {quoted(gold.hash[:12])}{masking}"
        ),
    ]


def _measures_table(report: Report) -> "Table":
    """Headline measures by strategy, with 95 % intervals over groups and the scored questions."""
    level, rows = report.evaluation.level, []
    for entry in report.strategies:
        found = [entry.measure(label, level) for label in SHOWN]
        first, p95 = found[0], entry.latency_ms.p95
        failed = f" ({first.n_failed} failed)" if first.n_failed else ""
        rows.append(
            [
                quoted(entry.name + (" *" if entry.name == report.strategy else "")),
                *map(estimate, found),
                f"{first.n_scored}/{first.n_attempted}{failed}",
                "-" if p95 is None else f"{p95:.1f}",
            ]
        )
    title = f"Retrieval, {level} level (95 % intervals over groups of questions)"
    columns = ["strategy", *(f">{label}" for label in SHOWN), ">scored", ">p95 ms"]
    return make_table(title, columns, rows)


def _strategy_lines(report: Report) -> list[str]:
    """Say which retrievals failed and why, and what was not measured at this level."""
    level, lines = report.evaluation.level, []
    for entry in report.strategies:
        name = quoted(entry.name)
        if entry.n_failed:
            failures = sorted((entry.failures or {}).items())
            codes = ", ".join(f"{quoted(code)} {n}" for code, n in failures)
            lines.append(
                f"{name}: {entry.n_failed} of {entry.n_runs} retrievals FAILED and score 0"
                f"{f' ({codes})' if codes else ''}; first: {quoted(entry.first_failure or '', 300)}"
            )
        here = None if entry.levels is None else entry.levels[level]
        if here is not None and not here.measured:
            reason = quoted(here.reason or "", 300)
            lines.append(f"{name}: not measured at the {level} level: {reason}")
        lines += [f"{name}: {quoted(note, 300)}" for note in entry.notes or ()]
    return lines


def comparisons_table(rows: Iterable[ComparedPair], title: str) -> "Table":
    """Paired differences: interval, adjusted p, questions better and worse, smallest detectable."""
    return make_table(
        title,
        ["a - b", "measure", ">difference", ">p (Holm)", ">better/worse", ">detectable"],
        [
            [
                quoted(f"{row.a} - {row.b}"),
                row.measure,
                difference(row.delta, row.ci_low, row.ci_high),
                "-" if row.p_adjusted is None else f"{row.p_adjusted:.4f}",
                f"{row.n_better}/{row.n_worse}",
                "-" if row.minimum_detectable is None else f"{row.minimum_detectable:.3f}",
            ]
            for row in rows
        ],
    )


def _stability_lines(report: Report) -> list[str]:
    """Say how much the wording and the seed change for the primary strategy."""
    entry = report.stability.strategies[report.strategy]
    flips, together = entry.hit_changes_with_wording["hit_at_10"], entry.convergent_and_hit
    lines = ["no question has a second wording: its effect on the hit is not known"]
    if flips.n_scored:
        lines = [
            (
                f"hit@10 changes with the wording for a share {estimate(flips)} "
                f"of {flips.n_scored} questions"
            ),
            (
                f"found under every wording, with equal lists: a share {estimate(together)} "
                f"of {together.n_scored} questions"
            ),
        ]
    lines.append(
        f"delta_s {estimate(entry.delta_s)} (target {entry.delta_s.target}), "
        f"measured with {quoted(report.stability.embedding)}"
    )
    if entry.seeds_change_nothing:
        lines.append(f"all seeds gave identical rankings for {quoted(report.strategy)}")
    return lines


_ANSWER_ROWS: Final = {
    "citation_precision": "citations",
    "citation_recall": "gold spans",
    "citation_match_rate": "due",
    "citation_validity_rate": "citations",
    **dict.fromkeys(("coverage", "groundedness", "abstention_rate"), "questions"),
    **dict.fromkeys(("refused_answerable", "failure_rate"), "questions"),
}
"""Measures of answers that are shown, and the unit of their denominators."""


def _answers_table(answers: AnswersPart, citations: CitationsPart) -> "Table":
    """Measures of answers and citations with intervals, denominators and the field's targets."""
    records = {one.name: one for one in [*answers.measures, *citations.measures]}
    rows = []
    for name, unit in _ANSWER_ROWS.items():
        record = records.get(name)
        if record is None:
            continue
        over, questions = "", quoted(record.why.get("value", ""))
        if record.value is not None:
            over = f"{record.n_units} {unit}"
            questions = f"{record.n_scored}/{record.n_attempted}"
        rows.append([name, estimate(record), record.target or "", over, questions])
    title = f"Answers ({', '.join(answers.modes)}; evidence from {quoted(answers.strategy)})"
    return make_table(title, ["measure", ">value", "target", ">over", "questions"], rows)


def _answer_lines(answers: AnswersPart, citations: CitationsPart) -> list[str]:
    """Say how the questions ended, which codes occurred, which answers leave evidence unused."""
    usage, gap = answers.usage, answers.gap
    ended = _list_counts({name.replace("_", " "): n for name, n in answers.outcomes.items()})
    lines = [f"{answers.n_questions} questions: {ended}"]
    if answers.codes:
        lines.append(f"contract broken: {_list_counts(answers.codes)}")
    bad = ", ".join(f"{n} {code}" for code, n in citations.codes.items() if code != "ok" and n)
    if bad:
        lines.append(f"citations that do not validate, of {citations.n_citations}: {bad}")
    if usage:
        lines.append(
            f"{quoted(str(answers.model))}: {usage['requests']} requests, {usage['retries']} "
            f"retries, {usage['cached']} replies from the cache; {usage['cost_per_1k']:.2f} "
            "for 1,000 questions at the configured prices"
        )
    if gap.n_flagged:
        lines.append(
            f"{gap.code} (warning): {gap.n_flagged} of {gap.n_checked} answers leave the "
            f"retrieved evidence unused, for example {quoted(gap.flagged[0].query_id)}"
        )
    return lines


def _guard_lines(report: Report) -> list[str]:
    """Say what the poisoning guard held back, and what got through."""
    part, guard = report.trust, report.trust.poisoning
    indexed = "" if guard.quarantine else " but indexed, as quarantine is off"
    lines = [
        (
            f"screening (rules {quoted(guard.rules_version)}): {guard.n_blocked} of "
            f"{guard.n_chunks:,} chunks blocked{indexed}, {guard.n_warned} warned, "
            f"{guard.n_allowed} allowed by a person"
        )
    ]
    if guard.reasons:
        common = sorted(guard.reasons.items(), key=lambda item: (-item[1], item[0]))[:5]
        reasons = ", ".join(f"{quoted(code)} {count}" for code, count in common)
        lines.append(f"reasons: {reasons}; rag-eval trust list shows the chunks")
    gold = guard.gold
    if gold.n_blocked:
        lines.append(
            f"GOLD IS BLOCKED: {gold.n_blocked} of {gold.n_documents} relevant documents have"
            f" blocked chunks ({gold.n_wholly_blocked} have no other chunk), which concerns"
            f" {gold.n_queries_blocked} of {gold.n_queries} questions,"
            f" for example {quoted(gold.documents[0].doc_id)}"
        )
    if guard.at_retrieval.n_blocked_pairs:
        chunks = guard.at_retrieval.n_blocked_chunks
        lines.append(f"left out at retrieval, as they restate a question: {chunks} chunks")
    lines += [quoted(note, 300) for note in part.notes]
    through = ", ".join(
        f"{quoted(name)} {entry.n_blocked} of {entry.n_retrieved:,}"
        for name, entry in part.retrieved.items()
        if entry.n_blocked
    )
    return [*lines, f"BLOCKED CHUNKS WERE RETRIEVED: {through}"] if through else lines


def _trust_lines(report: Report) -> list[str]:
    """Say how far sources are trusted, and what a trust filter costs."""
    part, own = report.trust, report.trust.retrieved[report.strategy].avg_trust
    if own.value is None:
        lines = [f"source trust: {own.why['value']}"]
    else:
        states = "; ".join(
            f"{name.removesuffix('_state')} "
            + ", ".join(f"{state.replace('_', ' ')} {count:,}" for state, count in counts.items())
            for name, counts in part.states.items()
        )
        lines = [
            (
                f"source trust of the first ten of {quoted(report.strategy)}: {estimate(own)} "
                f"over {own.n_scored} questions"
            ),
            f"trust factors over {part.poisoning.n_chunks:,} chunks: {states}",
        ]
    if isinstance(part.filter, TrustFilter):
        lines += [
            f"trust filter at {part.filter.threshold:g}, {quoted(row.strategy)}: "
            f"{row.measure} {interval(row.with_filter.value, None, None)} with, "
            f"{interval(row.without_filter.value, None, None)} without (difference "
            f"{interval(row.delta, row.ci_low, row.ci_high)}, {row.n_groups} groups)"
            for row in part.filter.rows
            if row.measure == SHOWN[0]
        ]
    return lines


def _change_lines(report: Report) -> list[str]:
    """Say how this run compares with the one before it, the baseline, and the regression gates."""
    lines = []
    if report.previous is not None:
        codes = ", ".join(code.replace("_", " ") for code in report.previous.reason_codes)
        against = "comparable" if report.previous.comparable else "not comparable"
        against += f" ({codes})" if codes else ""
        lines.append(f"previous run {quoted(report.previous.run_id)}: {against}")
    drift = report.drift
    if not isinstance(drift, Absent):
        counts = ", ".join(
            f"{getattr(drift.corpus, kind).n} {kind}" for kind in ("new", "changed", "removed")
        )
        lines.append(
            f"since the baseline {quoted(drift.baseline.run_id)}: documents {counts}; "
            f"targets of {drift.gold.targets_changed.n} questions changed"
        )
        lines += [quoted(note, 400) for note in drift.notes]
    return [*lines, *regression_lines(report.gates)]


def regression_lines(gates: Sequence[GatePart]) -> list[str]:
    """Say which run the regression gates hold this one against, and what else differs."""
    held = [gate.evidence for gate in gates if "baseline_run" in gate.evidence]
    if not held:
        return []
    evidence: Open = next((one for one in held if "value" in one), held[0])
    against = "regression against the accepted baseline " + quoted(str(evidence["baseline_run"]))
    if "value" not in evidence and "reason" in evidence:
        return [f"{against}: {quoted(str(evidence['reason']), 300)}"]
    changed: Any = evidence.get("different", {})
    different = ", ".join(
        f"another {quoted(name)} ({quoted(part['before'])} before, {quoted(part['now'])} now)"
        for name, part in changed.items()
    )
    return [f"{against}: {different or 'nothing else differs'}"]


def gates_table(gates: Sequence[GatePart]) -> "Table":
    """Gates with what was asked, what was found and why."""
    from rich.text import Text

    rows = list[list[str | Text]]()
    for gate in gates:
        evidence: dict[str, Any] = gate.evidence
        figures = [evidence.get(name) for name in ("value", "ci_low", "ci_high")]
        found = interval(*figures)
        if "baseline_run" in evidence and "value" in evidence:
            found = f"diff. {difference(*figures)}"
            if "relative_drop" in evidence:  # two lines fit a narrow terminal
                found = f"drop {evidence['relative_drop']:.3f}\n{found}"
        rows.append(
            [
                quoted(gate.id + (" (required)" if gate.required else "")),
                Text(gate.status.replace("_", " "), style=STATUS_STYLE[gate.status]),
                found,
                quoted(str(evidence.get("accepted", ""))),
                quoted(gate.reason_code),
            ]
        )
    columns = ["gate", "status", ">found", "accepted", "reason"]
    return make_table("Gates", columns, rows, unbroken=[0])


def show_report(console: "Console", report: Report) -> None:
    """Print a report: what was measured, the measures, comparisons, stability, trust, gates."""
    print_lines(console, _headline(report))
    warnings = report.gold.warnings
    if warnings:
        first = Problem(**warnings[0].dump())
        print_lines(console, [f"{len(warnings)} warnings about the gold set, for example: {first}"])
    console.print(_measures_table(report))
    print_lines(console, _strategy_lines(report))
    if report.comparisons:
        rows = [
            row
            for row in report.comparisons
            if report.strategy in {row.a, row.b} and row.measure == SHOWN[0]
        ]
        title = (
            f"Paired differences in {SHOWN[0]} (* {quoted(report.strategy)} against the others; "
            "all pairs are in the report)"
        )
        console.print(comparisons_table(rows, title))
    print_lines(console, _stability_lines(report))
    if not isinstance(report.answers, Absent) and not isinstance(report.citations, Absent):
        console.print(_answers_table(report.answers, report.citations))
        print_lines(console, _answer_lines(report.answers, report.citations))
    console.print(_miss_rates_table(report))
    for part in (_miss_rate_lines, _guard_lines, _trust_lines, _change_lines):
        print_lines(console, part(report))
    if report.gates:
        console.print(gates_table(report.gates))


def show_outcome(
    console: "Console",
    report: Report,
    folder: Path,
    seconds: float,
    command: str = "rag-eval",
    *,
    page: bool = True,
) -> None:
    """Print a fresh report, where its files are, and what to type next.

    `command` starts the command line for this person; `page` says whether the run wrote a page.
    """
    console.print()
    show_report(console, report)
    reuse = ""
    if report.cacheHitRate is not None:
        embedded, needed = report.embeddings.embedded, report.embeddings.needed
        reuse = f"; {embedded:,} of {needed:,} texts had to be embedded"
    lines = [f"evaluated in {seconds:.1f} s{reuse}"]
    if page:
        lines.append(
            f"page    {folder / 'index.html'}  "
            f"(one file, opens from disk; over all kept runs: {command} view)"
        )
    lines += [
        (
            f"report  {folder / 'retrieval-metrics.json'}  "
            f"(content_hash {report.content_hash[:16]}, run {report.run_id})"
        ),
        f"tables  {folder / 'measures.csv'}, {folder / 'per-query.parquet'}, {folder}/run-*.trec",
    ]
    if not isinstance(report.answers, Absent):
        lines.append(
            f"answers {folder / 'answers.jsonl'}, citations.jsonl, traces.log; "
            f"one of them: {command} explain QUERY_ID"
        )
    lines += [
        f"look    {command} ui",
        f"try     {command} init NAME --docs DIR    (your own documents)",
    ]
    print_lines(console, lines)


# ---- Miss rates: observed rates, predicted rates, and the reasons of their status

LEVEL: Final = 0.9
_MAX_UNMET, _MAX_UNMET_CONDITIONS = 3, 6


def _k_for(entry: StrategyCalibration) -> str:
    """Write the conformal K of a strategy at LEVEL."""
    found = entry.conformal_rule("fixed", LEVEL)
    if found is None:
        return "-"
    return f"{found.k:,}" if found.k is not None else f"> {found.depth:,}"


def _unmet(entry: StrategyCalibration) -> list[Condition]:
    """Conditions that keep a status from being higher, in the order of the ladder.

    For a stale status, the conditions that made it stale come first.
    """
    unmet = [condition for condition in entry.standing.conditions if not condition.met]
    if entry.status == "stale":
        unmet.sort(key=lambda condition: condition.status != "stale")
    return unmet


def _miss_rates_table(report: Report) -> "Table":
    """Observed miss rate, earned status and the K that finds gold for most questions."""
    part, rows = report.uncertainty, []
    for name, seen in part.strategies.items():
        entry = report.calibration.strategies[name]
        observed, validation = seen.observed[part.target], entry.validation
        rows.append(
            [
                quoted(name + (" *" if name == report.strategy else "")),
                estimate(observed),
                f"{observed.n_scored}/{observed.n_attempted}",
                entry.status,
                estimate(None if validation is None else validation.skill),
                _k_for(entry),
            ]
        )
    title = (
        f"Miss rates, {part.level} level (95 % intervals over groups; "
        "skill: of predictions for groups that were not fitted)"
    )
    columns = ["strategy", f">{part.target}@{part.k}", ">judged", "status", ">skill"]
    return make_table(title, [*columns, f">K for {LEVEL:.0%}"], rows, unbroken=[0, 3])


def _miss_rate_lines(report: Report) -> list[str]:
    """Say what the table does not: the estimator, missing conditions, changes, drift."""
    part, calibration, primary = report.uncertainty, report.calibration, report.strategy
    seen, entry, name = part.strategies[primary], calibration.strategies[primary], quoted(primary)
    lines = [
        f"this run's miss rates of {name} are {seen.status}, from {quoted(seen.calibrator[:24])}"
        + (f": {quoted(seen.reason, 200)}" if seen.reason else "")
    ]
    unmet = _unmet(entry)
    if unmet:
        why = "; ".join(
            f"{one.name} {quoted(one.found, 80)}, needed {quoted(one.needed, 80)}"
            for one in unmet[:_MAX_UNMET]
        )
        since = "from the next run on"
        if not entry.calibrator and entry.status in DISCOUNTING:
            since = f"by these outcomes ({entry.why['calibrator']})"
        lines.append(f"{name} is {entry.status} {since}; not more, because: {why}")
    changes: dict[str, list[str]] = {}
    for other, found in calibration.strategies.items():
        if found.promotion is not None:
            changes.setdefault(_status_change(found), []).append(quoted(other))
    lines += [f"{change}: {', '.join(names)}" for change, names in changes.items()]
    for other, found in calibration.strategies.items():
        lines += [*_alarm_lines(other, found, 400), *feedback_lines(other, found.feedback)]
    if isinstance(part.answers, AnswerConfidences):
        lines.append(_confidence_line(part.answers))
    return [*lines, *(_iterative_line(*item) for item in part.iterative.items())]


def _status_change(entry: StrategyCalibration) -> str:
    change = entry.promotion
    return "" if change is None else f"{change.old_status} -> {change.new_status}"


def _alarm_lines(name: str, entry: StrategyCalibration, limit: int) -> list[str]:
    """Say why a strategy is not calibrated, and whether its outcomes drifted."""
    lines = []
    if entry.refused:
        lines.append(f"{quoted(name)} is not calibrated: {quoted(entry.refused, limit)}")
    drift = entry.drift
    if drift.alarm:
        lines.append(
            f"{quoted(name)}: DRIFT, {drift.direction} after {drift.first_alarm_at} groups"
        )
    return lines


def _confidence_line(answers: AnswerConfidences) -> str:
    """Say what the answers are worth on average."""
    grounded = answers.synthesis_confidence
    return (
        f"confidence, mean over the {grounded.n_scored} of {answers.n} answers that say something: "
        f"grounded {estimate(grounded)}; discounted by miss rate "
        f"{estimate(answers.final_confidence)}; calibrated, to act on "
        f"{estimate(answers.calibrated_confidence)}"
    )


def _iterative_line(name: str, rounds: IterativeAccount) -> str:
    """Say what the rounds of an iterative strategy recovered and lost."""
    whole: dict[str, Any] = rounds.accounts[0]
    change = interval(whole["delta"], whole["ci_low"], whole["ci_high"])
    return (
        f"{quoted(name)} over {quoted(rounds.base)}: expanded {whole['triggered']} of "
        f"{whole['questions']} wordings, recovered {whole['recovered']}, lost {whole['lost']}, "
        f"recall@{rounds.k} {change} over {whole['n_groups']} groups: {whole['verdict']}"
    )


def feedback_lines(name: str, feedback: Feedback) -> list[str]:
    """Say what users said of a strategy's retrievals, and what is to be audited."""
    name, earlier, lines = quoted(name), feedback.earlier, []
    if feedback.n_claims:
        lines.append(f"{name}: {_feedback_words(feedback)}")
    if earlier is not None and earlier.n_claims:
        words = _feedback_words(earlier)
        lines.append(f"{name}: on an earlier index or configuration: {words}")
    against = feedback.contradicts_gold
    if feedback.n_claims and against.n_questions:
        questions = ", ".join(quoted(query, 40) for query in against.query_ids)
        left = against.n_questions - len(against.query_ids)
        more = f" and {left} more" if left else ""
        lines.append(
            f"{name}: users miss something where the gold says hit, questions {questions}{more}"
        )
    return lines


def _feedback_words(part: FeedbackCounts) -> str:
    """Say on how many claims there is feedback, of which kinds, and how many to audit."""
    kinds = ", ".join(
        f"{count} {kind.replace('_', ' ')}"
        for kind in ("something_missing", "evidence_not_relevant", "nothing_missing")
        if (count := getattr(part, kind))
    )
    audits = ""
    if part.audits_due:
        audits = f"; {part.audits_due} to audit: rag-eval audit list --feedback"
    return f"feedback on {part.n_claims} claims ({kinds}), which fits no calibrator{audits}"


# ---- A calibration: figures of every strategy, and what keeps a status from being higher.

_METHODS: Final = {
    "fixed": "one K",
    "recall": "one K for expected recall",
    "mondrian": "K by third of predicted risk",
}


def show_calibration(console: "Console", found: Any) -> None:
    """Print a calibration (`Calibrated`)."""
    figures, errors, lines = [], [], list[str]()
    for name, values in found.strategies.items():
        part = {key: value for key, value in values.items() if key != "artifact"}
        entry = StrategyCalibration.model_validate(part)
        counts, about = entry.counts, entry.validation
        misses = "-" if about is None else about.misses
        figures.append(
            [
                quoted(name),
                entry.status,
                f"{counts.outcomes}/{counts.groups}/{misses}",
                *(
                    estimate(None if about is None else figure)
                    for figure in (about and (about.miss_rate, about.brier, about.skill))
                    or [None] * 3
                ),
            ]
        )
        fit = ["-"] * 3
        if about is not None:
            error = f"{about.ece.value:.3f} ({about.ece.null_limit:.3f})"
            fit = [estimate(about.auroc), estimate(about.slope), error]
        errors.append([quoted(name), *fit, _k_for(entry)])
        lines += _calibration_lines(name, entry, found.traffic[name])
    target = f"{found.target}@{found.k}"
    title = f"Calibration of {target} on {quoted(found.gold_set)}"
    columns = ["strategy", "status", ">outcomes/groups/misses", f">{target}", ">Brier", ">skill"]
    about_errors = "at most: the limit of what calibrated predictions show by chance"
    console.print(
        make_table(f"{title} (out of fold, 95 % intervals over groups)", columns, figures)
    )
    console.print(
        make_table(
            f"How well predictions fit ({about_errors})",
            ["strategy", ">AUROC", ">slope", ">ECE (at most)", f">K for {LEVEL:.0%}"],
            errors,
        )
    )
    print_lines(console, lines)


def _calibration_lines(
    name: str, entry: StrategyCalibration, claims: Mapping[str, Any]
) -> list[str]:
    """Say of one strategy what the tables of a calibration do not."""
    lines, label = [], quoted(name)
    unmet = _unmet(entry)
    if unmet:
        why = "; ".join(
            f"{one.status} needs {one.name} {quoted(one.needed, 80)}, found {quoted(one.found, 80)}"
            for one in unmet[:_MAX_UNMET_CONDITIONS]
        )
        lines.append(f"{label}: {why}")
    if entry.validation is not None and entry.leakage_gap is not None:
        uncalibrated, baseline = "", entry.heuristic_v0
        if baseline is not None:
            skill, auroc = baseline.skill.value, baseline.auroc.value
            uncalibrated = f"heuristic_v0 has skill {skill:.2f}, AUROC {auroc:.2f}; "
        gap = entry.leakage_gap.gap
        lines.append(
            f"{label}: {uncalibrated}folds that split groups would have feigned {gap:+.3f} of skill"
        )
    if conformal := conformal_text(entry):
        lines.append(f"{label}: {conformal}")
    lines += _alarm_lines(name, entry, 600)
    if entry.promotion is not None:
        lines.append(f"{label}: {_status_change(entry)}")
    if entry.n_without_signals:
        lines.append(
            f"{label}: {entry.n_without_signals} outcomes left out, "
            "no signal of what was retrieved is known"
        )
    lines += feedback_lines(name, entry.feedback)
    lines += [f"{label}: {line}" for line in _traffic_lines(claims)]
    if entry.calibrator:
        calibrator = entry.calibrator[:16]
        lines.append(f"{label}: calibrator {calibrator}, fingerprint {entry.fingerprint}")
    return lines


def _traffic_lines(claims: Mapping[str, Any]) -> Iterator[str]:
    """Say how many claims were counted in, and how many were left out and why."""
    words = "claims of production traffic"
    if claims["counted"]:
        yield f"{claims['counted']} {words} counted in"
    if claims["n_unknown"]:
        reason = quoted(claims["reason"], 300)
        yield f"{claims['n_unknown']} {words} left out, they say nothing here: {reason}"
    if claims["n_differing"]:
        yield (
            f"{claims['n_differing']} {words} left out, nothing of their first K is what this "
            "strategy retrieves now"
        )


def conformal_text(entry: StrategyCalibration) -> str:
    """Say which K covers LEVEL of the questions by each method, or why there is none."""
    about = entry.conformal_methods
    parts = []
    for method, words in _METHODS.items():
        found = entry.conformal_rule(method, LEVEL)
        if found is None:
            if about is not None and getattr(about, method) is None:
                parts.append(f"{words}, none: {about.why[method]}")
            continue
        ks = [part.k for part in found.bins] if method == "mondrian" else [found.k]
        stated = f"not attainable within {found.depth:,}"
        if found.attainable or method == "mondrian":
            stated = ", ".join(f"> {found.depth:,}" if k is None else f"{k:,}" for k in ks)
        third = found.riskiest
        if third is not None and third.value is not None:
            verb = "recall" if method == "recall" else "covered"
            stated += f" (riskiest third {verb} {third.value:.2f} of {third.n})"
        parts.append(f"{words} {stated}")
    if not parts:
        return ""
    n = {rule.method: rule.n for rule in entry.conformal}
    left_out = ""
    if about is not None and "mondrian" in n and about.without_risk:
        left_out = (
            f"; by risk {about.without_risk} of {n['fixed']} questions without an outcome, "
            "so without a risk, left out"
        )
    return f"to find gold for {LEVEL:.0%} of new questions: {'; '.join(parts)}{left_out}"


# ---- One question: question, answer, citations with verdicts, evidence, gold.


@dataclasses.dataclass(frozen=True)
class GoldSpan:
    """A piece of gold evidence, and whether a citation found it."""

    doc_id: str
    start: int
    end: int
    text: str
    cited: bool
    source_url: str = ""


@dataclasses.dataclass(frozen=True)
class CitationVerdict:
    """Result of one citation: code, the field at fault, and whether it is right."""

    code: str
    field: str
    correct: bool


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Everything a run knows about one question.

    `verdicts` has one entry for each citation of the answer. `targets` are the judged documents,
    best grade first. `measures` holds coverage, groundedness, supported and gap_reason. `rejected`
    are the replies that broke the contract. `blocked` names judged documents with blocked chunks.
    """

    run_id: str
    gold_set: str
    strategy: str
    question: str
    answerable: bool
    answer: Answer
    verdicts: tuple[CitationVerdict, ...]
    targets: tuple[str, ...]
    spans: tuple[GoldSpan, ...]
    measures: Mapping[str, Any]
    rejected: tuple[Mapping[str, Any], ...] = ()
    blocked: tuple[str, ...] = ()


_MAX_EVIDENCE, _MAX_ANSWER_CHARS = 10, 2000


def _link(address: str | None) -> str:
    """Where the source can be opened, for the end of the line that names it."""
    return f"  {quoted(mask_shown_address(address), _MAX_ANSWER_CHARS)}" if address else ""


def _citation_lines(found: Explanation, outgoing: Outgoing) -> list[str]:
    lines = []
    for number, (span, verdict, quote) in enumerate(
        zip(found.answer.citations, found.verdicts, outgoing.quotes, strict=True), 1
    ):
        known = 0 <= span.evidence < len(found.answer.evidence)
        where = found.answer.evidence[span.evidence].token if known else quote.doc_id
        if verdict.correct:
            right = "matches the gold"
        elif verdict.code != "ok":
            field = f" [{verdict.field}]" if verdict.field else ""
            right = f"{verdict.code}{field}: {FIXES[verdict.code]}"
        elif found.spans or not found.answerable:
            right = "valid, but not the gold evidence"
        else:
            right = "valid; the gold quotes no evidence for this question"
        lines.append(f"  {number}. {quoted(where)}  {right}{_link(quote.source_url)}")
        if span.quote:
            text = snippet(quote.text) or "(its source is shown above as far as it may be)"
            lines.append(f"     {text}")
    return lines or ["  none"]


def _rejected_lines(found: Explanation, outgoing: Outgoing) -> list[str]:
    lines = []
    for row in found.rejected:
        lines.append(f"  attempt {row['attempt']}: {', '.join(row['codes'])}")
        lines += [f"     {snippet(outgoing.cut_copies(str(text)))}" for text in row["messages"]]
        lines.append(f"     reply: {snippet(outgoing.cut_copies(str(row['reply'])))}")
    return ["Rejected replies", *lines, ""] if lines else []


def _gold_lines(found: Explanation, outgoing: Outgoing) -> list[str]:
    if not found.answerable:
        return ["  the corpus holds no answer: NOT FOUND is right"]
    targets = ", ".join(quoted(target) for target in found.targets) or "none judged"
    lines = [f"  documents: {targets}"]
    if found.blocked:
        lines.append(f"  blocked by the poisoning guard: {', '.join(found.blocked)}")
    lines += [
        f"  {'cited ' if span.cited else 'missed'}  {quoted(span.doc_id)} "
        f"[{span.start}, {span.end})  {outgoing.line(span.text)}{_link(span.source_url)}"
        for span in found.spans
    ]
    return lines


def _evidence_lines(found: Explanation, outgoing: Outgoing) -> list[str]:
    cited = {span.evidence for span in found.answer.citations}
    lines = []
    for place, item in enumerate(found.answer.evidence[:_MAX_EVIDENCE]):
        marks = ["cited"] if place in cited else []
        marks += ["gold document"] if item.chunk.doc_id in found.targets else []
        lines.append(
            f"  {place + 1:>2}. {quoted(item.token)}  {item.kind}, rank {item.chunk.k_final}, "
            f"score {item.chunk.score_norm:.3f}{'  <- ' + ', '.join(marks) if marks else ''}"
            f"{_link(item.chunk.source_url)}"
        )
        lines.append(f"      {outgoing.line(item.chunk.text)}")
    more = len(found.answer.evidence) - _MAX_EVIDENCE
    return (lines or ["  none"]) + ([f"  ... and {more} more"] if more > 0 else [])


def explanation_lines(found: Explanation) -> list[str]:
    """Write the explanation as lines of plain text."""
    answer, outgoing = found.answer, Outgoing(found.answer)
    signal = "" if answer.signal is None else f", signal {answer.signal:.2f}"
    codes = f" ({', '.join(answer.codes)})" if answer.codes else ""
    text = outgoing.text
    if answer.outcome != "answered":
        outcome = answer.outcome.replace("_", " ") if answer.text else answer.outcome
        text = f"{outcome}{codes}" + (f": {outgoing.text}" if answer.text else "")
    measures = [
        f"{name} {float(found.measures[name]):.2f}"
        for name in ("coverage", "groundedness")
        if found.measures[name] is not None
    ]
    use = str(found.measures["gap_reason"]).replace("_", " ")
    attempts = f"{answer.attempts} attempt{'s' if answer.attempts != 1 else ''}"
    return [
        (
            f"Question  {quoted(answer.query_id)}  "
            f"({quoted(found.gold_set)}, run {quoted(found.run_id)})"
        ),
        f"  {outgoing.line(found.question, _MAX_ANSWER_CHARS)}",
        "",
        f"Answer  ({answer.mode}, evidence from {quoted(found.strategy)}, {attempts}{signal})",
        f"  {snippet(text, _MAX_ANSWER_CHARS)}",
        f"  {'; '.join([*measures, f'use of what was retrieved: {use}'])}",
        "",
        *_rejected_lines(found, outgoing),
        "Citations",
        *_citation_lines(found, outgoing),
        "",
        "Gold",
        *_gold_lines(found, outgoing),
        "",
        f"Evidence  ({len(answer.evidence)} pieces)",
        *_evidence_lines(found, outgoing),
    ]


# ---- Strategies compared by their misses: on a terminal, as CSV, and as LaTeX (booktabs).

_NAMES: Final[Mapping[Measure, str]] = {
    "observed": "misses, judged",
    "raw": "misses, uncalibrated",
    "calibrated": "misses, calibrated",
    "powered": "misses, powered",
    "brier": "Brier score",
    "skill": "Brier skill",
}
_POWERED_FIELDS: Final = tuple(
    "power extra_labels labels_value labels_low labels_high "
    "n_labelled n_unlabelled n_groups_labelled n_groups_unlabelled".split()
)
_TESTED: Final = ("p", "p_holm", "n_better", "n_worse", "n_tied", "detectable")
COLUMNS: Final = (
    *("a", "b", "measure", "value", "low", "high", *_TESTED, "n", "n_groups"),
    *(*_POWERED_FIELDS, "reason"),
)
"""Columns of the CSV."""
NOTE: Final = (
    "Misses are rates with 95 % intervals over independent groups of queries: judged from outcomes;"
    " uncalibrated and calibrated as predicted; all of these on the gold questions that every"
    " strategy was judged on. Powered is of production traffic only, not of the gold questions:"
    " from random audits of claims and the calibrated predictions of the claims without one."
    " p: sign flips by group, adjusted by Holm over all pairs, each measure by itself."
    " Detectable: smallest true difference found with 80 % power at two-sided 5 %."
)
_MAX_REASON: Final = 600
_SMALLEST_P: Final = 0.001


def _figures_of(entry: Any) -> Iterator[tuple[Measure, Figure, PredictionPowered | None]]:
    """Give the figures of a strategy in the order in which they are shown."""
    yield "observed", entry.observed, None
    if entry.raw is not None:
        yield "raw", entry.raw, None
    yield "calibrated", entry.calibrated, None
    yield "powered", powered_figure(entry.powered), entry.powered
    yield "brier", entry.brier, None
    yield "skill", entry.skill, None


def _absences(comparison: Comparison) -> list[str]:
    """Say why prediction-powered estimates are absent, each reason once."""
    reasons = [entry.powered_reason for entry in comparison.strategies]
    reasons += [row.powered_reason for row in comparison.differences]
    return list(dict.fromkeys(filter(None, reasons)))


def _figure(figure: Figure, sign: str = "") -> str:
    if figure.value is None:
        return "-"
    if figure.low is None or figure.high is None:
        return f"{figure.value:{sign}.3f}"
    return f"{figure.value:{sign}.3f} [{figure.low:{sign}.3f}, {figure.high:{sign}.3f}]"


def _figure_rows(comparison: Comparison) -> Iterator[list[str]]:
    """Strategy, figure, value, queries and worth of every figure."""
    for entry in comparison.strategies:
        for measure, figure, powered in _figures_of(entry):
            counts, worth = f"{figure.n:,} in {figure.n_groups:,} groups", ""
            if measure == "powered":
                counts = "-"
                if powered is not None:
                    counts = f"{powered.n_labelled:,} audited + {powered.n_unlabelled:,} not"
                    if powered.n_unlabelled:
                        worth = f"as {powered.extra_labels:.0%} more labels"
            yield [quoted(entry.name), _NAMES[measure], _figure(figure), counts, worth]


def _difference_rows(comparison: Comparison) -> Iterator[list[str]]:
    """Both strategies, figure, difference, p, better/worse/tied and detectable of every row."""
    for row in comparison.differences:
        p, versus = "-", "-"
        if row.p_holm is not None:
            p = f"< {_SMALLEST_P}" if row.p_holm < _SMALLEST_P else f"{row.p_holm:.3f}"
        if row.n_better is not None:
            versus = f"{row.n_better:,}/{row.n_worse:,}/{row.n_tied:,}"
        yield [
            *(quoted(row.a), quoted(row.b), _NAMES[row.measure], _figure(row.delta, "+")),
            *(p, versus, "-" if row.detectable is None else f"{row.detectable:.3f}"),
        ]


def _sections(rows: Iterable[list[str]]) -> Iterator[list[str] | None]:
    """Write the name of neighbouring rows once, and begin a section with another name."""
    before = None
    for name, *rest in rows:
        if before not in {None, name}:
            yield None
        yield ["" if name == before else name, *rest]
        before = name


def strategies_table(comparison: Comparison) -> "Table":
    """Figures of every strategy, one a row."""
    absent = _absences(comparison)
    return make_table(
        f"Misses by strategy: {comparison.n:,} judged queries in {comparison.n_groups:,} "
        "independent groups; powered: of production traffic",
        ["strategy", "figure", ">value [95 % interval]", ">queries", "worth"],
        _sections(_figure_rows(comparison)),
        caption=f"No powered estimate: {'; '.join(absent)}." if absent else "",
    )


def differences_table(comparison: Comparison) -> "Table":
    """Differences of every pair, one a row."""
    rows = ([f"{a} - {b}", *rest] for a, b, *rest in _difference_rows(comparison))
    columns = ["a - b", "figure", ">difference [95 % interval]", ">p (Holm)"]
    return make_table(
        "Differences on the same queries",
        [*columns, ">better/worse/tied", ">detectable"],
        _sections(rows),
        caption=NOTE,
    )


def write_comparison_csv(path: Path, comparison: Comparison) -> None:
    """Write every figure and difference, one a row; `b` is empty for figures of one strategy."""
    rows = [
        {"a": entry.name, "measure": measure, **dataclasses.asdict(figure)}
        | ({name: getattr(powered, name) for name in _POWERED_FIELDS} if powered else {})
        | {"reason": entry.powered_reason if measure == "powered" else ""}
        for entry in comparison.strategies
        for measure, figure, powered in _figures_of(entry)
    ]
    rows += [
        {"a": row.a, "b": row.b, "measure": row.measure, **dataclasses.asdict(row.delta)}
        | {name: getattr(row, name) for name in _TESTED}
        | ({name: getattr(row.powered, name) for name in _POWERED_FIELDS} if row.powered else {})
        | {"reason": row.powered_reason}
        for row in comparison.differences
    ]
    write_csv(path, COLUMNS, rows)


def write_latex(comparison: Comparison) -> str:
    """Write two tables of the package booktabs, for a document to read in."""
    figures = [[*row[:3], ", ".join(filter(None, row[3:]))] for row in _figure_rows(comparison)]
    first = latex_table(
        ("Strategy", "Figure", "Value [95 % interval]", "Queries"),
        figures,
        figures=(False, False, True, True),
    )
    headings = ("a", "b", "Figure", "Difference a - b [95 % interval]", "p (Holm)")
    second = latex_table(
        (*headings, "a better/worse/tied", "Detectable"),
        list(_difference_rows(comparison)),
        figures=(False, False, False, True, True, True, True),
    )
    reasons = [quoted(reason, _MAX_REASON) for reason in _absences(comparison)]
    comments = [NOTE, *(f"No powered estimate: {reason}" for reason in reasons)]
    return "\n".join([first, second, *(f"% {comment}" for comment in comments), ""])


# ---- Outcomes, claims and draws.

_SHORT_ID, _SHORT_CELL, _MAX_CELL = 12, 40, 80


def _share(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"


def _moment(at: str | None) -> str:
    return "-" if not at else f"{at[:10]} {at[11:16]}"


def _missed_content(row: Mapping[Any, Any]) -> str:
    """Write what was missed and what somebody noted."""
    return "; ".join(
        mask_snippet(row[name], _MAX_CELL) for name in ("missed_content", "note") if row[name]
    )


def show_outcomes(console: "Console", frame: pd.DataFrame, limit: int) -> None:
    """Print the newest outcomes, one a row, and what all of them come to."""
    rows = []
    for row in frame.tail(limit).iloc[::-1].to_dict("records"):
        stated = "-"
        if not math.isnan(row["shown_value"]):
            stated = f"{row['shown_value']:.2f} {row['shown_status']}"
        words = row["feedback"].replace("_", " ") or "taken back"
        rows.append(
            [
                _moment(row["at"]),
                row["outcome_id"][:_SHORT_ID],
                mask_snippet(row["query_id"], _SHORT_CELL),
                mask_snippet(row["strategy"], _SHORT_CELL),
                f"{row['target']}@{row['k']}",
                {1.0: "missed", 0.0: "hit"}.get(row["missed"], words),
                f"{row['gold_source']} ({_share(row['inclusion_probability'])})",
                stated,
                _missed_content(row),
            ]
        )
    columns = [">at (UTC)", ">outcome", "question", "strategy", ">target", "judged"]
    columns += [">gold (drawn with)", "shown", "what was missed, note"]
    console.print(make_table("", columns, rows))
    judged = frame["missed"].notna()
    groups = frame.loc[judged, "group_id"].nunique()
    known = judged & frame["inclusion_probability"].notna()
    fit = int((known & (frame["gold_source"] != "user_feedback")).sum())
    missed = int((frame["missed"] == 1).sum())
    line = (
        f"{min(limit, len(frame))} of {len(frame):,} outcomes; judged {int(judged.sum()):,} in "
        f"{groups:,} groups, missed {missed:,}; {fit:,} with a known probability can fit a "
        "calibrator"
    )
    print_lines(console, [line])


def show_claims(console: "Console", rows: Sequence[Mapping[str, Any]], limit: int) -> None:
    """Print the newest claims and how many each strategy has."""
    newest = [
        [
            _moment(row["at"]),
            row["claim_id"][:_SHORT_ID],
            mask_snippet(row["query"], _MAX_CELL),
            mask_snippet(row["strategy"], _MAX_CELL),
            str(len(row["retrieved"])),
            str(row["k"]),
            _share(row["miss_rate"]),
        ]
        for row in list(rows)[-limit:][::-1]
    ]
    columns = ["at (UTC)", "claim", "question", "strategy", ">retrieved", ">k", ">miss rate"]
    console.print(make_table("", columns, newest))
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row["strategy"], row["strategy_fingerprint"]
        counts[key] = counts.get(key, 0) + 1
    groups = len({row["group_id"] for row in rows})
    print_lines(
        console,
        [
            *(
                f"{count:,} claims of {quoted(strategy, _MAX_CELL)}, "
                f"fingerprint {quoted(fingerprint, _MAX_CELL)}"
                for (strategy, fingerprint), count in sorted(counts.items())
            ),
            f"{min(limit, len(rows))} of {len(rows):,} claims in {groups:,} groups",
        ],
    )


def show_draws(
    console: "Console", draws: Sequence[Mapping[str, Any]], judged: Mapping[str, int]
) -> None:
    """Print every draw, with how many of its claims were judged."""
    rows = [
        [
            *(
                _moment(row["at"]),
                row["draw_id"],
                mask_snippet(row["strategy"], _MAX_CELL),
                row["target"],
            ),
            *(f"{row['n']:,}", f"{row['population']:,}", str(row["depth"]), str(row["seed"])),
            f"{judged.get(row['draw_id'], 0)}/{row['n']}",
        ]
        for row in draws
    ]
    columns = ["at (UTC)", "draw", "strategy", "target", ">drawn", ">of claims", ">depth", ">seed"]
    console.print(make_table("", [*columns, ">judged"], rows))
    line = (
        f"{len(draws)} draws. A draw that is judged in part only stands for all claims if what "
        "was left unjudged was left by chance."
    )
    print_lines(console, [line])


def show_feedback(console: "Console", frame: pd.DataFrame, limit: int) -> None:
    """Print claims whose users said something and that nobody has audited."""
    rows = [
        [
            *(_moment(row["at"]), row["claim_id"], mask_snippet(row["query_id"], _MAX_CELL)),
            mask_snippet(row["strategy"], _MAX_CELL),
            row["feedback"].replace("_", " "),
            _missed_content(row),
        ]
        for row in frame.head(limit).to_dict("records")
    ]
    columns = ["at (UTC)", "claim", "question", "strategy", "feedback", "what was missed, note"]
    console.print(make_table("", columns, rows))
    line = (
        f"{min(limit, len(frame))} of {len(frame):,} claims with feedback and no audit. Feedback "
        "is mostly complaints: it calls for audits and never fits a calibrator."
    )
    print_lines(console, [line])


# ---- The guard's findings.

_MAX_ID, _MAX_REASONS = 200, 600


def listing_lines(found: Any) -> list[str]:
    """JSON lines of a listing (`HeldBack`), one a chunk."""
    rows = (
        {**row, "trust": None if math.isnan(row["trust"]) else row["trust"]} for row in found.rows
    )
    return [json.dumps(row, sort_keys=True, allow_nan=False) for row in rows]


def show_listing(console: "Console", found: Any) -> None:
    """Print what is held back, with its denominator."""
    lines = [
        (
            f"{quoted(found.gold_set)}: {found.n_blocked} of {found.n_chunks:,} chunks blocked, "
            f"{found.n_warned} warned about"
        )
    ]
    print_lines(console, [*lines, *filter(None, [found.note])])
    rows = []
    for row in found.rows:
        by = f"(allowed by {quoted(row['allowed_by'], 60)}) " if row["allowed_by"] else ""
        rows.append(
            [
                row["verdict"],
                quoted(row["chunk_id"][:_SHORT_ID]),  # the commands take the start of an id
                quoted(row["doc_id"][:_MAX_ID]),
                "-" if math.isnan(row["trust"]) else f"{row['trust']:.2f}",
                quoted(by + ", ".join(row["reasons"]), _MAX_REASONS),
            ]
        )
    if rows:
        columns = ["verdict", "chunk", "document", ">trust", "reasons"]
        console.print(make_table("", columns, rows))


def show_chunk(console: "Console", facts: Mapping[str, Any]) -> None:
    """Print everything known of one chunk."""
    allowed = f", allowed by {quoted(facts['allowed_by'], _MAX_ID)}" if facts["allowed_by"] else ""
    trust = "not configured" if math.isnan(facts["trust"]) else f"{facts['trust']:.3f}"
    lines = [
        f"chunk     {quoted(facts['chunk_id'])}: {facts['verdict']}{allowed}",
        (
            f"document  {quoted(facts['doc_id'], _MAX_ID)} at {quoted(facts['rev'], _MAX_ID)}, "
            f"characters {facts['start']} to {facts['end']}"
        ),
        f"link      {quoted(mask_shown_address(facts['source_url']), _MAX_ID)}",
        f"trust     {trust}",
    ]
    for name, factor in facts["factors"].items():
        values = ", ".join(f"{key} {quoted(str(value))}" for key, value in factor.items())
        lines.append(f"          {name}: {values}")
    for finding in facts["findings"]:
        place = f" at characters {finding['start']} to {finding['end']}"
        lines.append(
            f"{finding['severity']:<9} {finding['check']}.{quoted(finding['rule'])}"
            f"{place if finding['start'] >= 0 else ''}: {mask_snippet(finding['detail'])}"
        )
    lines += [
        f"{decision.action:<9} {decision.at:%Y-%m-%d %H:%M} by {quoted(decision.who, _MAX_ID)}: "
        f"{quoted(decision.why, 400)}"
        for decision in facts["decisions"]
    ]
    print_lines(console, [*lines, f"text      {mask_snippet(facts['text'])}"])
