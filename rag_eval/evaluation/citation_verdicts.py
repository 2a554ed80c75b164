"""Verdicts on the citations of a run: our own records and the payloads that a recorded system stated itself, held against what is known here.

Belongs here: which record stands for a citation, and against what it is held. The rules are `rag_eval.citations.validators`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rag_eval.citations.live_index import LiveIndex
from rag_eval.citations.payload import citation_records
from rag_eval.citations.validators import Rules, Verdicts, validate
from rag_eval.records.answers import Answer
from rag_eval.records.citation import CODES

Stated = Mapping[str, Sequence[Sequence[Any]]]
"""query_id -> [place of the citation in the answer, payload]."""


def citation_rows(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Records of all citations as we place them, in the order of the answers."""
    return [
        record
        for answer in answers
        for record in citation_records(answer.query_id, answer.citations, answer.evidence)
    ]


def stated_rows(
    answers: Sequence[Answer], rows: Sequence[Mapping[str, Any]], stated: Stated
) -> list[dict[str, Any]]:
    """The same records, but where the system stated a payload of its own that payload, word for word, is the record.

    A whole payload of what the answer was not given is marked `in_evidence: false`; a broken one is left to the rule that it breaks first.
    """
    found = [dict(row) for row in rows]
    start = 0
    for answer in answers:
        for place, payload in stated.get(answer.query_id, ()):
            if place < len(
                answer.citations
            ):  # a domain validator may have rejected the answer, and its citations with it
                span = answer.citations[place]
                record = {"segment": span.segment, **payload, "query_id": answer.query_id}
                if span.segment >= 0:  # a marker says which sentence it supports
                    record["segment"] = span.segment
                record.pop("number", None)
                if span.evidence < 0 and not validate([record]).failures[0]:
                    record["in_evidence"] = False
                found[start + place] = record
        start += len(answer.citations)
    return found


def verdicts_of(
    stated: Sequence[Mapping[str, Any]],
    placed: Sequence[Mapping[str, Any]],
    live: LiveIndex,
    rules: Rules,
    *,
    corpus: bool,
) -> Verdicts:
    """Try every rule.

    Parameters
    ----------
    stated, placed
        Results of `stated_rows` and `citation_rows`.
    live
        The index.
    rules
        What the run allows.
    corpus
        Whether the index is one of a corpus. Where the contexts of recorded outputs are all there is, nothing here knows the system's own
        index, analyzer and revisions: a stated payload is held to what it shows by itself, and its place to the contexts.
    """
    if corpus:
        return validate(stated, live, rules)
    own, against = validate(stated, None, rules), validate(placed, live, rules)
    rank = {code: at for at, code in enumerate(CODES)}
    failures = tuple(
        tuple(
            sorted(
                {code: (code, field) for code, field in (*theirs, *ours)}.values(),
                key=lambda finding: rank[finding[0]],
            )
        )
        for ours, theirs in zip(own.failures, against.failures, strict=True)
    )
    counts = Counter(code for each in failures for code, _ in each)
    counts["ok"] = sum(not each for each in failures)
    tried = {code: max(own.tried[code], against.tried[code]) for code in CODES[:-1]}
    return Verdicts(failures, {code: counts[code] for code in CODES}, tried, live=True)
