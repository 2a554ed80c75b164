"""Reading an answer or a reply takes time in proportion to its length, also for hostile text.

The tests compare growth, not speed: four times the text must take less than sixteen times as long.
"""

import gc
import json
import time
from pathlib import Path

import pytest

from rag_eval.answers import abstention as abstaining
from rag_eval.answers import codes as events
from rag_eval.answers import contract, paths, runner
from rag_eval.answers import recorded as markers
from rag_eval.citations.matching import Source, uncopied
from rag_eval.citations.payload import word_spans
from rag_eval.core.config import Answers
from rag_eval.measures import groundedness as content
from rag_eval.measures import groundedness as phrases
from rag_eval.measures import groundedness as retrieval_gap

FLOOR = 0.2
"""Seconds of processor time below which a growth is noise."""
MOST_GROWTH = 10

SETTINGS = [
    Answers(response_schema=form, verdicts=("SUPPORTED",), max_reply_chars=1_000_000)
    for form in ("json", "verdict")
]


def _replies(text: str) -> None:
    for settings in SETTINGS:
        for analyze_only in (True, False):
            contract.parse_reply(text, settings, analyze_only=analyze_only)


READERS = {
    "answer_sentences": content.answer_sentences,
    "numbers": content.numbers,
    "names": content.names,
    "comparable": content.comparable,
    "refers_to_sources": lambda text: phrases.refers_to_sources(text, 3),
    "acknowledges_nothing_found": phrases.acknowledges_nothing_found,
    "retrieval_gap": retrieval_gap._with_quotes,
    "remove_marks": contract.remove_marks,
    "find_quote": lambda text: contract.find_quote(f"{text[:2000]}§", text, 0, len(text)),
    "find_paths": lambda text: paths.find_paths(text, {"content"}),
    "split_lines": paths.split_lines,
    "parse_reply": _replies,
    "parse_reply, citations": lambda text: _replies(f"VERDICT=SUPPORTED\nCITATIONS={text}"),
    "parse_reply, text": lambda text: _replies(f"VERDICT=SUPPORTED\nCITATIONS=a:1\n{text}"),
    "parse_reply, gaps": lambda text: _replies(f"INSUFFICIENT EVIDENCE{text}"),
    "parse_reply, fence": lambda text: _replies(f"```json{text}"),
    "parse_reply, object": lambda text: _replies(
        json.dumps({"citations": [text], "answer": text, "deltaS": None, "lambda": None})
    ),
    "read_token": contract.read_token,
    "parse_reply, refusal": lambda text: _replies(f"NOT FOUND{text}"),
    "read_markers": markers.read_markers,
    "abstention": abstaining.abstention,
    "prompt": runner.make_plain,
    "event_line": lambda text: events.event_line("a", {"b": text}),
    "word_spans": word_spans,
    "uncopied": lambda text: uncopied(text, [Source("a", text[::-1])]),
}
PIECES = json.loads(Path(__file__).with_name("growth_pieces.json").read_text(encoding="utf-8"))


def _taken(read, text: str) -> float:
    gc.disable()  # a collection also walks the objects of other tests and would distort the time
    try:
        start = time.process_time()
        read(text)
        return time.process_time() - start
    finally:
        gc.enable()


def _grows(read, length: int, before: str, piece: str, after: str) -> bool:
    """Return whether the time grows faster than the text; measure a bad result again."""
    whole, quarter = (
        before + piece * (size // len(piece)) + after for size in (length, length // 4)
    )
    for _ in range(3):
        longer = _taken(read, whole)
        if longer < FLOOR or longer < MOST_GROWTH * _taken(read, quarter):
            return False
    return True


def _growing(name: str, length: int) -> list[tuple[str, str, str]]:
    return [
        (before, piece, after)
        for piece in PIECES
        for before, after in (("", ""), ("[", "x"))
        if _grows(READERS[name], length, before, piece, after)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_reading_takes_time_in_proportion_to_the_text(name):
    assert _growing(name, 24_000) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_reading_long_texts_takes_time_in_proportion_to_the_text(name):
    assert _growing(name, 200_000) == []
