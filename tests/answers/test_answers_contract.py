"""Replies are read or get a code, and are held against their evidence by the gates."""

import json
from pathlib import Path

import pandas as pd
import pytest
from answer_corpus import DOCS, evidence, library, scored
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.answers.contract import find_paths, judge
from rag_eval.answers.replies import CODES, Citation, Fault, Parsed, parse_reply, read_token
from rag_eval.core.config import Answers

# ---- The form of a reply


def terms(form, analyze_only, *verdicts, max_reply_chars=20_000):
    """Return answer settings for these replies, and whether the prompt is analyze-only."""
    fields = {"response_schema": form, "verdicts": verdicts or ("SUPPORTED",)}
    return Answers(max_reply_chars=max_reply_chars, **fields), analyze_only


JSON = terms("json", True)
TERMS = {
    "json": JSON,
    "json_ground": terms("json", False),
    "verdict": terms("verdict", True, "SUPPORTED", "CONTRADICTED", "NOT FOUND"),
    "verdict_ground": terms("verdict", False),
}

WEST = "docs/capitals.md:2"
GOOD = {
    "citations": [WEST],
    "answer": "Paris is the capital of France.",
    "deltaS": 0.3,
    "lambda": "convergent",
}
GOOD_VERDICT = f"VERDICT=SUPPORTED\nCITATIONS={WEST}\nParis is the capital of France."


def reply(**changes) -> str:
    return json.dumps({**GOOD, **changes}, ensure_ascii=False)


def parse(text, terms):
    settings, analyze_only = terms
    return parse_reply(text, settings, analyze_only=analyze_only)


def outcome(text, terms) -> str:
    """Return `ok:<outcome>`, or the codes of the problems: first the parser's, then the gates'."""
    parsed = parse(text, terms)
    if isinstance(parsed, Fault):
        return parsed.code
    if parsed.outcome == "contract_error_reply":
        return "ok:contract_error_reply"
    refusal_to = None if parsed.outcome == "answered" else "Where is Paris?"
    judged = judge(parsed.text, parsed.citations, evidence(), refusal_to=refusal_to)
    return ",".join(fault.code for fault in judged.faults) or f"ok:{parsed.outcome}"


# ---- The auditable block: citations name snippets, and the evidence completes their fields

AUDITABLE = terms("auditable", True)
WHOLE = {
    "snippet_id": "d970689642633660e77452982521663b",
    "section_id": "docs/capitals.md#west",
    "source_url": "https://example.org/docs/capitals.md",
    "offsets": {"start": 0, "end": 78, "unit": "char"},
    "tokens": 13,
}
SOUTH_ID = "f37494453c4c91070eff9227b9065369"
SENTENCE = {"start": 11, "end": 42}
PARIS = "Paris is the capital of France."


def part(*names, **more):
    return {**{name: WHOLE[name] for name in names}, **more}


# citation, then its code, or the text that it cites
AUDITED = [
    (WHOLE, None),
    (part("snippet_id"), None),
    (part("snippet_id", section_id=None, source_url=None, offsets=None, tokens=None), None),
    (part("snippet_id", offsets=SENTENCE), PARIS),
    (part("snippet_id", quote=" Paris is\nthe capital "), "Paris is the capital"),
    (part("snippet_id", offsets={"start": 10, "end": 43}), PARIS),
    (part("section_id", "offsets"), "wrong_schema"),
    ({}, "wrong_schema"),
    ({"snippet_id": ""}, "wrong_schema"),
    ({"snippet_id": "invented"}, "unknown_snippet"),
    ({**WHOLE, "snippet_id": "invented"}, "unknown_snippet"),
    ({**WHOLE, "snippet_id": SOUTH_ID}, "wrong_field"),
    ({**WHOLE, "section_id": "docs/capitals.md#south"}, "wrong_field"),
    ({**WHOLE, "source_url": "https://example.org/"}, "wrong_field"),
    (part("snippet_id", offsets={"start": 79, "end": 108}), "bad_offsets"),
    (part("snippet_id", offsets={"start": 42, "end": 11}), "bad_offsets"),
    (part("snippet_id", offsets={"start": -9, "end": 42}), "bad_offsets"),
    (part("snippet_id", offsets={"start": 76, "end": 78}), "bad_offsets"),
    (part("snippet_id", offsets=SENTENCE, quote="Berlin"), "quote_mismatch"),
    (part("snippet_id", offsets={"start": 1, "end": 2, "unit": "token"}), "wrong_schema"),
    (part("snippet_id", offsets={"start": 1}), "wrong_schema"),
    (part("snippet_id", tokens="13"), "wrong_schema"),
    (part("snippet_id", doc_id="docs/capitals.md"), "wrong_schema"),
    ({"token": WEST, "snippet_id": WHOLE["snippet_id"]}, "wrong_schema"),
    ({"snippet_id": "\u0000"}, "bad_characters"),
]


@pytest.mark.parametrize("form", ["json", "auditable"])
@pytest.mark.parametrize(("citation", "expected"), AUDITED)
def test_a_cited_snippet_is_completed_or_gets_a_code(citation, expected, form):
    said = reply(citations=[citation])
    found = outcome(said, terms(form, True))
    if found != "ok:answered":
        assert found == expected
        return
    parsed = parse(said, AUDITABLE)
    (span,) = judge(parsed.text, parsed.citations, evidence()).citations
    cited = DOCS["docs/capitals.md"]
    assert cited[span.start : span.end] == (expected or cited[:76])
    assert evidence()[span.evidence].chunk.snippet_id == WHOLE["snippet_id"]


@pytest.mark.parametrize(
    ("stated", "code"),
    [
        ({"ΔS": 0.3, "λ": "chaotic"}, "ok:answered"),
        ({"ΔS": None, "lambda": "chaotic"}, "ok:answered"),
        ({"ΔS": 0.3}, "wrong_schema"),
        ({"ΔS": 1.1, "λ": "chaotic"}, "wrong_schema"),
        ({"ΔS": 0.3, "λ": "undefined"}, "wrong_schema"),
        ({"ΔS": 0.3, "λ": "chaotic", "lambda": "chaotic"}, "wrong_schema"),
    ],
)
def test_both_spellings_of_the_figures_are_read(stated, code):
    said = json.dumps({"citations": [WHOLE], "answer": PARIS, **stated}, ensure_ascii=False)
    assert outcome(said, AUDITABLE) == code
    parsed = parse(said, AUDITABLE)
    if isinstance(parsed, Parsed):
        figures = (stated.get("ΔS", stated.get("deltaS")), stated.get("λ", stated.get("lambda")))
        assert (parsed.delta_s, parsed.lambda_state or None) == figures


@pytest.mark.parametrize(
    ("mark", "codes_found"),
    [("1-4", []), ("2", []), ("5", ["path_not_cited"]), ("9", ["unknown_snippet"])],
)
def test_a_mark_may_name_lines_of_a_cited_snippet(mark, codes_found):
    parsed = parse(reply(citations=[WHOLE], answer=f"{PARIS} [docs/capitals.md:{mark}]"), JSON)
    judged = judge(parsed.text, parsed.citations, evidence())
    assert codes(judged) == codes_found
    assert [span.segment for span in judged.citations] == [0]


# Each line is [terms, code, reply] in ASCII, which shows control characters and surrogates.
_CASES = Path(__file__).with_name("reply_cases.jsonl").read_text(encoding="ascii").splitlines()
_LONG = [
    ["json", "reply_too_long", "x" * 10_000_000],
    ["json", "reply_too_long", reply(answer="a" * 20_000)],
    ["json", "not_json", '{"a":' * 3900],
    ["json", "not_json", reply().replace(f'["{WEST}"]', "[" * 9000 + "]" * 9000)],
    ["json", "not_json", reply().replace("0.3", "9" * 5000)],
    ["json", "wrong_schema", '{"' + "\\ud800" + '": 1}'],
    ["json", "bad_citation", reply(citations=["x" * 3000 + ":1"])],
    ["verdict", "reply_too_long", GOOD_VERDICT + "x" * 20_000],
]
KNOWN = [(TERMS[terms], text, code) for terms, code, text in [*map(json.loads, _CASES), *_LONG]]


@pytest.mark.parametrize(
    ("terms", "text", "expected"),
    KNOWN,
    ids=[f"{number}-{code}" for number, (_, _, code) in enumerate(KNOWN)],
)
def test_reply_gets_its_code(terms, text, expected):
    assert outcome(text, terms) == expected
    fault = parse(text, terms)
    assert not isinstance(fault, Fault) or (
        len(fault.message) <= 400 and fault.message.isprintable()
    )


def test_cases_reach_every_code_of_a_reply():
    elsewhere = {"incomplete_reply", "contract_error_reply", "validator_failed", "validator_error"}
    elsewhere |= {"postprocessor_error", "no_answer"}
    elsewhere |= {"prompt_too_long", "retrieval_error", "no_output"}
    elsewhere |= {"internal_error", *(code for code in CODES if code.startswith("chat_"))}
    found = {code for *_, code in KNOWN} | {code for _, code in AUDITED}
    assert found >= set(CODES) - elsewhere
    assert all(info.meaning and info.fix for info in CODES.values())


@given(st.text(max_size=200), st.sampled_from(list(TERMS.values())))
def test_any_text_is_read_without_an_exception(text, terms):
    assert isinstance(parse(text, terms), Parsed | Fault)


KEYS = ["citations", "answer", "deltaS", "lambda", "error", "fix", "token", "quote", *WHOLE]
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_any_json_value_is_read_and_only_a_whole_object_passes(value):
    found = parse(json.dumps(value), JSON)
    if isinstance(found, Parsed):
        assert found.outcome == "contract_error_reply" or set(value) == set(KEYS[:4])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"deltaS": ...}, "deltaS: Field required."),
        (
            {"citations": [{"snippet_id": 3}]},
            "citations[0].snippet_id: Input should be a valid str",
        ),
        ({"citations": [{"token": WEST, "x": 1}]}, "citations[0].x: Extra inputs are not permit"),
    ],
)
def test_a_broken_schema_names_field_and_rule(changes, message):
    values = {**json.loads(reply()), **changes}
    text = json.dumps({key: value for key, value in values.items() if value is not ...})
    fault = parse(text, JSON)
    assert isinstance(fault, Fault)
    assert fault.code == "wrong_schema"
    assert fault.message.startswith(message)


def test_good_reply_keeps_its_citations_and_figures():
    parsed = parse(reply(citations=[{"token": "docs/capitals.md:1-3", "quote": "Paris"}]), JSON)
    assert (parsed.delta_s, parsed.lambda_state, parsed.verdict) == (0.3, "convergent", "")
    assert parsed.citations == (Citation("docs/capitals.md", 1, 3, "Paris"),)
    listed = f"{WEST}, docs/capitals.md:3;My notes, part 1.md:1-3"
    parsed = parse(f"VERDICT=SUPPORTED\nCITATIONS={listed}\nParis. Pip.", TERMS["verdict"])
    assert parsed.verdict == "SUPPORTED"
    assert parsed.citations == (
        Citation("docs/capitals.md", 2, 2),
        Citation("docs/capitals.md", 3, 3),
        Citation("My notes, part 1.md", 1, 3),
    )


# ---- Provenance, quotes, sections and the two path gates

SOUTH, SETUP = "docs/capitals.md#south", "docs/setup.md#setup"
DATA = json.loads(Path(__file__).with_name("gate_cases.json").read_text(encoding="utf-8"))
PATHS = DATA["paths"]  # (text, paths in the text)
CASES = DATA["answers"]  # (body, cited tokens, codes)


def codes(judged):
    return [fault.code for fault in judged.faults]


@pytest.mark.parametrize(("text", "expected"), PATHS, ids=[text[:40] for text, _ in PATHS])
def test_paths_are_told_from_ordinary_words(text, expected):
    assert list(find_paths(text)) == expected


def test_verbatim_text_of_a_cited_item_passes_both_gates():
    """Text copied from a cited item passes, also with the addresses and file names of real docs."""
    names = "read_csv DataFrame read_parquet read_sql to_datetime merge concat read_excel HDFStore"
    for name in names.split():
        item = library().evidence(scored("api.rst", "s", getattr(pd, name).__doc__), "retrieve")
        assert item is not None
        found = judge(item.chunk.text, [Citation("api.rst", 1, item.last_line)], [item])
        assert not [code for code in codes(found) if code.startswith("path")]


@given(st.text(alphabet="ab/.\\:1-_#~ (\"'*", max_size=60))
def test_finding_paths_never_fails_and_finds_pieces_of_the_text(text):
    assert all(path in text for path in find_paths(text))


@pytest.mark.parametrize(
    ("body", "cited", "expected"),
    CASES,
    ids=[f"{number}-{body[:30]}" for number, (body, _, _) in enumerate(CASES)],
)
def test_an_answer_is_held_against_its_evidence(body, cited, expected):
    judged = judge(body, [read_token(token) for token in cited], evidence())
    assert codes(judged) == expected
    json.dumps(judged.text)


@pytest.mark.parametrize(
    ("quote", "code", "text"),
    [
        ("Berlin is the capital", None, "Berlin is the capital"),
        ("Berlin  is\nthe capital", None, "Berlin is the capital"),
        ("Paris is the capital of France. Berlin", None, "Paris is the capital of France.\nBerlin"),
        ("berlin is the capital", "quote_mismatch", None),
        ("Rome is the capital", "quote_mismatch", None),
        ("B", "quote_mismatch", None),
        ("Be", None, "Be"),
    ],
)
def test_a_quote_must_stand_in_the_cited_lines(quote, code, text):
    judged = judge("Berlin.", [Citation("docs/capitals.md", 2, 3, quote)], evidence())
    assert codes(judged) == ([code] if code else [])
    if text:
        (span,) = judged.citations
        assert span.quote == text == DOCS["docs/capitals.md"][span.start : span.end]


def test_a_whitelisted_pair_of_sections_may_share_a_sentence():
    body, west = f"Paris and pip [{WEST}] [docs/setup.md:2].", "docs/capitals.md#west"
    cited = [Citation("docs/capitals.md", 2, 2), Citation("docs/setup.md", 2, 2)]
    assert not judge(body, cited, evidence(), cross_section_allowed=[(SETUP, west)]).faults
    assert judge(body, cited, evidence(), cross_section_allowed=[(SETUP, SOUTH)]).faults


def test_marks_leave_the_text_and_number_its_sentences():
    judged = judge(
        "Paris is the capital [docs/capitals.md:2]. Rome lies on the Tiber. "
        "[docs/capitals.md:5-6] Done [1].",
        [Citation("docs/capitals.md", 2, 2), Citation("docs/capitals.md", 5, 6)],
        evidence(),
    )
    assert judged.text == "Paris is the capital. Rome lies on the Tiber. Done [1]."
    assert [span.segment for span in judged.citations] == [0, 1]


def test_cited_lines_become_characters_of_the_document():
    west = "docs/capitals.md#west"
    judged = judge("Berlin.", [Citation("docs/capitals.md", 3, 3)], evidence(SOUTH, west))
    (span,) = judged.citations
    assert (span.segment, span.evidence, span.doc_id) == (0, 1, "docs/capitals.md")
    assert DOCS["docs/capitals.md"][span.start : span.end] == "Berlin is the capital of Germany."


def test_a_repeated_citation_of_a_sentence_is_one_citation():
    mark, cited = "[docs/capitals.md:2]", Citation("docs/capitals.md", 2, 2)
    body = f"Paris is the capital {mark}{mark}{mark}. It is Paris {mark}."
    judged = judge(body, [cited, cited], evidence())
    assert [span.segment for span in judged.citations] == [0, 1]
    assert len(judge("It is Paris.", [cited, cited], evidence()).citations) == 1


def test_a_refusal_may_name_paths_of_the_question_only():
    refusal = "INSUFFICIENT EVIDENCE: what deploy/prod.yaml says"
    asked = "What does deploy/prod.yaml say?"
    assert not judge(refusal, [], evidence(), refusal_to=asked).faults
    other = judge(refusal, [], evidence(), refusal_to="What is said?")
    assert codes(other) == ["path_not_in_evidence"]
