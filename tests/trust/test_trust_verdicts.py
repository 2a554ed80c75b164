"""Findings about documents become verdicts about chunks: who is hit, in which order the reasons stand, and what a person allowed."""

import hashlib

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.records.frames import CHUNKS
from rag_eval.records.trust import EVIDENCE_TRUST, FINDINGS
from rag_eval.trust.verdicts import ALLOWED, BESIDE, chunk_verdicts, findings_of_chunks, vouched_for

PLACES = [
    ("a", 0, 10),
    ("a", 10, 20),
    ("a", 25, 40),
    ("b", 0, 5),
    ("c", 0, 9),
]  # characters 20 to 25 of "a" are in no chunk
DOCUMENTS = pd.Index(
    ["c", "a", "b", "empty"]
)  # documents need not stand in the order of chunks, and one may have none
ROW = {name: row for row, name in enumerate(DOCUMENTS)}


def chunks(places=PLACES):
    frame = pd.DataFrame(places, columns=["doc_id", "start", "end"])
    ids = [hashlib.sha256(repr(place).encode()).hexdigest() for place in places]
    text = pd.Series(["x" * (end - start) for _, start, end in places], dtype="str")
    return CHUNKS.check(
        frame.assign(
            chunk_id=pd.Series(ids, dtype="str"),
            doc_id=frame["doc_id"].astype("str"),
            section_id=frame["doc_id"].astype("str"),
            tokens=np.int64(1),
            title=pd.Series([""] * len(places), dtype="str"),
            text=text,
            text_hash=text,
        )[list(CHUNKS.columns)]
    )


def findings(*rows):
    """FINDINGS of (row, start, end, check.rule, severity)."""
    parts = [
        (row, start, end, *code.split(".", 1), severity, "said in our words")
        for row, start, end, code, severity in rows
    ]
    frame = pd.DataFrame(parts, columns=list(FINDINGS.columns))
    return FINDINGS.check(
        frame.astype(
            {
                name: "int64" if column.kind == "int" else "str"
                for name, column in FINDINGS.columns.items()
            }
        )
    )


def facts(names=DOCUMENTS):
    n = len(names)
    return pd.DataFrame(
        {
            "doc_id": list(names),
            "trust": [0.1 * (row + 1) for row in range(n)],
            "domain": [f"{name}.example" for name in names],
            "domain_state": ["allowed"] * n,
            "signature_state": ["missing"] * n,
            "author_state": ["unknown"] * n,
            "freshness_state": ["unknown"] * n,
            "freshness": [0.7] * n,
            "date": [""] * n,
        }
    )


def spread(*rows):
    return findings_of_chunks(findings(*rows), DOCUMENTS, chunks())


def hit(start, end, document="a"):
    return spread((ROW[document], start, end, "pattern.x", "blocked"))["row"].tolist()


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 1, [0]),
        (9, 10, [0]),
        (10, 11, [1]),
        (9, 11, [0, 1]),
        (0, 40, [0, 1, 2]),
        (19, 26, [1, 2]),
        (20, 25, []),
        (24, 26, [2]),
        (39, 60, [2]),
        (40, 50, []),
        (-1, -1, [0, 1, 2]),
    ],
)
def test_a_finding_stands_at_every_chunk_that_it_shares_a_character_with(start, end, expected):
    assert hit(start, end) == expected


def test_a_finding_about_a_document_hits_no_other_and_one_without_chunks_hits_nothing():
    assert hit(-1, -1, "b") == [3]
    assert hit(0, 3, "c") == [4]
    assert hit(-1, -1, "empty") == []
    assert hit(0, 100, "empty") == []


def test_places_and_words_of_a_finding_stay_those_of_the_document_and_rows_are_sorted():
    found = spread(
        (ROW["c"], 2, 4, "pattern.x", "warning"),
        (ROW["a"], 12, 30, "hidden.y", "blocked"),
        (ROW["a"], 9, 12, "pattern.z", "hint"),
    )
    assert found[["row", "start", "end", "check", "rule", "severity"]].to_numpy().tolist() == [
        [0, 9, 12, "pattern", "z", "hint"],
        [1, 9, 12, "pattern", "z", "hint"],
        [1, 12, 30, "hidden", "y", "blocked"],
        [2, 12, 30, "hidden", "y", "blocked"],
        [4, 2, 4, "pattern", "x", "warning"],
    ]
    assert set(found["detail"]) == {"said in our words"}
    FINDINGS.check(found)


def test_nothing_found_is_an_empty_frame_and_everything_is_clean():
    assert len(spread()) == 0
    judged = chunk_verdicts(chunks(), facts(), spread(), {})
    assert judged["verdict"].tolist() == ["clean"] * 5
    assert judged["reasons"].tolist() == [[]] * 5


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), max_size=8))
def test_what_is_hit_is_what_overlaps(spans):
    found = spread(
        *(
            (ROW["a"], start, start + length, f"pattern.r{at}", "warning")
            for at, (start, length) in enumerate(spans)
        )
    )
    expected = {
        (row, f"r{at}")
        for at, (start, length) in enumerate(spans)
        for row, (name, low, high) in enumerate(PLACES)
        if name == "a" and max(low, start) < min(high, start + length)
    }
    assert set(zip(found["row"], found["rule"], strict=True)) == expected
    assert len(found) == len(expected)


def judged(*rows, allowed=None):
    frame = chunk_verdicts(chunks(), facts(), findings(*rows), allowed or {})
    EVIDENCE_TRUST.check(frame)
    return frame


def test_a_verdict_is_that_of_the_worst_finding_and_hints_change_nothing():
    frame = judged(
        (0, 0, 1, "pattern.h", "hint"),
        (1, 0, 1, "pattern.w", "warning"),
        (1, 0, 1, "pattern.h", "hint"),
        (2, -1, -1, "manifest.changed", "blocked"),
        (2, 0, 1, "pattern.w", "warning"),
    )
    assert frame["verdict"].tolist() == ["clean", "warning", "blocked", "clean", "clean"]
    assert frame["reasons"].tolist() == [
        [],
        ["pattern.w"],
        ["manifest.changed", "pattern.w"],
        [],
        [],
    ]


def test_blocking_reasons_stand_first_then_by_name_and_each_once():
    frame = judged(
        (0, 3, 4, "pattern.b", "warning"),
        (0, 1, 2, "domain.z", "warning"),
        (0, 5, 6, "pattern.q", "blocked"),
        (0, 0, 1, "hidden.q", "blocked"),
        (0, 7, 8, "pattern.q", "blocked"),
        (0, 8, 9, "pattern.q", "warning"),
        (0, 9, 9, "pattern.a", "hint"),
    )
    assert frame["reasons"].tolist()[0] == ["hidden.q", "pattern.q", "domain.z", "pattern.b"]


def test_facts_follow_the_document_of_each_chunk():
    frame = judged()
    assert frame["doc_id"].tolist() == ["a", "a", "a", "b", "c"]
    assert frame["trust"].tolist() == pytest.approx([0.2, 0.2, 0.2, 0.3, 0.1])
    assert frame["domain"].tolist() == [
        "a.example",
        "a.example",
        "a.example",
        "b.example",
        "c.example",
    ]
    assert frame["chunk_id"].tolist() == chunks()["chunk_id"].tolist()


def test_what_is_allowed_says_so_and_is_a_warning_where_it_was_blocked():
    ids = chunks()["chunk_id"].tolist()
    rows = [
        (0, 0, 1, "pattern.x", "blocked"),
        (0, 0, 1, "domain.y", "warning"),
        (1, 0, 1, "pattern.x", "blocked"),
        (2, 0, 1, "pattern.w", "warning"),
    ]
    frame = judged(
        *rows, allowed={ids[0]: "Ann", ids[2]: "Bob", ids[3]: "Cy", "none of these": "Di"}
    )
    assert frame["verdict"].tolist() == ["warning", "blocked", "warning", "clean", "clean"]
    assert frame["allowed_by"].tolist() == ["Ann", "", "Bob", "Cy", ""]
    assert frame["reasons"].tolist() == [
        [ALLOWED, "pattern.x", "domain.y"],
        ["pattern.x"],
        [ALLOWED, BESIDE, "pattern.w"],
        [ALLOWED],
        [],
    ]


def test_what_is_warned_about_beside_what_is_blocked_is_blocked_until_that_is_allowed():
    ids = chunks()["chunk_id"].tolist()
    rows = [
        (0, 0, 1, "pattern.x", "blocked"),
        (1, 0, 1, "topic_shift.y", "warning"),
        (2, 0, 1, "domain.z", "warning"),
        (3, 0, 1, "pattern.w", "warning"),
    ]
    frame = judged(*rows)
    assert frame["verdict"].tolist() == ["blocked", "blocked", "warning", "warning", "clean"]
    assert frame["reasons"].tolist()[1] == [BESIDE, "topic_shift.y"]
    assert judged(*rows, allowed={ids[0]: "Ann"})["verdict"].tolist() == [
        "warning",
        "warning",
        "warning",
        "warning",
        "clean",
    ]


def test_many_findings_of_one_rule_stand_once_a_chunk():
    rows = [(0, place, place + 1, "pattern.x", "hint") for place in range(10)]
    assert len(spread(*rows)) <= len(chunks())


def test_nobody_can_be_vouched_for_where_neither_domains_nor_keys_are_configured():
    assert vouched_for(["not_configured"] * 2, ["not_configured"] * 2) is None


@pytest.mark.parametrize(
    ("domain", "signature", "expected"),
    [
        ("allowed", "missing", True),
        ("allowed", "not_configured", True),
        ("not_listed", "valid", True),
        ("not_configured", "valid", True),
        ("not_listed", "missing", False),
        ("lookalike", "not_configured", False),
        ("unknown", "unknown_key", False),
        ("unknown", "invalid", False),
        ("not_configured", "invalid", False),
    ],
)
def test_the_allowlist_or_a_valid_signature_vouches(domain, signature, expected):
    assert vouched_for([domain], [signature]).tolist() == [expected]


@pytest.mark.parametrize(("domain", "signature"), [("lookalike", "valid"), ("allowed", "invalid")])
def test_a_false_claim_is_not_vouched_for_whatever_else_holds(domain, signature):
    assert vouched_for([domain], [signature]).tolist() == [False]
