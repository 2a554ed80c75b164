"""RetrievalPort, version 1, over ready strategies: what a caller of the library uses, and what latency is measured through."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.records.retrieval import (
    RetrievalMetadata,
    RetrievalOptions,
    RetrievalResult,
    RetrievalStats,
    StrategyKind,
)
from rag_eval.retrieval.guarding import SPARE, QueryGuard
from rag_eval.retrieval.payloads import Payloads
from rag_eval.retrieval.ranking import Ranking
from rag_eval.retrieval.strategies import ReadyStrategy

FILTERS = ("doc_id", "section_id")


class RetrievalService:
    """Serves chunks of one corpus revision.

    Parameters
    ----------
    strategies
        Kind -> strategy; the kinds that callers may ask for.
    documents
        DOCUMENTS frame of the corpus.
    corpus_rev
        Revision of the corpus.
    default
        Kind used where the options name none.
    trust
        Trust of each chunk in [0, 1], float [n_chunks]; None where sources were not screened.
    guard
        Leaves out what restates a query; None where quarantine is off.
    default_threshold
        Trust threshold of calls that name none; None filters nothing. A call that wants no filter names 0.
    seed
        Chooses the graph of an approximate strategy; it must have been built.
    """

    version = 1

    def __init__(
        self,
        strategies: Mapping[StrategyKind, ReadyStrategy],
        documents: pd.DataFrame,
        *,
        corpus_rev: str,
        default: StrategyKind,
        trust: npt.NDArray[np.float64] | None = None,
        guard: QueryGuard | None = None,
        default_threshold: float | None = None,
        seed: int = 0,
    ) -> None:
        if default not in strategies:
            raise ValueError(f"default: found {default}, accepted {', '.join(strategies)}")
        if default_threshold is not None and trust is None:
            raise ValueError(
                "default_threshold: this index has no trust scores, so nothing can be filtered by them"
            )
        self._strategies = dict(strategies)
        self._default = default
        self._table = strategies[default].index.table
        self._trust = trust
        self._guard = guard
        self._default_threshold = default_threshold
        self._seed = seed
        self._corpus_rev = corpus_rev
        self._n_documents = len(documents)
        frame = self._table.frame
        self._columns = {name: frame[name].to_numpy() for name in FILTERS}
        self._payloads = Payloads(frame, documents)

    def retrieve(self, query: str, options: RetrievalOptions) -> RetrievalResult:
        """Retrieve for one query, embedding it anew."""
        return self._retrieve([query], options)[0]

    def batch_retrieve(
        self, queries: Sequence[str], options: RetrievalOptions
    ) -> list[RetrievalResult]:
        """Retrieve for many queries at once."""
        return self._retrieve(list(queries), options) if queries else []

    def stats(self) -> RetrievalStats:
        """Describe the corpus and its indexes."""
        hashes = {strategy.name: strategy.index_hash for strategy in self._strategies.values()}
        return RetrievalStats(
            self._n_documents,
            len(self._table),
            self._corpus_rev,
            self._table.chunks_hash,
            hashes,
            self._default,
        )

    def _allowed(self, options: RetrievalOptions) -> npt.NDArray[np.bool_] | None:
        allowed = np.ones(len(self._table), dtype=bool)
        for name, wanted in (options.filters or {}).items():
            if name not in FILTERS:
                raise ValueError(f"filters: found {name!r}, accepted {', '.join(FILTERS)}")
            allowed &= np.isin(
                self._columns[name].astype(str),
                [wanted] if isinstance(wanted, str) else list(wanted),
            )
        threshold = (
            self._default_threshold if options.trust_threshold is None else options.trust_threshold
        )
        if threshold is not None:
            if self._trust is None:
                raise ValueError(
                    "trust_threshold: this index has no trust scores, so nothing can be filtered by them"
                )
            allowed &= self._trust >= threshold
        return None if allowed.all() else allowed

    def _retrieve(self, queries: list[str], options: RetrievalOptions) -> list[RetrievalResult]:
        kind = options.strategy or self._default
        strategy = self._strategies.get(kind)
        if strategy is None:
            raise ValueError(f"strategy: found {kind}, accepted {', '.join(self._strategies)}")
        started = time.perf_counter()
        allowed = self._allowed(options)
        if self._guard is None:
            found = strategy.search(
                queries, options.top_k, self._seed, allowed=allowed, cached=False
            )
            places = [(found, query) for query in range(len(queries))]
        else:
            places = self._guarded(self._guard, strategy, queries, options.top_k, allowed)
        duration = (time.perf_counter() - started) / len(queries)
        return [self._result(strategy, found, query, duration) for found, query in places]

    def _guarded(
        self,
        guard: QueryGuard,
        strategy: ReadyStrategy,
        queries: list[str],
        top_k: int,
        allowed: npt.NDArray[np.bool_] | None,
    ) -> list[tuple[Ranking, int]]:
        """Each query's ranking without what restates it, and the query's place in that ranking.

        A query of which too much was left out is searched again with twice the depth, until top_k are left or its ranking has no more: however many
        pages are planted, they take no place of others. The other queries of a batch keep what they have, so that none depends on its neighbours.
        """
        places: dict[int, tuple[Ranking, int]] = {}
        due, depth = list(range(len(queries))), top_k + SPARE
        while due:
            asked = [queries[query] for query in due]
            found = strategy.search(asked, depth, self._seed, allowed=allowed, cached=False)
            kept = guard.apply(asked, found).cut(top_k)
            places.update({query: (kept, place) for place, query in enumerate(due)})
            more = (found.found.sum(axis=1) >= depth) & (depth < len(self._table))
            due = [
                due[place]
                for place in np.flatnonzero(more & (kept.found.sum(axis=1) < top_k)).tolist()
            ]
            depth = min(2 * depth, len(self._table))
        return [places[query] for query in range(len(queries))]

    def _result(
        self, strategy: ReadyStrategy, found: Ranking, query: int, duration: float
    ) -> RetrievalResult:
        chunks = []
        for place, row in enumerate(found.rows[query].tolist()):
            if row < 0:
                break
            rerank = float(found.rerank[query, place])
            chunks.append(
                self._payloads.scored(
                    row,
                    index_hash=strategy.index_hash,
                    embed_model=strategy.embed_model,
                    score_raw=float(found.raw[query, place]),
                    score_norm=float(found.norm[query, place]),
                    k_pos=int(found.k_pos[query, place]),
                    k_final=place + 1,
                    rerank_score=None if np.isnan(rerank) else rerank,
                )
            )
        trust = (
            {}
            if self._trust is None
            else {
                chunk.snippet_id: float(self._trust[self._table.row_of[chunk.snippet_id]])
                for chunk in chunks
            }
        )
        return RetrievalResult(
            tuple(chunks),
            RetrievalMetadata(strategy.name, duration, int(found.candidates[query]), trust),
        )
