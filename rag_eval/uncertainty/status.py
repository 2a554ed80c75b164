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
from rag_eval.uncertainty.scores import Labelled, ResampledFigure
from rag_eval.uncertainty.validation import CalibrationError, Validation

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
        """Count outcomes."""
        group, missed = labelled.group, labelled.missed
        groups = [len(np.unique(part)) for part in (group, group[missed], group[~missed])]
        return cls(len(labelled), *groups)

    @property
    def provisional(self) -> bool:
        """Whether these are enough for a provisional miss rate, and so to fit a calibrator."""
        fewer = min(self.groups_with_misses, self.groups_with_hits)
        return self.groups >= PROVISIONAL_OUTCOMES and fewer >= PROVISIONAL_EACH


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """The figures of a stored validation that the ladder asks for."""

    n: int
    groups: int
    skill: ResampledFigure
    slope: ResampledFigure
    ece: CalibrationError

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read the figures from the values that `Validation.to_json` wrote."""
        skill, slope = (ResampledFigure.from_json(document[name]) for name in ("skill", "slope"))
        names = [field.name for field in dataclasses.fields(CalibrationError)]
        ece = CalibrationError(**{name: document["ece"][name] for name in names})
        return cls(document["n"], document["groups"], skill, slope, ece)


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
    """The status of a miss rate, and every condition of the ladder."""

    status: Status
    conditions: tuple[Condition, ...]

    @property
    def discounts(self) -> bool:
        """Whether an answer's confidence may be discounted by the miss rate."""
        return self.status in DISCOUNTING

    @property
    def unmet(self) -> tuple[Condition, ...]:
        """Return the conditions that keep the status from being higher."""
        return tuple(condition for condition in self.conditions if not condition.met)

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        return {
            "status": self.status,
            "discounts": self.discounts,
            "conditions": [dataclasses.asdict(condition) for condition in self.conditions],
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Facts that decide the status beside outcomes and validation."""

    age_days: float | None
    """Age of the outcomes; None without any."""
    stale_after_days: float
    n_unlabelled: int
    """Queries of the strategy whose signals are known, judged or not."""
    own_gold_only: bool = False
    """Whether all gold came from this strategy's own retrieval."""
    drift_alarm: bool = False
    """Whether the drift monitor raised an alarm since the calibrator was fitted."""
    fingerprint_changed: bool = False
    """Whether the outcomes were recorded for another strategy."""
    no_prior: str = ""
    """Why no shipped prior serves this target, K and kind of strategy; empty where one does."""
    base_changes: bool | None = None
    """Whether this run gives the base of an iterative strategy another calibrator.

    It would steer other rankings than those that were judged. None: there is no base.
    """


def judge_status(
    counts: Counts, validation: Validation | Checked | None, situation: Situation
) -> Standing:
    """Find the status of the miss rate of a strategy, target and K.

    Every status needs its own conditions and those of the statuses under it. `stale` is what else
    was `provisional` or `measured`; lower statuses rest on no outcomes and cannot grow old. Gold
    of the strategy itself bars `provisional`, because no calibrator is fitted to it. `prior`
    needs a shipped prior; a strategy with enough outcomes of its own needs none. Without a
    validation no miss rate is `measured`.
    """
    given = situation
    provisional = [
        *_count_conditions(counts, PROVISIONAL_OUTCOMES, PROVISIONAL_EACH, "provisional"),
        Condition(
            "gold_of_others",
            not given.own_gold_only,
            "only from this strategy" if given.own_gold_only else "not only from this strategy",
            "not only from this strategy",
            "provisional",
        ),
    ]
    by_outcomes = all(condition.met for condition in provisional)
    instead = f"{given.no_prior}, and outcomes instead" if by_outcomes else given.no_prior
    conditions = [
        _at_least("queries", given.n_unlabelled, 1, "uncalibrated"),
        _at_least("queries_for_z_scores", given.n_unlabelled, PRIOR_QUERIES, "prior"),
        Condition(
            "shipped_prior",
            not given.no_prior or by_outcomes,
            instead if given.no_prior else "there is one",
            "a shipped prior for this target, K and kind of strategy; or what provisional needs",
            "prior",
        ),
        *provisional,
        *_count_conditions(counts, MEASURED_OUTCOMES, MEASURED_EACH, "measured"),
        *_validation_conditions(validation),
        *_freshness_conditions(given),
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


def _validation_conditions(validation: Validation | Checked | None) -> list[Condition]:
    needed = "grouped cross-validation"
    if validation is None:
        return [Condition("validation", met=False, found="none", needed=needed, status="measured")]
    skill, slope, ece = validation.skill, validation.slope.value, validation.ece
    counted = f"{validation.n} outcomes in {validation.groups} groups"
    return [
        Condition("validation", met=True, found=counted, needed=needed, status="measured"),
        Condition(
            "skill",
            skill.low > 0,  # NaN is not above 0
            f"{skill.value:.3f}, low end of the 95 % interval {skill.low:.3f}",
            "low end above 0",
            "measured",
        ),
        Condition(
            "ece",
            ece.inside,
            f"{ece.value:.4f}",
            f"at most {ece.null_limit:.4f}, the limit of calibrated predictions",
            "measured",
        ),
        Condition(
            "slope",
            SLOPE[0] <= slope <= SLOPE[1],
            "none that can be estimated" if math.isnan(slope) else f"{slope:.3f}",
            f"{SLOPE[0]} to {SLOPE[1]}",
            "measured",
        ),
    ]


def _freshness_conditions(given: Situation) -> list[Condition]:
    age = given.age_days
    conditions = [
        Condition(
            "same_fingerprint",
            not given.fingerprint_changed,
            "changed" if given.fingerprint_changed else "unchanged",
            "unchanged",
            "stale",
        ),
        Condition(
            "no_drift",
            not given.drift_alarm,
            "alarm" if given.drift_alarm else "no alarm",
            "no alarm",
            "stale",
        ),
        Condition(
            "recent",
            age is None or age <= given.stale_after_days,
            "no outcomes" if age is None else f"{age:.1f} days",
            f"at most {given.stale_after_days:g} days",
            "stale",
        ),
    ]
    if given.base_changes is not None:
        changes = "changes with this run, and with it the next run's rankings"
        conditions.append(
            Condition(
                "same_base_calibrator",
                not given.base_changes,
                changes if given.base_changes else "unchanged",
                "a base whose calibrator steers the next run as it did this one",
                "stale",
            )
        )
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
    """Key of a status over time: a strategy by name, because its fingerprint may change."""

    dataset: str
    strategy: str
    target: BinaryTarget
    k: int


@dataclasses.dataclass(frozen=True, slots=True)
class Promotion:
    """A change of status: the `number`-th of its series, from 1."""

    series: Series
    number: int
    strategy_fingerprint: str
    """Fingerprint of the strategy after the change."""
    old_status: Status
    new_status: Status
    figures_before: Mapping[str, Any] | None
    """The figures that gave the old status."""
    figures_after: Mapping[str, Any] | None
    reasons: tuple[Mapping[str, Any], ...]
    """Decisive conditions, as JSON values."""
    calibrator_id: str | None
    """The calibrator in force after the change."""
    at: str
    """UTC, ISO 8601."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Read a row of the table."""
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
    """Append a row where the status differs from the last one; else return None.

    Looking and appending are one transaction under the table's lock. `at` needs a time zone.
    """
    if at.tzinfo is None:
        raise ValueError("the time of a change needs its time zone")
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
    """Return all changes, or those of one series, by series and number."""
    store.create(MISS_RATE_PROMOTIONS)
    where = dataclasses.asdict(series) if series else None
    order = ["dataset", "strategy", "target", "k", "number"]
    with store.reading() as transaction:
        rows = transaction.select(MISS_RATE_PROMOTIONS, where, order=order)
    return [Promotion.of_row(row) for row in rows]
