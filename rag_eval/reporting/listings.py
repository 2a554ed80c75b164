"""Print one question of a run, outcomes, claims, draws and chunks on a terminal.

Texts of strangers go through `quoted` or `mask_snippet`; rich markup in them is never read.
"""

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from rag_eval.core.errors import quoted
from rag_eval.core.types import FIXES, Answer, snippet
from rag_eval.corpus.masking import mask_shown_address, mask_snippet
from rag_eval.reporting.metrics_report import Outgoing
from rag_eval.reporting.terminal import make_table, print_parts

if TYPE_CHECKING:
    from rich.console import Console


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
    """Write the masked address of a source as the end of a line; empty without an address."""
    return f"  {quoted(mask_shown_address(address), _MAX_ANSWER_CHARS)}" if address else ""


def _describe_verdict(verdict: CitationVerdict, explanation: Explanation) -> str:
    if verdict.correct:
        return "matches the gold"
    if verdict.code != "ok":
        field = f" [{verdict.field}]" if verdict.field else ""
        return f"{verdict.code}{field}: {FIXES[verdict.code]}"
    if explanation.spans or not explanation.answerable:
        return "valid, but not the gold evidence"
    return "valid; the gold quotes no evidence for this question"


def _citations(explanation: Explanation, outgoing: Outgoing) -> Iterator[str]:
    answer = explanation.answer
    if not answer.citations:
        yield "  none"
    cited = zip(answer.citations, explanation.verdicts, outgoing.quotes, strict=True)
    for number, (span, verdict, quote) in enumerate(cited, 1):
        known = 0 <= span.evidence < len(answer.evidence)
        where = quoted(answer.evidence[span.evidence].token if known else quote.doc_id)
        right = _describe_verdict(verdict, explanation)
        yield f"  {number}. {where}  {right}{_link(quote.source_url)}"
        if span.quote:
            text = snippet(quote.text) or "(its source is shown above as far as it may be)"
            yield f"     {text}"


def _rejected(explanation: Explanation, outgoing: Outgoing) -> Iterator[str]:
    if explanation.rejected:
        yield "Rejected replies"
        for row in explanation.rejected:
            yield f"  attempt {row['attempt']}: {', '.join(row['codes'])}"
            for text in row["messages"]:
                yield f"     {snippet(outgoing.cut_copies(str(text)))}"
            yield f"     reply: {snippet(outgoing.cut_copies(str(row['reply'])))}"
        yield ""


def _gold(explanation: Explanation, outgoing: Outgoing) -> Iterator[str]:
    if not explanation.answerable:
        yield "  the corpus holds no answer: NOT FOUND is right"
        return
    targets = ", ".join(quoted(target) for target in explanation.targets) or "none judged"
    yield f"  documents: {targets}"
    if explanation.blocked:
        yield f"  blocked by the poisoning guard: {', '.join(explanation.blocked)}"
    for span in explanation.spans:
        yield (
            f"  {'cited ' if span.cited else 'missed'}  {quoted(span.doc_id)} "
            f"[{span.start}, {span.end})  {outgoing.line(span.text)}{_link(span.source_url)}"
        )


def _evidence(explanation: Explanation, outgoing: Outgoing) -> Iterator[str]:
    answer = explanation.answer
    cited = {span.evidence for span in answer.citations}
    if not answer.evidence:
        yield "  none"
    for place, item in enumerate(answer.evidence[:_MAX_EVIDENCE]):
        marks = ["cited"] if place in cited else []
        marks += ["gold document"] if item.chunk.doc_id in explanation.targets else []
        yield (
            f"  {place + 1:>2}. {quoted(item.token)}  {item.kind}, rank {item.chunk.k_final}, "
            f"score {item.chunk.score_norm:.3f}{'  <- ' + ', '.join(marks) if marks else ''}"
            f"{_link(item.chunk.source_url)}"
        )
        yield f"      {outgoing.line(item.chunk.text)}"
    if (more := len(answer.evidence) - _MAX_EVIDENCE) > 0:
        yield f"  ... and {more} more"


def explain_question(explanation: Explanation) -> Iterator[str]:
    """Yield the explanation of one question as lines of plain text."""
    answer, outgoing = explanation.answer, Outgoing(explanation.answer)
    signal = "" if answer.signal is None else f", signal {answer.signal:.2f}"
    text = outgoing.text
    if answer.outcome != "answered":
        codes = f" ({', '.join(answer.codes)})" if answer.codes else ""
        outcome = answer.outcome.replace("_", " ") if answer.text else answer.outcome
        text = f"{outcome}{codes}" + (f": {outgoing.text}" if answer.text else "")
    measures = [
        f"{name} {float(explanation.measures[name]):.2f}"
        for name in ("coverage", "groundedness")
        if explanation.measures[name] is not None
    ]
    use = str(explanation.measures["gap_reason"]).replace("_", " ")
    attempts = f"{answer.attempts} attempt{'s' if answer.attempts != 1 else ''}"
    yield (
        f"Question  {quoted(answer.query_id)}  "
        f"({quoted(explanation.gold_set)}, run {quoted(explanation.run_id)})"
    )
    yield f"  {outgoing.line(explanation.question, _MAX_ANSWER_CHARS)}"
    yield ""
    source = quoted(explanation.strategy)
    yield f"Answer  ({answer.mode}, evidence from {source}, {attempts}{signal})"
    yield f"  {snippet(text, _MAX_ANSWER_CHARS)}"
    yield f"  {'; '.join([*measures, f'use of what was retrieved: {use}'])}"
    yield ""
    yield from _rejected(explanation, outgoing)
    yield "Citations"
    yield from _citations(explanation, outgoing)
    yield from ("", "Gold")
    yield from _gold(explanation, outgoing)
    yield from ("", f"Evidence  ({len(answer.evidence)} pieces)")
    yield from _evidence(explanation, outgoing)


# ---- Outcomes, claims and draws.

_SHORT_ID, _SHORT_CELL, _MAX_CELL = 12, 40, 80


def _share(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"


def _moment(at: str | None) -> str:
    return "-" if not at else f"{at[:10]} {at[11:16]}"


def _missed_content(row: Mapping[Any, Any]) -> str:
    return "; ".join(
        mask_snippet(row[name], _MAX_CELL) for name in ("missed_content", "note") if row[name]
    )


def show_outcomes(console: "Console", frame: pd.DataFrame, limit: int) -> None:
    """Print the newest `limit` outcomes, and the totals of all outcomes."""
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
    judged = frame["missed"].notna()
    groups = frame.loc[judged, "group_id"].nunique()
    known = judged & frame["inclusion_probability"].notna()
    fit = int((known & (frame["gold_source"] != "user_feedback")).sum())
    total = (
        f"{min(limit, len(frame))} of {len(frame):,} outcomes; judged {int(judged.sum()):,} in "
        f"{groups:,} groups, missed {int((frame['missed'] == 1).sum()):,}; {fit:,} with a known "
        "probability can fit a calibrator"
    )
    print_parts(console, [make_table("", columns, rows), total])


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
    counts = collections.Counter((row["strategy"], row["strategy_fingerprint"]) for row in rows)
    groups = len({row["group_id"] for row in rows})
    print_parts(
        console,
        [
            make_table("", columns, newest),
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
    advice = (
        f"{len(draws)} draws. A draw that is judged in part only stands for all claims if what "
        "was left unjudged was left by chance."
    )
    print_parts(console, [make_table("", [*columns, ">judged"], rows), advice])


def show_feedback(console: "Console", frame: pd.DataFrame, limit: int) -> None:
    """Print claims with feedback of users and without an audit."""
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
    advice = (
        f"{min(limit, len(frame))} of {len(frame):,} claims with feedback and no audit. Feedback "
        "is mostly complaints: it calls for audits and never fits a calibrator."
    )
    print_parts(console, [make_table("", columns, rows), advice])


# ---- The findings of the guard.

_MAX_ID, _MAX_REASONS = 200, 600


def show_listing(console: "Console", held_back: Any) -> None:
    """Print the chunks that the guard holds back (`HeldBack` of `rag_eval.pipeline.report`)."""
    rows = []
    for row in held_back.rows:
        by = f"(allowed by {quoted(row['allowed_by'], 60)}) " if row["allowed_by"] else ""
        rows.append(
            [
                row["verdict"],
                quoted(row["chunk_id"][:_SHORT_ID]),  # The commands accept the start of an id.
                quoted(row["doc_id"][:_MAX_ID]),
                "-" if math.isnan(row["trust"]) else f"{row['trust']:.2f}",
                quoted(by + ", ".join(row["reasons"]), _MAX_REASONS),
            ]
        )
    total = (
        f"{quoted(held_back.gold_set)}: {held_back.n_blocked} of {held_back.n_chunks:,} chunks "
        f"blocked, {held_back.n_warned} warned about"
    )
    print_parts(console, filter(None, [total, held_back.note]))
    if rows:
        columns = ["verdict", "chunk", "document", ">trust", "reasons"]
        console.print(make_table("", columns, rows))


def show_chunk(console: "Console", facts: Mapping[str, Any]) -> None:
    """Print the verdict, the source and the findings of one chunk."""
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
    print_parts(console, [*lines, f"text      {mask_snippet(facts['text'])}"])
