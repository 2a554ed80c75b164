"""Trace missed questions: the step of a strategy that lost the gold, and a sentence about it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.frames import schema
from rag_eval.measures.run_scores import ALWAYS_K, RankedRuns, judge_runs
from rag_eval.retrieval.ranking import Ranking
from rag_eval.uncertainty.miss_rate_report import MissesPart

MISSED: Final = schema(
    "missed",
    strategy=("str", "strategy that missed the question"),
    query_id=("str", "question, in its original wording and under the first seed"),
    lexical=("float", "rank of the first gold item in the lexical list before fusion; NaN: none"),
    vector=("float", "the same in the vector list before fusion"),
    ranked=("float", "the same after fusion, before the rerank step"),
    final=("float", "the same in the list of the run"),
    depth=("int", "length of the lists before fusion; 0 where only the list of the run is known"),
    ranked_depth=("int", "length of the list after fusion"),
    lost=("str", "step that lost the gold: retrieval, fusion, rerank or cutoff"),
)
STEPS: Final = ("lexical", "vector", "ranked", "final")
SearchSteps = Callable[[str, IntArray], Mapping[str, Ranking]]
"""Function that searches wordings (rows of variants) by a strategy again; the lists by step."""


def trace_misses(
    runs: RankedRuns, name: str, search: SearchSteps
) -> tuple[pd.DataFrame, MissesPart]:
    """Find the step that lost the gold of each missed question of a strategy.

    Returns the questions (MISSED) and their counts.
    """
    judgements, gold = judge_runs(runs, name), runs.gold
    counted = (gold.wordings[0] == 0)[judgements.variant] & ~np.isnan(judgements.first)
    counted &= judgements.seed == runs.first_seed(name)
    missed = counted & (judgements.first > ALWAYS_K) & ~judgements.failed
    variant, final = judgements.variant[missed], judgements.first[missed]
    lists = search(name, variant) if len(variant) else {}
    lengths = {step: ranking.rows.shape[1] for step, ranking in lists.items()}
    ranks = dict.fromkeys(STEPS, np.full(len(variant), np.nan))
    ranks |= {step: _rank_first(runs, name, lists[step], variant) for step in lists}
    ranks["final"] = np.where(np.isfinite(final), final, np.nan)
    frame = pd.DataFrame(
        {
            "strategy": name,
            "query_id": gold.queries["query_id"].to_numpy()[gold.query_of[variant]],
            **ranks,
            "depth": max(lengths.values(), default=0),
            "ranked_depth": lengths.get("ranked", runs.config.depth),
            "lost": _lost_by(ranks),
        }
    ).astype(dict.fromkeys(("strategy", "query_id", "lost"), "str"))
    part = MissesPart(
        n_judged=int(counted.sum()),
        n_failed=int((counted & judgements.failed).sum()),
        n_missed=len(frame),
        lost={str(step): int(n) for step, n in frame["lost"].value_counts().items()},
    )
    return MISSED.check(frame), part


def _rank_first(runs: RankedRuns, name: str, lists: Ranking, variant: IntArray) -> FloatArray:
    """Rank the first gold item of each list at the headline level; NaN without one."""
    rows = np.asarray(lists.rows, dtype=np.int64)
    rank, owner = runs.gold_of(name).rank(rows, runs.config.level, variant)
    first = np.full(len(variant), np.inf)
    np.minimum.at(first, owner, rank)
    return np.where(np.isfinite(first), first, np.nan)


def _lost_by(ranks: Mapping[str, FloatArray]) -> list[str]:
    """Name the last step that moved the gold out of the first ALWAYS_K ranks."""
    best = np.fmin(ranks["lexical"], ranks["vector"])
    ranked = np.stack([best, ranks["ranked"], ranks["final"]])
    moved = [ranks["ranked"] <= ALWAYS_K, best <= ALWAYS_K, np.isfinite(ranked).any(axis=0)]
    lost: list[str] = np.select(moved, ["rerank", "fusion", "cutoff"], "retrieval").tolist()
    return lost


# ---- One plain sentence about a miss.

_LISTS: Final = {"lexical": "the lexical list", "vector": "the vector list"}


def describe_miss(row: Mapping[Any, Any]) -> str:
    """Say in one sentence which list had the gold, and which step lost it; `row` is of MISSED.

    Examples
    --------
    >>> describe_miss({"lexical": float("nan"), "vector": 14.0, "ranked": 23.0,
    ...     "final": 23.0, "depth": 1000, "ranked_depth": 100, "lost": "cutoff"})
    'The vector list had it at 14, the lexical list below 1000; fusion moved it to 23; the cut-off \
at 10 lost it.'
    """
    rank = {step: int(row[step]) for step in STEPS if row[step] == row[step]}  # NaN differs
    ranked, final, lost = rank.get("ranked"), rank.get("final"), row["lost"]
    below, depth = f"below {row['ranked_depth']}", row["depth"]
    lists = sorted(_LISTS, key=lambda step: step not in rank)
    if lost == "retrieval":
        clauses = [f"no list had it in its first {depth}" if depth else "no list had it"]
    elif lists[0] in rank:
        places = [f"at {rank[step]}" if step in rank else f"below {depth}" for step in lists]
        first, second = (f"{_LISTS[step]} {{}}{at}" for step, at in zip(lists, places, strict=True))
        clauses = [f"{first.format('had it ')}, {second.format('')}"]
        clauses.append(f"fusion moved it {below if ranked is None else f'to {ranked}'}")
    else:
        clauses = [f"its list had it at {final if ranked is None else ranked}"]
    if ranked is not None and ranked != final:
        clauses.append(f"the rerank moved it {below if final is None else f'to {final}'}")
    if lost == "cutoff":
        clauses.append(f"the cut-off at {ALWAYS_K} lost it")
    elif lost in {"fusion", "rerank"}:
        clauses[-1] += " and lost it"
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."
