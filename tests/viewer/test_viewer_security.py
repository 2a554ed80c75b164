"""Requests that are refused, and the headers of every answer."""

import pytest
from viewed_project import PORT

from rag_eval.viewer.app import CONTENT_SECURITY_POLICY

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


def test_every_answer_has_the_headers(viewed):
    client, run = viewed.client(), f"/runs/{viewed.run_id}"
    pages = ["/", f"{run}/", run, "/runs/x/", "/nothing", "/assets/viewer.css"]
    pages += ["/assets/nothing", f"{run}/explorer/summary.json"]
    answers = [
        *(client.get(address) for address in pages),
        client.get("/", headers={"Host": "elsewhere.example"}),
        client.get("/", headers={"Sec-Fetch-Site": "cross-site"}),
        client.request("DELETE", "/"),
        client.post("/"),
    ]
    for answer in answers:
        assert_headers(answer)
    assert {answer.status_code for answer in answers} == {200, 307, 400, 403, 404, 405}
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
    ("host", "status"),
    [
        *((f"{name}:{PORT}", 200) for name in ("127.0.0.1", "LOCALHOST")),
        *((f"{name}:{PORT}", 400) for name in ("127.0.0.1.nip.io", "192.168.1.9", "[::]")),
        ("", 400),
    ],
)
def test_only_names_of_this_machine_are_answered(viewed, host, status):
    assert viewed.client().get("/", headers={"Host": host}).status_code == status


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
