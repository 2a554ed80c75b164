"""Prepare the Dagster home: write its `dagster.yaml` and make its SQLite stores.

The home is made under a lock, because several processes that open a fresh SQLite home at the same
time corrupt it permanently.
"""

import fcntl
from importlib import metadata
from pathlib import Path

from rag_eval.storage.artifacts import write_text

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
        import dagster as dg

        with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
            instance.get_runs(limit=1)  # each call opens a store, and opening makes its SQLite file
            instance.all_asset_keys()
            instance.all_instigator_state()
        write_text(dagster_home / _MARK, _mark())
