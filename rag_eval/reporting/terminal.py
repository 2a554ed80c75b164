"""Print a report on a terminal: one screen, or everything.

Texts of strangers go through `quoted` or `mask_snippet`; rich markup in them is never read.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    Triple,
)
from rag_eval.core.types import DISCOUNTING, Level, snippet
from rag_eval.gates.gate_report import GatePart, count_gates
from rag_eval.measures.answer_report import AnswersPart
from rag_eval.measures.strategy_report import StrategyPart
from rag_eval.reporting.report import Report
from rag_eval.trust.trust_report import Manifest, Poisoning
from rag_eval.uncertainty.miss_rate_report import (
    AnswerConfidences,
    IterativeAccount,
    StrategyCalibration,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table
    from rich.text import Text

# ---- Figures, tables and lines.

SHOWN: Final = ("R@10", "RR", "nDCG@10")
_FOLDED: Final = 12
"""Least width of a longer text that may be folded."""
_MAX_ROWS, _MAX_GATES, _MAX_GONE = 8, 5, 5
"""Shown strategies and failed gates on the one screen."""
_MAX_ID, _MAX_QUESTION, _MAX_REV, _ALPHA = 40, 60, 24, 0.05
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
    return f"{round(value, 3) + 0.0:{sign}.3f}{bounds}"  # + 0.0: no -0.000


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
            title=Text(self.title) if self.title else None,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
            caption=Text(self.caption) if self.caption else None,
            caption_justify="left",
        )
        least = 2 * len(self.columns) - 1
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


def print_parts(console: "Console", parts: Iterable[str | Sheet], *, wrap: bool = False) -> None:
    """Print tables and lines. Lines are not read as markup, and nothing is cut.

    `wrap`: whether long lines end at the width of the console, so that a screen can be counted.
    """
    for part in parts:
        if isinstance(part, str):
            console.print(part, markup=False, highlight=False, soft_wrap=not wrap)
        else:
            console.print(part, crop=False)


def _list_counts(counts: Mapping[str, int]) -> str:
    """Write counts by name, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {quoted(name)}" for name, count in ordered)


# ---- The parts of a report: each yields tables and lines in the order of the terminal.

Parts = Iterator[str | Sheet]


def _headline(report: Report) -> Parts:
    gold, index, part = report.gold, report.index, report.uncertainty
    yield (
        f"{quoted(gold.name)}: {gold.n_queries} questions "
        f"({gold.n_queries - gold.n_answerable} unanswerable, {gold.n_groups} groups) over "
        f"{quoted(index.rev[:_MAX_REV])}, {index.n_chunks:,} chunks"
    )
    recall, rank = (report.primary.measure(name, report.evaluation.level) for name in SHOWN[:2])
    rates = part.strategies[report.strategy]
    observed, stated = rates.observed[part.target], rates.stated
    wordings = ", all wordings" if gold.n_paraphrases else ""
    known = f"{estimate(stated)} over {stated.n_scored}" if isinstance(stated, Figure) else "none"
    yield (
        f"{quoted(report.strategy)}: R@10 {estimate(recall)}, RR {estimate(rank)} over "
        f"{recall.n_scored} questions{wordings}; miss rate ({part.target}@{part.k}): "
        f"observed {estimate(observed)} over {observed.n_scored}, stated {known} ({rates.status})"
    )
    if isinstance(report.answers, Absent):
        return
    records = {record.name: record for record in report.answers.measures}
    grounded, refused = records["groundedness"], records["refused_answerable"]
    right = ""
    if not isinstance(report.citations, Absent):
        correct = next(one for one in report.citations.measures if one.name == "citation_precision")
        if correct.n_units:
            right = f"citations right {estimate(correct)} of {correct.n_units}; "
    yield (
        f"answers: {right}groundedness {estimate(grounded)} of {grounded.n_scored}; refused "
        f"{estimate(refused)} of {refused.n_scored} answerable"
    )


def _inputs(report: Report) -> Parts:
    gold, index = report.gold, report.index
    masking = "" if index.masked is not None else "; masking of personal data is OFF"
    seeds = ", ".join(str(seed) for seed in gold.seeds)
    yield (
        f"version {quoted(gold.version)}: {gold.n_paraphrases} paraphrases, seeds {seeds}; gold "
        f"hash {quoted(gold.hash[:12])}; corpus {quoted(index.rev)}: {index.n_documents:,} "
        f"documents{masking}"
    )
    if others := [warning for warning in gold.warnings if warning.code != "left_out"]:
        first = Problem(**others[0].dump())
        yield f"{len(others)} warnings about the gold set, for example: {first}"


def _gaps(report: Report) -> dict[str, Triple]:
    """Return the paired difference in R@10 from the primary strategy, by strategy."""
    found = dict[str, Triple]()
    for row in report.comparisons:
        if row.measure == SHOWN[0] and row.b == report.strategy:
            found[row.a] = row.triple
        elif row.measure == SHOWN[0] and row.a == report.strategy:
            delta, low, high = (None if bound is None else -bound for bound in row.triple)
            found[row.b] = delta, high, low
    return found


def worth(n_effective: float) -> str:
    """Say how many independent questions the questions of a figure are worth.

    Examples
    --------
    >>> worth(57.3), worth(3.1)
    ('57', '3.1: the gold hardly supports an interval')
    """
    return (
        f"{n_effective:.1f}: {HARDLY_SUPPORTED}"
        if n_effective < FEW_EFFECTIVE
        else f"{n_effective:,.0f}"
    )


def _strategies_table(report: Report, *columns: str) -> Sheet:
    """Show figures of the strategies, the primary one first.

    `columns` name the figures before the observed miss rate. The difference is from the primary
    strategy.
    """
    level, part, gaps, rows = report.evaluation.level, report.uncertainty, _gaps(report), []
    target = f"{part.target}@{part.k}"
    for entry in sorted(report.strategies, key=lambda entry: entry.name != report.strategy):
        recall, p95 = entry.measure(SHOWN[0], level), entry.latency_ms.p95
        figures = {label: estimate(entry.measure(label, level)) for label in SHOWN}
        figures[target] = estimate(part.strategies[entry.name].observed[part.target])
        figures["R@10 difference"] = interval(*gaps.get(entry.name, (None, None, None)), "+")
        figures["scored"] = f"{recall.n_scored}/{recall.n_attempted}"
        figures["p95 ms"] = "-" if p95 is None else f"{p95:.1f}"
        name = quoted(entry.name + (" *" if entry.name == report.strategy else ""))
        rows.append([name, *(figures[column] for column in (*columns, target))])
    recall = report.primary.measure(SHOWN[0], level)
    title = (
        f"Strategies, {level} level, {recall.n_scored} of {recall.n_attempted} questions, "
        f"worth {worth(recall.n_effective)}; 95 % intervals; * primary"
    )
    return Sheet(title, ["strategy", *(f">{column}" for column in (*columns, target))], rows)


def _strategies(report: Report) -> Parts:
    table = _strategies_table(report, SHOWN[0], "R@10 difference", SHOWN[1])
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


def _measures(report: Report) -> Parts:
    yield _strategies_table(report, *SHOWN, "scored", "p95 ms")
    for entry in report.strategies:
        yield from _failures(entry, report.evaluation.level)
        yield from (f"{quoted(entry.name)}: {quoted(note, 300)}" for note in entry.notes or ())


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
            f"all pairs are in the report); {name_family(report.comparisons)}"
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
    "citation_support": "sentences",
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
    if citations.unsupported:
        yield (
            f"sentences that their citations do not support: {citations.n_unsupported}, for "
            f"example in {quoted(citations.unsupported[0].query_id)} (rag-eval explain)"
        )
    yield from _models_and_findings(answers)
    if (gap := answers.gap).n_flagged:
        yield (
            f"{gap.code} (warning): {gap.n_flagged} of {gap.n_checked} answers leave the "
            f"retrieved evidence unused, for example {quoted(gap.flagged[0].query_id)}"
        )


def _models_and_findings(answers: AnswersPart) -> Iterator[str]:
    """Write findings of plug-ins, requests, and the verifier."""
    if answers.findings:
        yield f"findings: {_list_counts(answers.findings)}"
    if usage := answers.usage:
        yield (
            f"{quoted(str(answers.model))}: {usage['requests']} requests, {usage['retries']} "
            f"retries, {usage['cached']} replies from the cache; {usage['cost_per_1k']:.2f} "
            "for 1,000 questions at the configured prices"
        )
    if verifier := answers.verifier:
        failed = f"; without a verdict: {_list_counts(verifier.failures)}"
        yield (
            f"groundedness and citation support are scored by the verifier {quoted(verifier.name)} "
            f"({quoted(verifier.model)}){failed if verifier.failures else ''}"
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


def _count_poison(guard: Poisoning) -> str:
    """Count the results that are blocked or have a warning, and the quarantined chunks."""
    lists = guard.retrieved
    return (
        f"poisoning: {lists.n_blocked:,} blocked and {lists.n_warned:,} with a warning of "
        f"{lists.n_retrieved:,} results; {guard.n_quarantined:,} of {guard.n_chunks:,} chunks "
        "quarantined"
    )


def _guard(report: Report) -> Parts:
    guard = report.trust.poisoning
    milder = ", for a corpus about injection" if guard.about_injection else ""
    yield (
        f"screening (rules {quoted(guard.rules_version)}{milder}): {guard.n_blocked:,} of "
        f"{guard.n_chunks:,} chunks blocked, {guard.n_warned:,} warned, {guard.n_allowed:,} "
        f"allowed by a person (quarantine: {guard.quarantine})"
    )
    yield _count_poison(guard)
    if guard.reasons:
        common = sorted(guard.reasons.items(), key=lambda item: (-item[1], item[0]))[:5]
        reasons = ", ".join(f"{quoted(code)} {count}" for code, count in common)
        yield f"reasons: {reasons}; rag-eval trust list shows the chunks"
    if isinstance(manifest := guard.manifest, Manifest):
        by = f", accepted by {quoted(manifest.accepted_by)}" if manifest.accepted_by else ""
        yield (
            f"manifest version {manifest.version} of {manifest.created_at}{by}: "
            f"{manifest.n_same:,} documents as recorded, {manifest.n_changed:,} changed, "
            f"{manifest.n_not_in_manifest:,} not in it, {manifest.n_gone:,} deleted"
        )
    yield from (quoted(note, 300) for note in report.trust.notes)


_ON_SCORES = frozenset({"identical_ids", "nothing_relevant"})
"""Codes of warnings on questions whose scores surprise a reader."""


def _warnings(report: Report) -> Parts:
    warnings = [Problem(**one.dump()) for one in report.gold.warnings]
    yield from (str(one) for one in warnings if one.code == "left_out")
    yield from grouped(one for one in warnings if one.code in _ON_SCORES)
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
        yield from describe_refusal(name, entry, 400)


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


def _verdict(report: Report) -> Parts:
    """Show the verdict, the gates that failed, and those without enough evidence."""
    from rich.text import Text

    failed = [gate for gate in report.gates if gate.status == "fail"]
    table = _gates_table(failed[:_MAX_GATES])
    verdict = count_gates((gate.required, gate.status) for gate in report.gates)
    yield f"Gates: {verdict or 'none is configured'}"
    if failed:
        rows = [[row[0], Text("not met", style="red"), *row[2:4]] for row in table.rows if row]
        yield Sheet("", ["gate", "status", ">found", "accepted"], rows, unbroken=[0, 1])
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


# ---- The questions to look at first.


def _look_first(report: Report) -> Parts:
    rows, questions = [], report.look_first or []
    room = _MAX_QUESTION - max((len(question.query_id) for question in questions), default=0)
    for question in questions:
        counts = [
            "-" if count is None else f"{count.n_found}/{count.n_runs}"
            for count in (question.primary, question.other)
        ]
        best = "" if question.other is None else quoted(f"{question.other.strategy} ")
        stated = "-" if question.miss_rate is None else f"{question.miss_rate:.2f}"
        rows.append(
            [
                *(quoted(question.query_id, _MAX_ID), counts[0], f"{best}{counts[1]}"),
                f"{stated} {question.status}",
                snippet(question.text, max(room, _FOLDED)),
            ]
        )
    if rows:
        title = "Look at first: questions that the primary strategy misses (rag-eval explain ID)"
        columns = ["id", ">found", "best other", "stated miss rate", "question"]
        yield Sheet(title, columns, rows, unbroken=[0, 2, 3])


# ---- Miss rates of a report: observed rates, predicted rates, and the reasons of their status.

LEVEL: Final = 0.9
_MAX_UNMET: Final = 3


def k_for(entry: StrategyCalibration) -> str:
    """Write the one K that covers LEVEL of the questions; a dash for none."""
    rule = entry.k_for(LEVEL)
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
                f"{estimate(seen.stated if isinstance(seen.stated, Figure) else None)}",
                seen.status,
                estimate(None if validation is None else validation.skill),
                k_for(entry),
            ]
        )
    title = (
        f"Miss rates, {part.level} level (95 % intervals; "
        "skill: of predictions for groups that were not fitted)"
    )
    columns = ["strategy", f">{part.target}@{part.k}", ">judged", ">stated", "status", ">skill"]
    yield Sheet(title, [*columns, f">K for {LEVEL:.0%}"], rows, unbroken=[0, 4])
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
        if change := describe_promotion(entry):
            changes.setdefault(change, []).append(quoted(other))
    yield from (f"{change} for {', '.join(names)}" for change, names in changes.items())
    if isinstance(answers := part.answers, AnswerConfidences):
        grounded = answers.synthesis_confidence
        yield (
            f"mean confidence of the {grounded.n_scored} of {answers.n} answers with statements: "
            f"{estimate(grounded)} grounded, {estimate(answers.final_confidence)} discounted by "
            f"the miss rate, {estimate(answers.calibrated_confidence)} calibrated"
        )
    if part.iterative:
        yield _rounds(part.iterative)


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


def describe_refusal(name: str, entry: StrategyCalibration, limit: int) -> Iterator[str]:
    """Say why a strategy is not calibrated."""
    if entry.refused:
        yield f"{quoted(name)} is not calibrated: {quoted(entry.refused, limit)}"


def _describe_account(row: Mapping[str, Any]) -> list[str]:
    return [
        row["strategy"],
        f"{row['triggered']:,}/{row['questions']:,}",
        f"{row['recovered']:,}",
        f"{row['lost']:,}",
        f"{row['extra_queries']:,}, {row['extra_seconds']:.1f} s",
        interval(row["delta"], row["ci_low"], row["ci_high"], "+"),
        worth(row["n_effective"]),
        row["verdict"],
    ]


def _rounds(iterative: Mapping[str, IterativeAccount]) -> Sheet:
    """Show what the rounds of iterative strategies recovered, lost and cost."""
    rows = [
        [quoted(f"{name} over {rounds.base}"), *_describe_account(row)]
        for name, rounds in iterative.items()
        for row in rounds.accounts
    ]
    columns = ["strategy", "expansion", ">expanded", ">recovered", ">lost", ">extra queries"]
    columns += [">recall after - before", ">worth", "verdict"]
    title = "Iterative retrieval: misses recovered and hits lost, of the expanded wordings"
    return Sheet(title, columns, rows, unbroken=[1])


# ---- A whole report.

_SHORT: Final = (
    *(_headline, _strategies, _changes, _warnings),
    *(_verdict, _look_first),
)
"""Sections of the one screen that a run prints, in order."""
_FULL: Final = (
    *(_headline, _inputs, _measures, _comparisons, _stability, _answers, _ragas),
    *(_miss_rates, _guard, _warnings, _trust, _changes, _gates, _look_first),
)
_APART: Final = {
    _strategies,
    _verdict,
    _look_first,
    _measures,
    _comparisons,
    _answers,
    _ragas,
    _miss_rates,
    _gates,
}
"""Sections with an empty line before them."""


def show_report(console: "Console", report: Report, *, short: bool = False) -> None:
    """Print all sections of a report, or one screen of them."""
    for section in _SHORT if short else _FULL:
        if parts := list(section(report)):
            if section in _APART:
                console.print()
            print_parts(console, parts, wrap=short)


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
        f"more    {command} show, {command} explain ID, {command} view",
        f"try     {command} init NAME --docs DIR  (your own documents)" if is_first else "",
        reuse,
    ]
    files = [
        (
            f"report  {folder / 'retrieval-metrics.json'}  "
            f"(content_hash {report.content_hash[:16]}, run {report.run_id})"
        ),
        f"tables  {folder / 'measures.csv'}, {folder / 'per-query.parquet'}, {folder}/run-*.trec",
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
