"""The resolved gold set as arrays for the measures."""

import functools
from typing import Protocol

import numpy as np
import pandas as pd

from rag_eval.measures.overlap import NamedGold, SharedGold
from rag_eval.measures.ranking import Qrels, Spans


class GoldFrames(Protocol):
    """Frames of a gold set over one corpus, as the stage of the gold set gives them."""

    queries: pd.DataFrame
    variants: pd.DataFrame
    qrels_document: pd.DataFrame
    qrels_section: pd.DataFrame
    spans: pd.DataFrame
    span_chunks: pd.DataFrame


class GoldArrays:
    """The stored gold as arrays for the measures.

    `chunks` are the units of the rankings by row, with doc_id and section_id: chunks, or the units
    of an external retriever. `carried` (SPAN_CHUNKS) says which units carry which gold span;
    default: the chunks that carry the spans.
    `documents` and `sections` are names by code, and both have a code_of_chunk array [n_chunks].
    `query_of`, [n_variants], is the query row of each variant.
    """

    def __init__(
        self, gold: GoldFrames, chunks: pd.DataFrame, carried: pd.DataFrame | None = None
    ) -> None:
        self.queries, self.variants = gold.queries, gold.variants
        query_index = pd.Index(self.queries["query_id"])
        self.query_of = query_index.get_indexer(self.variants["query_id"])
        self.groups = pd.factorize(self.queries["group_id"], sort=True)[0]
        judged = gold.qrels_document
        answerable = self.queries.loc[self.queries["answerable"], "query_id"]
        self._without_relevant = set(answerable) - set(judged.loc[judged["gain"] > 0, "query_id"])
        documents = pd.Index(sorted(chunks["doc_id"].unique()))
        sections = pd.Index(sorted(chunks["section_id"].unique()))
        self.document_of_chunk = documents.get_indexer(chunks["doc_id"])
        self.section_of_chunk = sections.get_indexer(chunks["section_id"])
        self.qrels_document, self.documents = self._qrels(
            gold.qrels_document, query_index, documents
        )
        self.qrels_section, self.sections = self._qrels(gold.qrels_section, query_index, sections)
        spans = gold.spans
        carried = gold.span_chunks if carried is None else carried
        self.span_query = query_index.get_indexer(spans["query_id"])
        order = np.argsort(self.span_query, kind="stable")
        owner = self.span_query[order]
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        carrier_span = place[carried["span"].to_numpy(dtype=np.int64)]
        carriers = carried["chunk"].to_numpy(dtype=np.int64)
        by_span = np.argsort(carrier_span, kind="stable")
        self.spans = Spans(
            np.searchsorted(owner, np.arange(len(self.queries) + 1)),
            np.searchsorted(carrier_span[by_span], np.arange(len(spans) + 1)),
            carriers[by_span],
        )
        pairs = np.unique(np.stack([owner[carrier_span], carriers], axis=1), axis=0)
        self.qrels_chunk = Qrels.from_rows(
            pairs[:, 0], pairs[:, 1], np.ones(len(pairs), dtype=np.int64), len(self.queries)
        )

    @functools.cached_property
    def shared(self) -> SharedGold:
        """The relevant documents that the questions share, for intervals and tests."""
        question = np.repeat(np.arange(len(self.queries)), np.diff(self.qrels_document.indptr))
        relevant = self.qrels_document.gains > 0
        return SharedGold.of_pairs(
            question[relevant], self.qrels_document.items[relevant], len(self.queries)
        )

    @property
    def named_gold(self) -> NamedGold:
        """The shared gold with the ids of the questions."""
        return NamedGold(self.queries["query_id"].tolist(), self.shared)

    def _qrels(
        self, frame: pd.DataFrame, query_index: pd.Index, items: pd.Index
    ) -> tuple[Qrels, pd.Index]:
        # trec_eval scores 0 where nothing judged is relevant, so an item that no ranking holds is.
        lost = frame[frame["query_id"].isin(self._without_relevant)].drop_duplicates("query_id")
        frame = pd.concat([frame, lost.assign(item_id="\0" + lost["query_id"], gain=1)])
        # A judged document without text has no chunk. A code of its own makes it a miss.
        items = items.append(pd.Index(sorted(set(frame["item_id"]) - set(items))))
        qrels = Qrels.from_rows(
            query_index.get_indexer(pd.Index(frame["query_id"])),
            items.get_indexer(pd.Index(frame["item_id"])),
            frame["gain"].to_numpy(),
            len(query_index),
        )
        return qrels, items
