"""Check the citations of all answers: payloads against the live index, spans against the gold."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, NoReturn

import numpy as np
import pandas as pd
from pydantic import JsonValue

from rag_eval.citations.matching import Spans, Words, coverage, match_citations
from rag_eval.citations.payload import LiveIndex, Verdicts, citation_records, validate
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.frames import CITATIONS, make_frame
from rag_eval.core.records import Open
from rag_eval.core.types import AUDITABLE_FIELDS, Answer, CitedSpan
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
