"""The parts of questions: wordings, gold, every retrieval's first ten with what is relevant in them, marks, the answer.

Belongs here: the JSON of a question. Its arrays are made by the other explorer modules.
"""

import dataclasses
from typing import Any

import numpy as np

from rag_eval.evaluation.explorer_claims import Stated
from rag_eval.evaluation.explorer_gold import Gold
from rag_eval.evaluation.explorer_marks import Marks
from rag_eval.evaluation.explorer_packing import (
    FEW_DIGITS,
    QUESTIONS,
    nullable,
    packed,
    part_name,
    shards,
)
from rag_eval.evaluation.explorer_rankings import (
    FloatArray,
    IntArray,
    Top,
    Units,
    order_of_variants,
)
from rag_eval.evaluation.explorer_texts import MAX_WORDING, line
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.scoring import ALWAYS_K
from rag_eval.reporting.html.untrusted import visible


@dataclasses.dataclass(frozen=True)
class Material:
    """What the parts of questions are written from."""

    tops: list[Top]
    units: Units
    stated: list[Stated]
    gold: Gold
    marks: Marks
    answers: list[dict[str, Any] | None]


@dataclasses.dataclass(frozen=True)
class _Columns:
    """One strategy's retrievals under one seed, as lists by wording of the part."""

    strategy: int
    seed: int
    ran: list[bool]
    units: list[list[int]]
    scores: list[list[float | None]]
    hits: list[list[bool]]
    first: list[int | None]
    value: list[float | None]
    stated: list[list[float | None]]
    status: list[int]
    calibrator: list[str]
    failed: list[bool]


def first_rank(reciprocal: FloatArray) -> FloatArray:
    """Rank of the first relevant item from its reciprocal; NaN where there is none within the depth of the run."""
    with np.errstate(divide="ignore"):
        found: FloatArray = np.where(reciprocal > 0, np.rint(1.0 / reciprocal), np.nan)
    return found


def _columns(runs: Runs, its: Material, variants: IntArray) -> list[_Columns]:
    """Everything of the wordings of one part."""
    level, found, n = runs.evaluation.config.level, [], len(runs.gold.variants)
    for strategy, (name, top, claims) in enumerate(
        zip(runs.names, its.tops, its.stated, strict=True)
    ):
        scores, ran = runs.scores(name), runs.ran(name)
        for at, seed in enumerate(top.seeds):
            rows = at * n + variants  # scores stand seed by seed
            units = top.units[at, variants]
            found.append(
                _Columns(
                    strategy,
                    seed,
                    ran[variants].tolist(),
                    np.where(units >= 0, its.units.number[units], -1).tolist(),
                    nullable(top.scores[at, variants], FEW_DIGITS),
                    top.hits[at, variants].tolist(),
                    nullable(first_rank(scores.column(level, "RR")[rows])),
                    nullable(scores.column(level, f"R@{ALWAYS_K}")[rows]),
                    nullable(claims.figures[at, variants], FEW_DIGITS),
                    claims.status[at, variants].tolist(),
                    claims.calibrator[at, variants].tolist(),
                    scores.failed[rows].tolist(),
                )
            )
    return found


def _run(columns: _Columns, wording: int, at: int) -> dict[str, Any]:
    units = columns.units[at]
    n = units.index(-1) if -1 in units else len(units)
    return {
        "s": columns.strategy,
        "w": wording,
        "seed": columns.seed,
        "c": units[:n],
        "x": columns.scores[at][:n],
        "h": [place for place, hit in enumerate(columns.hits[at][:n]) if hit],
        "first": columns.first[at],
        "value": columns.value[at],
        "miss": [*columns.stated[at], columns.status[at], columns.calibrator[at]],
        "failed": int(columns.failed[at]),
    }


def question_parts(runs: Runs, its: Material) -> dict[str, bytes]:
    """Write the parts of questions, in the order of the gold set."""
    order = order_of_variants(runs.gold)
    owner = runs.gold.query_of[order]
    ids = runs.gold.queries["query_id"].tolist()
    names, texts = (
        [str(text) for text in runs.gold.variants[column].to_numpy(dtype=object)[order]]
        for column in ("paraphrase_id", "text")
    )
    parts = {}
    for number, start, end in shards(len(ids), QUESTIONS):
        low, high = (int(np.searchsorted(owner, edge)) for edge in (start, end))
        columns = _columns(runs, its, order[low:high])
        edges = np.searchsorted(owner[low:high], np.arange(start, end + 1)).tolist()
        body = []
        for question in range(start, end):
            first, last = edges[question - start], edges[question - start + 1]
            body.append(
                {
                    "id": visible(ids[question]),
                    "wordings": [
                        {"id": visible(names[low + at]), "text": line(texts[low + at], MAX_WORDING)}
                        for at in range(first, last)
                    ],
                    "gold": its.gold.get(ids[question], []),
                    "runs": [
                        _run(column, at - first, at)
                        for column in columns
                        for at in range(first, last)
                        if column.ran[at]
                    ],
                    "marks": its.marks.get(question, {}),
                    "answer": its.answers[question],
                }
            )
        parts[part_name("questions", number)] = packed(body)
    return parts
