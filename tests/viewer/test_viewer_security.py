"""Who is refused: other sites, other host names, other tokens, other methods, too much at once; and the headers of every answer."""

import asyncio
import json

import pytest
from viewed_project import OURS, PORT, give, page_token

from rag_eval.records.problems import InputError
from rag_eval.viewer import security
from rag_eval.viewer.access import (
    ADDRESSES,
    WINDOW_S,
    WRONG_TRIES,
    Access,
    Hosts,
    allowed_hosts,
    network_of,
    split_host,
)
from rag_eval.viewer.app import create_app
from rag_eval.viewer.runs import KeptRuns
from rag_eval.viewer.security import MAX_BODY, Guard, Policy

TOKEN = "a-token-that-nobody-guesses-0123456789"
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


def has_headers(answer):
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def ours(client, **changes):
    """Headers of our own page's request."""
    made = {
        "X-Rag-Eval-Token": page_token(client),
        "Origin": OURS,
        "Sec-Fetch-Site": "same-origin",
        "Content-Type": "application/json",
        **changes,
    }
    return {name: value for name, value in made.items() if value is not None}


def test_every_answer_has_the_headers(viewed):
    client = viewed.client()
    answers = [
        *(
            client.get(address)
            for address in (
                "/",
                f"/runs/{viewed.run_id}/",
                f"/runs/{viewed.run_id}",
                "/runs/x/",
                "/nothing",
                "/healthz",
                "/assets/viewer.css",
                "/assets/nothing",
                "/?before=x",
                "/feedback",
            )
        ),
        client.get(f"/runs/{viewed.run_id}/explorer/summary.json"),
        client.get("/", headers={"Host": "elsewhere.example"}),
        client.request("DELETE", "/"),
        client.post("/feedback"),
        client.post("/"),
        give(client, viewed.said()),
        give(client, {}),
        give(client, viewed.said(query_id="none")),
        give(client, "x" * MAX_BODY),
        viewed.client(token=TOKEN).get("/"),
    ]
    for answer in answers:
        has_headers(answer)
    assert {answer.status_code for answer in answers} == {
        200,
        201,
        308,
        400,
        401,
        403,
        404,
        405,
        413,
    }


def test_an_error_of_the_program_tells_nothing(viewed, caplog, monkeypatch):
    def broken(*_):
        raise RuntimeError(f"{viewed.home}\nsecond line")

    monkeypatch.setattr(KeptRuns, "part", broken)
    client = viewed.client()
    answer = client.get(
        f"/runs/{viewed.run_id}/explorer/summary.json", headers={"Accept-Encoding": "identity"}
    )
    assert answer.status_code == 500
    assert answer.text == "This failed on the server; its log says why.\n"
    has_headers(answer)
    (record,) = [record for record in caplog.records if record.name == "rag_eval.viewer"]
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize(
    "host",
    [
        "elsewhere.example",
        f"elsewhere.example:{PORT}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost",
        f"127.0.0.1.nip.io:{PORT}",
        f"[::2]:{PORT}",
        f"192.168.1.9:{PORT}",
        "",
        f"localhost.:{PORT}",
        f"user@localhost:{PORT}",
        f"localhost:{PORT}/",
        f"2130706433:{PORT}",
        f"0.0.0.0:{PORT}",
    ],
)
def test_other_host_names_are_refused(viewed, host):
    client = viewed.client()
    answer = client.get("/", headers={"Host": host})
    assert answer.status_code == 403
    assert "token" not in answer.text
    assert give(client, viewed.said(), Host=host, Origin=f"http://{host}").status_code == 403
    assert viewed.given() == []


@pytest.mark.parametrize(
    "host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"LOCALHOST:{PORT}", f"[::1]:{PORT}"]
)
def test_our_own_host_names_are_answered(viewed, host):
    assert viewed.client().get("/", headers={"Host": host}).status_code == 200


def test_hosts_that_a_person_allows_are_answered(viewed):
    client = viewed.client(allow_hosts=["Eval.example.org", "proxy.example:8443"])
    answers = {
        host: client.get("/", headers={"Host": host}).status_code
        for host in (
            "eval.example.org",
            "eval.example.org:99",
            "proxy.example:8443",
            "proxy.example",
            "proxy.example:1",
        )
    }
    assert list(answers.values()) == [200, 200, 200, 403, 403]
    assert (
        give(
            client, viewed.said(), Host="eval.example.org", Origin="https://eval.example.org"
        ).status_code
        == 201
    )
    with pytest.raises(InputError, match="bad_host"):
        allowed_hosts(["a b"])


def test_hosts_beyond_the_loopback():
    hosts = Hosts(7777, frozenset({"box"}), addresses=True)
    assert [
        hosts.accepts(host)
        for host in (
            "box:7777",
            "192.168.1.9:7777",
            "[fe80::1]:7777",
            "localhost:7777",
            "192.168.1.9:80",
            "rebound.example:7777",
            "300.1.1.1:7777",
        )
    ] == [True, True, True, True, False, False, False]
    assert Hosts(80).accepts("localhost")
    assert split_host("a" * 300) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{PORT + 1}"},
        {"Origin": "http://localhost:7777"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "document",
            "Origin": None,
        },
        {"X-Rag-Eval-Token": None},
        {"X-Rag-Eval-Token": ""},
        {"X-Rag-Eval-Token": "wrong"},
        {"X-Rag-Eval-Token": "é"},
    ],
)
def test_feedback_from_elsewhere_is_refused(viewed, changes):
    client = viewed.client()
    headers = {name: value.encode() for name, value in ours(client, **changes).items()}
    answer = client.post("/feedback", content=json.dumps(viewed.said()), headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]
    assert viewed.given() == []


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonx",
        "text/plain;application/json",
        "application/json; charset=utf-16",
    ],
)
def test_feedback_of_another_content_type_is_refused(viewed, kind):
    client = viewed.client()
    answer = client.post(
        "/feedback",
        content=json.dumps(viewed.said()),
        headers=ours(client, **{"Content-Type": kind}),
    )
    assert answer.status_code == 415
    assert viewed.given() == []


def test_a_tool_without_an_origin_may_give_feedback(viewed):
    client = viewed.client()
    assert (
        client.post(
            "/feedback",
            content=json.dumps(viewed.said()),
            headers=ours(client, Origin=None, **{"Sec-Fetch-Site": None}),
        ).status_code
        == 201
    )


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"]
)
def test_only_post_gives_feedback(viewed, method):
    client = viewed.client()
    answer = client.request(
        method,
        "/feedback",
        params={"token": page_token(client), **viewed.said()},
        headers=ours(client),
    )
    assert answer.status_code == 405
    assert viewed.given() == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
        ({"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        ({"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}, 403),
    ],
)
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_may_link_here_and_embed_nothing(viewed, headers, status, site):
    assert (
        viewed.client().get("/", headers={"Sec-Fetch-Site": site, **headers}).status_code == status
    )


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("excess", "status"), [(0, 400), (1, 413), (10_000_000, 413)])
def test_bodies_are_bounded_however_they_are_sent(viewed, chunked, excess, status):
    client = viewed.client()
    whole = b'"' + b"x" * (MAX_BODY - 2 + excess) + b'"'
    sent = (whole[at : at + 4096] for at in range(0, len(whole), 4096)) if chunked else whole
    answer = client.post("/feedback", content=sent, headers=ours(client))
    assert answer.status_code == status
    has_headers(answer)


@pytest.mark.parametrize("length", ["-1", "x", "99999999999999999999", "1e3"])
def test_no_length_but_a_number_is_taken(viewed, length):
    client = viewed.client()
    assert (
        client.post(
            "/feedback", content=b"{}", headers=ours(client, **{"Content-Length": length})
        ).status_code
        == 413
    )


def guarded(messages, policy):
    """Answers of the guard alone to a request whose parts come as told."""
    sent, left = [], list(messages)

    async def app(scope, receive, send):
        raise AssertionError("the application was asked")

    async def receive():
        if not left:
            await asyncio.sleep(3600)
        return left.pop(0)

    async def send(message):
        sent.append(message)

    headers = [
        (b"host", b"localhost:7777"),
        (b"x-rag-eval-token", b"t"),
        (b"content-type", b"application/json"),
    ]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/feedback",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
    }
    asyncio.run(Guard(app, policy)(scope, receive, send))
    return sent


def test_a_body_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr(security, "BODY_SECONDS", 0.05)
    sent = guarded(
        [{"type": "http.request", "body": b"{", "more_body": True}], Policy(Hosts(7777), "t")
    )
    assert sent[0]["status"] == 408


def test_a_client_that_leaves_is_not_answered():
    assert (
        guarded(
            [
                {"type": "http.request", "body": b"{", "more_body": True},
                {"type": "http.disconnect"},
            ],
            Policy(Hosts(7777), "t"),
        )
        == []
    )


def test_no_websocket_is_opened(viewed):
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), viewed.client().websocket_connect("/feedback"):
        pass


def test_read_only_takes_nothing(viewed):
    before = viewed.home.joinpath("rag_eval.db").read_bytes()
    client = viewed.client(read_only=True)
    answer = client.post(
        "/feedback", json=viewed.said(), headers={"X-Rag-Eval-Token": "x", "Origin": OURS}
    )
    assert answer.status_code == 403
    assert "read-only" in answer.json()["error"]
    assert viewed.home.joinpath("rag_eval.db").read_bytes() == before


def test_with_a_token_nothing_is_shown_without_it(viewed):
    client = viewed.client(token=TOKEN, beyond_loopback=True)
    for address in (
        "/",
        f"/runs/{viewed.run_id}/",
        f"/runs/{viewed.run_id}/report",
        f"/runs/{viewed.run_id}/explorer/summary.json",
        "/assets/viewer.css",
        "/nothing",
        f"/runs/{viewed.run_id}/?token={TOKEN}",
    ):
        answer = client.get(address)
        assert answer.status_code == 401
        assert "rag-eval-token" not in answer.text
        assert viewed.run_id not in answer.text
    assert client.post("/feedback", json=viewed.said()).status_code == 401
    assert client.post(f"/?token={TOKEN}", json=viewed.said()).status_code == 401
    assert client.get("/healthz").status_code == 200
    assert viewed.given() == []


def test_the_token_is_exchanged_for_a_cookie(viewed):
    client = viewed.client(token=TOKEN)
    answer = client.get("/", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    has_headers(answer)
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert set(attributes) == {"HttpOnly", "SameSite=Strict", "Path=/"}
    assert name.startswith(f"rag_eval_view_{PORT}=")
    assert TOKEN not in name
    assert client.get("/").status_code == 200
    assert give(client, viewed.said()).status_code == 201
    other = viewed.client(token=TOKEN)
    assert other.get("/", headers={"Cookie": name}).status_code == 401  # of another process


def test_after_a_link_of_another_site_our_own_page_goes_on(viewed):
    client = viewed.client(token=TOKEN)
    answer = client.get(
        "/",
        params={"token": TOKEN},
        headers={
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "document",
        },
    )
    assert answer.status_code == 200
    assert "SameSite=Strict" in answer.headers["set-cookie"]
    assert '<meta http-equiv="refresh" content="0;url=/">' in answer.text
    assert TOKEN not in answer.text


@pytest.mark.parametrize(
    "query",
    [
        "token=wrong",
        "token=",
        f"token={TOKEN}x",
        f"token={TOKEN[:-1]}",
        f"Token={TOKEN}",
        "token=%2f%2fevil",
        f"x=1&token={TOKEN}",
        "token=" + "x" * 5000,
        "&" * 3000,
    ],
)
def test_a_wrong_token_opens_nothing(viewed, query):
    answer = viewed.client(token=TOKEN).get(f"/?{query}")
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_after_wrong_tries_an_address_has_to_wait(viewed):
    client = viewed.client(token=TOKEN)
    client.get("/", params={"token": TOKEN})
    codes = [client.get("/", params={"token": "wrong"}).status_code for _ in range(WRONG_TRIES + 2)]
    assert codes == [401] * WRONG_TRIES + [429] * 2
    answer = client.get("/", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
    assert client.get("/").status_code == 200  # whoever is signed in stays


def test_waiting_ends_and_counts_for_each_address():
    now = [0.0]
    access = Access(TOKEN, PORT, lambda: now[0])
    for _ in range(WRONG_TRIES):
        assert access.judge("wrong", "10.0.0.1") == "wrong"
    assert access.judge(TOKEN, "10.0.0.1") == "wait"
    assert access.judge(TOKEN, "10.0.0.2") == "right"
    now[0] = WINDOW_S + 1
    assert access.judge(TOKEN, "10.0.0.1") == "right"
    for number in range(ADDRESSES * 2):
        access.judge("wrong", str(number))
    assert len(access._wrong) == ADDRESSES


def test_tries_of_one_network_count_together():
    assert (
        network_of("2001:db8:1:2:3::4")
        == network_of("2001:db8:1:2:ffff::1")
        != network_of("2001:db8:1:3::1")
    )
    assert network_of("10.0.0.1") != network_of("10.0.0.2")
    assert network_of("testclient") == ""


@pytest.mark.parametrize(
    "token",
    ["", "short", "a" * 19, "a" * 201, "a" * 30 + "/", "a" * 30 + " ", "é" * 30, "a" * 30 + "\n"],
)
def test_a_token_that_could_be_guessed_or_not_be_linked_is_refused(viewed, token):
    with pytest.raises(InputError, match="bad_token") as caught:
        create_app(viewed.settings, token=token)
    assert not token or token not in str(caught.value) or token == "short"


def test_beyond_the_loopback_there_is_a_token(viewed):
    with pytest.raises(ValueError, match="access token"):
        create_app(viewed.settings, beyond_loopback=True)
