"""The index stage: embed chunks, build graphs, and identify the index of every strategy."""

import dataclasses
import functools
import time
import weakref
from collections import Counter
from collections.abc import Mapping

import numpy as np

from rag_eval.answers.chat import ChatCache, ChatClient
from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import InputError
from rag_eval.core.loader import Chunker
from rag_eval.core.parts import Embedding
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Identity, IdentityInputs, Strategy
from rag_eval.core.types import DISCOUNTING
from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.runner import Result, Stage, Work, json_part
from rag_eval.pipeline.shards import run_on_ray
from rag_eval.retrieval.chroma import ChromaStore
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.retrieval.embedding.source import ChunkTable, name_lsa_fit, pack_hashes
from rag_eval.retrieval.lexical import bm25s_engine
from rag_eval.retrieval.outside import Outside
from rag_eval.retrieval.ranking import Ranking
from rag_eval.retrieval.strategies import LocalStrategy, ReadyStrategy, StrategyIndex
from rag_eval.storage.hashing import digest
from rag_eval.storage.home import open_home
from rag_eval.storage.sql import open_store
from rag_eval.uncertainty.calibrators import (
    KeptCalibrator,
    find_accepted,
    read_calibrator,
    strategy_fingerprint,
)
from rag_eval.uncertainty.estimator import MissRateModel
from rag_eval.uncertainty.expansion import (
    ChatSuggester,
    CorpusWords,
    ExpansionContext,
)
from rag_eval.uncertainty.heuristic import heuristic_v0
from rag_eval.uncertainty.iterative import HEURISTIC, Iterated, Iterative, iterate
from rag_eval.uncertainty.signals import SIGNALS, RankedBatch, TermSpace, signals

# ---- The opened index.


class OpenIndex:
    """The admitted chunks and one ready strategy per name, without external strategies.

    Vectors and terms are loaded when a stage first needs them.
    """

    def __init__(self, evaluation: Evaluation, admitted: AdmittedChunks) -> None:
        chunks, facts = admitted.chunks, admitted.about
        self.table = ChunkTable(chunks, facts.chunks_hash, evaluation.home, facts.analyzer)
        config, settings = evaluation.config, evaluation.settings
        local = [spec for spec in config.strategies if isinstance(spec, LocalStrategy)]
        needs_graph = any(spec.store_name == "chroma" for spec in local)
        self.index = StrategyIndex(
            self.table,
            evaluation.places,
            chroma_store(settings) if needs_graph else None,
            settings.rerankers,
            prefix=f"{config.name}.",
        )
        self.strategies = {spec.name: ReadyStrategy(spec, self.index) for spec in local}

    @functools.cached_property
    def terms(self) -> TermSpace:
        """Terms of the chunks."""
        return TermSpace(self.table.terms, self.table.n_terms)

    @functools.cached_property
    def words(self) -> CorpusWords:
        """Words of the chunks, for query expansion."""
        return CorpusWords(self.table, self.terms)

    @functools.cached_property
    def documents(self) -> IntArray:
        """Number of the document of each chunk, int64 [n_chunks]."""
        names = np.array(self.table.doc_ids, dtype=object)
        return np.unique(names, return_inverse=True)[1].astype(np.int64)


_open: "weakref.WeakKeyDictionary[AdmittedChunks, OpenIndex]" = weakref.WeakKeyDictionary()


def open_index(evaluation: Evaluation, admitted: AdmittedChunks) -> OpenIndex:
    """Open the index over these chunks, once per process."""
    if admitted not in _open:
        _open[admitted] = OpenIndex(evaluation, admitted)
    return _open[admitted]


def n_embedded(admitted: AdmittedChunks) -> int:
    """Count the texts that this process embedded through the index; 0 before it is open."""
    return _open[admitted].index.embedded if admitted in _open else 0


def chroma_store(settings: Settings) -> ChromaStore:
    """Open the vector store of the server in the settings, else the embedded store of the home."""
    folder = open_home(settings).folder / "chroma"
    return ChromaStore(folder, settings.chroma_url, settings.chroma)


def stability_embedding(config: GoldSetConfig) -> Embedding:
    """Choose the embedding of delta_s: that of the first vector strategy, else lsa-256."""
    vector = (spec.embeds_with for spec in config.strategies if spec.vectors_alone)
    return next(vector, None) or Embedding(model="lsa-256")


# ---- Index stage: update embeddings and vector store, and identify every strategy's index.


@dataclasses.dataclass(frozen=True)
class IndexFacts:
    """How the index was made, and the identity of each strategy that is not external."""

    analyzer: str
    chunker: Chunker
    n_chunks: int
    strategies: dict[str, Identity]


@dataclasses.dataclass(frozen=True)
class IndexChanges:
    """Texts that were embedded by model, graphs that were built or dropped, and the duration."""

    embedded: dict[str, int]
    built: list[str]
    dropped: list[str]
    seconds: float


class CorpusIndex(Result):
    """The index over the admitted chunks. Changes in the store are not part of the identity."""

    shown = ("about", "changes")
    about: IndexFacts = json_part()
    changes: IndexChanges = json_part(volatile=True)

    def report_part(self, _: Work) -> dict[str, object]:
        """Give how the index was made, and whether it was there already."""
        made_by = {"analyzer": self.about.analyzer, "chunker": self.about.chunker}
        return {"index": made_by, "reused": {"index": self.artifact.reused}}

    def id_for(self, strategy: str) -> str:
        """Identify the index of one strategy.

        A change in the index of another strategy must not repeat this strategy's run.
        """
        part = self.about.strategies.get(strategy)
        if not strategy:
            return self.id
        return digest(None if part is None else dataclasses.asdict(part))


def chosen_kinds(evaluation: Evaluation, strategy: str) -> list[str]:
    """Name the modules of kinds and rerankers of a strategy and its base, or of all strategies."""
    config, rerankers = evaluation.config, evaluation.settings.rerankers
    chosen = [spec for spec in config.strategies if strategy in {"", spec.name}]
    concerned = [*chosen, *(config.base_of(spec) for spec in chosen)]
    modules = {type(spec).__module__ for spec in concerned}
    modules |= {
        rerankers[spec.rerank.kind].partition(":")[0]
        for spec in concerned
        if spec.rerank is not None and spec.rerank.kind in rerankers
    }
    return sorted(modules)


def _identify_index(work: Work, admitted_chunks: AdmittedChunks) -> dict[str, list[str]]:
    """Identify the sources of every strategy's rankings.

    Raises
    ------
    InputError
        The settings or a file lack an input of a strategy. The error comes before any indexing.
    """
    parts = {}
    for spec in work.config.strategies:
        identity = identity_of(work.evaluation, admitted_chunks, spec)
        if spec.runs_here:
            parts[spec.name] = [identity.index_hash, identity.embed_model]
    return parts


@Stage(
    "corpus_index",
    "corpus",
    stores=("embeddings", "vectors"),
    reads=("name", "seeds", "strategies"),
    outside=_identify_index,
    chosen=chosen_kinds,
    kinds=("chroma",),
)
def build_index(work: Work, admitted_chunks: AdmittedChunks) -> CorpusIndex:
    """Embed new chunks, build the graphs of approximate search, and identify every index."""
    started = time.perf_counter()
    opened = open_index(work.evaluation, admitted_chunks)
    embedded: dict[str, int] = {}
    for strategy in opened.strategies.values():
        source, n_chunks = strategy.source, len(opened.table)
        if source is not None and source.model not in embedded:
            if work.settings.ray is not None:
                source.spread = functools.partial(run_on_ray, work.settings.ray)
            label = f"Embedding chunks with {source.model}"
            with work.progress.step(label, n_chunks, "chunks") as advance:
                source.chunk_vectors(advance)
            embedded[source.model] = source.use.embedded
    facts = IndexFacts(
        analyzer=admitted_chunks.about.analyzer,
        chunker=work.config.corpus.chunker,
        n_chunks=len(opened.table),
        strategies={
            name: Identity(strategy.index_hash, strategy.embed_model)
            for name, strategy in opened.strategies.items()
        },
    )
    graphs = _update_graphs(work, opened)
    work.made_from += sorted(opened.table.made_from)
    seconds = time.perf_counter() - started
    return CorpusIndex(about=facts, changes=IndexChanges(embedded, *graphs, seconds))


def _update_graphs(work: Work, opened: OpenIndex) -> tuple[list[str], list[str]]:
    """Build the graph of each seed and model of approximate search, and drop those of other chunks.

    Graphs of other models may belong to another choice of strategies, so they stay. Returns the
    names of the built and of the dropped graphs.
    """
    index, table = opened.index, opened.table
    built, dropped = list[str](), list[str]()
    sources = {
        strategy.embed_model: strategy.source
        for strategy in opened.strategies.values()
        if strategy.spec.store_name == "chroma"
    }
    for model, source in sources.items():
        if index.chroma is None or source is None:
            raise RuntimeError("approximate search needs a vector store and vectors")
        keep = {seed: index.graph_name(model, seed) for seed in work.config.seeds}
        for seed, graph in keep.items():
            label = f"Building the graph of seed {seed}"
            with work.progress.step(label, len(table), "vectors") as advance:
                vectors = source.chunk_vectors()
                if index.chroma.build(graph, table.owners, vectors, seed=seed, advance=advance):
                    built.append(graph)
        dropped += index.chroma.drop(index.family(model), set(keep.values()))
    return built, dropped


def identity_of(evaluation: Evaluation, admitted: AdmittedChunks, spec: Strategy) -> Identity:
    """Derive a strategy's index hash and embedding model from the inputs, before indexing."""
    base = evaluation.config.base_of(spec)

    def find_fit(dimensions: int) -> str:
        if admitted in _open:  # reading a large frame again takes seconds
            chunks = _open[admitted].table.frame
        else:
            chunks = admitted.artifact.frame("chunks", ["text_hash"])
        hashes = pack_hashes(chunks["text_hash"].tolist())
        return name_lsa_fit(hashes, dimensions, admitted.about.analyzer)

    def read_stated_index() -> Mapping[str, object]:
        outside = Outside.model_validate(spec)
        return {} if spec.files() else evaluation.sources.open(outside).stated

    return spec.identity(
        IdentityInputs(
            folder=evaluation.base,
            settings=evaluation.settings,
            chunks_hash=admitted.about.chunks_hash,
            lsa_fit=find_fit,
            base=None if spec.base_name is None else identity_of(evaluation, admitted, base),
            calibrator_id=functools.partial(steering_calibrator, evaluation, spec),
            stated=read_stated_index,
        )
    )


# ---- Rankings over the chunks as a batch for the estimators of a miss.

SECOND_DEPTH = 100


def can_be_asked(config: GoldSetConfig, opened: OpenIndex, spec: Strategy, text: str) -> bool:
    """Check whether `batch_of` can rank a wording outside the gold set.

    A file of vectors must hold the vector of the wording.
    """
    embedding = config.base_of(spec).embeds_with or stability_embedding(config)
    return opened.index.source(embedding).can_embed(text)


def batch_of(
    config: GoldSetConfig, opened: OpenIndex, spec: Strategy, texts: list[str], ranking: Ranking
) -> RankedBatch:
    """Make the batch of the rankings of n wordings by one strategy.

    The batch treats no question as a wording of another question.
    """
    base = config.base_of(spec)
    source = None if base.embeds_with is None else opened.index.source(base.embeds_with)
    # The second retriever uses vectors for a lexical strategy, and BM25 for all others.
    if base.second == "bm25":
        terms = opened.table.query_terms(texts)
        other = bm25s_engine(opened.index).search(terms, SECOND_DEPTH)
    else:
        # A file of vectors only has the wordings of the gold set. `can_be_asked` excludes other
        # texts.
        second = opened.index.source(stability_embedding(config))
        vectors = second.query_vectors(texts)
        other = ExactSearch(second.chunk_vectors()).search(vectors, SECOND_DEPTH)
    return RankedBatch(
        rows=ranking.rows,
        raw=ranking.raw,
        norm=ranking.norm,
        cosine=base.vectors_alone and base.rerank is None,
        space=opened.terms,
        query_terms=opened.table.query_terms(texts),
        other_rows=other.rows,
        other_raw=other.raw,
        query_vectors=None if source is None else source.query_vectors(texts),
        chunk_vectors=None if source is None else np.asarray(source.chunk_vectors()),
        document=opened.documents,
    )


# ---- Iterative strategies: rounds of expansion around a base strategy.

CALIBRATED = "calibrated"


def steering_calibrator(evaluation: Evaluation, iterative: Strategy, base_hash: str) -> str:
    """Find the calibrator that steers the rounds, by its id; empty without one.

    The base strategy must have accepted it, and it must have earned a status.
    """
    if Iterative.model_validate(iterative).steered_by == HEURISTIC:
        return ""
    base = evaluation.config.base_of(iterative)
    fingerprint = strategy_fingerprint(evaluation.config, base, base_hash)
    accepted = find_accepted(evaluation.home, evaluation.config, base.name, fingerprint)
    return accepted.calibrator_id if accepted.status in DISCOUNTING else ""


@dataclasses.dataclass(frozen=True)
class IterativeFacts:
    """Counts of the rounds of an iterative strategy, by name."""

    basis: str
    n_rounds: int
    stops: dict[str, int]
    not_viable: dict[str, int]
    suggestions_failed: dict[str, int]


class IterativeStrategy(ReadyStrategy):
    """A ready strategy that searches in rounds of expansion.

    `spec` is the configuration of the base, so the port serves this strategy as that kind. The
    calibrator `steered_by` steers the rounds. Without a calibrator, the heuristic steers them. The
    gold set, if any, gives the known groups of its wordings.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        opened: OpenIndex,
        iterative: Iterative,
        steered_by: str,
        gold: GoldVariants | None,
    ) -> None:
        if evaluation.config.vectors_of_rounds(iterative):
            raise InputError.of(
                "vectors_of_rounds",
                "a file of vectors has none for expanded questions",
                field=f"strategies.{iterative.name}.base",
                found=iterative.base,
                accepted="a base of kind bm25, or one whose embedding names a model",
            )
        base = opened.strategies[iterative.base]
        super().__init__(base.spec, base.index)
        self.name, self.iterative, self.base = iterative.name, iterative, base
        self._evaluation, self._opened, self.steered_by = evaluation, opened, steered_by
        self.index_hash = iterative.index_hash(base.index_hash, steered_by, evaluation.settings)
        self._model: MissRateModel | None = None
        self._groups: dict[str, str] = {}
        if steered_by:
            body = read_calibrator(evaluation.home, steered_by)
            steering = KeptCalibrator.from_json(body)
            self._model = steering.model
            self._groups = groups_of_wordings(gold, steering.group_of_query)
        self.last: Iterated | None = None
        """Rounds of the last search."""

    def search(
        self,
        queries: list[str],
        depth: int,
        seed: int = 0,
        *,
        allowed: BoolArray | None = None,
        cached: bool = True,
    ) -> Ranking:
        """Rank chunks for each query as `ReadyStrategy.search` does.

        Questions with a retrieval confidence below `min_recall` are expanded.
        """
        config = self._evaluation.config
        k = config.uncertainty.k
        search = functools.partial(
            self.base.search,
            depth=max(depth, k),
            seed=seed,
            allowed=allowed,
            cached=cached,
        )
        first = search(queries)
        context = ExpansionContext(
            batch_of(config, self._opened, self.base.spec, queries, first),
            queries,
            self._opened.words,
            self._suggester,
        )

        def risk(batch: RankedBatch) -> tuple[FloatArray, str]:
            if self._model is None:
                # At a depth of ten the heuristic sees too little to expand any question.
                whole = min(config.depth, batch.rows.shape[1])
                return heuristic_v0(batch, whole), f"{HEURISTIC}@{whole}"
            return self._model.predict(
                signals(batch, k), SIGNALS, [self._groups.get(text, "") for text in queries]
            ), CALIBRATED

        self.last = iterate(first, context, self.iterative, search=search, risk=risk, k=k)
        return self.last.ranking.cut(depth)

    def account(self) -> "IterativeFacts":
        """Describe the last search."""
        if self.last is None:
            raise RuntimeError(f"{self.name} has not searched yet")
        chat = self._suggester
        failed = chat.failed if chat else {}
        return IterativeFacts(
            basis=self.last.basis,
            n_rounds=len(self.last.rounds),
            stops=dict(sorted(Counter(self.last.stopped).items())),
            not_viable=dict(sorted(self.last.not_viable.items())),
            suggestions_failed=dict(sorted(failed.items())),
        )

    @functools.cached_property
    def _suggester(self) -> ChatSuggester | None:
        """The configured chat endpoint that rewords questions; None without one.

        Its replies share the cache of the answers.
        """
        name, settings = self.iterative.endpoint, self._evaluation.settings
        if name is None:
            return None
        endpoint = settings.find_endpoint(name, f"strategies.{self.name}.endpoint")
        return ChatSuggester(
            ChatClient(endpoint, ChatCache(open_store(settings))), threads=endpoint.concurrency
        )


def groups_of_wordings(gold: GoldVariants | None, group_of: Mapping[str, str]) -> dict[str, str]:
    """Map each wording of the gold set to its group.

    The group selects a fit that saw no outcome of the wording.
    """
    if gold is None:
        return {}
    variants = gold.variants
    pairs = zip(variants["query_id"], variants["group_id"], strict=True)
    groups = [group_of.get(query, group) for query, group in pairs]
    return dict(zip(variants["text"], groups, strict=True))


def ready_strategy(
    evaluation: Evaluation,
    opened: OpenIndex,
    spec: Strategy,
    gold: GoldVariants | None,
    steered_by: str | None = None,
) -> ReadyStrategy:
    """Make a strategy that is not external ready to search.

    `gold` is the gold set, if any. `steered_by` is the calibrator of an iterative strategy; None
    looks up the accepted one.
    """
    if spec.base_name is None:
        return opened.strategies[spec.name]
    base = opened.strategies[spec.base_name]
    if steered_by is None:
        steered_by = steering_calibrator(evaluation, spec, base.index_hash)
    iterative = Iterative.model_validate(spec)
    return IterativeStrategy(evaluation, opened, iterative, steered_by, gold)
