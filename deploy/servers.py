"""Start, watch and stop servers as child processes of this machine."""

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sysconfig
import time
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from rag_eval.core.errors import InputError
from rag_eval.storage.home import write_text

HOST = "127.0.0.1"
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


def start(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a child whose output goes to the log."""
    write_text(log, "")
    with log.open("ab") as stream:
        # In a new session a child does not receive Ctrl-C. This process receives it and ends each
        # child with its children.
        return subprocess.Popen(
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
