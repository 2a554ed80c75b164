"""Kill processes that write to a team's homes, or let many of them write at once, and count losses.

    soak.py --kills 200
    soak.py --minutes 10 --processes 8

The servers are those of `deploy/team.py`: PostgreSQL, S3 and MLflow. Two homes with two gold sets
of 60 questions each share them. A process repeats runs, calibrations, imports of outcomes, or
feedback of readers, through the functions behind the commands and the viewer. It acknowledges a
result with a line of a file, after the function has returned. `--kills` ends processes by SIGKILL
at random moments, two at a time; one of its homes is a folder, the other is in S3. `--minutes`
mixes the operations in every process. Each process has a folder of its own there, as a machine of
its own would have, and one more process reads all reports.
At the end every acknowledged result is looked up. Prints a JSON line; the exit status is 1 after a
loss, a doubled row, a torn report or an error.
"""

import argparse
import collections
import dataclasses
import datetime as dt
import itertools
import json
import math
import multiprocessing
import random
import signal
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

from starlette.exceptions import HTTPException
from timing import ROOT, emit

sys.path.append(str(ROOT / "deploy"))

from team import BUCKET, Team

from rag_eval.citations.traces import RAG_TRACES
from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.core.types import Feedback
from rag_eval.pipeline.calibration_stores import read_calibrator
from rag_eval.pipeline.evaluation import Evaluation, Lines, open_gold_set
from rag_eval.pipeline.miss_rates import calibrate_gold_set
from rag_eval.pipeline.signals import RetrievalSignals
from rag_eval.pipeline.stages import evaluate_all
from rag_eval.reporting.metrics_report import REPORT_FILE
from rag_eval.reporting.verdicts import whole_report
from rag_eval.storage.artifacts import ArtifactStore
from rag_eval.storage.home import Home, open_home
from rag_eval.storage.sql import open_store
from rag_eval.uncertainty.outcome_files import read_outcomes
from rag_eval.uncertainty.outcomes import OutcomeStore
from rag_eval.uncertainty.signals import SIGNALS
from rag_eval.viewer.app import FeedbackDesk, FeedbackRequest, find_run

GOLD_SETS = ("valves", "pumps")
N_QUESTIONS, MISSED_OF, N_LINES = 60, 3, 10
SHORT_S = 3.0
"""Longest life in seconds of a killed process whose operation is fast."""
DIGITS = str.maketrans("0123456789", "abcdefghij")
STRATEGY = "bm25"
PRELOADED = ["__main__", "mlflow", "s3fs", "psycopg", "bm25s"]
"""Modules that every process finds imported, so that few kills strike the imports."""
CONFIG = """name: {name}
version: 1
corpus: {{loader: folder, path: corpus, chunker: {{kind: markdown, max_tokens: 64}}}}
k: [1, 5, 10]
depth: 20
seeds: [13]
strategies: [{{name: bm25, kind: bm25}}]
answers: {{mode: deterministic, top_k: 5}}
gates: {{required: [], advisory: [acceptance], min_queries: 50}}
"""

Ack = dict[str, Any]
"""A line of a process: `kind` (outcome, run, calibrator, read, wait), `id`, and more."""


def write_gold_set(folder: Path, name: str) -> None:
    """Write a gold set whose every third question has no word of its document."""
    (folder / "corpus").mkdir(parents=True)
    (folder / "gold_set.yaml").write_text(CONFIG.format(name=name))
    queries, qrels = [], ["query-id\tcorpus-id\tscore"]
    for number in range(N_QUESTIONS):
        word, is_lost = f"quon{number:02d}zu".translate(DIGITS), number % MISSED_OF == 0
        (folder / "corpus" / f"d{number:02d}.md").write_text(
            f"# Notes {word}\n\nThe entry {word} was written in ink. It is read once a year.\n"
            if is_lost
            else f"# Part {word}\n\nThe {name} {word} are beside tank {number}, under a key.\n"
        )
        text = f"which {name} have tank {number + 1}" if is_lost else f"where is {word} found"
        queries.append({"query_id": f"q{number:02d}", "text": text, "answerable": True})
        qrels.append(f"q{number:02d}\td{number:02d}.md\t1")
    (folder / "queries.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in queries))
    (folder / "qrels.tsv").write_text("\n".join(qrels) + "\n")


# ---- The operations of a process


@dataclasses.dataclass(frozen=True)
class Place:
    """A gold set in a home, as one machine sees it; `folder` holds its reports and scratch files.

    Readers give feedback on the run `run_id`.
    """

    home: str
    folder: Path
    gold_sets: Path
    name: str
    run_id: str = ""

    @property
    def settings(self) -> Settings:
        """Settings of the machine; the addresses of the servers come from the environment."""
        return Settings(
            home=self.home,
            scratch=self.folder / "scratch",
            reports=self.folder / "reports",
            gold_sets=self.gold_sets,
            latency_queries=1,
        )

    def open(self, say: Callable[[str], object] = lambda _: None) -> Evaluation:
        """Open the gold set; `say` gets the lines of progress and of waiting."""
        return open_gold_set(self.gold_sets / self.name, self.settings, progress=Lines(say))

    def reports(self) -> Iterator[bytes]:
        """Read the report in the machine's folder, if it has made one, and the report in S3."""
        path = self.folder / "reports" / self.name / REPORT_FILE
        if path.is_file():
            yield path.read_bytes()
        home = Home(self.home, self.folder / "scratch")
        if home.is_remote:
            yield home.read(f"reports/{self.name}/{REPORT_FILE}")


class Worker:
    """The operations of a process at a place. Each yields what is acknowledged."""

    def __init__(self, place: Place, chance: random.Random, note: Callable[[Ack], None]) -> None:
        self.place, self.chance, self._note = place, chance, note
        self.store = OutcomeStore(open_store(place.settings))

    def _say(self, line: str) -> None:
        if line.startswith("waiting for"):
            self._note({"kind": "wait"})

    def run(self) -> Iterator[Ack]:
        """Evaluate the gold set."""
        (done,) = evaluate_all([self.place.open(self._say)], self.place.settings)
        if done.mlflow_error or done.trace_error:
            raise RuntimeError(f"{done.mlflow_error} {done.trace_error}")
        yield {"kind": "run", "id": done.report.run_id, "content_hash": done.report.content_hash}

    def _import(self, lines: list[dict[str, object]]) -> Iterator[Ack]:
        file = self.place.folder / f"{uuid.uuid4().hex}.jsonl"
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        outcomes, _ = read_outcomes(file, self.store.sql, now=dt.datetime.now(dt.UTC))
        for name in self.store.record(outcomes).added:
            yield {"kind": "outcome", "id": name}
        file.unlink()

    def _line(self, fingerprint: str) -> dict[str, object]:
        line = {"query": uuid.uuid4().hex, "strategy": STRATEGY, "gold_source": "human"}
        missed = self.chance.random() < 1 / MISSED_OF
        more = {"strategy_fingerprint": fingerprint, "missed": missed, "gold_strategies": []}
        return {**line, **more}

    def import_file(self) -> Iterator[Ack]:
        """Import a file of judgements of a strategy that runs elsewhere."""
        yield from self._import([self._line("elsewhere") for _ in range(N_LINES)])

    def calibrate(self) -> Iterator[Ack]:
        """Import one judgement of the strategy, and calibrate on it and all before."""
        evaluation = self.place.open(self._say)
        signals = evaluation.runner.get(RetrievalSignals)
        row = signals.signals_of(STRATEGY).sample(random_state=self.chance.getrandbits(31)).iloc[0]
        line = self._line(signals.about[STRATEGY].fingerprint)
        known = {name: float(row[name]) for name in SIGNALS if row[name] == row[name]}
        judged = {"gold_source": "qrels", "inclusion_probability": 1.0, "signals": known}
        yield from self._import([{**line, **judged}])
        name = calibrate_gold_set(self.place.open(self._say)).strategies[STRATEGY].calibrator
        if name is not None:
            yield {"kind": "calibrator", "id": name}

    def feedback(self) -> Iterator[Ack]:
        """Judge a retrieval of a run as a reader does."""
        request = FeedbackRequest(
            run_id=self.place.run_id,
            query_id=f"q{self.chance.randrange(N_QUESTIONS):02d}",
            paraphrase_id="original",
            seed=13,
            strategy=STRATEGY,
            feedback=self.chance.choice(get_args(Feedback)),
            note=uuid.uuid4().hex,
        )
        taken = FeedbackDesk(self.place.settings).take(request)
        yield {"kind": "outcome", "id": taken["outcome_id"]}

    def read(self) -> Iterator[Ack]:
        """Read the reports that this and other machines write."""
        faults = faults_of_reports(self.place)
        yield from ({"kind": "torn", "id": fault} for fault in faults)
        yield {"kind": "read", "id": self.place.name}


def faults_of_reports(place: Place) -> list[str]:
    """Read each report; return what breaks its JSON, its schema or its content_hash."""
    faults = []
    for data in place.reports():
        try:
            whole_report(json.loads(data), place.folder)
        except (ValueError, InputError) as error:
            faults.append(f"{place.home} {place.name}: {error}")
    return faults


WRITES: dict[str, Callable[[Worker], Iterator[Ack]]] = {
    "run": Worker.run,
    "calibrate": Worker.calibrate,
    "import": Worker.import_file,
    "feedback": Worker.feedback,
}
OPERATIONS = {**WRITES, "read": Worker.read}


def work(operations: list[str], places: list[Place], log: Path, seed: str, until: float) -> None:
    """Repeat operations until the time is up; write a line for each acknowledged result."""
    chance = random.Random(seed)
    with log.open("a", buffering=1, encoding="utf-8") as stream:

        def note(ack: Ack) -> None:
            stream.write(f"{json.dumps(ack)}\n")

        note({"kind": "ready"})
        while time.time() < until:
            operation, place = chance.choice(operations), chance.choice(places)
            try:
                for ack in OPERATIONS[operation](Worker(place, chance, note)):
                    note({**ack, "home": place.home, "of": operation})
            except Exception as error:  # noqa: BLE001 - every error counts, and the soak goes on
                note(
                    {"kind": "error", "of": operation, "error": f"{type(error).__name__}: {error}"}
                )
                traceback.print_exc()


def acknowledged(logs: Path) -> list[Ack]:
    """Read the lines of all processes. A line that was cut short acknowledges nothing."""
    texts = (log.read_text(encoding="utf-8") for log in sorted(logs.glob("*.log")))
    return [json.loads(line) for text in texts for line in text.rpartition("\n")[0].splitlines()]


# ---- Looking up what was acknowledged


def faults_of_run(place: Place, run_id: str) -> list[str]:
    """Name the stored results of a kept run that are absent or damaged, and absent traces."""
    settings = place.settings
    store = ArtifactStore(open_home(settings))
    try:
        run = find_run(open_home(settings), run_id)
    except (HTTPException, InputError) as error:
        return [f"{run_id}: {error}"]
    with open_store(settings).reading() as transaction:
        traced = transaction.columns(RAG_TRACES, {"run_id": run_id}, ["qid"])["qid"]
    absent = [] if len(set(traced)) == N_QUESTIONS else ["traces"]
    for stage, key in run.artifacts.items():
        if store.whole(stage.split(maxsplit=1)[0], key) is None:
            absent.append(stage)
    return [f"{run_id}: {name}" for name in absent]


def look_up(acks: list[Ack], homes: dict[str, Place]) -> dict[str, object]:
    """Count the acknowledged results that are found, lost and doubled."""
    by_kind: dict[str, list[Ack]] = {name: [] for name in ("outcome", "run", "calibrator")}
    for ack in acks:
        by_kind.get(ack["kind"], []).append(ack)
    history = OutcomeStore(open_store(next(iter(homes.values())).settings)).history()
    kept = set(history["outcome_id"])
    lost = [ack["id"] for ack in by_kind["outcome"] if ack["id"] not in kept]
    for ack in by_kind["run"]:
        lost += faults_of_run(homes[ack["home"]], ack["id"])[:1]
    for ack in by_kind["calibrator"]:
        try:
            read_calibrator(open_home(homes[ack["home"]].settings), ack["id"])
        except InputError as error:
            lost.append(str(error))
    given = collections.Counter(ack["id"] for ack in by_kind["outcome"])
    doubled = history.duplicated(["claim_id", "target", "k", "gold_source", "supersedes"])
    return {
        "acknowledged": {name: len(found) for name, found in by_kind.items()},
        "found": sum(map(len, by_kind.values())) - len(lost),
        "lost": lost,
        "doubled": int(doubled.sum()) + sum(count > 1 for count in given.values()),
        "rows": len(history),
    }


# ---- The two soaks


class Soak:
    """Homes with evaluated gold sets on the servers of a team, and the processes that write there.

    `machines` holds the places of each machine; `seconds` is the duration of a run.
    """

    def __init__(self, team: Team, homes: list[str], n_machines: int, seed: int) -> None:
        self.seed, self._context = seed, multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self.logs, gold_sets = team.folder / "acknowledged", team.folder / "soaked"
        self.logs.mkdir()
        for name in GOLD_SETS:
            write_gold_set(gold_sets / name, name)
        first: dict[str, list[Place]] = {home: [] for home in homes}
        for home, name in itertools.product(homes, GOLD_SETS):
            place = Place(home, team.folder / f"machine-{homes.index(home)}", gold_sets, name)
            began = time.monotonic()
            (done,) = evaluate_all([place.open()], place.settings)
            self.seconds = time.monotonic() - began
            first[home].append(dataclasses.replace(place, run_id=done.report.run_id))
        self.machines = [
            [
                dataclasses.replace(place, folder=team.folder / f"machine-{number}")
                for place in places
            ]
            for number, places in zip(range(n_machines), itertools.cycle(first.values()))
        ]
        self.places = [place for places in self.machines for place in places]

    def log(self, name: str) -> Path:
        """Return the file with the lines of a process."""
        return self.logs / f"{name}.log"

    def start(self, name: str, operations: list[str], places: list[Place], until: float) -> Any:
        """Start a process that repeats operations; return it."""
        seed = f"{self.seed} {name}"
        given = operations, places, self.log(name), seed, until
        process = self._context.Process(target=work, args=given)
        process.start()
        return process

    def kill(self, number: int) -> list[str]:
        """End a process by SIGKILL at a random moment; return the faults of reports after it."""
        operation = list(WRITES)[number % len(WRITES)]
        places = self.machines[number // len(WRITES) % len(self.machines)]
        longest = 1.5 * self.seconds if operation in {"run", "calibrate"} else SHORT_S
        name = f"{number:04d}-{operation}"
        process = self.start(name, [operation], places, math.inf)
        while not self.log(name).is_file() and process.is_alive():
            time.sleep(0.01)  # The process starts up.
        time.sleep(random.Random(f"{self.seed} {number}").random() * longest)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        return [fault for place in places for fault in faults_of_reports(place)]

    def finish(self, **figures: object) -> bool:
        """Evaluate every gold set without a wait, look all up, and print the figures."""
        for place in self.machines[0] + self.machines[1]:
            settings = place.settings.model_copy(update={"wait_s": 5})
            evaluate_all([dataclasses.replace(place.open(), settings=settings)], settings)
        acks = acknowledged(self.logs)
        errors = collections.Counter(ack["error"] for ack in acks if ack["kind"] == "error")
        torn = [fault for place in self.places for fault in faults_of_reports(place)]
        torn += [ack["id"] for ack in acks if ack["kind"] == "torn"]
        # A folder without copies makes the look-up read the home itself.
        homes = {
            place.home: dataclasses.replace(place, folder=self.logs.parent / "look-up")
            for place in self.places
        }
        found = look_up(acks, homes)
        operations = collections.Counter(ack["of"] for ack in acks if "of" in ack)
        kinds = collections.Counter(ack["kind"] for ack in acks)
        counts = {"reads": kinds["read"], "waits": kinds["wait"], "by_operation": dict(operations)}
        emit("soak", **figures, **found, torn=torn, errors=dict(errors), **counts)
        return not (found["lost"] or found["doubled"] or torn or errors)


def soak_with_kills(team: Team, kills: int, seed: int) -> bool:
    """End processes by SIGKILL, two at a time; return whether nothing was lost."""
    soak = Soak(team, [str(team.folder / "home"), f"s3://{BUCKET}/soak"], 2, seed)
    torn: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        for number, faults in enumerate(pool.map(soak.kill, range(kills)), 1):
            torn += faults
            if number % 20 == 0:
                print(f"{number} of {kills} processes killed", file=sys.stderr, flush=True)
    return soak.finish(kills=kills, torn_after_kills=torn, seed=seed) and not torn


def soak_together(team: Team, minutes: float, processes: int, seed: int) -> bool:
    """Let processes work at once, and one read all reports; return whether nothing was lost."""
    homes = [f"s3://{BUCKET}/first", f"s3://{BUCKET}/second"]
    soak, until = Soak(team, homes, processes, seed), time.time() + minutes * 60
    started = [
        soak.start(f"process-{number}", list(OPERATIONS), places, until)
        for number, places in enumerate(soak.machines)
    ]
    started.append(soak.start("reader", ["read"], soak.places, until))
    for process in started:
        process.join()
    ended_badly = sum(process.exitcode != 0 for process in started)
    return soak.finish(minutes=minutes, processes=processes, ended_badly=ended_badly, seed=seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, help="number of processes that are killed")
    parser.add_argument("--minutes", type=float, help="how long processes work at once")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if (given.kills is None) == (given.minutes is None):
        parser.error("give --kills or --minutes")
    with tempfile.TemporaryDirectory(prefix="rag-eval-soak-") as folder:
        team = Team(Path(folder))
        try:
            team.start_stores()
            if given.kills is not None:
                is_fine = soak_with_kills(team, given.kills, given.seed)
            else:
                is_fine = soak_together(team, given.minutes, given.processes, given.seed)
        finally:
            team.stop()
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
