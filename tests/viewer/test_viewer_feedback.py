"""Feedback becomes outcomes of the right claims, and no feedback is lost."""

import json

import pandas as pd
import pytest
from test_viewer_security import headers_of_ours
from viewed_project import RETRIEVAL, give

from rag_eval.uncertainty.outcome_records import MAX_NOTE

MISSED = {"something_missing": 1.0, "evidence_not_relevant": None, "nothing_missing": 0.0}


def claim_of(viewed):
    frame = pd.read_parquet(viewed.claims)
    (row,) = [
        row
        for row in frame.to_dict("records")
        if all(row[name] == value for name, value in RETRIEVAL.items())
    ]
    return row


@pytest.mark.parametrize("feedback", list(MISSED))
def test_feedback_is_an_outcome_of_the_claim(viewed, feedback):
    answer = give(viewed.client(), viewed.said(feedback, "  the pause\nbetween tries "))
    assert answer.status_code == 201
    assert answer.json()["standing"] == "recorded"
    (row,) = viewed.given()
    claim = claim_of(viewed)
    assert row["outcome_id"] == answer.json()["outcome_id"]
    for name in "claim_id query_id group_id strategy strategy_fingerprint target k".split():
        assert row[name] == claim[name]
    assert (None if pd.isna(row["missed"]) else row["missed"]) == MISSED[feedback]
    assert (row["gold_source"], row["feedback"]) == ("user_feedback", feedback)
    assert row["note"] == "the pause between tries"
    assert pd.isna(row["inclusion_probability"])
    assert row["gold_strategies"] == ["bm25"]
    stated = claim["miss_rate"], claim["status"], claim["calibrator"]
    assert (row["shown_value"], row["shown_status"], row["shown_calibrator"]) == stated
    assert row["supersedes"] == ""


def test_what_was_said_again_adds_nothing_and_another_opinion_supersedes(viewed):
    client = viewed.client()
    opinions = [
        ("something_missing", "a"),
        ("something_missing", "b"),
        ("nothing_missing", "b"),
        ("evidence_not_relevant", ""),
        ("something_missing", "a"),
    ]
    repeated = [opinions[0], *opinions[:4], *opinions[3:]]
    answers = [give(client, viewed.said(*words)).json() for words in repeated]
    standings = ["recorded"] * 7
    standings[1] = standings[5] = "already_there"
    assert [answer["standing"] for answer in answers] == standings
    assert answers[0]["outcome_id"] == answers[1]["outcome_id"]
    rows = {row["outcome_id"]: row for row in viewed.given()}
    assert len(rows) == 5
    chain = [rows[answers[-1]["outcome_id"]]]
    while chain[-1]["supersedes"]:
        chain.append(rows[chain[-1]["supersedes"]])
    assert [(row["feedback"], row["note"]) for row in reversed(chain)] == opinions
    current = viewed.outcomes().current(gold_source="user_feedback")
    assert current["outcome_id"].tolist() == [answers[-1]["outcome_id"]]


def test_a_note_is_masked_made_visible_and_cut(viewed):
    give(viewed.client(), viewed.said(note="ask jane.doe@example.org \u202e now"))
    assert "jane" not in viewed.given()[0]["note"]
    assert "\\u202e" in viewed.given()[0]["note"]
    give(viewed.client(), viewed.said(note="\u202e" * MAX_NOTE))
    assert all(len(row["note"]) <= MAX_NOTE for row in viewed.given())


IMPOSSIBLE = [
    *({"note": note} for note in ("x" * (MAX_NOTE + 1), "a\x00b", "\ud800", None, 7)),
    *({"feedback": feedback} for feedback in ("all_fine", None)),
    *({"seed": seed} for seed in ("13", 13.0, True, 2**63)),
    *({"query_id": query} for query in ("", "x" * 1001, ["again"])),
    *({"run_id": run} for run in ("../../etc/passwd", "", "20261122T130838752Z-488d41af\n")),
    *({"strategy": {"$ne": ""}}, {"missed": False}, {"<script>": 1}, {"outcome_id": "0" * 32}),
]
NO_OBJECTS = [
    *(b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff\xfe", b"[" * 16000),
    *(b'{"seed": NaN}', b"{" + b'"a":' * 3000),
]
UNKNOWN = [
    *({"query_id": query} for query in ("none", "again' OR '1'='1")),
    *({"paraphrase_id": "none"}, {"seed": 7}, {"strategy": "none"}),
    {"run_id": "20000101T000000000Z-00000000"},
]


def test_what_cannot_be_is_refused_without_an_echo(viewed):
    client = viewed.client()
    for change in IMPOSSIBLE:
        answer = give(client, json.loads(json.dumps(viewed.said(**change))))
        assert answer.status_code == 400, change
        sentence = answer.json()["error"]
        assert sentence.startswith("Accepted is a JSON object of run_id, query_id")
        assert "script" not in sentence
        assert "passwd" not in sentence
        assert len(sentence) < 1000
    for body in NO_OBJECTS:
        answer = client.post("/feedback", content=body, headers=headers_of_ours(client))
        assert answer.status_code == 400, body
    for change in UNKNOWN:
        assert give(client, viewed.said(**change)).status_code == 404, change
    assert viewed.given() == []


def test_a_run_without_claims_takes_none(viewed):
    kept = viewed.kept()
    del kept["artifacts"]["miss_rate_claims"]
    viewed.keep(kept)
    answer = give(viewed.client(), viewed.said())
    assert answer.status_code == 409
    assert "keeps no claims" in answer.json()["error"]
    page = viewed.client().get(f"/runs/{viewed.run_id}/").text
    assert 'data-feedback="off"' in page
    assert "keeps no claims" in page


def test_a_store_that_breaks_is_said_and_not_shown(viewed, caplog):
    client = viewed.client()
    give(client, viewed.said())
    for name in ("rag_eval.db", "rag_eval.db-wal", "rag_eval.db-shm"):
        (viewed.home / name).unlink(missing_ok=True)
    (viewed.home / "rag_eval.db").write_bytes(b"this is no database, and a long one too" * 100)
    answer = give(client, viewed.said(note="second"))
    assert answer.status_code == 503
    assert "nothing was recorded" in answer.json()["error"]
    assert str(viewed.home) not in answer.text
    assert any("database_failed" in record.getMessage() for record in caplog.records)
