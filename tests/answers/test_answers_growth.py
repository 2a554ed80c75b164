"""The time to read an answer or a reply is proportional to the length, also for hostile text.

The tests compare growth, not speed: eight times the text must take less than twenty times as long.
"""

import gc
import json
import time
from pathlib import Path

import pytest
from answer_corpus import scored, small_library

from rag_eval.answers import answering, contract, replies
from rag_eval.answers.abstention import abstention
from rag_eval.answers.evidence import Events
from rag_eval.core.config import Answers
from rag_eval.corpus import analyzer
from rag_eval.corpus.analyzer import token_spans
from rag_eval.corpus.markers import read_marks
from rag_eval.measures import support
from rag_eval.measures.contradiction import find_conflicts

LENGTH = 60_000
FLOOR = 1.0
"""Seconds of processor time that no linear reader needs; growth below them is noise.

A longer text may take another branch with a fixed cost (0.1 to 0.3 s, to build the analyzer). A
reader of quadratic time needs several seconds for 60,000 characters.
"""
MOST_GROWTH = 20

SETTINGS = [
    Answers(response_schema=form, verdicts=("SUPPORTED",), max_reply_chars=1_000_000)
    for form in ("auditable", "verdict")
]


def _replies(text: str) -> None:
    for settings in SETTINGS:
        for analyze_only in (True, False):
            replies.parse_reply(text, settings, analyze_only=analyze_only)


def _judge_quote(text: str) -> None:
    item = small_library().evidence(scored("a", "s", text), "retrieve")
    if item is not None:
        quote = f"{text[:2000]}§"
        cited = replies.Citation("a", item.first_line, item.last_line, quote)
        snippet = replies.CitedSnippet(snippet_id=item.chunk.snippet_id, quote=quote)
        contract.judge("Yes.", [cited, snippet], [item])


def _sentence(text: str, passage: str) -> support.SentenceSupport:
    return support.SentenceSupport(0, text, (0,), 1.0, "supported", passage, "")


READERS = {
    "answer_sentences": support.answer_sentences,
    "numbers": analyzer.numbers,
    "names": support._names,
    "spell_alike": analyzer.spell_alike,
    "missing_words": lambda text: _sentence(text, text).missing_words(),
    "exchanged_words": lambda text: _sentence(text, text[::-1]).exchanged_words(),
    "find_conflicts": lambda text: find_conflicts(text, text, text),
    "retrieval_gaps": lambda text: support.retrieval_gaps([text], [["Nothing."]]),
    "judge, body": lambda text: contract.judge(text, [], []),
    "judge, quote": _judge_quote,
    "find_paths": lambda text: contract.find_paths(text, {"content"}),
    "split_lines": contract._split_lines,
    "parse_reply": _replies,
    "parse_reply, citations": lambda text: _replies(f"VERDICT=SUPPORTED\nCITATIONS={text}"),
    "parse_reply, text": lambda text: _replies(f"VERDICT=SUPPORTED\nCITATIONS=a:1\n{text}"),
    "parse_reply, gaps": lambda text: _replies(f"INSUFFICIENT EVIDENCE{text}"),
    "parse_reply, fence": lambda text: _replies(f"```json{text}"),
    "parse_reply, object": lambda text: _replies(
        json.dumps({"citations": [text], "answer": text, "deltaS": None, "lambda": None})
    ),
    "parse_reply, snippet": lambda text: _replies(
        json.dumps({"citations": [{"snippet_id": text}], "answer": "a", "ΔS": None, "λ": None})
    ),
    "read_token": replies.read_token,
    "parse_reply, refusal": lambda text: _replies(f"NOT FOUND{text}"),
    "read_marks": read_marks,
    "abstention": abstention,
    "prompt": lambda text: answering._correct(text, [text]),
    "event": lambda text: Events().add("a", b=text),
    "token_spans": token_spans,
}
PIECES = json.loads(Path(__file__).with_name("growth_pieces.json").read_text(encoding="utf-8"))


def _taken(read, text: str) -> float:
    # A garbage collection also walks the objects of other tests and would distort the time.
    gc.disable()
    try:
        start = time.process_time()
        read(text)
        return time.process_time() - start
    finally:
        gc.enable()


def _grows(read, before: str, piece: str, after: str) -> bool:
    """Return whether three measurements in a row show a time that grows faster than the text."""
    whole, eighth = (
        before + piece * (size // len(piece)) + after for size in (LENGTH, LENGTH // 8)
    )
    for _ in range(3):
        longer = _taken(read, whole)
        if longer < FLOOR or longer < MOST_GROWTH * _taken(read, eighth):
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_reading_takes_time_in_proportion_to_the_text(name):
    growing = [
        (before, piece, after)
        for piece in PIECES
        for before, after in (("", ""), ("[", "x"))
        if _grows(READERS[name], before, piece, after)
    ]
    assert growing == []
