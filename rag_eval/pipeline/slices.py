"""The part `slices` of the report: recall and misses by tag, length and answerability."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.errors import quoted
from rag_eval.core.records import Absent, Figure
from rag_eval.core.types import ABSTAINED
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.measures.intervals import aggregate, within_query
from rag_eval.measures.run_scores import MEASURE, figure_of, judge_runs, values_of
from rag_eval.measures.strategy_report import SliceFigure, SlicePart, SlicesPart
from rag_eval.pipeline.answer_stages import NO_ANSWERS, AnswerMeasures
from rag_eval.pipeline.runner import Work
from rag_eval.pipeline.scored_runs import ScoredRuns
from rag_eval.storage.artifacts import Parts

TARGET: Final = "miss_any"
MAX_TAGS, MAX_TAG_CHARS = 30, 100
UNSCORED: Final = "none of these questions was scored"
ANSWERABILITY: Final = {
    "answerable": ("questions that the corpus answers, by the gold set", UNSCORED),
    "unanswerable": (
        (
            "questions that the corpus does not answer, by the gold set: a retriever cannot be"
            " right, an answer can, by abstaining"
        ),
        "these questions have no gold: there is nothing to recall and nothing to miss",
    ),
    "unknown": (
        "questions of which the gold set does not say whether the corpus answers them",
        "the gold of these questions is not judged",
    ),
}
"""Slice -> its description, and the reason when no question of the slice is scored."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of the questions: `member` is bool [n_queries]."""

    kind: Literal["tag", "length", "answerability"]
    name: str
    about: str
    member: BoolArray
    unscored: str = UNSCORED


def measure_slices(work: Work, runs: ScoredRuns, measures: AnswerMeasures | None) -> SlicesPart:
    """Measure the slices, or read the stored measures of equal inputs."""
    config = work.config

    def make() -> Parts:
        with work.progress.step("Measuring slices"):
            n_tags, tags = _tag_slices(runs.gold.queries["tags"].tolist())
            lengths = _length_slices(_count_words(runs.gold.queries["text"].tolist()))
            values = _values(runs)
            parts = [*_answerability(runs), *lengths, *tags]
            found = SlicesPart(
                measure=MEASURE,
                target=TARGET,
                k=config.uncertainty.k,
                level=config.level,
                n_tags=n_tags,
                by=[_slice_part(runs, part, values, measures) for part in parts],
            )
        return {"about": found.dump()}

    identity = [
        *(one.id for one in (runs.gold_variants, runs.admitted_chunks, *runs.runs.values())),
        [config.k, config.level, config.uncertainty.k, measures and measures.id],
    ]
    return SlicesPart.model_validate(work.keep("slices", identity, make).json("about"))


def _answerability(runs: ScoredRuns) -> list[Slice]:
    """Slice by whether the gold set says that the corpus has the answer."""
    gold = runs.gold
    answerable = gold.queries["answerable"].to_numpy(dtype=bool)
    # Without a flag or a judgement, nobody knows whether the corpus answers a recorded question.
    known = runs.gold_variants.answerable_known | (gold.qrels_document.n_relevant > 0)
    unknown = answerable & ~known
    members = {"answerable": answerable & ~unknown, "unanswerable": ~answerable, "unknown": unknown}
    return [
        Slice("answerability", name, ANSWERABILITY[name][0], member, ANSWERABILITY[name][1])
        for name, member in members.items()
        if member.any()
    ]


def _length_slices(words: IntArray) -> list[Slice]:
    """Slice the questions into thirds by content words; no slices for questions of one length.

    Questions of one length stay together, so thirds may be unequal.
    """
    if not len(words) or words.min() == words.max():
        return []
    ends = np.quantile(words, (1 / 3, 2 / 3), method="inverted_cdf")
    third = np.searchsorted(ends, words)
    found = []
    for at, name in enumerate(("short", "medium", "long")):
        member = third == at
        if member.any():
            low, high = int(words[member].min()), int(words[member].max())
            bounds = f"{low}" if low == high else f"{low} to {high}"
            about = f"questions of {bounds} content words as they were first put"
            found.append(Slice("length", name, about, member))
    return found


def _count_words(texts: Sequence[str]) -> IntArray:
    """Count the indexed terms of each text, int64 [n]."""
    rows = Analyzer().index(texts)
    return np.array([len(row) for row in rows], dtype=np.int64)


def _tag_slices(tags: Sequence[Sequence[str]], limit: int = MAX_TAGS) -> tuple[int, list[Slice]]:
    """Count the tags, and make slices of the most frequent tags in descending order.

    `tags` lists the tags of each question. A repeated tag counts once.
    """
    counts = Counter(tag for row in tags for tag in set(row))
    found = []
    for tag, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]:
        name = quoted(tag, MAX_TAG_CHARS)
        member = np.array([tag in row for row in tags], dtype=bool)
        found.append(Slice("tag", name, f"questions with the tag {name}", member))
    return len(counts), found


def _values(runs: ScoredRuns) -> FloatArray:
    """Collect recall and misses of each strategy.

    The array is [n_queries, 2 x n_strategies]. Questions without gold are NaN.
    """
    gold, columns = runs.gold, []
    for name, recall in zip(runs.names, values_of(runs), strict=True):
        judged = judge_runs(runs, name)
        missed = judged.missed(TARGET, runs.config.uncertainty.k)
        miss_rate = within_query(missed, gold.query_of[judged.variant], len(gold.queries))[:, 0]
        columns += [recall, miss_rate]
    return np.stack(columns, axis=1)


def _slice_part(
    runs: ScoredRuns, part: Slice, values: FloatArray, measures: AnswerMeasures | None
) -> SlicePart:
    labels = [f"{label} of {name}" for name in runs.names for label in (MEASURE, TARGET)]
    groups = runs.gold.groups[part.member]
    gold = runs.gold.shared.take(part.member)
    records = aggregate(labels, values[part.member], gold)
    strategies = {}
    for at, name in enumerate(runs.names):
        reason = runs.unmeasured(name).get(runs.config.level, part.unscored)
        recall, missed = (
            figure_of(record, None if record.n_scored else reason)
            for record in records[2 * at : 2 * at + 2]
        )
        strategies[name] = SliceFigure(**dict(recall), miss=missed)
    abstention: Figure | Absent = Absent(reason=NO_ANSWERS)
    if measures is not None:
        abstained = measures.per_question["outcome"].isin(ABSTAINED).to_numpy(dtype=np.float64)
        column = abstained[part.member][:, None]
        abstention = figure_of(aggregate(["abstention"], column, gold)[0])
    return SlicePart.model_validate(
        {
            **{name: getattr(part, name) for name in ("kind", "name", "about")},
            "n_queries": int(part.member.sum()),
            "n_groups": len(np.unique(groups)),
            "strategies": strategies,
            **({"abstention": abstention} if part.kind == "answerability" else {}),
        }
    )
