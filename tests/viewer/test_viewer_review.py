"""Drafts are accepted, edited and dropped; nothing else of a gold set changes."""

import json
import re
import threading

import pytest
from starlette.testclient import TestClient
from viewed_project import OURS

from rag_eval.core.settings import Settings
from rag_eval.gold.scaffold import init_gold_set
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.viewer.app import MAX_BODY, ReviewDesk

HOSTILE = "<script>alert(1)</script>"
MANUAL = {
    "a.md": f"# Logs\n\n{HOSTILE}\n\nTo rotate the logs, set the limit. Then wait.\n",
    "b.md": "# Alarms\n\nIf the bell rings twice, the door opens.\n",
    "c.md": "# Keys\n\nTo open the door, press the key.\n",
}
KEPT = b'{"query_id": "own",  "text": "Mine\\u003f", "answerable": false}\r\n'


@pytest.fixture
def review(tmp_path):
    """Return the folder of a gold set with three drafts, and a client of its page."""
    (tmp_path / "docs").mkdir()
    for name, text in MANUAL.items():
        (tmp_path / "docs" / name).write_text(text)
    folder = tmp_path / "gold_sets" / "mine"
    init_gold_set(folder, tmp_path / "docs")
    questions = folder / "queries.jsonl"
    first, *others = questions.read_bytes().splitlines(keepends=True)
    questions.write_bytes(b"".join([first, KEPT, *others]))
    places = {"home": tmp_path / "home", "corpus_roots": [tmp_path / "docs"]}
    settings = Settings.model_validate({**places, "gold_sets": folder.parent})
    desk = ReviewDesk(open_gold_set(folder, settings))
    return folder, TestClient(desk.app(), base_url=OURS)


def decide(client, place, decision="accept", text="How?", **headers):
    page = client.get("/").text
    forms = re.findall(r'data-query-id="(\w+)" data-version="(\w+)"', page)
    token = re.search(r'rag-eval-token" content="([^"]+)"', page)[1]
    return lambda: client.post(
        "/decide",
        json=dict(zip(("query_id", "version"), forms[place], strict=True))
        | {"decision": decision, "text": text},
        headers={"X-Rag-Eval-Token": token, "Origin": OURS, **headers},
    )


def lines(folder, name):
    return (folder / name).read_bytes().splitlines(keepends=True)


def test_the_page_marks_the_quote_and_shows_texts_as_texts(review):
    page = review[1].get("/").text
    assert page.count('<form class="draft"') == 3
    assert "<mark>To rotate the logs, set the limit.</mark> Then wait." in page
    assert HOSTILE not in page
    assert page.count('value=""') == 3, "a person asks about the drawn passages"


def test_accepting_changes_one_line(review):
    folder, client = review
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    old = lines(folder, "queries.jsonl")
    assert decide(client, 1, text=" What if it\n rings? ")().json() == {"decision": "accept"}
    new = lines(folder, "queries.jsonl")
    assert [a for a, b in zip(old, new, strict=True) if a == b] == [old[0], KEPT, old[3]]
    row = {"query_id": "q002", "text": "What if it rings?", "answerable": True, "tags": []}
    assert json.loads(new[2]) == row
    for name, content in before.items():
        assert name == "queries.jsonl" or (folder / name).read_bytes() == content


def test_dropping_removes_the_question_and_its_evidence(review):
    folder, client = review
    old = {name: lines(folder, name) for name in ("queries.jsonl", "answers.jsonl", "qrels.tsv")}
    assert decide(client, 0, "drop", "")().status_code == 200
    for name, before in old.items():
        rest = [line for line in before if b"q001" not in line]
        assert len(rest) == len(before) - 1
        assert lines(folder, name) == rest
    assert client.get("/").text.count('<form class="draft"') == 2


def test_a_draft_that_changed_meanwhile_is_not_overwritten(review):
    folder, client = review
    late = decide(client, 0, text="Late?")
    path = folder / "queries.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"text": ""', b'"text": "What turns logs?"', 1))
    content = path.read_bytes()
    assert late().status_code == 409
    again = decide(client, 0)
    assert (again().status_code, again().status_code) == (200, 409)
    assert (
        content.replace(b"What turns logs?", b"How?").replace(
            b'"tags": ["draft"]', b'"tags": []', 1
        )
        == path.read_bytes()
    )


def test_two_writers_at_once_lose_nothing(review):
    folder, client = review
    made = [decide(client, place, text=f"Question {place}?") for place in range(3)]
    threads = [threading.Thread(target=one) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = {json.loads(line)["text"] for line in lines(folder, "queries.jsonl")}
    assert texts == {"Mine?", "Question 0?", "Question 1?", "Question 2?"}
    assert "No draft is left" in client.get("/").text


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"text": " "}, 400),
        ({"text": "a\x1bb"}, 400),
        ({"text": "x" * 2001}, 400),
        ({"decision": "keep"}, 400),
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"X-Rag-Eval-Token": "x"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"text": "x" * MAX_BODY}, 413),
    ],
)
def test_what_cannot_be_is_refused(review, change, status):
    folder, client = review
    before = lines(folder, "queries.jsonl")
    assert decide(client, 0, **change)().status_code == status
    assert lines(folder, "queries.jsonl") == before
