"""Gold spans in the units that a question's retrievals brought: a window of the unit's text with the marked characters.

Belongs here: which units overlap which spans. How a window is cut is `explorer_texts`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.explorer_rankings import IntArray, Top, Units
from rag_eval.evaluation.explorer_texts import marked
from rag_eval.evaluation.gold_steps import GoldArrays

Places = pd.DataFrame
"""doc_id, start, end and text of what the lists name, by unit; start is -1 where the place is not known."""
Marks = dict[int, dict[str, dict[str, Any]]]
"""Question -> number of the unit -> text and at."""


def _retrieved(
    tops: Sequence[Top], gold: GoldArrays, asked: IntArray, n_units: int
) -> tuple[IntArray, IntArray]:
    """Question and unit of everything that stands in a list of one of the questions `asked`, each pair once."""
    wanted = np.isin(gold.query_of, asked)
    codes = []
    for top in tops:
        units = top.units[:, wanted]
        pairs = gold.query_of[wanted][None, :, None] * n_units + units
        codes.append(np.unique(pairs[units >= 0]))
    found = np.unique(np.concatenate(codes))
    return found // n_units, found % n_units


def _overlaps(
    question: IntArray, unit: IntArray, places: Places, spans: pd.DataFrame, owner: IntArray
) -> tuple[IntArray, IntArray]:
    """Pairs (place in `question`, row of `spans`) that share characters, in the order of `question`."""
    order = np.argsort(owner, kind="stable")
    first, last = (np.searchsorted(owner[order], question, side=side) for side in ("left", "right"))
    counts = last - first
    pair = np.repeat(np.arange(len(question)), counts)
    within = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    span = order[np.repeat(first, counts) + within]
    documents = pd.Index(spans["doc_id"].unique())
    of_unit, of_span = (
        documents.get_indexer(pd.Index(places["doc_id"])),
        documents.get_indexer(pd.Index(spans["doc_id"])),
    )
    low, high = places["start"].to_numpy(), places["end"].to_numpy()
    begin, end = spans["start"].to_numpy(), spans["end"].to_numpy()
    at = unit[pair]
    meets = (
        (of_unit[at] == of_span[span])
        & (low[at] >= 0)
        & (begin[span] < high[at])
        & (low[at] < end[span])
        & (begin[span] < end[span])
    )
    return pair[meets], span[meets]


def gold_marks(
    tops: Sequence[Top], units: Units, gold: GoldArrays, places: Places, spans: pd.DataFrame
) -> Marks:
    """Mark the gold spans of every question in the units that some retrieval of it brought.

    Parameters
    ----------
    tops, units
        Of `explorer_rankings.rankings`.
    gold
        The gold over the chunks.
    places
        By unit.
    spans
        SPANS frame.
    """
    owner = np.asarray(
        pd.Index(gold.queries["query_id"]).get_indexer(pd.Index(spans["query_id"])), dtype=np.int64
    )
    if not len(spans) or not tops:
        return {}
    question, unit = _retrieved(tops, gold, np.unique(owner), len(units.number))
    pair, span = _overlaps(question, unit, places, spans, owner)
    begin, end, texts = (
        spans["start"].to_numpy(),
        spans["end"].to_numpy(),
        places["text"].to_numpy(dtype=object),
    )
    low, high = places["start"].to_numpy()[unit[pair]], places["end"].to_numpy()[unit[pair]]
    starts, ends = (
        (np.maximum(begin[span], low) - low).tolist(),
        (np.minimum(end[span], high) - low).tolist(),
    )
    by_pair: dict[int, list[tuple[int, int]]] = {}
    for at, *edges in zip(pair.tolist(), starts, ends, strict=True):
        by_pair.setdefault(at, []).append((edges[0], edges[1]))
    found: Marks = {}
    for at, edges_of in by_pair.items():
        text, where = marked(str(texts[unit[at]]), edges_of)
        if where:
            found.setdefault(int(question[at]), {})[str(units.number[unit[at]])] = {
                "text": text,
                "at": where,
            }
    return found
