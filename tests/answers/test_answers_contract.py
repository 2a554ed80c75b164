"""The parser reads valid replies and gives a code to each broken reply."""

import json
from pathlib import Path

import pytest
from answer_corpus import evidence
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.answers.codes import CODES, Fault
from rag_eval.answers.contract import Citation, Parsed, judge, parse_reply
from rag_eval.core.config import Answers


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


# Each line is [terms, code, reply] in ASCII, which shows control characters and surrogates.
_CASES = Path(__file__).with_name("reply_cases.jsonl").read_text(encoding="ascii").splitlines()
_LONG = [
    ["json", "reply_too_long", "x" * 20_001],
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


def test_cases_reach_every_code_of_a_reply():
    elsewhere = {"incomplete_reply", "contract_error_reply", "validator_failed", "validator_error"}
    elsewhere |= {"prompt_too_long", "pattern_timeout", "retrieval_error", "no_output"}
    elsewhere |= {"internal_error", *(code for code in CODES if code.startswith("chat_"))}
    assert {code for *_, code in KNOWN if not code.startswith("ok:")} >= set(CODES) - elsewhere
    assert all(info.meaning and info.fix for info in CODES.values())


@given(st.text(max_size=200), st.sampled_from(list(TERMS.values())))
def test_any_text_is_read_without_an_exception(text, terms):
    assert isinstance(parse(text, terms), Parsed | Fault)


KEYS = ["citations", "answer", "deltaS", "lambda", "error", "fix", "token", "quote"]
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


def test_messages_are_short_and_printable():
    found = [parse(text, terms) for terms, text, _ in KNOWN]
    messages = [fault.message for fault in found if isinstance(fault, Fault)]
    assert messages
    assert all(0 < len(message) <= 400 and message.isprintable() for message in messages)


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
