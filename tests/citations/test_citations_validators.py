"""Every rule of the citation payload, each with citations that break it in many ways; nothing that stands in a record raises."""

import copy
import json

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.citations.live_index import LiveIndex, word_spans
from rag_eval.citations.validators import LIVE_CODES, Rules, validate
from rag_eval.corpus.analyzer import words
from rag_eval.records.citation import CODES, FIXES, REQUIRED

TEXT = "Results are kept.\nA failed  job is tried three more times, caf\u00e9 included."
DOCUMENTS = pd.DataFrame(
    {"doc_id": ["a.md", "b.md"], "text": [TEXT, "Other words."], "rev": ["r1", "r2"]}
)
SECTIONS = pd.DataFrame(
    {
        "section_id": ["a.md#one", "a.md#two", "b.md"],
        "doc_id": ["a.md", "a.md", "b.md"],
        "start": [0, 18, 0],
        "end": [18, len(TEXT), 12],
    }
)
CHUNKS = pd.DataFrame(
    {
        "chunk_id": ["s1", "s2", "s3"],
        "doc_id": ["a.md", "a.md", "b.md"],
        "section_id": ["a.md#one", "a.md#two", "b.md"],
        "start": [0, 18, 0],
        "end": [18, len(TEXT), 12],
    }
)
GOOD = {
    "doc_id": "a.md",
    "section_id": "a.md#two",
    "snippet_id": "s2",
    "source_url": "https://example.org/a",
    "offsets": {"start": 18, "end": 62, "unit": "char"},
    "tokens": 11,
    "index_hash": "bm25s:1",
    "embed_model": "",
    "analyzer": "english-porter-1",
    "rev": "r1",
    "score_raw": 3.2,
    "score_norm": 1.0,
    "k_pos": 1,
    "k_final": 1,
}
HUGE = 10**400


def shown(value):  # the same in every process: an object's own repr is its address
    return type(value).__name__ if type(value) is object else repr(value)


JUNK = [
    None,
    True,
    False,
    0,
    -1,
    1.0,
    float("nan"),
    float("inf"),
    HUGE,
    -HUGE,
    "",
    "  ",
    "x",
    [],
    [1, 2],
    {},
    {"start": 1},
    object(),
]


@pytest.fixture(scope="module")
def live():
    return LiveIndex.from_frames(
        DOCUMENTS, SECTIONS, CHUNKS, {"bm25s:1", "exact:2"}, "english-porter-1"
    )


def changed(**fields):
    record = copy.deepcopy(GOOD)
    for name, value in fields.items():
        if value is ...:
            del record[name]
        else:
            record[name] = value
    return record


def first(record, live=None, rules=None):
    verdicts = validate([record], live, rules)
    return verdicts.codes[0], verdicts.fields[0]


def test_a_whole_citation_is_ok(live):
    for index in (None, live):
        verdicts = validate([GOOD], index)
        assert (verdicts.codes, verdicts.fields, verdicts.passed) == (("ok",), ("",), True)
        assert verdicts.counts == {code: int(code == "ok") for code in CODES}


def test_every_code_names_its_fix():
    assert set(FIXES) == set(CODES) - {"ok"}


@pytest.mark.parametrize(
    "name", [name for name in REQUIRED if name not in {"offsets", "tokens", "embed_model"}]
)
@pytest.mark.parametrize("value", [..., *(junk for junk in JUNK if junk != "x")], ids=shown)
def test_text_that_is_absent_blank_or_no_text_is_missing(live, name, value):
    assert first(changed(**{name: value}), live) == (f"missing_{name}", name)


@pytest.mark.parametrize("value", [..., None, 1, 1.0, True, [], {}], ids=shown)
def test_embed_model_may_be_empty_but_must_be_said(value):
    assert first(changed(embed_model=value)) == ("missing_embed_model", "embed_model")
    assert first(changed(embed_model=""))[0] == first(changed(embed_model="minilm"))[0] == "ok"


@pytest.mark.parametrize(
    "value", [..., None, -1, 1.0, True, "7", HUGE, float("nan"), []], ids=shown
)
def test_tokens_are_a_whole_number(value):
    assert first(changed(tokens=value)) == ("missing_tokens", "tokens")


@pytest.mark.parametrize(
    ("offsets", "code", "field"),
    [
        (..., "missing_offsets", "offsets"),
        (None, "missing_offsets", "offsets"),
        ([18, 62], "bad_offsets", "offsets"),
        ("18-62", "bad_offsets", "offsets"),
        (18, "bad_offsets", "offsets"),
        (True, "bad_offsets", "offsets"),
        ({}, "bad_offsets", "offsets.start"),
        *(
            ({"start": bad, "end": 62, "unit": "char"}, "bad_offsets", "offsets.start")
            for bad in (None, True, False, 1.0, float("nan"), "1", -1, HUGE, [])
        ),
        *(
            ({"start": 18, "end": bad, "unit": "char"}, "bad_offsets", "offsets.end")
            for bad in (None, True, 62.0, float("inf"), "62", 18, 17, HUGE, {})
        ),
        *(
            ({"start": 18, "end": 62, "unit": bad}, "bad_offsets", "offsets.unit")
            for bad in (None, "", "byte", "CHAR", 1, ["char"], {})
        ),
        ({"start": 18, "end": 62}, "bad_offsets", "offsets.unit"),
    ],
    ids=shown,
)
def test_offsets(offsets, code, field, live):
    assert first(changed(offsets=offsets)) == first(changed(offsets=offsets), live) == (code, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", 3),
        ("window", {}),
        ("window", {"pre": -1, "post": 0}),
        ("window", {"pre": 1.5, "post": 0}),
        ("page", -1),
        ("page", True),
        ("page", 1.5),
        ("page", " "),
    ],
)
def test_a_window_or_page_that_cannot_be(field, value):
    assert first(changed(**{field: value})) == ("bad_offsets", field)


def test_offsets_end_within_the_document_in_their_unit(live):
    n_words = len(words(TEXT))
    for unit, length in (("char", len(TEXT)), ("token", n_words)):
        assert first(changed(offsets={"start": 4, "end": length, "unit": unit}), live)[0] == "ok"
        assert first(changed(offsets={"start": 4, "end": length + 1, "unit": unit}), live) == (
            "bad_offsets",
            "offsets.end",
        )


def test_offsets_touch_the_snippet_that_they_name(live):
    assert first(changed(offsets={"start": 0, "end": 18, "unit": "char"}), live) == (
        "bad_offsets",
        "offsets",
    )
    assert first(changed(offsets={"start": 0, "end": 19, "unit": "char"}), live)[0] == "ok"
    one = {"snippet_id": "s1", "section_id": "a.md#one"}
    assert first(changed(offsets={"start": 17, "end": 30, "unit": "char"}, **one), live)[0] == "ok"
    assert first(changed(offsets={"start": 18, "end": 30, "unit": "char"}, **one), live) == (
        "bad_offsets",
        "offsets",
    )


def test_the_rarer_unit_is_the_mixed_one(live):
    token = changed(offsets={"start": 4, "end": 6, "unit": "token"})
    assert validate([GOOD, token, GOOD], live).codes == ("ok", "mixed_units", "ok")
    assert validate([token, token, GOOD], live).codes == ("ok", "ok", "mixed_units")
    assert validate([token, GOOD]).codes == ("mixed_units", "ok")
    assert validate([token, token], live).passed


def test_a_snippet_may_be_cited_under_every_section_that_it_reaches_into():
    chunks = CHUNKS.assign(end=[19, len(TEXT), 12])
    reaching = LiveIndex.from_frames(DOCUMENTS, SECTIONS, chunks, {"bm25s:1"}, "english-porter-1")
    record = changed(snippet_id="s1", offsets={"start": 17, "end": 19, "unit": "char"})
    assert first(record, reaching)[0] == "ok"
    assert first({**record, "section_id": "b.md"}, reaching) == ("unknown_snippet", "section_id")


def test_one_segment_cites_one_section_unless_whitelisted():
    one, two, three = (
        changed(query_id="q", segment=0, section_id=name) for name in ("A", "B", "C")
    )
    other = changed(query_id="q", segment=1, section_id="B")
    elsewhere = changed(query_id="p", segment=0, section_id="B")
    whole = [changed(query_id="q", segment=-1, section_id=name) for name in "AB"]
    assert validate([one, two, one, other, elsewhere, *whole]).codes == (
        "ok",
        "cross_section_reuse",
        *("ok",) * 5,
    )
    assert validate([one, two], rules=Rules((("B", "A"),))).passed
    assert validate([one, two, three], rules=Rules((("A", "B"), ("A", "C")))).codes == (
        "ok",
        "ok",
        "cross_section_reuse",
    )
    assert validate([changed(section_id=name) for name in "AB"]).passed


@pytest.mark.parametrize("segment", [[], {}, True, 1.0, float("nan"), "", -2, HUGE], ids=shown)
def test_a_segment_that_cannot_be_read_does_not_switch_the_rule_off(segment):
    assert first(changed(query_id="q", segment=segment)) == ("cross_section_reuse", "segment")


def test_scores():
    assert first(changed(score_raw=..., score_norm=...)) == ("missing_score", "score_raw")
    assert first(changed(score_raw=None, score_norm=None)) == ("missing_score", "score_raw")
    assert (
        first(changed(score_raw=...))[0]
        == first(changed(score_norm=...))[0]
        == first(changed(score_raw=-3))[0]
        == "ok"
    )
    for bad in (True, "1", float("nan"), float("inf"), HUGE, []):
        assert first(changed(score_raw=bad)) == ("missing_score", "score_raw")
        assert first(changed(score_norm=bad)) == ("missing_score", "score_norm")
    assert first(changed(score_norm=1.01)) == ("missing_score", "score_norm")


@pytest.mark.parametrize("bad", [None, 0, -1, 1.0, True, "1", float("nan"), HUGE, []], ids=shown)
def test_ranks(bad):
    assert first(changed(k_pos=bad)) == ("trace_incomplete", "k_pos")
    assert first(changed(rerank_score=0.5, k_final=bad)) == ("trace_incomplete", "k_final")
    assert first(changed(reranked=True, k_final=bad)) == ("trace_incomplete", "k_final")
    assert first(changed(k_final=bad))[0] == ("ok" if bad is None else "trace_incomplete")


def test_a_rerank_score_is_a_number():
    assert first(changed(rerank_score="high")) == ("trace_incomplete", "rerank_score")
    assert first(changed(reranked="yes")) == ("trace_incomplete", "reranked")


def test_identity_against_the_live_index(live):
    assert first(changed(index_hash="bm25s:old"), live) == ("mismatch_index_hash", "index_hash")
    assert first(changed(index_hash="exact:2"), live)[0] == "ok"
    assert first(changed(rev="r2"), live) == ("rev_mismatch", "rev")
    verdicts = validate([GOOD, changed(analyzer="english-porter-2")], live)
    assert verdicts.codes == ("ok", "analyzer_mismatch")
    assert verdicts.fail_fast
    assert not validate([GOOD, changed(rev="r2")], live).fail_fast


def test_snippets_that_do_not_exist_as_they_are_named(live):
    assert first(changed(snippet_id="s9"), live) == ("unknown_snippet", "snippet_id")
    assert first(
        changed(doc_id="b.md", rev="r2", offsets={"start": 0, "end": 5, "unit": "char"}), live
    ) == ("unknown_snippet", "doc_id")
    assert first(changed(doc_id="made-up.md"), live) == ("unknown_snippet", "doc_id")
    assert first(changed(section_id="a.md#nine"), live) == ("unknown_snippet", "section_id")
    assert first(changed(section_id="a.md#one"), live) == ("unknown_snippet", "section_id")
    assert first(
        changed(snippet_id="s1", offsets={"start": 0, "end": 9, "unit": "char"}), live
    ) == ("unknown_snippet", "section_id")
    assert first({"query_id": "q", "doc_id": "a.md", "in_evidence": False}) == (
        "unknown_snippet",
        "snippet_id",
    )
    assert first(changed(in_evidence="no")) == ("unknown_snippet", "in_evidence")


@pytest.mark.parametrize(
    ("quote", "ok"),
    [
        (TEXT[18:62], True),
        ("  A failed job\tis tried three more times, ca\n", False),
        ("A failed job is tried\nthree\u00a0more times, caf", True),
        ("A failed job is tried three more times, cafe\u0301", False),
        ("a failed job is tried three more times, caf", False),
        ("A failed job is tried three more times caf", False),
        ("A failed job is tried three more", False),
        (" ", False),
        ("", True),
        (None, True),
    ],
    ids=shown,
)
def test_quotes_are_verbatim_but_for_white_space_and_composition(live, quote, ok):
    assert first(changed(quote=quote, offsets={"start": 18, "end": 62, "unit": "char"}), live) == (
        ("ok", "") if ok else ("quote_mismatch", "quote")
    )


def test_quotes_in_both_compositions_and_units(live):
    last = changed(offsets={"start": 58, "end": 63, "unit": "char"}, quote="cafe\u0301")
    assert TEXT[59:63] == "caf\u00e9"
    last["offsets"]["start"] = 59
    assert first(last, live)[0] == "ok"
    tokens = changed(offsets={"start": 3, "end": 6, "unit": "token"}, quote="A failed job")
    assert first(tokens, live)[0] == "ok"
    assert first({**tokens, "quote": "failed job"}, live)[0] == "quote_mismatch"


@pytest.mark.parametrize("quote", [1, True, [], {}, float("nan")], ids=shown)
def test_a_quote_that_is_no_text(quote):
    assert first(changed(quote=quote)) == ("quote_mismatch", "quote")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cited_before_answer": True}, ""),
        ({"cited_before_answer": False}, "cited_before_answer"),
        ({"cited_before_answer": "yes"}, "cited_before_answer"),
        ({"order": ["citations", "answer"]}, ""),
        ({"order": ["citations"]}, ""),
        ({"order": ["answer", "citations"]}, "order"),
        ({"order": ["answer"]}, "order"),
        ({"order": "citations answer"}, "order"),
        ({"order": 3}, "order"),
    ],
)
def test_citations_come_first(fields, field):
    assert first(changed(**fields)) == (("explained_before_cited", field) if field else ("ok", ""))


@pytest.mark.parametrize(
    "record", [{}, {"query_id": "q", "answer": "Yes."}, {"citations": []}, None, [], "x", 3]
)
def test_no_citation_block(record, live):
    assert first(record, live) == ("empty_citations", "")


def test_a_run_without_citations_does_not_pass():
    verdicts = validate([])
    assert verdicts.counts["empty_citations"] == 1
    assert not verdicts.passed


def test_a_citation_counts_under_every_code_that_fails(live):
    verdicts = validate(
        [changed(rev="old", k_pos=None, score_raw=..., score_norm=..., snippet_id="s9"), GOOD], live
    )
    assert verdicts.codes == ("missing_score", "ok")
    assert {code for code, n in verdicts.counts.items() if n} == {
        "missing_score",
        "trace_incomplete",
        "rev_mismatch",
        "unknown_snippet",
        "ok",
    }
    assert verdicts.valid.tolist() == [False, True]
    assert verdicts.tried["rev_mismatch"] == 2


def test_without_a_live_index_its_rules_are_said_not_to_be_tried(live):
    assert set(validate([GOOD]).not_tried) == {
        *LIVE_CODES,
        "cross_section_reuse",
        "explained_before_cited",
    }
    assert set(validate([GOOD], live).not_tried) == {
        "quote_mismatch",
        "cross_section_reuse",
        "explained_before_cited",
    }
    assert validate([changed(rev="old", index_hash="old", snippet_id="s9")]).passed


def test_the_first_code_is_the_first_in_the_order_of_the_contract(live):
    record = changed(
        doc_id=None,
        rev=3,
        offsets=[1],
        score_raw="x",
        k_pos=0,
        index_hash="old",
        quote=1,
        order=0,
        segment=[],
    )
    codes = [code for code, _ in validate([record], live).failures[0]]
    assert codes == sorted(codes, key=CODES.index)
    assert codes[0] == "missing_doc_id"
    assert len(codes) == len(set(codes)) == 9


def test_words_are_the_words_that_the_analyzer_counts():
    assert [TEXT[start:end].lower() for start, end in word_spans(TEXT)] == words(TEXT)


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["char", "token", "a.md", "s2", HUGE]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["start", "end", "unit", "pre"]), inner, max_size=3),
    ),
    max_leaves=6,
)
keys = st.sampled_from(
    [
        *GOOD,
        "window",
        "page",
        "rerank_score",
        "query_id",
        "segment",
        "quote",
        "reranked",
        "order",
        "cited_before_answer",
        "in_evidence",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(keys, anything, max_size=4), max_size=4))
def test_nothing_in_a_record_raises_and_counts_add_up(edits):
    live = LiveIndex.from_frames(DOCUMENTS, SECTIONS, CHUNKS, {"bm25s:1"}, "english-porter-1")
    verdicts = validate([{**GOOD, **edit} for edit in edits], live)
    assert set(verdicts.codes) <= set(CODES)
    assert verdicts.counts["ok"] == verdicts.codes.count("ok") == int(verdicts.valid.sum())
    assert all(verdicts.counts[code] <= verdicts.tried[code] for code in CODES[:-1])
    for code in CODES[:-1]:
        assert verdicts.counts[code] == (
            sum(code in dict(found) for found in verdicts.failures)
            if edits
            else int(code == "empty_citations")
        )


def test_records_survive_json(live):
    assert validate([json.loads(json.dumps(GOOD))], live).passed
