"""Citation payloads: a chunk's payload, and the rules that make a citation record valid.

A record is a payload (`citation_payload.schema.json`) with facts of the citing answer. `validate`
tries every rule of `rag_eval.core.types.CODES` on every record of a run.
"""

import dataclasses
import functools
import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import JsonValue

from rag_eval.core.arrays import BoolArray
from rag_eval.core.types import (
    CODES,
    ELLIPSIS,
    MAX_WINDOW,
    PAYLOAD_FIELDS,
    CitedSpan,
    Evidence,
    ScoredChunk,
    Window,
)
from rag_eval.corpus.analyzer import count_tokens, token_spans
from rag_eval.corpus.masking import FILL, mask_shown_address, masked_text

# ---- The live index that citations are checked against


class Place(NamedTuple):
    """A range of a document's characters, with the section_id of a snippet."""

    doc_id: str
    start: int
    end: int
    section_id: str = ""

    def meets(self, start: int, end: int) -> bool:
        """Tell whether the range shares a character with start:end of its document."""
        return self.start < end and start < self.end


class LiveIndex:
    """Facts of one corpus revision and of the indexes of every strategy over it."""

    def __init__(
        self,
        documents: pd.DataFrame,
        sections: pd.DataFrame,
        chunks: pd.DataFrame,
        models: Mapping[str, str],
        analyzer: str,
    ) -> None:
        doc_ids, texts = documents["doc_id"].tolist(), documents["text"].tolist()
        self.texts: dict[str, str] = dict(zip(doc_ids, texts, strict=True))
        self.revs: dict[str, str] = dict(zip(doc_ids, documents["rev"].tolist(), strict=True))
        urls = documents["source_url"].tolist()
        self.urls: dict[str, str] = dict(zip(doc_ids, urls, strict=True))
        self.sections = _read_places(sections, "section_id")
        self.snippets = _read_places(chunks, "chunk_id", "section_id")
        self.models = models
        """Index hash -> embedding model as payloads state it."""
        self.analyzer = analyzer
        self._masked = functools.lru_cache(maxsize=64)(lambda doc: masked_text(self.texts[doc]))
        self._words = functools.lru_cache(maxsize=1024)(lambda doc: token_spans(self.texts[doc]))

    def locate(self, doc_id: str, offsets: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return offsets of a known document as characters; None beyond the document's end."""
        start, end = offsets["start"], offsets["end"]
        if offsets["unit"] == "char":
            return (start, end) if end <= len(self.texts[doc_id]) else None
        words = self._words(doc_id)
        return (words[start][0], words[end - 1][1]) if end <= len(words) else None

    def passages(self, doc_id: str, start: int, end: int, *, masked: bool) -> Iterator[str]:
        """Yield the text of a range; with `masked`, also the text masked in and out of context."""
        part = self.texts[doc_id][start:end]
        yield part
        if masked:
            yield self._masked(doc_id)[start:end]
            yield masked_text(part)

    def complete(self, cited: "Record", rank: int) -> "dict[str, Any]":
        """Complete a citation of the auditable block as the payload of its snippet.

        `rank`, from 1, is its place among the citations of its answer, and gives ranks and scores.
        A citation of an unknown snippet is marked `in_evidence: false`.
        """
        fields = {name: value for name, value in cited.items() if value is not None}
        snippet_id = _get_text(cited, "snippet_id")
        if snippet_id is None or snippet_id not in self.snippets:
            return {**fields, "in_evidence": False}
        doc_id, start, end, section_id = self.snippets[snippet_id]
        index_hash, model = next(iter(self.models.items()))
        return {
            "doc_id": doc_id,
            "section_id": section_id,
            "snippet_id": snippet_id,
            "source_url": self.urls[doc_id],
            "offsets": {"start": start, "end": end, "unit": "char"},
            "tokens": count_tokens(self.texts[doc_id][start:end]),
            "index_hash": index_hash,
            "embed_model": model,
            "analyzer": self.analyzer,
            "rev": self.revs[doc_id],
            "score_raw": 1 / rank,
            "score_norm": 1 / rank,
            "k_pos": rank,
            "k_final": rank,
            "kind": "recorded",
            **fields,
        }

    def has_in_section(self, section_id: str, snippet: Place) -> bool:
        """Tell whether a snippet has this section_id or overlaps the section."""
        if section_id == snippet.section_id:
            return True
        section = self.sections.get(section_id)
        if section is None or section.doc_id != snippet.doc_id:
            return False
        return snippet.meets(section.start, section.end)


def _read_places(frame: pd.DataFrame, name: str, *more: str) -> dict[str, Place]:
    columns = [frame[column].tolist() for column in ("doc_id", "start", "end", *more)]
    return dict(zip(frame[name].tolist(), map(Place, *columns), strict=True))


def _normalise(text: str) -> str:
    """Return text as quotes are compared: NFC, single blanks."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _says(passage: str, quote: str, chars: Any) -> bool:
    """Tell whether a quote equals a passage, or the beginning if the record states a cut."""
    plain = _normalise(passage)
    if passage == quote or plain == _normalise(quote):
        return True
    head = _normalise(quote.removesuffix(ELLIPSIS))
    cut = _is_whole(chars, 1) and chars > len(quote) and quote.endswith(ELLIPSIS)
    return bool(cut and head) and plain.startswith(head)


# ---- The rules of a record. A rule returns the field that breaks it, "" for a sound record, or
# ---- None for a record without the facts.

Record = Mapping[str, Any]
Finding = tuple[str, str]
"""Code of a broken rule, and the field that breaks the rule."""
Rule = Callable[[Record, LiveIndex | None], str | None]

TEXTS = ("doc_id", "section_id", "snippet_id", "source_url", "index_hash", "analyzer", "rev")
"""Required fields that are text and not blank."""
UNITS = ("char", "token")
MIN_QUOTE = 2
"""Least number of letters and digits of a quote, because any text has a shorter quote."""
MAX_INTEGER = 2**53 - 1
"""Largest whole number that every JSON reader reads exactly."""
MAX_FLOAT = 1.7976931348623157e308
ROUNDING = 1e-9
"""Tolerance of normalised scores outside [0, 1], because a sum of two products rounds."""


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not value.isspace()


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_INTEGER


def _is_number(value: object, low: float = -MAX_FLOAT, high: float = MAX_FLOAT) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _is_empty(record: object) -> bool:
    """Tell whether a record is no object, or an object without any payload field."""
    return not isinstance(record, Mapping) or record.keys().isdisjoint(PAYLOAD_FIELDS)


def _get_text(record: Record, name: str) -> str | None:
    value: Any = record.get(name)
    return value if _is_text(value) else None


def _is_outside(record: Record) -> bool:
    """Tell whether a record is not stated to be in the evidence; only true and null state it."""
    in_evidence = record.get("in_evidence")
    return in_evidence is not None and in_evidence is not True


def _read_name(value: object) -> str | None:
    """Return a query_id or segment as text, so that 0 and "0" are the same; None for none."""
    return None if value is None else str(value).strip()


def _need(name: str, is_sound: Callable[[object], bool]) -> Rule:
    return lambda record, _: "" if is_sound(record.get(name)) else name


def _wrong_offsets(offsets: object) -> str:
    """Return the field of the first wrong part of the offsets; empty for correct offsets."""
    if not isinstance(offsets, Mapping):
        return "offsets"
    start, end, unit = (offsets.get(name) for name in ("start", "end", "unit"))
    if not _is_whole(start, 0):
        return "offsets.start"
    if not _is_whole(end, 1) or not start < end:  # type: ignore[operator]  # both are whole
        return "offsets.end"
    return "" if isinstance(unit, str) and unit in UNITS else "offsets.unit"


def _place(record: Record, live: LiveIndex | None) -> tuple[int, int] | None:
    """Return the readable offsets of a known document as characters; None beyond its end."""
    doc_id, offsets = _get_text(record, "doc_id"), record.get("offsets")
    if live is None or doc_id not in live.texts or not offsets or _wrong_offsets(offsets):
        return None
    return live.locate(doc_id, offsets)


def _check_offsets(record: Record, live: LiveIndex | None) -> str | None:
    offsets, doc_id = record.get("offsets"), _get_text(record, "doc_id")
    if offsets is None or (wrong := _wrong_offsets(offsets)):
        return None if offsets is None else wrong
    if live is None or doc_id not in live.texts:
        return ""
    place, snippet = _place(record, live), live.snippets.get(_get_text(record, "snippet_id") or "")
    if place is None:
        return "offsets.end"
    outside = snippet is not None and snippet.doc_id == doc_id and not snippet.meets(*place)
    return "offsets" if outside else ""


def _check_score(record: Record, _: LiveIndex | None) -> str:
    raw, norm = record.get("score_raw"), record.get("score_norm")
    if not (_is_number(raw) or (raw is None and norm is not None)):
        return "score_raw"
    return "" if norm is None or _is_number(norm, -ROUNDING, 1 + ROUNDING) else "score_norm"


def _check_rank(record: Record, _: LiveIndex | None) -> str:
    rerank, final = record.get("rerank_score"), record.get("k_final")
    if not _is_whole(record.get("k_pos"), 1):
        return "k_pos"
    if rerank is not None and not _is_number(rerank):
        return "rerank_score"
    due = rerank is not None or final is not None
    return "k_final" if due and not _is_whole(final, 1) else ""


def _match_live(name: str, find: Callable[[Record, LiveIndex], Collection[str] | None]) -> Rule:
    """Make the rule that a text is one of the values that the live index accepts."""

    def check(record: Record, live: LiveIndex | None) -> str | None:
        value = _get_text(record, name)
        accepted = None if live is None else find(record, live)
        if value is None or accepted is None:
            return None
        return name if value not in accepted else ""

    return check


def _find_rev(record: Record, live: LiveIndex) -> Collection[str] | None:
    rev = live.revs.get(_get_text(record, "doc_id") or "")
    return None if rev is None else (rev,)


def _find_url(record: Record, live: LiveIndex) -> Collection[str] | None:
    url = live.urls.get(_get_text(record, "doc_id") or "")
    return None if url is None else (url, mask_shown_address(url))


def _check_snippet(record: Record, live: LiveIndex | None) -> str | None:
    names = (_get_text(record, name) for name in ("snippet_id", "doc_id", "section_id"))
    snippet_id, doc_id, section_id = names
    if live is None or snippet_id is None:
        return None
    snippet = live.snippets.get(snippet_id)
    if snippet is None:
        return "snippet_id"
    if doc_id is not None and doc_id != snippet.doc_id:
        return "doc_id"
    is_inside = section_id is None or live.has_in_section(section_id, snippet)
    return "" if is_inside else "section_id"


def _check_quote(record: Record, live: LiveIndex | None) -> str | None:
    quote = record.get("quote")
    if quote is not None and not isinstance(quote, str):
        return "quote"
    if quote and sum(map(str.isalnum, quote)) < MIN_QUOTE:
        return "quote"
    place = _place(record, live)
    if live is None or place is None or not quote:
        return None
    passages = live.passages(record["doc_id"], *place, masked=FILL in quote)
    is_there = any(_says(passage, quote, record.get("quote_chars")) for passage in passages)
    return "" if is_there else "quote"


def _check_order(record: Record, _: LiveIndex | None) -> str | None:
    first = record.get("cited_before_answer")
    return None if first is None else ("" if first is True else "cited_before_answer")


_RULES: dict[str, Rule] = {
    **{f"missing_{name}": _need(name, _is_text) for name in TEXTS},
    "missing_offsets": _need("offsets", lambda value: value is not None),
    "missing_tokens": _need("tokens", lambda value: _is_whole(value, 0)),
    "missing_embed_model": _need("embed_model", lambda value: isinstance(value, str)),
    "bad_offsets": _check_offsets,
    "missing_score": _check_score,
    "trace_incomplete": _check_rank,
    "mismatch_index_hash": _match_live("index_hash", lambda _, live: live.models),
    "analyzer_mismatch": _match_live("analyzer", lambda _, live: (live.analyzer,)),
    "rev_mismatch": _match_live("rev", _find_rev),
    "unknown_snippet": _check_snippet,
    "source_url_mismatch": _match_live("source_url", _find_url),
    "quote_mismatch": _check_quote,
    "explained_before_cited": _check_order,
}
"""Rules for a single record, by code."""


# ---- Every rule on every citation of a run


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """Result of a validation."""

    failures: tuple[tuple[Finding, ...], ...]
    """Every failing (code, field) of each record, in the order of CODES; empty for a sound one."""
    tried: Mapping[str, int]
    """Number of records on which each code's rule was tried: the denominators of `counts`."""
    live: bool
    """Whether there was a live index."""
    n_refusals: int = 0
    """Number of answers that refuse, and therefore need no citation."""

    @functools.cached_property
    def counts(self) -> dict[str, int]:
        """Number of records under each failing code, or `ok`; 1 `empty_citations` without any."""
        counts = Counter(code for findings in self.failures for code, _ in findings)
        counts["ok"] = sum(not findings for findings in self.failures)
        counts["empty_citations"] += not (self.failures or self.n_refusals)
        return {code: counts[code] for code in CODES}

    @property
    def codes(self) -> tuple[str, ...]:
        """First failing code of each record, or `ok`."""
        return tuple(findings[0][0] if findings else "ok" for findings in self.failures)

    @property
    def fields(self) -> tuple[str, ...]:
        """Field of each record's first failing code; empty without a code or field."""
        return tuple(findings[0][1] if findings else "" for findings in self.failures)

    @property
    def valid(self) -> BoolArray:
        """Whether each record is ok, [n]."""
        return np.array([not findings for findings in self.failures], dtype=bool)

    @property
    def not_tried(self) -> tuple[str, ...]:
        """Codes whose rule was tried on no record, because the records lack the facts."""
        return tuple(code for code in CODES[:-1] if not self.tried[code])

    @property
    def passed(self) -> bool:
        """Whether the run has a record or a refusal, and every record is ok."""
        return bool(self.failures or self.n_refusals) and not any(self.failures)

    def joined(self, other: "Verdicts") -> "Verdicts":
        """Join two verdicts on the same records; for a common code, keep the field of `other`."""
        failures = tuple(
            _in_order({code: (code, field) for code, field in (*ours, *theirs)}.values())
            for ours, theirs in zip(self.failures, other.failures, strict=True)
        )
        tried = {code: max(self.tried[code], other.tried[code]) for code in CODES[:-1]}
        return dataclasses.replace(
            self, failures=failures, tried=tried, live=self.live or other.live
        )


def _in_order(findings: Collection[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: CODES.index(finding[0])))


def validate(
    records: Sequence[Record],
    live: LiveIndex | None = None,
    section_pairs: Collection[tuple[str, str]] | None = (),
    n_refusals: int = 0,
) -> Verdicts:
    """Try every rule on every record of one run; the records may hold anything.

    Without a live index, the rules of LIVE_CODES are not tried. `mixed_units` marks the records
    with the rarer unit (on a tie: `token`). `cross_section_reuse` marks a record whose section may
    not stand beside the sections that the same (query_id, segment) cited before. Records without a
    query_id belong to one answer. Records without a segment, or with -1, support the answer as one
    segment.
    `bad_segment` marks an unreadable segment or query_id, which would evade the rule.
    `unknown_snippet` also marks a snippet of another document or section than the
    record says. `bad_offsets` also marks offsets that do not overlap the named snippet.

    `section_pairs` holds section_ids that one segment may cite together, in either order; None
    allows all pairs.
    """
    tried: Counter[str] = Counter()
    failures = [_judge_alone(record, live, tried) for record in records]
    inside = [
        (record, findings)
        for record, findings in zip(records, failures, strict=True)
        if not _is_empty(record) and not _is_outside(record)
    ]
    _mark_units(inside, tried)
    allowed = None if section_pairs is None else {frozenset(pair) for pair in section_pairs}
    _mark_sections(inside, tried, allowed)
    tried["empty_citations"] += not (records or n_refusals)
    counts = {code: tried[code] for code in CODES[:-1]}
    return Verdicts(tuple(map(_in_order, failures)), counts, live is not None, n_refusals)


def _judge_alone(record: Record, live: LiveIndex | None, tried: Counter[str]) -> list[Finding]:
    """Try the rules that need no other record."""
    tried["empty_citations"] += 1
    if isinstance(record, Mapping) and _is_outside(record):
        tried["unknown_snippet"] += 1
        field = "snippet_id" if record["in_evidence"] is False else "in_evidence"
        return [("unknown_snippet", field)]
    if _is_empty(record):
        return [("empty_citations", "")]
    fields = {code: rule(record, live) for code, rule in _RULES.items()}
    tried.update(code for code, field in fields.items() if field is not None)
    return [(code, field) for code, field in fields.items() if field]


def _mark_units(records: Sequence[tuple[Record, list[Finding]]], tried: Counter[str]) -> None:
    """Mark the records of the rarer unit."""
    units: list[tuple[str, list[Finding]]] = []
    for record, findings in records:
        offsets: Any = record.get("offsets")
        unit = offsets.get("unit") if isinstance(offsets, Mapping) else None
        if isinstance(unit, str) and unit in UNITS:
            units.append((unit, findings))
    counts = Counter(unit for unit, _ in units)
    tried["mixed_units"] += len(units)
    rarer = "char" if counts["char"] < counts["token"] else "token"
    for unit, findings in units if len(counts) > 1 else ():
        if unit == rarer:
            findings.append(("mixed_units", "offsets.unit"))


def _mark_sections(
    records: Sequence[tuple[Record, list[Finding]]],
    tried: Counter[str],
    allowed: Collection[frozenset[str]] | None,
) -> None:
    """Mark unreadable segments, and sections that a segment may not cite beside its first ones."""
    accepted: dict[tuple[str | None, str | None], list[str]] = {}
    for record, findings in records:
        tried["bad_segment"] += 1
        if wrong := _wrong_segment(record):
            findings.append(("bad_segment", wrong))
            continue
        section = _get_text(record, "section_id")
        if section is None or allowed is None:
            continue
        tried["cross_section_reuse"] += 1
        sections = accepted.setdefault(_name_segment(record), [])
        if all(section == other or frozenset((section, other)) in allowed for other in sections):
            sections.append(section)
        else:
            findings.append(("cross_section_reuse", "section_id"))


def _wrong_segment(record: Record) -> str:
    """Return the field that names no segment of an answer; empty for a sound record."""
    segment, answer = record.get("segment"), record.get("query_id")
    if not (segment is None or _is_text(segment) or _is_whole(segment, -1)):
        return "segment"
    return "" if answer is None or _is_text(answer) or _is_whole(answer, 0) else "query_id"


def _name_segment(record: Record) -> tuple[str | None, str | None]:
    """Name the answer and the segment that a record supports; None for the whole answer."""
    segment = _read_name(record.get("segment"))
    return _read_name(record.get("query_id")), None if segment == "-1" else segment


# ---- From a retrieved chunk to a JSON object


def payload(chunk: ScoredChunk) -> dict[str, JsonValue]:
    """Make the payload of a chunk: plain JSON values, without the text and absent fields."""
    values = {name: getattr(chunk, name) for name in PAYLOAD_FIELDS}
    for name in ("offsets", "window"):
        values[name] = values[name] and dataclasses.asdict(values[name])
    return {
        name: value
        for name, value in values.items()
        if value is not None and not (isinstance(value, float) and math.isnan(value))
    }


def _narrowed(chunk: ScoredChunk, span: CitedSpan) -> dict[str, JsonValue]:
    """Make the payload of a chunk with the window around the cited span."""
    window, offsets = chunk.window, chunk.offsets
    if window is not None:
        pre, post = window.pre + span.start - offsets.start, window.post + offsets.end - span.end
        window = Window(max(min(pre, MAX_WINDOW), 0), max(min(post, MAX_WINDOW), 0))
    return payload(dataclasses.replace(chunk, window=window))


def citation_records(
    query_id: str, citations: Sequence[CitedSpan], evidence: Sequence[Evidence]
) -> list[dict[str, JsonValue]]:
    """Make records of an answer's citations, for `validate` and citations.jsonl.

    A record has the doc_id and offsets of the citation, not of the evidence. A citation outside the
    evidence has no payload and says `in_evidence: false`.
    """
    records = []
    for span in citations:
        inside = 0 <= span.evidence < len(evidence)
        record = _narrowed(evidence[span.evidence].chunk, span) if inside else {}
        record |= {
            "query_id": query_id,
            "segment": span.segment,
            "in_evidence": inside,
            **({"kind": evidence[span.evidence].kind} if inside else {}),
            "doc_id": span.doc_id,
            "offsets": {"start": span.start, "end": span.end, "unit": "char"},
        }
        if span.quote:
            record["quote"] = span.quote
        records.append(record)
    return records
