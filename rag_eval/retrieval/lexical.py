"""Lexical retrieval, kind `bm25`: BM25 through bm25s, or through rank-bm25.

bm25s, method "lucene": score(q, d) = sum over query terms of
idf(t) * tf / (tf + k1 * (1 - b + b * |d| / avgdl)), idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5)),
which is Lucene's BM25 (Kamphuis et al., ECIR 2020) without its constant factor.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from rag_eval.core.arrays import BoolArray, FloatArray, Int32Array, IntArray, expand_ranges
from rag_eval.core.strategy import PriorKind, Retriever
from rag_eval.corpus.analyzer import ANALYZER, Rows, TermRows, count_matrix
from rag_eval.retrieval.ranking import ROUNDING, Ranking, order, ranking, scale_by_top
from rag_eval.retrieval.strategies import LocalStrategy, Request, StrategyIndex
from rag_eval.storage.artifacts import make_scratch_array
from rag_eval.storage.hashing import digest, library_versions

Terms = Sequence[Sequence[int]]
Scored = npt.NDArray[np.float32] | None
"""Score of every chunk, [n_chunks]; None for a query without a known term."""
Scores = Mapping[str, npt.NDArray[Any]]
"""Arrays of bm25s: a CSC matrix of `data`, `indices` (chunks) and `indptr` [n_terms + 1]."""


def score_postings(
    documents: TermRows, n_terms: int, *, k1: float, b: float, folder: Path | None = None
) -> Scores:
    """Compute the arrays that bm25s computes, with the same bits, in bounded memory.

    bm25s itself counts in Python and sorts all postings at once. Here, each block of chunks is
    sorted on its own, and its scores go to an unnamed file in `folder`, which is memory-mapped.
    """
    from bm25s.scoring import _score_idf_lucene, _score_tfc_lucene

    blocks = [
        (tf.astype(np.float32), terms, indptr)
        for tf, terms, indptr in (count_matrix(block, n_terms) for block in documents.blocks())
    ]
    frequency = np.zeros(n_terms, dtype=np.int64)
    for _, terms, _ in blocks:
        frequency += np.bincount(terms, minlength=n_terms)
    distinct, place = np.unique(frequency, return_inverse=True)
    weights = [_score_idf_lucene(count, len(documents)) for count in distinct.tolist()]
    idf = np.array(weights, dtype=np.float32)[place]
    indptr = np.concatenate([[0], np.cumsum(frequency)])
    data = make_scratch_array((int(indptr[-1]),), np.float32, folder)
    indices = make_scratch_array((int(indptr[-1]),), np.int32, folder)
    lengths, free, first = np.diff(documents.indptr), indptr[:-1].copy(), 0
    mean = lengths.mean()
    for tf, terms, starts in blocks:
        chunk = first + np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
        scores = idf[terms] * _score_tfc_lucene(tf, lengths[chunk], mean, k1, b)
        by_term, added = np.argsort(terms, kind="stable"), np.bincount(terms, minlength=n_terms)
        used = np.flatnonzero(added)
        target = expand_ranges(free[used], added[used])[1]
        data[target], indices[target] = scores[by_term], chunk[by_term]
        free += added
        first += len(starts) - 1
    return {"data": data, "indices": indices, "indptr": indptr}


class Bm25s:
    """A BM25 index over the term ids of chunks; terms at or above `n_terms` are unknown.

    `scores` are the arrays of `score_postings`, if they are stored.
    """

    def __init__(
        self, documents: Rows, n_terms: int, *, k1: float, b: float, scores: Scores | None = None
    ) -> None:
        import bm25s

        documents = TermRows.of(documents)
        self.n_chunks = len(documents)
        scores = scores or score_postings(documents, n_terms, k1=k1, b=b)
        self.frequency: IntArray = np.diff(scores["indptr"])
        """Number of chunks that hold each term, [n_terms]."""
        self._index: Any = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
        self._index.scores = {**scores, "num_docs": self.n_chunks}
        self._index.nonoccurrence_array = None  # only other methods have one
        self._index.unique_token_ids_set = range(n_terms)

    def search(self, queries: Terms, depth: int, allowed: BoolArray | None = None) -> Ranking:
        """Rank chunks that share a term with the query; a repeated query term counts each time.

        At most `depth` chunks are ranked, and only those of the mask `allowed`.
        """
        return _rank(map(self._score, queries), min(depth, self.n_chunks), allowed)

    def _score(self, query: Sequence[int]) -> Scored:
        terms = [term for term in query if term < len(self.frequency) and self.frequency[term]]
        return self._index.get_scores_from_ids(terms) if terms else None


def _rank(scores: Iterable[Scored], depth: int, allowed: BoolArray | None) -> Ranking:
    """Rank the chunks with a positive score, of each query in turn; None retrieves nothing."""
    nothing = np.zeros(0, dtype=np.float32)
    mask = True if allowed is None else allowed
    dense = (
        nothing if each is None else np.where((each > 0) & mask, each, np.float32(-np.inf))
        for each in scores
    )
    rows, best = _select(dense, depth)
    return ranking(rows, best, scale_by_top(best))


def _select(dense: Iterable[npt.NDArray[np.float32]], depth: int) -> tuple[Int32Array, FloatArray]:
    """Select the top `depth` of each query's scores, one array [n_chunks] a query, read in turn.

    -inf is never selected. An array of length 0 selects nothing.
    """
    near = [_find_near(scores, depth) for scores in dense]
    rows = np.full((len(near), max([depth, *(len(chunks) for chunks, _ in near)])), -1, np.int32)
    values = np.full(rows.shape, -np.inf)
    for query, (chunks, scores) in enumerate(near):
        rows[query, : len(chunks)], values[query, : len(chunks)] = chunks, scores
    return order(rows, values, depth)


def _find_near(scores: npt.NDArray[np.float32], depth: int) -> tuple[Int32Array, FloatArray]:
    """Find the scores that may be among the best `depth` after rounding, at most twice as many."""
    floor = np.finfo(np.float32).min
    if len(scores) > depth:
        floor = max(floor, np.partition(scores, -depth)[-depth] - np.float32(10.0**-ROUNDING))
    near = np.flatnonzero(scores >= floor)
    rows, values = near.astype(np.int32), scores[near].astype(np.float64)
    if len(near) > 2 * depth:  # many equal scores
        (rows,), (values,) = order(rows[None], values[None], depth)
    return rows, values


# ---- rank-bm25 (`BM25Okapi`): slow and well-known, for comparison with published work.

_SMALLEST_K1 = 1e-9
"""Replacement for k1 = 0, where the library divides 0 by 0; equal scores to nine digits."""


class RankBm25:
    """A `rank_bm25.BM25Okapi` index over term ids, with a Python loop for each new term.

    The idf ln((N - df + 0.5) / (df + 0.5)) is negative for terms in more than half of the chunks.
    The library lifts a negative idf to 0.25 times the mean idf. Only positive scores are ranked.
    """

    def __init__(self, documents: Rows, n_terms: int, *, k1: float, b: float) -> None:
        from rank_bm25 import BM25Okapi

        documents = TermRows.of(documents)
        self.n_chunks = len(documents)
        self._parts_of: dict[int, tuple[IntArray, FloatArray]] = {}
        chunk_of = np.repeat(np.arange(self.n_chunks), np.diff(documents.indptr))
        by_term = np.argsort(documents.ids, kind="stable")
        ends = np.cumsum(np.bincount(documents.ids, minlength=n_terms))
        self._chunks_of = np.split(chunk_of[by_term], ends[:-1])
        rows = [row.tolist() for row in np.split(documents.ids, documents.indptr[1:-1])]
        options = {"k1": max(k1, _SMALLEST_K1), "b": b, "epsilon": 0.25}
        self._index: Any = BM25Okapi(rows, **options) if len(documents.ids) else None

    def search(self, queries: Terms, depth: int, allowed: BoolArray | None = None) -> Ranking:
        """Rank chunks with a positive score; parameters as for `Bm25s.search`."""
        return _rank(map(self._score, queries), min(depth, self.n_chunks), allowed)

    def _score(self, query: Sequence[int]) -> Scored:
        if self._index is None or not query:
            return None
        total = np.zeros(self.n_chunks)
        for term in query:  # in the order of the library's own sum
            if term < len(self._chunks_of):
                chunks, parts = self._parts(term)
                total[chunks] += parts
        return total.astype(np.float32)

    def _parts(self, term: int) -> tuple[IntArray, FloatArray]:
        """Return the chunks that a term adds to the score of, and what it adds.

        The library has no postings, so it is asked about the chunks that hold the term.
        """
        if term not in self._parts_of:
            chunks = np.unique(self._chunks_of[term])
            scores = np.asarray(self._index.get_batch_scores([term], chunks))
            self._parts_of[term] = chunks, scores
        return self._parts_of[term]


# ---- Shared parts of strategies with terms: options, identity and search.


class LexicalStrategy(LocalStrategy):
    """Base class of the kinds that search by terms."""

    engine: Literal["bm25s", "rank-bm25"] = "bm25s"
    """Library that computes BM25."""
    k1: float = Field(default=0.9, ge=0, le=10)
    """How soon repeated terms stop counting."""
    b: float = Field(default=0.4, ge=0, le=1)
    """How strongly long chunks are held back."""

    def index_hash(self, chunks_hash: str, model: str) -> str:  # noqa: ARG002 - no vectors
        """Name the index of terms by engine, chunks, analyzer and parameters."""
        parameters = {"k1": self.k1, "b": self.b}
        version = library_versions()[self.engine]
        return f"{self.engine}:{digest([chunks_hash, ANALYZER, '', version, parameters])}"

    def rank(self, index: StrategyIndex, request: Request) -> Ranking:
        """Rank chunks by their terms."""
        terms = index.table.search_terms(request.texts)
        if self.engine == "rank-bm25":
            okapi = index.engine(
                f"rank-bm25 {self.k1} {self.b}",
                lambda: RankBm25(index.table.terms, index.table.n_terms, k1=self.k1, b=self.b),
            )
            return okapi.search(terms, request.depth, request.allowed)
        lucene = bm25s_engine(index, self.k1, self.b)
        return lucene.search(terms, request.depth, request.allowed)


class Bm25(LexicalStrategy):
    """BM25. `bm25s` computes it as Lucene does; `rank-bm25` is that package's Okapi variant."""

    kind: Literal["bm25"]
    second: ClassVar[Retriever] = "vector"
    prior: ClassVar[PriorKind] = "bm25"

    @property
    def store_name(self) -> str:
        """Name the library that holds the postings."""
        return self.engine

    def question_price(self, per_1k_tokens: float) -> float:  # noqa: ARG002 - none is embedded
        """Return 0, because this kind embeds no question."""
        return 0.0


def bm25s_engine(index: StrategyIndex, k1: float = 0.9, b: float = 0.4) -> Bm25s:
    """Return the shared BM25 index of the chunks; its arrays are stored and memory-mapped."""
    table = index.table

    def score() -> Scores:
        return score_postings(table.terms, table.n_terms, k1=k1, b=b, folder=table.scratch)

    def build() -> Bm25s:
        made_by = [table.analyzer_name, library_versions()["bm25s"], k1, b]
        scores = table.keep("bm25_scores", made_by, score)
        return Bm25s(table.terms, table.n_terms, k1=k1, b=b, scores=scores)

    return index.engine(f"bm25s {k1} {b}", build)
