"""Check the citations of all answers: payloads against the live index, spans against the gold."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, NoReturn

import numpy as np
import pandas as pd
from pydantic import JsonValue

from rag_eval.citations.payload import LiveIndex, Verdicts, citation_records, validate
from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, Ranges, find_overlaps
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.frames import CITATIONS, make_frame
from rag_eval.core.records import Open
from rag_eval.core.types import AUDITABLE_FIELDS, Answer, CitedSpan
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


def judge_citations(
    answers: Sequence[Answer],
    stated: Mapping[str, Sequence[Payload | None]],
    live: LiveIndex,
    gold: tuple[pd.DataFrame, pd.DataFrame],
    *,
    section_pairs: Collection[tuple[str, str]],
    has_corpus: bool,
) -> CheckedCitations:
    """Check every citation; `gold` are the queries and their spans.

    `stated` has the payload that a recorded output states for each citation, by query_id. Without a
    corpus, the index, analyzer and revisions of the system are unknown. A stated payload is then
    checked by itself, and its place against the contexts. Raises InputError `analyzer_mismatch` if
    a stated payload has another analyzer than the index.
    """
    placed: list[Open] = []
    records: list[Open] = []
    for answer in answers:
        ours = citation_records(answer.query_id, answer.citations, answer.evidence)
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
        _refuse_analyzer(records, live.analyzer, n)
    citations, per_question = _match(gold, answers, verdicts, live)
    codes = {code: n for code, n in verdicts.counts.items() if n} if records else {}
    return CheckedCitations(citations, records, per_question, codes)


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


def _refuse_analyzer(records: list[Open], analyzer: str, n: int) -> NoReturn:
    """Raise `analyzer_mismatch`, which ends the run.

    No citation can be trusted when the citing system uses another analyzer than the index.
    """
    record = next(record for record in records if record.get("analyzer", analyzer) != analyzer)
    message = (
        f"{n} citations were made with another analyzer, the first for question "
        f"{quoted(str(record.get('query_id')))}; align the analyzers"
    )
    raise InputError.of(
        "analyzer_mismatch",
        message,
        field="analyzer",
        found=quoted(str(record.get("analyzer"))),
        accepted=analyzer,
    )


def _match(
    gold: tuple[pd.DataFrame, pd.DataFrame],
    answers: Sequence[Answer],
    verdicts: Verdicts,
    live: LiveIndex,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Make a row for each citation and one for each question."""
    queries, spans = gold
    cited = [
        (answer.query_id, span.segment, span.doc_id, span.start, span.end)
        for answer in answers
        for span in answer.citations
    ]
    rows = pd.DataFrame(cited, columns=["query_id", "segment", "doc_id", "start", "end"])
    # Name only cited documents and documents with gold spans, so that no other text is analyzed.
    doc_ids = sorted({*rows["doc_id"], *spans["doc_id"]} & live.texts.keys())
    codes = pd.Index(queries["query_id"]), pd.Index(doc_ids, dtype="object")

    def encode(frame: pd.DataFrame) -> Spans:
        ids = (pd.Index(frame[name], dtype="object") for name in ("query_id", "doc_id"))
        query, doc = (code.get_indexer(column) for code, column in zip(codes, ids, strict=True))
        places = (frame[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
        return Spans(query.astype(np.int64), doc.astype(np.int64), *places)

    cited_spans, wanted, valid = encode(rows), encode(spans), verdicts.valid
    owed = queries["answerable"].to_numpy(dtype=bool)
    correct, counts = match_citations(cited_spans, valid, wanted, len(queries), owed)
    words = Words.of([live.texts[doc] for doc in doc_ids])
    covered = coverage(cited_spans, valid, wanted, words, len(queries))
    # A gold span that the corpus lacks has no words. It counts as missed.
    is_missed = np.isnan(covered) & (counts["n_gold"].to_numpy() > 0)
    per_question = counts.assign(coverage=np.where(is_missed, 0.0, covered))
    per_question.insert(0, "query_id", queries["query_id"].astype("str").to_numpy())
    parts = zip(cited, verdicts.codes, verdicts.fields, correct.tolist(), strict=True)
    return make_frame(CITATIONS, [(*place, *verdict) for place, *verdict in parts]), per_question


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

    def __len__(self) -> int:
        return len(self.query)

    @property
    def real(self) -> BoolArray:
        """Whether each span holds any text of a known document."""
        return (self.doc >= 0) & (self.start >= 0) & (self.end > self.start)

    def select(self, keep: BoolArray | IntArray) -> "Spans":
        """Return the spans at the places that are kept."""
        return Spans(self.query[keep], self.doc[keep], self.start[keep], self.end[keep])


def match_citations(
    cited: Spans, valid: BoolArray, gold: Spans, n_queries: int, owed: BoolArray
) -> tuple[BoolArray, pd.DataFrame]:
    """Match cited spans with the gold spans of the same question and document.

    A citation is correct if it is valid and overlaps a gold span by half of the shorter span. A
    fabricated, invalid or wrong citation counts in `n_cited` and `n_due`, never in `n_correct`.

    `cited` has every citation made, fabricated ones too, and `valid` [len(cited)] those with the
    code `ok`. `owed` [n_queries] is true for every answerable question, also if its answer failed
    or refused. Returns whether each citation is correct, and a row for each question: n_cited,
    n_valid, n_correct, n_due (citations made, or 1 where an owed citation is missing), n_gold,
    n_gold_matched.
    """
    of_cited, of_gold = np.flatnonzero(valid & cited.real), np.flatnonzero(gold.real)
    left, right = _pair(cited.select(of_cited), gold.select(of_gold))
    left, right = of_cited[left], of_gold[right]
    left_spans, right_spans = cited.select(left), gold.select(right)
    overlap = np.minimum(left_spans.end, right_spans.end) - np.maximum(
        left_spans.start, right_spans.start
    )
    shorter = np.minimum(left_spans.end - left_spans.start, right_spans.end - right_spans.start)
    enough = 2 * overlap >= shorter
    correct, matched = np.zeros(len(cited), dtype=bool), np.zeros(len(gold), dtype=bool)
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


@dataclasses.dataclass(frozen=True)
class Words:
    """Places of words in flat arrays; document d has the words `first[d]:first[d + 1]`."""

    start: IntArray
    end: IntArray
    first: IntArray

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Words":
        """Find the words that the analyzer counts; texts are in the order of document codes."""
        spans = [np.asarray(token_spans(text), dtype=np.int64).reshape(-1, 2) for text in texts]
        flat = np.concatenate([np.empty((0, 2), dtype=np.int64), *spans])
        first = np.cumsum([0, *(len(part) for part in spans)], dtype=np.int64)
        return cls(flat[:, 0], flat[:, 1], first)

    def ranges(self, spans: Spans) -> tuple[IntArray, IntArray]:
        """Return the words [low, high), in flat positions, that overlap each span."""
        widest = 2 + max(int(self.end.max(initial=0)), int(spans.end.max(initial=0)))
        doc = np.repeat(np.arange(len(self.first) - 1, dtype=np.int64), np.diff(self.first))
        starts, ends = spans.doc * widest + spans.start, spans.doc * widest + spans.end
        low = np.searchsorted(doc * widest + self.end, starts, side="right")
        high = np.searchsorted(doc * widest + self.start, ends, side="left")
        return low.astype(np.int64), np.maximum(low, high).astype(np.int64)


def coverage(
    cited: Spans, valid: BoolArray, gold: Spans, words: Words, n_queries: int
) -> FloatArray:
    """Return the share of the tokens of the gold spans that valid citations overlap, [n_queries].

    Each token counts once. 0 without a valid citation, NaN without a gold span that has a token.
    """
    covered = _unite(cited.select(valid & cited.real), words)
    wanted = _unite(gold.select(gold.real), words)
    left, right = _pair(covered, wanted)
    left_spans, right_spans = covered.select(left), wanted.select(right)
    overlap = np.minimum(left_spans.end, right_spans.end) - np.maximum(
        left_spans.start, right_spans.start
    )
    shared = np.bincount(right_spans.query, weights=overlap, minlength=n_queries)
    whole = np.bincount(wanted.query, weights=wanted.end - wanted.start, minlength=n_queries)
    share = np.full(n_queries, np.nan)
    np.divide(shared, whole, out=share, where=whole > 0)
    return share


def _unite(spans: Spans, words: Words) -> Spans:
    """Unite the spans of each (question, document) into disjoint ranges of words."""
    low, high = words.ranges(spans)
    united = Spans(spans.query, spans.doc, low, high)
    united = united.select(high > low)
    if not len(united):
        return united
    united = united.select(np.lexsort((united.start, united.doc, united.query)))
    query, doc, low, high = united.query, united.doc, united.start, united.end
    group = np.cumsum(np.concatenate([[0], (np.diff(query) != 0) | (np.diff(doc) != 0)]))
    width = int(high.max()) + 1
    # Furthest end so far; the width keeps the ranges of different groups apart.
    reach = np.maximum.accumulate(group * width + high)
    opens = np.concatenate([[True], group[1:] * width + low[1:] > reach[:-1]])
    first = np.flatnonzero(opens)
    last = np.concatenate([first[1:], [len(low)]]) - 1
    return Spans(query[first], doc[first], low[first], reach[last] - group[last] * width)


def _pair(left: Spans, right: Spans) -> tuple[IntArray, IntArray]:
    """Return the places of every pair of overlapping spans of one question and one document."""
    documents = 1 + max(int(left.doc.max(initial=0)), int(right.doc.max(initial=0)))
    left_ranges, right_ranges = (
        Ranges(spans.query * documents + spans.doc, spans.start, spans.end)
        for spans in (left, right)
    )
    return find_overlaps(left_ranges, right_ranges)
