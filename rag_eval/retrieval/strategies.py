"""Strategies that rank chunks of this corpus: what a kind provides, and its rerank step."""

import contextlib
import dataclasses
import importlib
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from rag_eval.core.arrays import BoolArray, Float32Array, FloatArray, Int32Array
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.parts import FOREIGN, Embedding
from rag_eval.core.strategy import Identity, IdentityInputs, Strategy
from rag_eval.retrieval.embedding.embedders import Advance
from rag_eval.retrieval.embedding.source import ChunkTable, EmbeddingSource, Places, embed_model
from rag_eval.retrieval.ranking import ROUNDING, Ranking
from rag_eval.storage.hashing import digest

if TYPE_CHECKING:
    from rag_eval.retrieval.chroma import ChromaStore

T = TypeVar("T")
Step = Callable[[str, int, str], contextlib.AbstractContextManager[Advance]]
"""Shows a step of known size while it runs: title, size and unit."""

POOL = 100
"""Least number of candidates that scores are normalised over.

With this pool, a depth of ten and a depth of a hundred give the same first ten ranks."""


# ---- The rerank step: maximal marginal relevance over the vectors, or a reranker of a user.

BLOCK_BYTES = 64 * 2**20


class Reranker(Protocol):
    """Scores candidates anew. The settings map the name of a reranker to its import path."""

    name: str

    def scores(
        self, queries: Sequence[str], texts: Sequence[Sequence[str]]
    ) -> list[Sequence[float]]:
        """Return one score for each text of each query, higher is better."""
        ...


def _reorder(first: Ranking, scores: np.ndarray, picked: Int32Array) -> Ranking:
    """Reorder the first m places and keep the order of the places behind them.

    `scores` [n, m] follow the old order, NaN for an empty place. `picked` [n, m] gives the old
    places in the new order.
    """
    m = picked.shape[1]
    places = np.tile(np.arange(first.rows.shape[1], dtype=np.int32), (len(first.rows), 1))
    rerank = np.full(places.shape, np.nan)
    places[:, :m], rerank[:, :m] = picked, scores
    scored = dataclasses.replace(first, rerank=rerank)
    return scored.map(lambda part, _: np.take_along_axis(part, places, axis=1))


def _mmr(first: Ranking, vectors: Float32Array, *, lambda_: float, depth: int) -> Ranking:
    """Reorder the first `depth` places by maximal marginal relevance.

    Each step takes the candidate with the highest lambda * score_norm - (1 - lambda) * max cosine
    to the chosen candidates; ties go to the better k_pos. `vectors` has the unit vectors of all
    chunks. Carbonell and Goldstein, SIGIR 1998.
    """
    m = min(depth, first.rows.shape[1])
    scores = np.full((len(first.rows), m), np.nan)
    picked = np.tile(np.arange(m, dtype=np.int32), (len(first.rows), 1))
    block = max(1, BLOCK_BYTES // (4 * max(1, m * (m + vectors.shape[1]))))
    for start in range(0, len(first.rows), block):
        rows = first.rows[start : start + block, :m]
        candidate = vectors[np.maximum(rows, 0)]
        alike = np.matmul(candidate, candidate.transpose(0, 2, 1)).astype(np.float64)
        relevance = lambda_ * first.norm[start : start + block, :m]
        is_open = rows >= 0
        nearest = np.zeros(rows.shape)
        here = np.arange(len(rows))
        for step in range(m):
            value = np.round(relevance - (1 - lambda_) * nearest, ROUNDING)
            best = np.argmax(np.where(is_open, value, -np.inf), axis=1)
            live = is_open[here, best]
            picked[start + here[live], step] = best[live]
            scores[start + here[live], best[live]] = value[here[live], best[live]]
            is_open[here[live], best[live]] = False
            nearest = np.maximum(nearest, alike[here, :, best]) if step else alike[here, :, best]
    return _reorder(first, scores, picked)


def _check_scores(scores: Sequence[float], count: int) -> FloatArray:
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != (count,) or not np.isfinite(values).all():
        raise ValueError(
            f"reranker: {count} candidates got scores of shape {values.shape}; "
            "accepted: one finite number for each"
        )
    return values


def order_by_scores(first: Ranking, rows: Sequence[Sequence[float]], *, depth: int) -> Ranking:
    """Order the first `depth` places by a reranker's scores; ties go to the better k_pos.

    Raises `ValueError` unless a query has one finite score for each candidate.
    """
    m = min(depth, first.rows.shape[1])
    scores = np.full((len(first.rows), m), np.nan)
    counts = first.has_chunk[:, :m].sum(axis=1)
    for query, (row, count) in enumerate(zip(rows, counts, strict=True)):
        scores[query, :count] = _check_scores(row, count)
    key = np.where(np.isnan(scores), np.inf, -scores)
    return _reorder(first, scores, np.argsort(key, axis=1, kind="stable").astype(np.int32))


def _ask_reranker(
    first: Ranking,
    reranker: Reranker,
    queries: Sequence[str],
    texts: Sequence[Sequence[str]],
    depth: int,
) -> Ranking:
    """Order by a user's reranker, asked for the whole batch, and for each query where that fails.

    An error fails its own query and no other query.
    """
    with contextlib.suppress(Exception):  # foreign code; the queries at fault are found below
        return order_by_scores(first, reranker.scores(queries, texts), depth=depth)
    scores: list[Sequence[float]] = [[0.0] * len(candidates) for candidates in texts]
    failures: dict[int, str] = {}
    for at, (query, candidates) in enumerate(zip(queries, texts, strict=True)):
        try:
            (alone,) = reranker.scores([query], [candidates])
            scores[at] = _check_scores(alone, len(candidates)).tolist()
        except Exception as error:  # noqa: BLE001 - foreign code fails this query alone
            failures[at] = quoted(f"{type(error).__name__}: {error}")
    ranked = order_by_scores(first, scores, depth=depth)
    failed = np.isin(np.arange(len(queries)), list(failures))
    failure = next(iter(failures.values()), None)
    return dataclasses.replace(ranked.blank(failed), failed=failed, failure=failure)


# ---- Shared parts of strategies over one chunk table, and a strategy that is ready to search.


class StrategyIndex:
    """Everything that strategies over one chunk table share: engines, embeddings, rerankers."""

    def __init__(
        self,
        table: ChunkTable,
        places: Places,
        chroma: "ChromaStore | None" = None,
        rerankers: Mapping[str, str] | None = None,
        *,
        prefix: str = "",
    ) -> None:
        self.table, self.places = table, places
        self.chroma: ChromaStore = chroma  # type: ignore[assignment]  # only approximate search reads it
        """The store of graphs; None without an approximate strategy."""
        self.rerankers = dict(rerankers or {})
        """Import path of each reranker that gold sets may name, by name."""
        self.prefix = prefix
        """Prefix of the names of all graphs of this corpus."""
        self._engines: dict[str, Any] = {}
        self._sources: dict[str, EmbeddingSource] = {}

    def engine(self, key: str, make: Callable[[], T]) -> T:
        """Return the engine of a key, made when first asked for."""
        if key not in self._engines:
            self._engines[key] = make()
        engine: T = self._engines[key]
        return engine

    def source(self, embedding: Embedding) -> EmbeddingSource:
        """Return the shared embedding source of a configuration."""
        key = embedding.model_dump_json()
        if key not in self._sources:
            self._sources[key] = EmbeddingSource(embedding, self.table, self.places)
        return self._sources[key]

    @property
    def embedded(self) -> int:
        """Number of texts that were embedded through this index, chunks and queries."""
        return sum(source.n_embedded for source in self._sources.values())

    def rerank_source(self, spec: Strategy) -> EmbeddingSource | None:
        """Return the embedding of an MMR step: of the step, else of the strategy, else LSA."""
        if spec.rerank is None or spec.rerank.kind != "mmr":
            return None
        embedding = spec.rerank.embedding or spec.embeds_with
        return self.source(embedding or Embedding(model="lsa-256"))

    def rerank_model(self, spec: Strategy) -> str:
        """Name the embedding of the MMR step of a strategy; empty without an MMR step."""
        source = self.rerank_source(spec)
        return source.model if source else ""

    def family(self, model: str) -> str:
        """Return the start of the names of the graphs of one model, without its fit."""
        return f"{self.prefix}{re.sub(r'[^A-Za-z0-9-]+', '-', model.partition('@')[0])}."

    def graph_name(self, model: str, seed: int) -> str:
        """Name the graph for (chunks, model, seed)."""
        return f"{self.family(model)}{digest([self.table.chunks_hash, model])}-s{seed}"

    def update_graphs(
        self, specs: Sequence[Strategy], seeds: Sequence[int], step: Step
    ) -> tuple[list[str], list[str]]:
        """Build the graph of each seed and model of approximate search; drop those of other chunks.

        Graphs of other models may belong to another choice of strategies, so they stay. Returns the
        names of the built and of the dropped graphs.
        """
        built, dropped = list[str](), list[str]()
        embeddings = (spec.embeds_with for spec in specs if spec.store_name == "chroma")
        sources = {source.model: source for source in map(self.source, filter(None, embeddings))}
        for model, source in sources.items():
            keep = {seed: self.graph_name(model, seed) for seed in seeds}
            for seed, graph in keep.items():
                with step(f"Building the graph of seed {seed}", len(self.table), "vectors") as add:
                    owners, vectors = self.table.owners, source.chunk_vectors()
                    if self.chroma.build(graph, owners, vectors, seed=seed, advance=add):
                        built.append(graph)
            dropped += self.chroma.drop(self.family(model), set(keep.values()))
        return built, dropped

    def reranker(self, name: str) -> Reranker:
        """Import a reranker that the settings enable."""
        path = find_reranker(name, self.rerankers)

        def load() -> Any:
            module, attribute = path.split(":")
            try:
                target = getattr(importlib.import_module(module), attribute)
                return target() if isinstance(target, type) else target
            except FOREIGN as error:
                message = f"the reranker {quoted(name)} cannot be loaded"
                cause = f"{path}: {type(error).__name__}: {error}"
                raise InputError.of(
                    "reranker_unusable", message, "settings", field="rerankers", found=cause
                ) from error

        reranker: Reranker = self.engine(f"reranker {name}", load)
        return reranker


def find_reranker(name: str, rerankers: Mapping[str, str]) -> str:
    """Return the import path of a reranker; raises InputError `unknown_reranker`."""
    if name not in rerankers:
        names = ", ".join(["mmr", *sorted(rerankers)])
        raise InputError.of(
            "unknown_reranker",
            "the settings enable no reranker of this name",
            field="rerank.kind",
            found=name,
            accepted=f"{names} (enable one with RAG_EVAL_RERANKERS)",
        )
    return rerankers[name]


@dataclasses.dataclass(frozen=True)
class Request:
    """A batch of texts to rank chunks for."""

    texts: list[str]
    depth: int
    """Largest number of chunks for each text."""
    seed: int = 0
    allowed: BoolArray | None = None
    """bool [n_chunks]: the chunks that may be ranked; None allows all."""
    cached: bool = True
    """Whether vectors may come from the cache. Latency is measured without the cache."""


class LocalStrategy(Strategy):
    """Base class of the kinds that rank chunks of this corpus."""

    @abstractmethod
    def index_hash(self, chunks_hash: str, model: str) -> str:
        """Name the index by its inputs: the engine, a colon, and a `digest` of all other inputs.

        Equal hashes of exact engines give equal rankings.
        """

    @abstractmethod
    def rank(self, index: StrategyIndex, request: Request) -> Ranking:
        """Rank chunks for each text; a text without a known term retrieves nothing."""

    def first_lists(self, index: StrategyIndex, request: Request) -> dict[str, Ranking]:  # noqa: ARG002 - only fusion has lists
        """Return the `lexical` and the `vector` list before fusion; empty without fusion."""
        return {}

    def identity(self, inputs: IdentityInputs) -> Identity:
        """Name the index over the chunks, and the model without loading it."""
        embedding, model = self.embeds_with, ""
        if embedding is not None:
            model = embed_model(embedding, inputs.lsa_fit, inputs.folder)
        return Identity(self.index_hash(inputs.chunks_hash, model), model)


class ReadyStrategy:
    """One strategy over one index: texts in, ranking out."""

    def __init__(self, spec: LocalStrategy, index: StrategyIndex) -> None:
        self.spec, self.index, self.name = spec, index, spec.name
        self.source = None if spec.embeds_with is None else index.source(spec.embeds_with)
        self.embed_model = self.source.model if self.source else ""
        self.index_hash = spec.index_hash(index.table.chunks_hash, self.embed_model)
        self.identity = Identity(self.index_hash, self.embed_model)
        self.seed_matters = spec.seed_matters

    def _pool(self, depth: int) -> int:
        step = self.spec.rerank
        return max(depth, POOL, step.depth if step else 0)

    def trace(
        self, queries: list[str], depth: int, seed: int, *, allowed: BoolArray | None
    ) -> dict[str, Ranking]:
        """Search as `search` does, and return the list after each step.

        The steps are `lexical` and `vector` where a strategy fuses them, and `ranked`, the list
        before the rerank step.
        """
        request = Request(queries, self._pool(depth), seed, allowed)
        ranked = self.spec.rank(self.index, request)
        return {**self.spec.first_lists(self.index, request), "ranked": ranked}

    def search(
        self,
        queries: list[str],
        depth: int,
        seed: int = 0,
        *,
        allowed: BoolArray | None = None,
        cached: bool = True,
    ) -> Ranking:
        """Rank chunks for each query and rerank them; options as in `Request`."""
        step = self.spec.rerank
        request = Request(queries, self._pool(depth), seed, allowed, cached)
        ranking = self.spec.rank(self.index, request)
        if step is None:
            return ranking.cut(depth)
        source = self.index.rerank_source(self.spec)
        if source is not None:
            vectors = source.chunk_vectors()
            return _mmr(ranking, vectors, lambda_=step.lambda_, depth=step.depth).cut(depth)
        candidates = [
            self.index.table.texts_of(rows[rows >= 0]) for rows in ranking.rows[:, : step.depth]
        ]
        reranker = self.index.reranker(step.kind)
        return _ask_reranker(ranking, reranker, queries, candidates, step.depth).cut(depth)
