"""Ranking figures of strategies by level and by tag, their comparisons, and parts of the report."""

import contextlib
import datetime as dt
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Final, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from pydantic import Field, PositiveInt, StrictBool

from rag_eval.core.arrays import BoolArray, FloatArray, number
from rag_eval.core.errors import quoted
from rag_eval.core.parts import Name
from rag_eval.core.records import (
    Because,
    ComparedPair,
    Count,
    Figure,
    IndexHash,
    Measure,
    Open,
    Record,
    RuleCode,
    ShortText,
    Text,
)
from rag_eval.core.types import Level
from rag_eval.measures.intervals import (
    COMPARED,
    PairedComparison,
    aggregate,
    delta_of,
    holm,
    paired_comparison,
    within_query,
)
from rag_eval.measures.ranking import as_rankings, machine_name, ranks
from rag_eval.measures.run_scores import (
    LEVELS,
    RankedRuns,
    Scores,
    cutoffs_of,
    figure_of,
    interval_fields,
    judge_runs,
)
from rag_eval.measures.stability import RecallFigure
from rag_eval.retrieval.dense import ExactSearch, approximate_search
from rag_eval.retrieval.outside import QueryError
from rag_eval.retrieval.strategies import Request, StrategyIndex

# ---- Parts of the report.


class Seeds(Record):
    """The seeds, and whether they change the results of the strategy."""

    configured: list[Count] = Field(min_length=1)
    matter: StrictBool


class Latency(Record):
    """Times of single queries in milliseconds."""

    n: Count
    p50: float | None
    p95: float | None
    p99: float | None
    measured_at: str | None


LATENCY_TOP_K = 10
LATENCY_LEAST, LATENCY_MOST, LATENCY_SECONDS = 20, 60, 2.0
"""Least and largest number of timed queries, and the time after which no more are timed."""


def time_queries(ask: Callable[[str], object], texts: Sequence[str]) -> Latency:
    """Time at most `LATENCY_MOST` single queries, spread evenly over the texts, in milliseconds.

    Slow strategies are timed on fewer queries, so that timing does not dominate a run. Calls that
    fail are timed, because callers wait for them too.
    """
    if not texts:
        return no_latency("no query was answered")
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


def no_latency(reason: str) -> Latency:
    """Give no figures, each with the reason."""
    names = ("measured_at", "p50", "p95", "p99")
    return Latency.model_validate(
        {"n": 0, **dict.fromkeys(names), "why": dict.fromkeys(names, reason)}
    )


class ExternalSource(Record):
    """Source and contents of the rankings of an external strategy."""

    kind: Literal["http", "import", "run_file", "recorded", "opensearch", "qdrant", "pgvector"]
    version: Annotated[str | None, Field(description="as the source states it")]
    wordings: Literal["all", "original"]
    n_units: Count = Field(description="distinct items that it returned")
    n_own_chunks: Count = Field(description="of these, chunks of this corpus")
    n_placed: Count = Field(description="of these, with a known place in a document")
    n_unknown: Count = Field(description="of these, of documents that the corpus lacks")


class LevelState(Record):
    """Whether results of an external strategy can be judged at a level; if not, the reason."""

    measured: StrictBool
    reason: Text | None = None


class AnnRecall(Record):
    """Share of the exact neighbours that the index returns, by seed."""

    by_seed: dict[str, dict[Annotated[str, Field(pattern=r"^ann_recall_at_[0-9]+$")], Figure]]


class StrategyPart(Record):
    """One strategy's figures. The last four fields are of external strategies only."""

    name: Name
    kind: str
    index_hash: IndexHash
    embed_model: str
    configuration: Open = Field(
        description="the strategy as gold_set.yaml configures it, but for paths"
    )
    rerank: Annotated[str | None, Because("")]
    seeds: Seeds
    n_runs: Count
    n_empty: Count = Field(description="runs that retrieved nothing")
    n_failed: Count = Field(description="retrievals that gave an error and score 0")
    first_failure: Annotated[str | None, Because("no retrieval failed")]
    measures: list[Measure] = Field(min_length=1)
    ann_recall: Annotated[AnnRecall | None, Because("this strategy searches exactly")]
    latency_ms: Latency
    cost_per_1k: Annotated[float | None, Because("the cost of retrieval is not known")]
    source: ExternalSource | None = None
    failures: dict[RuleCode, PositiveInt] | None = Field(
        None, description="failed retrievals by code"
    )
    levels: dict[Level, LevelState] | None = None
    notes: list[Text] | None = Field(
        None, description="notes on how to read the figures of an external strategy"
    )

    def measure(self, name: str, level: Level) -> Measure:
        """Return a measure by its name or its label."""
        return next(
            found
            for found in self.measures
            if name in {found.name, found.label} and found.level == level
        )


MAX_TAGS, MAX_TAG_CHARS = 30, 100
UNSCORED: Final = "none of these questions was scored"


class SlicePart(Record):
    """The questions with one tag."""

    tag: ShortText
    n_queries: Count
    strategies: dict[Name, RecallFigure]


class SlicesPart(Record):
    """Recall at 10 and misses at K by the most frequent tags; the slices share questions."""

    k: PositiveInt
    level: Level
    n_tags: Count
    by: list[SlicePart]

    @classmethod
    def of(cls, runs: RankedRuns) -> Self:
        """Measure every strategy on the questions of each tag; a repeated tag counts once."""
        tags, k = [set(row) for row in runs.gold.queries["tags"]], runs.config.uncertainty.k
        counts = Counter(tag for row in tags for tag in row)
        values = np.vstack([runs.recall(), *(_miss_rates(runs, name, k) for name in runs.names)])
        slices = list[SlicePart]()
        for tag in sorted(counts, key=lambda tag: (-counts[tag], tag))[:MAX_TAGS]:
            member = np.array([tag in row for row in tags], dtype=bool)
            shared = runs.gold.shared.take(member)
            records = aggregate([""] * len(values), values[:, member].T, shared)
            figures = [figure_of(row, None if row.n_scored else UNSCORED) for row in records]
            strategies = {
                name: RecallFigure(**dict(recall), miss=miss)
                for name, recall, miss in zip(
                    runs.names, figures[: len(runs.names)], figures[len(runs.names) :], strict=True
                )
            }
            name = quoted(tag, MAX_TAG_CHARS)
            slices.append(SlicePart(tag=name, n_queries=counts[tag], strategies=strategies))
        return cls(k=k, level=runs.config.level, n_tags=len(counts), by=slices)


# ---- Measures of a strategy.


def measure_strategy(
    runs: RankedRuns, index: StrategyIndex, name: str
) -> tuple[list[Measure], AnnRecall | None]:
    """Measure one strategy at every level, and its approximate search, if it has one."""
    measures = [row for level in LEVELS for row in _measure_level(runs, name, level)]
    return measures, _measure_approximation(runs, index, name)


def _measure_level(runs: RankedRuns, name: str, level: Level) -> list[Measure]:
    """Measure one strategy at one level, with bounds where unjudged items could count."""
    scores, reason = runs.scores(name), runs.unmeasured(name).get(level)
    upper: dict[str, float] = {}
    if level in scores.upper:
        labels = [f"P@{k}" for k in cutoffs_of(runs.config.k)]
        records = runs.aggregate(name, labels, scores.upper[level], level)
        upper = {record.label: record.value for record in records}
    measures = []
    for record in runs.aggregate(name, scores.labels[level], scores.values[level], level):
        why = {} if reason is None else {"value": reason}
        if level == "span" and np.isnan(record.judged_at_k):
            why["judged_at_k"] = "text that was not quoted is not judged"
        parts: dict[str, object] = {
            **interval_fields(record),
            "label": record.label,
            "name": machine_name(record.label),
            "level": level,
            "n_failed": record.n_failed,
            "judged_at_k": number(record.judged_at_k),
            "why": why,
        }
        if record.label in upper:
            parts["value_if_unjudged_relevant"] = number(upper[record.label])
        measures.append(Measure.model_validate(parts))
    return measures


def _measure_approximation(runs: RankedRuns, index: StrategyIndex, name: str) -> AnnRecall | None:
    """Measure recall of an approximate index against exact search over the same vectors.

    The recall is given by seed and k; None for exact strategies.
    """
    spec = runs.spec(name)
    embedding = spec.embeds_with
    if embedding is None or spec.store_name != "chroma":
        return None
    gold, depth, texts = runs.gold, runs.config.depth, runs.gold.variants["text"].tolist()
    source = index.source(embedding)
    vectors = source.query_vectors(texts)
    exact = ExactSearch(source.chunk_vectors()).search(vectors, depth)
    cutoffs = [k for k in cutoffs_of(runs.config.k) if k <= depth]
    by_seed = {}
    for seed in runs.config.seeds:
        approximate = approximate_search(index, embedding, vectors, Request(texts, depth, seed))
        records = aggregate(
            [f"ann_recall_at_{k}" for k in cutoffs],
            np.stack([_ann_recall(approximate.rows, exact.rows, k) for k in cutoffs], axis=1),
            gold.shared,
            query_of=gold.query_of,
        )
        by_seed[str(seed)] = {record.label: figure_of(record) for record in records}
    return AnnRecall(by_seed=by_seed)


def _ann_recall(approximate: ArrayLike, exact: ArrayLike, k: int) -> FloatArray:
    """Return the share of the exact top k that the approximate top k holds, [n].

    Both are [n, depth] item codes, best first, -1 = padding. NaN without an exact hit.
    """
    returned, true = (
        as_rankings(approximate, "approximate")[:, :k],
        as_rankings(exact, "exact")[:, :k],
    )
    row, column = np.nonzero(returned >= 0)
    is_shared = ranks(true, row, returned[row, column]) > 0
    n_true = np.count_nonzero(true >= 0, axis=1).astype(np.float64)
    n_true[n_true == 0] = np.nan
    return np.asarray(np.bincount(row[is_shared], minlength=len(returned)) / n_true)


def list_scores(runs: RankedRuns) -> pd.DataFrame:
    """Write one row for each strategy, level, query, wording and seed.

    A strategy without randomness has rows under every configured seed.
    """
    parts: list[pd.DataFrame] = []
    identity = runs.gold.variants[["query_id", "group_id", "paraphrase_id"]]
    for name in runs.names:
        scores = runs.scores(name)
        seeds = sorted(set(scores.seed.tolist()))
        copies = [(seed, seed) for seed in seeds]
        if len(seeds) == 1:
            copies = [(seed, seeds[0]) for seed in runs.config.seeds]
        names = dict.fromkeys(
            machine_name(label) for level in LEVELS for label in scores.labels[level]
        )
        for level, (seed, own) in itertools.product(LEVELS, copies):
            rows = scores.seed == own
            values, columns = scores.values[level][rows], map(machine_name, scores.labels[level])
            part = identity.iloc[scores.variant[rows]].reset_index(drop=True)
            part.insert(0, "level", level)
            part.insert(0, "strategy", name)
            part = part.assign(
                seed=seed, eligible=~np.isnan(values[:, 0]), failed=scores.failed[rows]
            )
            measured = pd.DataFrame(values, columns=list(columns)).reindex(columns=list(names))
            parts.append(pd.concat([part, measured], axis=1))
    return pd.concat(parts, ignore_index=True)


# ---- Paired comparisons.


def compare_strategies(runs: RankedRuns) -> list[ComparedPair]:
    """Compare every pair of strategies that are measured at the headline level.

    A pair is compared on the wordings that both strategies were run on.
    """
    level, pairs, wordings = runs.config.level, [], []
    measured = [name for name in runs.names if level not in runs.unmeasured(name)]
    for a, b in itertools.combinations(measured, 2):
        both = runs.ran(a) & runs.ran(b)
        left, right = (
            compared_values(runs, runs.scores(name), None if both.all() else both)
            for name in (a, b)
        )
        pairs.append((a, b, paired_comparison(left, right, runs.gold.shared)))
        n = {} if both.all() else {"n_wordings": int(both.sum())}
        wordings += [n] * len(COMPARED)
    rows = zip(comparison_rows(pairs, level), wordings, strict=True)
    return [ComparedPair.model_validate(row | n) for row, n in rows]


def compared_values(
    runs: RankedRuns, scores: Scores, variants: BoolArray | None = None
) -> FloatArray:
    """Return the compared measures by query, float [n_queries, n_compared]."""
    level = runs.config.level
    columns = [scores.labels[level].index(label) for label in COMPARED]
    return scores.per_query(level, runs.gold, variants)[:, columns]


Row = dict[str, str | float | None]


def comparison_rows(pairs: Iterable[tuple[str, str, PairedComparison]], level: Level) -> list[Row]:
    """Write paired comparisons as one row per pair and measure.

    Holm's adjustment covers all rows.
    """
    rows: list[Row] = [
        {
            "a": a,
            "b": b,
            "measure": label,
            "level": level,
            **delta_of(found, at),
            "p": number(found.p[at]),
            "minimum_detectable": number(found.minimum_detectable[at]),
        }
        for a, b, found in pairs
        for at, label in enumerate(COMPARED)
    ]
    adjusted = holm([np.nan if row["p"] is None else float(row["p"]) for row in rows])
    return [row | {"p_adjusted": number(float(p))} for row, p in zip(rows, adjusted, strict=True)]


def _miss_rates(runs: RankedRuns, name: str, k: int) -> FloatArray:
    """Average the misses of a strategy over the runs of each question: float [n_questions]."""
    judged = judge_runs(runs, name)
    missed, query = judged.missed("miss_any", k), runs.gold.query_of[judged.variant]
    return within_query(missed, query, len(runs.gold.queries))[:, 0]
