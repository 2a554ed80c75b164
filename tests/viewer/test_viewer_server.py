"""`rag-eval view` as a real process.

It is killed right after an answer, written to by twenty clients, bound beyond the loopback, and
run on PostgreSQL.
"""

import concurrent.futures
import json
import socket
import sqlite3
import stat

import httpx
import postgres_server
import pytest
from typer.testing import CliRunner
from viewed_project import Server, give, page_token

from rag_eval.cli.app import app
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.outcomes import OutcomeStore

pytestmark = pytest.mark.slow

WRITERS = 20


@pytest.fixture
def started():
    """Start servers and end them after the test, also after a failure."""
    servers = []

    def start(*arguments, **how):
        servers.append(Server(*arguments, **how))
        servers[-1].wait()
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def test_an_outcome_is_there_when_it_was_answered_and_the_server_killed(viewed, started):
    server = started(viewed.home)
    with server.client() as client:
        answer = give(client, viewed.said(note="before the end"))
        server.process.kill()
    assert answer.status_code == 201
    server.process.wait()
    (row,) = viewed.given()
    assert (row["outcome_id"], row["note"]) == (answer.json()["outcome_id"], "before the end")
    with sqlite3.connect(viewed.home / "rag_eval.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        # 2 is FULL: the log is on disk before the answer, even if the machine stops.
        assert database.execute("PRAGMA synchronous").fetchone() == (2,)
    database.close()
    again = started(viewed.home)
    with again.client() as client:
        repeated = give(client, viewed.said(note="before the end"))
    assert repeated.json()["standing"] == "already_there"


def all_at_once(server, bodies):
    """Send each body from its own thread and connection."""
    with server.client() as client:
        token = page_token(client)

    def send(body):
        with server.client() as client:
            return client.post("/feedback", json=body, headers={"X-Rag-Eval-Token": token})

    with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(send, bodies))


def test_many_writers_lose_nothing(viewed, started):
    server = started(viewed.home)
    retrievals = [
        {"query_id": query, "paraphrase_id": put, "strategy": strategy}
        for query in ("again", "keep", "night")
        for put in ("original", "terse")[: 1 if query == "night" else 2]
        for strategy in ("bm25", "vector")
    ]
    bodies = [
        viewed.said(note=f"note {number}", **retrievals[number % len(retrievals)])
        for number in range(WRITERS)
    ]
    answers = all_at_once(server, bodies)
    assert [answer.status_code for answer in answers] == [201] * WRITERS
    assert {answer.json()["standing"] for answer in answers} == {"recorded"}
    rows = {row["outcome_id"]: row for row in viewed.given()}
    assert len(rows) == WRITERS
    for body, answer in zip(bodies, answers, strict=True):
        row = rows[answer.json()["outcome_id"]]
        assert all(row[name] == body[name] for name in ("query_id", "strategy", "note"))
    assert len(viewed.outcomes().current(gold_source="user_feedback")) == len(retrievals)


def raw(server, request):
    """Send bytes as they are, and read the answer to its end."""
    host, _, port = server.address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    return received


def test_the_real_server_bounds_what_it_is_sent(viewed, started):
    server = started(viewed.home)
    host = server.address.removeprefix("http://").encode()

    def ask(first, *headers, body=b"", host=host):
        lines = [first + b" HTTP/1.1", b"Host: " + host, b"Connection: close", *headers]
        return raw(server, b"\r\n".join(lines) + b"\r\n\r\n" + body)

    for length in (17_000, 100_000):
        assert ask(b"GET /", b"X-Long: " + b"x" * length)[9:12] in {b"400", b"431"}
    with server.client() as client:
        token = page_token(client).encode()
    ours = (b"Content-Type: application/json", b"X-Rag-Eval-Token: " + token)
    chunks = b"".join(b"1000\r\n" + b"x" * 4096 + b"\r\n" for _ in range(5)) + b"0\r\n\r\n"
    answer = ask(b"POST /feedback", *ours, b"Transfer-Encoding: chunked", body=chunks)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"server:" not in answer.lower().partition(b"\r\n\r\n")[0]
    declared = ask(b"POST /feedback", *ours, b"Content-Length: 100000")
    assert declared.startswith(b"HTTP/1.1 413 ")
    assert ask(b"GET /", host=b"evil.example").startswith(b"HTTP/1.1 400 ")
    assert ask(b"GET /\x1b[2J").startswith(b"HTTP/1.1 400 ")
    for path in (
        *(b"/runs/../", b"/runs/%2e%2e/", b"/assets/../viewer.py"),
        *(b"/runs/../../../../etc/passwd", b"//elsewhere.example/"),
    ):
        assert ask(b"GET " + path).startswith(b"HTTP/1.1 404 "), path
    assert b"\x1b" not in server.end().encode()


def check_token(server, token, address):
    with httpx.Client(base_url=address, trust_env=False) as client:
        assert client.get("/").status_code == 401
        assert client.get("/", params={"token": "wrong"}).status_code == 401
        assert client.get("/", params={"token": token}).status_code == 200
        assert client.get("/").status_code == 200


def test_beyond_the_loopback_a_token_is_made_and_needed(viewed, started):
    server = started(viewed.home, "--host", "0.0.0.0")  # noqa: S104 - what this test is about
    _, _, token = server.link.partition("?token=")
    assert len(token) >= 40
    check_token(server, token, f"http://127.0.0.1:{server.address.rpartition(':')[2]}")
    assert token not in "".join(server.said[1:]) + server.end()


@pytest.mark.parametrize("place", ["file", "environment"])
def test_a_given_token_is_used_and_never_printed(viewed, started, tmp_path, place):
    token, file = "a-given-token-0123456789abcdef", tmp_path / "token"
    file.write_text(f"{token}\n")
    file.chmod(stat.S_IRUSR)
    more = ["--token-file", str(file)] if place == "file" else []
    env = {} if place == "file" else {"RAG_EVAL_VIEW_TOKEN": token}
    server = started(viewed.home, *more, env=env)
    check_token(server, token, server.address)
    assert token not in "".join(server.said) + server.end()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--host", "192.0.2.1"], "cannot_listen"),
        (["--token-file", "none"], "bad_token"),
        (["--host", "not a host"], "cannot_listen"),
        (["--allow-host", "a b"], "bad_host"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_served(viewed, arguments, code):
    result = CliRunner().invoke(
        app, ["view", "--home", str(viewed.home), "--port", "0", *arguments]
    )
    assert result.exit_code == 1
    assert code in result.stderr


def test_feedback_is_recorded_in_postgresql(viewed, started):
    with postgres_server.running() as url:
        address = postgres_server.new_database(url)
        server = started(viewed.home, env={"RAG_EVAL_DATABASE_URL": address})
        answers = all_at_once(
            server, [viewed.said(note=f"note {number}") for number in range(WRITERS)]
        )
        assert {answer.json()["standing"] for answer in answers} == {"recorded"}
        server.kill()
        history = OutcomeStore(SqlStore(address)).history(gold_source="user_feedback")
        assert sorted(history["note"]) == sorted(f"note {number}" for number in range(WRITERS))
        assert history["supersedes"].nunique() == WRITERS
        assert "p@ss" not in json.dumps(server.said)
