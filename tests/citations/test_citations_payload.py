"""Rules of citation records, and payloads of real retrieved chunks under their schema."""

import json
from importlib import resources

import jsonschema
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.citations.payload import LiveIndex, payload, validate
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Identity
from rag_eval.core.types import (
    CODES,
    FIXES,
    LIVE_CODES,
    REQUIRED,
    RetrievalOptions,
)
from rag_eval.corpus.analyzer import ANALYZER, words
from rag_eval.corpus.masking import mask
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusSnapshot
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.retrieval import CorpusIndex, open_index
from rag_eval.pipeline.stages import open_runner
from rag_eval.retrieval.service import RetrievalService

TEXT = "Results are kept.\nA failed  job is tried three more times, caf\u00e9 included."
DOCUMENTS = pd.DataFrame(
    {
        "doc_id": ["a.md", "b.md"],
        "text": [TEXT, "Other words."],
        "rev": ["r1", "r2"],
        "source_url": ["https://example.org/a", "https://example.org/b"],
    }
)
PLACES = {
    "section_id": ["a.md#one", "a.md#two", "b.md"],
    "doc_id": ["a.md", "a.md", "b.md"],
    "start": [0, 18, 0],
    "end": [18, len(TEXT), 12],
}
SECTIONS = pd.DataFrame(PLACES)
CHUNKS = pd.DataFrame({**PLACES, "chunk_id": ["s1", "s2", "s3"]})
GOOD = {
    "doc_id": "a.md",
    "section_id": "a.md#two",
    "snippet_id": "s2",
    "source_url": "https://example.org/a",
    "offsets": {"start": 18, "end": 62, "unit": "char"},
    "tokens": 10,
    "index_hash": "bm25s:1",
    "embed_model": "",
    "analyzer": "english-porter-1",
    "rev": "r1",
    "score_raw": 3.2,
    "score_norm": 1.0,
    "k_pos": 1,
    "k_final": 1,
}
NAN, INF, HUGE = float("nan"), float("inf"), 10**400
NO_TEXT = (..., None, True, 0, -1, 1.0, NAN, HUGE, "", "  ", [], [1, 2], {}, {"start": 1})
NO_RANK = (0, -1, 1.0, True, "1", NAN, HUGE, [])


def index(chunks=CHUNKS):
    models = {"bm25s:1": "none", "exact:2": "all-MiniLM-L6-v2:mean"}
    return LiveIndex(DOCUMENTS, SECTIONS, chunks, models, "english-porter-1")


LIVE = index()


def changed(**fields):
    return {name: value for name, value in {**GOOD, **fields}.items() if value is not ...}


def at(start, end, unit="char"):
    return {"start": start, "end": end, "unit": unit}


def first(record, live=None):
    verdicts = validate([record], live)
    return verdicts.codes[0], verdicts.fields[0]


def codes(*records, live=None, pairs=()):
    return validate(records, live, pairs).codes


def test_whole_citation_is_ok():
    for live in (None, LIVE):
        verdicts = validate([json.loads(json.dumps(GOOD))], live)
        assert (verdicts.codes, verdicts.fields, verdicts.passed) == (("ok",), ("",), True)
        assert verdicts.counts == {code: int(code == "ok") for code in CODES}
    assert set(FIXES) == set(CODES) - {"ok"}


BROKEN = [  # change, code, field
    *(
        ({name: value}, f"missing_{name}", name)
        for name in REQUIRED
        if name not in {"offsets", "tokens", "embed_model"}
        for value in NO_TEXT
    ),
    *(({"embed_model": bad}, "missing_embed_model", "embed_model") for bad in (..., None, 1, [])),
    *(
        ({"tokens": bad}, "missing_tokens", "tokens")
        for bad in (..., None, -1, 1.0, True, "7", 2**53, HUGE, NAN, [])
    ),
    *(({"offsets": bad}, "missing_offsets", "offsets") for bad in (..., None)),
    *(({"offsets": bad}, "bad_offsets", "offsets") for bad in ([18, 62], "18-62", 18, True)),
    *(
        ({"offsets": at(bad, 62)}, "bad_offsets", "offsets.start")
        for bad in (None, True, 1.0, NAN, "1", -1, HUGE, [])
    ),
    *(
        ({"offsets": at(18, bad)}, "bad_offsets", "offsets.end")
        for bad in (None, True, 62.0, INF, "62", 18, 17, HUGE, {})
    ),
    *(
        ({"offsets": at(18, 62, bad)}, "bad_offsets", "offsets.unit")
        for bad in (None, "", "byte", "CHAR", 1, ["char"])
    ),
    *(({"score_raw": bad}, "missing_score", "score_raw") for bad in (True, "1", NAN, INF, HUGE)),
    *(({"score_norm": bad}, "missing_score", "score_norm") for bad in (1.01, True, "1", NAN)),
    ({"score_raw": ..., "score_norm": ...}, "missing_score", "score_raw"),
    *(({"k_pos": bad}, "trace_incomplete", "k_pos") for bad in (None, *NO_RANK)),
    *(({"k_final": bad}, "trace_incomplete", "k_final") for bad in NO_RANK),
    ({"rerank_score": 0.5, "k_final": None}, "trace_incomplete", "k_final"),
    ({"rerank_score": "high"}, "trace_incomplete", "rerank_score"),
    ({"in_evidence": False}, "unknown_snippet", "snippet_id"),
    *(({"quote": bad}, "quote_mismatch", "quote") for bad in (1, True, [], {}, NAN)),
    ({"cited_before_answer": False}, "explained_before_cited", "cited_before_answer"),
    ({"cited_before_answer": "yes"}, "explained_before_cited", "cited_before_answer"),
]


@pytest.mark.parametrize(("change", "code", "field"), BROKEN, ids=lambda value: repr(value)[:60])
def test_broken_record_gets_its_code_and_field(change, code, field):
    assert first(changed(**change)) == (code, field)
    if code not in LIVE_CODES:
        assert first(changed(**change), LIVE) == (code, field)


@pytest.mark.parametrize(
    "change",
    [
        {"embed_model": "none"},
        {"score_raw": ...},
        {"score_raw": None},
        {"score_norm": ...},
        {"score_raw": -3},
        {"k_final": None},
        {"index_hash": "exact:2", "embed_model": "all-MiniLM-L6-v2:mean"},
        {"tokens": 8, "offsets": at(18, 54)},  # the words at the offsets
        {"cited_before_answer": True},
        {"offsets": at(18, len(TEXT))},
        {"offsets": at(3, len(words(TEXT)), "token")},
        {"offsets": at(0, 19)},  # touches its snippet
        {"offsets": at(3, 6, "token"), "quote": "A failed job"},
        {"quote": ""},
        {"quote": None},
    ],
    ids=repr,
)
def test_sound_record_is_ok(change):
    assert first(changed(**change), LIVE) == ("ok", "")


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"index_hash": "bm25s:old"}, "mismatch_index_hash", "index_hash"),
        ({"rev": "r2"}, "rev_mismatch", "rev"),
        ({"source_url": "https://example.org/b"}, "source_url_mismatch", "source_url"),
        ({"analyzer": "english-porter-2"}, "analyzer_mismatch", "analyzer"),
        ({"snippet_id": "s9"}, "unknown_snippet", "snippet_id"),
        ({"doc_id": "made-up.md"}, "unknown_snippet", "doc_id"),
        (
            {
                "doc_id": "b.md",
                "rev": "r2",
                "source_url": "https://example.org/b",
                "offsets": at(0, 5),
            },
            "unknown_snippet",
            "doc_id",
        ),
        ({"section_id": "a.md#nine"}, "unknown_snippet", "section_id"),
        ({"section_id": "a.md#one"}, "unknown_snippet", "section_id"),
        ({"offsets": at(18, len(TEXT) + 1)}, "bad_offsets", "offsets.end"),
        ({"offsets": at(3, len(words(TEXT)) + 1, "token")}, "bad_offsets", "offsets.end"),
        ({"offsets": at(0, 18)}, "bad_offsets", "offsets"),
        ({"offsets": at(3, 6, "token"), "quote": "failed job"}, "quote_mismatch", "quote"),
    ],
    ids=repr,
)
def test_record_that_the_index_contradicts(change, code, field):
    assert first(changed(**change)) == ("ok", "")
    assert first(changed(**change), LIVE) == (code, field)


def test_snippet_may_be_cited_under_every_section_that_it_reaches_into():
    reaching = index(CHUNKS.assign(end=[19, len(TEXT), 12]))
    record = changed(snippet_id="s1", offsets=at(17, 19), tokens=1)
    assert first(record, reaching)[0] == "ok"
    assert first({**record, "section_id": "b.md"}, reaching) == ("unknown_snippet", "section_id")


def test_rarer_unit_is_the_mixed_one():
    token = changed(offsets=at(4, 6, "token"))
    assert codes(GOOD, token, GOOD, live=LIVE) == ("ok", "mixed_units", "ok")
    assert codes(token, token, GOOD) == ("ok", "ok", "mixed_units")
    assert codes(token, GOOD) == ("mixed_units", "ok")
    assert codes(token, token) == ("ok", "ok")


@pytest.mark.parametrize(
    ("field", "value"), [("segment", 1.5), ("segment", []), ("query_id", ["q"])]
)
def test_an_unreadable_segment_does_not_evade_the_rule_of_sections(field, value):
    record = changed(**{"query_id": "q", "segment": 0, field: value})
    assert validate([record]).failures == ((("bad_segment", field),),)


@pytest.mark.parametrize(
    ("value", "field"),
    [(True, ""), (None, ""), (False, "snippet_id"), ("true", "in_evidence"), (1, "in_evidence")],
)
def test_only_true_and_null_state_that_a_citation_is_in_the_evidence(value, field):
    expected = ("unknown_snippet", field) if field else ("ok", "")
    assert first(changed(in_evidence=value)) == expected


@pytest.mark.parametrize("quote", ["a", ".", " ", "- 7"])
def test_a_quote_has_two_letters_or_digits(quote):
    assert first(changed(quote=quote)) == ("quote_mismatch", "quote")


def test_one_segment_cites_one_section_unless_whitelisted():
    one, two, three = (
        changed(query_id="q", segment=0, section_id=name) for name in ("A", "B", "C")
    )
    others = [
        changed(query_id="q", segment=1, section_id="B"),
        changed(query_id="p", segment=0, section_id="B"),
        changed(query_id="q", segment=-1, section_id="B"),
    ]
    reused = ("ok", "cross_section_reuse", "ok")
    assert codes(one, two, one, *others) == (*reused, *["ok"] * len(others))
    assert codes(one, two, pairs=[("B", "A")]) == codes(one, two, pairs=None) == ("ok", "ok")
    assert codes(one, two, three, pairs=[("A", "B"), ("A", "C")])[2] == "cross_section_reuse"


def test_citations_without_a_segment_support_the_whole_answer():
    bare = [changed(section_id=name) for name in "AB"]
    assert codes(*bare) == ("ok", "cross_section_reuse")
    named = [{**one, "query_id": "q"} for one in bare]
    assert codes(*named) == ("ok", "cross_section_reuse")
    assert codes(bare[0], named[1]) == ("ok", "ok")  # two answers
    whole = [{**one, "segment": -1} for one in bare]
    assert codes(*whole) == codes(bare[0], whole[1]) == ("ok", "cross_section_reuse")


def test_long_quotes_may_be_cut_and_masked():
    text = f"{'Jobs are tried again. ' * 20}Write to jane.doe@" + "example.org for more."
    documents = pd.DataFrame({"doc_id": ["d"], "text": [text], "rev": ["r1"]})
    documents["source_url"] = GOOD["source_url"]
    places = pd.DataFrame({"section_id": ["d"], "doc_id": ["d"], "start": [0], "end": [999]})
    chunks = places.assign(chunk_id="c")
    long = LiveIndex(documents, places, chunks, {"bm25s:1": "none"}, "english-porter-1")
    own = {"doc_id": "d", "section_id": "d", "snippet_id": "c"}
    whole = text[:440]
    for quote, chars, right in (
        (whole[:150] + "…", len(whole), True),
        (whole[:152].replace(" ", "\n") + "…", len(whole), True),
        (whole, None, True),
        (whole[:150] + "…", None, False),  # no field says that the quote is cut
        (whole[:150] + "…", 100, False),  # the quote is longer than its source
        (whole[:150], len(whole), False),
        ("Jobs never fail…", len(whole), False),
        ("…", len(whole), False),
        (whole[5:150] + "…", len(whole), False),
        (whole[:150] + "…", "400", False),
    ):
        record = changed(**own, offsets=at(0, len(whole)), quote=quote, quote_chars=chars)
        record["tokens"] = 80
        assert codes(record, live=long) == ("ok" if right else "quote_mismatch",), quote
    start = text.index("Write")
    masked = mask(text[start:]).text
    for quote, code in ((masked, "ok"), (masked[:-1], "quote_mismatch")):
        record = changed(**own, offsets=at(start, len(text)), quote=quote, tokens=8)
        assert codes(record, live=long) == (code,)
    no_secret = changed(**own, offsets=at(0, 30), tokens=6, quote="[key" + "█" * 26)
    assert codes(no_secret, live=long) == ("quote_mismatch",)


@pytest.mark.parametrize(
    ("quote", "right"),
    [
        (TEXT[18:62], True),
        ("A failed job is tried\nthree\u00a0more times, caf", True),
        ("A failed job is tried three more times, cafe\u0301", False),
        ("a failed job is tried three more times, caf", False),
        ("A failed job is tried three more", False),
        (" ", False),
    ],
)
def test_quote_is_verbatim_but_for_white_space(quote, right):
    code = ("ok", "") if right else ("quote_mismatch", "quote")
    assert first(changed(quote=quote, offsets=at(18, 62)), LIVE) == code


@pytest.mark.parametrize(
    "record", [{}, {"query_id": "q", "answer": "Yes."}, {"citations": []}, None, [], "x", 3]
)
def test_record_without_a_citation_is_empty(record):
    assert first(record, LIVE) == ("empty_citations", "")


def test_run_without_citations_does_not_pass():
    verdicts = validate([])
    assert verdicts.counts["empty_citations"] == 1
    assert not verdicts.passed


def test_citation_counts_under_every_code_that_fails():
    bad = changed(rev="old", k_pos=None, score_raw=..., score_norm=..., snippet_id="s9")
    verdicts = validate([bad, GOOD], LIVE)
    assert verdicts.codes == ("missing_score", "ok")
    failed = {"missing_score", "trace_incomplete", "rev_mismatch", "unknown_snippet"}
    assert {code for code, n in verdicts.counts.items() if n} == {*failed, "ok"}
    assert verdicts.valid.tolist() == [False, True]


BESIDE = "window page rerank_score query_id segment quote cited_before_answer"
plain = st.sampled_from(["char", "token", "a.md", "s2", HUGE, True, None, NAN]) | st.integers()
parts = st.sampled_from(["start", "end", "unit", "pre"])
anything = st.recursive(
    plain | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(parts, inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from([*GOOD, *BESIDE.split(), "in_evidence"])


@settings(max_examples=150)
@given(st.lists(st.dictionaries(keys, anything, max_size=4), min_size=1, max_size=4))
def test_nothing_in_a_record_raises_and_counts_add_up(edits):
    verdicts = validate([{**GOOD, **edit} for edit in edits], LIVE)
    assert verdicts.counts["ok"] == verdicts.codes.count("ok") == int(verdicts.valid.sum())
    for code in CODES[:-1]:
        n = sum(code in dict(found) for found in verdicts.failures)
        assert verdicts.counts[code] == n


# ---- Payloads of real chunks, and the published schema


@pytest.fixture(scope="module")
def smoke(project_root, tmp_path_factory):
    """Return the chunks that each strategy of the smoke gold set retrieves, and the live index."""
    home = tmp_path_factory.mktemp("citations")
    settings = Settings.model_validate({"home": home / "home", "reports": home / "reports"})
    evaluation = open_gold_set(project_root / "gold_sets" / "smoke", settings)
    strategies = open_index(evaluation, open_runner(evaluation).get(AdmittedChunks)).strategies
    about = open_runner(evaluation).get(CorpusIndex).about.strategies.values()
    models = {
        one.index_hash: Identity(one.index_hash, one.embed_model).stated_model for one in about
    }
    corpus, chunks = (
        open_runner(evaluation).get(CorpusSnapshot).artifact,
        open_runner(evaluation).get(AdmittedChunks).artifact,
    )
    documents, sections = corpus.frame("documents"), corpus.frame("sections")
    found = {}
    for name, strategy in strategies.items():
        kind = strategy.spec.kind
        seed = evaluation.config.seeds[0]
        service = RetrievalService(
            {kind: strategy}, documents, corpus_rev="r", default=kind, seed=seed
        )
        result = service.retrieve("What happens to a job that fails?", RetrievalOptions(top_k=5))
        found[name] = list(result.chunks)
    return found, LiveIndex(documents, sections, chunks.frame("chunks"), models, ANALYZER)


def schema(part=None):
    text = (resources.files("rag_eval.core") / "citation_payload.schema.json").read_text("utf-8")
    published = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(published)
    record = {"$ref": f"#/$defs/{part}", "$defs": published["$defs"]} if part else published
    return jsonschema.Draft202012Validator(record)


def test_payloads_of_every_strategy_keep_the_schema_and_are_ok(smoke):
    found, live = smoke
    assert found
    for name, chunks in found.items():
        assert chunks, name
        records = [json.loads(json.dumps(payload(chunk), allow_nan=False)) for chunk in chunks]
        for record in records:
            schema().validate(record)
        quoting = [
            {**record, "quote": chunk.text} for record, chunk in zip(records, chunks, strict=True)
        ]
        assert validate(quoting, live, None).passed, name
        assert all({"window", "k_final"} <= record.keys() for record in records)
        assert all(":" in one["embed_model"] or one["embed_model"] == "none" for one in records)


@pytest.mark.parametrize(
    "change",
    [
        *({name: bad} for name in REQUIRED for bad in (..., None, 1.5, [], True)),
        *({name: " "} for name in ("doc_id", "section_id", "snippet_id", "index_hash", "rev")),
        *({"offsets": bad} for bad in (at(-1, 2), at(0, 0), at(0, 2, "byte"), {"start": 0}, "1-2")),
        *({"score_raw": bad} for bad in ("1", True, [])),
        *({"k_pos": bad} for bad in (..., 0, 1.5, "1", True)),
        {"score_norm": 2},
        {"score_raw": None, "score_norm": None},
        {"rerank_score": 0.5, "k_final": None},
        {"rerank_score": "high"},
    ],
    ids=repr,
)
def test_schema_refuses_what_the_structural_rules_refuse(change):
    assert first(changed(**change))[0] != "ok"
    assert not schema().is_valid(changed(**change))


def test_first_code_is_the_first_of_the_contract():
    wrong = {"doc_id": None, "rev": 3, "offsets": [1], "score_raw": "x", "k_pos": 0}
    record = changed(**wrong, index_hash="old", quote=1, cited_before_answer=0)
    found = [code for code, _ in validate([record], LIVE).failures[0]]
    assert found == sorted(found, key=CODES.index)
    assert found[0] == "missing_doc_id"
    assert len(found) == len(set(found)) == 8
