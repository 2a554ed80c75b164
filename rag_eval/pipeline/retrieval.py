"""Retrieval stages: build the index, search with every strategy, guard and time the results.

External strategies are asked or read, and their units are placed in the corpus. A run is reused
only when equal inputs are known to give equal answers. Files are identified by their hash, services
and ports by the version that they state. A run with a failed query is never reused.
"""

import contextlib
import dataclasses
import datetime as dt
import functools
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from rag_eval.answers.chat import ChatCache, ChatClient
from rag_eval.answers.evidence import Withheld
from rag_eval.core.arrays import BoolArray, FloatArray, Int32Array, IntArray
from rag_eval.core.config import DISCOUNTING, GoldSetConfig, Level, Status
from rag_eval.core.errors import Embedding, InputError, ProblemList, quoted
from rag_eval.core.frames import DOCUMENTS, RUN
from rag_eval.core.loader import Chunker
from rag_eval.core.report import ExternalSource, Latency, LintWarning
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Identity, IdentityInputs, Strategy
from rag_eval.core.types import RetrievalOptions
from rag_eval.corpus.analyzer import ANALYZER, count_tokens
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusSnapshot,
    EvidenceTrust,
    GoldVariants,
    report_warnings,
)
from rag_eval.pipeline.evaluation import Evaluation, accepted_calibrator, read_calibrator
from rag_eval.pipeline.runner import (
    AGAIN,
    Result,
    Stage,
    Table,
    Work,
    array_part,
    frame_part,
    json_part,
)
from rag_eval.retrieval.dense import ChromaStore, ExactSearch
from rag_eval.retrieval.embedding.source import ChunkTable
from rag_eval.retrieval.external_units import Placed, place_all
from rag_eval.retrieval.kinds.external import (
    External,
    Failure,
    PortSource,
    QueryError,
    Retrieved,
    ask_source,
    read_lists,
)
from rag_eval.retrieval.lexical import bm25s_engine
from rag_eval.retrieval.ranking import Ranking, ranking
from rag_eval.retrieval.service import QueryGuard, RetrievalFailedError, RetrievalService
from rag_eval.retrieval.strategies import LocalStrategy, ReadyStrategy, StrategyIndex
from rag_eval.storage.hashing import digest
from rag_eval.storage.sql import open_store
from rag_eval.trust.restating import restated_pairs
from rag_eval.trust.sources import explain_trust, vouched_for
from rag_eval.uncertainty.estimator import MissRateModel
from rag_eval.uncertainty.expansion import (
    ChatSuggester,
    CorpusWords,
    ExpansionContext,
    installed_wordnet,
)
from rag_eval.uncertainty.heuristic import heuristic_v0
from rag_eval.uncertainty.iterative import HEURISTIC, Iterated, Iterative, iterate
from rag_eval.uncertainty.signals import SIGNALS, RankedBatch, TermSpace, signals
from rag_eval.uncertainty.stored import Stored
from rag_eval.uncertainty.wordings import Branch

# ---- Embedding for stages without a strategy: delta_s, and the second retriever of BM25.


def stability_embedding(config: GoldSetConfig) -> Embedding:
    """Choose the embedding of delta_s: that of the first vector strategy, else lsa-256."""
    vector = (spec.embeds_with for spec in config.strategies if spec.vectors_alone)
    return next(vector, None) or Embedding(model="lsa-256")


# ---- The opened index.


class OpenIndex:
    """The admitted chunks and one ready strategy per name, without external strategies.

    Vectors and terms are loaded when a stage first needs them.
    """

    def __init__(self, evaluation: Evaluation, admitted: AdmittedChunks) -> None:
        self.table = ChunkTable(admitted.chunks, admitted.about.chunks_hash)
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
    return ChromaStore(settings.home / "chroma", settings.chroma_url)


# ---- Rankings over the chunks as a batch for the estimators of a miss.

SECOND_DEPTH = 100


def can_be_asked(config: GoldSetConfig, opened: OpenIndex, spec: Strategy, text: str) -> bool:
    """Check whether `batch_of` can rank a wording outside the gold set.

    A file of vectors must hold the vector of the wording.
    """
    embedding = config.base_of(spec).embeds_with or stability_embedding(config)
    return opened.index.source(embedding).can_embed(text)


def batch_of(
    config: GoldSetConfig, opened: OpenIndex, spec: Strategy, texts: list[str], found: Ranking
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
        rows=found.rows,
        raw=found.raw,
        norm=found.norm,
        cosine=base.vectors_alone and base.rerank is None,
        space=opened.terms,
        query_terms=opened.table.query_terms(texts),
        other_rows=other.rows,
        other_raw=other.raw,
        query_vectors=None if source is None else source.query_vectors(texts),
        chunk_vectors=None if source is None else np.asarray(source.chunk_vectors()),
        document=opened.documents,
    )


# ---- Rankings as stored frames: RUN, and the failed retrievals.


def run_frame(rankings: Mapping[int, Ranking]) -> pd.DataFrame:
    """Write rankings of all variants by seed in long form: RUN, one row per retrieved chunk."""
    parts = []
    for seed, ranked in rankings.items():
        variant, place = np.nonzero(ranked.has_chunk)
        columns = {
            "variant": variant,
            "seed": seed,
            "chunk": ranked.rows[variant, place].astype(np.int64),
            "k_pos": ranked.k_pos[variant, place].astype(np.int64),
            "k_final": place + 1,
            "score_raw": ranked.raw[variant, place],
            "score_norm": ranked.norm[variant, place],
            "rerank_score": ranked.rerank[variant, place],
        }
        parts.append(pd.DataFrame(columns))
    return RUN.check(pd.concat(parts, ignore_index=True))


def read_ranking(frame: pd.DataFrame, seed: int, n: int, depth: int) -> Ranking:
    """Read one seed of a RUN frame as a ranking of n variants."""
    part, nothing = frame[frame["seed"] == seed], np.zeros((n, depth))
    rows = np.full((n, depth), -1, dtype=np.int32)
    found = ranking(rows, nothing, nothing, np.zeros(n, dtype=np.int64))
    place = part["variant"].to_numpy(), part["k_final"].to_numpy() - 1
    for array, column in (
        (found.rows, "chunk"),
        (found.raw, "score_raw"),
        (found.norm, "score_norm"),
        (found.k_pos, "k_pos"),
        (found.rerank, "rerank_score"),
    ):
        array[place] = part[column].to_numpy()
    return dataclasses.replace(
        found,
        raw=np.nan_to_num(found.raw),
        norm=np.nan_to_num(found.norm),
        candidates=found.has_chunk.sum(axis=1).astype(np.int64),
    )


def failed_frame(rankings: Mapping[int, Ranking]) -> pd.DataFrame:
    """List the retrievals that ended in an error: variant, seed."""
    rows = [
        (row, seed)
        for seed, ranked in rankings.items()
        if ranked.failed is not None
        for row in np.flatnonzero(ranked.failed).tolist()
    ]
    return pd.DataFrame(rows, columns=["variant", "seed"], dtype="int64")


# ---- Latency of single queries.

LATENCY_TOP_K = 10
LATENCY_LEAST, LATENCY_SECONDS = 20, 2.0
"""Least number of timed queries, and the time after which no more are timed."""


def _no_latency(reason: str) -> Latency:
    names = ("measured_at", "p50", "p95", "p99")
    return Latency.model_validate(
        {"n": 0, **dict.fromkeys(names), "why": dict.fromkeys(names, reason)}
    )


def _time_queries(
    ask: Callable[[str], object], texts: Sequence[str], n: int, failure: type[Exception]
) -> Latency:
    """Time at most n single queries, spread evenly over the texts, in milliseconds.

    Slow strategies are timed on fewer queries, so that timing does not dominate a run. Calls that
    fail are timed, because callers wait for them too. The batch counted the failures.
    """
    if not texts:
        return _no_latency("no query was answered")
    places = np.unique(np.linspace(0, len(texts) - 1, min(n, len(texts))).astype(int))
    # In mixed order, because the first ones must represent all.
    places = np.random.default_rng(0).permutation(places)
    times = list[float]()
    # The first call pays for lazy loading.
    for place in (places[0], *places):
        started = time.perf_counter()
        with contextlib.suppress(failure):
            ask(texts[place])
        times.append(1000 * (time.perf_counter() - started))
        if len(times) > LATENCY_LEAST and sum(times[1:]) > 1000 * LATENCY_SECONDS:
            break
    p50, p95, p99 = np.percentile(times[1:], (50, 95, 99)).tolist()
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Latency(n=len(times) - 1, p50=p50, p95=p95, p99=p99, measured_at=now)


def _time_strategy(
    work: Work, strategy: ReadyStrategy, texts: list[str], admitted: AdmittedChunks
) -> Latency:
    """Time single queries through the port. Each query is embedded anew."""
    config = work.config
    service = RetrievalService(
        {strategy.spec.kind: strategy},
        pd.DataFrame({name: pd.Series(dtype=str) for name in DOCUMENTS.columns}),
        corpus_rev="",
        default=strategy.spec.kind,
        trust=admitted.passes.astype(np.float64),
        guard=query_guard(config, admitted),
        default_threshold=1.0 if config.trust.filter else None,
        seed=config.seeds[0],
    )
    ask = functools.partial(service.retrieve, options=RetrievalOptions(top_k=LATENCY_TOP_K))
    return _time_queries(ask, texts, work.settings.latency_queries, RetrievalFailedError)


def _mean_tokens(texts: Sequence[str]) -> float:
    return float(np.mean([count_tokens(text) for text in texts]))


# ---- Binding of a miss rate: the strategy's fingerprint, and the calibrator accepted for it.


@dataclasses.dataclass(frozen=True)
class KeptWordings(Stored):
    """The branch of a calibrator for other wordings, with its status; None when it did not help."""

    model: Branch | None
    status: Status


CALIBRATOR_VERSION = 2
"""Form of stored calibrators; 1 had Platt and isotonic maps, and a covariance."""


@dataclasses.dataclass(frozen=True)
class KeptCalibrator(Stored):
    """The parts of a stored calibrator that later runs use.

    `gold_sources` counts the outcomes of the fit by their judge. `fitted_until` is the time of the
    newest outcome. `group_of_query` holds the groups at the time of the fit. `discounts` says
    whether answers may be discounted by its miss rates.
    """

    model: MissRateModel
    wordings: KeptWordings | None
    fitted_at: dt.datetime
    gold_sources: Mapping[str, int]
    group_of_query: Mapping[str, str]
    fitted_until: str = "~"
    discounts: bool = False


@dataclasses.dataclass(frozen=True)
class CalibratorInUse:
    """The calibrator for the claims of a strategy.

    `calibrator_id` is empty without an accepted calibrator. `status` is the status that the
    calibrator has earned; `stale` when it belongs to another fingerprint. `body` is the stored
    calibrator; None without one or when it belongs to another fingerprint.
    """

    calibrator_id: str
    status: Status
    body: KeptCalibrator | None


def strategy_fingerprint(config: GoldSetConfig, spec: Strategy, index_hash: str) -> str:
    """Identify everything that decides a strategy's rankings, and the gold set that judges them.

    The fingerprint covers configuration, index, guard and trust filter, but not the name. Two gold
    sets over one index have two fingerprints, as judgements in one say nothing about the other.
    """
    trust = [config.trust.quarantine, config.trust.threshold if config.trust.filter else None]
    return digest([config.name, spec.ranking_options(), index_hash, trust, config.level], 32)


def find_accepted(evaluation: Evaluation, name: str, fingerprint: str) -> CalibratorInUse:
    """Find the calibrator that is accepted for a strategy now."""
    spec, home = evaluation.config.uncertainty, evaluation.settings.home
    found = accepted_calibrator(home, evaluation.config.name, name, spec.target, spec.k)
    if found is None:
        return CalibratorInUse("", "absent", None)
    if found.strategy_fingerprint != fingerprint:
        # A calibrator that has earned nothing cannot become stale.
        has_earned = found.status in DISCOUNTING or found.status == "stale"
        no_longer = CalibratorInUse(found.calibrator_id, "stale", None)
        return no_longer if has_earned else CalibratorInUse("", "absent", None)
    body = read_calibrator(home, found.calibrator_id)
    if body["schema_version"] != CALIBRATOR_VERSION:
        message = (
            f"{name}: calibrator {found.calibrator_id} has the form"
            f" {body['schema_version']} of another version, accepted {CALIBRATOR_VERSION};"
            " the next run has a new one"
        )
        with evaluation.progress.step(message):
            return CalibratorInUse(found.calibrator_id, "stale", None)
    return CalibratorInUse(found.calibrator_id, found.status, KeptCalibrator.from_json(body))


# ---- Iterative strategies: their identity, and rounds of expansion around a base strategy.

CALIBRATED = "calibrated"


def steering_calibrator(evaluation: Evaluation, iterative: Strategy, base_hash: str) -> str:
    """Find the calibrator that steers the rounds, by its id; empty without one.

    The base strategy must have accepted it, and it must have earned a status.
    """
    if Iterative.model_validate(iterative).steered_by == HEURISTIC:
        return ""
    base = evaluation.config.base_of(iterative)
    fingerprint = strategy_fingerprint(evaluation.config, base, base_hash)
    found = find_accepted(evaluation, base.name, fingerprint)
    return found.calibrator_id if found.status in DISCOUNTING else ""


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
            body = read_calibrator(evaluation.settings.home, steered_by)
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
            installed_wordnet(),
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
        if name not in settings.endpoints:
            accepted = (
                ", ".join(sorted(settings.endpoints)) or "none is enabled; see RAG_EVAL_ENDPOINTS"
            )
            raise InputError.of(
                "unknown_endpoint",
                "the settings enable no chat endpoint of this name",
                field=f"strategies.{self.name}.endpoint",
                found=name,
                accepted=accepted,
            )
        endpoint = settings.endpoints[name]
        return ChatSuggester(
            ChatClient(endpoint, ChatCache(open_store(settings))), threads=endpoint.concurrency
        )


def groups_of_wordings(gold: GoldVariants | None, known: Mapping[str, str]) -> dict[str, str]:
    """Map each wording of the gold set to its group.

    The group selects a fit that saw no outcome of the wording.
    """
    if gold is None:
        return {}
    variants = gold.variants
    pairs = zip(variants["query_id"], variants["group_id"], strict=True)
    groups = [known.get(query, group) for query, group in pairs]
    return dict(zip(variants["text"], groups, strict=True))


# ---- The index: update embeddings and vector store, and identify every strategy's index.


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

    about: IndexFacts = json_part()
    changes: IndexChanges = json_part(volatile=True)

    def id_for(self, strategy: str) -> str:
        """Identify the index of one strategy.

        A change in the index of another strategy must not repeat this strategy's run.
        """
        own = self.about.strategies.get(strategy)
        return self.id if not strategy else digest(None if own is None else dataclasses.asdict(own))

    def describe(self) -> dict[str, object]:
        """Show every strategy's index and the changes in the vector store."""
        about, changes = self.about, self.changes
        rows = [
            {
                "strategy": name,
                **dataclasses.asdict(entry),
                "embedded": changes.embedded.get(entry.embed_model, 0),
            }
            for name, entry in about.strategies.items()
        ]
        return {
            "n_chunks": about.n_chunks,
            "analyzer": about.analyzer,
            "indexes": Table(("strategy", "index_hash", "embed_model", "embedded"), rows),
            "graphs_built": len(changes.built),
            "seconds": changes.seconds,
        }


def identity_of(
    evaluation: Evaluation, admitted: AdmittedChunks, spec: Strategy, steered_by: str | None = None
) -> Identity:
    """Derive a strategy's index hash and embedding model from the inputs, before indexing.

    `steered_by` is the calibrator of an iterative strategy; None looks up the accepted one.
    """
    base = evaluation.config.base_of(spec)

    def text_hashes() -> list[str]:
        hashes: list[str] = admitted.artifact.frame("chunks", ["text_hash"])["text_hash"].tolist()
        return hashes

    def calibrator_id(base_hash: str) -> str:
        if steered_by is not None:
            return steered_by
        return steering_calibrator(evaluation, spec, base_hash)

    def read_stated_index() -> Mapping[str, object]:
        external = External.model_validate(spec)
        source = None if external.files() else evaluation.sources.open(external)
        return source.stated if isinstance(source, PortSource) else {}

    return spec.identity(
        IdentityInputs(
            folder=evaluation.base,
            settings=evaluation.settings,
            chunks_hash=admitted.about.chunks_hash,
            text_hashes=text_hashes,
            base=None if spec.base_name is None else identity_of(evaluation, admitted, base),
            calibrator_id=calibrator_id,
            stated=read_stated_index,
        )
    )


def _identify_index(work: Work, admitted_chunks: AdmittedChunks) -> dict[str, list[str]]:
    """Identify the sources of every strategy's rankings.

    Raises
    ------
    InputError
        The settings or a file lack an input of a strategy. The error comes before any indexing.
    """
    found = {}
    for spec in work.config.strategies:
        identity = identity_of(work.evaluation, admitted_chunks, spec)
        if spec.runs_here:
            found[spec.name] = [identity.index_hash, identity.embed_model]
    return found


def chosen_kinds(evaluation: Evaluation, strategy: str) -> list[str]:
    """Name the modules of kinds and rerankers of a strategy and its base, or of all strategies."""
    config, rerankers = evaluation.config, evaluation.settings.rerankers
    own = [spec for spec in config.strategies if strategy in {"", spec.name}]
    concerned = [*own, *(config.base_of(spec) for spec in own)]
    modules = {type(spec).__module__ for spec in concerned}
    modules |= {
        rerankers[spec.rerank.kind].partition(":")[0]
        for spec in concerned
        if spec.rerank is not None and spec.rerank.kind in rerankers
    }
    return sorted(modules)


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
    started, opened = time.perf_counter(), open_index(work.evaluation, admitted_chunks)
    embedded: dict[str, int] = {}
    for strategy in opened.strategies.values():
        source, n_chunks = strategy.source, len(opened.table)
        if source is not None and source.model not in embedded:
            label = f"Embedding chunks with {source.model}"
            with work.progress.step(label, n_chunks, "chunks") as advance:
                source.chunk_vectors(advance)
            embedded[source.model] = source.use.embedded
    about = IndexFacts(
        analyzer=ANALYZER,
        chunker=work.config.corpus.chunker,
        n_chunks=len(opened.table),
        strategies={
            name: Identity(strategy.index_hash, strategy.embed_model)
            for name, strategy in opened.strategies.items()
        },
    )
    graphs = _update_graphs(work, opened)
    seconds = time.perf_counter() - started
    return CorpusIndex(about=about, changes=IndexChanges(embedded, *graphs, seconds))


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
                if index.chroma.build(graph, table, vectors, seed=seed, advance=advance):
                    built.append(graph)
        dropped += index.chroma.drop(index.family(model), set(keep.values()))
    return built, dropped


# ---- The guard at retrieval time: leave out passages that restate a question. The trust filter.


class RestatedPassages(Result):
    """Admitted chunks that restate a wording of the gold set.

    `pairs` has query (row of the variants), chunk, start, end, rule and severity.
    """

    pairs: pd.DataFrame = frame_part()
    about: "RestatedFacts" = json_part()

    @property
    def blocked(self) -> pd.DataFrame:
        """The pairs that are blocked."""
        pairs = self.pairs
        return pairs[pairs["severity"] == "blocked"]

    def codes(self, n_chunks: int) -> IntArray:
        """Return `variant * n_chunks + chunk` for every blocked pair."""
        pairs = self.blocked
        query, chunk = (pairs[name].to_numpy(dtype=np.int64) for name in ("query", "chunk"))
        return np.asarray(query * n_chunks + chunk, dtype=np.int64)

    def describe(self) -> dict[str, object]:
        """Show how many chunks restate a question."""
        return dataclasses.asdict(self.about)


@dataclasses.dataclass(frozen=True)
class RestatedFacts:
    """Facts for the report on chunks that restate a question."""

    n_blocked_pairs: int
    n_blocked_chunks: int
    n_warned_pairs: int


@Stage(
    "restated_passages",
    "trust",
)
def find_restated(
    work: Work, gold_variants: GoldVariants, admitted_chunks: AdmittedChunks
) -> RestatedPassages:
    """Find the chunks that restate a question: no strategy may return them for it."""
    chunks, facts = admitted_chunks.chunks, admitted_chunks.facts
    with work.progress.step("Looking for passages that restate a question"):
        found = restated_pairs(
            gold_variants.texts,
            chunks["text"].tolist(),
            titles=chunks["title"].tolist(),
            doc_ids=chunks["doc_id"].tolist(),
            sources=facts["domain"].tolist(),
            vouched=vouched_for(facts),
        )
    allowed = (facts["allowed_by"] != "").to_numpy(dtype=bool)
    pairs = found[~allowed[found["chunk"].to_numpy()]].reset_index(drop=True)
    blocked = pairs[pairs["severity"] == "blocked"]
    about = RestatedFacts(
        n_blocked_pairs=len(blocked),
        n_blocked_chunks=int(blocked["chunk"].nunique()),
        n_warned_pairs=int((pairs["severity"] == "warning").sum()),
    )
    return RestatedPassages(pairs=pairs, about=about)


def query_guard(config: GoldSetConfig, admitted: AdmittedChunks) -> QueryGuard | None:
    """Make the guard of a `RetrievalService` over the admitted chunks; None without quarantine."""
    if not config.trust.quarantine:
        return None
    facts = admitted.facts
    exempt = (facts["allowed_by"] != "").to_numpy(dtype=bool)
    return QueryGuard(admitted.chunks, facts["domain"].tolist(), vouched_for(facts), exempt)


def withheld_chunks(
    config: GoldSetConfig, gold: GoldVariants, admitted: AdmittedChunks, restated: RestatedPassages
) -> Withheld:
    """Find the chunks that retrieval withholds from each question.

    Evidence search leaves out these chunks, too. Quarantine withholds chunks that restate any
    wording of the question. The trust filter withholds chunks under the threshold.
    """
    of_question: dict[str, frozenset[int]] = {}
    if config.trust.quarantine:
        pairs = restated.blocked
        owners = gold.variants["query_id"].to_numpy(dtype=object)[
            pairs["query"].to_numpy(dtype=np.int64)
        ]
        of_question = {
            str(query_id): frozenset(part.tolist())
            for query_id, part in pairs["chunk"].groupby(owners)
        }
    return Withheld(of_question, admitted.passes if config.trust.filter else None)


def blocked_pairs(config: GoldSetConfig, restated: RestatedPassages, n_chunks: int) -> IntArray:
    """Return `variant * n_chunks + chunk` of the pairs that the guard withholds."""
    return restated.codes(n_chunks) if config.trust.quarantine else np.zeros(0, dtype=np.int64)


def search_depth(config: GoldSetConfig, pairs: IntArray, n_chunks: int) -> int:
    """Return the depth of a search that leaves the configured depth behind the guard."""
    return config.depth + (int(np.bincount(pairs // n_chunks).max()) if len(pairs) else 0)


def guarded_search(
    config: GoldSetConfig,
    strategy: ReadyStrategy,
    texts: list[str],
    seed: int,
    *,
    allowed: BoolArray | None,
    restated: RestatedPassages,
) -> tuple[Ranking, int]:
    """Search every wording to the configured depth, as a caller behind the guard would.

    The second value is the number of chunks that the guard removed.
    """
    depth, n_chunks = config.depth, len(strategy.index.table)
    pairs = blocked_pairs(config, restated, n_chunks)
    ranked = strategy.search(texts, search_depth(config, pairs, n_chunks), seed, allowed=allowed)
    codes = np.arange(len(ranked.rows), dtype=np.int64)[:, None] * n_chunks + ranked.rows
    dropped = int((np.isin(codes, pairs) & ranked.has_chunk)[:, :depth].sum())
    return ranked.without(pairs, n_chunks).cut(depth), dropped


# ---- The retrieval port over a gold set's corpus, for callers outside the evaluation.


def open_port(evaluation: Evaluation) -> RetrievalService:
    """Open RetrievalPort v1 over the current corpus, and index new chunks.

    The port serves the first strategy of each kind, without external strategies. It leaves out
    quarantined chunks and chunks that restate the query. With `trust.filter` on, it also leaves
    out chunks under the threshold, but a call may name another threshold. The default strategy
    is bm25, or hybrid with FEATURE_HYBRID_RETRIEVAL on. Without a strategy of that kind, the
    default is the kind of the primary strategy.

    Raises
    ------
    InputError
        The corpus cannot be used, or no strategy runs here.
    """
    runner, config = evaluation.runner, evaluation.config
    runner.get(CorpusIndex)
    admitted = runner.get(AdmittedChunks)
    opened = open_index(evaluation, admitted)
    kinds: dict[str, ReadyStrategy] = {}
    ready: dict[str, ReadyStrategy] = {}
    for spec in config.strategies:
        if not spec.own_units:
            # A calibrator that saw the gold set may steer the rounds of a strategy.
            gold = None if spec.base_name is None else runner.get(GoldVariants)
            ready[spec.name] = ready_strategy(evaluation, opened, spec, gold)
            kinds.setdefault(ready[spec.name].spec.kind, ready[spec.name])
    if not kinds:
        raise InputError.of(
            "nothing_to_serve",
            "every strategy of this gold set is external",
            field="strategies",
            accepted="bm25, vector or hybrid",
        )
    default = "hybrid" if evaluation.settings.feature_hybrid_retrieval else "bm25"
    if default not in kinds:
        primary = ready.get(config.primary_strategy)
        default = next(iter(kinds)) if primary is None else primary.spec.kind
    return serve(evaluation, kinds, default)


def serve(
    evaluation: Evaluation, kinds: Mapping[str, ReadyStrategy], default: str
) -> RetrievalService:
    """Serve ready strategies by kind behind the guard and the trust filter of a gold set."""
    runner, config = evaluation.runner, evaluation.config
    admitted, corpus, trust = runner.get(AdmittedChunks), runner.get(CorpusSnapshot), config.trust
    evidence = runner.get(EvidenceTrust)
    judged, day = admitted.trust_of(evidence), dt.date.fromisoformat(evidence.about.as_of)
    columns = {str(name): column.to_numpy(dtype=object) for name, column in judged.items()}
    return RetrievalService(
        kinds,
        corpus.documents,
        corpus_rev=corpus.about.corpus_rev,
        default=default,
        trust=judged["trust"].to_numpy() if trust.configured else None,
        explain=lambda row: explain_trust(
            {name: column[row] for name, column in columns.items()}, day
        ),
        guard=query_guard(config, admitted),
        default_threshold=trust.threshold if trust.filter else None,
        seed=config.seeds[0],
    )


# ---- Retrieval stage: one strategy over all variants and seeds, and latency of single queries.


@dataclasses.dataclass(frozen=True)
class IterativeFacts:
    """Counts of the rounds of an iterative strategy, by name."""

    basis: str
    n_rounds: int
    stops: dict[str, int]
    not_viable: dict[str, int]
    suggestions_failed: dict[str, int]


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """Facts for the report on a strategy's run.

    Without randomness the run has one seed. The counts are of all retrievals, of retrievals without
    a result, and of failed retrievals. `n_dropped` counts the chunks that the guard removed.
    `rerank_model` is the embedding of an MMR step. `query_tokens` is the mean length of a wording.

    Only an iterative strategy has `steered_by` (a calibrator's id) and `iterative`. Only an
    external strategy has failures by code, notes and statements of its source, and warnings about
    its file. Only an external strategy may have levels that cannot be judged, with the reason.
    """

    index_hash: str
    embed_model: str
    name: str
    kind: str
    seeds: list[int]
    seed_matters: bool
    n_runs: int
    n_empty: int
    n_failed: int
    first_failure: str | None
    rerank_model: str
    query_tokens: float
    n_dropped: int = 0
    steered_by: str = ""
    iterative: IterativeFacts | None = None
    failures: dict[str, int] = dataclasses.field(default_factory=dict)
    unmeasured: dict[Level, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    warnings: list[LintWarning] = dataclasses.field(default_factory=list)
    source: ExternalSource | None = None


@dataclasses.dataclass(frozen=True)
class RunTiming:
    """Latency of single queries, and the duration of the batch."""

    latency_ms: Latency
    seconds: float


class StrategyRun(Result):
    """One strategy's rankings for every wording and seed.

    `run` is a RUN frame; `chunk` is a row of the admitted chunks, or of `units`. `failed` has the
    variant and seed of the retrievals that ended in an error. Only an external strategy has `units`
    (UNITS) and `not_run`, the variants outside its run. Only an iterative strategy has `expansions`
    (EXPANSIONS_FRAME) and `rounds`. `rounds`, int [n_rounds, n_variants, depth], has the rows of
    the merged rankings, -1 padded.
    """

    run: pd.DataFrame = frame_part()
    failed: pd.DataFrame = frame_part()
    units: pd.DataFrame | None = frame_part(default=None)
    not_run: pd.DataFrame | None = frame_part(default=None)
    expansions: pd.DataFrame | None = frame_part(default=None)
    rounds: IntArray | None = array_part(default=None)
    about: RunFacts = json_part()
    timing: RunTiming = json_part(volatile=True)

    @property
    def has_own_units(self) -> bool:
        """Whether the rankings hold units of an outside system."""
        return self.about.source is not None

    def rows(self, n_variants: int, depth: int) -> dict[int, IntArray]:
        """Return rows of chunks or units by seed, int64 [n_variants, depth], -1 padded."""
        frame, result = self.run, {}
        for seed in sorted(self.about.seeds):
            part = frame[frame["seed"] == seed]
            variant, place = part["variant"].to_numpy(), part["k_final"].to_numpy() - 1
            result[seed] = np.full((n_variants, depth), -1, dtype=np.int64)
            result[seed][variant, place] = part["chunk"].to_numpy()
        return result

    def describe(self) -> dict[str, object]:
        """Show the numbers of retrievals and failures, and the durations."""
        about, timing = self.about, self.timing
        return {
            "index_hash": about.index_hash,
            "embed_model": about.embed_model or "none",
            "n_runs": about.n_runs,
            "n_empty": about.n_empty,
            "n_failed": about.n_failed,
            "first_failure": about.first_failure or "none",
            "seeds_matter": about.seed_matters,
            "latency_ms": Table(("n", "p50", "p95", "p99"), [timing.latency_ms.dump()]),
            "seconds": timing.seconds,
        }


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


def own_strategy(work: Work) -> Strategy:
    """Return the strategy of the stage."""
    return next(spec for spec in work.config.strategies if spec.name == work.strategy)


def _identify_run(
    work: Work, admitted_chunks: AdmittedChunks, gold_variants: GoldVariants, **_: Result
) -> object:
    """Identify the causes of a run besides its inputs.

    Returns the index hash with the embedding model, or with the version of an outside service. The
    index hash covers the calibrator that steers rounds. A service without a version gives AGAIN.
    """
    spec = own_strategy(work)
    identity = identity_of(work.evaluation, admitted_chunks, spec)
    if not spec.own_units or spec.files():
        return [identity.index_hash, identity.embed_model]
    source = work.evaluation.sources.open(External.model_validate(spec))
    version = source.ask_version(gold_variants.texts[0])
    return [identity.index_hash, version] if version else AGAIN


@Stage(
    "run",
    "retrieval",
    stores=("embeddings", "calibrators", "sources"),
    reads=(
        "strategy",
        "depth",
        "seeds",
        "trust.filter",
        "trust.quarantine",
        "uncertainty.k",
        "settings.latency_queries",
    ),
    outside=_identify_run,
    each_strategy=True,
    chosen=chosen_kinds,
    columns=RUN,
)
def retrieve(
    work: Work,
    *,
    corpus_snapshot: CorpusSnapshot,
    admitted_chunks: AdmittedChunks,
    gold_variants: GoldVariants,
    restated_passages: RestatedPassages,
    corpus_index: CorpusIndex,
) -> StrategyRun:
    """Run the strategy over every wording and seed.

    A strategy without randomness runs once, and the result counts for every seed.
    """
    spec, config = own_strategy(work), work.config
    if spec.own_units:
        return _run_external(work, corpus_snapshot, admitted_chunks, gold_variants)
    texts, opened = gold_variants.texts, open_index(work.evaluation, admitted_chunks)
    strategy = ready_strategy(work.evaluation, opened, spec, gold_variants)
    base = strategy.base if isinstance(strategy, IterativeStrategy) else strategy
    if base.index_hash != corpus_index.about.strategies[base.name].index_hash:
        raise RuntimeError(f"{base.name}: the opened index is not the index of the stage")
    seeds = list(config.seeds) if spec.seed_matters else [config.seeds[0]]
    allowed = admitted_chunks.passes if config.trust.filter else None
    started = time.perf_counter()
    rankings, dropped = dict[int, Ranking](), 0
    last: Iterated | None = None
    counts: IterativeFacts | None = None
    with work.progress.step(
        f"Retrieving with {spec.name}", len(texts) * len(seeds), "wordings"
    ) as advance:
        for seed in seeds:
            rankings[seed], gone = guarded_search(
                config, strategy, texts, seed, allowed=allowed, restated=restated_passages
            )
            if isinstance(strategy, IterativeStrategy) and seed == seeds[0]:
                last, counts = strategy.last, strategy.account()
            dropped += gone
            advance(len(texts))
    seconds, failed = time.perf_counter() - started, failed_frame(rankings)
    steered_by = strategy.steered_by if isinstance(strategy, IterativeStrategy) else ""
    about = RunFacts(
        index_hash=strategy.index_hash,
        embed_model=strategy.embed_model,
        name=spec.name,
        kind=spec.kind,
        seeds=seeds,
        seed_matters=spec.seed_matters,
        n_runs=len(texts) * len(seeds),
        n_empty=int(sum((found.rows[:, 0] < 0).sum() for found in rankings.values())) - len(failed),
        n_failed=len(failed),
        n_dropped=dropped,
        first_failure=next((found.failure for found in rankings.values() if found.failure), None),
        rerank_model=opened.index.rerank_model(strategy.spec),
        query_tokens=_mean_tokens(texts),
        steered_by=steered_by,
        iterative=counts,
    )
    latency = _time_strategy(work, strategy, texts, admitted_chunks)
    return StrategyRun(
        run=run_frame(rankings),
        failed=failed,
        expansions=None if last is None else last.steps,
        rounds=None if last is None else _stacked(last.rounds),
        about=about,
        timing=RunTiming(latency, seconds),
    )


def _stacked(rounds: Sequence[Int32Array]) -> IntArray:
    """Combine the rows of several rounds in one array, padded with -1."""
    width = max(rows.shape[1] for rows in rounds)
    padded = [
        np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=-1) for rows in rounds
    ]
    return np.asarray(np.stack(padded), dtype=np.int64)


PLACED_SHARE = 0.95
"""Least share of the retrieved units with a section, or with a place for the span level.

A level with a smaller share is not measured. At a measured level, a unit without a section or place
counts as a miss.
"""
UNPLACED = "nothing was retrieved that the corpus knows, so nothing has a {what}"
TOO_FEW_PLACED = (
    "the source names no {what} for {n} of {all} retrieved units, by id, offsets or text;"
    " at least {share:.0%} must have one"
)


def _unmeasured_levels(placed: Placed) -> dict[Level, str]:
    """Find the levels at which the units cannot be judged, with the reason.

    Documents can always be judged, because an unknown document is not relevant.
    """
    retrieved = placed.units.iloc[placed.ranking.rows[placed.ranking.has_chunk]]
    known = retrieved[retrieved["known"]]
    parts: tuple[tuple[Level, str, pd.Series], ...] = (
        ("section", "section", known["section_id"] == ""),
        ("span", "place in its document", known["start"] < 0),
    )
    reasons: dict[Level, str] = {}
    for level, what, lacks in parts:
        if known.empty:
            reasons[level] = UNPLACED.format(what=what)
        elif lacks.sum() > (1 - PLACED_SHARE) * len(known):
            reasons[level] = TOO_FEW_PLACED.format(
                what=what, n=int(lacks.sum()), all=len(known), share=PLACED_SHARE
            )
    return reasons


NO_VERSION = "the source states no version, so it is asked again by every run"


def _run_external(
    work: Work, corpus: CorpusSnapshot, admitted: AdmittedChunks, gold: GoldVariants
) -> StrategyRun:
    """Run an external strategy over every wording, and place its units in the corpus."""
    started, depth, warnings = time.perf_counter(), work.config.depth, ProblemList()
    spec = External.model_validate(own_strategy(work))
    identity = identity_of(work.evaluation, admitted, spec)
    top_k = min(spec.top_k or depth, depth)
    if spec.files():
        path = spec.list_path(work.base)
        with work.progress.step(f"Reading {path.name} for {spec.name}"):
            replies = read_lists(path, spec, gold.variants, top_k, warnings)
        latency, embed_model = _no_latency("a file has no latency"), ""
    else:
        label = f"Retrieving with {spec.name}"
        with contextlib.closing(work.evaluation.sources.open(spec)) as source:
            with work.progress.step(label, len(gold.texts), "wordings") as advance:
                replies = ask_source(source, gold.texts, top_k, advance)
            pairs = zip(gold.texts, replies.outcomes, strict=True)
            latency = _time_queries(
                functools.partial(source.ask_one, top_k=LATENCY_TOP_K),
                [text for text, outcome in pairs if isinstance(outcome, Retrieved)],
                work.settings.latency_queries,
                QueryError,
            )
            embed_model = source.embed_model
    outcomes, why = replies.outcomes, {}
    if not replies.version:
        why["version"] = "a file is known by its hash" if spec.files() else NO_VERSION
    placed = place_all(outcomes, corpus.documents, corpus.sections, admitted.chunks, depth)
    units, rankings = placed.units, {work.config.seeds[0]: placed.ranking}
    unknown = sorted(units.loc[~units["known"], "doc_id"].unique())
    note = "{} retrieved documents are not in the corpus and count as not relevant, for example {}"
    failures = Counter(outcome.code for outcome in outcomes if isinstance(outcome, Failure))
    run = StrategyRun(
        run=run_frame(rankings),
        failed=failed_frame(rankings),
        units=units,
        not_run=pd.DataFrame({"variant": np.flatnonzero(~placed.ran).astype(np.int64)}),
        about=RunFacts(
            index_hash=identity.index_hash,
            embed_model=embed_model,
            name=spec.name,
            kind=spec.kind,
            seeds=list(rankings),
            seed_matters=False,
            n_runs=int(placed.ran.sum()),
            n_empty=sum(isinstance(one, Retrieved) and not one.items for one in outcomes),
            n_failed=failures.total(),
            first_failure=placed.ranking.failure,
            rerank_model="",
            query_tokens=_mean_tokens(gold.texts),
            failures=dict(sorted(failures.items())),
            unmeasured=_unmeasured_levels(placed),
            notes=replies.notes
            + ([note.format(len(unknown), quoted(unknown[0], 60))] if unknown else []),
            warnings=report_warnings(warnings.listed(), work.base),
            source=ExternalSource(
                kind=spec.source_kind(work.settings),
                version=replies.version or None,
                wordings="original" if replies.original_only else "all",
                n_units=len(units),
                n_own_chunks=int((units["chunk"] >= 0).sum()),
                n_placed=int((units["start"] >= 0).sum()),
                n_unknown=int((~units["known"]).sum()),
                why=why,
            ),
        ),
        timing=RunTiming(latency, time.perf_counter() - started),
    )
    run.is_lasting = bool(spec.files() or (replies.version and not failures))
    return run


# ---- Descriptions of these results for people.
