"""The retrieval stage: run one strategy over every wording and seed, and time single queries.

A run is reused only when equal inputs are known to give equal answers. Files are identified by
their hash, services and ports by the version that they state. A run with a failed query is never
reused.
"""

import contextlib
import dataclasses
import datetime as dt
import functools
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, IntArray
from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import ProblemList, quoted
from rag_eval.core.frames import DOCUMENTS
from rag_eval.core.records import Open
from rag_eval.core.strategy import Strategy
from rag_eval.core.types import Level, RetrievalOptions
from rag_eval.corpus.analyzer import count_tokens
from rag_eval.gold.lint import LintWarning, report_warnings
from rag_eval.measures.run_scores import RankedRuns
from rag_eval.measures.strategy_figures import ExternalSource, Latency
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusSnapshot, GoldVariants
from rag_eval.pipeline.index import CorpusIndex, chosen_kinds, identity_of, open_index
from rag_eval.pipeline.runner import (
    AGAIN,
    Result,
    Runner,
    Stage,
    Work,
    array_part,
    frame_part,
    json_part,
)
from rag_eval.retrieval.kinds.external import External, Placed
from rag_eval.retrieval.outside import Outside, QueryError, Retrieved
from rag_eval.retrieval.ranking import Ranking, failed_frame, run_frame
from rag_eval.retrieval.service import RetrievalService
from rag_eval.retrieval.strategies import ReadyStrategy
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.iterative import Iterated, IterativeFacts
from rag_eval.uncertainty.opened_index import IterativeStrategy

# ---- The run of a strategy.


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """Facts for the report on a strategy's run.

    Without randomness the run has one seed. The counts are of all retrievals, of retrievals without
    a result, and of failed retrievals. `rerank_model` is the embedding of an MMR step.
    `query_tokens` is the mean length of a wording.

    Only an iterative strategy has `steered_by` (a calibrator's id) and `iterative`. Only an
    external strategy has failures by code, levels that cannot be judged with the reason, notes,
    warnings about its file, and statements of its source.
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


NOT_SEEN: Final = {
    "ann_recall": "the index of an external retriever is not visible to rag_eval",
    "cost_per_1k": "the cost of an external retriever is not known",
}


class StrategyRun(Result):
    """One strategy's rankings for every wording and seed.

    `run` is a RUN frame; `chunk` is a row of the admitted chunks, or of `units`. `failed` has the
    variant and seed of the retrievals that ended in an error. Only an external strategy has `units`
    (UNITS) and `not_run`, the variants outside its run. Only an iterative strategy has `expansions`
    (EXPANSIONS_FRAME) and `rounds`, int [n_rounds, n_variants, depth], the rows of the merged
    rankings, -1 padded.
    """

    shown = ("about", "timing")
    run: pd.DataFrame = frame_part()
    failed: pd.DataFrame = frame_part()
    units: pd.DataFrame | None = frame_part(default=None)
    not_run: pd.DataFrame | None = frame_part(default=None)
    expansions: pd.DataFrame | None = frame_part(default=None)
    rounds: IntArray | None = array_part(default=None)
    about: RunFacts = json_part()
    timing: RunTiming = json_part(volatile=True)

    def report_part(self, work: Work) -> dict[str, Any]:
        """Give the strategy without its measures, and the warnings about its file of outputs."""
        facts, spec = self.about, work.config.strategy(self.about.name)
        price = spec.question_price(work.settings.price_per_1k_embedding_tokens)
        same = "name kind index_hash embed_model n_runs n_empty n_failed first_failure".split()
        part: dict[str, object] = {
            **{name: getattr(facts, name) for name in same},
            "configuration": _describe_configuration(spec),
            "rerank": spec.rerank.kind if spec.rerank else None,
            "seeds": {"configured": list(work.config.seeds), "matter": facts.seed_matters},
            "latency_ms": self.timing.latency_ms,
            "cost_per_1k": round(price * facts.query_tokens, 6),
        }
        if self.has_own_units:
            levels: dict[str, Open] = {level: {"measured": True} for level in get_args(Level)}
            levels |= {
                level: {"measured": False, "reason": reason}
                for level, reason in facts.unmeasured.items()
            }
            part |= {"source": facts.source, "failures": facts.failures, "levels": levels}
            part |= {"notes": facts.notes, "why": NOT_SEEN, "cost_per_1k": None}
        embed_model = "" if self.has_own_units else facts.embed_model
        identity = {"index_hash": facts.index_hash, "embed_model": embed_model}
        return {
            "strategies": {facts.name: part},
            "index": {"strategies": {facts.name: identity}},
            "reused": {"runs": {facts.name: self.artifact.reused}},
            "gold": {"warnings": facts.warnings},
        }

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


def _describe_configuration(spec: Strategy) -> Open:
    """Describe the configuration of a strategy, without local paths and settings."""
    shown = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    for part in (shown, shown.get("rerank", {})):
        embedding = part.get("embedding", {})
        if "vectors" in embedding:
            embedding["vectors"] = "(file)"
        if embedding.get("config"):  # part of the settings, which may hold an address
            embedding["config"] = f"(settings {digest(embedding['config'], 16)})"
    return shown | {key: "(file)" for key in ("run_file", "recorded") if key in shown}


def _identify_run(
    work: Work, admitted_chunks: AdmittedChunks, gold_variants: GoldVariants, **_: Result
) -> object:
    """Identify the causes of a run besides its inputs.

    Returns the index hash with the embedding model, or with the version of an outside service. The
    index hash covers the calibrator that steers rounds. A service without a version gives AGAIN.
    """
    spec = work.config.strategy(work.strategy)
    identity = identity_of(work.evaluation, admitted_chunks, spec)
    if not spec.own_units or spec.files():
        return [identity.index_hash, identity.embed_model]
    source = work.evaluation.sources.open(Outside.model_validate(spec))
    version = source.ask_version(gold_variants.texts[0])
    return [identity.index_hash, version] if version else AGAIN


@Stage(
    "run",
    "retrieval",
    stores=("embeddings", "calibrators", "sources"),
    reads=(
        *("strategy", "depth", "ignore_identical_ids", "seeds", "trust.filter"),
        *("trust.quarantine", "uncertainty.k"),
    ),
    outside=_identify_run,
    each_strategy=True,
    chosen=chosen_kinds,
)
def retrieve(
    work: Work,
    *,
    corpus_snapshot: CorpusSnapshot,
    admitted_chunks: AdmittedChunks,
    gold_variants: GoldVariants,
    corpus_index: CorpusIndex,
) -> StrategyRun:
    """Run the strategy over every wording and seed.

    A strategy without randomness runs once, and the result counts for every seed.
    """
    spec, config = work.config.strategy(work.strategy), work.config
    if spec.own_units:
        return _run_external(work, corpus_snapshot, admitted_chunks, gold_variants)
    texts, opened = gold_variants.texts, open_index(work.evaluation, admitted_chunks)
    strategy = opened.ready(spec, gold_variants.variants)
    iterative = strategy if isinstance(strategy, IterativeStrategy) else None
    base = strategy if iterative is None else iterative.base
    if base.index_hash != corpus_index.about.strategies[base.name].index_hash:
        raise RuntimeError(f"{base.name}: the opened index is not the index of the stage")
    seeds = list(config.seeds) if spec.seed_matters else [config.seeds[0]]
    allowed = admitted_chunks.passes if config.trust.filter else None
    ignored = gold_variants.own_documents(config, admitted_chunks.chunks["doc_id"])
    started, n_runs = time.perf_counter(), len(texts) * len(seeds)
    rankings = dict[int, Ranking]()
    last: Iterated | None = None
    with work.progress.step(f"Retrieving with {spec.name}", n_runs, "wordings") as advance:
        for seed in seeds:
            rankings[seed] = search_wordings(
                config, strategy, texts, seed, allowed=allowed, ignored=ignored
            )
            if iterative is not None and seed == seeds[0]:
                last = iterative.last
            advance(len(texts))
    seconds, failed = time.perf_counter() - started, failed_frame(rankings)
    n_without = int(sum((ranked.rows[:, 0] < 0).sum() for ranked in rankings.values()))
    failures = [ranked.failure for ranked in rankings.values() if ranked.failure]
    facts = RunFacts(
        index_hash=strategy.index_hash,
        embed_model=strategy.embed_model,
        name=spec.name,
        kind=spec.kind,
        seeds=seeds,
        seed_matters=spec.seed_matters,
        n_runs=n_runs,
        n_empty=n_without - len(failed),
        n_failed=len(failed),
        first_failure=failures[0] if failures else None,
        rerank_model=opened.index.rerank_model(strategy.spec),
        query_tokens=_mean_tokens(texts),
        steered_by="" if iterative is None else iterative.steered_by,
        iterative=None if last is None else last.facts,
    )
    latency = _time_strategy(work, strategy, texts, admitted_chunks)
    work.made_from += sorted(opened.table.made_from)
    return StrategyRun(
        run=run_frame(rankings),
        failed=failed,
        expansions=None if last is None else last.steps,
        rounds=None if last is None else last.rounds,
        about=facts,
        timing=RunTiming(latency, seconds),
    )


def search_depth(config: GoldSetConfig, ignored: IntArray, n_chunks: int) -> int:
    """Return the depth of a search that leaves the configured depth without ignored pairs."""
    return config.depth + (int(np.bincount(ignored // n_chunks).max()) if len(ignored) else 0)


def search_wordings(
    config: GoldSetConfig,
    strategy: ReadyStrategy,
    texts: list[str],
    seed: int,
    *,
    allowed: BoolArray | None,
    ignored: IntArray,
) -> Ranking:
    """Search every wording to the configured depth.

    `ignored` are pairs of `GoldVariants.own_documents`, which are left out.
    """
    n_chunks = len(strategy.index.table)
    depth = search_depth(config, ignored, n_chunks)
    ranked = strategy.search(texts, depth, seed, allowed=allowed)
    return ranked.without(ignored, n_chunks).cut(config.depth)


# ---- External strategies.

NO_VERSION: Final = "the source states no version, so it is asked again by every run"
UNKNOWN_DOCUMENTS: Final = (
    "{} retrieved documents are not in the corpus and count as not relevant, for example {}"
)


def _run_external(
    work: Work, corpus: CorpusSnapshot, admitted: AdmittedChunks, gold: GoldVariants
) -> StrategyRun:
    """Run an external strategy over every wording, and place its units in the corpus."""
    started, depth, warnings = time.perf_counter(), work.config.depth, ProblemList()
    spec = Outside.model_validate(work.config.strategy(work.strategy))
    identity = identity_of(work.evaluation, admitted, spec)
    top_k, embed_model = min(spec.top_k or depth, depth), ""
    if spec.files():
        listed = External.model_validate(spec)
        path = listed.list_path(work.base)
        with work.progress.step(f"Reading {path.name} for {spec.name}"):
            replies = listed.read_lists(work.base, gold.variants, top_k, warnings)
        latency = _no_latency("a file has no latency")
    else:
        label = f"Retrieving with {spec.name}"
        with contextlib.closing(work.evaluation.sources.open(spec)) as source:
            with work.progress.step(label, len(gold.texts), "wordings") as advance:
                replies = source.ask_texts(gold.texts, top_k, advance)
            pairs = zip(gold.texts, replies.outcomes, strict=True)
            latency = time_queries(
                functools.partial(source.ask_one, top_k=LATENCY_TOP_K),
                [text for text, outcome in pairs if isinstance(outcome, Retrieved)],
            )
            embed_model = source.embed_model
    outcomes, why = replies.outcomes, {}
    if not replies.version:
        why["version"] = "a file is known by its hash" if spec.files() else NO_VERSION
    placed = Placed.of(outcomes, corpus.documents, corpus.sections, admitted.chunks, depth)
    units = placed.units
    ignored = gold.own_documents(work.config, units["doc_id"])
    rankings = {work.config.seeds[0]: placed.ranking.without(ignored, len(units))}
    unknown, notes = sorted(units.loc[~units["known"], "doc_id"].unique()), replies.notes
    if unknown:
        notes = [*notes, UNKNOWN_DOCUMENTS.format(len(unknown), quoted(unknown[0], 60))]
    failures = Counter(outcome.code for outcome in outcomes if isinstance(outcome, QueryError))
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
            n_empty=sum(isinstance(reply, Retrieved) and not reply.items for reply in outcomes),
            n_failed=failures.total(),
            first_failure=placed.ranking.failure,
            rerank_model="",
            query_tokens=_mean_tokens(gold.texts),
            failures=dict(sorted(failures.items())),
            unmeasured=placed.unmeasured_levels(),
            notes=notes,
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


# ---- Latency of single queries.

LATENCY_TOP_K = 10
LATENCY_LEAST, LATENCY_MOST, LATENCY_SECONDS = 20, 60, 2.0
"""Least and largest number of timed queries, and the time after which no more are timed."""


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
        default_threshold=1.0 if config.trust.filter else None,
        seed=config.seeds[0],
    )
    ask = functools.partial(service.retrieve, options=RetrievalOptions(top_k=LATENCY_TOP_K))
    return time_queries(ask, texts)


def time_queries(ask: Callable[[str], object], texts: Sequence[str]) -> Latency:
    """Time at most `LATENCY_MOST` single queries, spread evenly over the texts, in milliseconds.

    Slow strategies are timed on fewer queries, so that timing does not dominate a run. Calls that
    fail are timed, because callers wait for them too.
    """
    if not texts:
        return _no_latency("no query was answered")
    places = np.unique(np.linspace(0, len(texts) - 1, min(LATENCY_MOST, len(texts))).astype(int))
    # In mixed order, because the first ones must represent all.
    places = np.random.default_rng(0).permutation(places)
    times = list[float]()
    # The first call pays for lazy loading.
    for place in (places[0], *places):
        started = time.perf_counter()
        with contextlib.suppress(QueryError):
            ask(texts[place])
        times.append(1000 * (time.perf_counter() - started))
        if len(times) > LATENCY_LEAST and sum(times[1:]) > 1000 * LATENCY_SECONDS:
            break
    p50, p95, p99 = np.percentile(times[1:], (50, 95, 99)).tolist()
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Latency(n=len(times) - 1, p50=p50, p95=p95, p99=p99, measured_at=now)


def _no_latency(reason: str) -> Latency:
    names = ("measured_at", "p50", "p95", "p99")
    return Latency.model_validate(
        {"n": 0, **dict.fromkeys(names), "why": dict.fromkeys(names, reason)}
    )


def _mean_tokens(texts: Sequence[str]) -> float:
    return float(np.mean([count_tokens(text) for text in texts]))


# ---- The scored runs of an evaluation, which its stages share.


class ScoredRuns(RankedRuns):
    """The runs of all strategies with the gold set, as the stages give them."""

    gold_variants: GoldVariants
    admitted_chunks: AdmittedChunks
    runs: Mapping[str, StrategyRun]


def open_runs(runner: Runner) -> ScoredRuns:
    """Score the runs of an evaluation outside of a stage."""
    runs = {name: runner.get(StrategyRun, name) for name in runner.strategies}
    gold, admitted = runner.get(GoldVariants), runner.get(AdmittedChunks)
    return score_runs(runner.evaluation.config, gold, admitted, runs)


_scored: "weakref.WeakKeyDictionary[GoldVariants, ScoredRuns]" = weakref.WeakKeyDictionary()


def score_runs(
    config: GoldSetConfig,
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
    runs: Mapping[str, StrategyRun],
) -> ScoredRuns:
    """Combine runs and gold. Stages of one process with equal inputs share the scores."""
    scored = _scored.get(gold_variants)
    if scored is None or (scored.admitted_chunks, scored.runs) != (admitted_chunks, dict(runs)):
        scored = ScoredRuns(config, gold_variants, admitted_chunks, dict(runs))
        _scored[gold_variants] = scored
    return scored
