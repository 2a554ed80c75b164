"""What the answer stages hand to each other: evidence, prompts and replies, answers with their outcome.

Belongs here: types and closed sets of names. How answers come about is `rag_eval.answers`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

from rag_eval.records.citation import CitedSpan
from rag_eval.records.retrieval import ScoredChunk

Mode = Literal["deterministic", "llm", "recorded"]
PreflightKind = Literal["retrieve", "grep", "section"]
EvidenceKind = Literal["retrieve", "grep", "section", "recorded"]
Outcome = Literal[
    "answered", "not_found", "insufficient_evidence", "contract_error_reply", "failed"
]
OUTCOMES: tuple[Outcome, ...] = (
    "answered",
    "not_found",
    "insufficient_evidence",
    "contract_error_reply",
    "failed",
)
ABSTAINED: frozenset[Outcome] = frozenset({"not_found", "insufficient_evidence"})

NOT_FOUND = "NOT FOUND"
INSUFFICIENT_EVIDENCE = "INSUFFICIENT EVIDENCE"


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """One passage that an answer may cite.

    Parameters
    ----------
    token
        How an answer cites it: `<doc_id>:<first line>-<last line>`, or `<doc_id>:<line>` for one line; lines of the document's text count from 1.
    chunk
        Its citation payload, ranks and text. `chunk.text` is document text[chunk.offsets.start:chunk.offsets.end].
    kind
        The preflight that found it.
    first_line, last_line
        Lines of the document that it covers, from 1, both included.
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
    """What a chat endpoint answered, with what it cost.

    `seconds` is the duration of the request that succeeded, waiting for the rate limit aside; a cached reply costs no tokens and no time.
    """

    text: str
    tokens_in: int
    tokens_out: int
    finish_reason: str = "stop"
    cached: bool = False
    seconds: float = 0.0
    retries: int = 0


class ChatError(Exception):
    """No usable reply came, after all retries.

    Parameters
    ----------
    code
        `timeout`, `connection`, `rate_limited`, `server_error`, `refused` (4xx), `malformed_reply`, `reply_too_large`.
    message
        What happened, fit for a log line.
    retries
        Requests beyond the first.
    """

    def __init__(self, code: str, message: str, retries: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.retries = retries


class Chat(Protocol):
    """A chat endpoint. Safe to call from several threads."""

    def ask(self, messages: Sequence[Message]) -> Reply:
        """Send the messages and return the reply.

        Raises
        ------
        ChatError
            No usable reply came.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One question's answer and how it ended.

    Parameters
    ----------
    query_id
        The question.
    mode
        What answered.
    outcome
        How it ended; everything but `answered` counts as a miss of an answerable question.
    codes
        Why it failed, in the order found; empty unless `failed` or `contract_error_reply`.
    text
        The answer's text without citations; for `contract_error_reply` the reply's error and fix.
    verdict
        The VERDICT of the two-line form; empty elsewhere.
    citations
        What it cites, in order.
    evidence
        What it could cite.
    signal
        How well the evidence carries the question, in [0, 1]; None where the mode measures none.
    delta_s, lambda_state
        As the answer stated them; None and empty where it did not.
    attempts
        Answers asked for, the first included.
    top_k
        Chunks asked for in the last retrieval.
    tokens_in, tokens_out
        Of all attempts.
    seconds
        Duration, not part of any hash.
    confidence
        What the system that answered reported of itself, in [0, 1]; None where it reported nothing.
    """

    query_id: str
    mode: Mode
    outcome: Outcome
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
    seconds: float = 0.0
    confidence: float | None = None
