"""Replies are untrusted: whatever comes, it is items or one of the codes, and never anything else."""

import contextlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.retrieval.external import FAILURES, QueryError, Retrieved
from rag_eval.retrieval.external_reply import parse_bytes, parse_reply

CHUNK = {"doc_id": "a.md", "text": "words", "score": 1.5}


def code(value, top_k=10):
    """What a reply comes to: Retrieved, or its code."""
    try:
        return parse_reply(value, top_k)
    except QueryError as error:
        failure = error.failure
    assert failure.code in FAILURES
    assert failure.message.isprintable()
    return failure.code


def chunk(**changes):
    return {"chunks": [{**CHUNK, **changes}]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "wrong_shape"),
        ([], "wrong_shape"),
        ({}, "wrong_shape"),
        ({"chunks": {}}, "wrong_shape"),
        ({"chunks": [None]}, "wrong_shape"),
        ({"chunks": ["a.md"]}, "wrong_shape"),
        ({"chunks": [{"text": "x", "score": 1}]}, "missing_id"),
        (chunk(doc_id=None), "missing_id"),
        (chunk(doc_id=""), "bad_id"),
        (chunk(doc_id=1.0), "bad_id"),
        (chunk(doc_id=True), "bad_id"),
        (chunk(doc_id=["a"]), "bad_id"),
        (chunk(doc_id="a" * 1001), "bad_id"),
        (chunk(id="a\x1b[31m"), "bad_id"),
        (chunk(id="a\nqid=forged"), "bad_id"),
        (chunk(section_id="\ud800"), "bad_id"),
        (chunk(id=10**30), "bad_id"),
        (
            {
                "chunks": [
                    {"id": "a", "score": 1, "text": "x"},
                    {"id": "a", "score": 1, "text": "y"},
                ]
            },
            "duplicate_id",
        ),
        ({"chunks": [CHUNK, CHUNK]}, "duplicate_id"),
        (chunk(score=None), "bad_score"),
        (chunk(score="1"), "bad_score"),
        (chunk(score=True), "bad_score"),
        (chunk(score=math.nan), "bad_score"),
        (chunk(score=-math.inf), "bad_score"),
        (chunk(score=10**400), "bad_score"),
        (chunk(text=3), "bad_text"),
        (chunk(offsets=[0, 3]), "bad_offsets"),
        (chunk(offsets={"start": 3, "end": 3}), "bad_offsets"),
        (chunk(offsets={"start": -1, "end": 3}), "bad_offsets"),
        (chunk(start=1), "bad_offsets"),
        (chunk(start=1.0, end=2.0), "bad_offsets"),
        (chunk(start=False, end=True), "bad_offsets"),
    ],
)
def test_faults_have_their_codes(value, expected):
    assert code(value) == expected


def test_what_is_read():
    found = code(
        {
            "version": "v7",
            "more": 1,
            "chunks": [
                {
                    "id": 7,
                    "doc_id": "a",
                    "section_id": "a#b",
                    "text": "x\ud800",
                    "offsets": {"start": 2, "end": 9},
                    "score": 2,
                    "extra": {},
                }
            ],
        }
    )
    item = found.items[0]
    assert (item.id, item.doc_id, item.section_id, item.text, item.start, item.end, item.score) == (
        "7",
        "a",
        "a#b",
        "x?",
        2,
        9,
        2.0,
    )
    assert found.version == "v7"
    assert code(chunk(text=None)).items[0].text == ""
    assert code(chunk(offsets={"start": 1, "end": 3, "unit": "token"})).items[0].start == -1
    assert code({"chunks": []}).items == ()


def test_one_document_may_stand_several_times_with_other_texts_or_places():
    found = code({"chunks": [CHUNK, {**CHUNK, "text": "others"}, {**CHUNK, "start": 0, "end": 4}]})
    assert len(found.items) == 3


def test_more_than_asked_for_is_cut_before_it_is_judged():
    assert (
        len(
            code(
                {"chunks": [{**CHUNK, "doc_id": f"d{n}"} for n in range(9)] + [None]}, top_k=4
            ).items
        )
        == 4
    )


BROKEN_BYTES = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"chunks": [{"doc_id": "a", "score": NaN}]}',
    b'{"chunks": [{"doc_id": "a", "score": Infinity}]}',
    b"[" * 100_000,
    b"1" * 5000,
    b"<html>",
]


@pytest.mark.parametrize("data", BROKEN_BYTES, ids=range(len(BROKEN_BYTES)))
def test_bytes_that_are_no_json(data):
    with pytest.raises(QueryError) as raised:
        parse_bytes(data, 10)
    assert raised.value.code == "malformed_reply"


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
KEYS = st.sampled_from(
    [
        "id",
        "chunk_id",
        "snippet_id",
        "doc_id",
        "section_id",
        "text",
        "score",
        "offsets",
        "start",
        "end",
    ]
)
CHUNKS = st.lists(
    st.dictionaries(
        KEYS, JSON | st.dictionaries(st.sampled_from(["start", "end", "unit"]), SCALARS), max_size=8
    )
    | JSON,
    max_size=5,
)


@given(JSON | st.fixed_dictionaries({"chunks": CHUNKS, "version": JSON}))
def test_any_json_is_items_or_a_code(value):
    found = code(value, top_k=3)
    if isinstance(found, Retrieved):
        assert len(found.items) <= 3
        for item in found.items:
            assert item.name
            assert math.isfinite(item.score)
            assert (item.start == item.end == -1) or 0 <= item.start < item.end
            item.text.encode()


@given(st.binary(max_size=200))
def test_any_bytes_are_items_or_a_code(data):
    with contextlib.suppress(QueryError):  # whose codes are FAILURES by construction
        assert isinstance(parse_bytes(data, 5), Retrieved)


@given(st.integers(0, 400))
def test_a_reply_cut_anywhere_is_malformed(at):
    whole = json.dumps({"chunks": [{**CHUNK, "doc_id": f"d{n}"} for n in range(8)]}).encode()
    with pytest.raises(QueryError) as raised:
        parse_bytes(whole[: min(at, len(whole) - 1)], 5)
    assert raised.value.code == "malformed_reply"
