"""Slices stage: recall and misses of every strategy over parts of the questions, by tag, length and answerability.

Belongs here: which questions make a slice, and its figures. How a figure gets its interval is `rag_eval.measures.aggregate`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.evaluation.answer_measure_steps import answer_measures
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.measure_steps import BOOTSTRAP_SEED, Runs, interval_of
from rag_eval.evaluation.miss_ranks import judged
from rag_eval.measures.aggregate import MeasureRecord, aggregate, within_query
from rag_eval.measures.content import comparable
from rag_eval.records.answers import ABSTAINED
from rag_eval.records.problems import quoted
from rag_eval.storage.artifacts import Artifact

MEASURE = "R@10"
TARGET: Final = "miss_any"
MAX_TAGS = 30
MAX_TAG_CHARS = 100
THIRDS = ("short", "medium", "long")
NO_ANSWERS = "the gold set configures no answers"
NO_GOLD = "these questions have no gold: there is nothing to recall and nothing to miss"
NOT_JUDGED = "nobody judged what answers these questions"
ANSWERABILITY = {
    "answerable": "questions that the corpus answers, by the gold set",
    "unanswerable": "questions that the corpus does not answer, by the gold set: a retriever cannot be right, an answer can, by abstaining",
    "unknown": "questions of which the gold set does not say whether the corpus answers them",
}

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of the questions.

    Parameters
    ----------
    kind, name, about
        What it is: by tag, length or answerability; its name; a sentence.
    member
        bool [n_queries] which questions are in it.
    more
        What else stands in its entry of the report.
    """

    kind: str
    name: str
    about: str
    member: BoolArray
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


def slices(runs: Runs) -> dict[str, Any]:
    """Build the part `slices` of the report: measure, level, by (one entry a slice), and how many tags were left out."""
    found: dict[str, Any] = runs.evaluation.once("slices", lambda: _slices(runs)).json("about")
    return found


def _slices(runs: Runs) -> Artifact:
    evaluation, made = runs.evaluation, answer_measures(runs)
    config = evaluation.config
    key = evaluation.key(
        "slices",
        gold_variants(evaluation).key,
        runs.keys,
        config.k,
        config.level,
        config.uncertainty.k,
        None if made is None else made.key,
    )

    def make() -> dict[str, Any]:
        with evaluation.progress.step("Measuring slices"):
            n_tags, tags = tag_slices(runs.gold.queries["tags"].tolist())
            lengths = length_slices(content_words(runs.gold.queries["text"].tolist()))
            by = [_entry(runs, part) for part in (*_answerability(runs), *lengths, *tags)]
        shown = {"n_tags": n_tags, "n_tags_left_out": n_tags - len(tags)}
        absent = {} if lengths else {"lengths_reason": "the questions are all of one length"}
        return {
            "about": {
                "measure": MEASURE,
                "target": TARGET,
                "k": config.uncertainty.k,
                "level": config.level,
                **shown,
                **absent,
                "by": by,
            }
        }

    return evaluation.memo("slices", key, make)


def tag_slices(tags: Sequence[Sequence[str]], limit: int = MAX_TAGS) -> tuple[int, list[Slice]]:
    """Slices of the most frequent tags, most frequent first, and how many tags there are.

    Parameters
    ----------
    tags
        [n_queries] tags of each question; a tag that is given twice counts once.
    limit
        At most so many slices.
    """
    rows = np.repeat(np.arange(len(tags)), [len(row) for row in tags])
    pairs = pd.DataFrame(
        {"row": rows, "tag": [tag for row in tags for tag in row]}
    ).drop_duplicates()
    counts = (
        pairs.groupby("tag")
        .size()
        .reset_index(name="n")
        .sort_values(["n", "tag"], ascending=[False, True])
    )
    found = []
    for tag in counts["tag"].head(limit).tolist():
        member = np.zeros(len(tags), dtype=bool)
        member[pairs.loc[pairs["tag"] == tag, "row"].to_numpy()] = True
        name = quoted(tag, MAX_TAG_CHARS)
        found.append(Slice("tag", name, f"questions with the tag {name}", member))
    return len(counts), found


def content_words(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Number of content words of each text, int64 [n]: the analyzer's terms, so stop words do not count; scripts without spaces count by pairs of characters."""
    return np.fromiter(
        (len(row) for row in Analyzer().index([comparable(text) for text in texts])),
        dtype=np.int64,
        count=len(texts),
    )


def length_slices(words: npt.NDArray[np.int64]) -> list[Slice]:
    """Thirds of the questions by their content words; questions of one length stay together, so thirds may be unequal. None where all are of one length."""
    if not len(words) or words.min() == words.max():
        return []
    first, second = np.quantile(words, (1 / 3, 2 / 3), method="inverted_cdf")
    third = np.where(words <= first, 0, np.where(words <= second, 1, 2))
    found = []
    for at, name in enumerate(THIRDS):
        member = third == at
        if member.any():
            low, high = int(words[member].min()), int(words[member].max())
            bounds = f"{low}" if low == high else f"{low} to {high}"
            found.append(
                Slice(
                    "length",
                    name,
                    f"questions of {bounds} content words as they were first put",
                    member,
                    {"words": {"low": low, "high": high}},
                )
            )
    return found


def _answerability(runs: Runs) -> list[Slice]:
    """Slices by what the gold set says of the answer's being there; those that no question is in are left out."""
    gold = runs.gold
    answerable = gold.queries["answerable"].to_numpy(dtype=bool)
    unknown = np.zeros(len(answerable), dtype=bool)
    if (
        runs.evaluation.gold.layout == "recorded"
    ):  # recorded outputs name questions that nobody may have judged
        unknown = (
            answerable
            & ~runs.evaluation.gold.places["has_flag"].to_numpy(dtype=bool)
            & (gold.qrels_document.n_relevant == 0)
        )
    members = {"answerable": answerable & ~unknown, "unanswerable": ~answerable, "unknown": unknown}
    return [
        Slice(
            "answerability",
            name,
            ANSWERABILITY[name],
            member,
            {"abstention": _abstention(runs, member)},
        )
        for name, member in members.items()
        if member.any()
    ]


def _abstention(runs: Runs, member: BoolArray) -> dict[str, Any]:
    """Share of the questions whose answer was that nothing was found or that the evidence does not do."""
    made = answer_measures(runs)
    if made is None:
        return {"value": None, "reason": NO_ANSWERS}
    abstained = made.frame("per_question")["outcome"].isin(ABSTAINED).to_numpy(dtype=np.float64)
    return interval_of(
        aggregate(
            ["abstention"], abstained[member][:, None], runs.gold.groups[member], BOOTSTRAP_SEED
        )[0]
    )


def _values(runs: Runs) -> FloatArray:
    """Recall and misses of each strategy, averaged inside each question: float64 [n_queries, 2 x n_strategies], NaN where there is no gold."""

    def columns() -> FloatArray:
        gold, config = runs.gold, runs.evaluation.config
        n, parts = len(gold.queries), []
        for name in runs.names:
            scores, of = runs.scores(name), judged(runs, name)
            parts.append(
                scores.per_query(config.level, n, gold)[
                    :, scores.labels[config.level].index(MEASURE)
                ]
            )
            parts.append(
                within_query(of.value(TARGET, config.uncertainty.k), gold.query_of[of.variant], n)[
                    :, 0
                ]
            )
        return np.stack(parts, axis=1)

    found: FloatArray = runs.evaluation.once("values of slices", columns)
    return found


def _entry(runs: Runs, part: Slice) -> dict[str, Any]:
    labels = [f"{label} of {name}" for name in runs.names for label in (MEASURE, TARGET)]
    groups = runs.gold.groups[part.member]
    records = aggregate(labels, _values(runs)[part.member], groups, BOOTSTRAP_SEED)
    unscored = (
        {"unanswerable": NO_GOLD, "unknown": NOT_JUDGED}.get(
            part.name, "none of these questions was scored"
        )
        if part.kind == "answerability"
        else "none of these questions was scored"
    )
    strategies = {}
    for at, name in enumerate(runs.names):
        reason = runs.unmeasured(name).get(runs.evaluation.config.level, unscored)
        strategies[name] = {
            **_figure(records[2 * at], reason),
            "miss": _figure(records[2 * at + 1], reason),
        }
    return {
        "kind": part.kind,
        "name": part.name,
        "about": part.about,
        "n_queries": int(part.member.sum()),
        "n_groups": len(np.unique(groups)),
        **part.more,
        "strategies": strategies,
    }


def _figure(record: MeasureRecord, reason: str) -> dict[str, Any]:
    return interval_of(record) | ({} if record.n_scored else {"value_reason": reason})
