"""Runs of strategies: their rankings, those of external strategies, latency and scores."""

import contextlib
import dataclasses
import functools
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, get_args

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
from rag_eval.measures.strategy_figures import (
    LATENCY_TOP_K,
    ExternalSource,
    Latency,
    no_latency,
    time_queries,
)
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusSnapshot, GoldVariants
from rag_eval.pipeline.runner import Result, Runner, Work, array_part, frame_part, json_part
from rag_eval.retrieval.kinds.external import External, Placed
from rag_eval.retrieval.outside import Outside, QueryError, Retrieved
from rag_eval.retrieval.ranking import Ranking, failed_frame, run_frame
from rag_eval.retrieval.service import RetrievalService
from rag_eval.retrieval.strategies import ReadyStrategy
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.iterative import IterativeFacts


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

    def report_part(self, work: Work) -> dict[str, object]:
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


def mean_tokens(texts: Sequence[str]) -> float:
    """Return the mean length of the texts in tokens."""
    return float(np.mean([count_tokens(text) for text in texts]))


def time_strategy(
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


# ---- External strategies.

NO_VERSION: Final = "the source states no version, so it is asked again by every run"
UNKNOWN_DOCUMENTS: Final = (
    "{} retrieved documents are not in the corpus and count as not relevant, for example {}"
)


def run_external(
    work: Work,
    index_hash: str,
    corpus: CorpusSnapshot,
    admitted: AdmittedChunks,
    gold: GoldVariants,
) -> StrategyRun:
    """Run an external strategy over every wording, and place its units in the corpus."""
    started, depth, warnings = time.perf_counter(), work.config.depth, ProblemList()
    spec = Outside.model_validate(work.config.strategy(work.strategy))
    top_k, embed_model = min(spec.top_k or depth, depth), ""
    if spec.files():
        listed = External.model_validate(spec)
        path = listed.list_path(work.base)
        with work.progress.step(f"Reading {path.name} for {spec.name}"):
            replies = listed.read_lists(work.base, gold.variants, top_k, warnings)
        latency = no_latency("a file has no latency")
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
            index_hash=index_hash,
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
            query_tokens=mean_tokens(gold.texts),
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
