"""Compute answer measures with clustered intervals from the result of every question."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, count_within
from rag_eval.core.report import AnswerFigure, number
from rag_eval.core.types import ABSTAINED, AnswerOutcome
from rag_eval.measures.intervals import RESAMPLES, Interval, clustered_interval

_FAILED: frozenset[AnswerOutcome] = frozenset({"failed", "contract_error_reply"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerResults:
    """Results of all attempted questions, one row for each question, [n] each."""

    outcome: Sequence[AnswerOutcome]
    codes: Sequence[Sequence[str]]
    """Failure codes of each question, without repetition; empty without a failure."""
    answerable: BoolArray
    known: BoolArray
    """Whether the gold set says if the corpus answers the question.

    If unknown, neither abstaining nor answering is right or wrong.
    """
    group: IntArray
    n_cited: IntArray
    n_valid: IntArray
    """Number of citations with the code `ok`."""
    n_correct: IntArray
    """Number of citations with the code `ok` that overlap a gold span."""
    n_gold: IntArray
    n_matched: IntArray
    """Number of gold spans that a correct citation matches."""
    coverage: FloatArray
    """Cited share of the tokens of the gold spans; NaN without a gold span."""
    groundedness: FloatArray
    """Groundedness of the answer's text; NaN without text."""
    supported: FloatArray
    """Share of the answer's supported sentences; NaN without text."""


TARGETS = {
    "coverage": ">= 0.70",
    "citation_precision": ">= 0.85",
    "citation_recall": ">= 0.75",
    "citation_match_rate": ">= 0.95",
}
"""Usual targets of the field, shown in the report. Gates use the targets of the gold set."""


def ratio_interval(
    parts: IntArray, wholes: IntArray, groups: IntArray, seed: int, resamples: int = RESAMPLES
) -> Interval:
    """Divide sums over questions, sum(part) / sum(whole), with a 95 % interval over groups.

    The ratio is the mean of the units (citations, spans) as ones and zeros. So its interval is
    `clustered_interval` of the units with the groups of their questions: a group of many units
    counts as one observation. `parts` is [n] or [n, m].
    """
    owner = np.repeat(np.arange(len(wholes)), wholes)
    units = (count_within(wholes) < parts[owner].T).T.astype(np.float64)
    return clustered_interval(units, groups[owner], seed, resamples)


def answer_figures(
    results: AnswerResults, seed: int, resamples: int = RESAMPLES
) -> list[AnswerFigure]:
    """Compute every answer measure, and `failure_rate_<code>` for each code by name.

    Answerable questions with gold spans are the base of `coverage` (mean), `citation_recall`
    (matched / gold) and `citation_match_rate` (correct / due); an unanswered question counts 0
    in these three measures. `due` counts the citations of an answer, and 1 for an answer without
    citations. `citation_precision` (correct / cited) includes unanswerable questions, whose
    citations are wrong. `citation_validity_rate` is valid / cited over all questions.

    A failed answer is a miss in every rate. It counts as one citation that is neither valid nor
    correct, and as groundedness 0. The citations of its rejected reply are ignored.
    """
    n, groups = len(results.group), results.group
    answered = np.array([outcome == "answered" for outcome in results.outcome], dtype=bool)
    failed = np.array([outcome in _FAILED for outcome in results.outcome], dtype=bool)
    abstained = np.array([outcome in ABSTAINED for outcome in results.outcome], dtype=bool)
    gold = results.answerable & (results.n_gold > 0)
    unanswerable = results.known & ~results.answerable
    n_cited = np.where(failed, 1, results.n_cited)
    n_valid, n_correct = (
        np.where(failed, 0, part) for part in (results.n_valid, results.n_correct)
    )
    everything = np.ones(n, dtype=bool)

    def figure(
        name: str, interval: Interval, units: IntArray | BoolArray, reason: str
    ) -> AnswerFigure:
        value, low, high = (number(float(part[0])) for part in interval)
        scored = units > 0
        n_scored = int(scored.sum())
        return AnswerFigure(
            name=name,
            value=value,
            ci_low=low,
            ci_high=high,
            n_attempted=n,
            n_scored=n_scored,
            n_failed=int((scored & failed).sum()),
            n_ineligible=n - n_scored,
            n_units=int(units.sum()),
            n_groups=len(np.unique(groups[scored])),
            why={} if n_scored else {"value": reason},
            **({"target": TARGETS[name]} if name in TARGETS else {}),
        )

    def mean(
        name: str, values: FloatArray | BoolArray, scored: BoolArray, reason: str
    ) -> AnswerFigure:
        kept = np.where(scored, values.astype(np.float64), np.nan)
        return figure(
            name, clustered_interval(kept, groups, seed, resamples), ~np.isnan(kept), reason
        )

    def ratio(
        name: str, parts: IntArray, wholes: IntArray, scored: BoolArray, reason: str
    ) -> AnswerFigure:
        units = np.where(scored, wholes, 0)
        interval = ratio_interval(np.where(scored, parts, 0), units, groups, seed, resamples)
        return figure(name, interval, units, reason)

    no_gold = "no answerable question has a gold span"
    no_text = "no answer has a sentence to score"
    no_unanswerable = "no question is unanswerable"
    nothing = "no question was attempted"
    found_text = answered | failed
    due = np.maximum(n_cited, 1)
    return [
        mean("coverage", np.where(answered, results.coverage, 0.0), gold, no_gold),
        ratio(
            "citation_precision",
            np.where(results.answerable, n_correct, 0),
            n_cited,
            gold | unanswerable,
            "no answer to a judged question cites anything",
        ),
        ratio(
            "citation_recall",
            np.where(answered, results.n_matched, 0),
            results.n_gold,
            gold,
            no_gold,
        ),
        ratio("citation_match_rate", np.where(answered, n_correct, 0), due, gold, no_gold),
        ratio("citation_validity_rate", n_valid, n_cited, everything, "no answer cites anything"),
        mean("groundedness", np.where(failed, 0.0, results.groundedness), found_text, no_text),
        mean("supported_share", np.where(failed, 0.0, results.supported), found_text, no_text),
        mean("abstention_rate", abstained, unanswerable, no_unanswerable),
        mean("answered_anyway", answered, unanswerable, no_unanswerable),
        mean(
            "refused_answerable",
            abstained,
            results.known & results.answerable,
            "no question is answerable",
        ),
        mean("failure_rate", failed, everything, nothing),
        *(
            mean(
                f"failure_rate_{code}",
                np.array([code in row for row in results.codes], dtype=bool),
                everything,
                nothing,
            )
            for code in sorted({code for row in results.codes for code in row})
        ),
    ]
