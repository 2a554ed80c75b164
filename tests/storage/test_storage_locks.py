"""The right to write: waiting for it, losing it, and that it ends with its holder."""

import json
import os
import re
import subprocess
import sys

import postgres_server
import pytest

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.storage import locks
from rag_eval.storage.locks import OTHERS_LEFTOVERS_S, WriteLock

HOLDER = """
import sys
from rag_eval.core.settings import Settings
from rag_eval.storage.locks import WriteLock
with WriteLock(Settings.model_validate_json(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""
SERVERS = {"chroma_url": "http://127.0.0.1:1", "tracking_uri": "http://127.0.0.1:1"}


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("RAG_EVAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(locks, "POLL_S", 0.02)


@pytest.fixture
def local(tmp_path):
    return {"home": str(tmp_path / "home"), "wait_s": 0}


@pytest.fixture
def shared(tmp_path, postgres):
    address = postgres_server.new_database(postgres)
    return {"home": str(tmp_path / "home"), "wait_s": 0, "database_url": address, **SERVERS}


@pytest.fixture(params=["local", "shared"])
def either(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def hold(project_root):
    """Start a process that holds a lock until it is killed or its input ends."""
    started = []

    def start(options, gold_set="tiny"):
        text = json.dumps(options)
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, text, gold_set],
            env={**os.environ, "PYTHONPATH": str(project_root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(holder)
        assert holder.stdout.readline() == "held\n"
        return holder

    yield start
    for holder in started:
        holder.kill()
        with holder:
            pass


def lock_of(options, gold_set="tiny", **more):
    return WriteLock(Settings(**{**options, **more}), gold_set)


def test_the_holder_is_named_and_its_death_frees_the_lock(either, hold):
    holder = hold(either)
    with pytest.raises(InputError) as caught, lock_of(either):
        pass
    problem = caught.value.problems[0]
    assert (problem.code, problem.file) == ("home_busy", either["home"])
    assert re.fullmatch(rf"held by process {holder.pid} on \S+ for tiny", problem.found)
    holder.kill()
    with lock_of(either, wait_s=60):
        pass


def test_a_second_run_waits_for_the_first_and_says_so(either, hold, monkeypatch):
    monkeypatch.setattr(locks, "SAY_EVERY_S", 0.1)
    holder, lines = hold(either), []

    def say(line):
        lines.append(line)
        if len(lines) == 3:
            holder.stdin.close()

    with WriteLock(Settings(**{**either, "wait_s": 60}), "tiny", say):
        assert len(lines) >= 3
    assert all(f"waiting for process {holder.pid} on" in line for line in lines)
    assert "0 s so far, at most 60 s more" in lines[0]


def test_a_person_may_stop_the_waiting(either, hold):
    hold(either)

    def interrupt(_):
        raise KeyboardInterrupt

    lock = WriteLock(Settings(**{**either, "wait_s": 60}), "tiny", interrupt)
    with pytest.raises(KeyboardInterrupt), lock:
        pass
    with pytest.raises(InputError, match="home_busy"), lock_of(either):
        pass


def test_local_stores_take_one_run_of_any_gold_set(local):
    with lock_of(local) as lock:
        assert lock.leftover_age_s == 0
        with pytest.raises(InputError, match="home_busy"), lock_of(local, "other"):
            pass
        lock.check()


@pytest.mark.parametrize("left", ["chroma_url", "tracking_uri", "database_url"])
def test_one_local_store_makes_runs_take_turns(shared, left):
    options = {name: value for name, value in shared.items() if name != left}
    with (
        lock_of(options),
        pytest.raises(InputError, match="home_busy"),
        lock_of(options, "other"),
    ):
        pass


def test_two_gold_sets_of_a_shared_home_are_written_at_once(shared, tmp_path):
    with lock_of(shared) as lock, lock_of(shared, "other"):
        assert lock.leftover_age_s == OTHERS_LEFTOVERS_S
        with pytest.raises(InputError, match="home_busy"), lock_of(shared):
            pass
        with lock_of(shared, home=tmp_path / "another home"):
            pass


def test_a_clean_up_and_runs_exclude_each_other(shared):
    with lock_of(shared), lock_of(shared, "other"):
        with pytest.raises(InputError) as caught, lock_of(shared, ""):
            pass
        assert re.search(r"for other, process \d+ on \S+ for tiny", caught.value.problems[0].found)
    with (
        lock_of(shared, ""),
        pytest.raises(InputError, match="the whole home"),
        lock_of(shared),
    ):
        pass


def test_workers_with_embedded_chroma_share_an_object_store(shared, tmp_path):
    options = {name: value for name, value in shared.items() if name != "chroma_url"}
    options |= {"home": "s3://bucket/home", "scratch": tmp_path / "one"}
    with lock_of(options):
        for scratch, gold_set in (("another", "tiny"), ("one", "other")):
            with (
                pytest.raises(InputError, match=r"home_busy.*for tiny"),
                lock_of(options, gold_set, scratch=tmp_path / scratch),
            ):
                pass
        with lock_of(options, "other", scratch=tmp_path / "another"):
            pass


def cut_connections(options):
    postgres_server.execute(
        options["database_url"],
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


def test_a_lost_lock_is_taken_again_if_nobody_had_it_meanwhile(shared, caplog):
    with lock_of(shared) as lock:
        lock.check()
        assert not caplog.records
        cut_connections(shared)
        lock.check()
        assert "taken again" in caplog.text
        with pytest.raises(InputError, match="home_busy"), lock_of(shared):
            pass
    with lock_of(shared):
        pass


@pytest.mark.parametrize("still_held", [True, False])
def test_a_run_whose_lock_another_run_had_publishes_nothing(shared, still_held):
    with lock_of(shared) as lock:
        cut_connections(shared)
        other = lock_of(shared)
        with other:
            if still_held:
                with pytest.raises(InputError, match="lock_lost"):
                    lock.check()
        with pytest.raises(InputError, match="lock_lost"):
            lock.check()


def test_a_database_that_is_gone_gives_no_lock(shared):
    gone = re.sub(r":\d+/", ":1/", shared["database_url"])
    with pytest.raises(InputError, match="database_failed"), lock_of(shared, database_url=gone):
        pass
