"""Lineage of runs from the command line: the materializations of the job, without a Dagster run."""

from pathlib import Path

import dagster as dg

from rag_eval.defs.assets import REPORT, asset_key, describe
from rag_eval.defs.checks import gate_results
from rag_eval.defs.instance import prepare_home
from rag_eval.defs.metadata import to_metadata
from rag_eval.gates.verdict import check_names
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.report import MetricsReport
from rag_eval.pipeline.runner import Node
from rag_eval.storage.hashing import code_version

DATA_VERSION, CODE_VERSION = "dagster/data_version", "dagster/code_version"


def record_lineage(dagster_home: Path, evaluation: Evaluation) -> int:
    """Record the assets of a finished evaluation and the results of its gates in Dagster.

    Checks carry no partition: Dagster 1.13 refuses a second evaluation of a check in one partition
    that belongs to no Dagster run. Returns the number of materializations.
    """
    prepare_home(dagster_home)
    runner, count, name = evaluation.runner, 0, evaluation.config.name
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        for made in runner.made.values():
            if made.stage.failure(made.result):
                continue  # the job does not materialize a failed stage either
            shown = {**describe(runner, made), "started_from": "command line"}
            instance.report_runless_asset_event(
                dg.AssetMaterialization(
                    asset_key=asset_key(made.node),
                    partition=name,
                    metadata=to_metadata(shown),
                    tags={DATA_VERSION: made.result.id, CODE_VERSION: code_version()},
                )
            )
            count += 1
        key, gates = asset_key(Node(REPORT)), check_names(evaluation.config)
        for found in gate_results(runner.get(MetricsReport).report, gates, key):
            instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(
                    asset_key=key,
                    check_name=str(found.check_name),
                    passed=found.passed,
                    severity=found.severity,
                    description=found.description,
                    metadata={**found.metadata, "gold_set": name},
                )
            )
    return count
