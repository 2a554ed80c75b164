"""`rag-eval view` as a real process."""

import socket
import urllib.parse

import pytest
from typer.testing import CliRunner
from viewed_project import Server

from rag_eval.cli.app import app


@pytest.fixture
def server(viewed):
    """Start the viewer over a home, and end it after the test."""
    started = Server(viewed.home)
    started.wait()
    yield started
    started.end()


@pytest.mark.slow
def test_the_real_server_bounds_what_it_is_sent(server):
    place = urllib.parse.urlsplit(server.address)

    own = place.netloc.encode()

    def ask(path, *headers, host=own):
        lines = [b"GET " + path + b" HTTP/1.1", b"Host: " + host, b"Connection: close", *headers]
        received = b""
        with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
            connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n")
            while piece := connection.recv(65536):
                received += piece
        return received

    assert b"\r\nserver:" not in ask(b"/").lower()
    for length in (17_000, 100_000):
        assert ask(b"/", b"X-Long: " + b"x" * length)[9:12] in {b"400", b"431"}
    assert ask(b"/", host=b"evil.example").startswith(b"HTTP/1.1 400 ")
    assert ask(b"/\x1b[2J").startswith(b"HTTP/1.1 400 ")
    for path in (
        *(b"/runs/../", b"/runs/%2e%2e/", b"/assets/../viewer.py"),
        *(b"/runs/../../../../etc/passwd", b"//elsewhere.example/"),
    ):
        assert ask(path).startswith(b"HTTP/1.1 404 "), path
    assert b"\x1b" not in server.end().encode()


def test_a_taken_port_is_named(viewed):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(app, ["view", "--home", str(viewed.home), "--port", port])
    assert result.exit_code == 1
    assert "cannot_listen" in result.stderr
    assert port in result.stderr
