"""Five processes record at once and two are killed; no acknowledged outcome is lost or doubled."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.outcomes import OutcomeStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WRITERS, EACH, AT_ONCE, SHARED, KILLED = 5, 400, 10, 80, 2

_WRITER = f"""
import datetime as dt, sys
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.outcomes import OutcomeStore, new_outcome
who, number_of, at = sys.argv[2], int(sys.argv[3]), dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
def made(number):
    # every writer records the first ones
    query = f"shared {{number}}" if number < {SHARED} else f"{{who}} {{number}}"
    return new_outcome(
        claim_id=query.replace(" ", "-"), query_id=query, group_id=query, strategy="bm25",
        strategy_fingerprint="f", target="miss_any", k=10, missed=number % 5 == 0,
        gold_source="qrels", inclusion_probability=1.0, signals={{"s": number / 7}}, at=at)
print("ready", flush=True)
sys.stdin.readline()
store = OutcomeStore(SqlStore(sys.argv[1]))
for start in range(0, number_of, {AT_ONCE}):
    recorded = store.record([made(number) for number in range(start, start + {AT_ONCE})])
    print(*recorded.added, *("=" + name for name in recorded.already_there), flush=True)
"""


def test_every_acknowledged_outcome_is_there_and_none_twice(place, project_root, tmp_path):
    logs = [tmp_path / f"{number}.log" for number in range(WRITERS)]
    streams = [log.open("wb") for log in logs]
    env = {**os.environ, "PYTHONPATH": str(project_root)}
    # The writers to be killed never end by themselves, because a lock is not fair.
    # Such a writer could otherwise finish before another has begun.
    ends = [10**6 if number < KILLED else EACH for number in range(WRITERS)]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, place, f"w{number}", str(ends[number])],
            stdin=subprocess.PIPE,
            stdout=stream,
            env=env,
        )
        for number, stream in enumerate(streams)
    ]

    def acknowledged(log) -> list[str]:
        # a line that was cut short acknowledges nothing
        whole, _, _ = log.read_bytes().decode().rpartition("\n")
        return [name for line in whole.splitlines()[1:] for name in line.split()]

    try:
        while not all(log.stat().st_size for log in logs):
            time.sleep(0.05)
        for writer in writers:
            writer.stdin.write(b"\n")
            writer.stdin.flush()
        for number in range(KILLED):  # kill each at another moment of its work
            while len(acknowledged(logs[number])) < EACH * (1 + number) // 4:
                assert writers[number].poll() is None, "ended before it was to be killed"
                time.sleep(0.005)
            writers[number].send_signal(signal.SIGKILL)
        statuses = [writer.wait() for writer in writers]
    finally:
        for writer, stream in zip(writers, streams, strict=True):
            writer.kill()
            writer.wait()
            writer.stdin.close()
            stream.close()
    assert statuses == [-signal.SIGKILL] * KILLED + [0] * (WRITERS - KILLED)

    frame = OutcomeStore(SqlStore(place)).history()
    kept = Counter(frame["outcome_id"])
    said = [name for log in logs for name in acknowledged(log)]
    assert max(kept.values()) == 1
    assert not {name.removeprefix("=") for name in said} - kept.keys()
    added = Counter(name for name in said if not name.startswith("="))
    assert max(added.values()) == 1, "two writers were told that they added the same outcome"
    for number in range(KILLED, WRITERS):
        assert len(acknowledged(logs[number])) == EACH
    per_query = frame["query_id"].str.split().str[0].value_counts()
    assert per_query["shared"] == SHARED
    assert all(per_query[f"w{number}"] == EACH - SHARED for number in range(KILLED, WRITERS))
    assert frame.duplicated(["claim_id", "target", "k", "gold_source", "supersedes"]).sum() == 0
    # a killed writer leaves at most its current batch without an acknowledgement
    assert len(kept) - len(added) <= KILLED * AT_ONCE
    assert (frame["query_id"] == frame["claim_id"].str.replace("-", " ")).all()
