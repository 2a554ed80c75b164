"""Write what leaves the home: the report, answers, tables beside the report, and outcomes.

The report is `retrieval-metrics.json`. Answers are masked, and quotes are snippets.
"""

import dataclasses
import datetime as dt
import functools
import itertools
import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic_core import to_jsonable_python

from rag_eval.core.records import Open
from rag_eval.core.types import (
    ELLIPSIS,
    SNIPPET_CHARS,
    Answer,
    CitedSpan,
    Evidence,
    is_joined,
    snippet,
)
from rag_eval.corpus.masking import (
    MAX_READ_CHARS,
    covered_with,
    labelled_values,
    mask_shown_address,
    mask_snippet,
    masked_text,
    masked_tree,
)
from rag_eval.gates.gate import GatePart
from rag_eval.measures.answers import GapFlag, RetrievalGap, UnsupportedSentence
from rag_eval.measures.citation_support import SentenceSupport
from rag_eval.measures.support import CODE, Gap
from rag_eval.reporting.report import SCHEMA_VERSION, Report
from rag_eval.storage.hashing import digest

# ---- The report: its shape, its content_hash, and its JSON

_UNPRINTABLE = re.compile(
    r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ud800-\udfff\ufeff]"
)

REPORT_FILE = "retrieval-metrics.json"

VOLATILE: Final = frozenset(
    "cacheHitRate cacheHitRate_reason calibration code content_hash drift embeddings history "
    "look_first previous previous_reason reused run_id timestamp uncertainty".split()
)
"""Top-level keys that may differ between two runs on equal inputs."""

IDS = frozenset({"query_id", "hash", "index_hash", "chunks_hash", "version", "file"})
"""Keys whose values are names, which are never masked."""
MAX_PROBLEM_CHARS = {
    "found": SNIPPET_CHARS,
    "message": 2 * SNIPPET_CHARS,
    "accepted": 2 * SNIPPET_CHARS,
}

VOLATILE_OF_STRATEGY: Final = frozenset({"cost_per_1k", "latency_ms"})
VOLATILE_MEASURES: Final = ("latency", "cache_hit_rate", "cost")


def _leave_out(part: Mapping[str, Any], names: Container[str]) -> Open:
    return {key: value for key, value in part.items() if key not in names}


def _stable_part(report: Mapping[str, Any]) -> Open:
    """Leave out everything that may differ between two runs on equal inputs.

    A gate on a figure that may differ keeps only `id`, `required` and `accepted`.
    """
    part = _leave_out(report, VOLATILE)
    part["strategies"] = [
        _leave_out(entry, VOLATILE_OF_STRATEGY) for entry in report.get("strategies", [])
    ]
    part["answers"] = _leave_out(report.get("answers", {}), {"usage", "verifier_usage"})
    part["trust"] = _leave_out(report.get("trust", {}), {"as_of"})
    part["gates"] = [_stable_gate(gate) for gate in report.get("gates", [])]
    return part


def _stable_gate(gate: Mapping[str, Any]) -> Open:
    evidence = gate.get("evidence", {})
    is_volatile = str(evidence.get("measure", "")).startswith(VOLATILE_MEASURES)
    if gate.get("gate") != "regression" and not is_volatile:
        return dict(gate)
    asked = {name: gate.get(name) for name in ("id", "required")}
    return {**asked, "accepted": evidence.get("accepted")}


def content_hash(report: Mapping[str, Any]) -> str:
    """Hash the results of a report; equal for equal inputs, at any time and with any cache."""
    return digest(_stable_part(report), 64)


def _outgoing_body(body: Mapping[str, Any]) -> Open:
    """Mask every text of a report, and shorten the quotes in warnings about the gold set."""
    masked: Open = masked_tree(dict(body), IDS)
    gold: Any = masked.get("gold", {})
    for warning in gold.get("warnings", ()):
        for name, limit in MAX_PROBLEM_CHARS.items():
            if isinstance(warning.get(name), str):
                warning[name] = mask_snippet(warning[name], limit)
    return masked


def make_draft(fields: Mapping[str, Any], now: dt.datetime) -> Report:
    """Make a report without its gates from the joined fields; its texts are masked.

    `now`: time of the run, with a time zone.
    """
    moment = now.astimezone(dt.UTC)
    return Report.model_validate(
        {
            **_outgoing_body(to_jsonable_python(fields)),
            "schema_version": SCHEMA_VERSION,
            "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "run_id": f"{moment.strftime('%Y%m%dT%H%M%S%f')[:-3]}Z-{'0' * 8}",
            "content_hash": "0" * 64,
        }
    )


def finish(draft: Report, gates: Iterable[GatePart]) -> Report:
    """Add the gates, the hash of the contents and the run id to a report."""
    masked = [GatePart.model_validate(masked_tree(gate.dump(), IDS)) for gate in gates]
    report = draft.model_copy(update={"gates": masked})
    found = content_hash(report.dump())
    run_id = f"{draft.run_id.partition('-')[0]}-{found[:8]}"
    return report.model_copy(update={"content_hash": found, "run_id": run_id})


def dumps(report: Mapping[str, Any]) -> str:
    """Write JSON for a file: sorted keys, indent of two spaces, LF, no NaN.

    Characters that a terminal would act on are escaped, so that printing the file is safe.
    """
    text = json.dumps(report, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match.group()):04x}", text) + "\n"


# ---- Answers on their way out of the home: masked, with snippets of what they quote.


@dataclasses.dataclass(frozen=True, slots=True)
class OutgoingQuote:
    """The reported part of a citation.

    `text`: the quote, or its beginning and an ellipsis; empty for a citation without a quote.
    `chars`: number of characters of the whole quote if `text` is shorter; else None.
    `source_url`: address of the cited evidence; None if the citation names no evidence.
    `doc_id`: as cited; a masked snippet if the citation names no evidence.
    """

    text: str
    chars: int | None
    source_url: str | None
    doc_id: str

    @property
    def fields(self) -> Open:
        """Fields of a report: `quote`, and `quote_chars` if the quote is cut."""
        return {"quote": self.text, **({} if self.chars is None else {"quote_chars": self.chars})}


class Outgoing:
    """One answer as a report may show it: masked, with short quotes.

    Values that only a label of the evidence gives away are masked in all of its texts.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._secrets = labelled_values(item.chunk.text for item in answer.evidence)

    def _cover(self, text: str) -> str:
        return covered_with(masked_text(text), self._secrets)

    @functools.cached_property
    def text(self) -> str:
        """Masked text of the answer."""
        return self._cover(self._answer.text)

    @functools.cached_property
    def quotes(self) -> tuple[OutgoingQuote, ...]:
        """Reported part of each citation, in the order of the answer."""
        return tuple(map(self._quote, self._answer.citations))

    def line(self, text: str, limit: int = SNIPPET_CHARS) -> str:
        """Return a masked snippet of any text that stands beside the answer."""
        return snippet(self._cover(text[:MAX_READ_CHARS]), limit)

    def names(self, place: int) -> tuple[str, ...]:
        """Return the ids and the revision of the cited evidence, which are never masked."""
        item = self._evidence(self._answer.citations[place])
        chunk = item and item.chunk
        names = ("doc_id", "section_id", "snippet_id", "index_hash", "rev")
        return tuple(getattr(chunk, name) for name in names) if chunk else ()

    def token(self, place: int) -> str:
        """Return the token of the cited evidence, or the masked name of a fabricated citation."""
        item = self._evidence(self._answer.citations[place])
        return item.token if item else self.quotes[place].doc_id

    def _evidence(self, span: CitedSpan) -> Evidence | None:
        inside = 0 <= span.evidence < len(self._answer.evidence)
        return self._answer.evidence[span.evidence] if inside else None

    def _quote(self, span: CitedSpan) -> OutgoingQuote:
        quote = self._cover(span.quote)
        text, chars = quote, None
        if len(quote) > SNIPPET_CHARS:
            end = SNIPPET_CHARS - 1
            while end and is_joined(quote[end]):
                end -= 1
            text, chars = quote[:end] + ELLIPSIS, len(quote)
        if (item := self._evidence(span)) is None:
            return OutgoingQuote(text, chars, None, self.line(span.doc_id))
        return OutgoingQuote(text, chars, mask_shown_address(item.chunk.source_url), span.doc_id)


def outgoing_record(record: Mapping[str, Any], outgoing: Outgoing, place: int) -> Open:
    """Make the line of citations.jsonl for the citation at `place`: masked, with a short quote.

    A user's system may state any text under any key, so every text is a snippet.
    """
    quote, ids = outgoing.quotes[place], outgoing.names(place)
    line = {
        name: value if name == "query_id" or value in ids else _outgoing_value(value, outgoing)
        for name, value in record.items()
    }
    if isinstance(record.get("source_url"), str):
        line["source_url"] = mask_shown_address(record["source_url"])
    if isinstance(record.get("quote"), str):
        del line["quote"]
        line |= {name: value for name, value in quote.fields.items() if value != ""}
    if record.get("in_evidence") is False and isinstance(record.get("doc_id"), str):
        line["doc_id"] = outgoing.line(record["doc_id"])
    return line


def _outgoing_value(value: Any, outgoing: Outgoing) -> Any:
    return outgoing.line(value) if isinstance(value, str) else masked_tree(value, keep=())


def outgoing_row(row: Mapping[str, Any], outgoing: Outgoing | None) -> Open:
    """Mask a row about a question; messages and reply become snippets."""
    line: Open = masked_tree(dict(row))
    if outgoing is None:
        return line
    for name in ("messages", "reply"):
        value = row.get(name)
        if isinstance(value, str):
            line[name] = outgoing.line(value)
        elif isinstance(value, list):
            line[name] = [outgoing.line(str(item)) for item in value]
    return line


MAX_FLAGGED = 50
"""Most answers, and most sentences, that the report names."""


def report_gaps(answers: Sequence[Answer], gaps: Mapping[int, Gap]) -> RetrievalGap:
    """Count the answers that leave their evidence unused, and name the first ones."""
    unused = [(answers[at], gap.reason) for at, gap in gaps.items() if gap.violation]
    flagged = [  # `Outgoing` masks secrets that only the evidence labels
        GapFlag(query_id=answer.query_id, reason=reason, answer=snippet(Outgoing(answer).text))
        for answer, reason in unused[:MAX_FLAGGED]
    ]
    return RetrievalGap(
        code=CODE,
        severity="warning",
        n_checked=len(gaps),
        n_flagged=len(unused),
        flagged=flagged,
    )


def name_unsupported(
    answers: Sequence[Answer], unsupported: Mapping[str, Sequence[SentenceSupport]]
) -> list[UnsupportedSentence]:
    """Make the rows of the report for the first sentences that their citations do not support."""
    pairs = ((one, weak) for one in answers for weak in unsupported.get(one.query_id, ()))
    rows: list[UnsupportedSentence] = []
    for answer, weak in itertools.islice(pairs, MAX_FLAGGED):
        outgoing = Outgoing(answer)
        row = UnsupportedSentence(
            query_id=answer.query_id,
            sentence=outgoing.line(weak.text),
            citations=[outgoing.token(place) for place in weak.places],
            score=weak.score,
            verdict="partly" if weak.verdict == "partly" else "unsupported",
            passage=outgoing.line(weak.passage),
            conflict=outgoing.line(weak.conflict),
            lacks=outgoing.line(" ".join(weak.lacks)),
        )
        rows.append(row)
    return rows
