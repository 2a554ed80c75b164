"""What the poisoning guard finds in where documents come from, before anything reads their text.

Belongs here: states of domains, signatures and manifests -> findings. What is found in texts are other checks.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from rag_eval.records.problems import quoted
from rag_eval.records.trust import FINDINGS, Severity, Trust
from rag_eval.trust.manifest import DocumentState

_MAX_DETAIL_CHARS, _MAX_DOMAIN_CHARS = 200, 80
_UNLISTED: Mapping[str, Severity | None] = {"allow": None, "warn": "warning", "block": "blocked"}


class _Rule(NamedTuple):
    check: str
    rule: str
    severity: Severity
    detail: str


def _plain(text: str, limit: int) -> str:
    return quoted(text.encode("ascii", "backslashreplace").decode("ascii"), limit)


def _detail(template: str, domain: str, note: str) -> str:
    return template.format(
        domain=_plain(domain, _MAX_DOMAIN_CHARS), note=_plain(note, _MAX_DOMAIN_CHARS)
    )[:_MAX_DETAIL_CHARS]


def source_findings(
    sources: pd.DataFrame,
    trust_frame: pd.DataFrame,
    config: Trust,
    manifest_states: Sequence[DocumentState] | None,
    notes: Mapping[str, str],
) -> pd.DataFrame:
    """Findings about the sources of documents.

    Parameters
    ----------
    sources
        SOURCES frame.
    trust_frame
        What `source_trust` made of it, row by row.
    config
        Whom the gold set trusts; `unlisted` decides what a document of an unlisted domain, or without an address, is.
    manifest_states
        State of each document from `check_manifest`; None where there is no manifest.
    notes
        Look-alike domain -> what it imitates, from `lookalike_notes`.

    Returns
    -------
    pandas.DataFrame
        FINDINGS frame; row is the document's row, start and end are -1. domain.lookalike, signature.invalid and manifest.changed are blocked,
        manifest.not_in_manifest is a warning, domain.not_listed and domain.no_address as configured. Sorted by row.
    """
    n = len(sources)
    domain_state, signature_state = (
        trust_frame["domain_state"].to_numpy(),
        trust_frame["signature_state"].to_numpy(),
    )
    manifest_state = np.array(
        manifest_states if manifest_states is not None else [""] * n, dtype=object
    )
    rules = [
        (
            domain_state == "lookalike",
            _Rule("domain", "lookalike", "blocked", "the domain {domain} {note}"),
        ),
        (
            signature_state == "invalid",
            _Rule(
                "signature",
                "invalid",
                "blocked",
                "the signature does not hold for the document's bytes",
            ),
        ),
        (
            manifest_state == "changed",
            _Rule(
                "manifest",
                "changed",
                "blocked",
                "the document's bytes are not those that the manifest records",
            ),
        ),
        (
            manifest_state == "not_in_manifest",
            _Rule(
                "manifest", "not_in_manifest", "warning", "the manifest does not know the document"
            ),
        ),
    ]
    severity = _UNLISTED[config.unlisted]
    if severity is not None:
        rules.append(
            (
                domain_state == "not_listed",
                _Rule(
                    "domain", "not_listed", severity, "the domain {domain} is not on the allowlist"
                ),
            )
        )
        # or leaving the address out would be the way round the allowlist
        rules.append(
            (
                domain_state == "unknown",
                _Rule(
                    "domain",
                    "no_address",
                    severity,
                    "the document has no address to look for on the allowlist",
                ),
            )
        )
    found = [(row, rule) for mask, rule in rules for row in np.flatnonzero(mask).tolist()]
    found.sort(key=lambda pair: pair[0])
    domains = sources["domain"].tolist()
    keys = [(rule.detail, domains[row]) for row, rule in found]
    texts = {
        (template, domain): _detail(template, domain, notes.get(domain, "imitates an allowed one"))
        for template, domain in set(keys)
    }
    frame = pd.DataFrame(
        {
            "row": np.array([row for row, _ in found], dtype=np.int64),
            "start": np.full(len(found), -1, dtype=np.int64),
            "end": np.full(len(found), -1, dtype=np.int64),
            **{
                column: pd.Series([getattr(rule, column) for _, rule in found], dtype="str")
                for column in ("check", "rule", "severity")
            },
            "detail": pd.Series([texts[key] for key in keys], dtype="str"),
        }
    )
    return FINDINGS.check(frame)
