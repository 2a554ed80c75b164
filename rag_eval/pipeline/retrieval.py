"""Retrieval stages: build the index, search with every strategy, guard and time the results.

External strategies are asked or read, their units are placed in the corpus, and their runs are
stored like all other runs. A run is reused only when equal inputs are known to give equal answers.
Files are identified by their hash, services and ports by the version that they state. Every run
asks all other sources again, and also repeats a run with a failed query.
"""

import contextlib
import dataclasses
import datetime as dt
import functools
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.answers.chat import ChatCache, ChatClient
from rag_eval.answers.evidence import Withheld
from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.config import (
    DISCOUNTING,
    GoldSetConfig,
    Level,
    Status,
)
from rag_eval.core.errors import Embedding, InputError, Problem, quoted
from rag_eval.core.frames import RUN
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Identity, IdentityInputs, Strategy
from rag_eval.core.types import RetrievalOptions
from rag_eval.corpus.analyzer import ANALYZER, count_tokens
from rag_eval.measures.ranking import Extents, span_carriers
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusChunks,
    CorpusSnapshot,
    EvidenceTrust,
    GoldVariants,
)
from rag_eval.pipeline.evaluation import Advance, Evaluation, accepted_calibrator, read_calibrator
from rag_eval.pipeline.runner import (
    AGAIN,
    Result,
    Table,
    Work,
    array_part,
    frame_part,
    json_part,
)
from rag_eval.retrieval.dense import ChromaStore, ExactSearch
from rag_eval.retrieval.external_units import Placed, Placer, place_all
from rag_eval.retrieval.identity import ChunkTable
from rag_eval.retrieval.kinds.external import (
    External,
    Failure,
    HttpSource,
    Listed,
    Outcome,
    PortSource,
    QueryError,
    Retrieved,
    SourceKind,
    failed_note,
    match_lists,
    read_recorded,
    read_run,
)
from rag_eval.retrieval.lexical import bm25s_engine
from rag_eval.retrieval.ranking import Ranking
from rag_eval.retrieval.service import QueryGuard, RetrievalService
from rag_eval.retrieval.strategies import LocalStrategy, ReadyStrategy, StrategyIndex
from rag_eval.storage.hashing import digest
from rag_eval.storage.sql import open_store
from rag_eval.trust.guard import screen
from rag_eval.trust.restating import restated_pairs
from rag_eval.trust.sources import vouched_for
from rag_eval.trust.verdicts import ALLOWED
from rag_eval.uncertainty.calibrators import unknown_kinds
from rag_eval.uncertainty.estimator import MissRateModel, heuristic_v0
from rag_eval.uncertainty.expansion import CorpusWords, ExpansionContext, Suggester
from rag_eval.uncertainty.iterative import HEURISTIC, Iterated, Iterative, iterate
from rag_eval.uncertainty.signals import SIGNALS, RankedBatch, TermSpace, signals
from rag_eval.uncertainty.suggestions import ChatSuggester, installed_wordnet

# ---- Embedding for stages without a strategy: delta_s, and the second retriever of BM25.


def stability_embedding(config: GoldSetConfig) -> Embedding:
    """Choose the embedding of delta_s: that of the first vector strategy, else lsa-256."""
    vector = (spec.embeds_with for spec in config.strategies if spec.vectors_alone)
    return next(vector, None) or Embedding(model="lsa-256")


# ---- The opened index.


class OpenIndex:
    """The admitted chunks and one ready strategy per name, without external strategies.

    Opening costs nothing until a stage searches.
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


def second_of(
    config: GoldSetConfig, opened: OpenIndex, spec: Strategy, texts: list[str]
) -> Ranking:
    """Rank with the second retriever: by vectors for a lexical strategy, else by BM25."""
    if config.base_of(spec).second == "bm25":
        return bm25s_engine(opened.index).search(opened.table.query_terms(texts), SECOND_DEPTH)
    # A file of vectors only has the wordings of the gold set. No other wording is searched here.
    source = opened.index.source(stability_embedding(config))
    return ExactSearch(source.chunk_vectors()).search(source.query_vectors(texts), SECOND_DEPTH)


def can_be_asked(config: GoldSetConfig, opened: OpenIndex, spec: Strategy, text: str) -> bool:
    """Check whether `batch_of` can rank a wording outside the gold set.

    A file of vectors must hold the vector of the wording.
    """
    embedding = config.base_of(spec).embeds_with or stability_embedding(config)
    return opened.index.source(embedding).can_embed(text)


def batch_of(
    config: GoldSetConfig, opened: OpenIndex, spec: Strategy, texts: list[str], found: Ranking
) -> RankedBatch:
    """Make the batch of new or stored rankings over the chunks.

    The batch treats no question as a wording of another question.

    Parameters
    ----------
    texts
        The n wordings.
    found
        Their rankings by `spec`.
    """
    base = config.base_of(spec)
    source = None if base.embeds_with is None else opened.index.source(base.embeds_with)
    other = second_of(config, opened, spec, texts)
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


# ---- Units of external retrievers: levels at which they can be judged, and their gold spans.

PLACED_SHARE = 0.95
"""Share of the retrieved units that need a place (or section) before that level is measured.

A unit without a place counts as a miss at that level.
"""
UNPLACED = "nothing was retrieved that the corpus knows, so nothing has a {what}"
TOO_FEW_PLACED = (
    "the source names no {what} for {n} of {all} retrieved units, by id, offsets or text;"
    " at least {share:.0%} must have one"
)


def unmeasured_levels(placed: Placed) -> dict[Level, str]:
    """Find the levels at which the units cannot be judged, with the reason.

    Documents can always be judged, because an unknown document is not relevant.
    """
    rows = placed.ranking.rows[placed.ranking.has_chunk]
    known = rows[placed.units["known"].to_numpy()[rows]]
    parts: tuple[tuple[Level, str, np.ndarray], ...] = (
        ("section", "section", (placed.units["section_id"] != "").to_numpy()),
        ("span", "place in its document", (placed.units["start"] >= 0).to_numpy()),
    )
    reasons: dict[Level, str] = {}
    for level, what, there in parts:
        without = int((~there[known]).sum())
        if not len(known):
            reasons[level] = UNPLACED.format(what=what)
        elif without > (1 - PLACED_SHARE) * len(known):
            reasons[level] = TOO_FEW_PLACED.format(
                what=what, n=without, all=len(known), share=PLACED_SHARE
            )
    return reasons


def units_for_gold(units: pd.DataFrame) -> pd.DataFrame:
    """Prepare units for the gold arrays.

    A unit without a known section becomes a section of its own, which no judgement names.
    """
    numbered = pd.Series(
        [f"\x00{row}" for row in range(len(units))], index=units.index, dtype="str"
    )
    return units.assign(section_id=units["section_id"].where(units["section_id"] != "", numbered))


def carried_by_units(gold: GoldVariants, units: pd.DataFrame) -> pd.DataFrame:
    """Find the gold spans that units carry, as a SPAN_CHUNKS frame.

    A unit that equals a chunk carries the spans of the chunk. Another unit carries a span when the
    overlap is at least half of the shorter text. Chunks have a second-best rule. Units have none,
    because the other units of the source are unknown.
    """
    spans, own = gold.spans, gold.span_chunks
    rows = np.flatnonzero((units["chunk"] >= 0).to_numpy())
    named = pd.DataFrame({"chunk": units["chunk"].to_numpy()[rows], "unit": rows})
    chunks = own.merge(named, on="chunk")
    documents = pd.Index(spans["doc_id"].unique())
    code = documents.get_indexer(pd.Index(units["doc_id"]))
    placed = np.flatnonzero(
        (units["chunk"] < 0).to_numpy() & (units["start"] >= 0).to_numpy() & (code >= 0)
    )
    indptr, carriers = span_carriers(
        Extents(documents.get_indexer(pd.Index(spans["doc_id"])), spans["start"], spans["end"]),
        Extents(code[placed], units["start"].to_numpy()[placed], units["end"].to_numpy()[placed]),
    )
    span = np.concatenate(
        [chunks["span"].to_numpy(), np.repeat(np.arange(len(spans)), np.diff(indptr))]
    )
    unit = np.concatenate([chunks["unit"].to_numpy(), placed[carriers]])
    frame = pd.DataFrame({"span": span.astype(np.int64), "chunk": unit.astype(np.int64)})
    return frame.sort_values(["span", "chunk"], ignore_index=True)


# ---- Rankings as stored frames: RUN, and the failed retrievals.


def run_frame(rankings: Mapping[int, Ranking]) -> pd.DataFrame:
    """Write rankings in long form: RUN schema, one row per retrieved chunk.

    Parameters
    ----------
    rankings
        Seed -> ranking of all variants.
    """
    parts = []
    for seed, found in rankings.items():
        variant, place = np.nonzero(found.has_chunk)
        parts.append(
            pd.DataFrame(
                {
                    "variant": variant.astype(np.int64),
                    "seed": np.full(len(variant), seed, dtype=np.int64),
                    "chunk": found.rows[variant, place].astype(np.int64),
                    "k_pos": found.k_pos[variant, place].astype(np.int64),
                    "k_final": (place + 1).astype(np.int64),
                    "score_raw": found.raw[variant, place],
                    "score_norm": found.norm[variant, place],
                    "rerank_score": found.rerank[variant, place],
                }
            )
        )
    return RUN.check(pd.concat(parts, ignore_index=True))


def failed_frame(rankings: Mapping[int, Ranking]) -> pd.DataFrame:
    """List the retrievals that ended in an error: variant, seed."""
    rows = [
        (row, seed)
        for seed, found in rankings.items()
        if found.failed is not None
        for row in np.flatnonzero(found.failed).tolist()
    ]
    return pd.DataFrame(rows, columns=["variant", "seed"], dtype="int64")


def run_rows(
    frame: pd.DataFrame, seeds: Sequence[int], n_variants: int, depth: int
) -> dict[int, npt.NDArray[np.int64]]:
    """Read a RUN frame as chunk rows by seed, int64 [n_variants, depth], -1 padded.

    A seed under which nothing was retrieved has no row in the frame.
    """
    result = {}
    for seed in sorted(seeds):
        part = frame[frame["seed"] == seed]
        rows = np.full((n_variants, depth), -1, dtype=np.int64)
        rows[part["variant"].to_numpy(), part["k_final"].to_numpy() - 1] = part["chunk"].to_numpy()
        result[seed] = rows
    return result


# ---- Retrieval stage of external strategies: ask or read, place in the corpus, store as a run.

LATENCY_TOP_K = 10
PERCENTILES = (50, 95, 99)
GIVE_UP_AFTER = 3
"""Number of consecutive failed queries that ends the timing, because the service may be gone."""


@dataclasses.dataclass(frozen=True)
class _Job:
    """One external strategy with its wordings, depth and corpus."""

    work: Work
    spec: External
    identity: Identity
    texts: list[str]
    variants: pd.DataFrame
    placer: Placer

    @property
    def kind(self) -> SourceKind:
        """Kind of the source."""
        return self.spec.source_kind(self.work.settings)

    @property
    def top_k(self) -> int:
        """Number of units to ask for."""
        depth = self.work.config.depth
        return min(self.spec.top_k or depth, depth)

    def place(self, outcomes: Sequence[Outcome]) -> Placed:
        """Place the retrieved units in the corpus."""
        return place_all(outcomes, self.placer, self.work.config.depth)


def _run_external(job: _Job) -> "StrategyRun":
    """Run an external strategy over every wording.

    A run is reused only when equal inputs are known to give equal answers. A file is identified by
    its hash, a service or port by the version that it states.
    """
    if job.spec.files():
        return _read(job)
    with contextlib.closing(job.work.evaluation.sources.open(job.spec)) as source:
        version = source.ask_version(job.texts[0], LATENCY_TOP_K)
        run, is_lasting = _ask(job, source, version)
    run.is_lasting = is_lasting
    return run


def _read(job: _Job) -> "StrategyRun":
    path, started = job.spec.list_path(job.work.base), time.perf_counter()
    with job.work.progress.step(f"Reading {path.name} for {job.spec.name}"):
        listed = read_listed(job.kind, path, job.variants, job.top_k)
        placed = job.place(listed.outcomes)
    source = {
        "kind": job.kind,
        "version": None,
        "version_reason": "a file is known by its hash",
        "wordings": listed.wordings,
        **_sizes(placed),
    }
    about = _external_facts(job, placed, listed.outcomes, source, job.identity.embed_model)
    about = dataclasses.replace(about, notes=[*listed.notes, *about.notes])
    seconds = time.perf_counter() - started
    return _external_result(job, placed, about, no_latency("a file has no latency"), seconds)


def read_listed(kind: SourceKind, path: Any, variants: pd.DataFrame, top_k: int) -> Listed:
    """Read the rankings of a file and match them to the wordings.

    Raises
    ------
    InputError
        The file cannot be used.
    """
    if kind == "run_file":
        return match_lists(read_run(path, variants), variants, top_k, missing="empty")
    return match_lists(read_recorded(path), variants, top_k, missing="failed")


def _ask(job: _Job, source: HttpSource | PortSource, version: str) -> tuple["StrategyRun", bool]:
    """Ask for every wording. Return the run, and whether equal inputs are known to repeat it."""
    started = time.perf_counter()
    with job.work.progress.step(
        f"Retrieving with {job.spec.name}", len(job.texts), "wordings"
    ) as advance:
        outcomes = _ask_each_once(source, job.texts, job.top_k, advance)
    seconds = time.perf_counter() - started
    placed, notes = job.place(outcomes), list[str]()
    stated = {outcome.version for outcome in outcomes if isinstance(outcome, Retrieved)}
    if isinstance(source, HttpSource) and version and stated - {version}:
        named = sorted(quoted(name or "none", 40) for name in stated | {version})[:5]
        notes.append(f"the replies state different versions: {', '.join(named)}")
        version = ""
    unknown = "the source states no version, so it is asked again by every run"
    about = _external_facts(
        job,
        placed,
        outcomes,
        {
            "kind": job.kind,
            "version": quoted(version, 200) or None,
            **({} if version else {"version_reason": unknown}),
            "wordings": "all",
            **_sizes(placed),
        },
        source.embed_model,
    )
    about = dataclasses.replace(about, notes=[*about.notes, *notes])
    pairs = zip(job.texts, outcomes, strict=True)
    answered = [text for text, outcome in pairs if isinstance(outcome, Retrieved)]
    latency = _latency(source, answered, job.work.settings.latency_queries)
    run = _external_result(job, placed, about, latency, seconds)
    return run, bool(version) and not about.n_failed


def _ask_each_once(
    source: HttpSource | PortSource, texts: Sequence[str], top_k: int, advance: Advance
) -> list[Outcome]:
    """Ask for every wording, but only once for equal texts."""
    distinct = list(dict.fromkeys(texts))
    found = dict(zip(distinct, source.ask_all(distinct, top_k, advance), strict=True))
    outcomes: list[Outcome] = [found[text] for text in texts]
    advance(
        len(texts) - len(distinct),
        failed_note(sum(isinstance(outcome, Failure) for outcome in outcomes)),
    )
    return outcomes


def _external_facts(
    job: _Job,
    placed: Placed,
    outcomes: Sequence[Outcome],
    source: dict[str, Any],
    embed_model: str,
) -> "RunFacts":
    failures = Counter(outcome.code for outcome in outcomes if isinstance(outcome, Failure))
    unknown = sorted(placed.units.loc[~placed.units["known"], "doc_id"].unique())
    note = "{} retrieved documents are not in the corpus and count as not relevant, for example {}"
    empty = (isinstance(outcome, Retrieved) and not outcome.items for outcome in outcomes)
    return RunFacts(
        index_hash=job.identity.index_hash,
        embed_model=embed_model,
        name=job.spec.name,
        kind=job.spec.kind,
        seeds=[job.work.config.seeds[0]],
        seed_matters=False,
        n_runs=int(placed.ran.sum()),
        n_empty=sum(empty),
        n_failed=failures.total(),
        first_failure=placed.ranking.failure,
        rerank_model="",
        query_tokens=_mean_tokens(job.texts),
        failures=dict(sorted(failures.items())),
        unmeasured=unmeasured_levels(placed),
        notes=[note.format(len(unknown), quoted(unknown[0], 60))] if unknown else [],
        source=source,
    )


def _external_result(
    job: _Job, placed: Placed, about: "RunFacts", latency: dict[str, Any], seconds: float
) -> "StrategyRun":
    rankings = {job.work.config.seeds[0]: placed.ranking}
    not_run = pd.DataFrame({"variant": np.flatnonzero(~placed.ran).astype(np.int64)})
    return StrategyRun(
        run=run_frame(rankings),
        failed=failed_frame(rankings),
        units=placed.units,
        not_run=not_run,
        about=about,
        timing=RunTiming(latency_ms=latency, seconds=seconds, embedded_queries=0),
    )


def _sizes(placed: Placed) -> dict[str, int]:
    units = placed.units
    return {
        "n_units": len(units),
        "n_own_chunks": int((units["chunk"] >= 0).sum()),
        "n_placed": int((units["start"] >= 0).sum()),
        "n_unknown": int((~units["known"]).sum()),
    }


def _mean_tokens(texts: Sequence[str]) -> float:
    return float(np.mean([count_tokens(text) for text in texts]))


def no_latency(reason: str) -> dict[str, Any]:
    """Describe a latency that was not measured, with the reason beside each figure."""
    names = ["measured_at", *(f"p{p}" for p in PERCENTILES)]
    return {"n": 0, **dict.fromkeys(names), **{f"{name}_reason": reason for name in names}}


def _latency(
    source: HttpSource | PortSource, texts: Sequence[str], n_queries: int
) -> dict[str, Any]:
    """Time single queries that were answered before, spread evenly over the gold set.

    A query that fails now is left out.
    """
    if not texts:
        return no_latency("no query was answered")
    places = np.unique(
        np.linspace(0, len(texts) - 1, min(n_queries, len(texts))).astype(int)
    ).tolist()
    times: list[float] = []
    missed = 0
    # The first call pays for lazy loading.
    for text in [texts[0], *(texts[place] for place in places)]:
        started = time.perf_counter()
        try:
            source.ask_one(text, LATENCY_TOP_K)
        except QueryError:
            missed += 1
            if missed >= GIVE_UP_AFTER:
                break
            continue
        missed = 0
        times.append(1000 * (time.perf_counter() - started))
    if len(times) < 2:  # noqa: PLR2004 - the warm-up and at least one timed query
        return no_latency("no timed query was answered")
    figures = {f"p{p}": float(np.percentile(times[1:], p)) for p in PERCENTILES}
    return {
        "n": len(times) - 1,
        **figures,
        "measured_at": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


# ---- Binding of a miss rate: the strategy's fingerprint, and the calibrator accepted for it.


@dataclasses.dataclass(frozen=True)
class Accepted:
    """The calibrator for the claims of a strategy.

    Parameters
    ----------
    calibrator_id
        Id of the calibrator; empty without an accepted calibrator.
    status
        Status that the calibrator has earned; `stale` when it belongs to another fingerprint.
    body
        The stored calibrator; None without one or when it belongs to another fingerprint.
    """

    calibrator_id: str
    status: Status
    body: dict[str, Any] | None


def strategy_fingerprint(config: GoldSetConfig, spec: Strategy, index_hash: str) -> str:
    """Identify everything that decides a strategy's rankings, and the gold set that judges them.

    The fingerprint covers configuration, index, guard and trust filter, but not the name. Two gold
    sets over one index have two fingerprints, as judgements in one say nothing about the other.
    """
    trust = [config.trust.quarantine, config.trust.threshold if config.trust.filter else None]
    return digest([config.name, spec.ranking_options(), index_hash, trust, config.level], 32)


def find_accepted(evaluation: Evaluation, name: str, fingerprint: str) -> Accepted:
    """Find the calibrator that is accepted for a strategy now."""
    spec, home = evaluation.config.uncertainty, evaluation.settings.home
    found = accepted_calibrator(home, evaluation.config.name, name, spec.target, spec.k)
    if found is None:
        return Accepted("", "absent", None)
    if found.strategy_fingerprint != fingerprint:
        # A calibrator that has earned nothing cannot become stale.
        has_earned = found.status in DISCOUNTING or found.status == "stale"
        no_longer = Accepted(found.calibrator_id, "stale", None)
        return no_longer if has_earned else Accepted("", "absent", None)
    body = read_calibrator(home, found.calibrator_id)
    if unknown := unknown_kinds(body):
        told = (
            f"{name}: calibrator {found.calibrator_id} uses {', '.join(unknown)},"
            " which is no longer supported; the next run has a new one"
        )
        with evaluation.progress.step(told):
            return Accepted(found.calibrator_id, "stale", None)
    return Accepted(found.calibrator_id, found.status, body)


# ---- Iterative strategies: their identity, and rounds of expansion around a base strategy.

CALIBRATED = "calibrated"


def steering_calibrator(evaluation: Evaluation, base: Strategy, base_hash: str) -> str:
    """Find the calibrator of the base strategy that steers the rounds.

    The calibrator must be accepted and have earned a status.

    Returns
    -------
    str
        Id of the calibrator; empty without one.
    """
    fingerprint = strategy_fingerprint(evaluation.config, base, base_hash)
    found = find_accepted(evaluation, base.name, fingerprint)
    return found.calibrator_id if found.status in DISCOUNTING else ""


class IterativeStrategy(ReadyStrategy):
    """A ready strategy that searches in rounds of expansion.

    `spec` is the configuration of the base, so the port serves this strategy as that kind.

    Parameters
    ----------
    evaluation
        The evaluation with the settings and k.
    opened
        The opened index with the base strategy.
    iterative
        The configuration of the rounds.
    steered_by
        Id of the calibrator that steers the rounds; empty for the heuristic.
    gold
        Gold set with the known groups of its wordings; None without a gold set.
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
            raise InputError(
                Problem(
                    "vectors_of_rounds",
                    "a file of vectors has none for expanded questions",
                    field=f"strategies.{iterative.name}.base",
                    found=iterative.base,
                    accepted="a base of kind bm25, or one whose embedding names a model",
                )
            )
        base = opened.strategies[iterative.base]
        super().__init__(base.spec, base.index)
        self.name, self.iterative, self.base = iterative.name, iterative, base
        self.reranks_outside = base.reranks_outside
        self._evaluation, self._opened, self.steered_by = evaluation, opened, steered_by
        self.index_hash = iterative.index_hash(base.index_hash, steered_by, evaluation.settings)
        self._model: MissRateModel | None = None
        self._groups: dict[str, str] = {}
        if steered_by:
            body = read_calibrator(evaluation.settings.home, steered_by)
            self._model = MissRateModel.from_json(body["model"])
            self._groups = _groups_of_wordings(gold, body["group_of_query"])
        self.last: Iterated | None = None
        """Rounds of the last search."""

    def search(
        self,
        queries: list[str],
        depth: int,
        seed: int = 0,
        *,
        allowed: npt.NDArray[np.bool_] | None = None,
        cached: bool = True,
        strict: bool = True,
    ) -> Ranking:
        """Rank chunks for each query as `ReadyStrategy.search` does.

        Questions with an untrusted retrieval are expanded.
        """
        config = self._evaluation.config
        k = config.uncertainty.k
        first = self.base.search(
            queries, max(depth, k), seed, allowed=allowed, cached=cached, strict=strict
        )
        context = ExpansionContext(
            batch_of(config, self._opened, self.base.spec, queries, first),
            queries,
            self._opened.words,
            self._suggester,
            installed_wordnet(),
        )

        def again(texts: list[str]) -> Ranking:
            return self.base.search(
                texts, max(depth, k), seed, allowed=allowed, cached=cached, strict=strict
            )

        def risk(batch: RankedBatch) -> tuple[FloatArray, str]:
            if self._model is None:
                # At a depth of ten the heuristic sees too little to expand any question.
                whole = batch.rows.shape[1]
                return heuristic_v0(batch, whole), f"{HEURISTIC}@{whole}"
            return self._model.predict(
                signals(batch, k), SIGNALS, [self._groups.get(text, "") for text in queries]
            ), CALIBRATED

        self.last = iterate(first, context, self.iterative, search=again, risk=risk, k=k)
        return self.last.ranking.cut(depth)

    def account(self) -> "IterativeFacts":
        """Describe the last search."""
        if self.last is None:
            raise RuntimeError(f"{self.name} has not searched yet")
        return IterativeFacts(
            basis=self.last.basis,
            n_rounds=len(self.last.rounds),
            stops=dict(sorted(Counter(self.last.stopped).items())),
            not_viable=dict(sorted(self.last.not_viable.items())),
            suggestions_failed=self._failed_suggestions,
        )

    @property
    def _failed_suggestions(self) -> dict[str, int]:
        """Count the suggestions that a chat endpoint failed to give, by code.

        Word associations of the corpus replaced them.
        """
        return (
            dict(sorted(self._suggester.failed.items()))
            if isinstance(self._suggester, ChatSuggester)
            else {}
        )

    @functools.cached_property
    def _suggester(self) -> Suggester | None:
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
            raise InputError(
                Problem(
                    "unknown_endpoint",
                    "the settings enable no chat endpoint of this name",
                    field=f"strategies.{self.name}.endpoint",
                    found=name,
                    accepted=accepted,
                )
            )
        endpoint = settings.endpoints[name]
        return ChatSuggester(
            ChatClient(endpoint, ChatCache(open_store(settings))), threads=endpoint.concurrency
        )


def _groups_of_wordings(gold: GoldVariants | None, known: Mapping[str, str]) -> dict[str, str]:
    """Map each wording of the gold set to its group.

    With the group, no wording is judged by a fit that saw its outcome.
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
    chunker: dict[str, Any]
    n_chunks: int
    strategies: dict[str, Identity]


@dataclasses.dataclass(frozen=True)
class IndexChanges:
    """Changes in the vector store by model, the dropped collections and the duration."""

    vectors: dict[str, dict[str, Any]]
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


def identity_of(
    evaluation: Evaluation, admitted: AdmittedChunks, spec: Strategy, steered_by: str | None = None
) -> Identity:
    """Derive the name of a strategy's index and model from the inputs, before indexing.

    Parameters
    ----------
    steered_by
        Calibrator that steers an iterative strategy; None looks up the accepted one.
    """

    @functools.cache
    def text_hashes() -> list[str]:
        hashes: list[str] = admitted.artifact.frame("chunks", ["text_hash"])["text_hash"].tolist()
        return hashes

    base = evaluation.config.base_of(spec)

    def calibrator_id(base_hash: str) -> str:
        if steered_by is not None:
            return steered_by
        return steering_calibrator(evaluation, base, base_hash)

    return spec.identity(
        IdentityInputs(
            folder=evaluation.base,
            settings=evaluation.settings,
            chunks_hash=admitted.about.chunks_hash,
            text_hashes=text_hashes,
            base=None if spec.base_name is None else identity_of(evaluation, admitted, base),
            calibrator_id=calibrator_id,
            stated=lambda: _stated_index(evaluation, External.model_validate(spec)),
        )
    )


def _stated_index(evaluation: Evaluation, spec: External) -> dict[str, Any]:
    """Return what an opened source states about its index. Only a port in this process does so."""
    if spec.files():
        return {}
    source = evaluation.sources.open(spec)
    return source.stated if isinstance(source, PortSource) else {}


def identify_index(work: Work, admitted_chunks: AdmittedChunks) -> dict[str, list[str]]:
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
    """Name the modules of the configured strategy kinds of this package."""
    modules = {type(spec).__module__ for spec in _concerned(evaluation, strategy)}
    return sorted(module for module in modules if module.startswith("rag_eval."))


def chosen_plugins(evaluation: Evaluation, strategy: str) -> list[str]:
    """Name the modules outside of this package that strategies use: kinds and rerankers."""
    concerned, rerankers = _concerned(evaluation, strategy), evaluation.settings.rerankers
    modules = {type(spec).__module__ for spec in concerned}
    modules |= {
        rerankers[spec.rerank.kind].partition(":")[0]
        for spec in concerned
        if spec.rerank is not None and spec.rerank.kind in rerankers
    }
    return sorted(module for module in modules if not module.startswith("rag_eval."))


def _concerned(evaluation: Evaluation, strategy: str) -> list[Strategy]:
    """Return the strategy and its base, or all strategies when no name is given."""
    config = evaluation.config
    own = [spec for spec in config.strategies if strategy in {"", spec.name}]
    return [*own, *(config.base_of(spec) for spec in own)]


def build_index(work: Work, admitted_chunks: AdmittedChunks) -> CorpusIndex:
    """Embed new chunks, update the vector store, and identify every strategy's index."""
    started, opened = time.perf_counter(), open_index(work.evaluation, admitted_chunks)
    stored: dict[str, dict[str, Any]] = {}
    for strategy in opened.strategies.values():
        source = strategy.source
        if source is None or source.model in stored:
            continue
        with work.progress.step(
            f"Embedding chunks with {source.model}", len(opened.table), "chunks"
        ) as advance:
            vectors = source.chunk_vectors(advance)
        stored[source.model] = _keep_vectors(work, opened, strategy, np.asarray(vectors))
        stored[source.model]["embedded"] = source.use.embedded
    about = IndexFacts(
        analyzer=ANALYZER,
        chunker=work.config.corpus.chunker.model_dump(mode="json"),
        n_chunks=len(opened.table),
        strategies={
            name: Identity(strategy.index_hash, strategy.embed_model)
            for name, strategy in opened.strategies.items()
        },
    )
    dropped = _drop_unused(opened, stored)
    return CorpusIndex(
        about=about, changes=IndexChanges(stored, dropped, time.perf_counter() - started)
    )


def _keep_vectors(
    work: Work, opened: OpenIndex, strategy: ReadyStrategy, vectors: np.ndarray
) -> dict[str, Any]:
    """Sync the collection of one model. Approximate search also builds one graph per seed."""
    index, table = opened.index, opened.table
    if index.chroma is None:
        index.chroma = chroma_store(work.settings)
    model = strategy.embed_model
    name = index.collection_name(model)
    with work.progress.step("Updating the vector store", len(table), "vectors") as advance:
        report = index.chroma.sync(
            name, table.chunk_ids, vectors, table.doc_ids, advance, text_hashes=table.text_hashes
        )
    graphs = []
    if any(
        other.spec.store_name == "chroma" and other.embed_model == model
        for other in opened.strategies.values()
    ):
        for seed in work.config.seeds:
            graph = index.graph_name(model, seed)
            with work.progress.step(
                f"Building the graph of seed {seed}", len(table), "vectors"
            ) as advance:
                started = time.perf_counter()
                built = index.chroma.build(
                    graph, table.chunk_ids, vectors, table.doc_ids, seed=seed, advance=advance
                )
            seconds = time.perf_counter() - started
            graphs.append({"seed": seed, "collection": graph, "built": built, "seconds": seconds})
    return {
        "collection": name,
        **dataclasses.asdict(report),
        "graphs": graphs,
        "dimensions": int(vectors.shape[1]),
    }


def _drop_unused(opened: OpenIndex, stored: dict[str, dict[str, Any]]) -> list[str]:
    """Remove collections of earlier fits and chunks of the models in use.

    Collections of other models may belong to another choice of strategies, so they stay.
    """
    keep = {entry["collection"] for entry in stored.values()}
    keep |= {graph["collection"] for entry in stored.values() for graph in entry["graphs"]}
    index = opened.index
    if index.chroma is None:
        return []
    return [name for model in stored for name in index.chroma.drop(index.family(model), keep)]


# ---- The guard at retrieval time: leave out passages that restate a question. The trust filter.


class RestatedPassages(Result):
    """Admitted chunks that restate a wording of the gold set.

    Attributes
    ----------
    pairs
        query (row of the variants), chunk, start, end, rule, severity.
    about
        Pairs and chunks that are blocked, pairs that are warned about.
    """

    pairs: pd.DataFrame = frame_part()
    about: "RestatedFacts" = json_part()

    @property
    def blocked(self) -> pd.DataFrame:
        """The pairs that are blocked."""
        pairs = self.pairs
        return pairs[pairs["severity"] == "blocked"]

    def codes(self, n_chunks: int) -> IntArray:
        """`variant * n_chunks + chunk` of every blocked pair."""
        pairs = self.blocked
        query, chunk = (pairs[name].to_numpy(dtype=np.int64) for name in ("query", "chunk"))
        return np.asarray(query * n_chunks + chunk, dtype=np.int64)


@dataclasses.dataclass(frozen=True)
class RestatedFacts:
    """Facts for the report on chunks that restate a question."""

    n_blocked_pairs: int
    n_blocked_chunks: int
    n_warned_pairs: int


def find_restated(
    work: Work, gold_variants: GoldVariants, admitted_chunks: AdmittedChunks
) -> RestatedPassages:
    """Find the chunks that restate a wording of the gold set."""
    chunks, facts = admitted_chunks.chunks, admitted_chunks.facts
    with work.progress.step("Looking for passages that restate a question"):
        found = restated_pairs(
            gold_variants.texts,
            chunks["text"].tolist(),
            titles=chunks["title"].tolist(),
            doc_ids=chunks["doc_id"].tolist(),
            sources=facts["domain"].tolist(),
            vouched=_vouched(facts),
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


def _vouched(facts: pd.DataFrame) -> npt.NDArray[np.bool_] | None:
    return vouched_for(facts["domain_state"].tolist(), facts["signature_state"].tolist())


def query_guard(config: GoldSetConfig, admitted: AdmittedChunks) -> QueryGuard | None:
    """Make the guard of a `RetrievalService` over the admitted chunks; None when it is off."""
    if not config.trust.quarantine:
        return None
    facts = admitted.facts
    exempt = (facts["allowed_by"] != "").to_numpy(dtype=bool)
    return QueryGuard(admitted.chunks, facts["domain"].tolist(), _vouched(facts), exempt)


def withheld_chunks(
    config: GoldSetConfig,
    gold: GoldVariants,
    admitted: AdmittedChunks,
    restated: RestatedPassages,
) -> Withheld:
    """Find the chunks that retrieval withholds from each question.

    Evidence search uses this to leave out the same chunks. Quarantine withholds chunks that restate
    any wording of the question. The trust filter withholds chunks under the threshold.
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


def guarded_search(
    config: GoldSetConfig,
    strategy: ReadyStrategy,
    texts: list[str],
    seed: int,
    *,
    allowed: npt.NDArray[np.bool_] | None,
    restated: RestatedPassages,
) -> tuple[Ranking, int]:
    """Search every wording with one strategy, as a caller behind the guard would.

    Returns
    -------
    Ranking, int
        The ranking to the configured depth, and the number of chunks that the guard removed.
    """
    depth, n_chunks = config.depth, len(strategy.index.table)
    pairs = restated.codes(n_chunks) if config.trust.quarantine else np.zeros(0, dtype=np.int64)
    spare = int(np.bincount(pairs // n_chunks).max()) if len(pairs) else 0
    found = strategy.search(texts, depth + spare, seed, allowed=allowed, strict=False)
    codes = np.arange(len(found.rows), dtype=np.int64)[:, None] * n_chunks + found.rows
    dropped = int((np.isin(codes, pairs) & found.has_chunk)[:, :depth].sum())
    return found.without(pairs, n_chunks).cut(depth), dropped


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
            ready[spec.name] = ready_strategy(
                evaluation, opened, spec, _port_gold(evaluation, spec)
            )
            kinds.setdefault(ready[spec.name].spec.kind, ready[spec.name])
    wanted = "hybrid" if evaluation.settings.feature_hybrid_retrieval else "bm25"
    if not kinds:
        raise InputError(
            Problem(
                "nothing_to_serve",
                "every strategy of this gold set is external",
                field="strategies",
                accepted="bm25, vector or hybrid",
            )
        )
    primary = ready.get(config.primary_strategy)
    default = (
        wanted if wanted in kinds else next(iter(kinds)) if primary is None else primary.spec.kind
    )
    corpus, trust = runner.get(CorpusSnapshot), config.trust
    scores = admitted.trust_of(runner.get(EvidenceTrust))["trust"] if trust.configured else None
    return RetrievalService(
        kinds,
        corpus.documents,
        corpus_rev=corpus.about.corpus_rev,
        default=default,
        trust=None if scores is None else scores.to_numpy(),
        guard=query_guard(config, admitted),
        default_threshold=trust.threshold if trust.filter else None,
        seed=config.seeds[0],
    )


def _port_gold(evaluation: Evaluation, spec: Strategy) -> GoldVariants | None:
    """Return the gold set when a calibrator that saw it may steer the rounds of a strategy."""
    return None if spec.base_name is None else evaluation.runner.get(GoldVariants)


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

    Parameters
    ----------
    index_hash, embed_model
        Index and embedding of the rankings.
    name, kind
        The strategy.
    seeds, seed_matters
        Seeds of the run; only one when the strategy has no randomness.
    n_runs, n_empty, n_failed, n_dropped
        Numbers of retrievals: all, without a result, failed. Number of chunks that the guard
        removed.
    first_failure
        Message of the first failure.
    rerank_model
        Embedding of an MMR step.
    query_tokens
        Mean number of tokens of a wording.
    steered_by, iterative
        Only for an iterative strategy: id of the calibrator that steered the rounds, and counts.
    failures, unmeasured, notes, source
        Only for an external strategy: failures by code, levels that cannot be judged with their
        reason, further notes, and the statements of the source.
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
    source: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class RunTiming:
    """Latency of single queries, the duration of the batch, and queries that had to be embedded."""

    latency_ms: dict[str, Any]
    seconds: float
    embedded_queries: int


class StrategyRun(Result):
    """One strategy's rankings for every wording and seed.

    Attributes
    ----------
    run
        RUN frame; `chunk` is a row of the admitted chunks, or of `units`.
    failed
        variant and seed of the retrievals that ended in an error.
    units, not_run
        Only for an external strategy: UNITS frame, and the wordings outside its run.
    expansions, rounds
        Only for an iterative strategy: EXPANSIONS_FRAME, and int [n_rounds, n_variants, depth]
        rows of the merged rankings, -1 padded.
    about, timing
        Facts for the report.
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
        """Rows of chunks or units by seed, int64 [n_variants, depth], -1 padded."""
        return run_rows(self.run, self.about.seeds, n_variants, depth)


def ready_strategy(
    evaluation: Evaluation,
    opened: OpenIndex,
    spec: Strategy,
    gold: GoldVariants | None,
    steered_by: str | None = None,
) -> ReadyStrategy:
    """Make a strategy that is not external ready to search.

    Parameters
    ----------
    gold
        The gold set; None without one.
    steered_by
        Calibrator of an iterative strategy's rounds; None looks up the accepted one.
    """
    if spec.base_name is None:
        return opened.strategies[spec.name]
    base = opened.strategies[spec.base_name]
    if steered_by is None:
        steered_by = steering_calibrator(evaluation, base.spec, base.index_hash)
    iterative = Iterative.model_validate(spec)
    return IterativeStrategy(evaluation, opened, iterative, steered_by, gold)


def own_strategy(work: Work) -> Strategy:
    """Return the strategy of the stage."""
    return next(spec for spec in work.config.strategies if spec.name == work.strategy)


def identify_run(
    work: Work, admitted_chunks: AdmittedChunks, gold_variants: GoldVariants, **_: Result
) -> object:
    """Identify what decides a run besides its inputs.

    This is the calibrator that steers the rounds, or the statement of an outside source. Every run
    asks a source without a version again.
    """
    spec = own_strategy(work)
    identity = identity_of(work.evaluation, admitted_chunks, spec)
    if not spec.own_units or spec.files():
        return [identity.index_hash, identity.embed_model]
    source = work.evaluation.sources.open(External.model_validate(spec))
    version = source.ask_version(gold_variants.texts[0], LATENCY_TOP_K)
    return [identity.index_hash, version] if version else AGAIN


def retrieve(
    work: Work,
    *,
    corpus_snapshot: CorpusSnapshot,
    admitted_chunks: AdmittedChunks,
    gold_variants: GoldVariants,
    restated_passages: RestatedPassages,
    corpus_index: CorpusIndex,
) -> StrategyRun:
    """Run one strategy over every variant and seed.

    A strategy without randomness runs once, and the result counts for every seed.
    """
    spec, config = own_strategy(work), work.config
    if spec.own_units:
        external, variants = External.model_validate(spec), gold_variants.variants
        placer = Placer(corpus_snapshot.documents, corpus_snapshot.sections, admitted_chunks.chunks)
        identity = identity_of(work.evaluation, admitted_chunks, spec)
        return _run_external(
            _Job(work, external, identity, variants["text"].tolist(), variants, placer)
        )
    texts, opened = gold_variants.texts, open_index(work.evaluation, admitted_chunks)
    strategy = ready_strategy(work.evaluation, opened, spec, gold_variants)
    _check_identity(corpus_index, strategy, spec.base_name or spec.name)
    seeds = list(config.seeds) if spec.seed_matters else [config.seeds[0]]
    used = 0 if strategy.source is None else strategy.source.use.embedded
    allowed = admitted_chunks.passes if config.trust.filter else None
    started = time.perf_counter()
    rankings, dropped, iterated = dict[int, Ranking](), 0, None
    with work.progress.step(
        f"Retrieving with {spec.name}", len(texts) * len(seeds), "wordings"
    ) as advance:
        for seed in seeds:
            rankings[seed], gone = guarded_search(
                config, strategy, texts, seed, allowed=allowed, restated=restated_passages
            )
            if isinstance(strategy, IterativeStrategy) and seed == seeds[0]:
                iterated = strategy.last, strategy.account()
            dropped += gone
            advance(len(texts))
    seconds, failed = time.perf_counter() - started, failed_frame(rankings)
    embedded = 0 if strategy.source is None else strategy.source.use.embedded - used
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
        iterative=None if iterated is None else iterated[1],
    )
    latency = _measure_latency(work, strategy, texts, admitted_chunks)
    last = None if iterated is None else iterated[0]
    return StrategyRun(
        run=run_frame(rankings),
        failed=failed,
        expansions=None if last is None else last.frame(),
        rounds=None if last is None else _stacked(last.rounds),
        about=about,
        timing=RunTiming(latency_ms=latency, seconds=seconds, embedded_queries=embedded),
    )


def _check_identity(index: CorpusIndex, strategy: ReadyStrategy, name: str) -> None:
    """Refuse an index that differs from the index of the stage."""
    base = strategy.base if isinstance(strategy, IterativeStrategy) else strategy
    planned = index.about.strategies[name].index_hash
    if base.index_hash != planned:
        raise RuntimeError(f"{name}: the opened index is {base.index_hash}, not {planned}")


def _stacked(rounds: Sequence[npt.NDArray[np.int32]]) -> IntArray:
    """Combine the rows of several rounds in one array, padded with -1."""
    width = max(rows.shape[1] for rows in rounds)
    padded = [
        np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=-1) for rows in rounds
    ]
    return np.asarray(np.stack(padded), dtype=np.int64)


def _measure_latency(
    work: Work, strategy: ReadyStrategy, texts: list[str], admitted: AdmittedChunks
) -> dict[str, Any]:
    """Time single queries through the port, spread evenly over the gold set.

    Each query is embedded anew.
    """
    config = work.config
    service = RetrievalService(
        {strategy.spec.kind: strategy},
        pd.DataFrame({name: pd.Series(dtype=str) for name in ("doc_id", "rev", "source_url")}),
        corpus_rev="",
        default=strategy.spec.kind,
        trust=admitted.passes.astype(np.float64),
        guard=query_guard(config, admitted),
        default_threshold=1.0 if config.trust.filter else None,
        seed=config.seeds[0],
    )
    n = min(work.settings.latency_queries, len(texts))
    places = np.unique(np.linspace(0, len(texts) - 1, n).astype(int))
    options = RetrievalOptions(top_k=LATENCY_TOP_K)
    # The batch counted the errors of an outside reranker. Callers wait for failed calls too.
    foreign: tuple[type[Exception], ...] = (Exception,) if strategy.reranks_outside else ()
    with contextlib.suppress(*foreign):
        service.retrieve(texts[0], options)  # the first call pays for lazy loading
    times = []
    for place in places:
        started = time.perf_counter()
        with contextlib.suppress(*foreign):
            service.retrieve(texts[place], options)
        times.append(1000 * (time.perf_counter() - started))
    return {
        "n": len(times),
        **{f"p{p}": float(np.percentile(times, p)) for p in PERCENTILES},
        "measured_at": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


# ---- The guard on units of an outside retriever: verdicts of overlapping chunks, or a scan.

RANK = {"clean": 0, "hint": 0, "warning": 1, "blocked": 2}


@dataclasses.dataclass(frozen=True)
class UnitVerdicts:
    """Verdicts on the units of an external strategy.

    Attributes
    ----------
    trust
        Trust by unit; 0 for a unit of an unknown document.
    verdict, reasons
        Verdict and reasons by unit.
    pairs
        Blocked pairs of wording and unit, as `variant * n_units + unit`.
    """

    trust: npt.NDArray[np.float64]
    verdict: npt.NDArray[np.object_]
    reasons: list[list[str]]
    pairs: npt.NDArray[np.int64]


def _overlapping(units: pd.DataFrame, chunks: pd.DataFrame, evidence: pd.DataFrame) -> pd.DataFrame:
    """Match units with the chunks that are not clean: rows of unit, verdict and reasons.

    A unit matches the chunks that share characters with it. A unit without a place matches every
    chunk of a document when all chunks of the document are blocked.
    """
    poor = np.flatnonzero((evidence["verdict"] != "clean").to_numpy())
    marked = pd.DataFrame(
        {
            "doc_id": chunks["doc_id"].to_numpy()[poor],
            "low": chunks["start"].to_numpy()[poor],
            "high": chunks["end"].to_numpy()[poor],
            "verdict": evidence["verdict"].to_numpy()[poor],
            "reasons": evidence["reasons"].to_numpy()[poor],
        }
    )
    wholly = evidence.groupby("doc_id")["verdict"].agg(
        lambda verdicts: bool((verdicts == "blocked").all())
    )
    places = pd.DataFrame(
        {
            "unit": np.arange(len(units)),
            "doc_id": units["doc_id"].to_numpy(),
            "start": units["start"].to_numpy(),
            "end": units["end"].to_numpy(),
        }
    )
    met = places.merge(marked, on="doc_id")
    placeless = (met["start"] < 0) & met["doc_id"].map(wholly).fillna(value=False).to_numpy(
        dtype=bool
    )
    return met[
        ((met["start"] >= 0) & (met["low"] < met["end"]) & (met["start"] < met["high"])) | placeless
    ]


def unit_verdicts(
    config: GoldSetConfig,
    corpus_chunks: CorpusChunks,
    evidence_trust: EvidenceTrust,
    texts_asked: list[str],
    units: pd.DataFrame,
) -> UnitVerdicts:
    """Judge the units of an external strategy (UNITS frame)."""
    chunks, evidence = corpus_chunks.chunks, evidence_trust.trust
    rank = np.zeros(len(units), dtype=np.int64)
    reasons: list[list[str]] = [[] for _ in range(len(units))]
    found = _overlapping(units, chunks, evidence)
    for unit, verdict, codes in zip(
        found["unit"].tolist(), found["verdict"].tolist(), found["reasons"].tolist(), strict=True
    ):
        rank[unit] = max(rank[unit], RANK[verdict])
        reasons[unit] += [code for code in codes if code not in reasons[unit]]
    # A person allowed this text. The loop above judged the other chunks that it overlaps.
    let = np.array([ALLOWED in codes for codes in reasons], dtype=bool)
    texts, returned = units["text"].to_numpy(dtype=object), units["returned"].to_numpy(dtype=object)
    foreign = np.flatnonzero((units["chunk"] < 0).to_numpy() & (texts != "") & ~let)
    # The returned text differs from the corpus, so no judgement or allowance covers it.
    other = np.flatnonzero(returned != "")
    places = np.concatenate([foreign, other])
    scanned = screen([str(text) for text in (*texts[foreign], *returned[other])])
    for place, check, rule, severity in zip(
        *(scanned[name].tolist() for name in ("row", "check", "rule", "severity")), strict=True
    ):
        unit, code = int(places[place]), f"{check}.{rule}"
        rank[unit] = max(rank[unit], RANK[severity])
        if RANK[severity] and code not in reasons[unit]:
            reasons[unit].append(code)
    facts = (
        evidence.drop_duplicates("doc_id").set_index("doc_id").reindex(units["doc_id"].to_numpy())
    )
    states = {
        name: facts[name]
        .fillna("unknown" if config.trust.configured else "not_configured")
        .to_numpy(dtype=object)
        for name in ("domain_state", "signature_state")
    }
    vouched = vouched_for(states["domain_state"].tolist(), states["signature_state"].tolist())
    at = np.concatenate([np.arange(len(units)), other])
    sources, doc_ids = (
        facts["domain"].fillna("").to_numpy(dtype=object),
        units["doc_id"].to_numpy(dtype=object),
    )
    pairs = restated_pairs(
        texts_asked,
        [*texts, *returned[other]],
        titles=[""] * len(at),
        doc_ids=doc_ids[at].tolist(),
        sources=sources[at].tolist(),
        vouched=None if vouched is None else vouched[at],
    )
    place = pairs["chunk"].to_numpy(dtype=np.int64)
    kept = (pairs["severity"] == "blocked").to_numpy() & ~((place < len(units)) & let[at[place]])
    codes = np.unique(
        pairs["query"].to_numpy(dtype=np.int64)[kept] * max(1, len(units)) + at[place[kept]]
    )
    return UnitVerdicts(
        facts["trust"].fillna(0.0).to_numpy(dtype=np.float64),
        np.array(["clean", "warning", "blocked"], dtype=object)[rank],
        reasons,
        codes,
    )


# ---- Descriptions of these results for people.


def describe_index(result: CorpusIndex) -> dict[str, Any]:
    """Show every strategy's index and the changes in the vector store."""
    about, changes = result.about, result.changes
    rows = [
        {"strategy": name, **dataclasses.asdict(entry)} for name, entry in about.strategies.items()
    ]
    vectors = [{"model": model, **entry} for model, entry in changes.vectors.items()]
    columns = ("model", "collection", "dimensions", "embedded", "added", "removed", "kept")
    return {
        "n_chunks": about.n_chunks,
        "analyzer": about.analyzer,
        "index_hashes": Table(("strategy", "index_hash", "embed_model"), rows),
        "vectors": Table(columns, vectors),
        "seconds": changes.seconds,
    }


def describe_restated(result: RestatedPassages) -> dict[str, Any]:
    """Show how many chunks restate a question."""
    return dataclasses.asdict(result.about)


def describe_run(result: StrategyRun) -> dict[str, Any]:
    """Show the numbers of retrievals and failures, and the durations."""
    about, timing = result.about, result.timing
    return {
        "index_hash": about.index_hash,
        "embed_model": about.embed_model or "none",
        "n_runs": about.n_runs,
        "n_empty": about.n_empty,
        "n_failed": about.n_failed,
        "first_failure": about.first_failure or "none",
        "seeds_matter": about.seed_matters,
        "latency_ms": Table(("n", "p50", "p95", "p99"), [timing.latency_ms]),
        "seconds": timing.seconds,
    }


# ---- Access for stages that are not rows of the graph yet.


class IndexOpener:
    """The opened index of an evaluation."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation

    @property
    def embedded(self) -> int:
        """Count the texts that this process embedded through the index."""
        return n_embedded(self._evaluation.runner.get(AdmittedChunks))

    def __call__(self) -> OpenIndex:
        """Return the opened index."""
        return open_index(self._evaluation, self._evaluation.runner.get(AdmittedChunks))


def accepted(evaluation: Evaluation, name: str, fingerprint: str) -> Accepted:
    """Find the calibrator that was accepted for a strategy before this run.

    The answer stays the same within an evaluation.
    """
    return evaluation.once(f"accepted {name}", lambda: find_accepted(evaluation, name, fingerprint))
