"""Ranking figures of strategies by level, and their paired comparisons."""

import itertools
from collections.abc import Iterable

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, number
from rag_eval.core.records import ComparedPair, Measure
from rag_eval.core.types import Level
from rag_eval.measures.intervals import (
    COMPARED,
    PairedComparison,
    aggregate,
    delta_of,
    holm,
    paired_comparison,
)
from rag_eval.measures.ranking import machine_name
from rag_eval.measures.run_scores import (
    LEVELS,
    AnyRuns,
    Scores,
    cutoffs_of,
    figure_of,
    interval_fields,
)
from rag_eval.measures.stability import ann_recall
from rag_eval.measures.strategy_report import AnnRecall
from rag_eval.retrieval.dense import ExactSearch, approximate_search
from rag_eval.retrieval.strategies import Request, StrategyIndex


def measure_level(runs: AnyRuns, name: str, level: Level) -> list[Measure]:
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


def measure_approximation(runs: AnyRuns, index: StrategyIndex, name: str) -> AnnRecall | None:
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
        found = approximate_search(index, embedding, vectors, Request(texts, depth, seed))
        records = aggregate(
            [f"ann_recall_at_{k}" for k in cutoffs],
            np.stack([ann_recall(found.rows, exact.rows, k) for k in cutoffs], axis=1),
            gold.shared,
            query_of=gold.query_of,
        )
        by_seed[str(seed)] = {record.label: figure_of(record) for record in records}
    return AnnRecall(by_seed=by_seed)


def list_scores(runs: AnyRuns) -> pd.DataFrame:
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


def compare_strategies(runs: AnyRuns) -> list[ComparedPair]:
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


def compared_values(runs: AnyRuns, scores: Scores, variants: BoolArray | None = None) -> FloatArray:
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
