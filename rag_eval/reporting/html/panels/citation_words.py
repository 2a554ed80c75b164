"""Words of the citations panel: what outcomes, codes, measures and confidences mean, each in one short sentence."""

from typing import Final

UNKNOWN: Final = "not described in this version"

OUTCOMES: Final = {
    "answered": "an answer within its contract",
    "not_found": "said NOT FOUND: right for an unanswerable question, a miss for an answerable one",
    "insufficient_evidence": "said INSUFFICIENT EVIDENCE and named what is missing; judged as NOT FOUND is",
    "contract_error_reply": "the model refused with an error and a fix of its own; counts as a failure",
    "failed": "broke its contract after all retries; a miss in every rate",
}

MEANINGS: Final = {
    "empty_citations": "the answer has no citation block",
    **{
        f"missing_{field}": f"the citation lacks its {field}"
        for field in (
            "doc_id",
            "section_id",
            "snippet_id",
            "source_url",
            "offsets",
            "tokens",
            "index_hash",
            "embed_model",
            "analyzer",
            "rev",
        )
    },
    "bad_offsets": "the offsets are no span of the unit: start before end, both inside it",
    "mixed_units": "offsets are counted in characters here and in tokens there",
    "cross_section_reuse": "one segment of the answer cites two sections, and that pair is not whitelisted",
    "missing_score": "neither a raw nor a normalised score came with it",
    "trace_incomplete": "its rank is not logged, or its final rank after a rerank is not",
    "mismatch_index_hash": "it comes from another index than the one that is live",
    "analyzer_mismatch": "it was written with another analyzer than the one that reads",
    "rev_mismatch": "its revision is not that of the chunk",
    "unknown_snippet": "no such snippet exists: the citation is made up",
    "quote_mismatch": "the text at its offsets is not the text it quotes",
    "explained_before_cited": "the citations come after the explanation",
    "ok": "every rule holds; whether it supports the answer is another question",
}
"""Citation codes; the fix of each is `rag_eval.records.citation.FIXES`."""

MEASURES: Final = {
    "coverage": (
        "coverage",
        "share of the gold spans' tokens that the answer cites; zero where the question was not answered",
    ),
    "citation_precision": (
        "citation precision",
        "correct citations among those made; correct is valid, and overlapping a gold span by half of the shorter of the two",
    ),
    "citation_recall": (
        "citation recall",
        "gold spans that a correct citation matches, of all gold spans of answerable questions",
    ),
    "citation_match_rate": (
        "citation match rate",
        "correct citations among those due: a missing, made-up or invalid one stays in the denominator",
    ),
    "citation_validity_rate": (
        "citation validity",
        "citations whose code is ok among those made; says nothing of being right",
    ),
    "groundedness": (
        "groundedness",
        "how much of each answer sentence stands in its evidence, mean over sentences; not a probability",
    ),
    "supported_share": (
        "supported share",
        "share of an answer's sentences that the evidence supports",
    ),
    "abstention_rate": (
        "abstention",
        "unanswerable questions on which it abstained: more is better",
    ),
    "answered_anyway": (
        "answered anyway",
        "unanswerable questions that were answered: less is better",
    ),
    "refused_answerable": (
        "refused answerable",
        "answerable questions on which it abstained: less is better",
    ),
    "failure_rate": ("failures", "questions whose answer failed: less is better"),
}

GAPS: Final = {
    "content_unused": "the answer uses nothing of what was retrieved, does not refer to it, and does not say that it found nothing",
    "empty_answer": "something was retrieved, and the answer says nothing",
}

CONFIDENCES: Final = {
    "synthesis_confidence": (
        "synthesis",
        "given its evidence: groundedness of a deterministic answer, or what the answering system reported",
    ),
    "final_confidence": (
        "final",
        "synthesis discounted by the stated miss rate, whatever that has earned; not to be acted on by itself",
    ),
    "calibrated_confidence": (
        "calibrated",
        "the one to act on: the same discount, only where the miss rate is provisional or measured",
    ),
    "right_when_missed": (
        "right when missed",
        "measured share of right answers among those over a missed retrieval",
    ),
}

USAGE: Final = {
    "requests": "requests sent, retries included",
    "retries": "retries",
    "cached": "replies read from the cache",
    "tokens_in": "tokens in, charged",
    "tokens_out": "tokens out, charged",
    "saved_tokens_in": "tokens in that the cache saved",
    "saved_tokens_out": "tokens out that the cache saved",
    "usage_missing": "replies without a count of tokens; with any, cost is a lower bound",
    "cost": "cost, in the currency of the configured prices",
    "saved_cost": "cost that the cache saved",
    "n_questions": "questions",
    "cost_per_1k": "cost of a thousand questions without the cache",
}
