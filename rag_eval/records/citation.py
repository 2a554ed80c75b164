"""The citation payload: which fields every retrieved unit carries, and the codes that its validation gives.

Belongs here: names and codes. The rules are `rag_eval.citations.validators`; the published JSON Schema lies beside this file.
"""

import dataclasses
from typing import Literal

REQUIRED = (
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
OPTIONAL = ("window", "page", "score_raw", "score_norm", "rerank_score", "k_pos", "k_final")
PAYLOAD_FIELDS = (*REQUIRED, *OPTIONAL)

CODES = (
    "empty_citations",
    *(f"missing_{field}" for field in REQUIRED),
    "bad_offsets",
    "mixed_units",
    "cross_section_reuse",
    "missing_score",
    "trace_incomplete",
    "mismatch_index_hash",
    "analyzer_mismatch",
    "rev_mismatch",
    "unknown_snippet",
    "quote_mismatch",
    "explained_before_cited",
    "ok",
)
"""Every code in the order in which the rules are tried; the first that fails is a citation's code."""

FIXES = {
    "empty_citations": "enforce cite-first in the prompt contract",
    **{f"missing_{field}": f"add {field} in the adapter" for field in REQUIRED},
    "bad_offsets": "rebuild the offsets and verify their unit",
    "mixed_units": "use one unit of offsets in a run",
    "cross_section_reuse": "cite one section for each answer segment, or whitelist the pair",
    "missing_score": "project score_raw or score_norm in the adapter",
    "trace_incomplete": "log k_pos, and k_final where a rerank ran",
    "mismatch_index_hash": "rebuild the index, or fix the boot order",
    "analyzer_mismatch": "align the analyzers of the write and the read path",
    "rev_mismatch": "index again, or answer again",
    "unknown_snippet": "reject the answer: the snippet does not exist",
    "quote_mismatch": "reject the answer: the source does not say this",
    "explained_before_cited": "enforce cite-first in the prompt contract",
}
"""What each code points to."""

Unit = Literal["char", "token"]


@dataclasses.dataclass(frozen=True, slots=True)
class CitedSpan:
    """One citation of an answer, as the answer gave it.

    Parameters
    ----------
    segment
        Number of the answer sentence that it supports, from 0; -1 where it supports the answer as a whole.
    evidence
        Place in the question's list of evidence, from 0; -1 where what is cited is not among the evidence (fabricated).
    doc_id
        The cited document, as cited.
    start, end
        Characters in the document's text; -1 where unknown.
    quote
        The text that the answer says stands there; empty where it quotes nothing.
    """

    segment: int
    evidence: int
    doc_id: str
    start: int
    end: int
    quote: str = ""
