"""Build Dagster's definitions of all gold sets: assets, checks, the nightly job, and alerts.

Tests call `build_definitions` with their own settings. Dagster calls it through
`rag_eval.definitions`.
"""

import dataclasses
import html
import importlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import dagster as dg

from rag_eval.core.errors import InputError, quoted
from rag_eval.core.settings import MailAlerts, Settings
from rag_eval.defs.assets import (
    OF_STAGES,
    REPORT,
    RETRIES,
    asset_key,
    gate_check,
    make_assets,
    make_evaluations,
    make_gate_checks,
)
from rag_eval.gates.verdict import check_names
from rag_eval.gold.configuration import discover, load_config
from rag_eval.pipeline.runner import Node
from rag_eval.pipeline.stages import STAGES
from rag_eval.storage.locks import is_shared

JOB: Final = "nightly_eval"
SCHEDULE: Final = "nightly_eval_schedule"
EXECUTORS: Final = {
    "in_process": "dagster:in_process_executor",
    "multiprocess": "dagster:multiprocess_executor",
    "k8s": "dagster_k8s:k8s_job_executor",
    "docker": "dagster_docker:docker_executor",
    "celery": "dagster_celery:celery_executor",
    "dask": "dagster_dask:dask_executor",
}
RUN_TAGS: Final = {
    "dagster/max_retries": "2",
    "dagster/retry_strategy": "FROM_FAILURE",
    "dagster/retry_on_asset_or_op_failure": "false",
}
"""Retries of a run whose worker was lost. A failed stage had its own retries."""
MAX_FAILED_STEPS: Final = 20
"""Largest number of steps that an alert names."""


@dataclasses.dataclass(frozen=True)
class KnownGoldSet:
    """The parts of a gold set's configuration that the definitions need.

    `name` is the partition key. `gates` holds `acceptance.<measure>` for each floor, and the bare
    name of every other gate. `keys` maps the configured stages to their assets.
    """

    name: str
    strategies: tuple[str, ...]
    gates: tuple[str, ...]
    keys: Mapping[Node, dg.AssetKey]
    nightly: bool
    report: dg.AssetKey

    @property
    def assets(self) -> list[dg.AssetKey]:
        """Keys of the configured assets."""
        return list(self.keys.values())

    @property
    def checks(self) -> list[dg.AssetCheckKey]:
        """Keys of the configured checks."""
        stages = [
            dg.AssetCheckKey(key, OF_STAGES[node.name].name)
            for node, key in self.keys.items()
            if node.name in OF_STAGES
        ]
        return [*stages, *(dg.AssetCheckKey(self.report, gate_check(gate)) for gate in self.gates)]


def known_gold_sets(folder: Path, prefix: str = "") -> list[KnownGoldSet]:
    """Read every gold set's configuration.

    An unreadable gold set keeps its partition, so that its nightly run shows the error. Raises
    InputError if the folder of gold sets is missing.
    """
    gold_sets, report = [], asset_key(Node(REPORT), prefix)
    for name, place in discover(folder).items():
        strategies, gates, nightly = tuple[str, ...](), tuple[str, ...](), True
        try:
            config = load_config(place)
        except InputError:
            nodes = [Node(stage.name) for stage in STAGES if not stage.each_strategy]
        else:
            strategies = tuple(spec.name for spec in config.strategies)
            stages = (stage for stage in STAGES if stage.configured(config))
            nodes = [node for stage in stages for node in stage.nodes(strategies)]
            gates, nightly = tuple(check_names(config)), config.nightly
        keys = {node: asset_key(node, prefix) for node in nodes}
        gold_sets.append(KnownGoldSet(name, strategies, gates, keys, nightly, report))
    return gold_sets


def build_definitions(settings: Settings | None = None) -> dg.Definitions:
    """Build the definitions.

    The default settings come from the environment and settings.toml. Raises InputError if the
    folder of gold sets is missing.
    """
    settings = settings or Settings()
    prefix = settings.asset_key_prefix
    gold_sets, report = known_gold_sets(settings.gold_sets, prefix), asset_key(Node(REPORT), prefix)
    strategies = list(dict.fromkeys(name for gold_set in gold_sets for name in gold_set.strategies))
    gates = list(dict.fromkeys(gate for gold_set in gold_sets for gate in gold_set.gates))
    partitions = dg.StaticPartitionsDefinition([gold_set.name for gold_set in gold_sets])
    job = dg.define_asset_job(
        JOB,
        selection=dg.AssetSelection.all(),
        description="Evaluates one gold set, and skips assets that it does not configure.",
        tags=RUN_TAGS,
    )

    status = dg.DefaultScheduleStatus

    @dg.schedule(
        name=SCHEDULE,
        job=job,
        cron_schedule=settings.schedule,
        execution_timezone="UTC",
        default_status=status.RUNNING if settings.schedule_on else status.STOPPED,
        description="One run for each nightly gold set",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        if not any(gold_set.nightly for gold_set in gold_sets):
            yield dg.SkipReason("no gold set belongs to the nightly job")
        for gold_set in gold_sets:
            if gold_set.nightly:
                yield dg.RunRequest(
                    # A repeated tick starts no second run.
                    run_key=f"{gold_set.name} {context.scheduled_execution_time.isoformat()}",
                    partition_key=gold_set.name,
                    asset_selection=gold_set.assets,
                    asset_check_keys=gold_set.checks,
                )

    return dg.Definitions(
        assets=make_assets(strategies, partitions, settings),
        asset_checks=make_gate_checks(gates, report, RETRIES if is_shared(settings) else None),
        jobs=[job],
        schedules=[nightly],
        sensors=[] if settings.alerts is None else [make_alerts(settings.alerts)],
        resources={"evaluations": make_evaluations(settings)},
        executor=load_executor(settings),
    )


def load_executor(settings: Settings) -> dg.ExecutorDefinition:
    """Load the executor that the settings name.

    The default runs all steps in the process of the run, because a process for each step would
    import everything again. Raises InputError if the executor cannot be loaded.
    """
    path = EXECUTORS.get(settings.executor, settings.executor)
    module, _, attribute = path.partition(":")
    try:
        executor = getattr(importlib.import_module(module), attribute or "none", None)
        reason = f"{path} is no executor of Dagster"
    except ImportError as error:
        executor, reason = None, str(error)
    if not isinstance(executor, dg.ExecutorDefinition):
        raise InputError.of(
            "unknown_executor",
            f"the executor cannot be used ({quoted(reason)})",
            field="executor",
            found=settings.executor,
            accepted=f"{', '.join(EXECUTORS)} (with the package installed), or module:attribute",
        )
    return executor.configured(settings.executor_config) if settings.executor_config else executor


def make_alerts(alerts: MailAlerts) -> dg.SensorDefinition:
    """Make Dagster's own sensor that mails failed runs.

    Raises InputError if the variable with the password of the mail server is missing.
    """
    password = os.environ.get(alerts.password_env)
    if password is None:
        raise InputError.of(
            "missing_variable",
            "the password of the mail server is not set",
            field="alerts.password_env",
            accepted=f"set the variable {alerts.password_env}",
        )
    return dg.make_email_on_run_failure_sensor(
        email_from=alerts.sender,
        email_password=password,
        email_to=alerts.to,
        email_body_fn=describe_failure,
        smtp_host=alerts.host,
        smtp_type="STARTTLS",
        smtp_user=alerts.user,
        name="alert_run_failed",
        default_status=dg.DefaultSensorStatus.RUNNING,
    )


def describe_failure(context: dg.RunFailureSensorContext) -> str:
    """Name the gold set, the run and its failed steps, as HTML.

    Only failures of rag_eval are quoted, because their texts are masked. They name failed gates.
    """
    run = context.dagster_run
    lines = [f"gold set {run.tags.get('dagster/partition', '')}, run {run.run_id}"]
    for event in context.get_step_failure_events()[:MAX_FAILED_STEPS]:
        failure = event.step_failure_data.user_failure_data
        reason = failure.description if failure else None
        lines.append(f"{event.step_key}: {reason or 'Dagster shows the error'}")
    return "<br>".join(html.escape(quoted(line, 600)) for line in lines)
