"""When the nightly job runs: one run for each nightly gold set, of exactly the assets and checks that its configuration has."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg

from rag_eval.defs import names
from rag_eval.defs.partitions import KnownGoldSet

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )


def run_requests(gold_sets: list[KnownGoldSet], tick: str) -> Iterator[dg.RunRequest]:
    """Request a run for each nightly gold set.

    Parameters
    ----------
    gold_sets
        All that are known.
    tick
        Scheduled time; with it a tick that is evaluated twice starts its runs once.
    """
    for gold_set in gold_sets:
        if gold_set.nightly:
            yield dg.RunRequest(
                run_key=f"{gold_set.name} {tick}",
                partition_key=gold_set.name,
                asset_selection=gold_set.assets,
                asset_check_keys=gold_set.checks,
                tags={"rag_eval/gold_set": gold_set.name},
            )


def nightly_schedule(
    job: "UnresolvedAssetJobDefinition", gold_sets: list[KnownGoldSet], cron: str, timezone: str
) -> dg.ScheduleDefinition:
    """Make the schedule; it is on as soon as a daemon runs."""

    @dg.schedule(
        name=names.SCHEDULE,
        job=job,
        cron_schedule=cron,
        execution_timezone=timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="One run for each nightly gold set",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        if not any(gold_set.nightly for gold_set in gold_sets):
            yield dg.SkipReason("no gold set belongs to the nightly job")
        yield from run_requests(gold_sets, context.scheduled_execution_time.isoformat())

    return nightly
