"""Trust: what `gold_set.yaml` may say of sources, and the frames of the trust stage.

Belongs here: configuration, column schemas, the names of states and checks. How a source is judged is `rag_eval.trust`.
"""

import base64
import binascii
import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from rag_eval.records.configuration_parts import Name, Part
from rag_eval.records.frames import FrameSchema, schema

DOMAIN_WEIGHT, SIGNATURE_WEIGHT, AUTHOR_WEIGHT = 0.4, 0.3, 0.3
FRESH, STALE, YEAR_DAYS = 1.0, 0.7, 365
"""The freshness factor falls from FRESH at age 0 to STALE at a year, and stays there."""

KEY_BYTES = 32
_DOMAIN = re.compile(
    r"(?:\*\.)?(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*|python:[A-Za-z_][A-Za-z0-9_]*"
)

Verdict = Literal["clean", "warning", "blocked"]
Severity = Literal["hint", "warning", "blocked"]
"""A hint alone changes nothing; what it adds to is the business of the check that reads it."""

CHECKS = (
    "domain",
    "pattern",
    "hidden",
    "encoded",
    "manifest",
    "signature",
    "topic_shift",
    "flood",
    "restates_query",
)
"""Checks of the poisoning guard; the first part of every reason code (`pattern.reply_instruction`)."""

DomainState = Literal["allowed", "not_listed", "lookalike", "unknown", "not_configured"]
SignatureState = Literal["valid", "invalid", "unknown_key", "missing", "not_configured"]
AuthorState = Literal["known", "not_listed", "unknown", "not_configured"]
FreshnessState = Literal["dated", "future", "unknown"]

AuthorName = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]


class Trust(Part):
    """Whom this gold set's corpus trusts, and what the poisoning guard does with what it finds."""

    domains: tuple[str, ...] = Field(
        default=(),
        max_length=10_000,
        description="allowlist: example.org (and www.example.org), *.example.org with all below it, python:<package> for docstrings",
    )
    authors: tuple[AuthorName, ...] = Field(
        default=(),
        max_length=10_000,
        description="known authors; compared without regard to case and runs of white space",
    )
    keys: dict[Name, str] = Field(
        default_factory=dict, description="name -> Ed25519 public key, 32 bytes in base64"
    )
    signatures: str | None = Field(
        default=None,
        description='JSON lines {"doc_id", "key", "signature"}, relative to the gold set; for folders also <file>.sig beside the file',
    )
    manifest: str | None = Field(
        default=None,
        description="recorded hashes of the documents, relative to the gold set; <manifest>.sig must sign it where keys are given",
    )
    unlisted: Literal["allow", "warn", "block"] = Field(
        default="warn",
        description="what the guard does with documents of domains that are not on the allowlist, and with those without an address; look-alikes are always blocked",
    )
    quarantine: bool = Field(
        default=True,
        description="whether blocked chunks are left out of the index and of what strategies return; off: they are only reported",
    )
    threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="trust under which chunks are filtered out; recall is reported with and without",
    )
    filter: bool = Field(
        default=False,
        description="whether strategies retrieve with the threshold; else its cost is measured beside",
    )

    @field_validator("domains")
    @classmethod
    def _domains_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        shown = tuple(
            domain if domain.startswith("python:") else domain.strip().rstrip(".").lower()
            for domain in value
        )
        for domain in shown:
            if not _DOMAIN.fullmatch(domain):
                raise ValueError(
                    f"domains: found {domain[:100]!r}; accepted are host names (example.org), *.example.org and python:<package>; names with other letters in their xn-- form"
                )
        return shown

    @field_validator("keys")
    @classmethod
    def _keys_are_keys(cls, value: dict[str, str]) -> dict[str, str]:
        for name, key in value.items():
            try:
                raw = base64.b64decode(key, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ValueError(
                    f"keys.{name}: not base64; accepted: an Ed25519 public key, 32 bytes in base64"
                ) from error
            if len(raw) != KEY_BYTES:
                raise ValueError(
                    f"keys.{name}: found {len(raw)} bytes, accepted: an Ed25519 public key, 32 bytes in base64"
                )
        return value

    @model_validator(mode="after")
    def _filter_has_a_threshold(self) -> "Trust":
        if self.filter and self.threshold is None:
            raise ValueError(
                "filter: true needs a threshold, the trust under which chunks are filtered out"
            )
        if self.threshold is not None and not self.configured:
            raise ValueError("threshold: nothing says whom to trust; give domains, authors or keys")
        return self

    @model_validator(mode="after")
    def _signatures_are_verified(self) -> "Trust":
        if self.signatures is not None and not self.keys:
            raise ValueError("signatures: nothing verifies them; give keys")
        return self

    @property
    def configured(self) -> bool:
        """Whether anything says whom to trust; without, trust has no value."""
        return bool(self.domains or self.authors or self.keys)


SOURCES: FrameSchema = schema(
    "sources",
    doc_id=("str", "its document, in the order of documents"),
    source_hash=(
        "str",
        "sha256 of the document's bytes as its source gives them, before masking, hex",
    ),
    author=(
        "str",
        "who is said to have written it, masked like its text; empty where nothing is said",
    ),
    author_hash=(
        "str",
        "sha256 of the author's name in lower case with single spaces, hex; empty where nothing is said",
    ),
    date=("str", "YYYY-MM-DD of its last change; empty where nothing is said"),
    domain=(
        "str",
        "host of its address in lower case (xn-- form), python:<package> for docstrings; empty where there is none",
    ),
)

FINDINGS: FrameSchema = schema(
    "findings",
    row=("int", "row of what was looked at: a document, a chunk or a text, as the maker says"),
    start=("int", "first character in its text; -1 where the finding is about the whole"),
    end=("int", "one past the last; -1 likewise"),
    check=("str", "one of CHECKS"),
    rule=("str", "what was found, within the check: reply_instruction, lookalike, ..."),
    severity=("str", "hint | warning | blocked"),
    detail=("str", "at most 200 characters in our own words, without control characters"),
)

EVIDENCE_TRUST: FrameSchema = schema(
    "evidence_trust",
    chunk_id=("str", "the chunk, in the order of chunks"),
    doc_id=("str", "its document"),
    trust=("float", "0 to 1; NaN where the gold set configures no trust"),
    domain=("str", "host of its source; empty where there is none"),
    domain_state=("str", "allowed | not_listed | lookalike | unknown | not_configured"),
    signature_state=("str", "valid | invalid | unknown_key | missing | not_configured"),
    author_state=("str", "known | not_listed | unknown | not_configured"),
    freshness_state=("str", "dated | future | unknown"),
    freshness=("float", "0.7 to 1"),
    date=("str", "YYYY-MM-DD; empty where unknown"),
    verdict=("str", "clean | warning | blocked; after what a person allowed"),
    reasons=("list", "reason codes <check>.<rule>, the blocking ones first"),
    allowed_by=("str", "who allowed what would be blocked; empty where nobody did"),
)
