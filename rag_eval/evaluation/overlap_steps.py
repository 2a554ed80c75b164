"""Overlap stage: whether two strategies find the same things, and the same questions' gold.

Belongs here: lists of pairs of strategies side by side. What a strategy finds by itself is `measure_steps`.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.measure_steps import BOOTSTRAP_SEED, Runs, interval_of
from rag_eval.evaluation.scoring import ALWAYS_K
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.aggregate import aggregate
from rag_eval.measures.levels import collapse
from rag_eval.measures.overlap import shared_share
from rag_eval.storage.artifacts import Artifact

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class FirstLists:
    """What a strategy found for each question as it was first put, under its first seed.

    Parameters
    ----------
    items
        int64 [n_queries, ALWAYS_K] codes of documents or sections, best first, -1 padded; the same codes in every strategy.
    there
        bool [n_queries] whether the strategy was run on the wording and did not fail.
    hit
        float64 [n_queries] Success@10 at the headline level; NaN where nothing can be judged.
    """

    items: IntArray
    there: npt.NDArray[np.bool_]
    hit: FloatArray


def overlap(runs: Runs) -> dict[str, Any]:
    """Build the part `overlap` of the report: k, unit, and one entry a pair of strategies."""
    found: dict[str, Any] = runs.evaluation.once("overlap", lambda: _overlap(runs)).json("about")
    return found


def _overlap(runs: Runs) -> Artifact:
    evaluation, level = runs.evaluation, runs.evaluation.config.level
    key = evaluation.key(
        "overlap", gold_variants(evaluation).key, runs.keys, evaluation.config.k, level
    )

    def make() -> dict[str, Any]:
        with evaluation.progress.step("Comparing lists"):
            names = _Names()
            lists = {name: _first_lists(runs, name, names) for name in runs.names}
        return {
            "about": {
                "k": ALWAYS_K,
                "unit": _unit(runs),
                "level": level,
                "pairs": _pairs(runs, lists),
            }
        }

    return evaluation.memo("overlap", key, make)


def _unit(runs: Runs) -> str:
    """What is counted as the same thing: documents, or sections where the gold set is judged below the document."""
    return "document" if runs.evaluation.config.level == "document" else "section"


class _Names:
    """Codes of names that hold across strategies: an external retriever's units are not the chunks."""

    def __init__(self) -> None:
        self.index: pd.Index[Any] = pd.Index([], dtype=object)

    def codes(self, names: "pd.Index[Any]", strategy: str) -> IntArray:
        # a unit without a known section has a numbered one of its own, and the numbers of two strategies have nothing to do with each other
        own = pd.Index(
            [
                f"{name}\x00{strategy}" if name.startswith("\x00") else name
                for name in names.tolist()
            ],
            dtype=object,
        )
        self.index = pd.Index([*self.index, *own.difference(self.index, sort=False)], dtype=object)
        return np.asarray(self.index.get_indexer(own), dtype=np.int64)


def _first_lists(runs: Runs, name: str, names: _Names) -> FirstLists:
    gold, own, scores = runs.gold, runs.gold_of(name), runs.scores(name)
    seed = runs.artifact(name).json("about")["seeds"][0]
    n = len(gold.queries)
    variant = np.full(n, -1, dtype=np.int64)
    first = np.flatnonzero((gold.variants["paraphrase_id"] == ORIGINAL).to_numpy())
    variant[gold.query_of[first]] = first
    of_unit, labels = (
        (own.document_of_chunk, own.documents)
        if _unit(runs) == "document"
        else (own.section_of_chunk, own.sections)
    )
    collapsed = collapse(runs.rows(name)[seed][variant], of_unit, ALWAYS_K)
    codes = names.codes(labels, name)
    items = np.where(collapsed >= 0, codes[collapsed], -1) if len(codes) else collapsed
    row_of = np.full(len(gold.variants), -1, dtype=np.int64)
    at_seed = np.flatnonzero(scores.seed == seed)
    row_of[scores.variant[at_seed]] = at_seed
    row = row_of[variant]
    there = ~scores.failed[row] if scores.ran is None else ~scores.failed[row] & scores.ran[row]
    return FirstLists(
        items, there, scores.column(runs.evaluation.config.level, f"Success@{ALWAYS_K}")[row]
    )


def _pairs(runs: Runs, lists: dict[str, FirstLists]) -> list[dict[str, Any]]:
    pairs = list(itertools.combinations(runs.names, 2))
    if not pairs:
        return []
    unsure = (
        {name: runs.unmeasured(name).get("section") for name in runs.names}
        if _unit(runs) == "section"
        else {}
    )
    shared = np.full((len(runs.gold.queries), len(pairs)), np.nan)
    for at, (a, b) in enumerate(pairs):
        if not unsure.get(a) and not unsure.get(b):  # who does not name sections cannot share one
            shared[:, at] = np.where(
                lists[a].there & lists[b].there,
                shared_share(lists[a].items, lists[b].items),
                np.nan,
            )
    records = aggregate(
        [f"overlap@{ALWAYS_K}"] * len(pairs), shared, runs.gold.groups, BOOTSTRAP_SEED
    )  # all pairs at once share their resamples
    found = []
    for (a, b), record in zip(pairs, records, strict=True):
        why = next(
            (f"{name}: {unsure[name]}" for name in (a, b) if unsure.get(name)),
            "no question has a list of both",
        )
        figure = interval_of(record) | ({} if record.n_scored else {"value_reason": why})
        found.append({"a": a, "b": b, "overlap": figure, **_hits(runs, a, b, lists)})
    return found


def _hits(runs: Runs, a: str, b: str, lists: dict[str, FirstLists]) -> dict[str, Any]:
    """How many questions have gold in the lists of both, of one of them, of neither; over those that both are judged on."""
    left, right, level = lists[a].hit, lists[b].hit, runs.evaluation.config.level
    known = ~np.isnan(left) & ~np.isnan(right)
    one, two = left[known] > 0, right[known] > 0
    counts = {"both": one & two, "only_a": one & ~two, "only_b": ~one & two, "neither": ~one & ~two}
    why = next(
        (
            f"{name}: {runs.unmeasured(name)[level]}"
            for name in (a, b)
            if level in runs.unmeasured(name)
        ),
        "no question is judged for both",
    )
    return (
        {name: int(part.sum()) for name, part in counts.items()}
        | {"n": int(known.sum())}
        | ({} if known.any() else {"n_reason": why})
    )
