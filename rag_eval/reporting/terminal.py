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
from rag_eval.core.types import snippet
from rag_eval.gates.gate import count_gates
from rag_eval.reporting.page import page_tables
from rag_eval.reporting.report import Report
from rag_eval.reporting.tables import Cursor, Table, interval, print_parts
from rag_eval.trust.trust_report import Manifest
from rag_eval.uncertainty.miss_rate_report import StrategyCalibration

if TYPE_CHECKING:
    from rich.console import Console

HEADLINES: Final = ("R@10", "RR", "nDCG@10")
_MAX_ROWS, _MAX_GATES, _MAX_NAMES, _MAX_QUESTION, _MAX_REV = 8, 5, 5, 60, 24
_ALPHA: Final = 0.05


def _estimate(figure: Estimate | Interval | None) -> str:
    return "-" if figure is None else interval(*figure.triple)


# ---- The parts of the one screen, in order; each yields tables and lines.

Parts = Iterator[str | Table]


def _headline(report: Report) -> Parts:
    gold, index, part = report.gold, report.index, report.uncertainty
    yield (
        f"{quoted(gold.name)}: {gold.n_queries} questions "
        f"({gold.n_queries - gold.n_answerable} unanswerable, {gold.n_groups} groups) over "
        f"{quoted(index.rev[:_MAX_REV])}, {index.n_chunks:,} chunks"
    )
    recall, rank = (report.primary.measure(name, report.evaluation.level) for name in HEADLINES[:2])
    rates = part.strategies[report.strategy]
    observed, stated = rates.observed[part.target], "none"
    if isinstance(rates.stated, Figure):
        stated = f"{_estimate(rates.stated)} over {rates.stated.n_scored}"
    yield (
        f"{quoted(report.strategy)}: R@10 {_estimate(recall)}, RR {_estimate(rank)} over "
        f"{recall.n_scored} questions{', all wordings' if gold.n_paraphrases else ''}; miss rate "
        f"({part.target}@{part.k}): observed {_estimate(observed)} over {observed.n_scored}, "
        f"stated {stated} ({rates.status})"
    )
    if isinstance(report.answers, Absent) or isinstance(report.citations, Absent):
        return
    records = {record.name: record for record in report.answers.measures}
    grounded, refused = records["groundedness"], records["refused_answerable"]
    cited = {record.name: record for record in report.citations.measures}["citation_precision"]
    right = f"citations right {_estimate(cited)} of {cited.n_units}; " if cited.n_units else ""
    yield (
        f"answers: {right}groundedness {_estimate(grounded)} of {grounded.n_scored}; refused "
        f"{_estimate(refused)} of {refused.n_scored} answerable"
    )


def _strategies_table(report: Report) -> Table:
    """Show figures of the strategies, the primary one first, and differences from it."""
    label, part, level = HEADLINES[0], report.uncertainty, report.evaluation.level
    differences = {}
    for row in report.comparisons:
        if row.measure == label and report.strategy in {row.a, row.b}:
            delta, low, high = row.triple
            if row.a == report.strategy:
                delta, low, high = (None if end is None else -end for end in (delta, high, low))
            other = row.b if row.a == report.strategy else row.a
            differences[other] = {"delta": delta, "ci_low": low, "ci_high": high}
    rows = [
        {
            "strategy": entry.name + (" *" if entry.name == report.strategy else ""),
            "gap": differences.get(entry.name),
            "missed": Cursor(part.strategies[entry.name].observed[part.target].dump()),
            **{name: Cursor(entry.measure(name, level).dump()) for name in HEADLINES[:2]},
        }
        for entry in sorted(report.strategies, key=lambda entry: entry.name != report.strategy)
    ]
    record = report.primary.measure(label, level)
    worth = (
        f"{record.n_effective:.1f}: {HARDLY_SUPPORTED}"
        if record.n_effective < FEW_EFFECTIVE
        else f"{record.n_effective:,.0f}"
    )
    return Table.of(
        "strategies",
        f"Strategies, {level} level, {record.n_scored} of {record.n_attempted} questions, worth "
        f"{worth}; 95 % intervals; * primary",
        f"""strategy | R@10 = R@10 | R@10 difference = gap | RR = RR
            | {part.target}@{part.k} = missed""",
        rows,
    )


def _strategies(report: Report) -> Parts:
    table = _strategies_table(report)
    yield dataclasses.replace(table, rows=table.rows[:_MAX_ROWS])
    if (more := len(table.rows) - _MAX_ROWS) > 0:
        yield f"{more} more strategies: rag-eval show"
    clear = [
        quoted(row.b if row.a == report.strategy else row.a)
        for row in report.comparisons
        if report.strategy in {row.a, row.b} and row.measure == HEADLINES[0]
        if row.p_adjusted is not None and row.p_adjusted < _ALPHA
    ]
    if report.comparisons:
        yield (
            f"R@10 differs from {quoted(report.strategy)} (p < {_ALPHA:g}, "
            f"{name_family(report.comparisons)}): {', '.join(clear) or 'no strategy'}"
        )
    for entry in report.strategies:
        name = quoted(entry.name)
        if entry.n_failed:
            counts = sorted((entry.failures or {}).items())
            codes = ", ".join(f"{quoted(code)} {n}" for code, n in counts)
            yield (
                f"{name}: {entry.n_failed} of {entry.n_runs} retrievals FAILED and score 0"
                f" ({codes}); first: {quoted(entry.first_failure or '', 300)}"
            )
        state = None if entry.levels is None else entry.levels[report.evaluation.level]
        if state is not None and not state.measured:
            reason = quoted(state.reason or "", 300)
            yield f"{name}: not measured at the {report.evaluation.level} level: {reason}"


def name_family(rows: Iterable[ComparedPair]) -> str:
    """Count the comparisons that each adjusted p covers: all pairs under all compared measures."""
    return f"Holm over {sum(row.p_adjusted is not None for row in rows)} comparisons"


def comparisons_table(rows: Iterable[ComparedPair], title: str) -> Table:
    """Show paired differences: interval, adjusted p, counts, smallest detectable difference."""
    columns = """strategy = a | against = b | measure | difference = . | p (Holm) = p_adjusted :4
        | better = n_better | worse = n_worse | detectable = minimum_detectable"""
    return Table.of("comparisons", title, columns, [Cursor(row.dump()) for row in rows])


def _changes(report: Report) -> Parts:
    yield ""
    if (previous := report.previous) is None:
        yield f"since the last run: {report.why.get('previous', 'unknown')}"
        return
    codes = ", ".join(code.replace("_", " ") for code in previous.changes)
    against = "comparable" if previous.comparable else "not comparable"
    line = f"previous run {quoted(previous.run_id)}: {against}{f' ({codes})' if codes else ''}"
    for row in previous.deltas or ():
        if (row.strategy, row.measure) == (report.strategy, HEADLINES[0]):
            line += (
                f"; {row.measure} {interval(*row.triple, '+')}, {row.n_better} questions better, "
                f"{row.n_worse} worse, {row.n_tied} equal"
            )
    yield line


_ON_SCORES = frozenset({"identical_ids", "nothing_relevant"})
"""Codes of warnings on questions whose scores surprise a reader."""


def _warnings(report: Report) -> Parts:
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
        names = ", ".join(map(quoted, manifest.gone[:_MAX_NAMES]))
        yield (
            f"DOCUMENTS WERE DELETED: {manifest.n_gone:,} of {n_recorded:,} in the manifest are "
            f"not in the corpus: {names}{', ...' * (manifest.n_gone > _MAX_NAMES)}"
        )
    through = [
        f"{quoted(name)} {entry.n_blocked} of {entry.n_retrieved:,}"
        for name, entry in report.trust.retrieved.items()
        if entry.n_blocked
    ]
    if through:
        yield f"BLOCKED CHUNKS WERE RETRIEVED: {', '.join(through)}"
    for name, calibration in report.calibration.strategies.items():
        if calibration.refused:
            yield f"{quoted(name)} is not calibrated: {quoted(calibration.refused, 400)}"


def _verdict(report: Report) -> Parts:
    """Show the verdict, the gates that failed, and those without enough evidence."""
    yield ""
    yield f"Gates: {_count_gates(report) or 'none is configured'}"
    failed = [Cursor(gate.dump()) for gate in report.gates if gate.status == "fail"]
    columns = "gate = id | status | found = evidence | accepted = evidence.accepted"
    yield Table.of("gates", "", columns, failed[:_MAX_GATES])
    if (more := len(failed) - _MAX_GATES) > 0:
        yield f"{more} more gates are not met: rag-eval show"
    unknown = dict[str, list[str]]()
    for gate in report.gates:
        if gate.status == "insufficient_evidence":
            unknown.setdefault(gate.reason_code, []).append(quoted(gate.id))
    for reason, names in unknown.items():
        yield f"not enough evidence ({quoted(reason)}): {', '.join(names)}"
    guard = report.trust.poisoning
    lists = guard.retrieved
    if guard.n_quarantined or lists.n_blocked or lists.n_warned:
        yield (
            f"poisoning: {lists.n_blocked:,} blocked and {lists.n_warned:,} with a warning of "
            f"{lists.n_retrieved:,} results; {guard.n_quarantined:,} of {guard.n_chunks:,} chunks "
            "quarantined"
        )


def _count_gates(report: Report) -> str:
    return count_gates((gate.required, gate.status) for gate in report.gates)


def _look_first(report: Report) -> Parts:
    questions = report.look_first or ()
    room = _MAX_QUESTION - max((len(question.query_id) for question in questions), default=0)
    rows = [
        {
            "id": question.query_id,
            "found": f"{question.primary.n_found}/{question.primary.n_runs}",
            "other": "-"
            if (other := question.other) is None
            else f"{other.strategy} {other.n_found}/{other.n_runs}",
            "miss_rate": question.miss_rate,
            "status": question.status,
            "question": snippet(question.text, max(room, 12)),
        }
        for question in questions
    ]
    caption = "Look at first: what the primary strategy misses (rag-eval show --question ID)"
    columns = "id | found | best other = other | miss rate :2 | status | question"
    yield Table.of("look-first", caption, columns, rows)


def _notes(report: Report) -> Parts:
    """Say what the tables do not hold: inputs, notes, and where the miss rates come from."""
    gold, index = report.gold, report.index
    masking = "" if index.masked is not None else "; masking of personal data is OFF"
    yield ""
    yield (
        f"version {quoted(gold.version)}: {gold.n_paraphrases} paraphrases; gold hash "
        f"{quoted(gold.hash[:12])}; corpus {quoted(index.rev)}: {index.n_documents:,} "
        f"documents{masking}"
    )
    for entry in report.strategies:
        yield from (f"{quoted(entry.name)}: {quoted(note, 300)}" for note in entry.notes or ())
    yield from (quoted(note, 300) for note in report.trust.notes)
    rates = report.uncertainty.strategies[report.strategy]
    yield (
        f"miss rates of {quoted(report.strategy)}: {rates.status}, by "
        f"{quoted(rates.calibrator[:24])} {quoted(rates.reason or '', 200)}".rstrip()
    )
    for name, calibration in report.calibration.strategies.items():
        if change := _describe_promotion(calibration):
            yield f"{change} for {quoted(name)}"


def show_report(console: "Console", report: Report, *, short: bool = False) -> None:
    """Print one screen of a report; unless `short`, also its notes and every table of its page."""
    sections = [_headline, _strategies, _changes, _warnings, _verdict, _look_first]
    parts = [part for section in sections for part in section(report)]
    if not short:
        parts += [*_notes(report), *page_tables(report.dump())]
    for part in parts:
        if isinstance(part, Table) and part.caption and part:
            console.print()
        if isinstance(part, str) or part:
            print_parts(console, [part], wrap=short)


# ---- A new report, with where to look next.


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
    folder, command = places.folder, places.command
    lines = [""]
    if places.page:
        lines.append(f"page    {folder / 'index.html'}  (one file, opens from disk)")
    if places.runs:
        lines.append(f"runs    {places.runs}  (start with make ui)")
    lines.append(f"more    {command} show, {command} show --question ID, {command} view")
    if report.previous is None:
        lines.append(f"try     {command} init NAME --docs DIR  (your own documents)")
    if verbose:
        run = f"content_hash {report.content_hash[:16]}, run {report.run_id}"
        lines += [
            f"report  {folder / 'retrieval-metrics.json'}  ({run})",
            f"files   {folder}/per-query.parquet, run-*.trec, answers.jsonl, citations.jsonl",
        ]
    reuse = f"evaluated in {places.seconds:.1f} s"
    if report.cacheHitRate is not None:
        embedded, needed = report.embeddings.embedded, report.embeddings.needed
        reuse += f"; {embedded:,} of {needed:,} texts had to be embedded"
    print_parts(console, [*lines, reuse])


def summarize(report: Report, folder: Path) -> str:
    """Summarize a report in one line: the verdict, R@10 of the primary strategy, the folder."""
    recall = report.primary.measure(HEADLINES[0], report.evaluation.level)
    return (
        f"{quoted(report.gold.name)}: {_count_gates(report) or 'no gates'}; "
        f"{quoted(report.strategy)} {HEADLINES[0]} {_estimate(recall)} over {recall.n_scored}; "
        f"{folder}"
    )


# ---- A calibration by itself.


def show_calibration(console: "Console", calibrated: Any) -> None:
    """Print a calibration (`Calibrated` of `rag_eval.uncertainty`), out of fold."""
    rows = [
        {"strategy": name, "entry": Cursor(entry.dump())}
        for name, entry in calibrated.strategies.items()
    ]
    unmet = [
        {"strategy": name, "condition": Cursor(condition.dump())}
        for name, entry in calibrated.strategies.items()
        for condition in entry.unmet_conditions
    ]
    target, fit = f"{calibrated.target}@{calibrated.k}", "entry.validation"
    tables = (
        Table.of(
            "calibration",
            f"Calibration of {target} on {quoted(calibrated.gold_set)}, out of fold",
            f"""strategy | status = entry.status | outcomes = entry.counts.outcomes
                | groups = entry.counts.groups | misses = {fit}.misses | {target} = {fit}.miss_rate
                | Brier = {fit}.brier | skill = {fit}.skill""",
            rows,
        ),
        Table.of(
            "quality",
            "Fit of the predictions",
            f"""strategy | AUROC = {fit}.auroc | slope = {fit}.slope | ECE = {fit}.ece.value
                | ECE by chance = {fit}.ece.null_limit""",
            rows,
        ),
        Table.of(
            "unmet",
            "What higher statuses need",
            """strategy | needed for = condition.status | condition = condition.name
                | needed = condition.needed | found = condition.found""",
            unmet,
        ),
    )
    lines = [
        f"{quoted(name)}: {line}"
        for name, entry in calibrated.strategies.items()
        for line in _describe_calibration(
            entry, calibrated.traffic[name], calibrated.estimates[name]
        )
    ]
    print_parts(console, [*filter(None, tables), *lines])


def _describe_calibration(entry: StrategyCalibration, traffic: Any, powered: Any) -> Iterator[str]:
    """Say what was left out, what changed, and which miss rate audits of traffic give.

    `traffic` and `powered` are `TrafficFacts`, and a `PoweredEstimate` or why there is none.
    """
    if entry.refused:
        yield f"not calibrated: {quoted(entry.refused, 600)}"
    if change := _describe_promotion(entry):
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


def _describe_promotion(entry: StrategyCalibration) -> str:
    """Describe the change of the status in this run; empty without a change."""
    if (change := entry.promotion) is None:
        return ""
    old, new = (
        status.replace("absent", "none") for status in (change.old_status, change.new_status)
    )
    return f"status: {old} -> {new}"
