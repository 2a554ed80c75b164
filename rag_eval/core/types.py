"""Types that packages share: citations, the retrieval port, and answers."""

import dataclasses
import functools
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, Protocol, get_args, runtime_checkable

from pydantic import BeforeValidator

from rag_eval.core.errors import require
from rag_eval.core.fields import ID

# ---- Levels of relevance, targets of misses, and statuses of miss rates.

Level = Literal["document", "section", "span"]
Target = Literal["miss_any", "miss_some", "miss_frac"]
"""Kind of miss at cutoff K; kinds are never mixed.

`miss_any`: no gold in the first K. `miss_some`: some gold below K. `miss_frac`: 1 - recall."""
BinaryTarget = Literal["miss_any", "miss_some"]
"""Targets that an outcome can have. The share `miss_frac` is only reported."""
Status = Literal["absent", "uncalibrated", "prior", "provisional", "measured", "stale"]
GoldSource = Literal["qrels", "human", "llm_judge", "deep_audit", "user_feedback"]
TARGETS: Final[tuple[Target, ...]] = get_args(Target)
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
DISCOUNTING: Final[frozenset[Status]] = frozenset({"provisional", "measured"})
"""Statuses under which an answer's confidence may be discounted by the miss rate."""


# ---- The citation payload: its fields, and the codes that its validation gives.

REQUIRED = tuple(
    "doc_id section_id snippet_id source_url offsets tokens index_hash embed_model analyzer "
    "rev".split()
)
PAYLOAD_FIELDS = (
    *REQUIRED,
    *("window", "page", "score_raw", "score_norm", "rerank_score", "k_pos", "k_final"),
)
AUDITABLE_FIELDS = ("snippet_id", "section_id", "source_url", "offsets", "tokens")
"""Fields of a citation in the auditable block `{citations, answer, ΔS, λ}`."""

LIVE_CODES = (
    "mismatch_index_hash",
    "analyzer_mismatch",
    "rev_mismatch",
    "unknown_snippet",
    "source_url_mismatch",
    "quote_mismatch",
)
"""Codes whose rules need the live index; `bad_offsets` only asks for the document's length."""
CODES = (
    "empty_citations",
    *(f"missing_{field}" for field in REQUIRED),
    "bad_offsets",
    "mixed_units",
    "bad_segment",
    "cross_section_reuse",
    "missing_score",
    "trace_incomplete",
    *LIVE_CODES,
    "explained_before_cited",
    "ok",
)
"""Every code in the order of its rule. The first rule that fails gives the code."""

_CITE_FIRST = "enforce cite-first in the prompt contract"
FIXES = {
    "empty_citations": _CITE_FIRST,
    **{f"missing_{field}": f"add {field} in the adapter" for field in REQUIRED},
    "bad_offsets": "rebuild the offsets and verify their unit",
    "mixed_units": "use one unit of offsets in a run",
    "bad_segment": "number the sentence that the citation supports from 0; -1 = the whole answer",
    "cross_section_reuse": "cite one section for each answer segment, or whitelist the pair",
    "missing_score": "project score_raw or score_norm in the adapter",
    "trace_incomplete": "log k_pos, and k_final where a rerank ran",
    "mismatch_index_hash": "rebuild the index, or fix the boot order",
    "analyzer_mismatch": "align the analyzers of the write and the read path",
    "rev_mismatch": "index again, or answer again",
    "source_url_mismatch": "copy source_url from the index; index again if the document moved",
    "unknown_snippet": "reject the answer: the snippet does not exist",
    "quote_mismatch": "reject the answer: the source does not say this",
    "explained_before_cited": _CITE_FIRST,
}
"""Remedy of each code."""

Unit = Literal["char", "token"]


@dataclasses.dataclass(frozen=True, slots=True)
class CitedSpan:
    """One citation, as the answer gave it.

    `segment` is the supported answer sentence, from 0; -1 stands for the whole answer.
    `evidence` is the position in the evidence of the question, from 0; -1 stands for a fabricated
    citation, which the evidence does not hold. `start` and `end` are character positions in the
    document's text, -1 where unknown.
    """

    segment: int
    evidence: int
    doc_id: str
    start: int
    end: int
    quote: str = ""


# ---- RetrievalPort, version 1, frozen: a change needs version 2 beside it.

StrategyKind = Literal["bm25", "vector", "hybrid"]


@dataclasses.dataclass(frozen=True, slots=True)
class RetrievalOptions:
    """Request to retrieve at most `top_k` chunks that pass the filters and the trust threshold.

    `filters` maps `doc_id` or `section_id` to accepted values, and applies before ranks are given.
    `strategy` None means the port's default.
    """

    top_k: int = 10
    filters: Mapping[str, str | Sequence[str]] | None = None
    strategy: StrategyKind | None = None
    trust_threshold: float | None = None

    def __post_init__(self) -> None:
        """Refuse a top_k under 1 and a threshold outside [0, 1]."""
        if self.top_k < 1:
            raise ValueError(f"top_k: found {self.top_k}, accepted 1 or more")
        if self.trust_threshold is not None and not 0 <= self.trust_threshold <= 1:
            raise ValueError(f"trust_threshold: found {self.trust_threshold}, accepted 0 to 1")


@dataclasses.dataclass(frozen=True, slots=True)
class Offsets:
    """A half-open range in the document's text."""

    start: int
    end: int
    unit: Literal["char", "token"] = "char"


MAX_WINDOW = 200
"""Most characters of a window on each side."""


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Number of characters of the document that may be shown before and after a range."""

    pre: int
    post: int

    @classmethod
    def around(cls, start: int, end: int, length: int) -> "Window":
        """Return the window of start:end in a text of a length."""
        return cls(min(start, MAX_WINDOW), max(min(length - end, MAX_WINDOW), 0))


@dataclasses.dataclass(frozen=True, slots=True)
class ScoredChunk:
    """One retrieved chunk with its citation payload and its ranks (from 1).

    `score_raw` is the engine's own score, `score_norm` lies in [0, 1] within the query; `k_pos` is
    the rank before reranking and `k_final` after; `rerank_score` is None where no rerank step
    judged the chunk. `embed_model` names model and pooling, or is `none` for lexical retrieval.
    `page` is the page of the source on which the chunk starts, None where the source has no pages.
    """

    doc_id: str
    section_id: str
    snippet_id: str
    source_url: str
    offsets: Offsets
    tokens: int
    index_hash: str
    embed_model: str
    analyzer: str
    rev: str
    text: str
    score_raw: float
    score_norm: float
    k_pos: int
    k_final: int
    rerank_score: float | None = None
    window: Window | None = None
    page: int | str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PoisonCheck:
    """Verdict of the poisoning guard on a chunk; `warnings` are its reasons as <check>.<rule>."""

    passed: bool
    blocked: bool
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TrustScore:
    """Trust in the source of a retrieved chunk, and the guard's verdict on the chunk.

    `score` is None where no trust is configured. `factors` has the state and the points of domain,
    signature and author, and the state, factor and age of the freshness.
    """

    snippet_id: str
    score: float | None
    factors: Mapping[str, Mapping[str, str | float | None]]
    poison_check: PoisonCheck


@dataclasses.dataclass(frozen=True, slots=True)
class RetrievalMetadata:
    """Record of how a result was made.

    `duration` is in seconds; each query of a batch gets an equal share. `trust_scores` is empty
    if no trust is known. `trust` has the factors and the verdict of each chunk in order; it is
    empty where the sources were not screened.
    """

    strategy: str
    duration: float
    total_candidates: int
    trust_scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
    trust: tuple[TrustScore, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class RetrievalResult:
    """Chunks, best first, with the record of their retrieval."""

    chunks: tuple[ScoredChunk, ...]
    metadata: RetrievalMetadata


@dataclasses.dataclass(frozen=True, slots=True)
class RetrievalStats:
    """Sizes and identities of a port; `index_hashes` has one entry for each strategy."""

    n_documents: int
    n_chunks: int
    corpus_rev: str
    chunks_hash: str
    index_hashes: Mapping[str, str]
    default_strategy: str


@runtime_checkable
class RetrievalPort(Protocol):
    """Interface of a retriever that can be evaluated."""

    version: int

    def retrieve(self, query: str, options: RetrievalOptions) -> RetrievalResult:
        """Retrieve for one query."""
        ...

    def batch_retrieve(
        self, queries: Sequence[str], options: RetrievalOptions
    ) -> list[RetrievalResult]:
        """Retrieve for many queries, results in the order of the queries."""
        ...

    def stats(self) -> RetrievalStats:
        """Return sizes and identities of the corpus and the indexes."""
        ...


# ---- Answers: evidence, messages and replies, answers with their outcome.

Mode = Literal["deterministic", "llm", "recorded"]
EvidenceKind = Literal["retrieve", "grep", "section", "recorded"]
AnswerOutcome = Literal[
    "answered", "not_found", "insufficient_evidence", "contract_error_reply", "failed"
]
OUTCOMES: Final[tuple[AnswerOutcome, ...]] = get_args(AnswerOutcome)
ABSTAINED: frozenset[AnswerOutcome] = frozenset({"not_found", "insufficient_evidence"})

StatedLambda = Literal["convergent", "divergent", "recursive", "chaotic"]
"""States that an answer may state as its λ."""

NOT_FOUND = "NOT FOUND"
INSUFFICIENT_EVIDENCE = "INSUFFICIENT EVIDENCE"


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """One passage that an answer may cite.

    An answer cites it by its token: `<doc_id>:<first line>-<last line>`, or `<doc_id>:<line>`.
    Lines of the document's text count from 1, both included. `chunk.text` is the document's
    text[chunk.offsets.start:chunk.offsets.end]; `kind` is the preflight that found it.
    """

    token: str
    chunk: ScoredChunk
    kind: EvidenceKind
    first_line: int
    last_line: int


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """Reply of a chat endpoint, with its tokens; a cached reply costs no tokens.

    `usage_missing`: the endpoint named no believable number of tokens, which then counts 0.
    """

    text: str
    tokens_in: int
    tokens_out: int
    finish_reason: str = "stop"
    cached: bool = False
    retries: int = 0
    usage_missing: bool = False


class ChatError(Exception):
    """No usable reply came after all retries; `retries` counts the requests beyond the first.

    Codes: `timeout`, `connection`, `rate_limited`, `server_error`, `refused` (4xx),
    `malformed_reply`, `reply_too_large`.
    """

    def __init__(self, code: str, message: str, retries: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.retries = retries


class Chat(Protocol):
    """A chat endpoint. Safe to call from several threads."""

    def ask(self, messages: Sequence[Message]) -> Reply:
        """Send the messages and return the reply; raise `ChatError` without a usable reply."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerFinding:
    """A finding that a postprocessor extracted from an answer.

    `segment` is the number of its sentence, from 0, or -1 for the whole answer.
    """

    source: str
    kind: str
    text: str
    segment: int


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One question's answer and how it ended.

    Every outcome but `answered` counts as a miss of an answerable question.

    `codes`: Reasons of a failure, in the order found.
    `text`: The answer without citations; error and fix of the reply for `contract_error_reply`.
    `verdict`: Verdict of the two-line form.
    `evidence`: Passages that the answer could cite.
    `signal`: How well the evidence supports the question, in [0, 1]; None without a signal.
    `delta_s`, `lambda_state`: Values that the answer stated.
    `attempts`: Number of attempts, the first included; the tokens are summed over all attempts.
    `top_k`: Depth of the last retrieval.
    `confidence`: Confidence that the answering system reported, in [0, 1].
    """

    query_id: str
    mode: Mode
    outcome: AnswerOutcome
    codes: tuple[str, ...] = ()
    text: str = ""
    verdict: str = ""
    citations: tuple[CitedSpan, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    signal: float | None = None
    delta_s: float | None = None
    lambda_state: str = ""
    attempts: int = 1
    top_k: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    confidence: float | None = None
    findings: tuple[AnswerFinding, ...] = ()


# ---- A snippet: the most that is shown of a chunk beyond the user's own store, on one line

SNIPPET_CHARS = 200
ELLIPSIS = "…"

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that are escaped: control, format, separators, surrogates, unassigned."""
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}
"""Invisible letters and marks: joiners, fillers, variation selectors."""
_BASIC_PLANE = 0xFFFF


def is_joined(character: str) -> bool:
    """Tell whether a character is a mark on the character before it, such as an accent."""
    return unicodedata.category(character) in {"Mn", "Mc", "Me"}


@functools.lru_cache(maxsize=1000)
def _escape(character: str) -> str:
    if character.isascii() and character.isprintable():
        return character
    if character not in _BLANKS and unicodedata.category(character) not in _UNSEEN:
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= _BASIC_PLANE else f"\\U{code:08x}"


def snippet(text: str, limit: int = SNIPPET_CHARS) -> str:
    r"""Write a text as one line of at most `limit` characters (1 or more), the ellipsis included.

    Runs of white space become one blank. Control, bidirectional, invisible and broken characters
    become escapes. The cut never splits an escape. It splits a letter from its marks only if the
    marks alone would fill the line.
    """
    # No piece is empty, so the first limit + 1 characters always show whether the text fits.
    pieces = [_escape(character) for character in " ".join(text.split())[: limit + 1]]
    if sum(map(len, pieces)) <= limit:
        return "".join(pieces)
    n_whole = total = 0
    while total + len(pieces[n_whole]) < limit:
        total += len(pieces[n_whole])
        n_whole += 1
    whole = n_whole
    while whole and is_joined(pieces[whole][0]):
        whole -= 1
    return "".join(pieces[: whole or n_whole]).rstrip() + ELLIPSIS


# ---- Types of fields of rows of a gold set, a corpus, or recorded outputs.

Id = Annotated[str, BeforeValidator(ID.check)]
"""The id of a question, wording, document, section or passage, as a field of a row."""
_HAS_NO_NUL = require(
    lambda text: "\x00" not in text,
    "nul_byte",
    "the text holds a NUL byte",
    "a string without NUL bytes",
)
PlainText = Annotated[str, _HAS_NO_NUL]
"""A text of any length, as a field of a row."""
Title = Annotated[PlainText, BeforeValidator(lambda value: "" if value is None else value)]
"""A title, as a field of a row; null is an empty title."""
