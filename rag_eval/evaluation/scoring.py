"""Runs of one strategy -> one value for every (level, label, run). A run is one wording under one seed."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.evaluation.gold_steps import GoldArrays
from rag_eval.measures.aggregate import within_query
from rag_eval.measures.bounds import precision_bounds
from rag_eval.measures.labels import parse_label
from rag_eval.measures.levels import collapse, first_relevant_rank, span_recall
from rag_eval.measures.ranking import score_rankings
from rag_eval.records.gold_set import Level

LEVELS: tuple[Level, ...] = ("document", "section", "span")
ALWAYS_K = 10
"""The report's headline figures are at 10, whatever k a gold set sweeps."""

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def labels_for(ks: Sequence[int]) -> dict[Level, tuple[str, ...]]:
    """Name what is computed at each level. Judged@k has no meaning for spans: what was not quoted was not judged."""
    cutoffs = sorted({*ks, ALWAYS_K})
    family = [f"{name}@{k}" for name in ("R", "Success", "P") for k in cutoffs]
    whole = [*family, "RR", "nDCG@10"]
    judged = [f"Judged@{k}" for k in cutoffs]
    return {"document": (*whole, *judged), "section": (*whole, *judged), "span": tuple(whole)}


@dataclasses.dataclass(frozen=True)
class Scores:
    """Values of one strategy.

    Parameters
    ----------
    labels
        Columns by level.
    values
        Level -> float [n_runs, n_labels]; NaN where the query is ineligible at that level.
    upper
        Level -> float [n_runs, n_ks]: P@k were every unjudged item relevant.
    top
        int [n_runs, ALWAYS_K]: the top documents, for overlap between runs.
    variant, seed
        int [n_runs]: which run a row is.
    failed
        bool [n_runs]: the retriever gave no answer at all (an error, not an empty result).
    ran
        bool [n_runs]: whether the retriever was run on this wording; None stands for all. A wording that was not run is NaN everywhere.
    """

    labels: dict[Level, tuple[str, ...]]
    values: dict[Level, FloatArray]
    upper: dict[Level, FloatArray]
    top: IntArray
    variant: IntArray
    seed: IntArray
    failed: npt.NDArray[np.bool_]
    ran: npt.NDArray[np.bool_] | None = None

    def column(self, level: Level, label: str) -> FloatArray:
        """Return one measure, [n_runs]."""
        return self.values[level][:, self.labels[level].index(label)]

    def cube(self, level: Level, label: str, gold: GoldArrays) -> FloatArray:
        """Return one measure as [n_queries, n_wordings, n_seeds], NaN where a query has no such wording; wording 0 is the original."""
        wording, n_wordings = wording_of(gold)
        seeds = np.unique(self.seed)
        result = np.full((len(gold.queries), n_wordings, len(seeds)), np.nan)
        result[
            gold.query_of[self.variant], wording[self.variant], np.searchsorted(seeds, self.seed)
        ] = self.column(level, label)
        return result

    def per_query(
        self,
        level: Level,
        n_queries: int,
        gold: GoldArrays,
        variants: npt.NDArray[np.bool_] | None = None,
    ) -> FloatArray:
        """Average inside each query first: float [n_queries, n_labels]; failed runs count 0, NaN where the query is ineligible.

        Where `variants` is given, bool [n_variants], only those wordings count.
        """
        values = self.values[level]
        chosen = (
            values
            if variants is None
            else np.where(variants[self.variant][:, None], values, np.nan)
        )
        return within_query(chosen, gold.query_of[self.variant], n_queries)

    def ineligible(self, level: Level, n_queries: int, gold: GoldArrays) -> npt.NDArray[np.bool_]:
        """Which queries have nothing to be scored on at a level, bool [n_queries]; a failed retrieval does not change that."""
        return np.isnan(
            within_query(self.values[level][:, :1], gold.query_of[self.variant], n_queries)[:, 0]
        )

    def limited(self, ran: npt.NDArray[np.bool_], unmeasured: Iterable[Level]) -> "Scores":
        """Take out what has no value: wordings that were not run (bool [n_variants]), and levels that cannot be measured."""
        there = ran[self.variant]
        gone = set(unmeasured)
        values, upper = (
            {
                level: np.where((there & (level not in gone))[:, None], part, np.nan)
                for level, part in parts.items()
            }
            for parts in (self.values, self.upper)
        )
        return dataclasses.replace(
            self, values=values, upper=upper, failed=self.failed & there, ran=there
        )


def wording_of(gold: GoldArrays) -> tuple[IntArray, int]:
    """Return the number of each variant's wording (0 the original, then paraphrase ids in sorted order) and how many there are."""
    names = gold.variants["paraphrase_id"]
    others = sorted(set(names) - {"original"})
    index = pd.Index(["original", *others])
    return np.asarray(index.get_indexer(pd.Index(names)), dtype=np.int64), len(index)


def wording_names(gold: GoldArrays) -> list[str]:
    """Names of the wordings by number."""
    return ["original", *sorted(set(gold.variants["paraphrase_id"]) - {"original"})]


def _span_values(
    rows: IntArray, query: IntArray, gold: GoldArrays, labels: tuple[str, ...]
) -> FloatArray:
    """Span level: R@k counts gold spans; Success@k and RR ask for the first chunk that carries one; P@k and nDCG rate chunks."""
    parsed = [parse_label(label) for label in labels]
    recall_ks = [k for name, k in parsed if name == "R" and k is not None]
    recall = dict(zip(recall_ks, span_recall(rows, gold.spans, query, recall_ks).T, strict=True))
    first = first_relevant_rank(rows, gold.spans, query)
    by_chunk = [
        label for label, (name, _) in zip(labels, parsed, strict=True) if name in {"P", "nDCG"}
    ]
    chunk_values = dict(
        zip(by_chunk, score_rankings(rows, gold.qrels_chunk, query, by_chunk).T, strict=True)
    )
    eligible = ~np.isnan(first)
    columns = []
    for label, (name, k) in zip(labels, parsed, strict=True):
        if name == "R" and k is not None:
            values = recall[k]
        elif name == "Success" and k is not None:
            values = np.where(eligible, (first <= k).astype(float), np.nan)
        elif name == "RR":
            values = 1.0 / first
        else:
            values = np.where(eligible, np.nan_to_num(chunk_values[label]), np.nan)
        columns.append(values)
    return np.stack(columns, axis=1)


def score_strategy(
    rows_by_seed: dict[int, IntArray],
    gold: GoldArrays,
    ks: Sequence[int],
    failed: pd.DataFrame | None = None,
) -> Scores:
    """Score every run of a strategy at every level.

    Parameters
    ----------
    rows_by_seed
        Seed -> int [n_variants, depth] chunk rows, -1 padded.
    gold
        The gold arrays.
    ks
        Cutoffs of the sweep.
    failed
        variant and seed of each retrieval that ended in an error.
    """
    seeds = sorted(rows_by_seed)
    rows = np.concatenate([rows_by_seed[seed] for seed in seeds])
    n_variants = len(gold.query_of)
    variant = np.tile(np.arange(n_variants), len(seeds))
    query = gold.query_of[variant]
    depth = rows.shape[1]
    documents = collapse(rows, gold.document_of_chunk, depth)
    labels = labels_for(ks)
    cutoffs = sorted({*ks, ALWAYS_K})
    values: dict[Level, FloatArray] = {
        "document": score_rankings(documents, gold.qrels_document, query, labels["document"])
    }
    upper: dict[Level, FloatArray] = {
        "document": np.stack(
            [precision_bounds(documents, gold.qrels_document, query, k).high for k in cutoffs],
            axis=1,
        )
    }
    sections = collapse(rows, gold.section_of_chunk, depth)
    values["section"] = score_rankings(sections, gold.qrels_section, query, labels["section"])
    upper["section"] = np.stack(
        [precision_bounds(sections, gold.qrels_section, query, k).high for k in cutoffs], axis=1
    )
    values["span"] = _span_values(rows, query, gold, labels["span"])
    run_seeds = np.repeat(np.array(seeds, dtype=np.int64), n_variants)
    broken = np.zeros(len(variant), dtype=bool)
    if failed is not None:
        broken[
            np.searchsorted(seeds, failed["seed"].to_numpy()) * n_variants
            + failed["variant"].to_numpy()
        ] = True
    return Scores(labels, values, upper, documents[:, :ALWAYS_K], variant, run_seeds, broken)
