"""Rankings that were made beforehand: a TREC run, or the contexts of recorded outputs, matched to the wordings of a gold set.

Belongs here: which list is whose, and what a wording without a list means. Reading a run file is `external_run_file`.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd

from rag_eval.records.problems import quoted
from rag_eval.retrieval.external import Failure, Item, Outcome, QueryError, Retrieved
from rag_eval.retrieval.external_reply import check_distinct, parse_item

ORIGINAL = "original"

Key = tuple[str, str]
"""(query_id, paraphrase_id)."""


@dataclasses.dataclass(frozen=True)
class Listed:
    """Outcomes of all wordings, and what a reader of the figures must know about them.

    Parameters
    ----------
    outcomes
        One a wording; None where the list says nothing about it because it has no other wordings at all.
    wordings
        `all`, or `original` where only the questions' own wordings were run.
    notes
        Sentences for the report.
    """

    outcomes: list[Outcome]
    wordings: Literal["all", "original"]
    notes: list[str]


def keys_of(variants: pd.DataFrame) -> list[Key]:
    """(query_id, paraphrase_id) of each row of VARIANTS."""
    return list(zip(variants["query_id"].tolist(), variants["paraphrase_id"].tolist(), strict=True))


def match_lists(
    lists: Mapping[Key, Sequence[Item] | Failure],
    variants: pd.DataFrame,
    top_k: int,
    *,
    missing: Literal["empty", "failed"],
) -> Listed:
    """Give every wording its list.

    Parameters
    ----------
    lists
        (query_id, paraphrase_id) -> items, best first, or why there are none. Keys that are no wording of the gold set are counted in the notes.
    variants
        VARIANTS.
    top_k
        What stands behind it is cut.
    missing
        What a wording without a list means: it retrieved nothing (a run file leaves empty rankings out), or it failed (recorded outputs
        that lack the question). Where no paraphrase at all has a list, paraphrases were not run: neither.
    """
    keys = keys_of(variants)
    known = set(keys)
    has_paraphrases = any(paraphrase != ORIGINAL for _, paraphrase in known)
    original_only = has_paraphrases and not any(
        key in known and key[1] != ORIGINAL for key in lists
    )
    outcomes: list[Outcome] = []
    for key in keys:
        if original_only and key[1] != ORIGINAL:
            outcomes.append(None)
        elif key in lists or missing == "empty":
            outcomes.append(_checked(lists.get(key, ()), top_k))
        else:
            outcomes.append(QueryError("not_recorded", f"no output for {quoted(key[0])}").failure)
    notes = []
    if original_only:
        notes.append(
            "evaluated on the questions' original wordings only: there is no list for any paraphrase"
        )
    without = sum(key not in lists for key in keys if not (original_only and key[1] != ORIGINAL))
    if without and missing == "empty":
        notes.append(
            f"{without} of {len(keys) if not original_only else len({query for query, _ in keys})} wordings have no row and count as having retrieved nothing"
        )
    others = sum(key not in known for key in lists)
    if others:
        notes.append(f"{others} rankings belong to no question of the gold set and were left out")
    return Listed(outcomes, "original" if original_only else "all", notes)


def _checked(items: Sequence[Item] | Failure, top_k: int) -> Outcome:
    if isinstance(items, Failure):
        return items
    kept = tuple(items[:top_k])
    try:
        check_distinct(kept)
    except QueryError as error:
        return error.failure
    return Retrieved(kept)


def items_of(rows: Sequence[tuple[str, float, str]]) -> list[Item] | Failure:
    """Items of a list of (document, score, text), or why it cannot be used. The order is the ranking; a score that was not recorded is NaN and becomes 1 / rank."""
    chunks = [
        {"doc_id": name, "text": text, "score": 1 / place if math.isnan(score) else score}
        for place, (name, score, text) in enumerate(rows, start=1)
    ]
    try:
        return [parse_item(chunk, place) for place, chunk in enumerate(chunks, start=1)]
    except QueryError as error:
        return error.failure
