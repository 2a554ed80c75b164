"""Check the citations of all answers: payloads against the live index, spans against the gold."""

import bisect
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
import pandas as pd
from pydantic import JsonValue

from rag_eval.citations.payload import LiveIndex, payload, validate
from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, Ranges, find_overlaps
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.frames import CITATIONS, make_frame
from rag_eval.core.records import Open
from rag_eval.core.types import (
    AUDITABLE_FIELDS,
    MAX_WINDOW,
    Answer,
    CitedSpan,
    Evidence,
    Window,
)
from rag_eval.corpus.analyzer import token_spans
from rag_eval.corpus.loaders.recorded import BESIDE

Payload = dict[str, JsonValue]
"""What a recorded output states about one of its citations."""


class CheckedCitations(NamedTuple):
    """Verdicts (CITATIONS) and records of the citations, and counts of each question.

    `per_question` has query_id, n_cited, n_valid, n_correct, n_due, n_gold, n_gold_matched and
    coverage. `codes` counts the first codes of the records.
    """

    citations: pd.DataFrame
    records: list[Open]
    per_question: pd.DataFrame
    codes: dict[str, int]

    @classmethod
    def of(
        cls,
        answers: Sequence[Answer],
        stated: Mapping[str, Sequence[Payload | None]],
        live: LiveIndex,
        gold: tuple[pd.DataFrame, pd.DataFrame],
        *,
        section_pairs: Collection[tuple[str, str]],
        has_corpus: bool,
    ) -> Self:
        """Check every citation; `gold` are the queries and their spans.

        `stated` has the payload that a recorded output states for each citation, by query_id.
        Without a corpus, the index, analyzer and revisions of the system are unknown. A stated
        payload is then checked by itself, and its place against the contexts. Raises InputError
        `analyzer_mismatch` if a stated payload has another analyzer than the index, because no
        citation can then be trusted.
        """
        placed: list[Open] = []
        records: list[Open] = []
        for answer in answers:
            ours = _citation_records(answer.query_id, answer.citations, answer.evidence)
            placed += ours
            payloads = stated.get(answer.query_id, [None] * len(ours))
            # a domain validator may have rejected the answer with its citations
            records += [
                _stated_record(record, span, payload) if payload else record
                for record, span, payload in zip(ours, answer.citations, payloads, strict=False)
            ]
        if has_corpus:
            verdicts = validate(records, live, section_pairs)
        else:
            alone = validate(records, None, section_pairs)
            verdicts = validate(placed, live, section_pairs).joined(alone)
        if n := verdicts.counts["analyzer_mismatch"]:
            record = next(
                one for one in records if one.get("analyzer", live.analyzer) != live.analyzer
            )
            first = quoted(str(record.get("query_id")))
            raise InputError.of(
                "analyzer_mismatch",
                f"{n} citations were made with another analyzer, the first for question {first}; "
                "align the analyzers",
                field="analyzer",
                found=quoted(str(record.get("analyzer"))),
                accepted=live.analyzer,
            )
        queries, gold_frame = gold
        places = [
            (answer.query_id, span.segment, span.doc_id, span.start, span.end)
            for answer in answers
            for span in answer.citations
        ]
        frame = pd.DataFrame(places, columns=["query_id", "segment", "doc_id", "start", "end"])
        # Name only cited documents and those with gold spans: no other text is analyzed.
        doc_ids = sorted({*frame["doc_id"], *gold_frame["doc_id"]} & live.texts.keys())
        cited, wanted = (
            _encode(rows, queries["query_id"], doc_ids) for rows in (frame, gold_frame)
        )
        owed, valid = queries["answerable"].to_numpy(dtype=bool), verdicts.valid
        correct, counts = _match_citations(cited, valid, wanted, len(queries), owed)
        covered = _coverage(
            cited, valid, wanted, [live.texts[doc] for doc in doc_ids], len(queries)
        )
        # A gold span that the corpus lacks has no words. It counts as missed.
        is_missed = np.isnan(covered) & (counts["n_gold"].to_numpy() > 0)
        per_question = counts.assign(coverage=np.where(is_missed, 0.0, covered))
        per_question.insert(0, "query_id", queries["query_id"].astype("str").to_numpy())
        parts = zip(places, verdicts.codes, verdicts.fields, correct.tolist(), strict=True)
        citations = make_frame(CITATIONS, [(*place, *verdict) for place, *verdict in parts])
        codes = {code: n for code, n in verdicts.counts.items() if n} if records else {}
        return cls(citations, records, per_question, codes)


def _citation_records(
    query_id: str, citations: Sequence[CitedSpan], evidence: Sequence[Evidence]
) -> list[dict[str, JsonValue]]:
    """Make records of an answer's citations, for `validate` and citations.jsonl.

    A record has the doc_id, offsets and window of the citation, not of the evidence. A citation
    outside the evidence has no payload and says `in_evidence: false`.
    """
    records = []
    for span in citations:
        record: dict[str, JsonValue] = {}
        inside = 0 <= span.evidence < len(evidence)
        if inside:
            item = evidence[span.evidence]
            window, offsets = item.chunk.window, item.chunk.offsets
            if window is not None:
                pre, post = span.start - offsets.start, offsets.end - span.end
                ends = (min(window.pre + pre, MAX_WINDOW), min(window.post + post, MAX_WINDOW))
                window = Window(*(max(end, 0) for end in ends))
            record = payload(dataclasses.replace(item.chunk, window=window)) | {"kind": item.kind}
        record |= {
            "query_id": query_id,
            "segment": span.segment,
            "in_evidence": inside,
            "doc_id": span.doc_id,
            "offsets": {"start": span.start, "end": span.end, "unit": "char"},
        }
        if span.quote:
            record["quote"] = span.quote
        records.append(record)
    return records


def _stated_record(ours: Open, span: CitedSpan, payload: Payload) -> Open:
    """Make the record of a citation that has a payload from the system itself.

    `ours` is our record of the citation. It completes a citation of the auditable block. A valid
    payload outside the evidence of the answer is marked `in_evidence: false`. An invalid payload
    stays, so that its first broken rule is reported.
    """
    record: Open = {**payload, "query_id": ours["query_id"]}
    if payload.keys() <= {*AUDITABLE_FIELDS, *BESIDE}:
        record = ours | {name: value for name, value in record.items() if value is not None}
    record["segment"] = span.segment  # a number that the answer lacks is the whole answer
    record.pop("number", None)
    if span.evidence < 0 and not validate([record]).failures[0]:
        record["in_evidence"] = False
    return record


# ---- Cited spans against gold spans


@dataclasses.dataclass(frozen=True)
class Spans:
    """Spans of documents that belong to questions; each field is int64 `[n]`.

    `query` and `doc` are codes from 0. A span of an unknown document (-1), or without end > start
    >= 0, overlaps nothing.
    """

    query: IntArray
    doc: IntArray
    start: IntArray
    end: IntArray

    @property
    def real(self) -> BoolArray:
        """Whether each span holds any text of a known document."""
        return (self.doc >= 0) & (self.start >= 0) & (self.end > self.start)

    def select(self, keep: BoolArray | IntArray) -> "Spans":
        """Return the spans at the places that are kept."""
        return Spans(self.query[keep], self.doc[keep], self.start[keep], self.end[keep])


def _encode(frame: pd.DataFrame, query_ids: pd.Series, doc_ids: Sequence[str]) -> Spans:
    columns = (pd.Index(frame[name], dtype="object") for name in ("query_id", "doc_id"))
    known = pd.Index(query_ids), pd.Index(list(doc_ids), dtype="object")
    query, doc = (ids.get_indexer(column) for ids, column in zip(known, columns, strict=True))
    places = (frame[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    return Spans(query.astype(np.int64), doc.astype(np.int64), *places)


def _match_citations(
    cited: Spans, valid: BoolArray, gold: Spans, n_queries: int, owed: BoolArray
) -> tuple[BoolArray, pd.DataFrame]:
    """Match cited spans with the gold spans of the same question and document.

    A citation is correct if it is valid and overlaps a gold span by half of the shorter span. A
    fabricated, invalid or wrong citation counts in `n_cited` and `n_due`, never in `n_correct`.

    `cited` has every citation made, fabricated ones too, and `valid` [n_cited] those with the code
    `ok`. `owed` [n_queries] is true for every answerable question, also if its answer failed or
    refused. Returns whether each citation is correct, and a row for each question: n_cited,
    n_valid, n_correct, n_due (citations made, or 1 where an owed citation is missing), n_gold,
    n_gold_matched.
    """
    of_cited, of_gold = np.flatnonzero(valid & cited.real), np.flatnonzero(gold.real)
    n_documents = 1 + max(int(spans.doc.max(initial=0)) for spans in (cited, gold))
    left, right = find_overlaps(
        *(
            Ranges(spans.query * n_documents + spans.doc, spans.start, spans.end)
            for spans in (cited.select(of_cited), gold.select(of_gold))
        )
    )
    left, right = of_cited[left], of_gold[right]
    overlap = np.minimum(cited.end[left], gold.end[right]) - np.maximum(
        cited.start[left], gold.start[right]
    )
    lengths = cited.end - cited.start, gold.end - gold.start
    shorter = np.minimum(lengths[0][left], lengths[1][right])
    enough = 2 * overlap >= shorter
    correct, matched = np.zeros(len(valid), dtype=bool), np.zeros(len(gold.doc), dtype=bool)
    correct[left[enough]] = True
    matched[right[enough]] = True

    def count(query: IntArray) -> IntArray:
        return np.bincount(query, minlength=n_queries).astype(np.int64)

    n_cited = count(cited.query)
    counts = {
        "n_cited": n_cited,
        "n_valid": count(cited.query[valid]),
        "n_correct": count(cited.query[correct]),
        "n_due": np.maximum(n_cited, owed.astype(np.int64)),
        "n_gold": count(gold.query),
        "n_gold_matched": count(gold.query[matched]),
    }
    return correct, pd.DataFrame(counts)


def _coverage(
    cited: Spans, valid: BoolArray, gold: Spans, texts: Sequence[str], n_queries: int
) -> FloatArray:
    """Return the share of the tokens of the gold spans that valid citations overlap, [n_queries].

    Each token counts once. 0 without a valid citation, NaN without a gold span that has a token.
    `texts` are in the order of the codes of documents.
    """
    words = list(map(token_spans, texts))
    starts = [[start for start, _ in places] for places in words]
    ends = [[end for _, end in places] for places in words]

    def list_tokens(spans: Spans) -> list[set[tuple[int, int]]]:
        tokens: list[set[tuple[int, int]]] = [set() for _ in range(n_queries)]
        columns = (spans.query, spans.doc, spans.start, spans.end)
        for query, doc, start, end in zip(*(column.tolist() for column in columns), strict=True):
            low = bisect.bisect_right(ends[doc], start)
            high = bisect.bisect_left(starts[doc], end)
            tokens[query].update((doc, place) for place in range(low, high))
        return tokens

    wanted = list_tokens(gold.select(gold.real))
    covered = list_tokens(cited.select(valid & cited.real))
    pairs = zip(wanted, covered, strict=True)
    shares = [len(owed & shown) / len(owed) if owed else np.nan for owed, shown in pairs]
    return np.array(shares, dtype=np.float64)
