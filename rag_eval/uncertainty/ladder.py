"""The status ladder: which name a miss rate has earned, condition by condition.

Belongs here: the conditions and their order. The constants are in `records.uncertainty`; what was promoted when: `promotions`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rag_eval.records.uncertainty import (
    DISCOUNTING,
    MEASURED_EACH,
    MEASURED_OUTCOMES,
    PRIOR_QUERIES,
    PROVISIONAL_EACH,
    PROVISIONAL_OUTCOMES,
    SLOPE,
    Status,
)
from rag_eval.uncertainty.labelled import Labelled
from rag_eval.uncertainty.resampling import Figure
from rag_eval.uncertainty.validation import CalibrationError, Validation

_EARNED: tuple[Status, ...] = ("uncalibrated", "prior", "provisional", "measured")


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """What the outcomes of a strategy, target and K count to; `groups` and not `outcomes` is held against the ladder.

    Parameters
    ----------
    outcomes
        Judged retrievals that may fit a calibrator.
    groups, groups_with_misses, groups_with_hits
        Distinct groups, those with a miss, and those with a hit; a group may be in both.
    """

    outcomes: int
    groups: int
    groups_with_misses: int
    groups_with_hits: int

    @classmethod
    def of(cls, labelled: Labelled) -> "Counts":
        """Count outcomes."""
        group, missed = labelled.group, labelled.missed
        return cls(
            len(labelled),
            len(np.unique(group)),
            len(np.unique(group[missed])),
            len(np.unique(group[~missed])),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """The figures of a validation that the ladder asks for, as they are read back from where a validation was written."""

    n: int
    groups: int
    skill: Figure
    slope: Figure
    ece: CalibrationError
    smece: CalibrationError

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> "Checked":
        """Read them from `Validation.to_json`."""
        figures = {name: Figure.from_json(written[name]) for name in ("skill", "slope")}
        errors = {
            name: CalibrationError(
                **{
                    field.name: written[name][field.name]
                    for field in dataclasses.fields(CalibrationError)
                }
            )
            for name in ("ece", "smece")
        }
        return cls(
            written["n"],
            written["groups"],
            figures["skill"],
            figures["slope"],
            errors["ece"],
            errors["smece"],
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a status: whether it is met, what was found and what is needed, for a person to read."""

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
        """Whether an answer's confidence may be discounted by the miss rate: under `provisional` and `measured` only."""
        return self.status in DISCOUNTING

    @property
    def unmet(self) -> tuple[Condition, ...]:
        """Conditions that keep the status from being higher."""
        return tuple(condition for condition in self.conditions if not condition.met)

    def to_json(self) -> dict[str, Any]:
        """Write as a JSON object."""
        return {
            "status": self.status,
            "discounts": self.discounts,
            "conditions": [dataclasses.asdict(condition) for condition in self.conditions],
        }


def standing(
    counts: Counts,
    validation: Validation | Checked | None,
    *,
    fingerprint_changed: bool,
    drift_alarm: bool,
    age_days: float | None,
    stale_after_days: float,
    own_gold_only: bool,
    n_unlabelled: int,
    no_prior: str = "",
    base_changes: bool | None = None,
) -> Standing:
    """Which status the miss rate of a strategy, target and K has.

    Parameters
    ----------
    counts
        Of the outcomes that may fit a calibrator.
    validation
        Of the out-of-fold predictions; None where none was made, and then no miss rate is `measured`.
    fingerprint_changed
        Whether the strategy is another one than the outcomes were recorded for.
    drift_alarm
        Whether the watch over outcomes has raised an alarm since the calibrator was fitted.
    age_days, stale_after_days
        Age of the outcomes, None without any, and the age from which on they are too old.
    own_gold_only
        Whether all gold came from this strategy's own retrieval.
    n_unlabelled
        Queries of the strategy whose signals are known, whether judged or not.
    no_prior
        Why no shipped prior can speak for this target, K and kind of strategy; empty where one can.
    base_changes
        Of an iterative strategy, whether this run gives its base another calibrator, which steers other rankings than those that were judged.
        None for a strategy without a base.

    Notes
    -----
    Every status needs its own conditions and those of the statuses under it. All numbers of outcomes are of distinct groups. `stale` is what
    was, or would be, `provisional` or `measured`; lower statuses rest on no outcomes and cannot grow old. Gold that came only from the
    strategy itself keeps a miss rate from `provisional` too, because no calibrator is fitted to it. A shipped prior is what `prior` speaks
    by; an estimator with outcomes of its own needs none, so that its absence bars no higher status.
    """
    provisional = (
        _at_least("outcomes", counts.groups, PROVISIONAL_OUTCOMES, "provisional"),
        _at_least("misses", counts.groups_with_misses, PROVISIONAL_EACH, "provisional"),
        _at_least("hits", counts.groups_with_hits, PROVISIONAL_EACH, "provisional"),
        Condition(
            "gold_of_others",
            not own_gold_only,
            "only from this strategy" if own_gold_only else "not only from this strategy",
            "not only from this strategy",
            "provisional",
        ),
    )
    by_outcomes = all(condition.met for condition in provisional)
    conditions = (
        _at_least("queries", n_unlabelled, 1, "uncalibrated"),
        _at_least("queries_for_z_scores", n_unlabelled, PRIOR_QUERIES, "prior"),
        _shipped_prior(no_prior, by_outcomes=by_outcomes),
        *provisional,
        _at_least("outcomes", counts.groups, MEASURED_OUTCOMES, "measured"),
        _at_least("misses", counts.groups_with_misses, MEASURED_EACH, "measured"),
        _at_least("hits", counts.groups_with_hits, MEASURED_EACH, "measured"),
        *_validated(validation),
        Condition(
            "same_fingerprint",
            not fingerprint_changed,
            "changed" if fingerprint_changed else "unchanged",
            "unchanged",
            "stale",
        ),
        Condition(
            "no_drift", not drift_alarm, "alarm" if drift_alarm else "no alarm", "no alarm", "stale"
        ),
        Condition(
            "recent",
            age_days is None or age_days <= stale_after_days,
            "no outcomes" if age_days is None else f"{age_days:.1f} days",
            f"at most {stale_after_days:g} days",
            "stale",
        ),
        *(() if base_changes is None else (_same_base(changes=base_changes),)),
    )
    status: Status = "absent"
    for step in _EARNED:
        if not all(condition.met for condition in conditions if condition.status == step):
            break
        status = step
    fresh = all(condition.met for condition in conditions if condition.status == "stale")
    return Standing("stale" if status in DISCOUNTING and not fresh else status, conditions)


def _at_least(name: str, found: int, needed: int, status: Status) -> Condition:
    return Condition(name, found >= needed, str(found), f"at least {needed}", status)


def _shipped_prior(missing: str, *, by_outcomes: bool) -> Condition:
    found = (
        f"{missing}, and outcomes instead" if missing and by_outcomes else missing or "there is one"
    )
    return Condition(
        "shipped_prior",
        not missing or by_outcomes,
        found,
        "a shipped prior for this target, K and kind of strategy; or what provisional needs",
        "prior",
    )


def _same_base(*, changes: bool) -> Condition:
    found = "changes with this run, and with it the next run's rankings" if changes else "unchanged"
    return Condition(
        "same_base_calibrator",
        not changes,
        found,
        "a base whose calibrator steers the next run as it did this one",
        "stale",
    )


def _validated(validation: Validation | Checked | None) -> tuple[Condition, ...]:
    if validation is None:
        return (
            Condition(
                "validation",
                met=False,
                found="none",
                needed="grouped cross-validation",
                status="measured",
            ),
        )
    skill, slope = validation.skill, validation.slope.value
    return (
        Condition(
            "validation",
            met=True,
            found=f"{validation.n} outcomes in {validation.groups} groups",
            needed="grouped cross-validation",
            status="measured",
        ),
        Condition(
            "skill",
            skill.low > 0,
            f"{skill.value:.3f}, low end of the 95 % interval {skill.low:.3f}",
            "low end above 0",
            "measured",
        ),  # NaN is not above 0
        _inside("ece", validation.ece),
        _inside("smece", validation.smece),
        Condition(
            "slope",
            SLOPE[0] <= slope <= SLOPE[1],
            "none that can be estimated" if math.isnan(slope) else f"{slope:.3f}",
            f"{SLOPE[0]} to {SLOPE[1]}",
            "measured",
        ),
    )


def _inside(name: str, error: CalibrationError) -> Condition:
    return Condition(
        name,
        error.inside,
        f"{error.value:.4f}",
        f"at most {error.null_limit:.4f}, the limit of calibrated predictions",
        "measured",
    )
