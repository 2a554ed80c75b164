"""The record of every promotion and demotion of a miss rate: append-only, with the figures before and after.

Belongs here: the table and the two things done with it. Which status is earned: `ladder`.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any

from rag_eval.records.uncertainty import BinaryTarget, Status
from rag_eval.storage.sql import SqlStore
from rag_eval.storage.sql_tables import ColumnSpec, TableSpec

MISS_RATE_PROMOTIONS = TableSpec(
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
    """What has a status over time: the miss rate of a strategy (by name: its fingerprint may change) on a data set, for one target and K."""

    dataset: str
    strategy: str
    target: BinaryTarget
    k: int

    def where(self) -> dict[str, Any]:
        """Its rows."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Promotion:
    """A change of status.

    Parameters
    ----------
    series, number
        Of which miss rate, and the how-manieth change of it, from 1.
    strategy_fingerprint, calibrator_id
        The strategy's after the change, and the calibrator in force then; None where none is.
    old_status, new_status
        Before and after; `absent` before the first.
    figures_before, figures_after
        Figures under the old status, and those that gave the new one. JSON objects.
    reasons
        Conditions that were decisive, as JSON objects (`ladder.Condition`).
    at
        When, UTC, ISO 8601.
    """

    series: Series
    number: int
    strategy_fingerprint: str
    old_status: Status
    new_status: Status
    figures_before: Mapping[str, Any] | None
    figures_after: Mapping[str, Any] | None
    reasons: tuple[Mapping[str, Any], ...]
    calibrator_id: str | None
    at: str


def record_status(
    store: SqlStore,
    series: Series,
    status: Status,
    *,
    strategy_fingerprint: str,
    figures: Mapping[str, Any] | None,
    figures_before: Mapping[str, Any] | None = None,
    reasons: tuple[Mapping[str, Any], ...] = (),
    calibrator_id: str | None = None,
    at: dt.datetime,
) -> Promotion | None:
    """Append a row where the status differs from the last one recorded; else do nothing and return None.

    `figures_before` are those of the last night under the old status; where they are not given, those recorded when it was earned.

    Safe for concurrent writers: looking and appending are one transaction under the table's lock.

    Raises
    ------
    ValueError
        `at` has no time zone.
    """
    if at.tzinfo is None:
        raise ValueError("the time of a change needs its time zone")
    store.create(MISS_RATE_PROMOTIONS)
    with store.transaction(MISS_RATE_PROMOTIONS.name) as transaction:
        rows = transaction.select(MISS_RATE_PROMOTIONS, series.where(), order=["number"])
        last = _promotion(rows[-1]) if rows else None
        old: Status = last.new_status if last else "absent"
        if status == old:
            return None
        change = Promotion(
            series=series,
            number=last.number + 1 if last else 1,
            strategy_fingerprint=strategy_fingerprint,
            old_status=old,
            new_status=status,
            figures_before=figures_before
            if figures_before is not None or last is None
            else last.figures_after,
            figures_after=figures,
            reasons=reasons,
            calibrator_id=calibrator_id,
            at=at.astimezone(dt.UTC).isoformat(timespec="seconds"),
        )
        values = {
            **series.where(),
            **{
                field.name: getattr(change, field.name)
                for field in dataclasses.fields(change)
                if field.name != "series"
            },
        }
        transaction.insert(
            MISS_RATE_PROMOTIONS, [[values[name] for name in MISS_RATE_PROMOTIONS.column_names]]
        )
    return change


def promotions(store: SqlStore, series: Series | None = None) -> list[Promotion]:
    """Return all changes, or those of one series, by series and number."""
    store.create(MISS_RATE_PROMOTIONS)
    with store.reading() as transaction:
        rows = transaction.select(
            MISS_RATE_PROMOTIONS,
            series.where() if series else None,
            order=["dataset", "strategy", "target", "k", "number"],
        )
    return [_promotion(row) for row in rows]


def _promotion(row: Mapping[str, Any]) -> Promotion:
    series = Series(row["dataset"], row["strategy"], row["target"], row["k"])
    names = [
        field.name
        for field in dataclasses.fields(Promotion)
        if field.name not in {"series", "reasons"}
    ]
    return Promotion(
        series=series, reasons=tuple(row["reasons"] or ()), **{name: row[name] for name in names}
    )
