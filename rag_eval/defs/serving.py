"""Start and stop Dagster's web server and daemon, the MLflow UI and the evidence viewer.

The servers are child processes of one machine. If one of them ends, all end.
"""

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from rag_eval.core.errors import InputError
from rag_eval.core.settings import TELEMETRY_OFF, Settings
from rag_eval.reporting.mlflow import PORT as MLFLOW_PORT
from rag_eval.storage.artifacts import write_text
from rag_eval.storage.home import open_home
from rag_eval.storage.secrets import shown_service

HOST = "127.0.0.1"
DAGSTER_PORT = 3000
MODULE = "rag_eval.definitions"
START_TIMEOUT_S, STOP_TIMEOUT_S, POLL_S = 180.0, 10.0, 0.25
LOG_LINES = 25

Write = Callable[[str], object]


@dataclasses.dataclass
class Server:
    """A child process, its log, and a test whether the server answers."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    answers: Callable[[], bool]
    address: str | None = None


class Stopped(Exception):  # noqa: N818 - not an error: a person asked for the end
    """The process received SIGINT or SIGTERM."""


def free_port(wanted: int) -> int:
    """Return the wanted port, or any free port if it is taken."""
    for port in (wanted, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                return int(probe.getsockname()[1])
    raise InputError.of(
        "no_free_port", "no port of this machine is free", field="port", found=str(wanted)
    )


def child_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of the children, with telemetry off.

    All paths are absolute, so that the children find the installation from any folder.
    """
    home = open_home(settings)
    places = {
        "SCRATCH": settings.scratch,
        "REPORTS": settings.reports,
        "GOLD_SETS": settings.gold_sets,
    }
    return {
        **os.environ,
        **TELEMETRY_OFF,
        # MLflow's background workers are for judges and prompts, which rag_eval does not use
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        # the address may hold a password, and every user of the machine sees arguments
        "MLFLOW_BACKEND_STORE_URI": settings.mlflow_uri,
        "DAGSTER_HOME": str((home.folder / "dagster").resolve()),
        "RAG_EVAL_HOME": home.url if home.is_remote else str(home.folder.resolve()),
        # who opens the UI to look must not start a night; a deployment does not come through here
        "RAG_EVAL_SCHEDULE_ON": "false",
        **{f"RAG_EVAL_{name}": str(path.resolve()) for name, path in places.items()},
    }


def script(name: str) -> str:
    """Return the path of a program of this environment."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def http_answers(address: str) -> Callable[[], bool]:
    """Make a test whether an address answers with success."""

    def answers() -> bool:
        try:
            with urllib.request.urlopen(address, timeout=5) as reply:  # noqa: S310 - our own loopback address
                return bool(reply.status == 200)  # noqa: PLR2004 - HTTP's OK
        except (urllib.error.URLError, OSError):
            return False

    return answers


def _heartbeat(dagster_home: Path, since: float) -> Callable[[], bool]:
    """Make a test whether the daemon's scheduler has been alive since its start."""
    import dagster as dg

    def answers() -> bool:
        with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
            beat = instance.get_daemon_heartbeats().get("SCHEDULER")
        return beat is not None and beat.timestamp >= since

    return answers


def commands(
    settings: Settings, dagster_port: int, mlflow_port: int, view_port: int
) -> dict[str, list[str]]:
    """Return the command line of each server.

    MLflow is left out if the tracking store is a server already.
    """
    servers = {
        "dagster-webserver": [
            *(script("dagster-webserver"), "-m", MODULE),
            *("-h", HOST, "-p", str(dagster_port)),
        ],
        "dagster-daemon": [script("dagster-daemon"), "run", "-m", MODULE],
        "viewer": [
            *(sys.executable, "-m", "rag_eval.cli", "view"),
            *("--host", HOST, "--port", str(view_port)),
        ],
    }
    if not settings.mlflow_uri.startswith(("http:", "https:")):
        artifacts = (open_home(settings).folder / "mlartifacts").resolve()
        servers["mlflow"] = [
            *(script("mlflow"), "ui", "--artifacts-destination", artifacts.as_uri()),
            *("--host", HOST, "--port", str(mlflow_port), "--workers", "1"),
        ]
    return servers


def start(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a child whose output goes to the log."""
    write_text(log, "")
    with log.open("ab") as stream:
        # In a new session a child does not receive Ctrl-C. This process receives it and ends each
        # child with its children.
        return subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )


def _group(server: Server, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.process.pid, number)


def stop(servers: list[Server]) -> None:
    """End every child and its children; kill a child that does not end in time."""
    for server in servers:
        _group(server, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for server in servers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(max(0.0, deadline - time.monotonic()))
    for server in servers:
        _group(server, signal.SIGKILL)
        server.process.wait()


def has_dead(servers: list[Server], write: Write) -> bool:
    """Tell whether a child has ended; report the child with the end of its log."""
    for server in servers:
        status = server.process.poll()
        if status is not None:
            lines = server.log.read_text(encoding="utf-8", errors="replace").splitlines()
            write(f"{server.name} ended with status {status}; the end of {server.log}:")
            for line in lines[-LOG_LINES:]:
                write(f"  {line}")
            return True
    return False


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into `Stopped` within the block."""

    def stop(_number: int, _frame: types.FrameType | None) -> None:
        raise Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start_all(
    settings: Settings, dagster_port: int, mlflow_port: int, servers: list[Server]
) -> None:
    """Start the servers and append each to the list, so that the caller can end them all."""
    environment = child_environment(settings)
    ports = {
        "dagster-webserver": (free_port(dagster_port), "/server_info"),
        "mlflow": (free_port(mlflow_port), "/health"),
        "viewer": (free_port(settings.view_port), "/healthz"),
    }
    for name, command in commands(settings, *(port for port, _ in ports.values())).items():
        if name in ports:
            port, path = ports[name]
            address = f"http://{HOST}:{port}"
            answers = http_answers(address + path)
        else:
            address, answers = None, _heartbeat(Path(environment["DAGSTER_HOME"]), time.time())
        log = open_home(settings).folder.resolve() / "logs" / f"{name}.log"
        servers.append(Server(name, start(command, environment, log), log, answers, address))


def wait_until_ready(servers: list[Server], write: Write) -> bool:
    """Wait until every server answers; return False if a server ended or the time is up."""
    deadline = time.monotonic() + START_TIMEOUT_S
    waiting = list(servers)
    while waiting:
        if has_dead(servers, write):
            return False
        waiting = [server for server in waiting if not server.answers()]
        if waiting and time.monotonic() > deadline:
            write(
                f"no answer after {START_TIMEOUT_S:.0f} s from "
                f"{', '.join(server.name for server in waiting)}; see {waiting[0].log.parent}"
            )
            return False
        time.sleep(POLL_S)
    return True


def serve(
    settings: Settings,
    dagster_port: int = DAGSTER_PORT,
    mlflow_port: int = MLFLOW_PORT,
    write: Write | None = None,
) -> int:
    """Run the servers on the loopback address until Ctrl-C or SIGTERM.

    A free port replaces a taken port. `write` receives lines for a person; default: standard
    output. Returns 0 after a signal, and 1 when a server ended by itself or did not start.
    """
    from rag_eval.defs.instance import prepare_home

    write = write or (lambda line: print(line, file=sys.stdout, flush=True))  # noqa: T201 - the one place that talks to a person here
    prepare_home((open_home(settings).folder / "dagster").resolve())
    servers: list[Server] = []
    with stop_signals():
        try:
            write("Starting Dagster, MLflow and the viewer ...")
            _start_all(settings, dagster_port, mlflow_port, servers)
            if not wait_until_ready(servers, write):
                return 1
            shown = {server.name: server.address for server in servers}
            write(f"Dagster         {shown['dagster-webserver']}")
            write(f"MLflow          {shown.get('mlflow', shown_service(settings.mlflow_uri))}")
            write(f"Viewer          {shown['viewer']}")
            when = f"{settings.schedule} ({settings.timezone})"
            write(
                f"Dagster daemon  running; the schedule {when} is off: turn it on under Automation"
            )
            write("Ctrl-C ends all of them.")
            while not has_dead(servers, write):
                time.sleep(POLL_S)
        except Stopped:
            write("Stopping ...")
            return 0
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                # a second Ctrl-C must not leave children behind
                signal.signal(number, signal.SIG_IGN)
            stop(servers)
        return 1
