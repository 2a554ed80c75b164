"""Answer measures: from counts and outcomes of every question to records with clustered intervals.

Belongs here: what is a miss, what is not scored, and the averages. Not here: whether a citation is right (`rag_eval.citations`), whether a
sentence is supported (`groundedness`).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.measures.arrays import BoolArray, FloatArray, IntArray, as_codes, as_values
from rag_eval.measures.intervals import RESAMPLES, Interval, clustered_interval
from rag_eval.records.answers import ABSTAINED, OUTCOMES, Outcome

_FAILED: frozenset[Outcome] = frozenset({"failed", "contract_error_reply"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerResults:
    """What came of every question, one row a question; every question was attempted.

    Parameters
    ----------
    outcome
        How each ended.
    codes
        Failure codes of each, without repetition; empty where it did not fail.
    answerable
        Whether the gold set says that the corpus answers it.
    known
        Whether it is known at all if the corpus answers it; where it is not, neither abstaining nor answering is right or wrong.
    group
        Group of each question, the unit of inference.
    n_cited, n_valid, n_correct
        Citations made; those whose code is `ok`; those that are `ok` and overlap a gold span.
    n_gold, n_matched
        Gold spans, and those that a correct citation matches.
    coverage
        Share of the tokens of the gold spans that is cited; NaN where there is no gold span.
    groundedness, supported
        Of the answer's text (`Groundedness.value`, `.supported`); NaN where it has none.
    tokens_in, tokens_out
        Of all attempts.
    """

    outcome: Sequence[Outcome]
    codes: Sequence[Sequence[str]]
    answerable: ArrayLike
    known: ArrayLike
    group: ArrayLike
    n_cited: ArrayLike
    n_valid: ArrayLike
    n_correct: ArrayLike
    n_gold: ArrayLike
    n_matched: ArrayLike
    coverage: ArrayLike
    groundedness: ArrayLike
    supported: ArrayLike
    tokens_in: ArrayLike
    tokens_out: ArrayLike


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerRecord:
    """One answer measure, as the report shows it.

    Parameters
    ----------
    label
        `coverage`, `citation_precision`, ...
    value, ci_low, ci_high
        The measure and its 95 % interval; NaN where nothing was scored, NaN bounds with a single group.
    n_attempted
        Questions attempted: n_scored + n_ineligible.
    n_scored, n_failed, n_ineligible
        Questions in the figure; of those, the failed ones; questions that cannot be scored.
    n_units
        The figure's own denominator: citations or spans for ratios, else questions.
    n_groups
        Independent groups of the scored questions.
    reason
        Why there is no value; empty where there is one.
    """

    label: str
    value: float
    ci_low: float
    ci_high: float
    n_attempted: int
    n_scored: int
    n_failed: int
    n_ineligible: int
    n_units: int
    n_groups: int
    reason: str = ""


def ratio_interval(
    parts: ArrayLike, wholes: ArrayLike, groups: ArrayLike, seed: int, resamples: int = RESAMPLES
) -> Interval:
    """Ratio of sums over questions, sum(part) / sum(whole), with a 95 % interval over groups.

    Parameters
    ----------
    parts
        `[n]` or `[n, m]` counts, 0 to whole.
    wholes
        `[n]` counts; a question with 0 takes no part.
    groups
        `[n]` group code of each question.
    seed, resamples
        Of the bootstrap.

    Returns
    -------
    Interval
        `[m]` each; NaN where all wholes are 0.

    Notes
    -----
    The ratio is the mean of the units (citations, spans) as ones and zeros, with the groups of their questions; so its interval is
    `clustered_interval` of the units: whole groups are resampled with all their units, and near 0 and 1 or with few groups it is the Wilson
    interval on the effective number of groups, which counts a group of many units as what it is, one observation.
    """
    counts, group = as_codes(wholes, "wholes"), as_codes(groups, "groups")
    numerators = as_values(parts)
    if not len(numerators) == len(counts) == len(group):
        raise ValueError(
            f"{len(numerators)} parts, {len(counts)} wholes, {len(group)} groups; accepted: one each a question"
        )
    if (counts < 0).any() or (numerators < 0).any() or (numerators > counts[:, None]).any():
        raise ValueError("a part lies outside 0 to its whole")
    owner = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return clustered_interval(
        (place[:, None] < numerators[owner]).astype(np.float64), group[owner], seed, resamples
    )


def answer_measures(
    results: AnswerResults,
    seed: int,
    *,
    price_per_1k_tokens_in: float | None = None,
    price_per_1k_tokens_out: float | None = None,
    resamples: int = RESAMPLES,
) -> list[AnswerRecord]:
    """Compute every answer measure.

    Parameters
    ----------
    results
        One row a question.
    seed, resamples
        Of the intervals.
    price_per_1k_tokens_in, price_per_1k_tokens_out
        Prices of the endpoint; without either there is no cost.

    Returns
    -------
    list of AnswerRecord
        In this order, then `failure_rate_<code>` for each code by name.

    Notes
    -----
    ==========================  ============================================================  ==========================================
    measure                     value                                                         questions scored
    ==========================  ============================================================  ==========================================
    `coverage`                  mean of coverage; 0 where the question was not answered       answerable, with gold spans
    `citation_precision`        sum(correct) / sum(cited)                                     with gold spans or unanswerable, and citations
    `citation_recall`           sum(matched) / sum(gold); matched is 0 where not answered     answerable, with gold spans
    `citation_match_rate`       sum(correct) / sum(due); correct is 0 where not answered      answerable, with gold spans
    `citation_validity_rate`    sum(valid) / sum(cited)                                       all with citations
    `groundedness`              mean over answers; 0 for a failed one                         answered, with a value, or failed
    `supported_share`           mean over answers of the share of supported sentences         answered, with a value, or failed
    `abstention_rate`           share NOT FOUND or INSUFFICIENT EVIDENCE                      unanswerable
    `answered_anyway`           share answered                                                unanswerable
    `refused_answerable`        share NOT FOUND or INSUFFICIENT EVIDENCE                      answerable
    `failure_rate`              share failed or with an error reply; each code likewise       all
    `cost_per_1k`               1000 x mean cost of a question                                all
    ==========================  ============================================================  ==========================================

    A failed answer is a miss in every rate: it counts as one citation that is neither valid nor right, whatever its rejected reply cited.
    Citations due are those made, wrong, invalid and fabricated ones included, and one where none was made. Unanswerable questions have
    nothing to cite, whatever their gold says.
    """
    data = _checked(results)
    n, groups = len(data.group), data.group
    is_in = {
        name: np.array([outcome in names for outcome in results.outcome], dtype=bool)
        for name, names in (("failed", _FAILED), ("abstained", ABSTAINED))
    }
    answered = np.array([outcome == "answered" for outcome in results.outcome], dtype=bool)
    gold = data.answerable & (data.n_gold > 0)
    unanswerable = data.known & ~data.answerable
    judged = gold | unanswerable  # what an answer to an unanswerable question cites cannot be right
    failed = is_in["failed"]
    # a failed answer is a miss in every rate: one citation that is neither valid nor right, however many its rejected reply made
    n_cited = np.where(failed, 1, data.n_cited)
    n_valid, n_correct = (np.where(failed, 0, part) for part in (data.n_valid, data.n_correct))

    def mean(
        label: str,
        values: FloatArray | BoolArray,
        scored: BoolArray,
        reason: str,
        *,
        rate: bool = True,
    ) -> AnswerRecord:
        kept = np.where(scored, values.astype(np.float64), np.nan)
        return _record(
            label,
            clustered_interval(kept, groups, seed, resamples, unit_range=rate),
            ~np.isnan(kept),
            int((~np.isnan(kept)).sum()),
            reason,
        )

    def ratio(
        label: str, parts: IntArray, wholes: IntArray, scored: BoolArray, reason: str
    ) -> AnswerRecord:
        units = np.where(scored, wholes, 0)
        return _record(
            label,
            ratio_interval(np.where(scored, parts, 0), units, groups, seed, resamples),
            units > 0,
            int(units.sum()),
            reason,
        )

    def _record(
        label: str, interval: Interval, scored: BoolArray, n_units: int, reason: str
    ) -> AnswerRecord:
        value, low, high = (float(part[0]) for part in interval)
        n_scored = int(scored.sum())
        counts = (
            n,
            n_scored,
            int((scored & failed).sum()),
            n - n_scored,
            n_units,
            len(np.unique(groups[scored])),
        )
        return AnswerRecord(label, value, low, high, *counts, reason="" if n_scored else reason)

    everything = np.ones(n, dtype=bool)
    priced = (
        everything
        if price_per_1k_tokens_in is not None or price_per_1k_tokens_out is not None
        else ~everything
    )
    # per 1,000 questions at a price per 1,000 tokens: the thousands cancel
    cost = data.tokens_in * (price_per_1k_tokens_in or 0.0) + data.tokens_out * (
        price_per_1k_tokens_out or 0.0
    )
    nothing = "no question was attempted"
    return [
        mean(
            "coverage",
            np.where(answered, data.coverage, 0.0),
            gold,
            "no answerable question has a gold span",
        ),
        ratio(
            "citation_precision",
            np.where(data.answerable, n_correct, 0),
            n_cited,
            judged,
            "no answer to a judged question cites anything",
        ),
        ratio(
            "citation_recall",
            np.where(answered, data.n_matched, 0),
            data.n_gold,
            gold,
            "no answerable question has a gold span",
        ),
        ratio(
            "citation_match_rate",
            np.where(answered, n_correct, 0),
            np.maximum(n_cited, 1),
            gold,
            "no answerable question has a gold span",
        ),
        ratio("citation_validity_rate", n_valid, n_cited, everything, "no answer cites anything"),
        mean(
            "groundedness",
            np.where(failed, 0.0, data.groundedness),
            answered | failed,
            "no answer has a sentence to score",
        ),
        mean(
            "supported_share",
            np.where(failed, 0.0, data.supported),
            answered | failed,
            "no answer has a sentence to score",
        ),
        mean("abstention_rate", is_in["abstained"], unanswerable, "no question is unanswerable"),
        mean("answered_anyway", answered, unanswerable, "no question is unanswerable"),
        mean(
            "refused_answerable",
            is_in["abstained"],
            data.known & data.answerable,
            "no question is answerable",
        ),
        mean("failure_rate", failed, everything, nothing),
        mean("cost_per_1k", cost, priced, "no prices are configured" if n else nothing, rate=False),
        *(
            mean(f"failure_rate_{code}", _having(results.codes, code), everything, nothing)
            for code in sorted({code for row in results.codes for code in row})
        ),
    ]


def _having(codes: Sequence[Sequence[str]], code: str) -> BoolArray:
    return np.array([code in row for row in codes], dtype=bool)


@dataclasses.dataclass(frozen=True)
class _Checked:
    answerable: BoolArray
    known: BoolArray
    group: IntArray
    n_cited: IntArray
    n_valid: IntArray
    n_correct: IntArray
    n_gold: IntArray
    n_matched: IntArray
    coverage: FloatArray
    groundedness: FloatArray
    supported: FloatArray
    tokens_in: IntArray
    tokens_out: IntArray


def _checked(results: AnswerResults) -> _Checked:
    """Arrays of one length, with counts that can be.

    Raises
    ------
    ValueError
        Lengths that differ, an unknown outcome, counts that cannot be, or an answered question with gold spans and no coverage.
    """
    counts = {
        name: as_codes(getattr(results, name), name)
        for name in (
            "group",
            "n_cited",
            "n_valid",
            "n_correct",
            "n_gold",
            "n_matched",
            "tokens_in",
            "tokens_out",
        )
    }
    values = {
        name: np.asarray(getattr(results, name), dtype=np.float64)
        for name in ("coverage", "groundedness", "supported")
    }
    answerable, known = (
        np.asarray(results.answerable, dtype=bool),
        np.asarray(results.known, dtype=bool),
    )
    lengths = {
        "outcome": len(results.outcome),
        "codes": len(results.codes),
        "answerable": len(answerable),
        "known": len(known),
    } | {name: len(array) for name, array in (counts | values).items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"lengths differ: {lengths}; accepted: one row a question")
    if unknown := sorted(set(results.outcome) - set(OUTCOMES)):
        raise ValueError(f"outcome: found {unknown}; accepted: {', '.join(OUTCOMES)}")
    for part, whole in (("n_valid", "n_cited"), ("n_correct", "n_valid"), ("n_matched", "n_gold")):
        if (counts[part] > counts[whole]).any() or (counts[part] < 0).any():
            raise ValueError(
                f"{part}: question {int(np.argmax((counts[part] > counts[whole]) | (counts[part] < 0)))} has {part} outside 0 to {whole}"
            )
    uncovered = (
        answerable
        & (counts["n_gold"] > 0)
        & np.isnan(values["coverage"])
        & np.array([outcome == "answered" for outcome in results.outcome], dtype=bool)
    )
    if uncovered.any():
        raise ValueError(
            f"coverage: question {int(np.argmax(uncovered))} is answered and has gold spans but no coverage"
        )
    return _Checked(
        answerable=answerable,
        known=known,
        group=counts["group"],
        n_cited=counts["n_cited"],
        n_valid=counts["n_valid"],
        n_correct=counts["n_correct"],
        n_gold=counts["n_gold"],
        n_matched=counts["n_matched"],
        coverage=values["coverage"],
        groundedness=values["groundedness"],
        supported=values["supported"],
        tokens_in=counts["tokens_in"],
        tokens_out=counts["tokens_out"],
    )
