"""Slices: recall at 10 and observed misses of the questions with the same tag."""

from collections import Counter
from typing import Final

import numpy as np
from pydantic import PositiveInt

from rag_eval.core.errors import quoted
from rag_eval.core.parts import Name
from rag_eval.core.records import Count, Record, ShortText
from rag_eval.core.types import Level
from rag_eval.measures.intervals import aggregate, within_query
from rag_eval.measures.run_scores import AnyRuns, figure_of, judge_runs, values_of
from rag_eval.measures.strategy_report import RecallFigure

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


def measure_slices(runs: AnyRuns) -> SlicesPart:
    """Measure every strategy on the questions of each tag; a repeated tag counts once."""
    tags, k = [set(row) for row in runs.gold.queries["tags"]], runs.config.uncertainty.k
    counts = Counter(tag for row in tags for tag in row)
    recall, slices = values_of(runs), list[SlicePart]()
    missed = [_miss_rates(runs, name, k) for name in runs.names]
    for tag in sorted(counts, key=lambda tag: (-counts[tag], tag))[:MAX_TAGS]:
        member = np.array([tag in row for row in tags], dtype=bool)
        values = np.vstack([recall, *missed])[:, member].T
        records = aggregate([""] * values.shape[1], values, runs.gold.shared.take(member))
        figures = [figure_of(row, None if row.n_scored else UNSCORED) for row in records]
        pairs = zip(figures[: len(runs.names)], figures[len(runs.names) :], strict=True)
        strategies = {
            name: RecallFigure(**dict(found), miss=miss)
            for name, (found, miss) in zip(runs.names, pairs, strict=True)
        }
        name = quoted(tag, MAX_TAG_CHARS)
        slices.append(SlicePart(tag=name, n_queries=counts[tag], strategies=strategies))
    return SlicesPart(k=k, level=runs.config.level, n_tags=len(counts), by=slices)


def _miss_rates(runs: AnyRuns, name: str, k: int) -> np.ndarray:
    """Average the misses of a strategy over the runs of each question: float [n_questions]."""
    judged = judge_runs(runs, name)
    missed, query = judged.missed("miss_any", k), runs.gold.query_of[judged.variant]
    return within_query(missed, query, len(runs.gold.queries))[:, 0]
