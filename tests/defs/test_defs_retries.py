"""A stage is tried again while a store does not answer, and not after bad input."""

import dataclasses

import dagster as dg
import postgres_server
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pydantic import SecretStr

from rag_eval.defs import assets

CORPUS, *ADMITTED = map(
    dg.AssetKey.from_user_string,
    (
        *("corpus/corpus_snapshot", "corpus/corpus_chunks", "trust/evidence_trust"),
        "corpus/admitted_chunks",
    ),
)
GOLD = [CORPUS, *ADMITTED, dg.AssetKey(["gold", "gold_variants"])]
FAILURES = 2


@dataclasses.dataclass
class Outage:
    """Counts down the requests that a store leaves without an answer."""

    left: int = FAILURES

    def lasts(self) -> bool:
        self.left -= 1
        return self.left >= 0


@pytest.fixture(autouse=True)
def no_delay(monkeypatch):
    monkeypatch.setattr(assets, "RETRIES", dg.RetryPolicy(max_retries=FAILURES))


@pytest.fixture
def team(project, postgres, tmp_path, monkeypatch):
    """Give the project a home in an object store, and a database on a real server."""
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    database = postgres_server.new_database(postgres)
    update = {"home": "memory://home", "scratch": tmp_path / "scratch"}
    update |= {"database_url": SecretStr(database)}
    project.settings = project.settings.model_copy(update=update)
    return project


def restarts(result: dg.ExecuteInProcessResult) -> list[str]:
    return [event.step_key for event in result.all_events if event.is_step_restarted]


@pytest.fixture
def break_store(monkeypatch):
    """Return a function that lets the writes of `gold_variants` fail while an outage lasts."""
    write = MemoryFileSystem.pipe_file

    def start(outage):
        def pipe_file(store, path, *given, **how):
            if "gold_variants" in path and outage.lasts():
                raise ConnectionError("no answer")
            return write(store, path, *given, **how)

        monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)

    return start


def test_an_object_store_that_fails_twice_costs_no_night(team, instance, break_store):
    break_store(Outage())
    ran = team.run(instance, GOLD)
    assert ran.success
    assert restarts(ran.result) == ["gold__gold_variants"] * FAILURES
    assert ran.checks["gold_lint"].passed


def test_an_object_store_that_stays_away_is_named_and_fails_no_check(team, instance, break_store):
    break_store(Outage(left=100))
    ran = team.run(instance, GOLD)
    assert not ran.success
    assert restarts(ran.result) == ["gold__gold_variants"] * FAILURES
    assert "home_unreachable" in ran.failure("gold__gold_variants").description
    assert "gold_lint" not in ran.checks


def test_bad_input_is_not_tried_again(team, instance):
    with (team.folder / "queries.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"query_id": "broken"}\n')
    ran = team.run(instance, GOLD)
    assert not ran.success
    assert restarts(ran.result) == []
    assert not ran.checks["gold_lint"].passed
