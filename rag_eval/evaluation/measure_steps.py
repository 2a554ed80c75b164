"""Measure stages: ranking measures and stability, from the stored runs."""

import itertools
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.external_levels import carried_by_units, units_for_gold
from rag_eval.evaluation.gold_steps import GoldArrays, gold_variants
from rag_eval.evaluation.index_steps import IndexOpener
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.retrieval_steps import retrieve
from rag_eval.evaluation.run_frames import run_rows
from rag_eval.evaluation.scoring import ALWAYS_K, LEVELS, Scores, labels_for, score_strategy
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.measures.aggregate import MeasureRecord, aggregate
from rag_eval.measures.labels import machine_name
from rag_eval.measures.overlap import ann_recall
from rag_eval.measures.paired import PairedComparison, holm, paired_comparison
from rag_eval.records.gold_set import External, Hybrid, Level, Strategy, Vector
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.storage.artifacts import Artifact

BOOTSTRAP_SEED = 20_240_229
COMPARED = ("R@10", "RR", "nDCG@10")


def number(value: float) -> float | None:
    """Make a figure fit for JSON: NaN and infinity are null, the rest keeps twelve significant digits, so that equal inputs give equal bytes."""
    return float(f"{value:.12g}") if np.isfinite(value) else None


def interval_of(record: MeasureRecord) -> dict[str, Any]:
    """Write a figure that is no ranking measure: value, interval, denominators."""
    return {
        "value": number(record.value),
        "ci_low": number(record.ci_low),
        "ci_high": number(record.ci_high),
        "n_attempted": record.n_attempted,
        "n_scored": record.n_scored,
        "n_ineligible": record.n_ineligible,
        "n_groups": record.n_groups,
    }


class Runs:
    """The stored runs of an evaluation, scored once and shared by the measure stages."""

    def __init__(self, evaluation: Evaluation, opened: IndexOpener) -> None:
        self.evaluation = evaluation
        self.opened = opened
        self._scores: dict[str, Scores] = {}
        self._units_gold: dict[str, GoldArrays] = {}
        self._gold: GoldArrays | None = None
        self._chunks: pd.DataFrame | None = None
        self.answer_usage: dict[str, Any] = {}
        """What a chat endpoint was asked for in this process; the answer stage fills it in."""

    def artifact(self, name: str) -> Artifact:
        """Return the run of one strategy."""
        return retrieve(self.evaluation, self.opened, self.spec(name))

    def spec(self, name: str) -> Strategy:
        """Return the configuration of one strategy."""
        return next(spec for spec in self.evaluation.config.strategies if spec.name == name)

    @property
    def names(self) -> list[str]:
        """Names of the strategies, in the order of the configuration."""
        return [spec.name for spec in self.evaluation.config.strategies]

    @property
    def keys(self) -> list[str]:
        """Keys of all runs."""
        return [self.artifact(name).key for name in self.names]

    @property
    def gold(self) -> GoldArrays:
        """The gold as arrays over the chunks; queries, variants and groups are those of every strategy."""
        if self._gold is None:
            self._gold = GoldArrays(gold_variants(self.evaluation), self.chunks)
        return self._gold

    @property
    def chunks(self) -> pd.DataFrame:
        """The chunks' names, without their texts."""
        if self._chunks is None:
            path = admitted_chunks(self.evaluation).path("chunks.parquet")
            self._chunks = pd.read_parquet(
                path, columns=["chunk_id", "doc_id", "section_id", "start", "end"]
            )
        return self._chunks

    def units(self, name: str) -> pd.DataFrame:
        """What the rows of a strategy's rankings name: the chunks, or an external retriever's own units (UNITS)."""
        return (
            self.artifact(name).frame("units")
            if isinstance(self.spec(name), External)
            else self.chunks
        )

    def gold_of(self, name: str) -> GoldArrays:
        """The gold over the units of one strategy."""
        if not isinstance(self.spec(name), External):
            return self.gold
        if name not in self._units_gold:
            gold, units = gold_variants(self.evaluation), self.units(name)
            self._units_gold[name] = GoldArrays(
                gold, units_for_gold(units), carried_by_units(gold, units)
            )
        return self._units_gold[name]

    def unmeasured(self, name: str) -> dict[Level, str]:
        """Levels at which a strategy cannot be judged, with the reason."""
        found: dict[Level, str] = self.artifact(name).json("about").get("unmeasured", {})
        return found

    def ran(self, name: str) -> np.ndarray:
        """Which wordings a strategy was run on, bool [n_variants]."""
        ran = np.ones(len(self.gold.variants), dtype=bool)
        if isinstance(self.spec(name), External):
            ran[self.artifact(name).frame("not_run")["variant"].to_numpy()] = False
        return ran

    def rows(self, name: str) -> dict[int, np.ndarray]:
        """Rows of the strategy's units by seed."""
        run = self.artifact(name)
        return run_rows(
            run.frame("run"),
            run.json("about")["seeds"],
            len(self.gold.variants),
            self.evaluation.config.depth,
        )

    def scores(self, name: str) -> Scores:
        """Scores of one strategy."""
        if name not in self._scores:
            scores = score_strategy(
                self.rows(name),
                self.gold_of(name),
                self.evaluation.config.k,
                self.artifact(name).frame("failed"),
            )
            self._scores[name] = (
                scores.limited(self.ran(name), self.unmeasured(name))
                if isinstance(self.spec(name), External)
                else scores
            )
        return self._scores[name]


def _records(name: str, level: Level, runs: Runs) -> list[dict[str, Any]]:
    gold, scores = runs.gold, runs.scores(name)
    reason = runs.unmeasured(name).get(level)
    labels = scores.labels[level]
    query_of = gold.query_of[scores.variant]
    ineligible = scores.ineligible(level, len(gold.queries), gold)
    found = aggregate(
        labels,
        scores.values[level],
        gold.groups,
        BOOTSTRAP_SEED,
        query_of=query_of,
        failed=scores.failed,
        ineligible=ineligible,
    )
    cutoffs = sorted({*runs.evaluation.config.k, ALWAYS_K})
    high: dict[str, float] = {}
    if level in scores.upper:
        upper = aggregate(
            [f"P@{k}" for k in cutoffs],
            scores.upper[level],
            gold.groups,
            BOOTSTRAP_SEED,
            query_of=query_of,
            failed=scores.failed,
            ineligible=ineligible,
            resamples=1,
        )
        high = {record.label: record.value for record in upper}
    return [
        {
            "label": record.label,
            "name": machine_name(record.label),
            "level": level,
            "value": number(record.value),
            **({} if reason is None else {"value_reason": reason}),
            "ci_low": number(record.ci_low),
            "ci_high": number(record.ci_high),
            "n_attempted": record.n_attempted,
            "n_scored": record.n_scored,
            "n_failed": record.n_failed,
            "n_ineligible": record.n_ineligible,
            "n_groups": record.n_groups,
            "judged_at_k": number(record.judged_at_k),
            **(
                {"value_if_unjudged_relevant": number(high[record.label])}
                if record.label in high
                else {}
            ),
        }
        for record in found
    ]


def comparison_rows(a: str, b: str, level: Level, found: PairedComparison) -> list[dict[str, Any]]:
    """Write a paired comparison under the compared measures, one row each, without the adjusted p."""
    return [
        {
            "a": a,
            "b": b,
            "measure": label,
            "level": level,
            "delta": number(found.delta[at]),
            "ci_low": number(found.ci_low[at]),
            "ci_high": number(found.ci_high[at]),
            "p": number(found.p[at]),
            "n_better": int(found.n_better[at]),
            "n_worse": int(found.n_worse[at]),
            "n_tied": int(found.n_tied[at]),
            "n_groups": int(found.n_groups[at]),
            "minimum_detectable": number(found.minimum_detectable[at]),
        }
        for at, label in enumerate(COMPARED)
    ]


def with_holm(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add Holm's adjusted p over all these rows."""
    adjusted = holm([np.nan if row["p"] is None else row["p"] for row in rows])
    return [{**row, "p_adjusted": number(float(p))} for row, p in zip(rows, adjusted, strict=True)]


def _comparisons(runs: Runs, level: Level) -> list[dict[str, Any]]:
    """Every pair of strategies that are measured at the level, under the compared measures, Holm-adjusted over all of them.

    Where one of them was not run on every wording, both are compared on the wordings that both were run on.
    """
    n_queries = len(runs.gold.queries)
    rows = []
    for a, b in itertools.combinations(
        [name for name in runs.names if level not in runs.unmeasured(name)], 2
    ):
        both = runs.ran(a) & runs.ran(b)
        left, right = (
            runs.scores(name).per_query(level, n_queries, runs.gold, None if both.all() else both)[
                :, [runs.scores(name).labels[level].index(label) for label in COMPARED]
            ]
            for name in (a, b)
        )
        found = comparison_rows(
            a, b, level, paired_comparison(left, right, runs.gold.groups, BOOTSTRAP_SEED)
        )
        rows += [row if both.all() else {**row, "n_wordings": int(both.sum())} for row in found]
    return with_holm(rows)


def _ann_recall(runs: Runs, name: str) -> dict[str, Any] | None:
    """Recall of an approximate index against exact search over the same vectors, by seed and k; None for exact strategies."""
    spec = runs.spec(name)
    if not isinstance(spec, (Vector, Hybrid)) or spec.search != "approximate":
        return None
    opened, gold, depth = runs.opened(), runs.gold, runs.evaluation.config.depth
    source = opened.index.source(spec.embedding)
    vectors = source.query_vectors(gold.variants["text"].tolist())
    exact = ExactSearch(source.chunk_vectors()).search(vectors, depth)
    dense = opened.index.dense(spec)
    cutoffs = [k for k in sorted({*runs.evaluation.config.k, ALWAYS_K}) if k <= depth]
    result: dict[str, Any] = {}
    for seed in runs.evaluation.config.seeds:
        approximate = dense(vectors, depth, seed, None)
        values = np.stack([ann_recall(approximate.rows, exact.rows, k) for k in cutoffs], axis=1)
        found = aggregate(
            [f"ann_recall_at_{k}" for k in cutoffs],
            values,
            gold.groups,
            BOOTSTRAP_SEED,
            query_of=gold.query_of,
        )
        result[str(seed)] = {record.label: interval_of(record) for record in found}
    return {"by_seed": result}


def _per_query_frame(runs: Runs) -> pd.DataFrame:
    """One row for each (strategy, level, query, wording, seed); a strategy without randomness stands under every configured seed."""
    gold, config = runs.gold, runs.evaluation.config
    every = [
        machine_name(label)
        for label in dict.fromkeys(
            itertools.chain.from_iterable(labels_for(config.k)[level] for level in LEVELS)
        )
    ]
    parts = []
    for name in runs.names:
        scores = runs.scores(name)
        seeds = sorted(set(scores.seed.tolist()))
        copies = (
            [(seed, scores.seed == seed) for seed in seeds]
            if len(seeds) > 1
            else [(seed, scores.seed == seeds[0]) for seed in config.seeds]
        )
        for level, (seed, rows) in itertools.product(LEVELS, copies):
            variant = scores.variant[rows]
            columns = {
                machine_name(label): scores.values[level][rows, at]
                for at, label in enumerate(scores.labels[level])
            }
            part = pd.DataFrame(
                {key: columns.get(key, np.full(len(variant), np.nan)) for key in every}
            )
            part.insert(0, "failed", scores.failed[rows])
            part.insert(0, "eligible", ~np.isnan(scores.values[level][rows, 0]))
            part.insert(0, "seed", seed)
            part.insert(0, "paraphrase_id", gold.variants["paraphrase_id"].to_numpy()[variant])
            part.insert(0, "group_id", gold.variants["group_id"].to_numpy()[variant])
            part.insert(0, "query_id", gold.variants["query_id"].to_numpy()[variant])
            part.insert(0, "level", level)
            part.insert(0, "strategy", name)
            parts.append(part)
    return pd.concat(parts, ignore_index=True)


def ranking_measures(runs: Runs) -> Artifact:
    """Score every run at every level, aggregate, compare.

    Parts: per_query (frame), about (strategies: records, ann_recall; comparisons).
    """
    return runs.evaluation.once("ranking", lambda: _ranking_measures(runs))


def _ranking_measures(runs: Runs) -> Artifact:
    evaluation = runs.evaluation
    key = evaluation.key(
        "ranking",
        gold_variants(evaluation).key,
        runs.keys,
        evaluation.config.k,
        evaluation.config.level,
        evaluation.config.depth,
        evaluation.config.seeds,
    )

    def make() -> dict[str, Any]:
        strategies = []
        with evaluation.progress.step("Scoring rankings", len(runs.names), "strategies") as advance:
            for name in runs.names:
                measures = list(
                    itertools.chain.from_iterable(_records(name, level, runs) for level in LEVELS)
                )
                strategies.append(
                    {"name": name, "measures": measures, "ann_recall": _ann_recall(runs, name)}
                )
                advance(1)
        with evaluation.progress.step("Comparing strategies"):
            comparisons = _comparisons(runs, evaluation.config.level)
        return {
            "per_query": _per_query_frame(runs),
            "about": {"strategies": strategies, "comparisons": comparisons},
        }

    return evaluation.memo("ranking", key, make)
