"""Dagster's own stores: make them ready, and record runs of the command line in their lineage.

The home is made under a lock, because several processes that open a fresh SQLite home at the same
time corrupt it permanently.
"""

import fcntl
import sys
from importlib import metadata
from pathlib import Path

import dagster as dg

from rag_eval.defs.assets import REPORT, asset_key, describe, gate_results, to_metadata
from rag_eval.gates.verdict import check_names
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.report_stages import MetricsReport
from rag_eval.pipeline.runner import Node
from rag_eval.pipeline.stages import open_runner
from rag_eval.storage.hashing import code_version
from rag_eval.storage.home import write_text

# ---- The Dagster home

CONFIG_FILE = "dagster.yaml"
OURS = "# Written by rag_eval. Remove this line to keep your own changes; else it is renewed."
CONFIG = f"""{OURS}
telemetry:
  enabled: false
nux:
  enabled: false
# embedded Chroma and SQLite take one writer: one run at a time
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config:
    max_concurrent_runs: 1
# a run whose process was killed must not hold the queue for ever
run_monitoring:
  enabled: true
  poll_interval_seconds: 30
# the tags of the job say how often such a run is tried again
run_retries:
  enabled: true
"""
_MARK = ".rag_eval_initialised"


def _mark() -> str:
    return f"dagster {metadata.version('dagster')}\n"


def is_prepared(dagster_home: Path) -> bool:
    """Tell whether the home is ready. The test reads two small files."""
    config, mark = dagster_home / CONFIG_FILE, dagster_home / _MARK
    if not (config.is_file() and mark.is_file() and mark.read_text(encoding="utf-8") == _mark()):
        return False
    text = config.read_text(encoding="utf-8")
    return not text.startswith(OURS) or text == CONFIG


def prepare_home(dagster_home: Path) -> None:
    """Make the Dagster home ready for any number of processes.

    A `dagster.yaml` that rag_eval did not write stays unchanged, such as a team's with PostgreSQL.
    A repeated call costs two reads.
    """
    if is_prepared(dagster_home):
        return
    dagster_home.mkdir(parents=True, exist_ok=True)
    with (dagster_home / ".rag_eval_lock").open("a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_prepared(dagster_home):
            return
        config = dagster_home / CONFIG_FILE
        if not config.is_file() or config.read_text(encoding="utf-8").startswith(OURS):
            write_text(config, CONFIG)
        with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
            instance.get_runs(limit=1)  # each call opens a store, and opening makes its SQLite file
            instance.all_asset_keys()
            instance.all_instigator_state()
        write_text(dagster_home / _MARK, _mark())


# ---- Lineage of runs from the command line: the materializations of the job

DATA_VERSION, CODE_VERSION = "dagster/data_version", "dagster/code_version"


def record_lineage(dagster_home: Path, evaluation: Evaluation) -> int:
    """Record the assets of a finished evaluation and the results of its gates in Dagster.

    Checks carry no partition: Dagster 1.13 refuses a second evaluation of a check in one partition
    that belongs to no Dagster run. Returns the number of materializations.
    """
    prepare_home(dagster_home)
    runner, count, name = open_runner(evaluation), 0, evaluation.config.name
    prefix = evaluation.settings.asset_key_prefix
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        for outcome in runner.made.values():
            if outcome.stage.failure(outcome.result):
                continue  # the job does not materialize a failed stage either
            shown = {**describe(runner, outcome), "started_from": "command line"}
            instance.report_runless_asset_event(
                dg.AssetMaterialization(
                    asset_key=asset_key(outcome.node, prefix),
                    partition=name,
                    metadata=to_metadata(shown),
                    tags={DATA_VERSION: outcome.result.id, CODE_VERSION: code_version()},
                )
            )
            count += 1
        key, gates = asset_key(Node(REPORT), prefix), check_names(evaluation.config)
        for check in gate_results(runner.get(MetricsReport).report, gates, key):
            instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(
                    asset_key=key,
                    check_name=str(check.check_name),
                    passed=check.passed,
                    severity=check.severity,
                    description=check.description,
                    metadata={**check.metadata, "gold_set": name},
                )
            )
    return count


if __name__ == "__main__":  # `make ui`, before Dagster's processes open the home side by side
    prepare_home(Path(sys.argv[1]))
