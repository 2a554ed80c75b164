"""RetrievalPort, version 1, over ready strategies. Latency is measured through this port."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray
from rag_eval.core.strategy import Identity
from rag_eval.core.types import (
    Offsets,
    RetrievalMetadata,
    RetrievalOptions,
    RetrievalResult,
    RetrievalStats,
    ScoredChunk,
    TrustScore,
    Window,
)
from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.retrieval.outside import QueryError
from rag_eval.retrieval.ranking import Ranking
from rag_eval.retrieval.strategies import ReadyStrategy

# ---- Rows of the chunks frame -> `ScoredChunk`: the citation payload of every retrieved unit.

_COLUMNS = ("chunk_id", "doc_id", "section_id", "start", "end", "tokens", "text")
_DOCUMENT_COLUMNS = ("rev", "source_url", "text", "page")


class Rank(NamedTuple):
    """Scores and ranks (from 1) of a retrieved chunk."""

    score_raw: float
    score_norm: float
    k_pos: int
    k_final: int
    rerank_score: float | None


def _find_page(page: str, text: str, start: int) -> int | str | None:
    """Return the stated page, else the page by the form feeds before a character of the text."""
    if page:
        return int(page) if page.isdecimal() else page
    return 1 + text.count("\f", 0, start) if "\f" in text else None


class Payloads:
    """The chunks of one corpus revision, ready to be cited.

    A chunk whose document is not in the frame `documents` has no rev and no address.
    """

    def __init__(
        self, chunks: pd.DataFrame, documents: pd.DataFrame, analyzer: str = ANALYZER
    ) -> None:
        self._analyzer = analyzer
        self._columns = {name: chunks[name].array for name in _COLUMNS}
        self._documents = {name: documents[name].array for name in _DOCUMENT_COLUMNS}
        self._document = pd.Index(documents["doc_id"]).get_indexer(pd.Index(chunks["doc_id"]))

    def scored(self, row: int, index: Identity, rank: Rank) -> ScoredChunk:
        """Payload of one chunk of an index."""
        chunk_id, doc_id, section_id, start, end, tokens, text = (
            self._columns[name][row] for name in _COLUMNS
        )
        document = self._document[row]
        rev, source_url, whole, page = (
            str(self._documents[name][document]) if document >= 0 else ""
            for name in _DOCUMENT_COLUMNS
        )
        start, end = int(start), int(end)
        return ScoredChunk(
            doc_id=str(doc_id),
            section_id=str(section_id),
            snippet_id=str(chunk_id),
            source_url=source_url,
            offsets=Offsets(start, end),
            tokens=int(tokens),
            index_hash=index.index_hash,
            embed_model=index.stated_model,
            analyzer=self._analyzer,
            rev=rev,
            text=str(text),
            window=Window.around(start, end, len(whole)) if start >= 0 else None,
            page=_find_page(page, whole, start),
            **rank._asdict(),
        )


# ---- The port.

FILTERS = ("doc_id", "section_id")
_NO_TRUST = "this index has no trust scores, so nothing can be filtered by them"


class RetrievalService:
    """Serves chunks of one corpus revision through the `strategies` of each kind.

    `default` is the kind of options that name none. `trust`, [n_chunks], is in [0, 1]; None when no
    trust is configured. `explain` gives trust, factors and verdict of a chunk's row; None when
    sources were not screened. `default_threshold` is the trust threshold of calls that name none; a
    call without a filter names 0. `seed` chooses the graph of an approximate strategy.
    """

    version = 1

    def __init__(
        self,
        strategies: Mapping[str, ReadyStrategy],
        documents: pd.DataFrame,
        *,
        corpus_rev: str,
        default: str,
        trust: FloatArray | None = None,
        explain: Callable[[int], TrustScore] | None = None,
        default_threshold: float | None = None,
        seed: int = 0,
    ) -> None:
        if default_threshold is not None and trust is None:
            raise ValueError(f"default_threshold: {_NO_TRUST}")
        self._strategies = dict(strategies)
        self._default = default
        self._table = self._strategy(default).index.table
        self._trust, self._explain = trust, explain
        self._default_threshold = default_threshold
        self._seed = seed
        self._corpus_rev = corpus_rev
        self._n_documents = len(documents)
        self._payloads = Payloads(self._table.frame, documents, self._table.analyzer_name)

    def _strategy(self, kind: str) -> ReadyStrategy:
        if kind not in self._strategies:
            raise ValueError(f"strategy: found {kind}, accepted {', '.join(self._strategies)}")
        return self._strategies[kind]

    def retrieve(self, query: str, options: RetrievalOptions) -> RetrievalResult:
        """Retrieve for one query, embedding it anew."""
        return self.rank([query], options)[1][0]

    def batch_retrieve(
        self, queries: Sequence[str], options: RetrievalOptions
    ) -> list[RetrievalResult]:
        """Retrieve for many queries at once."""
        return self.rank(list(queries), options)[1] if queries else []

    def rank(
        self, queries: list[str], options: RetrievalOptions
    ) -> tuple[Ranking, list[RetrievalResult]]:
        """Retrieve for queries, with their ranking as rows of the corpus's chunks.

        Raises QueryError where a user's reranker failed.
        """
        strategy, started = self._strategy(options.strategy or self._default), time.perf_counter()
        allowed = self._allowed(options)
        ranked = strategy.search(queries, options.top_k, self._seed, allowed=allowed, cached=False)
        if ranked.failure is not None:
            raise QueryError("raised", ranked.failure)
        duration = (time.perf_counter() - started) / len(queries)
        results = [self._result(strategy, ranked, at, duration) for at in range(len(queries))]
        return ranked, results

    def stats(self) -> RetrievalStats:
        """Describe the corpus and its indexes."""
        return RetrievalStats(
            self._n_documents,
            len(self._table),
            self._corpus_rev,
            self._table.chunks_hash,
            {strategy.name: strategy.index_hash for strategy in self._strategies.values()},
            self._default,
        )

    def _allowed(self, options: RetrievalOptions) -> BoolArray | None:
        allowed = np.ones(len(self._table), dtype=bool)
        for name, wanted in (options.filters or {}).items():
            if name not in FILTERS:
                raise ValueError(f"filters: found {name!r}, accepted {', '.join(FILTERS)}")
            accepted = [wanted] if isinstance(wanted, str) else list(wanted)
            allowed &= self._table.frame[name].isin(accepted).to_numpy()
        wanted_trust = options.trust_threshold
        threshold = self._default_threshold if wanted_trust is None else wanted_trust
        if threshold is not None:
            if self._trust is None:
                raise ValueError(f"trust_threshold: {_NO_TRUST}")
            allowed &= self._trust >= threshold
        return None if allowed.all() else allowed

    def _result(
        self, strategy: ReadyStrategy, ranking: Ranking, query: int, duration: float
    ) -> RetrievalResult:
        rows = ranking.rows[query][ranking.has_chunk[query]].tolist()
        parts = (ranking.raw, ranking.norm, ranking.k_pos, ranking.rerank)
        ranked = zip(rows, *(part[query].tolist() for part in parts), strict=False)
        chunks = [
            self._payloads.scored(
                row,
                strategy.identity,
                Rank(raw, norm, k_pos, k_final, None if np.isnan(rerank) else rerank),
            )
            for k_final, (row, raw, norm, k_pos, rerank) in enumerate(ranked, start=1)
        ]
        trust = {}
        if self._trust is not None:
            names = [chunk.snippet_id for chunk in chunks]
            trust = dict(zip(names, self._trust[rows].tolist(), strict=True))
        explained = tuple(map(self._explain, rows)) if self._explain else ()
        candidates = int(ranking.candidates[query])
        return RetrievalResult(
            tuple(chunks),
            RetrievalMetadata(strategy.name, duration, candidates, trust, explained),
        )
