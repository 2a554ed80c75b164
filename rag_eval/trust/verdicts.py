"""Turn findings about documents into a verdict for each chunk: clean, warning or blocked."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from rag_eval.core.config import EVIDENCE_TRUST, FINDINGS
from rag_eval.corpus.chunking import Ranges, find_overlaps

ALLOWED = "allowed"
"""Reason code of a chunk that a person allowed."""
BESIDE = "pattern.beside_blocked"
"""Reason code of a chunk with a warning in a document with a blocked text."""

_OF_TEXT = ("pattern", "hidden", "encoded", "topic_shift")
_VERDICTS = ("clean", "warning", "blocked")
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


def make_findings(rows: Sequence[tuple[int | str, ...]]) -> pd.DataFrame:
    """Make a FINDINGS frame of rows whose values are in the order of the columns."""
    kinds = {
        name: "int64" if column.kind == "int" else "str"
        for name, column in FINDINGS.columns.items()
    }
    return FINDINGS.check(pd.DataFrame(rows, columns=list(kinds)).astype(kinds))


def findings_of_chunks(
    findings: pd.DataFrame, documents: pd.Index, chunks: pd.DataFrame
) -> pd.DataFrame:
    """Spread FINDINGS about `documents` (doc_ids) over their chunks.

    In the result, `row` is a row of `chunks`; start and end stay places in the document. A finding
    is repeated for each overlapping chunk. A chunk keeps only the first finding of a rule and
    severity, so that no text can fill the memory with findings.
    """
    columns = ["start", "end"]
    start, end = findings[columns].to_numpy(dtype=np.int64).T
    low, high = chunks[columns].to_numpy(dtype=np.int64).T
    whole = start < 0
    beyond = int(high.max(initial=0)) + 1
    row = findings["row"].to_numpy(dtype=np.int64)
    places = Ranges(row, np.where(whole, 0, start), np.where(whole, beyond, end))
    owner = documents.get_indexer(pd.Index(chunks["doc_id"])).astype(np.int64)
    finding, chunk = find_overlaps(places, Ranges(owner, low, high))
    spread = findings.iloc[finding].assign(row=chunk.astype(np.int64))
    spread = spread.sort_values(["row", "start", "check", "rule"], kind="stable")
    spread = spread.drop_duplicates(["row", "check", "rule", "severity"], ignore_index=True)
    return FINDINGS.check(spread)


def chunk_verdicts(
    chunks: pd.DataFrame,
    documents: pd.DataFrame,
    findings: pd.DataFrame,
    allowed: Mapping[str, str],
) -> pd.DataFrame:
    """Judge every chunk; return EVIDENCE_TRUST in the order of chunks.

    `documents` has doc_id and the facts of `sources.source_trust`; `findings` are by chunk.
    `allowed` is chunk_id -> person who allowed the chunk; a block of the chunk becomes a warning.
    The reason ALLOWED is always listed, because retrieval may block a chunk that is clean here.
    """
    severity = findings["severity"].map(_RANK).to_numpy(dtype=np.int64)
    rank = np.zeros(len(chunks), dtype=np.int64)
    np.maximum.at(rank, findings["row"].to_numpy(), severity)
    shown = findings.assign(rank=severity)[severity > 0].sort_values(
        ["row", "rank", "check", "rule"], ascending=[True, False, True, True], kind="stable"
    )
    reasons: list[list[str]] = [[] for _ in range(len(chunks))]
    codes = (shown["check"] + "." + shown["rule"]).tolist()
    for row, code in dict.fromkeys(zip(shown["row"].tolist(), codes, strict=True)):
        reasons[row].append(code)
    ids, doc_ids = chunks["chunk_id"].to_numpy(), chunks["doc_id"].to_numpy()
    allowed_by = [allowed.get(chunk_id, "") for chunk_id in ids.tolist()]
    let = np.array([bool(who) for who in allowed_by], dtype=bool)
    # An attack seldom ends with its chunk, so a warning in the same document blocks too. A chunk
    # that a person allowed does not count against other chunks.
    of_text = shown[shown["check"].isin(_OF_TEXT)]
    stopped = of_text.loc[of_text["severity"] == "blocked", "row"].unique()
    blocked_in = set(doc_ids[stopped[~let[stopped]]].tolist())
    for row in of_text.loc[of_text["severity"] == "warning", "row"].unique().tolist():
        if rank[row] < _RANK["blocked"] and doc_ids[row] in blocked_in:
            rank[row] = _RANK["blocked"]
            reasons[row].insert(0, BESIDE)
    rank[let & (rank == _RANK["blocked"])] = _RANK["warning"]
    for row in np.flatnonzero(let).tolist():
        reasons[row].insert(0, ALLOWED)
    facts = documents.set_index("doc_id").loc[doc_ids, list(_FACTS)].reset_index(drop=True)
    frame = facts.assign(
        chunk_id=ids,
        doc_id=doc_ids,
        verdict=np.array(_VERDICTS, dtype=object)[rank],
        reasons=pd.Series(reasons, dtype=object),
        allowed_by=allowed_by,
    )
    return EVIDENCE_TRUST.check(frame)
