"""Citation payloads: their rules, and how chunks and search results of frameworks become payloads.

A record is a payload (`citation_payload.schema.json`) with facts of the citing answer. `validate`
tries every rule of `rag_eval.core.types.CODES` on every record of a run.
"""

import dataclasses
import functools
import math
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import JsonValue

from rag_eval.core.arrays import BoolArray
from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.core.types import (
    CODES,
    ELLIPSIS,
    FIXES,
    PAYLOAD_FIELDS,
    ScoredChunk,
)
from rag_eval.corpus.analyzer import count_tokens, token_spans
from rag_eval.corpus.masking import FILL, mask_shown_address, masked_text

Record = Mapping[str, Any]

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
    """Facts of one corpus revision and of the indexes of every strategy over it.

    `models` has the embedding model, as payloads state it, of each index hash.
    """

    def __init__(
        self,
        documents: pd.DataFrame,
        sections: pd.DataFrame,
        chunks: pd.DataFrame,
        models: Mapping[str, str],
        analyzer: str,
    ) -> None:
        ids = documents["doc_id"].tolist()
        self.texts, self.revs, self.urls = (
            dict[str, str](zip(ids, documents[name].tolist(), strict=True))
            for name in ("text", "rev", "source_url")
        )
        self.sections = _read_places(sections, "section_id")
        self.snippets = _read_places(chunks, "chunk_id", "section_id")
        self.models, self.analyzer = models, analyzer
        self._masked = functools.lru_cache(maxsize=64)(lambda doc: masked_text(self.texts[doc]))

    def locate(self, doc_id: str, offsets: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return offsets of a known document as characters; None beyond the document's end."""
        start, end = offsets["start"], offsets["end"]
        if offsets["unit"] == "char":
            return (start, end) if end <= len(self.texts[doc_id]) else None
        words = token_spans(self.texts[doc_id])
        return (words[start][0], words[end - 1][1]) if end <= len(words) else None

    def passages(self, doc_id: str, start: int, end: int, *, masked: bool) -> Iterator[str]:
        """Yield the text of a range; with `masked`, also the text masked in and out of context."""
        part = self.texts[doc_id][start:end]
        yield part
        if masked:
            yield self._masked(doc_id)[start:end]
            yield masked_text(part)

    def complete(self, cited: Record, rank: int) -> dict[str, Any]:
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
            **dict.fromkeys(("score_raw", "score_norm"), 1 / rank),
            **dict.fromkeys(("k_pos", "k_final"), rank),
            "kind": "recorded",
            **fields,
        }

    def has_in_section(self, section_id: str, snippet: Place) -> bool:
        """Tell whether a snippet has this section_id or overlaps the section."""
        section = self.sections.get(section_id)
        if section_id == snippet.section_id or section is None or section.doc_id != snippet.doc_id:
            return section_id == snippet.section_id
        return snippet.meets(section.start, section.end)


def _read_places(frame: pd.DataFrame, name: str, *more: str) -> dict[str, Place]:
    columns = [frame[column].tolist() for column in ("doc_id", "start", "end", *more)]
    return dict(zip(frame[name].tolist(), map(Place, *columns), strict=True))


# ---- The rules of a record. A rule returns the field that breaks it, or "".

Finding = tuple[str, str]
"""Code of a broken rule, and the field that breaks the rule."""
Rule = Callable[[Record, LiveIndex | None], str]

TEXTS = ("doc_id", "section_id", "snippet_id", "source_url", "index_hash", "analyzer", "rev")
"""Required fields that are text and not blank."""
UNITS = ("char", "token")
MIN_QUOTE = 2
"""Least number of letters and digits of a quote, because any text has a shorter quote."""
MAX_INTEGER = 2**53 - 1
"""Largest whole number that every JSON reader reads exactly."""
ROUNDING = 1e-9
"""Tolerance of normalised scores outside [0, 1], because a sum of two products rounds."""


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not value.isspace()


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_INTEGER


def _is_number(
    value: object, low: float = -sys.float_info.max, high: float = sys.float_info.max
) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _is_unset_or_true(value: object) -> bool:
    return value is None or value is True


def _get_text(record: Record, name: str) -> str | None:
    value: Any = record.get(name)
    return value if _is_text(value) else None


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


def _locate(record: Record, live: LiveIndex | None) -> tuple[int, int] | None:
    """Return the readable offsets of a known document as characters; None beyond its end."""
    doc_id, offsets = _get_text(record, "doc_id"), record.get("offsets")
    if live is None or doc_id not in live.texts or not offsets or _wrong_offsets(offsets):
        return None
    return live.locate(doc_id, offsets)


def _check_offsets(record: Record, live: LiveIndex | None) -> str:
    offsets, doc_id = record.get("offsets"), _get_text(record, "doc_id")
    wrong = "" if offsets is None else _wrong_offsets(offsets)
    if offsets is None or wrong or live is None or doc_id not in live.texts:
        return wrong
    place, snippet = _locate(record, live), live.snippets.get(_get_text(record, "snippet_id") or "")
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


def _match_live(name: str, find: Callable[[LiveIndex, str], Collection[str] | None]) -> Rule:
    """Make the rule that a text is one that the live index accepts for the doc_id."""

    def check(record: Record, live: LiveIndex | None) -> str:
        value, doc_id = _get_text(record, name), _get_text(record, "doc_id") or ""
        accepted = None if live is None or value is None else find(live, doc_id)
        return name if accepted is not None and value not in accepted else ""

    return check


def _list_addresses(live: LiveIndex, doc_id: str) -> Collection[str] | None:
    url = live.urls.get(doc_id)
    return None if url is None else (url, mask_shown_address(url))


def _check_snippet(record: Record, live: LiveIndex | None) -> str:
    names = (_get_text(record, name) for name in ("snippet_id", "doc_id", "section_id"))
    snippet_id, doc_id, section_id = names
    if live is None or snippet_id is None:
        return ""
    snippet = live.snippets.get(snippet_id)
    if snippet is None:
        return "snippet_id"
    if doc_id is not None and doc_id != snippet.doc_id:
        return "doc_id"
    is_inside = section_id is None or live.has_in_section(section_id, snippet)
    return "" if is_inside else "section_id"


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


def _check_quote(record: Record, live: LiveIndex | None) -> str:
    quote = record.get("quote")
    if not quote and (quote is None or isinstance(quote, str)):
        return ""
    if not isinstance(quote, str) or sum(map(str.isalnum, quote)) < MIN_QUOTE:
        return "quote"
    place = _locate(record, live)
    if live is None or place is None:
        return ""
    passages = live.passages(record["doc_id"], *place, masked=FILL in quote)
    is_there = any(_says(passage, quote, record.get("quote_chars")) for passage in passages)
    return "" if is_there else "quote"


_RULES: dict[str, Rule] = {
    **{f"missing_{name}": _need(name, _is_text) for name in TEXTS},
    "missing_offsets": _need("offsets", lambda value: value is not None),
    "missing_tokens": _need("tokens", lambda value: _is_whole(value, 0)),
    "missing_embed_model": _need("embed_model", lambda value: isinstance(value, str)),
    "bad_offsets": _check_offsets,
    "missing_score": _check_score,
    "trace_incomplete": _check_rank,
    "mismatch_index_hash": _match_live("index_hash", lambda live, _: live.models),
    "analyzer_mismatch": _match_live("analyzer", lambda live, _: (live.analyzer,)),
    "rev_mismatch": _match_live(
        "rev", lambda live, doc_id: (live.revs[doc_id],) if doc_id in live.revs else None
    ),
    "unknown_snippet": _check_snippet,
    "source_url_mismatch": _match_live("source_url", _list_addresses),
    "quote_mismatch": _check_quote,
    "explained_before_cited": _need("cited_before_answer", _is_unset_or_true),
}
"""Rules for a single record, by code."""


# ---- Every rule on every citation of a run


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """Result of a validation.

    `failures` are every failing (code, field) of each record, in the order of CODES; empty for a
    sound one. `n_refusals` answers refuse, and therefore need no citation.
    """

    failures: tuple[tuple[Finding, ...], ...]
    n_refusals: int = 0

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
    def passed(self) -> bool:
        """Whether the run has a record or a refusal, and every record is ok."""
        return bool(self.failures or self.n_refusals) and not any(self.failures)

    def joined(self, other: "Verdicts") -> "Verdicts":
        """Join two verdicts on the same records; for a common code, keep the field of `other`."""
        pairs = zip(self.failures, other.failures, strict=True)
        return Verdicts(tuple(_in_order(dict([*ours, *theirs]).items()) for ours, theirs in pairs))


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
    segment. `bad_segment` marks an unreadable segment or query_id, which would evade the rule.
    `unknown_snippet` also marks a snippet of another document or section than the record says.
    `bad_offsets` also marks offsets that do not overlap the named snippet.

    `section_pairs` holds section_ids that one segment may cite together, in either order; None
    allows all pairs.
    """
    failures: list[list[Finding]] = []
    inside: list[tuple[Record, list[Finding]]] = []
    for record in records:
        findings: list[Finding] = []
        failures.append(findings)
        in_evidence = record.get("in_evidence") if isinstance(record, Mapping) else None
        if not _is_unset_or_true(in_evidence):
            field = "snippet_id" if in_evidence is False else "in_evidence"
            findings.append(("unknown_snippet", field))
        elif not isinstance(record, Mapping) or record.keys().isdisjoint(PAYLOAD_FIELDS):
            findings.append(("empty_citations", ""))
        else:
            findings += [
                (code, field) for code, rule in _RULES.items() if (field := rule(record, live))
            ]
            inside.append((record, findings))
    _mark_units(inside)
    _mark_sections(inside, section_pairs)
    return Verdicts(tuple(map(_in_order, failures)), n_refusals)


def _mark_units(records: Sequence[tuple[Record, list[Finding]]]) -> None:
    """Mark the records of the rarer unit."""
    units = [
        (record["offsets"]["unit"], findings)
        for record, findings in records
        if not _wrong_offsets(record.get("offsets"))
    ]
    counts = Counter(unit for unit, _ in units)
    rarer = "char" if counts["char"] < counts["token"] else "token"
    for unit, findings in units if len(counts) > 1 else ():
        if unit == rarer:
            findings.append(("mixed_units", "offsets.unit"))


def _mark_sections(
    records: Sequence[tuple[Record, list[Finding]]],
    section_pairs: Collection[tuple[str, str]] | None,
) -> None:
    """Mark unreadable segments, and sections that a segment may not cite beside its first ones."""
    allowed = None if section_pairs is None else {frozenset(pair) for pair in section_pairs}
    accepted: dict[tuple[str | None, str | None], list[str]] = {}
    for record, findings in records:
        segment, answer = record.get("segment"), record.get("query_id")
        if not (segment is None or _is_text(segment) or _is_whole(segment, -1)):
            findings.append(("bad_segment", "segment"))
        elif not (answer is None or _is_text(answer) or _is_whole(answer, 0)):
            findings.append(("bad_segment", "query_id"))
        elif (section := _get_text(record, "section_id")) is not None and allowed is not None:
            sections = accepted.setdefault((_read_name(answer), _name_segment(segment)), [])
            if all(section == it or frozenset((section, it)) in allowed for it in sections):
                sections.append(section)
            else:
                findings.append(("cross_section_reuse", "section_id"))


def _read_name(value: object) -> str | None:
    """Return a query_id or segment as text, so that 0 and "0" are the same; None for none."""
    return None if value is None else str(value).strip()


def _name_segment(value: object) -> str | None:
    """Name the segment that a record supports; None for the whole answer."""
    segment = _read_name(value)
    return None if segment == "-1" else segment


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


# ---- Search results of LangChain, LlamaIndex and Semantic Kernel. Their classes are looked up
# ---- among the loaded modules, because the caller of an object has imported its framework.
#
# Every payload field may stand under its own name in the object's metadata or record. `given` adds
# facts that only the caller knows (`index_hash`, `analyzer`, `k_pos`, ...) and never overrides the
# object. A field that is still missing or impossible raises InputError with its code.


def _expect(value: object, *paths: str) -> str:
    """Return which of the classes an object has; raises TypeError for any other object."""
    for path in paths:
        module, _, name = path.rpartition(".")
        cls = getattr(sys.modules.get(module), name, None)
        if isinstance(cls, type) and isinstance(value, cls):
            return path
    raise TypeError(f"found {type(value).__name__}, accepted {' or '.join(paths)}")


def _join(*sources: Mapping[str, Any] | None) -> dict[str, object]:
    """Join mappings to a checked payload; the first mapping with a field counts."""
    fields: dict[str, object] = {}
    for source in reversed(sources):
        fields |= {
            name: source[name] for name in PAYLOAD_FIELDS if source and source.get(name) is not None
        }
    problems = [
        Problem(
            code,
            FIXES[code],
            field=field or None,
            found=quoted(fields.get(field.partition(".")[0], "nothing")),
            accepted="see citation_payload.schema.json",
        )
        for code, field in validate([fields]).failures[0]
    ]
    if problems:
        raise InputError(problems)
    return fields


def _range(start: object, end: object) -> dict[str, object] | None:
    return None if start is None else {"start": start, "end": end, "unit": "char"}


def from_langchain(
    document: Any, score: float | None = None, given: Mapping[str, Any] | None = None
) -> dict[str, object]:
    """Make the payload of a `langchain_core.documents.Document`.

    `id` is the snippet_id, `source` the source_url. `start` and `end`, or `start_index`, which text
    splitters write with `add_start_index=True`, and the text's length are the offsets. `score` of
    `similarity_search_with_score`, else `score` of the metadata, is score_raw; `k` is k_pos.
    """
    _expect(document, "langchain_core.documents.base.Document")
    metadata: Mapping[str, Any] = document.metadata
    start, end = metadata.get("start", metadata.get("start_index")), metadata.get("end")
    if end is None and isinstance(start, int):
        end = start + len(document.page_content)
    elsewhere = {
        "snippet_id": document.id,
        "source_url": metadata.get("source"),
        "offsets": _range(start, end),
        "score_raw": metadata.get("score") if score is None else score,
        "k_pos": metadata.get("k"),
    }
    return _join(metadata, elsewhere, given)


def from_llama_index(result: Any, given: Mapping[str, Any] | None = None) -> dict[str, object]:
    """Make the payload of a `llama_index.core.schema.NodeWithScore` of a text node.

    `node_id` is the snippet_id, `ref_doc_id` the doc_id, `page_label` the page, `score` score_raw.
    `start_char_idx` and `end_char_idx` are the offsets.
    """
    _expect(result, "llama_index.core.schema.NodeWithScore")
    node = result.node
    if not hasattr(node, "start_char_idx"):
        raise TypeError(f"found a NodeWithScore of {type(node).__name__}, accepted a TextNode")
    elsewhere = {
        "doc_id": node.ref_doc_id,
        "snippet_id": node.node_id,
        "offsets": _range(node.start_char_idx, node.end_char_idx),
        "page": node.metadata.get("page_label"),
        "score_raw": result.score,
    }
    return _join(node.metadata, elsewhere, given)


def from_semantic_kernel(result: Any, given: Mapping[str, Any] | None = None) -> dict[str, object]:
    """Make the payload of a VectorSearchResult or a TextSearchResult of `semantic_kernel.data`.

    A vector result's record (a mapping, or an object with such attributes) has the fields; `score`
    is score_raw. A text result has only `link`, the source_url.
    """
    vector = "semantic_kernel.data.vector.VectorSearchResult"
    if _expect(result, vector, "semantic_kernel.data.text_search.TextSearchResult") != vector:
        return _join({"source_url": result.link}, given)
    record = result.record
    if not isinstance(record, Mapping):
        record = {name: getattr(record, name, None) for name in PAYLOAD_FIELDS}
    return _join(record, {"score_raw": result.score}, given)
