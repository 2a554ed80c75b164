"""Print a report on a terminal: one screen, or that and every table of its page.

Texts of strangers go through `quoted` or `snippet`; rich markup in them is never read.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rag_eval.core.errors import Problem, grouped, quoted
from rag_eval.core.records import (
    FEW_EFFECTIVE,
    HARDLY_SUPPORTED,
    Absent,
    ComparedPair,
    Estimate,
    Figure,
    Interval,
)
from rag_eval.core.types import Level, snippet
from rag_eval.gates.gate import count_gates
from rag_eval.measures.strategy_report import StrategyPart
from rag_eval.reporting import report_tables as tables
from rag_eval.reporting.html.page import page_tables
from rag_eval.reporting.report import Report
from rag_eval.reporting.report_tables import Page
from rag_eval.reporting.tables import Cursor, Table, interval, print_parts
from rag_eval.trust.trust_report import Manifest, Poisoning
from rag_eval.uncertainty.miss_rate_report import StrategyCalibration

if TYPE_CHECKING:
    from rich.console import Console

SHOWN: Final = ("R@10", "RR", "nDCG@10")
_MAX_ROWS, _MAX_GATES, _MAX_GONE = 8, 5, 5
"""Shown strategies and failed gates on the one screen, and names of deleted documents."""
_MAX_QUESTION, _MAX_REV, _ALPHA = 60, 24, 0.05


def estimate(figure: Estimate | Interval | None) -> str:
    """Write an estimate of a report with its interval; a dash for None."""
    return "-" if figure is None else interval(*figure.triple)


# ---- The parts of a report: each yields tables and lines in the order of the terminal.

Parts = Iterator[str | Table]


def _headline(report: Report, _: Page) -> Parts:
    gold, index, part = report.gold, report.index, report.uncertainty
    yield (
        f"{quoted(gold.name)}: {gold.n_queries} questions "
        f"({gold.n_queries - gold.n_answerable} unanswerable, {gold.n_groups} groups) over "
        f"{quoted(index.rev[:_MAX_REV])}, {index.n_chunks:,} chunks"
    )
    recall, rank = (report.primary.measure(name, report.evaluation.level) for name in SHOWN[:2])
    rates = part.strategies[report.strategy]
    observed, mean_rate = rates.observed[part.target], rates.stated
    wordings = ", all wordings" if gold.n_paraphrases else ""
    mean_text = (
        f"{estimate(mean_rate)} over {mean_rate.n_scored}"
        if isinstance(mean_rate, Figure)
        else "none"
    )
    yield (
        f"{quoted(report.strategy)}: R@10 {estimate(recall)}, RR {estimate(rank)} over "
        f"{recall.n_scored} questions{wordings}; miss rate ({part.target}@{part.k}): "
        f"observed {estimate(observed)} over {observed.n_scored}, stated {mean_text} "
        f"({rates.status})"
    )
    if isinstance(report.answers, Absent):
        return
    records = {record.name: record for record in report.answers.measures}
    grounded, refused = records["groundedness"], records["refused_answerable"]
    right = ""
    if not isinstance(report.citations, Absent):
        correct = next(
            measure for measure in report.citations.measures if measure.name == "citation_precision"
        )
        if correct.n_units:
            right = f"citations right {estimate(correct)} of {correct.n_units}; "
    yield (
        f"answers: {right}groundedness {estimate(grounded)} of {grounded.n_scored}; refused "
        f"{estimate(refused)} of {refused.n_scored} answerable"
    )


def _worth(n_effective: float) -> str:
    """Say how many independent questions the questions of a figure are worth.

    Examples
    --------
    >>> _worth(57.3), _worth(3.1)
    ('57', '3.1: the gold hardly supports an interval')
    """
    return (
        f"{n_effective:.1f}: {HARDLY_SUPPORTED}"
        if n_effective < FEW_EFFECTIVE
        else f"{n_effective:,.0f}"
    )


def strategies_table(report: Report, page: Page) -> Table:
    """Show figures of the strategies, the primary one first, and differences from it."""
    label, target = SHOWN[0], report.uncertainty.target
    differences = {}
    for row in report.comparisons:
        if row.measure == label and row.b == report.strategy:
            differences[row.a] = dict(zip(("delta", "ci_low", "ci_high"), row.triple, strict=True))
        elif row.measure == label and row.a == report.strategy:
            bounds = (None if bound is None else -bound for bound in row.triple)
            differences[row.b] = dict(zip(("delta", "ci_high", "ci_low"), bounds, strict=True))
    rows = [
        {
            "strategy": name + (" *" if name == report.strategy else ""),
            "seen": page.report["uncertainty"]["strategies"][name],
            "gap": differences.get(name, {"delta": None}),
            **{measure: page.measure(name, measure) for measure in SHOWN},
        }
        for name in sorted(page.strategies, key=lambda name: name != report.strategy)
    ]
    columns = f"""strategy | R@10 = R@10 | R@10 difference = gap | RR = RR
        | {target}@{report.uncertainty.k} = seen.observed.{target}"""
    record = report.primary.measure(label, report.evaluation.level)
    caption = (
        f"Strategies, {report.evaluation.level} level, {record.n_scored} of {record.n_attempted} "
        f"questions, worth {_worth(record.n_effective)}; 95 % intervals; * primary"
    )
    return Table.of("strategies", caption, columns, rows)


def _strategies(report: Report, page: Page) -> Parts:
    table = strategies_table(report, page)
    yield dataclasses.replace(table, rows=table.rows[:_MAX_ROWS])
    if (more := len(table.rows) - _MAX_ROWS) > 0:
        yield f"{more} more strategies: rag-eval show"
    clear = [
        quoted(row.b if row.a == report.strategy else row.a)
        for row in report.comparisons
        if report.strategy in {row.a, row.b} and row.measure == SHOWN[0]
        if row.p_adjusted is not None and row.p_adjusted < _ALPHA
    ]
    if report.comparisons:
        yield (
            f"R@10 differs from {quoted(report.strategy)} (p < {_ALPHA:g}, "
            f"{name_family(report.comparisons)}): {', '.join(clear) or 'no strategy'}"
        )
    for entry in report.strategies:
        yield from _failures(entry, report.evaluation.level)


def _failures(entry: StrategyPart, level: Level) -> Iterator[str]:
    """Say which retrievals failed, and whether the strategy cannot be measured."""
    name = quoted(entry.name)
    if entry.n_failed:
        counts = sorted((entry.failures or {}).items())
        codes = ", ".join(f"{quoted(code)} {n}" for code, n in counts)
        yield (
            f"{name}: {entry.n_failed} of {entry.n_runs} retrievals FAILED and score 0"
            f"{f' ({codes})' if codes else ''}; first: {quoted(entry.first_failure or '', 300)}"
        )
    state = None if entry.levels is None else entry.levels[level]
    if state is not None and not state.measured:
        reason = quoted(state.reason or "", 300)
        yield f"{name}: not measured at the {level} level: {reason}"


def name_family(rows: Iterable[ComparedPair]) -> str:
    """Count the comparisons that each adjusted p covers: all pairs under all compared measures."""
    return f"Holm over {sum(row.p_adjusted is not None for row in rows)} comparisons"


def comparisons_table(rows: Iterable[ComparedPair], title: str) -> Table:
    """Show paired differences: interval, adjusted p, counts, smallest detectable difference."""
    columns = """strategy = a | against = b | measure | difference = . | p (Holm) = p_adjusted :4
        | better = n_better | worse = n_worse | detectable = minimum_detectable"""
    return Table.of("comparisons", title, columns, [Cursor(row.dump()) for row in rows])


def _count_poison(guard: Poisoning) -> str:
    """Count the results that are blocked or have a warning, and the quarantined chunks."""
    lists = guard.retrieved
    return (
        f"poisoning: {lists.n_blocked:,} blocked and {lists.n_warned:,} with a warning of "
        f"{lists.n_retrieved:,} results; {guard.n_quarantined:,} of {guard.n_chunks:,} chunks "
        "quarantined"
    )


_ON_SCORES = frozenset({"identical_ids", "nothing_relevant"})
"""Codes of warnings on questions whose scores surprise a reader."""


def _warnings(report: Report, _: Page) -> Parts:
    warnings = [Problem(**warning.dump()) for warning in report.gold.warnings]
    yield from (str(warning) for warning in warnings if warning.code == "left_out")
    yield from grouped(warning for warning in warnings if warning.code in _ON_SCORES)
    guard = report.trust.poisoning
    if (gold := guard.gold).n_blocked:
        yield (
            f"GOLD IS LEFT OUT: {gold.n_blocked} of {gold.n_documents} relevant documents have"
            f" quarantined chunks ({gold.n_wholly_blocked} have no other chunk), which concerns"
            f" {gold.n_queries_blocked} of {gold.n_queries} questions,"
            f" for example {quoted(gold.documents[0].doc_id)}"
        )
    if isinstance(manifest := guard.manifest, Manifest) and manifest.n_gone:
        n_recorded = manifest.n_same + manifest.n_changed + manifest.n_gone
        names = ", ".join(map(quoted, manifest.gone[:_MAX_GONE]))
        more = ", ..." if manifest.n_gone > _MAX_GONE else ""
        yield (
            f"DOCUMENTS WERE DELETED: {manifest.n_gone:,} of {n_recorded:,} in the manifest are "
            f"not in the corpus: {names}{more}"
        )
    through = ", ".join(
        f"{quoted(name)} {entry.n_blocked} of {entry.n_retrieved:,}"
        for name, entry in report.trust.retrieved.items()
        if entry.n_blocked
    )
    if through:
        yield f"BLOCKED CHUNKS WERE RETRIEVED: {through}"
    for name, entry in report.calibration.strategies.items():
        if entry.refused:
            yield f"{quoted(name)} is not calibrated: {quoted(entry.refused, 400)}"


def _changes(report: Report, _: Page) -> Parts:
    if (previous := report.previous) is None:
        yield f"since the last run: {report.why.get('previous', 'unknown')}"
        return
    codes = ", ".join(code.replace("_", " ") for code in previous.changes)
    against = "comparable" if previous.comparable else "not comparable"
    line = f"previous run {quoted(previous.run_id)}: {against}{f' ({codes})' if codes else ''}"
    for row in previous.deltas or ():
        if (row.strategy, row.measure) == (report.strategy, SHOWN[0]):
            line += (
                f"; {row.measure} {interval(*row.triple, '+')}, {row.n_better} questions better, "
                f"{row.n_worse} worse, {row.n_tied} equal"
            )
    yield line


def _verdict(report: Report, page: Page) -> Parts:
    """Show the verdict, the gates that failed, and those without enough evidence."""
    failed = [gate for gate in page.report["gates"] if gate["status"].value == "fail"]
    verdict = count_gates((gate.required, gate.status) for gate in report.gates)
    yield f"Gates: {verdict or 'none is configured'}"
    if failed:
        table = tables.gates(page, failed[:_MAX_GATES]).select(
            "gate", "status", "found", "accepted"
        )
        yield dataclasses.replace(table, caption="")
    if (more := len(failed) - _MAX_GATES) > 0:
        yield f"{more} more gates are not met: rag-eval show"
    unknown = dict[str, list[str]]()
    for gate in report.gates:
        if gate.status == "insufficient_evidence":
            unknown.setdefault(gate.reason_code, []).append(quoted(gate.id))
    for reason, names in unknown.items():
        yield f"not enough evidence ({quoted(reason)}): {', '.join(names)}"
    guard = report.trust.poisoning
    if guard.n_quarantined or guard.retrieved.n_blocked or guard.retrieved.n_warned:
        yield _count_poison(guard)


def _look_first(report: Report, page: Page) -> Parts:
    questions = report.look_first or []
    room = _MAX_QUESTION - max((len(question.query_id) for question in questions), default=0)
    rows = []
    for question, place in zip(questions, page.report.get("look_first") or (), strict=True):
        counts = [
            "-" if count is None else f"{count.n_found}/{count.n_runs}"
            for count in (question.primary, question.other)
        ]
        other = "" if question.other is None else f"{question.other.strategy} "
        rows.append(
            {
                "place": place,
                "found": counts[0],
                "other": f"{other}{counts[1]}",
                "text": snippet(question.text, max(room, 12)),
            }
        )
    if rows:
        caption = "Look at first: what the primary strategy misses (rag-eval show --question ID)"
        columns = """id = place.query_id | found | best other = other
            | miss rate = place.miss_rate :2 | status = place.status | question = text"""
        yield Table.of("look-first", caption, columns, rows)


def _notes(report: Report, _: Page) -> Parts:
    """Say what the tables do not hold: inputs, notes, and where the miss rates come from."""
    gold, index, primary = report.gold, report.index, report.strategy
    masking = "" if index.masked is not None else "; masking of personal data is OFF"
    yield (
        f"version {quoted(gold.version)}: {gold.n_paraphrases} paraphrases; gold hash "
        f"{quoted(gold.hash[:12])}; corpus {quoted(index.rev)}: {index.n_documents:,} "
        f"documents{masking}"
    )
    for entry in report.strategies:
        yield from (f"{quoted(entry.name)}: {quoted(note, 300)}" for note in entry.notes or ())
    yield from (quoted(note, 300) for note in report.trust.notes)
    rates = report.uncertainty.strategies[primary]
    reason = f" ({quoted(rates.reason, 200)})" if rates.reason else ""
    yield (
        f"miss rates of {quoted(primary)} in this run: {rates.status}, by "
        f"{quoted(rates.calibrator[:24])}{reason}"
    )
    changes: dict[str, list[str]] = {}
    for other, calibration in report.calibration.strategies.items():
        if change := describe_promotion(calibration):
            changes.setdefault(change, []).append(quoted(other))
    yield from (f"{change} for {', '.join(names)}" for change, names in changes.items())


def _tables(report: Report, _: Page) -> Parts:
    """Show every table of the page."""
    yield from page_tables(report.dump())


# ---- A calibration by itself.


def show_calibration(console: "Console", calibrated: Any) -> None:
    """Print a calibration (`Calibrated` of `rag_eval.uncertainty`), out of fold."""
    rows = [
        {"strategy": name, "entry": Cursor(entry.dump())}
        for name, entry in calibrated.strategies.items()
    ]
    target = f"{calibrated.target}@{calibrated.k}"
    caption = f"Calibration of {target} on {quoted(calibrated.gold_set)}, out of fold"
    fit = "entry.validation"
    columns = f"""strategy | status = entry.status | outcomes = entry.counts.outcomes
        | groups = entry.counts.groups | misses = {fit}.misses | {target} = {fit}.miss_rate
        | Brier = {fit}.brier | skill = {fit}.skill"""
    quality = f"strategy | AUROC = {fit}.auroc | slope = {fit}.slope | ECE = {fit}.ece"
    unmet = [
        {"strategy": name, "condition": Cursor(condition.dump())}
        for name, entry in calibrated.strategies.items()
        for condition in entry.unmet_conditions
    ]
    needs = """strategy | needed for = condition.status | condition = condition.name
        | needed = condition.needed | found = condition.found"""
    lines = [
        f"{quoted(name)}: {line}"
        for name, entry in calibrated.strategies.items()
        for line in _describe_calibration(
            entry, calibrated.traffic[name], calibrated.estimates[name]
        )
    ]
    shown = (
        Table.of("calibration", caption, columns, rows),
        Table.of("quality", "Fit of the predictions", quality, rows),
        Table.of("unmet", "What higher statuses need", needs, unmet),
    )
    print_parts(console, [*filter(None, shown), *lines])


def _describe_calibration(entry: StrategyCalibration, traffic: Any, powered: Any) -> Iterator[str]:
    """Say what was left out, what changed, and which miss rate audits of traffic give.

    `traffic` and `powered` are `TrafficFacts`, and a `PoweredEstimate` or why there is none.
    """
    if entry.refused:
        yield f"not calibrated: {quoted(entry.refused, 600)}"
    if change := describe_promotion(entry):
        yield change
    if entry.n_without_signals:
        yield f"{entry.n_without_signals} outcomes left out: the signals are not known"
    if traffic.counted:
        yield f"{traffic.counted} claims of production traffic counted in"
    if traffic.left_out:
        why = quoted(traffic.reason, 300)
        yield f"{traffic.left_out} claims of production traffic left out: {why}"
    if not isinstance(powered, str):
        yield (
            f"misses of the traffic of the last draw: "
            f"{interval(powered.value, powered.low, powered.high)}, from "
            f"{powered.n_labelled:,} audited claims and predictions of {powered.n_unlabelled:,}; "
            f"audits alone "
            f"{interval(powered.labels_value, powered.labels_low, powered.labels_high)}"
        )
    elif traffic.counted:
        yield f"no estimate of the traffic: {powered}"
    if entry.calibrator:
        yield f"calibrator {entry.calibrator[:16]}, fingerprint {entry.fingerprint}"


def describe_promotion(entry: StrategyCalibration) -> str:
    """Describe the change of the status in this run; empty without a change."""
    change = entry.promotion
    if change is None:
        return ""
    old, new = (
        "none" if status == "absent" else status
        for status in (change.old_status, change.new_status)
    )
    return f"status: {old} -> {new}"


# ---- A whole report.

_SHORT: Final = (_headline, _strategies, _changes, _warnings, _verdict, _look_first)
"""Sections of the one screen that a run prints, in order."""
_APART: Final = {_verdict, _changes, _notes}
"""Sections of lines with an empty line before them."""


def show_report(console: "Console", report: Report, *, short: bool = False) -> None:
    """Print one screen of a report; unless `short`, also its notes and every table of its page."""
    page = Page(Cursor(report.dump()))
    for section in _SHORT if short else (*_SHORT, _notes, _tables):
        parts = [part for part in section(report, page) if part]
        if section in _APART and parts:
            console.print()
        for part in parts:
            if isinstance(part, Table) and section not in _APART:
                console.print()
            print_parts(console, [part], wrap=short)


@dataclasses.dataclass(frozen=True)
class Places:
    """The folder of a report, the duration of its run, and the address of its record in MLflow.

    `command` is how this user starts the command line. `page`: whether the run wrote a page.
    `runs` is empty without a record in MLflow.
    """

    folder: Path
    seconds: float
    command: str = "rag-eval"
    page: bool = True
    runs: str = ""


def show_outcome(
    console: "Console", report: Report, places: Places, *, verbose: bool = False
) -> None:
    """Print a new report, on one screen unless verbose, and where to look next."""
    console.print()
    show_report(console, report, short=not verbose)
    folder, command, is_first = places.folder, places.command, report.previous is None
    reuse = f"evaluated in {places.seconds:.1f} s"
    if report.cacheHitRate is not None:
        embedded, needed = report.embeddings.embedded, report.embeddings.needed
        reuse += f"; {embedded:,} of {needed:,} texts had to be embedded"
    lines = [
        "",
        f"page    {folder / 'index.html'}  (one file, opens from disk)" if places.page else "",
        f"runs    {places.runs}  (start with make ui)" if places.runs else "",
        f"more    {command} show, {command} show --question ID, {command} view",
        f"try     {command} init NAME --docs DIR  (your own documents)" if is_first else "",
        reuse,
    ]
    files = [
        (
            f"report  {folder / 'retrieval-metrics.json'}  "
            f"(content_hash {report.content_hash[:16]}, run {report.run_id})"
        ),
        f"tables  {folder}/per-query.parquet, {folder}/run-*.trec",
        ""
        if isinstance(report.answers, Absent)
        else f"answers {folder / 'answers.jsonl'}, auditable-answers.jsonl, citations.jsonl, "
        "traces.log",
    ]
    print_parts(console, [*lines[:1], *filter(None, lines[1:] + (files if verbose else []))])


def summarize(report: Report, folder: Path) -> str:
    """Summarize a report in one line: the verdict, R@10 of the primary strategy, the folder."""
    recall = report.primary.measure(SHOWN[0], report.evaluation.level)
    verdict = count_gates((gate.required, gate.status) for gate in report.gates)
    return (
        f"{quoted(report.gold.name)}: {verdict or 'no gates'}; {quoted(report.strategy)} "
        f"{SHOWN[0]} {estimate(recall)} over {recall.n_scored}; {folder}"
    )
