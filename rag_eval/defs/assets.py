"""Assets made from the rows of the graph: their keys, dependencies, options and steps."""

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import dagster as dg

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.defs import checks
from rag_eval.defs.metadata import (
    Metadata,
    Shown,
    clear_failures,
    column_schema,
    summarize,
    to_metadata,
)
from rag_eval.defs.resources import Evaluations
from rag_eval.pipeline.corpus import CorpusSnapshot, GoldVariants
from rag_eval.pipeline.runner import Made, Node, Runner, Stage, nodes_behind
from rag_eval.pipeline.stages import STAGES, open_runner
from rag_eval.storage.hashing import code_version
from rag_eval.storage.locks import is_shared

OWNER: Final = "team:retrieval"
REPORT: Final = "retrieval_metrics_report"
NOT_MATERIALIZED: Final = {"__source_asset_observation__": True}
"""Metadata of an output for which Dagster records no materialization.

A step without any output would skip the steps after it, which do not need a strategy that the gold
set lacks. Dagster 1.13 has no public way to say so."""
FORMATS: Final = {".parquet": "parquet", ".npy": "numpy", ".json": "json"}
SERVICES: Final = ("chat", "sources", "mlflow", "vectors", "embeddings")
"""Stores that may be servers. A stage belongs to the pool of the first of its services."""
RETRIES: Final = dg.RetryPolicy(
    max_retries=2, delay=15, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""Retries of a stage that talks to a service, after the retries of each request. Every stage does
where workers share the home."""


def asset_key(node: Node, prefix: str = "") -> dg.AssetKey:
    """Return the asset key of a stage, or of a stage of one strategy.

    The key of a stage `run` is `retrieval` and the name of the strategy. `prefix` is the setting
    `asset_key_prefix`.
    """
    stage = next(stage for stage in STAGES if stage.name == node.name)
    name = node.name if node.name != "run" else ""
    return dg.AssetKey([part for part in (prefix, stage.group, name, node.strategy) if part])


def _inputs(stage: Stage, strategy: str, strategies: Sequence[str]) -> list[Node]:
    names = (*stage.inputs, *stage.after)
    groups = (nodes_behind(name, strategy, STAGES, strategies) for name in names)
    return [node for group in groups for node in group]


def _kinds(stage: Stage) -> set[str]:
    made_of = {FORMATS[part.ending] for part in stage.result.parts.values() if part.ending}
    return set(stage.kinds) or made_of & {"parquet"} or made_of


def _describe_spec(stage: Stage) -> Metadata:
    """Show the columns of a stage's frame, and the stores that it reads or writes."""
    columns = {} if stage.columns is None else column_schema(stage.columns)
    stores = {"stores": ", ".join(stage.stores)} if stage.stores else {}
    return {**columns, **stores}


def service_of(stage: Stage) -> str | None:
    """Return the service that a stage talks to, if any."""
    return next((name for name in SERVICES if name in stage.stores), None)


def freshness(settings: Settings) -> dg.FreshnessPolicy:
    """Return the policy of every asset: half a day may pass beyond the time between two nights.

    The time is that after a Friday, so that a schedule of weekdays is not late on Mondays.
    """
    nights = dg.TimeWindowPartitionsDefinition(
        start=dt.datetime(2024, 1, 5, tzinfo=dt.UTC),  # a Friday
        fmt="%Y-%m-%dT%H:%M",
        cron_schedule=settings.schedule,
        timezone=settings.timezone,
    ).get_first_partition_window()
    between = dt.timedelta(days=1) if nights is None else nights.end - nights.start
    return dg.FreshnessPolicy.time_window(fail_window=between + dt.timedelta(hours=12))


def op_name(key: dg.AssetKey) -> str:
    """Return the name of an asset's step: letters, digits and underscores."""
    return re.sub(r"[^A-Za-z0-9_]", "_", "__".join(key.path))


def make_assets(
    strategies: Sequence[str], partitions: dg.PartitionsDefinition[str], settings: Settings
) -> list[dg.AssetsDefinition]:
    """Make an asset for each stage of the graph, or for each strategy if the stage needs one."""
    policy, version, names = freshness(settings), code_version(), set[str]()
    shares, prefix = is_shared(settings), settings.asset_key_prefix
    assets = []
    for place, stage in enumerate(STAGES):
        for node in stage.nodes(strategies):
            key = asset_key(node, prefix)
            inputs = _inputs(stage, node.strategy, strategies)
            spec = dg.AssetSpec(
                key=key,
                deps=[asset_key(behind, prefix) for behind in inputs],
                group_name=stage.group,
                kinds=_kinds(stage),
                owners=[OWNER],
                description=stage.title,
                code_version=version,
                partitions_def=partitions,
                metadata=_describe_spec(stage),
                skippable=True,
                freshness_policy=policy,
            )
            name = op_name(key)
            while name in names:  # strategies `a-b` and `a_b` would give equal step names
                name += "_"
            names.add(name)
            retries = RETRIES if shares or service_of(stage) else None
            assets.append(_make_asset(node, spec, name, -place, retries))
    return assets


def _make_asset(
    node: Node, spec: dg.AssetSpec, name: str, priority: int, retries: dg.RetryPolicy | None
) -> dg.AssetsDefinition:
    guard = checks.OF_STAGES.get(node.name)
    service = service_of(next(stage for stage in STAGES if stage.name == node.name))

    # The priority follows the graph, so that lint finds errors before the costly embedding.
    @dg.multi_asset(
        name=name,
        specs=[spec],
        check_specs=[] if guard is None else [guard.spec(spec.key)],
        op_tags={"dagster/priority": str(priority)},
        retry_policy=retries,
        pool=f"rag_eval_{service}" if service else None,
    )
    def step(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
        with clear_failures():
            runner = open_runner(evaluations.open(context.partition_key))
            if node not in runner.nodes():
                part = f"strategy {node.strategy}" if node.strategy else node.name
                context.log.info("%s has no %s", context.partition_key, part)
                results = [] if guard is None else [guard.unconfigured(spec.key)]
                yield dg.MaterializeResult(metadata=NOT_MATERIALIZED, check_results=results)
                return
            try:
                outcome = runner.one(node)
            except InputError as error:
                if guard is None or error.is_outage:  # no check is about a store
                    raise
                judged_error = guard.on_error(runner, error, spec.key)
                if judged_error is None:
                    raise
                yield judged_error
                return
            shown = describe(runner, outcome)
            message = outcome.stage.failure(outcome.result)
            if message:
                del runner.made[node]  # a retry must not find the failed result
                raise dg.Failure(
                    message, metadata=to_metadata(shown), allow_retries=service is not None
                )
            results = [] if guard is None else [guard.judge(runner, shown, spec.key)]
            yield dg.MaterializeResult(
                metadata=to_metadata(shown),
                data_version=dg.DataVersion(outcome.result.id),
                check_results=results,
            )

    return step


def describe(runner: Runner, outcome: Made) -> Shown:
    """Describe a stored result for people, with its corpus and gold set."""
    shown = {
        "reused": outcome.reused,
        **summarize(outcome.result.describe()),
        "artifact": outcome.result.artifact.address,
    }
    below = runner.ancestors(outcome.node)
    if Node("corpus_snapshot") in below:
        shown["rev"] = runner.get(CorpusSnapshot).about.corpus_rev
    if Node("gold_variants") in below:
        shown["gold_hash"] = runner.get(GoldVariants).about.hash
    return shown
