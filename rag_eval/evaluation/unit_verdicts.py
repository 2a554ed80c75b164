"""What the guard says of units that an outside retriever returned: verdicts of our chunks where they overlap, a scan of the text where they do not."""

import dataclasses

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.evaluation.corpus_steps import corpus_chunks
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.trust_steps import evidence_trust
from rag_eval.trust.restated_readings import restated_pairs
from rag_eval.trust.screening import screen
from rag_eval.trust.verdicts import ALLOWED, vouched_for

RANK = {"clean": 0, "hint": 0, "warning": 1, "blocked": 2}


@dataclasses.dataclass(frozen=True)
class UnitVerdicts:
    """Trust (a unit of no known document has none: 0), verdict and reasons by row of units; blocked (wording, unit) pairs as `variant * n_units + unit`."""

    trust: npt.NDArray[np.float64]
    verdict: npt.NDArray[np.object_]
    reasons: list[list[str]]
    pairs: npt.NDArray[np.int64]


def _overlapping(units: pd.DataFrame, chunks: pd.DataFrame, evidence: pd.DataFrame) -> pd.DataFrame:
    """Rows (unit, verdict, reasons) of units that share characters with a chunk that is not clean; where a unit has no place, every such chunk of a document that has no clean one."""
    poor = np.flatnonzero((evidence["verdict"] != "clean").to_numpy())
    marked = pd.DataFrame(
        {
            "doc_id": chunks["doc_id"].to_numpy()[poor],
            "low": chunks["start"].to_numpy()[poor],
            "high": chunks["end"].to_numpy()[poor],
            "verdict": evidence["verdict"].to_numpy()[poor],
            "reasons": evidence["reasons"].to_numpy()[poor],
        }
    )
    wholly = evidence.groupby("doc_id")["verdict"].agg(
        lambda verdicts: bool((verdicts == "blocked").all())
    )
    places = pd.DataFrame(
        {
            "unit": np.arange(len(units)),
            "doc_id": units["doc_id"].to_numpy(),
            "start": units["start"].to_numpy(),
            "end": units["end"].to_numpy(),
        }
    )
    met = places.merge(marked, on="doc_id")
    placeless = (met["start"] < 0) & met["doc_id"].map(wholly).fillna(value=False).to_numpy(
        dtype=bool
    )
    return met[
        ((met["start"] >= 0) & (met["low"] < met["end"]) & (met["start"] < met["high"])) | placeless
    ]


def unit_verdicts(evaluation: Evaluation, units: pd.DataFrame) -> UnitVerdicts:
    """Judge the units of an external strategy (UNITS frame)."""
    chunks, trust = corpus_chunks(evaluation).frame("chunks"), evidence_trust(evaluation)
    evidence = trust.frame("trust")
    rank = np.zeros(len(units), dtype=np.int64)
    reasons: list[list[str]] = [[] for _ in range(len(units))]
    found = _overlapping(units, chunks, evidence)
    for unit, verdict, codes in zip(
        found["unit"].tolist(), found["verdict"].tolist(), found["reasons"].tolist(), strict=True
    ):
        rank[unit] = max(rank[unit], RANK[verdict])
        reasons[unit] += [code for code in codes if code not in reasons[unit]]
    let = np.array(
        [ALLOWED in codes for codes in reasons], dtype=bool
    )  # a person looked at this text: whatever else it reaches into was judged above
    texts, returned = units["text"].to_numpy(dtype=object), units["returned"].to_numpy(dtype=object)
    foreign = np.flatnonzero((units["chunk"] < 0).to_numpy() & (texts != "") & ~let)
    other = np.flatnonzero(
        returned != ""
    )  # not the text that stands in the corpus: nobody looked at it, whatever was judged or allowed there
    places = np.concatenate([foreign, other])
    scanned = screen([str(text) for text in (*texts[foreign], *returned[other])])
    for place, check, rule, severity in zip(
        *(scanned[name].tolist() for name in ("row", "check", "rule", "severity")), strict=True
    ):
        unit, code = int(places[place]), f"{check}.{rule}"
        rank[unit] = max(rank[unit], RANK[severity])
        if RANK[severity] and code not in reasons[unit]:
            reasons[unit].append(code)
    facts = (
        evidence.drop_duplicates("doc_id").set_index("doc_id").reindex(units["doc_id"].to_numpy())
    )
    states = {
        name: facts[name]
        .fillna("unknown" if evaluation.config.trust.configured else "not_configured")
        .to_numpy(dtype=object)
        for name in ("domain_state", "signature_state")
    }
    vouched = vouched_for(states["domain_state"].tolist(), states["signature_state"].tolist())
    at = np.concatenate([np.arange(len(units)), other])
    sources, doc_ids = (
        facts["domain"].fillna("").to_numpy(dtype=object),
        units["doc_id"].to_numpy(dtype=object),
    )
    pairs = restated_pairs(
        gold_variants(evaluation).frame("variants")["text"].tolist(), [*texts, *returned[other]], titles=[""] * len(at),
        doc_ids=doc_ids[at].tolist(), sources=sources[at].tolist(), vouched=None if vouched is None else vouched[at],
    )  # fmt: skip
    place = pairs["chunk"].to_numpy(dtype=np.int64)
    kept = (pairs["severity"] == "blocked").to_numpy() & ~((place < len(units)) & let[at[place]])
    codes = np.unique(
        pairs["query"].to_numpy(dtype=np.int64)[kept] * max(1, len(units)) + at[place[kept]]
    )
    return UnitVerdicts(
        facts["trust"].fillna(0.0).to_numpy(dtype=np.float64),
        np.array(["clean", "warning", "blocked"], dtype=object)[rank],
        reasons,
        codes,
    )
