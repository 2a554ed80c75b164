"""Decide the status of a miss rate by its conditions, and keep the record of its changes."""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rag_eval.core.config import (
    MEASURED_EACH,
    MEASURED_OUTCOMES,
    PRIOR_QUERIES,
    PROVISIONAL_EACH,
    PROVISIONAL_OUTCOMES,
    SLOPE,
)
from rag_eval.core.types import DISCOUNTING, BinaryTarget, Status
from rag_eval.storage.sql import ColumnSpec, SqlStore, TableSpec
from rag_eval.uncertainty.miss_rate_report import (
    Condition,
    OutcomeCounts,
    Promotion,
    Standing,
    Validation,
)
from rag_eval.uncertainty.validation import Labelled, dependent_mean

_EARNED: Final[tuple[Status, ...]] = ("uncalibrated", "prior", "provisional", "measured")


def count_outcomes(labelled: Labelled) -> OutcomeCounts:
    """Count outcomes and their groups; a group may hold both misses and hits.

    Where questions of different groups share gold, chains of shared gold were split. There the
    effective number of questions counts in place of groups.
    """
    group, missed = labelled.group, labelled.missed
    if labelled.shared is not None:
        codes, first, question = np.unique(
            labelled.question, return_index=True, return_inverse=True
        )
        if labelled.shared.take(codes).crosses(group[first]):
            influence = (missed - missed.mean()) / len(missed)
            number = dependent_mean(influence[:, None], labelled).n_effective[0] / len(codes)
            share = (
                len(codes),
                len(np.unique(question[missed])),
                len(np.unique(question[~missed])),
            )
            groups, misses, hits = (int(number * count + 1e-9) for count in share)
            return OutcomeCounts(
                outcomes=len(labelled),
                groups=groups,
                groups_with_misses=misses,
                groups_with_hits=hits,
            )
    return OutcomeCounts(
        outcomes=len(labelled),
        groups=len(np.unique(group)),
        groups_with_misses=len(np.unique(group[missed])),
        groups_with_hits=len(np.unique(group[~missed])),
    )


def suffice_to_fit(counts: OutcomeCounts) -> bool:
    """Tell whether the groups suffice for a provisional miss rate, and so to fit a calibrator."""
    fewer = min(counts.groups_with_misses, counts.groups_with_hits)
    return counts.groups >= PROVISIONAL_OUTCOMES and fewer >= PROVISIONAL_EACH


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Facts that decide the status beside outcomes and validation."""

    age_days: float | None
    """Age of the outcomes in days; None without outcomes."""
    stale_after_days: float
    n_unlabelled: int
    """Number of queries of the strategy with known signals, judged or not."""
    own_gold_only: bool = False
    """Whether all gold came from this strategy's own retrieval."""
    no_prior: str = ""
    """Reason why no shipped prior fits this target, K and kind of strategy; else empty."""
    trusted: bool = True
    """Whether the outcomes support the fit at all; else every miss rate is the base rate."""
    base_changes: bool | None = None
    """Whether this run gives the base of an iterative strategy another calibrator.

    A new calibrator would steer other rankings than the judged rankings. None without a base.
    """


def judge_status(
    counts: OutcomeCounts, validation: Validation | None, situation: Situation
) -> Standing:
    """Find the status of the miss rate of a strategy, target and K.

    Every status needs its own conditions and the conditions of all lower statuses. A `provisional`
    or `measured` miss rate that fails a condition of freshness is `stale`. Lower statuses rest on
    no outcomes and cannot grow old. Gold of only the strategy itself bars `provisional`, because no
    calibrator is fitted to such gold. `prior` needs a shipped prior, or enough outcomes for
    `provisional`. `measured` needs a validation. No status discounts an answer unless predictions
    for groups that were not fitted were better than the base rate, and right on average.
    """
    alone, others = "only from this strategy", "not only from this strategy"
    gold = alone if situation.own_gold_only else others
    provisional = [
        *_count_conditions(counts, PROVISIONAL_OUTCOMES, PROVISIONAL_EACH, "provisional"),
        _condition("provisional", "gold_of_others", not situation.own_gold_only, gold, others),
    ]
    by_outcomes = all(condition.met for condition in provisional)
    prior = situation.no_prior or "there is one"
    if situation.no_prior and by_outcomes:
        prior += ", and outcomes instead"
    needed = "a shipped prior for this target, K and kind of strategy; or what provisional needs"
    conditions = [
        _at_least("uncalibrated", "queries", situation.n_unlabelled, 1),
        _at_least("prior", "queries_for_z_scores", situation.n_unlabelled, PRIOR_QUERIES),
        _condition("prior", "shipped_prior", not situation.no_prior or by_outcomes, prior, needed),
        *provisional,
        *_count_conditions(counts, MEASURED_OUTCOMES, MEASURED_EACH, "measured"),
        *_validation_conditions(validation),
        *(discounting := _discount_conditions(validation, situation)),
        *_freshness_conditions(situation),
    ]
    status: Status = "absent"
    for step in _EARNED:
        if not all(condition.met for condition in conditions if condition.status == step):
            break
        status = step
    fresh = all(condition.met for condition in conditions if condition.status == "stale")
    status = "stale" if status in DISCOUNTING and not fresh else status
    discounts = status in DISCOUNTING and all(condition.met for condition in discounting)
    return Standing(status=status, discounts=discounts, conditions=conditions)


def _condition(status: Status, name: str, met: bool, value: str, needed: str) -> Condition:  # noqa: FBT001 - the columns of a condition
    return Condition(name=name, met=met, found=value, needed=needed, status=status)


def _at_least(status: Status, name: str, count: int, needed: int) -> Condition:
    return _condition(status, name, count >= needed, str(count), f"at least {needed}")


def _count_conditions(
    counts: OutcomeCounts, groups: int, each: int, status: Status
) -> list[Condition]:
    return [
        _at_least(status, "outcomes", counts.groups, groups),
        _at_least(status, "misses", counts.groups_with_misses, each),
        _at_least(status, "hits", counts.groups_with_hits, each),
    ]


def _validation_conditions(validation: Validation | None) -> list[Condition]:
    needed = "grouped cross-validation"
    if validation is None:
        return [_condition("measured", "validation", False, "none", needed)]  # noqa: FBT003 - the columns of a condition
    skill, ece = validation.skill, validation.ece
    # Comparisons with NaN are false, so an undefined figure meets no condition.
    value, low, slope = (
        np.nan if figure is None else figure
        for figure in (skill.value, skill.low, validation.slope.value)
    )
    counted = f"{validation.n} outcomes in {validation.groups} groups"
    least, most = SLOPE
    return [
        _condition("measured", "validation", True, counted, needed),  # noqa: FBT003 - the columns of a condition
        _condition(
            "measured",
            "skill",
            low > 0,
            f"{value:.3f}, low end of the 95 % interval {low:.3f}",
            "low end above 0",
        ),
        _condition(
            "measured",
            "ece",
            ece.inside,
            f"{ece.value:.4f}",
            f"at most {ece.null_limit:.4f}, the limit of calibrated predictions",
        ),
        _condition(
            "measured",
            "slope",
            least <= slope <= most,
            "none that can be estimated" if np.isnan(slope) else f"{slope:.3f}",
            f"{least} to {most}",
        ),
    ]


def _discount_conditions(validation: Validation | None, situation: Situation) -> list[Condition]:
    """List what any discount needs; `measured` needs it too."""
    if validation is None:
        return []
    skill, ratio = validation.skill.value, validation.observed_expected
    low, high = (np.nan if end is None else end for end in (ratio.low, ratio.high))
    shown = "none" if ratio.value is None else f"{ratio.value:.3f} [{low:.3f}, {high:.3f}]"
    return [
        _condition(
            "measured",
            "better_than_base_rate",
            situation.trusted and skill is not None and skill > 0,
            ("no skill" if skill is None else f"skill {skill:.3f}")
            + ("" if situation.trusted else ", and only the base rate is stated"),
            "a supported fit with skill above 0, for any discount",
        ),
        _condition(
            "measured",
            "stated_mean",
            bool(low <= 1 <= high),
            f"observed / stated {shown}",
            "an interval with 1, for any discount",
        ),
    ]


def _freshness_conditions(situation: Situation) -> list[Condition]:
    age, most = situation.age_days, situation.stale_after_days
    days = "no outcomes" if age is None else f"{age:.1f} days"
    rows = [
        # Only outcomes of the current fingerprint are read.
        ("same_fingerprint", True, "unchanged", "unchanged"),
        ("recent", age is None or age <= most, days, f"at most {most:g} days"),
    ]
    if (changes := situation.base_changes) is not None:
        shown = "changes with this run, and with it the next run's rankings"
        needed = "a base whose calibrator steers the next run as it did this one"
        rows.append(
            ("same_base_calibrator", not changes, shown if changes else "unchanged", needed)
        )
    return [_condition("stale", *row) for row in rows]


# ---- The record of changes of status.

MISS_RATE_PROMOTIONS: Final = TableSpec(
    "miss_rate_promotions",
    (
        ColumnSpec("dataset", "text", required=True),
        ColumnSpec("strategy", "text", required=True),
        ColumnSpec("target", "text", required=True),
        ColumnSpec("k", "integer", required=True),
        ColumnSpec("number", "integer", required=True),
        ColumnSpec("strategy_fingerprint", "text", required=True),
        ColumnSpec("old_status", "text", required=True),
        ColumnSpec("new_status", "text", required=True),
        ColumnSpec("figures_before", "json"),
        ColumnSpec("figures_after", "json"),
        ColumnSpec("reasons", "json"),
        ColumnSpec("calibrator_id", "text"),
        ColumnSpec("at", "text", required=True),
    ),
    indexes=(("dataset", "strategy"),),
)
"""Changes of status.

`number` counts the changes of a series from 1. `strategy_fingerprint` and `calibrator_id` are
those after the change, `reasons` the conditions that decided it. `at` is UTC in ISO 8601.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """Key of a status over time; it names the strategy, because the fingerprint may change."""

    dataset: str
    strategy: str
    target: BinaryTarget
    k: int


def record_status(
    store: SqlStore,
    series: Series,
    status: Status,
    *,
    strategy_fingerprint: str,
    figures: Mapping[str, Any] | None,
    reasons: Sequence[Condition] = (),
    calibrator_id: str | None = None,
    at: dt.datetime,
) -> Promotion | None:
    """Append and return a change if the status differs from the last status; else return None.

    One transaction under the table's lock reads the last status and appends the change. `at` has
    a time zone.
    """
    store.create(MISS_RATE_PROMOTIONS)
    key = dataclasses.asdict(series)
    with store.transaction(MISS_RATE_PROMOTIONS.name) as transaction:
        rows = transaction.select(MISS_RATE_PROMOTIONS, key, order=["number"])
        last: Mapping[str, Any] = rows[-1] if rows else {}
        old: Status = last.get("new_status", "absent")
        if status == old:
            return None
        row = {
            **key,
            "number": last.get("number", 0) + 1,
            "strategy_fingerprint": strategy_fingerprint,
            "old_status": old,
            "new_status": status,
            "figures_before": last.get("figures_after"),
            "figures_after": figures,
            "reasons": [condition.dump() for condition in reasons],
            "calibrator_id": calibrator_id,
            "at": at.astimezone(dt.UTC).isoformat(timespec="seconds"),
        }
        names = MISS_RATE_PROMOTIONS.column_names
        transaction.insert(MISS_RATE_PROMOTIONS, [[row[name] for name in names]])
    return Promotion(old_status=old, new_status=status, at=row["at"])


def promotions(store: SqlStore, series: Series | None = None) -> list[dict[str, Any]]:
    """Read the changes of status, of one series or of all, ordered by series and number."""
    store.create(MISS_RATE_PROMOTIONS)
    where = dataclasses.asdict(series) if series else None
    with store.reading() as transaction:
        order = ["dataset", "strategy", "target", "k", "number"]
        return transaction.select(MISS_RATE_PROMOTIONS, where, order=order)
