"""Decide the status of a miss rate by its conditions, and keep the record of its changes."""

import dataclasses
import datetime as dt
import math
from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np

from rag_eval.core.config import (
    DISCOUNTING,
    MEASURED_EACH,
    MEASURED_OUTCOMES,
    PRIOR_QUERIES,
    PROVISIONAL_EACH,
    PROVISIONAL_OUTCOMES,
    SLOPE,
    BinaryTarget,
    Status,
)
from rag_eval.storage.sql import ColumnSpec, SqlStore, TableSpec
from rag_eval.uncertainty.scores import Labelled
from rag_eval.uncertainty.stored import JsonObject
from rag_eval.uncertainty.validation import Validation

_EARNED: Final[tuple[Status, ...]] = ("uncalibrated", "prior", "provisional", "measured")


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of outcomes that may fit a calibrator, and of their groups.

    A group may hold both misses and hits. The status depends on groups and never on outcomes.
    """

    outcomes: int
    groups: int
    groups_with_misses: int
    groups_with_hits: int

    @classmethod
    def of(cls, labelled: Labelled) -> Self:
        """Count the outcomes of labelled retrievals, and their groups."""
        group, missed = labelled.group, labelled.missed
        groups = [len(np.unique(part)) for part in (group, group[missed], group[~missed])]
        return cls(len(labelled), *groups)

    @property
    def provisional(self) -> bool:
        """Whether the groups suffice for a provisional miss rate, and so to fit a calibrator."""
        fewer = min(self.groups_with_misses, self.groups_with_hits)
        return self.groups >= PROVISIONAL_OUTCOMES and fewer >= PROVISIONAL_EACH


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a status, with its result, the found value and the needed value."""

    name: str
    met: bool
    found: str
    needed: str
    status: Status


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """Status of a miss rate, and the conditions of every status."""

    status: Status
    conditions: tuple[Condition, ...]

    @property
    def discounts(self) -> bool:
        """Whether an answer's confidence may be discounted by the miss rate."""
        return self.status in DISCOUNTING

    @property
    def unmet(self) -> tuple[Condition, ...]:
        """Conditions that are not met and keep the status from being higher."""
        return tuple(condition for condition in self.conditions if not condition.met)

    def to_json(self) -> JsonObject:
        """Write the status and all conditions as JSON values."""
        return {**dataclasses.asdict(self), "discounts": self.discounts}


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
    drift_alarm: bool = False
    """Whether the drift monitor raised an alarm since the calibrator was fitted."""
    no_prior: str = ""
    """Reason why no shipped prior fits this target, K and kind of strategy; else empty."""
    base_changes: bool | None = None
    """Whether this run gives the base of an iterative strategy another calibrator.

    A new calibrator would steer other rankings than the judged rankings. None without a base.
    """


def judge_status(counts: Counts, validation: Validation | None, situation: Situation) -> Standing:
    """Find the status of the miss rate of a strategy, target and K.

    Every status needs its own conditions and the conditions of all lower statuses. A `provisional`
    or `measured` miss rate that fails a condition of freshness is `stale`. Lower statuses rest on
    no outcomes and cannot grow old. Gold of only the strategy itself bars `provisional`, because no
    calibrator is fitted to such gold. `prior` needs a shipped prior, or enough outcomes for
    `provisional`. `measured` needs a validation.
    """
    own, others = "only from this strategy", "not only from this strategy"
    gold = own if situation.own_gold_only else others
    provisional = [
        *_count_conditions(counts, PROVISIONAL_OUTCOMES, PROVISIONAL_EACH, "provisional"),
        Condition("gold_of_others", not situation.own_gold_only, gold, others, "provisional"),
    ]
    by_outcomes = all(condition.met for condition in provisional)
    prior = situation.no_prior or "there is one"
    if situation.no_prior and by_outcomes:
        prior += ", and outcomes instead"
    needed = "a shipped prior for this target, K and kind of strategy; or what provisional needs"
    has_prior = not situation.no_prior or by_outcomes
    conditions = [
        _at_least("queries", situation.n_unlabelled, 1, "uncalibrated"),
        _at_least("queries_for_z_scores", situation.n_unlabelled, PRIOR_QUERIES, "prior"),
        Condition("shipped_prior", has_prior, prior, needed, "prior"),
        *provisional,
        *_count_conditions(counts, MEASURED_OUTCOMES, MEASURED_EACH, "measured"),
        *_validation_conditions(validation),
        *_freshness_conditions(situation),
    ]
    status: Status = "absent"
    for step in _EARNED:
        if not all(condition.met for condition in conditions if condition.status == step):
            break
        status = step
    fresh = all(condition.met for condition in conditions if condition.status == "stale")
    return Standing("stale" if status in DISCOUNTING and not fresh else status, tuple(conditions))


def _at_least(name: str, found: int, needed: int, status: Status) -> Condition:
    return Condition(name, found >= needed, str(found), f"at least {needed}", status)


def _count_conditions(counts: Counts, groups: int, each: int, status: Status) -> list[Condition]:
    return [
        _at_least("outcomes", counts.groups, groups, status),
        _at_least("misses", counts.groups_with_misses, each, status),
        _at_least("hits", counts.groups_with_hits, each, status),
    ]


def _validation_conditions(validation: Validation | None) -> list[Condition]:
    needed = "grouped cross-validation"
    if validation is None:
        return [Condition("validation", met=False, found="none", needed=needed, status="measured")]
    skill, slope, ece = validation.skill, validation.slope.value, validation.ece
    counted = f"{validation.n} outcomes in {validation.groups} groups"
    low_end = f"{skill.value:.3f}, low end of the 95 % interval {skill.low:.3f}"
    limit = f"at most {ece.null_limit:.4f}, the limit of calibrated predictions"
    steepness = "none that can be estimated" if math.isnan(slope) else f"{slope:.3f}"
    least, most = SLOPE
    return [
        Condition("validation", met=True, found=counted, needed=needed, status="measured"),
        # A NaN bound fails this condition, because NaN is not above 0.
        Condition("skill", skill.low > 0, low_end, "low end above 0", "measured"),
        Condition("ece", ece.inside, f"{ece.value:.4f}", limit, "measured"),
        Condition("slope", least <= slope <= most, steepness, f"{least} to {most}", "measured"),
    ]


def _freshness_conditions(situation: Situation) -> list[Condition]:
    alarm, age, most = situation.drift_alarm, situation.age_days, situation.stale_after_days
    days = "no outcomes" if age is None else f"{age:.1f} days"
    recent = age is None or age <= most
    conditions = [
        # Only outcomes of the current fingerprint are read.
        Condition(
            "same_fingerprint", met=True, found="unchanged", needed="unchanged", status="stale"
        ),
        Condition("no_drift", not alarm, "alarm" if alarm else "no alarm", "no alarm", "stale"),
        Condition("recent", recent, days, f"at most {most:g} days", "stale"),
    ]
    base_changes = situation.base_changes
    if base_changes is not None:
        changes = "changes with this run, and with it the next run's rankings"
        needed = "a base whose calibrator steers the next run as it did this one"
        found = changes if base_changes else "unchanged"
        same = Condition("same_base_calibrator", not base_changes, found, needed, "stale")
        conditions.append(same)
    return conditions


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


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """Key of a status over time; it names the strategy, because the fingerprint may change."""

    dataset: str
    strategy: str
    target: BinaryTarget
    k: int


@dataclasses.dataclass(frozen=True, slots=True)
class Promotion:
    """A change of status; `number` counts the changes of a series from 1."""

    series: Series
    number: int
    strategy_fingerprint: str
    """Fingerprint of the strategy after the change."""
    old_status: Status
    new_status: Status
    figures_before: Mapping[str, Any] | None
    """Figures behind the old status; None at the first change."""
    figures_after: Mapping[str, Any] | None
    reasons: tuple[Mapping[str, Any], ...]
    """Conditions that decided the new status, as JSON values."""
    calibrator_id: str | None
    """Id of the calibrator in use after the change."""
    at: str
    """Time of the change, UTC, ISO 8601."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Make a change of status from a row of the table."""
        values = dict(row)
        series = Series(*(values.pop(field.name) for field in dataclasses.fields(Series)))
        return cls(series=series, **{**values, "reasons": tuple(row["reasons"] or ())})


def record_status(
    store: SqlStore,
    series: Series,
    status: Status,
    *,
    strategy_fingerprint: str,
    figures: Mapping[str, Any] | None,
    reasons: tuple[Mapping[str, Any], ...] = (),
    calibrator_id: str | None = None,
    at: dt.datetime,
) -> Promotion | None:
    """Append and return a change if the status differs from the last status; else return None.

    One transaction under the table's lock reads the last status and appends the change. `at` has
    a time zone.
    """
    store.create(MISS_RATE_PROMOTIONS)
    with store.transaction(MISS_RATE_PROMOTIONS.name) as transaction:
        rows = transaction.select(
            MISS_RATE_PROMOTIONS, dataclasses.asdict(series), order=["number"]
        )
        last = Promotion.of_row(rows[-1]) if rows else None
        old: Status = last.new_status if last else "absent"
        if status == old:
            return None
        change = Promotion(
            series=series,
            number=last.number + 1 if last else 1,
            strategy_fingerprint=strategy_fingerprint,
            old_status=old,
            new_status=status,
            figures_before=last.figures_after if last else None,
            figures_after=figures,
            reasons=reasons,
            calibrator_id=calibrator_id,
            at=at.astimezone(dt.UTC).isoformat(timespec="seconds"),
        )
        names = MISS_RATE_PROMOTIONS.column_names
        place = dataclasses.asdict(series)
        row = [place[name] if name in place else getattr(change, name) for name in names]
        transaction.insert(MISS_RATE_PROMOTIONS, [row])
    return change


def promotions(store: SqlStore, series: Series | None = None) -> list[Promotion]:
    """Return the changes of status, of one series or of all, ordered by series and number."""
    store.create(MISS_RATE_PROMOTIONS)
    where = dataclasses.asdict(series) if series else None
    order = ["dataset", "strategy", "target", "k", "number"]
    with store.reading() as transaction:
        rows = transaction.select(MISS_RATE_PROMOTIONS, where, order=order)
    return [Promotion.of_row(row) for row in rows]
