"""Print a report and a calibration on a terminal.

Texts of strangers go through `quoted` or `mask_snippet`; rich markup in them is never read.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rag_eval.core.config import DISCOUNTING
from rag_eval.core.errors import Problem, quoted
from rag_eval.core.report import (
    Absent,
    AnswerConfidences,
    ComparedPair,
    Estimate,
    GatePart,
    Interval,
    IterativeAccount,
    Report,
    StrategyCalibration,
    count_gates,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table
    from rich.text import Text

# ---- Figures, tables and lines.

SHOWN: Final = ("R@10", "RR", "nDCG@10")
_FOLDED: Final = 12
"""Least width of a longer text that may be folded."""
STATUS_STYLE: Final = {
    "pass": "green",
    "fail": "red",
    "insufficient_evidence": "yellow",
    "not_applicable": "dim",
}


def interval(
    value: float | None, low: float | None, high: float | None, sign: str = "", digits: int = 2
) -> str:
    """Write a figure with its interval; a dash for None.

    `sign` is "+" for differences. `digits` is the number of decimals of the bounds.
    """
    if value is None:
        return "-"
    bounds = ""
    if low is not None and high is not None:
        bounds = f" [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"
    return f"{value:{sign}.3f}{bounds}"


def estimate(figure: Estimate | Interval | None) -> str:
    """Write an estimate of a report with its interval; a dash for None."""
    return "-" if figure is None else interval(*figure.triple)


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A table that keeps every name and figure on a narrow terminal.

    A column whose name starts with > is aligned at the right. None in place of a row begins a new
    section. The columns `unbroken` are never wrapped. Where the terminal is too narrow, the bounds
    of intervals move to a second line.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence["str | Text"] | None]
    unbroken: Sequence[int] = ()
    caption: str = ""

    def __rich_console__(self, _: "Console", options: "ConsoleOptions") -> Iterator["Table"]:
        """Yield the table for a width, as rich asks for it."""
        table, width = self._build(" [")
        if width > options.max_width:
            table, width = self._build("\n[")
            if width > options.max_width:  # rich would drop whole columns
                table.width = width
        yield table

    def _build(self, bracket: str) -> tuple["Table", int]:
        """Make the table, and the width below which a figure or a name would be cut.

        `bracket` stands before the bounds of an interval.
        """
        from rich import box
        from rich.cells import cell_len
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=Text(self.title),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            caption=Text(self.caption) if self.caption else None,
            caption_justify="left",
        )
        least = 3 * len(self.columns) - 1
        for at, name in enumerate(self.columns):
            cells = [name.removeprefix(">"), *(str(row[at]) for row in self.rows if row)]
            cells = [cell.replace(" [", bracket) for cell in cells]
            fixed = name.startswith(">") or at in self.unbroken
            width = max(cell_len(line) for cell in cells for line in cell.split("\n"))
            width = width if fixed else min(width, _FOLDED)
            least += width
            justify: Any = "right" if name.startswith(">") else "left"
            table.add_column(
                cells[0], justify=justify, no_wrap=fixed, overflow="fold", min_width=width
            )
        for row in self.rows:
            if row is None:
                table.add_section()
            else:
                table.add_row(
                    *(
                        Text(cell.replace(" [", bracket)) if isinstance(cell, str) else cell
                        for cell in row
                    )
                )
        return table, least


def print_parts(console: "Console", parts: Iterable[str | Sheet]) -> None:
    """Print tables and lines. Lines are neither wrapped nor read as markup; nothing is cut."""
    for part in parts:
        if isinstance(part, str):
            console.print(part, markup=False, highlight=False, soft_wrap=True)
        else:
            console.print(part, crop=False)


def _list_counts(counts: Mapping[str, int]) -> str:
    """Write counts by name, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {quoted(name)}" for name, count in ordered)


# ---- The parts of a report: each yields tables and lines in the order of the terminal.

Parts = Iterator[str | Sheet]


def _headline(report: Report) -> Parts:
    gold, index = report.gold, report.index
    masking = "" if index.masked is not None else "; masking of personal data is OFF"
    seeds = ", ".join(str(seed) for seed in gold.seeds)
    yield (
        f"{quoted(gold.name)} version {quoted(gold.version)}: {gold.n_queries} questions "
        f"({gold.n_queries - gold.n_answerable} unanswerable), {gold.n_paraphrases} "
        f"paraphrases, {gold.n_groups} independent groups, seeds {seeds}"
    )
    yield (
        f"corpus {quoted(index.rev)}: {index.n_documents:,} documents, {index.n_chunks:,} chunks; "
        f"gold hash {quoted(gold.hash[:12])}{masking}"
    )
    if gold.warnings:
        first = Problem(**gold.warnings[0].dump())
        yield f"{len(gold.warnings)} warnings about the gold set, for example: {first}"


def _measures(report: Report) -> Parts:
    level, rows, lines = report.evaluation.level, [], []
    for entry in report.strategies:
        name, p95 = quoted(entry.name), entry.latency_ms.p95
        figures = [entry.measure(label, level) for label in SHOWN]
        failed = f" ({figures[0].n_failed} failed)" if figures[0].n_failed else ""
        rows.append(
            [
                quoted(entry.name + (" *" if entry.name == report.strategy else "")),
                *map(estimate, figures),
                f"{figures[0].n_scored}/{figures[0].n_attempted}{failed}",
                "-" if p95 is None else f"{p95:.1f}",
            ]
        )
        if entry.n_failed:
            failures = sorted((entry.failures or {}).items())
            codes = ", ".join(f"{quoted(code)} {n}" for code, n in failures)
            lines.append(
                f"{name}: {entry.n_failed} of {entry.n_runs} retrievals FAILED and score 0"
                f"{f' ({codes})' if codes else ''}; first: {quoted(entry.first_failure or '', 300)}"
            )
        state = None if entry.levels is None else entry.levels[level]
        if state is not None and not state.measured:
            reason = quoted(state.reason or "", 300)
            lines.append(f"{name}: not measured at the {level} level: {reason}")
        lines += [f"{name}: {quoted(note, 300)}" for note in entry.notes or ()]
    title = f"Retrieval, {level} level (95 % intervals over groups of questions)"
    columns = ["strategy", *(f">{label}" for label in SHOWN), ">scored", ">p95 ms"]
    yield Sheet(title, columns, rows)
    yield from lines


def comparisons_table(rows: Iterable[ComparedPair], title: str) -> Sheet:
    """Show paired differences: interval, adjusted p, counts, smallest detectable difference."""
    return Sheet(
        title,
        ["a - b", "measure", ">difference", ">p (Holm)", ">better/worse", ">detectable"],
        [
            [
                quoted(f"{row.a} - {row.b}"),
                row.measure,
                interval(*row.triple, "+"),
                "-" if row.p_adjusted is None else f"{row.p_adjusted:.4f}",
                f"{row.n_better}/{row.n_worse}",
                "-" if row.minimum_detectable is None else f"{row.minimum_detectable:.3f}",
            ]
            for row in rows
        ],
    )


def _comparisons(report: Report) -> Parts:
    if report.comparisons:
        pairs = [row for row in report.comparisons if report.strategy in {row.a, row.b}]
        title = (
            f"Paired differences in {SHOWN[0]} (* {quoted(report.strategy)} against the others; "
            "all pairs are in the report)"
        )
        yield comparisons_table([row for row in pairs if row.measure == SHOWN[0]], title)


def _stability(report: Report) -> Parts:
    entry = report.stability.strategies[report.strategy]
    flips, together = entry.hit_changes_with_wording["hit_at_10"], entry.convergent_and_hit
    if flips.n_scored:
        yield (
            "share of questions whose hit@10 changes with the wording: "
            f"{estimate(flips)}, over {flips.n_scored}"
        )
        yield (
            "share of questions found under every wording by equal lists: "
            f"{estimate(together)}, over {together.n_scored}"
        )
    else:
        yield "no question has a second wording, so the effect of the wording is not known"
    yield (
        f"delta_s {estimate(entry.delta_s)} (target {entry.delta_s.target}), "
        f"measured with {quoted(report.stability.embedding)}"
    )
    if entry.seeds_change_nothing:
        yield f"all seeds gave identical rankings for {quoted(report.strategy)}"


_ANSWER_ROWS: Final = {
    "citation_precision": "citations",
    "citation_recall": "gold spans",
    "citation_match_rate": "due",
    "citation_validity_rate": "citations",
    **dict.fromkeys(("coverage", "groundedness", "abstention_rate"), "questions"),
    **dict.fromkeys(("refused_answerable", "failure_rate"), "questions"),
}
"""Shown measures of answers, and the unit of the denominator of each measure."""


def _answers(report: Report) -> Parts:
    answers, citations = report.answers, report.citations
    if isinstance(answers, Absent) or isinstance(citations, Absent):
        return
    records = {record.name: record for record in [*answers.measures, *citations.measures]}
    rows = []
    for name, unit in _ANSWER_ROWS.items():
        if (record := records.get(name)) is None:
            continue
        over, questions = "", quoted(record.why.get("value", ""))
        if record.value is not None:
            over = f"{record.n_units} {unit}"
            questions = f"{record.n_scored}/{record.n_attempted}"
        rows.append([name, estimate(record), record.target or "", over, questions])
    title = f"Answers ({', '.join(answers.modes)}; evidence from {quoted(answers.strategy)})"
    yield Sheet(title, ["measure", ">value", "target", ">over", "questions"], rows)
    outcomes = {name.replace("_", " "): n for name, n in answers.outcomes.items()}
    yield f"{answers.n_questions} questions: {_list_counts(outcomes)}"
    if answers.codes:
        yield f"contract broken: {_list_counts(answers.codes)}"
    bad = ", ".join(f"{n} {code}" for code, n in citations.codes.items() if code != "ok" and n)
    if bad:
        yield f"citations that do not validate, of {citations.n_citations}: {bad}"
    if usage := answers.usage:
        yield (
            f"{quoted(str(answers.model))}: {usage['requests']} requests, {usage['retries']} "
            f"retries, {usage['cached']} replies from the cache; {usage['cost_per_1k']:.2f} "
            "for 1,000 questions at the configured prices"
        )
    if (gap := answers.gap).n_flagged:
        yield (
            f"{gap.code} (warning): {gap.n_flagged} of {gap.n_checked} answers leave the "
            f"retrieved evidence unused, for example {quoted(gap.flagged[0].query_id)}"
        )


def _ragas(report: Report) -> Parts:
    if report.ragas:
        rows = [
            [
                *(one.name, estimate(one), f"{one.n_scored}/{one.n_attempted}"),
                *(one.ours, interval(one.ours_value, None, None)),
            ]
            for one in report.ragas
        ]
        columns = ["ragas", ">value", ">scored", "our measure", ">ours"]
        yield Sheet("Measures of ragas without a model, beside ours", columns, rows, unbroken=[0])
        yield from (
            f"{one.name}: {one.difference if one.value is not None else one.why['value']}"
            for one in report.ragas
        )


def _guard(report: Report) -> Parts:
    guard = report.trust.poisoning
    indexed = "" if guard.quarantine else " but indexed, as quarantine is off"
    yield (
        f"screening (rules {quoted(guard.rules_version)}): {guard.n_blocked} of "
        f"{guard.n_chunks:,} chunks blocked{indexed}, {guard.n_warned} warned, "
        f"{guard.n_allowed} allowed by a person"
    )
    if guard.reasons:
        common = sorted(guard.reasons.items(), key=lambda item: (-item[1], item[0]))[:5]
        reasons = ", ".join(f"{quoted(code)} {count}" for code, count in common)
        yield f"reasons: {reasons}; rag-eval trust list shows the chunks"
    if (gold := guard.gold).n_blocked:
        yield (
            f"GOLD IS BLOCKED: {gold.n_blocked} of {gold.n_documents} relevant documents have"
            f" blocked chunks ({gold.n_wholly_blocked} have no other chunk), which concerns"
            f" {gold.n_queries_blocked} of {gold.n_queries} questions,"
            f" for example {quoted(gold.documents[0].doc_id)}"
        )
    if guard.at_retrieval.n_blocked_pairs:
        chunks = guard.at_retrieval.n_blocked_chunks
        yield f"left out at retrieval, as they restate a question: {chunks} chunks"
    yield from (quoted(note, 300) for note in report.trust.notes)
    through = ", ".join(
        f"{quoted(name)} {entry.n_blocked} of {entry.n_retrieved:,}"
        for name, entry in report.trust.retrieved.items()
        if entry.n_blocked
    )
    if through:
        yield f"BLOCKED CHUNKS WERE RETRIEVED: {through}"


def _trust(report: Report) -> Parts:
    part, trusted = report.trust, report.trust.retrieved[report.strategy].avg_trust
    if trusted.value is None:
        yield f"source trust: {trusted.why['value']}"
    else:
        yield (
            f"source trust of the first ten of {quoted(report.strategy)}: {estimate(trusted)} "
            f"over {trusted.n_scored} questions"
        )
    factors = "; ".join(
        f"{one.factor} {one.n:,} of {one.of:,}"
        + (f" (insufficient evidence: {one.reason})" if one.reason else "")
        for one in part.factors or ()
    )
    if factors:
        yield f"trust = {part.formula}; chunks that earn it: {factors}"
    if isinstance(part.filter, Absent):
        return
    for row in part.filter.rows:
        if row.measure == SHOWN[0]:
            yield (
                f"trust filter at {part.filter.threshold:g}, {quoted(row.strategy)}: "
                f"{row.measure} {estimate(row.with_filter)} with, "
                f"{estimate(row.without_filter)} without; difference {interval(*row.triple, '+')}"
            )


def _changes(report: Report) -> Parts:
    if (previous := report.previous) is not None:
        codes = ", ".join(code.replace("_", " ") for code in previous.changes)
        against = "comparable" if previous.comparable else "not comparable"
        yield f"previous run {quoted(previous.run_id)}: {against}{f' ({codes})' if codes else ''}"
    if not isinstance(drift := report.drift, Absent):
        documents = ", ".join(f"{part.n} {kind}" for kind, part in drift.documents.items())
        yield (
            f"since the baseline {quoted(drift.run_id)}: documents {documents}; "
            f"targets of {drift.targets_changed.n} questions changed"
        )
        yield from (quoted(sentence, 400) for sentence in drift.changes.values())


def _gates_table(gates: Sequence[GatePart]) -> Sheet:
    """Show each gate with its status, its figure, its bound and its reason."""
    from rich.text import Text

    rows = list[list[str | Text]]()
    for gate in gates:
        evidence: Mapping[str, Any] = gate.evidence
        value, low, high = (evidence.get(name) for name in ("value", "ci_low", "ci_high"))
        figure = interval(value, low, high)
        if "baseline_run" in evidence and "value" in evidence:
            figure = f"diff. {interval(value, low, high, '+')}"
            if "relative_drop" in evidence:  # Two lines fit a narrow terminal.
                figure = f"drop {evidence['relative_drop']:.3f}\n{figure}"
        rows.append(
            [
                quoted(gate.id + (" (required)" if gate.required else "")),
                Text(gate.status.replace("_", " "), style=STATUS_STYLE[gate.status]),
                figure,
                quoted(str(evidence.get("accepted", ""))),
                quoted(gate.reason_code),
            ]
        )
    columns = ["gate", "status", ">found", "accepted", "reason"]
    title = f"Gates: {count_gates((gate.required, gate.status) for gate in gates)}"
    return Sheet(title, columns, rows, unbroken=[0])


def _gates(report: Report) -> Parts:
    if report.gates:
        yield _gates_table(report.gates)


def success_table(report: Report) -> Sheet:
    """Show each success criterion with its verdict and its figure or reason."""
    rows = [[one.criterion, one.goal, one.verdict, one.found] for one in report.success or ()]
    cells = [[quoted(cell, 200) for cell in row] for row in rows]
    title = f"Success criteria on {quoted(report.gold.name)}"
    return Sheet(title, ["criterion", "goal", "verdict", "found"], cells, unbroken=[2])


def _success(report: Report) -> Parts:
    if report.success:
        yield success_table(report)


# ---- Miss rates of a report: observed rates, predicted rates, and the reasons of their status.

LEVEL: Final = 0.9
_MAX_UNMET, _MAX_UNMET_CONDITIONS = 3, 6


def _k_for(entry: StrategyCalibration) -> str:
    rule = entry.conformal_rule("fixed", LEVEL)
    if rule is None:
        return "-"
    return f"{rule.k:,}" if rule.k is not None else f"> {rule.depth:,}"


def _miss_rates(report: Report) -> Parts:
    part, calibration, primary = report.uncertainty, report.calibration, report.strategy
    rows = []
    for name, seen in part.strategies.items():
        entry = calibration.strategies[name]
        observed, validation = seen.observed[part.target], entry.validation
        rows.append(
            [
                quoted(name + (" *" if name == primary else "")),
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
    yield Sheet(title, [*columns, f">K for {LEVEL:.0%}"], rows, unbroken=[0, 3])
    seen, entry, name = part.strategies[primary], calibration.strategies[primary], quoted(primary)
    reason = f" ({quoted(seen.reason, 200)})" if seen.reason else ""
    yield (
        f"miss rates of {name} in this run: {seen.status}, by {quoted(seen.calibrator[:24])}"
        f"{reason}"
    )
    if unmet := entry.unmet_conditions:
        why = "; ".join(
            f"{condition.name} {quoted(condition.needed, 80)}, found {quoted(condition.found, 80)}"
            for condition in unmet[:_MAX_UNMET]
        )
        since = "from the next run on"
        if not entry.calibrator and entry.status in DISCOUNTING:
            since = f"by these outcomes ({entry.why['calibrator']})"
        yield f"status of {name} {since}: {entry.status}; a higher status needs {why}"
    changes: dict[str, list[str]] = {}
    for other, entry in calibration.strategies.items():
        if change := _status_change(entry):
            changes.setdefault(change, []).append(quoted(other))
    yield from (f"{change} for {', '.join(names)}" for change, names in changes.items())
    for other, entry in calibration.strategies.items():
        yield from _alarms(other, entry, 400)
    if isinstance(answers := part.answers, AnswerConfidences):
        grounded = answers.synthesis_confidence
        yield (
            f"mean confidence of the {grounded.n_scored} of {answers.n} answers with statements: "
            f"{estimate(grounded)} grounded, {estimate(answers.final_confidence)} discounted by "
            f"the miss rate, {estimate(answers.calibrated_confidence)} calibrated"
        )
    yield from (_describe_rounds(*item) for item in part.iterative.items())


def _status_change(entry: StrategyCalibration) -> str:
    change = entry.promotion
    if change is None:
        return ""
    old, new = (
        "none" if status == "absent" else status
        for status in (change.old_status, change.new_status)
    )
    return f"status: {old} -> {new}"


def _alarms(name: str, entry: StrategyCalibration, limit: int) -> Iterator[str]:
    if entry.refused:
        yield f"{quoted(name)} is not calibrated: {quoted(entry.refused, limit)}"
    drift = entry.drift
    if drift.alarm:
        yield f"{quoted(name)}: DRIFT, {drift.direction} after {drift.first_alarm_at} groups"


def _describe_rounds(name: str, rounds: IterativeAccount) -> str:
    whole: Mapping[str, Any] = rounds.accounts[0]
    change = interval(whole["delta"], whole["ci_low"], whole["ci_high"])
    return (
        f"{quoted(name)} over {quoted(rounds.base)}: expanded {whole['triggered']} of "
        f"{whole['questions']} wordings, recovered {whole['recovered']}, lost {whole['lost']}, "
        f"recall@{rounds.k} {change} over {whole['n_groups']} groups: {whole['verdict']}"
    )


# ---- A whole report.

_SECTIONS: Final = (
    *(_headline, _measures, _comparisons, _stability, _answers, _ragas, _miss_rates),
    *(_guard, _trust, _changes, _success, _gates),
)


def show_report(console: "Console", report: Report) -> None:
    """Print a report: the gold set, measures, comparisons, stability, miss rates, trust, gates."""
    for section in _SECTIONS:
        print_parts(console, section(report))


def show_outcome(
    console: "Console",
    report: Report,
    folder: Path,
    seconds: float,
    command: str = "rag-eval",
    *,
    page: bool = True,
) -> None:
    """Print a new report, the places of its files, and the next commands.

    `command` is how this user starts the command line. `page`: whether the run wrote a page.
    """
    console.print()
    show_report(console, report)
    reuse = ""
    if report.cacheHitRate is not None:
        embedded, needed = report.embeddings.embedded, report.embeddings.needed
        reuse = f"; {embedded:,} of {needed:,} texts had to be embedded"
    page_line = (
        f"page    {folder / 'index.html'}  "
        f"(one file, opens from disk; over all kept runs: {command} view)"
    )
    answers_line = (
        f"answers {folder / 'answers.jsonl'}, citations.jsonl, traces.log; "
        f"one of them: {command} explain QUERY_ID"
    )
    lines = [
        f"evaluated in {seconds:.1f} s{reuse}",
        page_line if page else "",
        (
            f"report  {folder / 'retrieval-metrics.json'}  "
            f"(content_hash {report.content_hash[:16]}, run {report.run_id})"
        ),
        f"tables  {folder / 'measures.csv'}, {folder / 'per-query.parquet'}, {folder}/run-*.trec",
        "" if isinstance(report.answers, Absent) else answers_line,
        f"look    {command} ui",
        f"try     {command} init NAME --docs DIR    (your own documents)",
    ]
    print_parts(console, filter(None, lines))


# ---- A calibration: figures of every strategy, and what keeps a status from being higher.

_METHODS: Final = {
    "fixed": "one K",
    "recall": "one K for expected recall",
    "mondrian": "K by third of predicted risk",
}


def show_calibration(console: "Console", calibrated: Any) -> None:
    """Print a calibration (`Calibrated` of `rag_eval.pipeline.miss_rates`)."""
    figures, errors, lines = [], [], list[str]()
    for name, entry in calibrated.strategies.items():
        about, misses, fit, error = entry.validation, "-", ["-"] * 3, ["-"] * 3
        if about is not None:
            misses = str(about.misses)
            fit = [estimate(figure) for figure in (about.miss_rate, about.brier, about.skill)]
            ece = f"{about.ece.value:.3f} ({about.ece.null_limit:.3f})"
            error = [estimate(about.auroc), estimate(about.slope), ece]
        counts = f"{entry.counts.outcomes}/{entry.counts.groups}/{misses}"
        figures.append([quoted(name), entry.status, counts, *fit])
        errors.append([quoted(name), *error, _k_for(entry)])
        lines += _describe_calibration(name, entry, calibrated.traffic[name])
    target = f"{calibrated.target}@{calibrated.k}"
    print_parts(
        console,
        [
            Sheet(
                f"Calibration of {target} on {quoted(calibrated.gold_set)} "
                "(out of fold, 95 % intervals over groups)",
                ["strategy", "status", ">outcomes/groups/misses", f">{target}", ">Brier", ">skill"],
                figures,
            ),
            Sheet(
                "Fit of the predictions (at most: the largest ECE of calibrated predictions by "
                "chance)",
                ["strategy", ">AUROC", ">slope", ">ECE (at most)", f">K for {LEVEL:.0%}"],
                errors,
            ),
            *lines,
        ],
    )


def _describe_calibration(
    name: str, entry: StrategyCalibration, claims: Mapping[str, Any]
) -> Iterator[str]:
    label = quoted(name)
    if unmet := entry.unmet_conditions:
        why = "; ".join(
            f"{condition.status} needs {condition.name} {quoted(condition.needed, 80)}, "
            f"found {quoted(condition.found, 80)}"
            for condition in unmet[:_MAX_UNMET_CONDITIONS]
        )
        yield f"{label}: {why}"
    if entry.validation is not None and entry.leakage_gap is not None:
        uncalibrated, gap = "", entry.leakage_gap.gap
        if (baseline := entry.heuristic_v0) is not None:
            skill, auroc = baseline.skill.value, baseline.auroc.value
            uncalibrated = f"heuristic_v0 has skill {skill:.2f}, AUROC {auroc:.2f}; "
        yield f"{label}: {uncalibrated}folds that split groups would change skill by {gap:+.3f}"
    if conformal := _describe_conformal(entry):
        yield f"{label}: {conformal}"
    yield from _alarms(name, entry, 600)
    if change := _status_change(entry):
        yield f"{label}: {change}"
    if entry.n_without_signals:
        yield (
            f"{label}: {entry.n_without_signals} outcomes left out, "
            "because the signals of their retrieval are not known"
        )
    yield from (f"{label}: {line}" for line in _describe_traffic(claims))
    if entry.calibrator:
        yield f"{label}: calibrator {entry.calibrator[:16]}, fingerprint {entry.fingerprint}"


def _describe_traffic(claims: Mapping[str, Any]) -> Iterator[str]:
    words = "claims of production traffic"
    if claims["counted"]:
        yield f"{claims['counted']} {words} counted in"
    for n, reason in (
        (claims["n_unknown"], quoted(claims["reason"], 300)),
        (claims["n_differing"], "this strategy now retrieves nothing of their first K"),
    ):
        if n:
            yield f"{n} {words} left out: {reason}"


def _describe_conformal(entry: StrategyCalibration) -> str:
    """Say which K covers LEVEL of the questions by each method, or why there is none."""
    about, parts = entry.conformal_methods, []
    for method, words in _METHODS.items():
        rule = entry.conformal_rule(method, LEVEL)
        if rule is None:
            if getattr(about, method) is None:
                parts.append(f"{words}, none: {about.why[method]}")
            continue
        stated = f"not attainable within {rule.depth:,}"
        if rule.attainable or method == "mondrian":
            ks = [part.k for part in rule.bins] if method == "mondrian" else [rule.k]
            stated = ", ".join(f"> {rule.depth:,}" if k is None else f"{k:,}" for k in ks)
        if (third := rule.riskiest) is not None and third.value is not None:
            verb = "recall" if method == "recall" else "covered"
            stated += f" (riskiest third {verb} {third.value:.2f} of {third.n})"
        parts.append(f"{words} {stated}")
    if not parts:
        return ""
    n, left_out = {rule.method: rule.n for rule in entry.conformal}, ""
    if "mondrian" in n and about.without_risk:
        left_out = (
            f"; K by risk leaves out {about.without_risk} of {n['fixed']} questions, "
            "because they have no outcome"
        )
    return f"to find gold for {LEVEL:.0%} of new questions: {'; '.join(parts)}{left_out}"
