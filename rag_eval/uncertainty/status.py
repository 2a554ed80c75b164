"""Decide the status of a miss rate by its conditions, and keep the record of its changes."""

import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
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
    unit, missed, share = labelled.group, labelled.missed, 1.0
    if labelled.shared is not None:
        codes, first = np.unique(labelled.question, return_index=True)
        if labelled.shared.take(codes).crosses(unit[first]):
            influence = (missed - missed.mean()) / len(missed)
            unit = labelled.question
            share = dependent_mean(influence[:, None], labelled).n_effective[0] / len(codes)
    groups, misses, hits = (
        int(share * len(np.unique(part)) + 1e-9) for part in (unit, unit[missed], unit[~missed])
    )
    return OutcomeCounts(
        outcomes=len(labelled), groups=groups, groups_with_misses=misses, groups_with_hits=hits
    )


def suffice_to_fit(counts: OutcomeCounts) -> bool:
    """Tell whether the groups suffice for a provisional miss rate, and so to fit a calibrator."""
    fewer = min(counts.groups_with_misses, counts.groups_with_hits)
    return counts.groups >= PROVISIONAL_OUTCOMES and fewer >= PROVISIONAL_EACH


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Facts that decide the status beside outcomes and validation.

    `age_days` is the age of the outcomes, None without outcomes. `n_unlabelled` counts the queries
    of the strategy with known signals, judged or not. `own_gold_only`: all gold came from this
    strategy's own retrieval. `no_prior` says why no shipped prior fits, or is empty. `trusted`: the
    outcomes support the fit; else every miss rate is the base rate. `base_changes`: this run gives
    the base of an iterative strategy another calibrator, which would steer other rankings than the
    judged ones; None without a base.
    """

    age_days: float | None
    stale_after_days: float
    n_unlabelled: int
    own_gold_only: bool = False
    no_prior: str = ""
    trusted: bool = True
    base_changes: bool | None = None


def judge_status(
    counts: OutcomeCounts, validation: Validation | None, situation: Situation
) -> Standing:
    """Find the status of the miss rate of a strategy, target and K.

    Every status needs its own conditions and those of all lower statuses. A `provisional` or
    `measured` miss rate that fails a condition of freshness is `stale`. Gold of only the strategy
    itself bars `provisional`. `prior` needs a shipped prior, or enough outcomes for `provisional`.
    No status discounts an answer unless predictions for groups that were not fitted were better
    than the base rate, and right on average.
    """
    alone, others = "only from this strategy", "not only from this strategy"
    gold = alone if situation.own_gold_only else others
    provisional = [
        *_count_conditions("provisional", counts, PROVISIONAL_OUTCOMES, PROVISIONAL_EACH),
        _condition("provisional", "gold_of_others", gold, others, met=gold == others),
    ]
    by_outcomes = all(condition.met for condition in provisional)
    prior = situation.no_prior or "there is one"
    if situation.no_prior and by_outcomes:
        prior += ", and outcomes instead"
    needed = "a shipped prior for this target, K and kind of strategy; or what provisional needs"
    has_prior = not situation.no_prior or by_outcomes
    conditions = [
        _at_least("uncalibrated", "queries", situation.n_unlabelled, 1),
        _at_least("prior", "queries_for_z_scores", situation.n_unlabelled, PRIOR_QUERIES),
        _condition("prior", "shipped_prior", prior, needed, met=has_prior),
        *provisional,
        *_count_conditions("measured", counts, MEASURED_OUTCOMES, MEASURED_EACH),
        *_validation_conditions(validation),
        *(discounting := list(_discount_conditions(validation, trusted=situation.trusted))),
        *_freshness_conditions(situation),
    ]
    unmet = {condition.status for condition in conditions if not condition.met}
    n_earned = next((at for at, step in enumerate(_EARNED) if step in unmet), len(_EARNED))
    status: Status = _EARNED[n_earned - 1] if n_earned else "absent"
    fresh = "stale" not in unmet
    status = "stale" if status in DISCOUNTING and not fresh else status
    discounts = status in DISCOUNTING and all(condition.met for condition in discounting)
    return Standing(status=status, discounts=discounts, conditions=conditions)


def _condition(status: Status, name: str, value: str, needed: str, *, met: bool) -> Condition:
    return Condition(name=name, met=met, found=value, needed=needed, status=status)


def _at_least(status: Status, name: str, count: int, needed: int) -> Condition:
    return _condition(status, name, str(count), f"at least {needed}", met=count >= needed)


def _count_conditions(
    status: Status, counts: OutcomeCounts, groups: int, each: int
) -> list[Condition]:
    return [
        _at_least(status, "outcomes", counts.groups, groups),
        _at_least(status, "misses", counts.groups_with_misses, each),
        _at_least(status, "hits", counts.groups_with_hits, each),
    ]


def _validation_conditions(validation: Validation | None) -> Iterator[Condition]:
    needed = "grouped cross-validation"
    if validation is None:
        yield _condition("measured", "validation", "none", needed, met=False)
        return
    counted = f"{validation.n} outcomes in {validation.groups} groups"
    yield _condition("measured", "validation", counted, needed, met=True)
    # Comparisons with NaN are false, so an undefined figure meets no condition.
    value, low, slope = (
        np.nan if figure is None else figure
        for figure in (validation.skill.value, validation.skill.low, validation.slope.value)
    )
    shown = f"{value:.3f}, low end of the 95 % interval {low:.3f}"
    yield _condition("measured", "skill", shown, "low end above 0", met=low > 0)
    ece, (least, most) = validation.ece, SLOPE
    needed = f"at most {ece.null_limit:.4f}, the limit of calibrated predictions"
    yield _condition("measured", "ece", f"{ece.value:.4f}", needed, met=ece.inside)
    shown = "none that can be estimated" if np.isnan(slope) else f"{slope:.3f}"
    yield _condition("measured", "slope", shown, f"{least} to {most}", met=least <= slope <= most)


def _discount_conditions(validation: Validation | None, *, trusted: bool) -> Iterator[Condition]:
    """List what any discount needs; `measured` needs it too."""
    if validation is None:
        return
    skill, ratio = validation.skill.value, validation.observed_expected
    shown = "no skill" if skill is None else f"skill {skill:.3f}"
    shown += "" if trusted else ", and only the base rate is stated"
    needed, met = "a supported fit with skill above 0, for any discount", (skill or 0) > 0
    yield _condition("measured", "better_than_base_rate", shown, needed, met=trusted and met)
    low, high = (np.nan if end is None else end for end in (ratio.low, ratio.high))
    shown = "none" if ratio.value is None else f"{ratio.value:.3f} [{low:.3f}, {high:.3f}]"
    needed, met = "an interval with 1, for any discount", low <= 1 <= high
    yield _condition("measured", "stated_mean", f"observed / stated {shown}", needed, met=met)


def _freshness_conditions(situation: Situation) -> Iterator[Condition]:
    age, most = situation.age_days, situation.stale_after_days
    days = "no outcomes" if age is None else f"{age:.1f} days"
    # Only outcomes of the current fingerprint are read.
    yield _condition("stale", "same_fingerprint", "unchanged", "unchanged", met=True)
    is_recent = age is None or age <= most
    yield _condition("stale", "recent", days, f"at most {most:g} days", met=is_recent)
    if situation.base_changes is not None:
        shown = "changes with this run, and with it the next run's rankings"
        shown = shown if situation.base_changes else "unchanged"
        needed = "a base whose calibrator steers the next run as it did this one"
        met = not situation.base_changes
        yield _condition("stale", "same_base_calibrator", shown, needed, met=met)


# ---- The record of changes of status.

_REQUIRED: Final = "dataset strategy target strategy_fingerprint old_status new_status at".split()
MISS_RATE_PROMOTIONS: Final = TableSpec(
    "miss_rate_promotions",
    (
        *(ColumnSpec(name, "text", required=True) for name in _REQUIRED),
        *(ColumnSpec(name, "integer", required=True) for name in ("k", "number")),
        *(ColumnSpec(name, "json") for name in ("figures_before", "figures_after", "reasons")),
        ColumnSpec("calibrator_id", "text"),
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

    def record(
        self,
        store: SqlStore,
        status: Status,
        *,
        strategy_fingerprint: str,
        figures: Mapping[str, Any] | None,
        reasons: Sequence[Condition] = (),
        calibrator_id: str | None = None,
        at: dt.datetime,
    ) -> Promotion | None:
        """Append and return a change if the status differs from the last status; else return None.

        One transaction under the table's lock reads the last status and appends the change. `at`
        has a time zone.
        """
        store.create(MISS_RATE_PROMOTIONS)
        key = dataclasses.asdict(self)
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
