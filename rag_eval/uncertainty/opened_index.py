"""The opened index of a gold set: strategies ready to search, and batches of their rankings."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from rag_eval.answers.chat import ChatCache, ChatClient
from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.config import GoldSetConfig
from rag_eval.core.parts import Embedding
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Strategy
from rag_eval.core.types import DISCOUNTING
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.measures.run_scores import RankedRuns
from rag_eval.retrieval.chroma import ChromaStore
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.retrieval.embedding.source import ChunkTable, Places
from rag_eval.retrieval.lexical import bm25s_engine
from rag_eval.retrieval.ranking import Ranking
from rag_eval.retrieval.strategies import LocalStrategy, ReadyStrategy, StrategyIndex
from rag_eval.storage.home import Home
from rag_eval.storage.sql import open_store
from rag_eval.uncertainty.calibrators import (
    KeptCalibrator,
    find_accepted,
    read_calibrator,
    strategy_fingerprint,
)
from rag_eval.uncertainty.expansion import ChatSuggester, CorpusWords, ExpansionContext
from rag_eval.uncertainty.heuristic import HEURISTIC, heuristic_v0
from rag_eval.uncertainty.iterative import Iterated, Iterative, iterate
from rag_eval.uncertainty.signals import SIGNALS, RankedBatch, TermSpace, signals
from rag_eval.uncertainty.traffic import Claim

SECOND_DEPTH = 100


def stability_embedding(config: GoldSetConfig) -> Embedding:
    """Choose the embedding of delta_s: that of the first vector strategy, else lsa-256."""
    vector = (spec.embeds_with for spec in config.strategies if spec.vectors_alone)
    return next(vector, None) or Embedding(model="lsa-256")


@dataclasses.dataclass(frozen=True)
class TrafficFacts:
    """Numbers of counted and uncounted claims of production traffic, with the reason."""

    counted: int = 0
    left_out: int = 0
    reason: str = ""


class OpenIndex:
    """The chunks of a gold set and one ready strategy per name, without external strategies.

    Vectors and terms are loaded when a stage first needs them.
    """

    def __init__(
        self, config: GoldSetConfig, settings: Settings, places: Places, table: ChunkTable
    ) -> None:
        self.config, self.settings, self.places, self.table = config, settings, places, table
        local = [spec for spec in config.strategies if isinstance(spec, LocalStrategy)]
        needs_graph = any(spec.store_name == "chroma" for spec in local)
        self.index = StrategyIndex(
            self.table,
            places,
            ChromaStore.open(settings) if needs_graph else None,
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
        """Check whether `batch` can rank a wording: a file of vectors must hold its vector."""
        embedding = self.config.base_of(spec).embeds_with or stability_embedding(self.config)
        return self.index.source(embedding).can_embed(text)

    def batch(self, spec: Strategy, texts: list[str], ranking: Ranking) -> RankedBatch:
        """Make the batch of the rankings of n wordings, each of a question of its own."""
        base = self.config.base_of(spec)
        source = None if base.embeds_with is None else self.index.source(base.embeds_with)
        # The second retriever uses vectors for a lexical strategy, and BM25 for all others.
        terms = self.table.query_terms(texts)
        if base.second == "bm25":
            other = bm25s_engine(self.index).search(terms, SECOND_DEPTH)
        else:
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

    def stored_batches(self, runs: RankedRuns, name: str) -> dict[int, RankedBatch]:
        """Make the batches of a stored run by seed, with variants as rows.

        When all units of an external retriever are chunks of the corpus, the batches hold chunks.
        Otherwise the units are the term space, without a second retriever.
        """
        spec, texts = runs.spec(name), runs.gold_variants.texts
        question = np.asarray(runs.gold.query_of, dtype=np.int64)
        seeds, run = runs.runs[name].about.seeds, runs.runs[name].run
        lists = {seed: Ranking.read(run, seed, len(texts), runs.config.depth) for seed in seeds}
        make = functools.partial(self.batch, spec, texts)
        if spec.own_units:
            units = runs.units(name)
            chunk_of = units["chunk"].to_numpy()
            if not len(chunk_of) or (chunk_of < 0).any():
                make = functools.partial(_batch_of_units, units["text"].tolist(), texts)
            else:
                for seed, ranking in lists.items():
                    rows = np.where(ranking.rows >= 0, chunk_of[np.maximum(ranking.rows, 0)], -1)
                    lists[seed] = dataclasses.replace(ranking, rows=rows.astype(np.int32))
        return {
            seed: dataclasses.replace(make(ranking), question=question)
            for seed, ranking in lists.items()
        }

    def count_traffic(
        self, runs: RankedRuns, name: str, claims: Sequence[Claim], reason: str
    ) -> tuple[pd.DataFrame, TrafficFacts]:
        """Search the questions of claims again, and return the claims that are retrieved as then.

        A claim counts if its first K ids share any with the first K chunks or documents now, or
        both are empty. A question that fails, or that a file of vectors lacks, is left out.
        `reason` says why there is no claim.
        """
        config, table = runs.config, self.table
        k, rows, values = config.uncertainty.k, list[tuple[str, ...]](), list[FloatArray]()
        spec, n_searched = runs.spec(name), 0
        texts = [
            text
            for text in dict.fromkeys(claim.query for claim in claims)
            if self.can_be_asked(spec, text)
        ]
        allowed = runs.admitted_chunks.passes if config.trust.filter else None
        for start in range(0, len(texts), AT_ONCE):
            strategy = self.ready(
                spec, runs.gold_variants.variants, runs.runs[name].about.steered_by
            )
            part = texts[start : start + AT_ONCE]
            ranking = strategy.search(part, config.depth, config.seeds[0], allowed=allowed)
            of_part = signals(self.batch(spec, part, ranking), k)
            failed = np.zeros(len(part), dtype=bool) if ranking.failed is None else ranking.failed
            place = {text: at for at, text in enumerate(part) if not failed[at]}
            for claim in claims:
                if (at := place.get(claim.query)) is None:
                    continue
                n_searched += 1
                top = ranking.rows[at][: max(claim.k, k)]
                top = top[top >= 0].tolist()
                now = {str(ids[row]) for ids in (table.chunk_ids, table.doc_ids) for row in top}
                production = {name for name, _ in claim.retrieved[: claim.k]}
                if production & now if production else not now:
                    rows.append((name, claim.claim_id, claim.query_id, claim.group_id))
                    values.append(of_part[at])
        keys = ["strategy", "claim_id", "query_id", "group_id"]
        table_of_signals = np.array(values, dtype=np.float64).reshape(-1, len(SIGNALS))
        frame = pd.DataFrame(table_of_signals, columns=list(SIGNALS))
        frame = pd.concat([pd.DataFrame(rows, columns=keys, dtype="str"), frame], axis=1)
        why = {
            "whose question has no vector, or failed here": len(claims) - n_searched,
            "whose first K ids share nothing with what is retrieved now": n_searched - len(rows),
        }
        reason = reason or "; ".join(f"{n} {words}" for words, n in why.items() if n)
        return frame, TrafficFacts(len(rows), len(claims) - len(rows), reason)


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


class IterativeStrategy(ReadyStrategy):
    """A ready strategy that searches in rounds of expansion.

    `spec` is that of the base, so the port serves this strategy as that kind. The calibrator
    `steered_by`, or else the heuristic, steers the rounds. `variants` (VARIANTS) of the gold set
    give the groups of its wordings. `last` are the rounds of the last search.
    """

    def __init__(
        self,
        opened: OpenIndex,
        iterative: Iterative,
        steered_by: str,
        variants: pd.DataFrame | None,
    ) -> None:
        self.base, self.steered_by = opened.strategies[iterative.base], steered_by
        super().__init__(self.base.spec, self.base.index)
        self.name, self._iterative, self._opened = iterative.name, iterative, opened
        self.index_hash = iterative.index_hash(self.base.index_hash, steered_by, opened.settings)
        self._steering, self._groups = None, dict[str, str]()
        if steered_by:
            body = read_calibrator(opened.places.home, steered_by)
            self._steering = KeptCalibrator.from_json(body)
            self._groups = groups_of_wordings(variants, self._steering.group_of_query)
        self.last: Iterated | None = None

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
        k = self._opened.config.uncertainty.k
        search = functools.partial(
            self.base.search, depth=max(depth, k), seed=seed, allowed=allowed, cached=cached
        )
        first = search(queries)
        batch = self._opened.batch(self.base.spec, queries, first)
        context = ExpansionContext(batch, queries, self._opened.words, self._suggester)
        groups = [self._groups.get(text, "") for text in queries]

        def risk(batch: RankedBatch) -> tuple[FloatArray, str]:
            if self._steering is not None:
                model = self._steering.model
                return model.predict(signals(batch, k), SIGNALS, groups), "calibrated"
            # At a depth of ten the heuristic sees too little to expand any question.
            whole = min(self._opened.config.depth, batch.rows.shape[1])
            return heuristic_v0(batch, whole), f"{HEURISTIC}@{whole}"

        self.last = iterate(first, context, self._iterative, search=search, risk=risk, k=k)
        return self.last.ranking.cut(depth)

    @functools.cached_property
    def _suggester(self) -> ChatSuggester | None:
        """The configured chat endpoint; its replies share the cache of the answers."""
        name, settings = self._iterative.endpoint, self._opened.settings
        if name is None:
            return None
        endpoint = settings.find_endpoint(name, f"strategies.{self.name}.endpoint")
        client = ChatClient(endpoint, ChatCache(open_store(settings)))
        return ChatSuggester(client, threads=endpoint.concurrency)


def groups_of_wordings(
    variants: pd.DataFrame | None, group_of: Mapping[str, str]
) -> dict[str, str]:
    """Map each wording of the gold set to its group, which selects a fit without its outcomes."""
    if variants is None:
        return {}
    pairs = zip(variants["query_id"], variants["group_id"], strict=True)
    groups = [group_of.get(query, group) for query, group in pairs]
    return dict(zip(variants["text"], groups, strict=True))


# ---- Batches of a stored run, and claims of production traffic that are searched again.


def _batch_of_units(unit_texts: list[str], texts: list[str], ranking: Ranking) -> RankedBatch:
    analyzer = Analyzer()
    terms = analyzer.index(unit_texts)
    n_terms = 1 + max((max(row) for row in terms if row), default=-1)
    space, asked = TermSpace(terms, n_terms), analyzer.index(texts)
    return RankedBatch(
        ranking.rows, ranking.raw, ranking.norm, cosine=False, space=space, query_terms=asked
    )


AT_ONCE = 2000
"""Questions in one search, because the lists of a large import may not fit in memory."""
