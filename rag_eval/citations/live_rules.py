"""The rules that one citation record is held to against the live index.

Belongs here: identity, revision, snippet, place and quote. A rule whose input is missing or broken is left to the rule that says so.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rag_eval.citations.live_index import LiveIndex
from rag_eval.citations.quoted import begins_with, same_words
from rag_eval.citations.structure import Finding, Record, is_text, is_whole, wrong_offsets
from rag_eval.corpus.masking import FILL
from rag_eval.corpus.outgoing import masked_text
from rag_eval.records.snippets import ELLIPSIS


def _text(record: Record, name: str) -> str | None:
    value: Any = record.get(name)
    return value if is_text(value) else None


def live_findings(record: Record, live: LiveIndex, tried: Counter[str]) -> list[Finding]:
    """Hold one record against the live index, each code at most once.

    Parameters
    ----------
    record
        A record that is not empty; anything may stand in it.
    live
        The index.
    tried
        Counts, by code, the records on which its rule could be tried.
    """
    return [
        *_identity(record, live, tried),
        *_snippet(record, live, tried),
        *_place(record, live, tried),
    ]


def _identity(record: Record, live: LiveIndex, tried: Counter[str]) -> list[Finding]:
    found: list[Finding] = []
    index_hash, analyzer, rev = (_text(record, name) for name in ("index_hash", "analyzer", "rev"))
    if index_hash is not None:
        tried["mismatch_index_hash"] += 1
        if index_hash not in live.index_hashes:
            found.append(("mismatch_index_hash", "index_hash"))
    if analyzer is not None:
        tried["analyzer_mismatch"] += 1
        if analyzer != live.analyzer:
            found.append(("analyzer_mismatch", "analyzer"))
    live_rev = live.revs.get(_text(record, "doc_id") or "")
    if rev is not None and live_rev is not None:
        tried["rev_mismatch"] += 1
        if rev != live_rev:
            found.append(("rev_mismatch", "rev"))
    return found


def _snippet(record: Record, live: LiveIndex, tried: Counter[str]) -> list[Finding]:
    doc_id, section_id, snippet_id = (
        _text(record, name) for name in ("doc_id", "section_id", "snippet_id")
    )
    if snippet_id is None:
        return []
    tried["unknown_snippet"] += 1
    snippet = live.snippets.get(snippet_id)
    if snippet is None:
        return [("unknown_snippet", "snippet_id")]
    if doc_id is not None and doc_id != snippet.doc_id:
        return [("unknown_snippet", "doc_id")]
    return (
        [("unknown_snippet", "section_id")]
        if section_id is not None and not live.holds(section_id, snippet)
        else []
    )


def _place(record: Record, live: LiveIndex, tried: Counter[str]) -> list[Finding]:
    doc_id, offsets = _text(record, "doc_id"), record.get("offsets")
    if doc_id is None or doc_id not in live.texts or not offsets or wrong_offsets(offsets):
        return []
    start, end, unit = offsets["start"], offsets["end"], offsets["unit"]
    if end > live.length(doc_id, unit):
        return [("bad_offsets", "offsets.end")]
    found: list[Finding] = []
    start, end = live.characters(doc_id, start, end, unit)
    snippet = live.snippets.get(_text(record, "snippet_id") or "")
    if (
        snippet is not None
        and snippet.doc_id == doc_id
        and not (start < snippet.end and snippet.start < end)
    ):
        found.append(("bad_offsets", "offsets"))
    quote = record.get("quote")
    if isinstance(quote, str) and quote:
        tried["quote_mismatch"] += 1
        if not any(
            _says(passage, quote, record.get("quote_chars"))
            for passage in _passages(live, doc_id, start, end, quote)
        ):
            found.append(("quote_mismatch", "quote"))
    return found


def _passages(live: LiveIndex, doc_id: str, start: int, end: int, quote: str) -> Iterator[str]:
    """What stands at a place; then, for a quote with masked parts, the same masked, as part of its document and by itself."""
    yield live.texts[doc_id][start:end]
    if FILL in quote:
        yield live.masked(doc_id)[start:end]
        yield masked_text(live.texts[doc_id][start:end])


def _says(passage: str, quote: str, chars: object) -> bool:
    """Whether a quote is a passage; one that says that it was cut, whether it is the passage's beginning."""
    cut = (
        is_whole(chars, 1)
        and isinstance(chars, int)
        and chars > len(quote)
        and quote.endswith(ELLIPSIS)
    )
    return same_words(passage, quote) or (
        cut and begins_with(passage, quote.removesuffix(ELLIPSIS))
    )
