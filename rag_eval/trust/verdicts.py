"""What the checks found about documents -> one verdict a chunk: clean, warning or blocked, with its reasons.

Belongs here: how findings add up. What is looked for is the other files of this folder.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.records.trust import EVIDENCE_TRUST, FINDINGS

ALLOWED = "allowed"
"""Reason code of a chunk that would be blocked had not a person allowed it."""

BESIDE = "pattern.beside_blocked"
"""Reason code of a chunk that is warned about in a document in which another one is blocked for what it says."""

_OF_TEXT = ("pattern", "hidden", "encoded", "topic_shift")
_RANK = {"hint": 0, "warning": 1, "blocked": 2}
_FACTS = (
    "trust",
    "domain",
    "domain_state",
    "signature_state",
    "author_state",
    "freshness_state",
    "freshness",
    "date",
)


def vouched_for(
    domain_states: Sequence[str], signature_states: Sequence[str]
) -> npt.NDArray[np.bool_] | None:
    """Whether the allowlist or a valid signature vouches for each source, bool [n]; None where neither domains nor keys are configured, so that nobody can.

    As for trust, a false claim undoes the other one: neither a look-alike domain nor a signature that does not hold is vouched for.
    """
    domains, signatures = (
        np.asarray(domain_states, dtype=object),
        np.asarray(signature_states, dtype=object),
    )
    if (domains == "not_configured").all() and (signatures == "not_configured").all():
        return None
    honest = (domains != "lookalike") & (signatures != "invalid")
    return np.asarray(((domains == "allowed") | (signatures == "valid")) & honest, dtype=bool)


def findings_of_chunks(
    findings: pd.DataFrame, documents: pd.Index, chunks: pd.DataFrame
) -> pd.DataFrame:
    """Spread findings about documents over their chunks.

    Parameters
    ----------
    findings
        FINDINGS frame; `row` is a place in `documents`, start and end characters of its text, -1 where the whole document is meant.
    documents
        doc_id of each document.
    chunks
        CHUNKS frame.

    Returns
    -------
    FINDINGS frame
        `row` is a row of `chunks`; a finding that reaches over several chunks stands at each of them, places stay those of the document.
        The first of each rule and severity stands for the others of a chunk.
    """
    owner = documents.get_indexer(pd.Index(chunks["doc_id"])).astype(np.int64)
    low, high = chunks["start"].to_numpy(dtype=np.int64), chunks["end"].to_numpy(dtype=np.int64)
    order = np.lexsort((low, owner))
    owner, low, high = owner[order], low[order], high[order]
    row, start, end = (findings[name].to_numpy(dtype=np.int64) for name in ("row", "start", "end"))
    whole = start < 0
    width = int(max(high.max(initial=0), end.max(initial=0))) + 2
    reach = np.maximum.accumulate(
        owner * width + high
    )  # chunks of a document may overlap: the furthest end so far
    first = np.searchsorted(reach, row * width + np.where(whole, 0, start), side="right")
    last = np.searchsorted(
        owner * width + low, row * width + np.where(whole, width - 1, end), side="left"
    )
    counts = np.maximum(last - first, 0)
    finding = np.repeat(np.arange(len(findings)), counts)
    at = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
    met = (owner[at] == row[finding]) & (
        whole[finding] | ((low[at] < end[finding]) & (start[finding] < high[at]))
    )
    spread = findings.iloc[finding[met]].assign(row=order[at[met]].astype(np.int64))
    # one finding a rule and chunk says all that a verdict needs; a text made of nothing else must not fill the memory
    spread = spread.sort_values(["row", "start", "check", "rule"], kind="stable").drop_duplicates(
        ["row", "check", "rule", "severity"], ignore_index=True
    )
    return FINDINGS.check(spread)


def _block_beside(
    rank: npt.NDArray[np.int64],
    codes: list[list[str]],
    told: pd.DataFrame,
    documents: "pd.Series[str]",
    let: npt.NDArray[np.bool_],
) -> None:
    """Block what is warned about in a document that says something which is blocked: an attack seldom ends with its chunk."""
    said = told[told["check"].isin(_OF_TEXT)]
    stopped = said.loc[said["severity"] == "blocked", "row"].unique()
    blocked_in = set(
        documents.iloc[stopped[~let[stopped]]].tolist()
    )  # what a person allowed speaks against nothing beside it
    for row in said.loc[said["severity"] == "warning", "row"].unique().tolist():
        if rank[row] < _RANK["blocked"] and documents.iloc[row] in blocked_in:
            rank[row] = _RANK["blocked"]
            codes[row].insert(0, BESIDE)


def chunk_verdicts(
    chunks: pd.DataFrame,
    documents: pd.DataFrame,
    findings: pd.DataFrame,
    allowed: Mapping[str, str],
) -> pd.DataFrame:
    """Judge every chunk.

    Parameters
    ----------
    chunks
        CHUNKS frame.
    documents
        One row a document: doc_id and the facts of source trust (`rag_eval.trust.scores.source_trust`).
    findings
        FINDINGS frame by chunk.
    allowed
        chunk_id -> who allowed it. What is allowed says so; what would be blocked is a warning. A chunk may be allowed for what it is blocked for at retrieval only.

    Returns
    -------
    EVIDENCE_TRUST frame
        In the order of chunks.
    """
    rank = np.zeros(len(chunks), dtype=np.int64)
    severity = findings["severity"].map(_RANK).to_numpy(dtype=np.int64)
    np.maximum.at(rank, findings["row"].to_numpy(), severity)
    codes: list[list[str]] = [[] for _ in range(len(chunks))]
    told = findings.assign(rank=severity)[severity > 0].sort_values(
        ["row", "rank", "check", "rule"], ascending=[True, False, True, True], kind="stable"
    )
    for row, check, rule in zip(
        told["row"].tolist(), told["check"].tolist(), told["rule"].tolist(), strict=True
    ):
        code = f"{check}.{rule}"
        if code not in codes[row]:
            codes[row].append(code)
    ids = chunks["chunk_id"].to_numpy(dtype=object)
    allowed_by = [allowed.get(chunk_id, "") for chunk_id in ids.tolist()]
    let = np.array([bool(who) for who in allowed_by], dtype=bool)
    _block_beside(rank, codes, told, chunks["doc_id"], let)
    blocked = rank == _RANK["blocked"]
    rank[let & blocked] = _RANK["warning"]
    for row in np.flatnonzero(let).tolist():
        codes[row].insert(0, ALLOWED)
    facts = (
        documents.set_index("doc_id")
        .loc[chunks["doc_id"].to_numpy(), list(_FACTS)]
        .reset_index(drop=True)
    )
    frame = facts.assign(
        chunk_id=chunks["chunk_id"].to_numpy(),
        doc_id=chunks["doc_id"].to_numpy(),
        verdict=np.array(["clean", "warning", "blocked"], dtype=object)[rank],
        reasons=pd.Series(codes, dtype=object),
        allowed_by=allowed_by,
    )
    return EVIDENCE_TRUST.check(frame)
