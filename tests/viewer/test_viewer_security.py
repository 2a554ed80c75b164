"""Requests that are refused, and the headers of every answer."""

import asyncio
import json

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from viewed_project import OURS, PORT, give, page_token

from rag_eval.core.errors import InputError
from rag_eval.viewer import security
from rag_eval.viewer.app import create_app
from rag_eval.viewer.security import CONTENT_SECURITY_POLICY, MAX_BODY, list_hosts

TOKEN = "a-token-that-nobody-guesses-0123456789"
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": CONTENT_SECURITY_POLICY,
}


def assert_headers(answer):
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def headers_of_ours(client, **changes):
    """Return the headers of a request that the viewer's own page sends."""
    made = {
        "X-Rag-Eval-Token": page_token(client),
        "Origin": OURS,
        "Sec-Fetch-Site": "same-origin",
        "Content-Type": "application/json",
        **changes,
    }
    return {name: value.encode() for name, value in made.items() if value is not None}


def test_every_answer_has_the_headers(viewed):
    client, run = viewed.client(), f"/runs/{viewed.run_id}"
    pages = ["/", f"{run}/", run, "/runs/x/", "/nothing", "/healthz", "/assets/viewer.css"]
    pages += ["/assets/nothing", "/feedback", f"{run}/explorer/summary.json"]
    answers = [
        *(client.get(address) for address in pages),
        client.get("/", headers={"Host": "elsewhere.example"}),
        client.request("DELETE", "/"),
        client.post("/feedback"),
        give(client, viewed.said()),
        give(client, {}),
        give(client, viewed.said(query_id="none")),
        give(client, "x" * MAX_BODY),
        viewed.client(token=TOKEN).get("/"),
    ]
    for answer in answers:
        assert_headers(answer)
    codes = {200, 201, 307, 400, 401, 403, 404, 405, 413}
    assert {answer.status_code for answer in answers} == codes
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY


def test_an_error_of_the_program_tells_nothing(viewed, caplog, monkeypatch):
    def fail(*_):
        raise RuntimeError(f"{viewed.home}\nsecond line")

    monkeypatch.setattr("rag_eval.viewer.app.run_ids", fail)
    answer = viewed.client().get("/")
    assert answer.status_code == 500
    assert answer.text == "This failed on the server; its log says why.\n"
    assert_headers(answer)
    (record,) = [record for record in caplog.records if record.name == "rag_eval.viewer"]
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize(
    "host",
    [
        "elsewhere.example",
        f"127.0.0.1.nip.io:{PORT}",
        f"192.168.1.9:{PORT}",
        "",
        f"0.0.0.0:{PORT}",
    ],
)
def test_other_host_names_are_refused(viewed, host):
    client = viewed.client()
    answer = client.get("/", headers={"Host": host})
    assert answer.status_code == 400
    assert "token" not in answer.text
    assert give(client, viewed.said(), Host=host, Origin=f"http://{host}").status_code == 400
    assert viewed.given() == []


@pytest.mark.parametrize("host", ["127.0.0.1", f"localhost:{PORT}", "LOCALHOST", f"[::1]:{PORT}"])
def test_our_own_host_names_are_answered(viewed, host):
    assert viewed.client().get("/", headers={"Host": host}).status_code == 200


def test_hosts_that_a_person_allows_are_answered(viewed):
    client = viewed.client(allow_hosts=["Eval.example.org"])
    origin = {"Host": "eval.example.org", "Origin": "https://eval.example.org"}
    assert give(client, viewed.said(), **origin).status_code == 201
    assert client.get("/", headers={"Host": "eval.example.org:99"}).status_code == 200
    assert client.get("/", headers={"Host": "other.example.org"}).status_code == 400
    for name in ("a b", "*", "*.example.org", "eval.example.org:8443", ""):
        with pytest.raises(InputError, match="bad_host"):
            list_hosts([name], beyond_loopback=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:7777"},
        {"Sec-Fetch-Site": "cross-site"},
        {"X-Rag-Eval-Token": None},
        {"X-Rag-Eval-Token": "wrong"},
    ],
)
def test_feedback_from_elsewhere_is_refused(viewed, changes):
    client = viewed.client()
    headers = headers_of_ours(client, **changes)
    answer = client.post("/feedback", content=json.dumps(viewed.said()), headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]
    assert viewed.given() == []


@pytest.mark.parametrize("kind", [None, "text/plain", "text/plain;application/json"])
def test_feedback_of_another_content_type_is_refused(viewed, kind):
    client = viewed.client()
    headers = headers_of_ours(client, **{"Content-Type": kind})
    answer = client.post("/feedback", content=json.dumps(viewed.said()), headers=headers)
    assert answer.status_code == 415
    assert viewed.given() == []


def test_a_tool_without_an_origin_may_give_feedback(viewed):
    client = viewed.client()
    headers = headers_of_ours(client, Origin=None, **{"Sec-Fetch-Site": None})
    answer = client.post("/feedback", content=json.dumps(viewed.said()), headers=headers)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("mode", "target", "status"),
    [
        ("navigate", "document", 200),
        ("no-cors", "image", 403),
        ("navigate", "iframe", 403),
        ("cors", "empty", 403),
    ],
)
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_may_link_here_and_embed_nothing(viewed, mode, target, status, site):
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": target}
    assert viewed.client().get("/", headers=headers).status_code == status


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("excess", "status"), [(0, 400), (1, 413), (10_000_000, 413)])
def test_bodies_are_bounded_however_they_are_sent(viewed, chunked, excess, status):
    client = viewed.client()
    whole = b'"' + b"x" * (MAX_BODY - 2 + excess) + b'"'
    sent = (whole[at : at + 4096] for at in range(0, len(whole), 4096)) if chunked else whole
    answer = client.post("/feedback", content=sent, headers=headers_of_ours(client))
    assert answer.status_code == status
    assert_headers(answer)


def test_a_body_that_comes_too_slowly_is_given_up(monkeypatch):
    async def receive():
        await asyncio.sleep(3600)

    monkeypatch.setattr(security, "BODY_SECONDS", 0.05)
    headers = {"host": "localhost", "x-rag-eval-token": "t", "content-type": "application/json"}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "method": "POST", "headers": raw}, receive)
    with pytest.raises(HTTPException) as caught:
        asyncio.run(security.read_change(request, "t"))
    assert caught.value.status_code == 408


def test_read_only_takes_nothing(viewed):
    before = viewed.home.joinpath("rag_eval.db").read_bytes()
    headers = {"X-Rag-Eval-Token": "", "Origin": OURS, "Content-Type": "application/json"}
    client = viewed.client(read_only=True)
    answer = client.post("/feedback", content=json.dumps(viewed.said()), headers=headers)
    assert answer.status_code == 403
    assert "read-only" in answer.json()["error"]
    assert viewed.home.joinpath("rag_eval.db").read_bytes() == before


def test_with_a_token_nothing_is_shown_without_it(viewed):
    client, run = viewed.client(token=TOKEN, beyond_loopback=True), f"/runs/{viewed.run_id}"
    pages = ["/", f"{run}/", f"{run}/report", f"{run}/explorer/summary.json", "/assets/viewer.css"]
    for address in [*pages, "/nothing", f"{run}/?token={TOKEN}"]:
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
    assert answer.status_code == 200
    assert_headers(answer)
    assert '<meta http-equiv="refresh" content="0;url=/">' in answer.text
    assert TOKEN not in answer.text
    cookie, *attributes = answer.headers["set-cookie"].lower().split("; ")
    assert set(attributes) == {"httponly", "samesite=strict", "path=/"}
    assert cookie.startswith(f"rag_eval_view_{PORT}=")
    assert TOKEN not in cookie
    assert client.get("/").status_code == 200
    assert give(client, viewed.said()).status_code == 201
    other = viewed.client(token=TOKEN)
    assert other.get("/", headers={"Cookie": cookie}).status_code == 401  # another process's cookie


@pytest.mark.parametrize(
    "query",
    [
        "token=wrong",
        "token=",
        f"token={TOKEN}x",
    ],
)
def test_a_wrong_token_opens_nothing(viewed, query):
    answer = viewed.client(token=TOKEN).get(f"/?{query}")
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("token", ["", "a" * 19, "a" * 201, "a" * 30 + "/", "é" * 30])
def test_a_token_that_could_be_guessed_or_not_be_linked_is_refused(viewed, token):
    with pytest.raises(InputError, match="bad_token") as caught:
        create_app(viewed.settings, token=token)
    assert not token or token not in str(caught.value)


def test_beyond_the_loopback_there_is_a_token(viewed):
    with pytest.raises(ValueError, match="access token"):
        create_app(viewed.settings, beyond_loopback=True)
