"""Whatever reads an answer or a reply takes time in proportion to its length, also of text made to stop it.

Growth is compared, not speed: four times the text must not take sixteen times as long.
"""

import contextlib
import gc
import json
import time

import pytest

from rag_eval.answers import (
    abstaining,
    events,
    gates,
    markers,
    paths,
    prompts,
    replies,
    reply_parts,
)
from rag_eval.citations import live_index, quoted, traces
from rag_eval.measures import content, phrases, retrieval_gap
from rag_eval.records.problems import InputError

FLOOR = 0.2
"""Seconds of processor time below which a growth is noise."""
MOST_GROWTH = 10

TERMS = [
    replies.Terms(form, ("SUPPORTED",), analyze_only=analyze, max_reply_chars=10_000_000)
    for form in ("json", "verdict")
    for analyze in (True, False)
]


def _replies(text: str) -> None:
    for terms in TERMS:
        replies.parse_reply(text, terms)


def _trace(text: str) -> None:
    for line in (
        text,
        f'ts=- qid="{text}',
        f"ts=- qid=- seg=0 deltaS=- lambda=- k=- store=- index_hash=- embed=- citations=[{text}",
    ):
        with contextlib.suppress(InputError):
            traces.parse(line)


READERS = {
    "answer_sentences": content.answer_sentences,
    "numbers": content.numbers,
    "names": content.names,
    "comparable": content.comparable,
    "refers_to_sources": phrases.refers_to_sources,
    "acknowledges_nothing_found": phrases.acknowledges_nothing_found,
    "retrieval_gap": retrieval_gap._with_quotes,
    "unmarked": gates.unmarked,
    "find_quote": lambda text: gates.find_quote(f"{text[:2000]}§", text, 0, len(text)),
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
    "read_token": reply_parts.read_token,
    "refusal_in": lambda text: reply_parts.refusal_in(f"NOT FOUND{text}"),
    "read_markers": markers.read_markers,
    "abstention": abstaining.abstention,
    "prompt": prompts._plain,
    "event_line": lambda text: events.event_line("a", {"b": text}),
    "quote_markers": quoted.quote_markers,
    "same_words": lambda text: quoted.same_words(text, "a b"),
    "word_spans": live_index.word_spans,
    "trace": _trace,
}
PIECES = [
    *" \t\n\r\u2028\u00a0.,:;-_~/\\[](){}<>`*#\"'|=&@+%^$!?…01aA„“”«»「」『』–—•巴あ\u0301\u200b",
    *(
        "\r\n",
        "[ ",
        "\n ",
        "\n\n-",
        "\n- ",
        "1.",
        "1,",
        "a.",
        "a:",
        "a/",
        "a b ",
        "[1",
        "[1]",
        "[1, ",
        "[a:1]",
        "[a:1",
        "[a:",
        "[source ",
        "((",
        "](",
        "[1](",
        "a:1,",
        "a:1-",
        "://",
        "www.",
        "http://",
        "a(",
    ),
    *(
        "(a)",
        "\\\\a\\",
        '\\"',
        '","',
        "```",
        "` ",
        "„a",
        '"a"',
        "a_",
        "A.",
        "1,1",
        "*VERDICT",
        "VERDICT=\n",
        "\nVERDICT",
        "NOT FOUND ",
        "INSUFFICIENT EVIDENCE ",
        "the answer ",
        '{"a":',
        '{ "',
        "./",
        "a.py",
        "a.py:",
    ),
    *(
        "a.py/",
        "a.com/",
        ".env.",
        "sorry, ",
        "based on ",
        "in the context, ",
        "the documents ",
        "[ 1 ",
        "[ 1 a ]",
        "1) ",
        "\n1)",
        "x. [1] ",
        "x. [a:1] ",
        "; ",
        " - ",
    ),
]


def _taken(read, text: str) -> float:
    gc.disable()  # the collector's passes over everything that the other tests hold are not the reader's time
    try:
        start = time.process_time()
        read(text)
        return time.process_time() - start
    finally:
        gc.enable()


def _grows(read, length: int, before: str, piece: str, after: str) -> bool:
    """Whether the time grows faster than the text; measured again before it is said."""
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
