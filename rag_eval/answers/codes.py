"""The closed list of codes with which an answer breaks its contract: what each means and what mends it.

Belongs here: names, meanings, fixes. Codes that citations share keep the names of `rag_eval.records.citation`.
"""

from typing import Final, Literal, NamedTuple, get_args

ContractCode = Literal[
    # the reply as text
    "empty_reply",
    "reply_too_long",
    "incomplete_reply",
    "bad_characters",
    # its form
    "not_json",
    "too_deep",
    "bad_number",
    "duplicate_key",
    "explained_before_cited",
    "trailing_text",
    "wrong_form",
    "unknown_key",
    "missing_key",
    "wrong_type",
    "missing_verdict",
    "verdict_not_allowed",
    "empty_citations",
    "bad_citation",
    "empty_answer",
    "bad_delta_s",
    "bad_lambda",
    "refusal_not_allowed",
    "missing_gaps",
    "contract_error_reply",
    # what it says, against the evidence
    "unknown_snippet",
    "bad_offsets",
    "quote_mismatch",
    "cross_section_reuse",
    "path_not_in_evidence",
    "path_not_cited",
    "validator_failed",
    "validator_error",
    # no reply to judge
    "prompt_too_long",
    "pattern_timeout",
    "retrieval_error",
    "no_output",
    "internal_error",
    "chat_timeout",
    "chat_connection",
    "chat_rate_limited",
    "chat_server_error",
    "chat_refused",
    "chat_malformed_reply",
    "chat_reply_too_large",
    "chat_error",
]


class CodeInfo(NamedTuple):
    """What a code means and what mends it."""

    meaning: str
    fix: str


_JSON_SHAPE: Final = "answer with one JSON object with exactly the keys citations, answer, deltaS, lambda, citations first"
_ENDPOINT: Final = "see to the endpoint, then run again: replies that came are in the cache"

CODES: Final[dict[ContractCode, CodeInfo]] = {
    "empty_reply": CodeInfo("the reply is empty", _JSON_SHAPE),
    "reply_too_long": CodeInfo(
        "the reply is longer than max_reply_chars",
        "answer shorter, or raise answers.max_reply_chars",
    ),
    "incomplete_reply": CodeInfo(
        "the endpoint cut the reply off",
        "raise max_tokens of the endpoint, or ask for a shorter answer",
    ),
    "bad_characters": CodeInfo(
        "the reply holds NUL, other control characters or lone surrogates", "answer in plain text"
    ),
    "not_json": CodeInfo("the reply is not JSON", _JSON_SHAPE),
    "too_deep": CodeInfo("the JSON is nested too deeply", _JSON_SHAPE),
    "bad_number": CodeInfo(
        "a number is NaN, infinite or too long", "give deltaS as a number from 0 to 1, or null"
    ),
    "duplicate_key": CodeInfo(
        "a key or header line stands twice, so the reply says two things",
        "give every key and header line once",
    ),
    "explained_before_cited": CodeInfo(
        "something stands before the citations", "enforce cite-first in the prompt contract"
    ),
    "trailing_text": CodeInfo("text follows the JSON object", "say everything in the answer"),
    "wrong_form": CodeInfo(
        "the reply keeps to another form than the one asked for",
        "answer in the form that response_schema names",
    ),
    "unknown_key": CodeInfo("the object has a key that the contract does not know", _JSON_SHAPE),
    "missing_key": CodeInfo("the object lacks a key", _JSON_SHAPE),
    "wrong_type": CodeInfo(
        "a value has the wrong type",
        "citations is a list, answer a text, deltaS a number or null, lambda a text or null",
    ),
    "missing_verdict": CodeInfo(
        "the first line is not VERDICT=", "begin with the line VERDICT=<one of the allowed>"
    ),
    "verdict_not_allowed": CodeInfo(
        "the verdict is none of the allowed", "give one of the allowed verdicts, letter for letter"
    ),
    "empty_citations": CodeInfo(
        "no citation block, or nothing in it", "enforce cite-first in the prompt contract"
    ),
    "bad_citation": CodeInfo(
        "a citation is not <doc path>:<line>[-<line>]",
        "cite tokens as they stand in brackets before the evidence",
    ),
    "empty_answer": CodeInfo("there is no answer text", "write the answer after the citations"),
    "bad_delta_s": CodeInfo(
        "deltaS lies outside [0, 1]", "give deltaS as a number from 0 to 1, or null"
    ),
    "bad_lambda": CodeInfo(
        "lambda is no known state", "give convergent, divergent, recursive, chaotic or null"
    ),
    "refusal_not_allowed": CodeInfo(
        "this refusal is not the allowed one, or contradicts the verdict",
        "refuse only in the words that the prompt allows",
    ),
    "missing_gaps": CodeInfo(
        "the refusal does not name what is missing", "name the gaps after INSUFFICIENT EVIDENCE:"
    ),
    "contract_error_reply": CodeInfo(
        "the model refused by {error, fix}", "see the reply's own fix"
    ),
    "unknown_snippet": CodeInfo(
        "a citation points outside the evidence (fabricated)", "reject the answer, or retrieve more"
    ),
    "bad_offsets": CodeInfo("a citation points to blank lines", "cite lines that say something"),
    "quote_mismatch": CodeInfo(
        "the cited lines do not say what is quoted",
        "reject the answer: the source does not say this",
    ),
    "cross_section_reuse": CodeInfo(
        "one sentence cites two sections",
        "cite one section for each sentence, or whitelist the pair under answers.cross_section_allowed",
    ),
    "path_not_in_evidence": CodeInfo(
        "the answer names a path that no evidence has (gate A)", "name only paths of the evidence"
    ),
    "path_not_cited": CodeInfo(
        "the answer names a path that is neither cited nor in a cited item (gate B)",
        "cite the item that has the path",
    ),
    "validator_failed": CodeInfo("a domain validator rejects the answer", "see its message"),
    "validator_error": CodeInfo("a domain validator raised an error", "mend the validator"),
    "prompt_too_long": CodeInfo(
        "not even one piece of evidence fits the prompt", "raise answers.max_prompt_chars"
    ),
    "pattern_timeout": CodeInfo("a grep pattern ran out of time", "simplify the pattern"),
    "retrieval_error": CodeInfo("retrieval failed for this question", "see to the retriever"),
    "no_output": CodeInfo(
        "the recorded outputs have no answer to this question",
        "record one, or leave the question out",
    ),
    "internal_error": CodeInfo(
        "answering raised an error that is none of the contract's", "report it with the log line"
    ),
    "chat_timeout": CodeInfo("the endpoint did not answer in time", _ENDPOINT),
    "chat_connection": CodeInfo("the endpoint was not reached", _ENDPOINT),
    "chat_rate_limited": CodeInfo(
        "the endpoint refused for too many requests, after all retries",
        "lower concurrency or requests_per_minute of the endpoint",
    ),
    "chat_server_error": CodeInfo("the endpoint failed, after all retries", _ENDPOINT),
    "chat_refused": CodeInfo(
        "the endpoint refused the request",
        "see to the key, the model name and the size of the prompt",
    ),
    "chat_malformed_reply": CodeInfo(
        "the endpoint answered something that is no chat completion", _ENDPOINT
    ),
    "chat_reply_too_large": CodeInfo(
        "the endpoint sent more than is read", "lower max_tokens of the endpoint"
    ),
    "chat_error": CodeInfo("the chat failed for a reason without a code of its own", _ENDPOINT),
}
"""Every code with its meaning and its fix."""

PROVENANCE: Final[frozenset[ContractCode]] = frozenset({"unknown_snippet", "path_not_in_evidence"})
"""Codes that more evidence could mend: they start the adaptive rerun."""

NOT_RETRIED: Final[frozenset[ContractCode]] = frozenset({"validator_error"})
"""Codes of a reply that asking again cannot mend."""


class Fault(NamedTuple):
    """One way in which an answer breaks its contract, and a message fit to be shown to the model and in a log line."""

    code: ContractCode
    message: str


def chat_code(code: str) -> ContractCode:
    """`chat_<code>` where the list knows it, else `chat_error`."""
    name = f"chat_{code}"
    return next((known for known in get_args(ContractCode) if known == name), "chat_error")
