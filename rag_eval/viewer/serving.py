"""The viewer as a server of this machine: where it listens, who may reach it, and its access token.

Belongs here: the socket and uvicorn. What it answers is `app`.
"""

import ipaddress
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rag_eval.records.problems import InputError, Problem
from rag_eval.settings import Settings

MAX_TOKEN_FILE: Final = 1000
CONNECTIONS: Final = 256
KEEP_ALIVE_S, STOP_S = 5, 5


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address; port 0 takes any that is free.

    Raises
    ------
    InputError
        `cannot_listen`: no such address of this machine, or the port is taken.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind)
    except (OSError, UnicodeError) as error:
        raise _cannot(host, port, error) from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except OSError as error:
        made.close()
        raise _cannot(host, port, error) from None
    return made


def _cannot(host: str, port: int, error: Exception) -> InputError:
    reason = (
        error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    )
    return InputError(
        Problem(
            "cannot_listen",
            f"the viewer cannot listen there: {reason}",
            field="--host, --port",
            found=f"{host} {port}",
            accepted="an address of this machine and a free port; --port 0 takes any",
        )
    )


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach a socket: judged by what it is bound to, not by what it was called."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def access_token(given: str | None, file: Path | None, *, needed: bool) -> tuple[str | None, bool]:
    """Choose the access token: of a file, else of the settings, else a new one where one is needed.

    Returns
    -------
    token, made
        The token, None where none is needed; whether it is new, so that nobody knows it yet.

    Raises
    ------
    InputError
        The file cannot be read, or is too large for a token.
    """
    if file is not None:
        try:
            with file.open(encoding="ascii") as stream:
                text = stream.read(MAX_TOKEN_FILE + 1)
        except (OSError, ValueError):
            raise InputError(
                Problem(
                    "bad_token",
                    "the file of the access token cannot be read",
                    file=str(file),
                    accepted="a text file that holds the token and nothing else",
                )
            ) from None
        return text.strip(), False
    if given is not None:
        return given, False
    return (secrets.token_urlsafe(32), True) if needed else (None, False)


def address_of(bound: socket.socket) -> str:
    """Address to open in a browser; of a socket on all addresses, with the name of this machine."""
    host, port = bound.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def serve(
    settings: Settings,
    bound: socket.socket,
    *,
    read_only: bool,
    token: str | None,
    allow_hosts: list[str],
    ready: Callable[[], object],
) -> None:
    """Serve until the process is asked to end; `ready` is called when all is in order, right before.

    Raises
    ------
    InputError
        As `create_app` does.
    """
    import uvicorn

    from rag_eval.viewer.app import create_app
    from rag_eval.viewer.security import MAX_HEAD

    loopback = is_loopback(bound)
    names = () if loopback else (socket.gethostname(),)
    app = create_app(
        settings,
        read_only=read_only,
        token=token,
        port=bound.getsockname()[1],
        names=names,
        allow_hosts=allow_hosts,
        beyond_loopback=not loopback,
    )
    config = uvicorn.Config(
        app,
        http="h11",  # bounds what is kept of a head that does not end
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_level="warning",
        access_log=False,  # addresses are what others make of them
        server_header=False,
        proxy_headers=False,  # who asks is who is connected
        h11_max_incomplete_event_size=MAX_HEAD,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
    )
    ready()
    uvicorn.Server(config).run(sockets=[bound])
