"""Rankings as the explorer has them: the first ten of every retrieval, the numbers of what is in them, and which of it is relevant."""

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.evaluation.gold_steps import GoldArrays
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.scoring import wording_of
from rag_eval.measures.ranking import Qrels
from rag_eval.records.gold_set import External, Level

DEPTH: Final = 10
"""Ranks that are kept."""
NEVER_FIRST: Final = 10
"""Added to the best rank of a unit that no original wording found."""

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Top:
    """The first ten of one strategy.

    Parameters
    ----------
    seeds
        Seeds that it was run under, rising.
    units
        int [n_seeds, n_variants, 10]: units of all strategies together (see `Units`), -1 = nothing there.
    scores
        float of the same shape: the score that the strategy ranks by.
    hits
        bool of the same shape: what is relevant at the headline level.
    """

    seeds: tuple[int, ...]
    units: IntArray
    scores: FloatArray
    hits: BoolArray


@dataclasses.dataclass(frozen=True)
class Units:
    """What the lists name: the chunks by their rows, behind them each external strategy's own units.

    Parameters
    ----------
    own
        Strategy -> its UNITS frame and the place of its first unit behind the chunks.
    number
        int [n]: number in the explorer, -1 = in no list.
    unit
        int [n_numbers]: the way back.
    priority
        int [n_numbers]: best rank from 0 under an original wording and the first seed; under other wordings and seeds 10 more.
    """

    own: dict[str, tuple[pd.DataFrame, int]]
    number: IntArray
    unit: IntArray
    priority: npt.NDArray[np.uint8]


def order_of_variants(gold: GoldArrays) -> IntArray:
    """Rows of the variants by question, the original wording first, then by name."""
    return np.asarray(np.lexsort((wording_of(gold)[0], gold.query_of)), dtype=np.int64)


def relevant(rows: IntArray, gold: GoldArrays, level: Level) -> BoolArray:
    """Which units are relevant to their questions as `scoring` judges them, bool [n_variants, n].

    A unit is relevant when its document or section is judged so, and at the span level when it carries a gold span.
    """
    choices: dict[Level, tuple[Qrels, IntArray | None]] = {
        "document": (gold.qrels_document, gold.document_of_chunk),
        "section": (gold.qrels_section, gold.section_of_chunk),
        "span": (gold.qrels_chunk, None),
    }
    qrels, code_of = choices[level]
    found = np.zeros(rows.shape, dtype=bool)
    there = rows >= 0
    if not there.any() or not len(qrels.items):
        return found
    items = rows if code_of is None else np.where(there, code_of[np.where(there, rows, 0)], -1)
    width = int(max(items.max(), qrels.items.max())) + 1
    owner = np.repeat(np.arange(len(qrels.indptr) - 1), np.diff(qrels.indptr))
    good = (owner * width + qrels.items)[qrels.gains > 0]
    found[there] = np.isin((gold.query_of[:, None] * width + items)[there], good)
    return found


def _own_units(runs: Runs, n_chunks: int) -> dict[str, tuple[pd.DataFrame, int]]:
    found, start = {}, n_chunks
    for name in runs.names:
        if isinstance(runs.spec(name), External):
            found[name] = (runs.units(name), start)
            start += len(found[name][0])
    return found


def _joint(rows: IntArray, own: tuple[pd.DataFrame, int] | None) -> IntArray:
    """Rows of a strategy's units as units of all strategies: what is one of our chunks, word for word, is that chunk."""
    if own is None or not len(own[0]):
        return rows
    units, start = own
    chunk = units["chunk"].to_numpy()
    ours = (chunk >= 0) & (units["returned"] == "").to_numpy(dtype=bool)
    joint = np.where(ours, chunk, start + np.arange(len(units)))
    return np.where(rows >= 0, joint[np.where(rows >= 0, rows, 0)], -1)


def top_of(runs: Runs, name: str, own: tuple[pd.DataFrame, int] | None) -> Top:
    """Read the first ten of a strategy's stored run."""
    run, n_variants = runs.artifact(name), len(runs.gold.variants)
    seeds = tuple(sorted(int(seed) for seed in run.json("about")["seeds"]))
    columns = ["variant", "seed", "chunk", "k_final", "score_raw", "rerank_score"]
    frame = pd.read_parquet(
        run.path("run.parquet"), columns=columns, filters=[("k_final", "<=", DEPTH)]
    )
    place = (
        np.searchsorted(seeds, frame["seed"].to_numpy()),
        frame["variant"].to_numpy(),
        frame["k_final"].to_numpy() - 1,
    )
    rows = np.full((len(seeds), n_variants, DEPTH), -1, dtype=np.int64)
    scores = np.full(rows.shape, np.nan)
    rows[place] = frame["chunk"].to_numpy()
    reranked = frame["rerank_score"].to_numpy()
    scores[place] = np.where(np.isnan(reranked), frame["score_raw"].to_numpy(), reranked)
    level, gold = runs.evaluation.config.level, runs.gold_of(name)
    judged = level not in runs.unmeasured(name)
    hits = np.stack([relevant(part, gold, level) & judged for part in rows])
    return Top(seeds, _joint(rows, own), scores, hits)


def numbered(
    tops: Sequence[Top], own: dict[str, tuple[pd.DataFrame, int]], gold: GoldArrays, n_chunks: int
) -> Units:
    """Number what stands in some list: chunks first, own units of external strategies behind them, each by its first appearance."""
    n = n_chunks + sum(len(units) for units, _ in own.values())
    order = order_of_variants(gold)
    lists = np.concatenate([top.units for top in tops])[:, order].transpose(1, 0, 2)
    flat = lists.ravel()
    unit, first = np.unique(flat[flat >= 0], return_index=True)
    unit = unit[np.lexsort((first, unit >= n_chunks))]
    number = np.full(n, -1, dtype=np.int64)
    number[unit] = np.arange(len(unit))
    best = np.full(n, 2 * NEVER_FIRST, dtype=np.uint8)
    original = wording_of(gold)[0] == 0
    for top in tops:
        rank = np.full(top.units.shape, 0, dtype=np.uint8) + np.arange(DEPTH, dtype=np.uint8)
        rank += np.uint8(NEVER_FIRST)
        rank[0, original] -= np.uint8(NEVER_FIRST)
        there = top.units >= 0
        np.minimum.at(best, top.units[there], rank[there])
    return Units(own, number, unit, best[unit])


def rankings(runs: Runs) -> tuple[list[Top], Units]:
    """Read every strategy's first ten, in the order of the configuration, and number what is in them."""
    n_chunks = len(runs.chunks)
    own = _own_units(runs, n_chunks)
    tops = [top_of(runs, name, own.get(name)) for name in runs.names]
    return tops, numbered(tops, own, runs.gold, n_chunks)
