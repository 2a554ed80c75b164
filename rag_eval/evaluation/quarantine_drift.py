"""Which chunks the quarantine holds back, and which targets of the gold lie in them: put down with a run, compared with a baseline's.

Belongs here: what was held back then and now. What else drifts is `drift`; who holds chunks back, and why, are the stages of trust.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rag_eval.measures.levels import Extents, span_carriers
from rag_eval.storage.hashing import digest

if TYPE_CHECKING:
    from collections.abc import Iterable

NOT_KEPT = "the baseline does not say what was quarantined when it was made: it was accepted by an earlier version, or without the chunks of its run; rag-eval baseline accept keeps it from now on"


@dataclasses.dataclass(frozen=True)
class Quarantine:
    """What the index of a run was made from and without.

    Parameters
    ----------
    chunks
        chunk_id, text_hash and held (whether it is not in the index) of every chunk, in their order.
    held_targets
        query_id, chunk_id: chunks that are held back and carry quoted evidence of the question, or belong to a document that is judged relevant
        to it and of which nothing is quoted.
    """

    chunks: pd.DataFrame
    held_targets: pd.DataFrame

    @property
    def cut(self) -> str:
        """Hash of all chunks, whether or not they are held back."""
        return digest([self.chunks["chunk_id"].tolist(), self.chunks["text_hash"].tolist()])

    @property
    def held(self) -> set[str]:
        """Ids of the chunks that are held back."""
        return set(self.chunks.loc[self.chunks["held"], "chunk_id"])


def quarantine(
    cut: pd.DataFrame, admitted: pd.DataFrame, judged: pd.DataFrame, spans: pd.DataFrame
) -> Quarantine:
    """Put down what is held back.

    Parameters
    ----------
    cut, admitted
        CHUNKS of the whole corpus, and of the index.
    judged
        query_id, doc_id of relevant documents.
    spans
        SPANS of the quoted evidence; it counts in place of the documents that it is quoted of.
    """
    held = ~cut["chunk_id"].isin(admitted["chunk_id"])
    behind = cut.loc[held, ["chunk_id", "doc_id", "start", "end"]]
    of_judged, of_quoted = (
        pd.MultiIndex.from_frame(part[["query_id", "doc_id"]].astype(str))
        for part in (judged, spans)
    )
    whole = judged[~of_judged.isin(of_quoted)]
    of_documents = whole.merge(behind, on="doc_id")[["query_id", "chunk_id"]]
    documents = pd.Index(sorted({*spans["doc_id"], *behind["doc_id"]}))

    def extents(part: pd.DataFrame) -> Extents:
        return Extents(
            documents.get_indexer(pd.Index(part["doc_id"])),
            part["start"].to_numpy(dtype=np.int64),
            part["end"].to_numpy(dtype=np.int64),
        )

    indptr, carriers = span_carriers(extents(spans), extents(behind))
    owner = np.repeat(np.arange(len(spans)), np.diff(indptr))
    of_spans = pd.DataFrame(
        {
            "query_id": spans["query_id"].to_numpy()[owner],
            "chunk_id": behind["chunk_id"].to_numpy()[carriers],
        }
    )
    targets = (
        pd.concat([of_documents, of_spans], ignore_index=True)
        .astype(str)
        .drop_duplicates()
        .sort_values(["query_id", "chunk_id"], ignore_index=True)
    )
    return Quarantine(
        cut[["chunk_id", "text_hash"]].assign(held=held.to_numpy()).reset_index(drop=True), targets
    )


@dataclasses.dataclass(frozen=True)
class Moved:
    """What the quarantine holds back now and did not, and what it did and does not: chunks, and the questions whose targets these are."""

    held_back: set[str]
    freed: set[str]
    targets_held_back: set[str]
    targets_freed: set[str]
    same_cut: bool


def moved(before: Quarantine, now: Quarantine, shared: "Iterable[str]") -> Moved:
    """Compare two quarantines; of the questions only the shared ones. A chunk is freed when it is in the index now: one that is no longer there at all is not."""
    indexed = set(now.chunks.loc[~now.chunks["held"], "chunk_id"])
    held_back, freed, asked = now.held - before.held, before.held & indexed, set(shared)
    hit = [
        set(part.held_targets.loc[part.held_targets["chunk_id"].isin(chunks), "query_id"]) & asked
        for part, chunks in ((now, held_back), (before, freed))
    ]
    return Moved(held_back, freed, hit[0], hit[1], before.cut == now.cut)


def told(found: Moved) -> list[str]:
    """Say it in sentences; nothing where the quarantine is the same."""
    if not found.held_back and not found.freed:
        return []
    held_back, freed = len(found.held_back), len(found.freed)
    changed = f"{_chunks(held_back)} held back that {_were(held_back)} not, {_chunks(freed)} in the index that {_were(freed)} held back"
    notes = [
        f"The quarantine differs: {changed}. Differences from the baseline are also those of the quarantine."
    ]
    if found.targets_held_back or found.targets_freed:
        notes.append(
            f"Held back are now chunks of the targets of {_questions(found.targets_held_back)} that were not, and no longer some of {_questions(found.targets_freed)}."
        )
    return notes


def _chunks(n: int) -> str:
    return f"{n} chunk{' is' if n == 1 else 's are'}"


def _were(n: int) -> str:
    return "was" if n == 1 else "were"


def _questions(ids: set[str]) -> str:
    return f"{len(ids)} question{'' if len(ids) == 1 else 's'}"


def sides(before: Quarantine, now: Quarantine) -> dict[str, tuple[Any, Any]]:
    """Hash of all chunks and number of those held back, then and now."""
    return {"all_chunks_hash": (before.cut, now.cut), "n_held": (len(before.held), len(now.held))}
