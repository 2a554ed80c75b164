"""Words of the trust panel: what factors, their states and the guard's checks mean."""

from typing import Final

UNKNOWN: Final = "not described in this version"

FACTORS: Final = {
    "domain_state": "domain",
    "signature_state": "signature",
    "author_state": "author",
    "freshness_state": "freshness",
}

STATES: Final = {
    ("domain_state", "allowed"): "on the allowlist",
    ("domain_state", "not_listed"): "not on the allowlist",
    ("domain_state", "lookalike"): "made to look like a listed one: trust is zero",
    ("domain_state", "unknown"): "the document has no address",
    ("domain_state", "not_configured"): "the gold set lists no domains",
    ("signature_state", "valid"): "signed by a configured key",
    ("signature_state", "invalid"): "the signature does not hold: trust is zero",
    ("signature_state", "unknown_key"): "signed by a key that is not configured",
    ("signature_state", "missing"): "not signed",
    ("signature_state", "not_configured"): "the gold set names no keys",
    ("author_state", "known"): "every author is a known one",
    ("author_state", "not_listed"): "an author is not among the known ones",
    ("author_state", "unknown"): "the document names no author",
    ("author_state", "not_configured"): "the gold set names no authors",
    ("freshness_state", "dated"): "has a date; the factor falls over a year",
    ("freshness_state", "future"): "dated after the day of the run, so its date buys nothing",
    ("freshness_state", "unknown"): "has no date that can be read",
}

CHECKS: Final = {
    "domain": "whose address the document has",
    "pattern": "orders to whoever reads or answers, in the words of the text",
    "hidden": "text that a reader would not see",
    "encoded": "text in an encoding that hides what it says",
    "manifest": "a document that is not as it was recorded",
    "signature": "a signature that does not hold",
    "topic_shift": "a passage off the topic of its document or of its source",
    "flood": "many near copies that push others out of the lists",
    "restates_query": "text written to be retrieved for one question",
    "allowed": "would be blocked, and a person allowed it",
}
