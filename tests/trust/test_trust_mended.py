"""Source trust cannot be gone round: decisions are about certain bytes, what is configured is verified, and leaving something out is no way past a check."""

import datetime as dt
import hashlib

import pandas as pd
import pytest
from pydantic import ValidationError

from rag_eval.records.trust import SOURCES, Trust
from rag_eval.trust.allowing import Decision, allowed_chunks, record_decision, still_meant
from rag_eval.trust.scores import source_trust
from rag_eval.trust.signatures import generate_key
from rag_eval.trust.source_findings import source_findings

DAY = dt.date(2026, 3, 1)
AT = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def recorded(folder, *made):
    for chunk_id, doc_id, source_hash, action in made:
        record_decision(
            folder,
            Decision(
                chunk_id=chunk_id,
                doc_id=doc_id,
                source_hash=source_hash,
                action=action,
                who="Ann",
                why="quoted",
                at=AT,
            ),
        )
    return allowed_chunks(folder)


def test_a_decision_counts_for_the_bytes_that_were_looked_at_only(tmp_path):
    allowed = recorded(
        tmp_path,
        ("same", "a", sha("1"), "allow"),
        ("changed", "b", sha("2"), "allow"),
        ("gone", "c", sha("3"), "allow"),
        ("unsaid", "d", "", "allow"),
        ("other", "e", sha("1"), "allow"),
    )
    now = {
        "a": sha("1"),
        "b": sha("two"),
        "d": "",
        "e": sha("5"),
    }  # d: no hash equals no hash, and yet nobody said what was looked at
    assert still_meant(allowed, now) == ({"same": "Ann"}, ["changed", "gone", "other", "unsaid"])
    assert still_meant({}, now) == ({}, [])


def test_the_last_decision_about_a_chunk_counts_whichever_bytes_it_names(tmp_path):
    allowed = recorded(tmp_path, ("c", "a", sha("1"), "allow"), ("c", "a", sha("2"), "allow"))
    assert still_meant(allowed, {"a": sha("2")}) == ({"c": "Ann"}, [])
    assert still_meant(allowed, {"a": sha("1")}) == ({}, ["c"])
    allowed = recorded(tmp_path, ("c", "a", sha("3"), "revoke"))
    assert still_meant(allowed, {"a": sha("2")}) == ({}, [])


@pytest.mark.parametrize("bad", ["a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n", "\n"])
def test_what_is_no_hash_is_refused(bad):
    with pytest.raises(ValidationError, match="source_hash"):
        Decision(
            chunk_id="c",
            doc_id="a",
            source_hash=bad,
            action="allow",
            who="Ann",
            why="quoted",
            at=AT,
        )


def test_signatures_that_nothing_verifies_are_an_error():
    with pytest.raises(ValidationError, match="signatures: nothing verifies them; give keys"):
        Trust(signatures="signatures.jsonl", domains=("example.org",))
    assert (
        Trust(signatures="signatures.jsonl", keys={"release": generate_key()[1]}).signatures
        == "signatures.jsonl"
    )


@pytest.mark.parametrize(
    ("unlisted", "severity"), [("allow", None), ("warn", "warning"), ("block", "blocked")]
)
def test_a_document_without_an_address_is_treated_as_one_that_is_not_listed(unlisted, severity):
    frame = pd.DataFrame(
        {"doc_id": ["here", "nowhere"], "domain": ["example.org", ""]}, dtype="str"
    ).assign(source_hash=sha(""), author="", author_hash="", date="")
    sources = SOURCES.check(frame)
    config = Trust(domains=("example.org",), unlisted=unlisted)
    found = source_findings(sources, source_trust(sources, config, None, DAY), config, None, {})
    assert found[["row", "check", "rule", "severity"]].to_numpy().tolist() == (
        [] if severity is None else [[1, "domain", "no_address", severity]]
    )
    nobody = Trust(
        authors=("Ann",), unlisted=unlisted
    )  # without an allowlist there is nothing an address could stand on
    assert source_findings(
        sources, source_trust(sources, nobody, None, DAY), nobody, None, {}
    ).empty
