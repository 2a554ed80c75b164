"""Skip tests whose requirement the machine lacks, or fail them if RAG_EVAL_REQUIRE names it.

The output of a run states the number of skipped tests. RAG_EVAL_MAX_SKIPS is its upper bound.
"""

import importlib.util
import os
from types import ModuleType
from typing import NoReturn

import pytest

REQUIRED = frozenset(filter(None, os.environ.get("RAG_EVAL_REQUIRE", "").split(",")))
"""Names of `KNOWN`, read before a test changes the environment."""
MOST_SKIPS = int(os.environ.get("RAG_EVAL_MAX_SKIPS") or -1)
KNOWN = frozenset({"browser", "data", "minilm", "postgresql", "team"})
RUN_ELSEWHERE = "make test-integrations"
"""Tests whose skip names this command run in an environment of their own."""

if REQUIRED - KNOWN:
    raise ValueError(f"RAG_EVAL_REQUIRE names {sorted(REQUIRED - KNOWN)}, not {sorted(KNOWN)}")


def report_missing(name: str, reason: str) -> NoReturn:
    """Skip the test, or fail it when RAG_EVAL_REQUIRE names the missing part."""
    assert name in KNOWN
    if name in REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


def need_package(name: str) -> ModuleType:
    """Import a package of a team's deployment; skip the test without it."""
    if importlib.util.find_spec(name.split(".", maxsplit=1)[0]) is None:
        report_missing("team", f"{name} is not installed: make install-team")
    return importlib.import_module(name)


def bound_skips(session: pytest.Session) -> None:
    """Print how many tests skipped, and fail a run in which too many did."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None:  # a worker process: only the main process counts
        return
    skipped = [
        report
        for report in terminal.stats.get("skipped", [])
        if RUN_ELSEWHERE not in str(report.longrepr)
    ]
    terminal.write_line(f"\n{len(skipped)} tests skipped, without those of `{RUN_ELSEWHERE}`")
    if 0 <= MOST_SKIPS < len(skipped):
        terminal.write_line(f"ERROR: at most {MOST_SKIPS} may skip (RAG_EVAL_MAX_SKIPS)")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
