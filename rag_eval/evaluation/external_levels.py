"""What an external retriever's units are worth: levels at which they can be judged, and the gold spans that they carry."""

import numpy as np
import pandas as pd

from rag_eval.measures.levels import Extents, span_carriers
from rag_eval.records.gold_set import Level
from rag_eval.retrieval.external_units import Placed
from rag_eval.storage.artifacts import Artifact

PLACED_SHARE = 0.95
"""Share of what was retrieved that must have a place (or a section) before that level is measured; what has none counts as missing it."""
UNPLACED = "nothing was retrieved that the corpus knows, so nothing has a {what}"
TOO_FEW_PLACED = "the source names no {what} for {n} of {all} retrieved units, by id, offsets or text; at least {share:.0%} must have one"


def unmeasured_levels(placed: Placed) -> dict[Level, str]:
    """Levels at which what came back cannot be judged, with the reason. Documents always can: an unknown one is not relevant."""
    rows = placed.ranking.rows[placed.ranking.found]
    known = rows[placed.units["known"].to_numpy()[rows]]
    parts: tuple[tuple[Level, str, np.ndarray], ...] = (
        ("section", "section", (placed.units["section_id"] != "").to_numpy()),
        ("span", "place in its document", (placed.units["start"] >= 0).to_numpy()),
    )
    reasons: dict[Level, str] = {}
    for level, what, there in parts:
        without = int((~there[known]).sum())
        if not len(known):
            reasons[level] = UNPLACED.format(what=what)
        elif without > (1 - PLACED_SHARE) * len(known):
            reasons[level] = TOO_FEW_PLACED.format(
                what=what, n=without, all=len(known), share=PLACED_SHARE
            )
    return reasons


def units_for_gold(units: pd.DataFrame) -> pd.DataFrame:
    """Units as the gold arrays read them: a unit without a known section is a section of its own, which no judgement names."""
    numbered = pd.Series(
        [f"\x00{row}" for row in range(len(units))], index=units.index, dtype="str"
    )
    return units.assign(section_id=units["section_id"].where(units["section_id"] != "", numbered))


def carried_by_units(gold: Artifact, units: pd.DataFrame) -> pd.DataFrame:
    """SPAN_CHUNKS of units: what one of our chunks carries, its unit carries; others carry a span that they share at least half of the shorter with.

    There is no second best as there is for our chunks: we do not see the units that the source could have brought.
    """
    spans, own = gold.frame("spans"), gold.frame("span_chunks")
    rows = np.flatnonzero((units["chunk"] >= 0).to_numpy())
    named = pd.DataFrame({"chunk": units["chunk"].to_numpy()[rows], "unit": rows})
    chunks = own.merge(named, on="chunk")
    documents = pd.Index(spans["doc_id"].unique())
    code = documents.get_indexer(pd.Index(units["doc_id"]))
    placed = np.flatnonzero(
        (units["chunk"] < 0).to_numpy() & (units["start"] >= 0).to_numpy() & (code >= 0)
    )
    indptr, carriers = span_carriers(
        Extents(documents.get_indexer(pd.Index(spans["doc_id"])), spans["start"], spans["end"]),
        Extents(code[placed], units["start"].to_numpy()[placed], units["end"].to_numpy()[placed]),
    )
    span = np.concatenate(
        [chunks["span"].to_numpy(), np.repeat(np.arange(len(spans)), np.diff(indptr))]
    )
    unit = np.concatenate([chunks["unit"].to_numpy(), placed[carriers]])
    frame = pd.DataFrame({"span": span.astype(np.int64), "chunk": unit.astype(np.int64)})
    return frame.sort_values(["span", "chunk"], ignore_index=True)
