"""The history of nights: an asset with a partition for each gold set and night.

A run evaluates the present, so that nobody can make a past night again. The asset is therefore
external: the step of the report records its partitions, and nothing materializes it.
"""

import datetime as dt
import zoneinfo
from collections.abc import Mapping
from typing import Any, Final

import dagster as dg

DIMENSION: Final = "rag_eval_nights"
"""Name of Dagster's list of the nights that have a report."""
NIGHT_TAG: Final = "rag_eval/night"
"""Tag of scheduled runs. A run that is tried again after midnight keeps its night."""


def nights_key(prefix: str) -> dg.AssetKey:
    """Return the key of the asset; `prefix` is the setting `asset_key_prefix`."""
    return dg.AssetKey([*([prefix] if prefix else []), "reporting", "nights"])


def make_nights(
    key: dg.AssetKey, gold_sets: dg.PartitionsDefinition[str], report: dg.AssetKey, owner: str
) -> dg.AssetSpec:
    """Declare the asset."""
    nights = dg.DynamicPartitionsDefinition(name=DIMENSION)
    return dg.AssetSpec(
        key=key,
        deps=[report],
        group_name="reporting",
        owners=[owner],
        kinds={"history"},
        description="The reports of all nights. A partition shows the figures and gates of its"
        " night, the run that made them, and where the report is kept.",
        partitions_def=dg.MultiPartitionsDefinition({"gold_set": gold_sets, "night": nights}),
    )


def tonight(timezone: str, moment: dt.datetime | None = None) -> str:
    """Return the date of a moment, default now, in the time zone of the schedule.

    Examples
    --------
    >>> tonight("Europe/Berlin", dt.datetime(2026, 11, 27, 23, 30, tzinfo=dt.UTC))
    '2026-11-28'
    """
    zone = zoneinfo.ZoneInfo(timezone)
    return (moment or dt.datetime.now(dt.UTC)).astimezone(zone).date().isoformat()


def record_night(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    gold_set: str,
    night: str,
    shown: Mapping[str, Any],
) -> dg.AssetMaterialization:
    """Add the night to the list of nights, and return the event that shows its report."""
    instance.add_dynamic_partitions(DIMENSION, [night])
    partition = dg.MultiPartitionKey({"gold_set": gold_set, "night": night})
    return dg.AssetMaterialization(key, partition=partition, metadata=shown)
