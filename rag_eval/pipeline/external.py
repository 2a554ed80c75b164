"""The guard on units of an outside retriever: verdicts of overlapping chunks, or a scan."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.config import GoldSetConfig
from rag_eval.pipeline.corpus import CorpusChunks, EvidenceTrust
from rag_eval.trust.guard import ALLOWED, screen
from rag_eval.trust.restating import restated_pairs
from rag_eval.trust.sources import vouched_for

RANK = {"clean": 0, "hint": 0, "warning": 1, "blocked": 2}


@dataclasses.dataclass(frozen=True)
class UnitVerdicts:
    """Verdicts on the units of a strategy.

    The trust of a unit of an unknown document is 0. `pairs` are the blocked pairs of wording and
    unit, as `variant * n_units + unit`.
    """

    trust: FloatArray
    verdict: npt.NDArray[np.object_]
    reasons: list[list[str]]
    pairs: IntArray


def _overlapping(units: pd.DataFrame, chunks: pd.DataFrame, evidence: pd.DataFrame) -> pd.DataFrame:
    """Match units with the chunks that are not clean: rows of unit, verdict and reasons.

    A unit matches the chunks that share characters with it. A unit without a place matches every
    chunk of a document when all chunks of the document are blocked.
    """
    is_blocked = evidence["verdict"] == "blocked"
    marked = chunks[["doc_id", "start", "end"]].assign(
        verdict=evidence["verdict"].to_numpy(),
        reasons=evidence["reasons"].to_numpy(),
        wholly=is_blocked.groupby(evidence["doc_id"]).transform("all").to_numpy(),
    )
    marked = marked[marked["verdict"] != "clean"]
    places = units[["doc_id", "start", "end"]].assign(unit=np.arange(len(units)))
    met = places.merge(marked, on="doc_id", suffixes=("", "_chunk"))
    is_placed = met["start"] >= 0
    shares = (met["start_chunk"] < met["end"]) & (met["start"] < met["end_chunk"])
    return met[(is_placed & shares) | (~is_placed & met["wholly"])]


def unit_verdicts(
    config: GoldSetConfig,
    corpus_chunks: CorpusChunks,
    evidence_trust: EvidenceTrust,
    texts_asked: list[str],
    units: pd.DataFrame,
) -> UnitVerdicts:
    """Judge the units of an external strategy (UNITS frame)."""
    evidence, n = evidence_trust.trust, len(units)
    rank = np.zeros(n, dtype=np.int64)
    reasons: list[list[str]] = [[] for _ in range(n)]

    def mark(unit: int, verdict: str, codes: Sequence[str]) -> None:
        rank[unit] = max(rank[unit], RANK[verdict])
        reasons[unit] += [code for code in codes if code not in reasons[unit]]

    met = _overlapping(units, corpus_chunks.chunks, evidence)
    for unit, verdict, codes in zip(met["unit"], met["verdict"], met["reasons"], strict=True):
        mark(unit, verdict, codes)
    # Do not screen text that a person allowed. The loop above covers the other overlapping chunks.
    is_allowed = np.array([ALLOWED in codes for codes in reasons], dtype=bool)
    texts, returned = (units[name].to_numpy(dtype=object) for name in ("text", "returned"))
    foreign = np.flatnonzero((units["chunk"] < 0).to_numpy() & (texts != "") & ~is_allowed)
    # The returned text differs from the corpus, so no judgement or allowance covers it.
    other = np.flatnonzero(returned != "")
    places = np.concatenate([foreign, other])
    scanned = screen([str(text) for text in (*texts[foreign], *returned[other])])
    for row, check, rule, severity in zip(
        *(scanned[name] for name in ("row", "check", "rule", "severity")), strict=True
    ):
        mark(places[row], severity, [f"{check}.{rule}"] if RANK[severity] else [])
    facts = evidence.drop_duplicates("doc_id").set_index("doc_id").reindex(units["doc_id"])
    unknown = "unknown" if config.trust.configured else "not_configured"
    vouched = vouched_for(facts.fillna({"domain_state": unknown, "signature_state": unknown}))
    at = np.concatenate([np.arange(n), other])
    pairs = restated_pairs(
        texts_asked,
        [*texts, *returned[other]],
        titles=[""] * len(at),
        doc_ids=units["doc_id"].iloc[at].tolist(),
        sources=facts["domain"].fillna("").iloc[at].tolist(),
        vouched=None if vouched is None else vouched[at],
    )
    pairs = pairs[pairs["severity"] == "blocked"]
    query, place = (pairs[name].to_numpy(dtype=np.int64) for name in ("query", "chunk"))
    counts = (place >= n) | ~is_allowed[at[place]]
    return UnitVerdicts(
        facts["trust"].fillna(0.0).to_numpy(dtype=np.float64),
        np.array(["clean", "warning", "blocked"], dtype=object)[rank],
        reasons,
        np.unique((query * max(1, n) + at[place])[counts]),
    )
