"""The opened index of a gold set: its strategies, ready to search, and batches of their rankings.

An iterative strategy searches in rounds of expansion around its base.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pandas as pd

from rag_eval.answers.chat import ChatCache, ChatClient
from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import InputError
from rag_eval.core.parts import Embedding
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Strategy
from rag_eval.core.types import DISCOUNTING
from rag_eval.measures.run_scores import AnyRuns
from rag_eval.retrieval.chroma import open_chroma
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.retrieval.embedding import ChunkTable, Places
from rag_eval.retrieval.lexical import bm25s_engine
from rag_eval.retrieval.ranking import Ranking, read_ranking
from rag_eval.retrieval.strategies import LocalStrategy, ReadyStrategy, StrategyIndex
from rag_eval.storage.home import Home
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
from rag_eval.uncertainty.heuristic import HEURISTIC, heuristic_v0
from rag_eval.uncertainty.iterative import Iterated, Iterative, iterate
from rag_eval.uncertainty.signals import (
    SIGNALS,
    RankedBatch,
    TermSpace,
    batch_of_texts,
    signals,
)
from rag_eval.uncertainty.traffic import Again

SECOND_DEPTH = 100
CALIBRATED = "calibrated"


def stability_embedding(config: GoldSetConfig) -> Embedding:
    """Choose the embedding of delta_s: that of the first vector strategy, else lsa-256."""
    vector = (spec.embeds_with for spec in config.strategies if spec.vectors_alone)
    return next(vector, None) or Embedding(model="lsa-256")


class OpenIndex:
    """The chunks of a gold set and one ready strategy per name, without external strategies.

    Vectors and terms are loaded when a stage first needs them.
    """

    def __init__(
        self,
        config: GoldSetConfig,
        settings: Settings,
        places: Places,
        table: ChunkTable,
    ) -> None:
        self.config, self.settings, self.places, self.table = config, settings, places, table
        local = [spec for spec in config.strategies if isinstance(spec, LocalStrategy)]
        needs_graph = any(spec.store_name == "chroma" for spec in local)
        self.index = StrategyIndex(
            self.table,
            places,
            open_chroma(settings) if needs_graph else None,
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

    def can_be_asked(self, spec: Strategy, text: str) -> bool:
        """Check whether `batch` can rank a wording outside the gold set.

        A file of vectors must hold the vector of the wording.
        """
        embedding = self.config.base_of(spec).embeds_with or stability_embedding(self.config)
        return self.index.source(embedding).can_embed(text)

    def batch(self, spec: Strategy, texts: list[str], ranking: Ranking) -> RankedBatch:
        """Make the batch of the rankings of n wordings by one strategy.

        The batch treats no question as a wording of another question.
        """
        base = self.config.base_of(spec)
        source = None if base.embeds_with is None else self.index.source(base.embeds_with)
        # The second retriever uses vectors for a lexical strategy, and BM25 for all others.
        terms = self.table.query_terms(texts)
        if base.second == "bm25":
            other = bm25s_engine(self.index).search(terms, SECOND_DEPTH)
        else:
            # A file of vectors only has the wordings of the gold set. `can_be_asked` excludes
            # other texts.
            second = self.index.source(stability_embedding(self.config))
            vectors = second.query_vectors(texts)
            other = ExactSearch(second.chunk_vectors()).search(vectors, SECOND_DEPTH)
        return RankedBatch(
            rows=ranking.rows,
            raw=ranking.raw,
            norm=ranking.norm,
            cosine=base.vectors_alone and base.rerank is None,
            space=self.terms,
            query_terms=terms,
            other_rows=other.rows,
            other_raw=other.raw,
            query_vectors=None if source is None else source.query_vectors(texts),
            chunk_vectors=None if source is None else np.asarray(source.chunk_vectors()),
            document=self.documents,
        )

    def ready(
        self, spec: Strategy, variants: pd.DataFrame | None, steered_by: str | None = None
    ) -> ReadyStrategy:
        """Make a strategy that is not external ready to search.

        `variants` (VARIANTS) are those of the gold set, if any. `steered_by` is the calibrator of
        an iterative strategy; None looks up the accepted one.
        """
        if spec.base_name is None:
            return self.strategies[spec.name]
        if steered_by is None:
            base_hash = self.strategies[spec.base_name].index_hash
            steered_by = steering_calibrator(self.places.home, self.config, spec, base_hash)
        return IterativeStrategy(self, Iterative.model_validate(spec), steered_by, variants)


# ---- Iterative strategies: rounds of expansion around a base strategy.


def steering_calibrator(
    home: Home, config: GoldSetConfig, iterative: Strategy, base_hash: str
) -> str:
    """Find the calibrator that steers the rounds, by its id; empty without one.

    The base strategy must have accepted it, and it must have earned a status.
    """
    if Iterative.model_validate(iterative).steered_by == HEURISTIC:
        return ""
    base = config.base_of(iterative)
    fingerprint = strategy_fingerprint(config, base, base_hash)
    accepted = find_accepted(home, config, base.name, fingerprint)
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
    calibrator `steered_by` steers the rounds. Without a calibrator, the heuristic steers them.
    `variants` (VARIANTS) of the gold set, if any, give the known groups of its wordings.
    """

    def __init__(
        self,
        opened: "OpenIndex",
        iterative: Iterative,
        steered_by: str,
        variants: pd.DataFrame | None,
    ) -> None:
        if opened.config.vectors_of_rounds(iterative):
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
        self._opened, self.steered_by = opened, steered_by
        self.index_hash = iterative.index_hash(base.index_hash, steered_by, opened.settings)
        self._model: MissRateModel | None = None
        self._groups: dict[str, str] = {}
        if steered_by:
            body = read_calibrator(opened.places.home, steered_by)
            steering = KeptCalibrator.from_json(body)
            self._model = steering.model
            self._groups = groups_of_wordings(variants, steering.group_of_query)
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
        config = self._opened.config
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
            self._opened.batch(self.base.spec, queries, first),
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
        name, settings = self.iterative.endpoint, self._opened.settings
        if name is None:
            return None
        endpoint = settings.find_endpoint(name, f"strategies.{self.name}.endpoint")
        return ChatSuggester(
            ChatClient(endpoint, ChatCache(open_store(settings))), threads=endpoint.concurrency
        )


def groups_of_wordings(
    variants: pd.DataFrame | None, group_of: Mapping[str, str]
) -> dict[str, str]:
    """Map each wording of the gold set to its group.

    The group selects a fit that saw no outcome of the wording.
    """
    if variants is None:
        return {}
    pairs = zip(variants["query_id"], variants["group_id"], strict=True)
    groups = [group_of.get(query, group) for query, group in pairs]
    return dict(zip(variants["text"], groups, strict=True))


# ---- Batches of a stored run, and claims of production traffic that are searched again.


def stored_batches(runs: AnyRuns, opened: OpenIndex, name: str) -> dict[int, RankedBatch]:
    """Make the batches of a stored run by seed, with variants as rows.

    When all units of an external retriever are chunks of the corpus, the batches hold chunks.
    Otherwise the batches hold units.
    """
    spec, texts = runs.spec(name), runs.gold_variants.texts
    question = np.asarray(runs.gold.query_of, dtype=np.int64)
    seeds, run = runs.runs[name].about.seeds, runs.runs[name].run
    lists = {seed: read_ranking(run, seed, len(texts), runs.config.depth) for seed in seeds}
    if spec.own_units:
        units = runs.units(name)
        chunk_of = units["chunk"].to_numpy()
        if not len(chunk_of) or (chunk_of < 0).any():
            unit_texts = units["text"].tolist()
            return {
                seed: dataclasses.replace(
                    batch_of_texts(unit_texts, texts, ranking), question=question
                )
                for seed, ranking in lists.items()
            }
        for seed, ranking in lists.items():
            rows = np.where(ranking.rows >= 0, chunk_of[np.maximum(ranking.rows, 0)], -1)
            lists[seed] = dataclasses.replace(ranking, rows=rows.astype(np.int32))
    batches = {seed: opened.batch(spec, texts, ranking) for seed, ranking in lists.items()}
    return {seed: dataclasses.replace(batch, question=question) for seed, batch in batches.items()}


AT_ONCE = 2000
"""Questions in one search, because the lists of a large import may not fit in memory."""


def search_again(runs: AnyRuns, opened: OpenIndex, name: str, texts: list[str]) -> dict[str, Again]:
    """Search questions of traffic by a strategy, with their signals.

    A question that fails, or that a file of vectors lacks, is left out. The trust filter
    applies as for the gold set.
    """
    config, table, again = runs.config, opened.table, dict[str, Again]()
    spec, steered_by = runs.spec(name), runs.runs[name].about.steered_by
    strategy = opened.ready(spec, runs.gold_variants.variants, steered_by)
    asked = [text for text in texts if opened.can_be_asked(spec, text)]
    allowed = runs.admitted_chunks.passes if config.trust.filter else None
    for start in range(0, len(asked), AT_ONCE):
        part = asked[start : start + AT_ONCE]
        ranking = strategy.search(part, config.depth, config.seeds[0], allowed=allowed)
        values = signals(opened.batch(spec, part, ranking), config.uncertainty.k)
        failed = np.zeros(len(part), dtype=bool) if ranking.failed is None else ranking.failed
        for text, rows, row_signals, broken in zip(part, ranking.rows, values, failed, strict=True):
            if not broken:
                chunks = rows[rows >= 0].tolist()
                chunk_ids = [str(table.chunk_ids[row]) for row in chunks]
                doc_ids = [str(table.doc_ids[row]) for row in chunks]
                again[text] = Again(chunk_ids, doc_ids, row_signals)
    return again
