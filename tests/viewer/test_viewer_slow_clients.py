"""Clients that send a request slowly, against the server of the viewer in a thread."""

import contextlib
import socket
import threading
import time

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from rag_eval.viewer.app import CONNECTIONS, TimedProtocol, make_server

SECONDS = 0.4
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
UNFINISHED = {
    "nothing": [b""],
    "half a head": [HEAD],
    "a head in drops": [HEAD, *[b"X-More: 1\r\n"] * 40],
    "a body in drops": [b"POST" + HEAD[3:] + b"Content-Length: 400\r\n\r\n", *[b"x"] * 40],
    "a second head": [HEAD + b"\r\n", *[b"GET"], *[b"T"] * 40],
}


class ShortTime(TimedProtocol):
    seconds = SECONDS


@pytest.fixture(scope="module")
def address():
    routes = [Route("/", lambda _: PlainTextResponse("ok"), methods=["GET", "POST"])]
    server = make_server(Starlette(routes=routes), ShortTime)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        yield bound.getsockname()
        server.should_exit = True
        thread.join(30)


def ask(address) -> int:
    with httpx.Client(base_url=f"http://127.0.0.1:{address[1]}", trust_env=False) as client:
        return client.get("/").status_code


@pytest.mark.parametrize("pieces", UNFINISHED.values(), ids=UNFINISHED)
def test_a_client_that_does_not_finish_is_dropped(address, pieces):
    began = time.monotonic()
    with socket.create_connection(address, timeout=10) as client:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                client.sendall(piece)
                time.sleep(SECONDS / 10)
            while client.recv(1000):
                pass
        assert SECONDS * 0.9 < time.monotonic() - began < SECONDS * 4


def test_half_sent_heads_keep_the_others_out_for_a_moment_only(address):
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS + 10):
            client = stack.enter_context(socket.create_connection(address, timeout=10))
            client.sendall(HEAD)
        time.sleep(SECONDS * 2)
        assert ask(address) == 200


def test_a_client_that_pauses_between_requests_is_served(address):
    with socket.create_connection(address, timeout=10) as client:
        for _ in range(3):
            client.sendall(HEAD + b"\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
            time.sleep(SECONDS * 1.5)
