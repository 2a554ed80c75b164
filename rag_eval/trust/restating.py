"""Warn of passages that restate a question of the gold set, as planted passages do to be found.

Only the first chunks of a question are read, because other chunks do not profit from its words.
Each warning names one of these rules:

`question`      the exact words of the question, five or more, in running text; or a sentence with
                the question word that shares four fifths of its words and those of the question
`first_words`   the exact words of a query that asks nothing, at the beginning of the text
`heading`       the question as a line of its own or as title, which honest pages have too; only
                where an allowlist or keys are configured

Sources that the allowlist or a signature vouches for are not read. A warning of this check never
adds up to a block, so that no honest page that repeats a question is lost.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, IntArray
from rag_eval.core.config import FINDINGS
from rag_eval.core.frames import make_frame
from rag_eval.corpus.chunking import spans
from rag_eval.trust.sentences import QUESTION_WORDS, begins_question
from rag_eval.trust.text import plain

_LEAST_WORDS, _RESEMBLANCE, _LABEL_WORDS = 5, 0.8, 3
"""Least words of a question, least Jaccard resemblance, most words of a label before a heading."""
_READ = 20_000
"""Characters of a chunk that are read, so that no long chunk can slow a run down."""
_WORD = re.compile(r"\w+")


def _words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _split_headings(question: list[str], text: str) -> tuple[str, bool]:
    """Return the text without lines that hold only the question, and whether there are any."""
    lines = text.splitlines()
    is_heading = [
        words[-len(question) :] == question and len(words) <= len(question) + _LABEL_WORDS
        for words in map(_words_of, lines)
    ]
    running = [line for line, alone in zip(lines, is_heading, strict=True) if not alone]
    return "\n".join(running), any(is_heading)


def _find_rules(question: str, title: str, text: str, *, headings: bool) -> Iterator[str]:
    """Yield the rules by which a chunk restates a question."""
    words = _words_of(question)
    if len(words) < _LEAST_WORDS:
        return
    body = _words_of(text)
    asks = begins_question(words) or question.rstrip().endswith("?")
    if not asks:
        if body[: len(words)] == words:
            yield "first_words"
        return
    running, has_heading = _split_headings(words, text)
    if headings and (has_heading or _words_of(title) == words):
        yield "heading"
    exact = f" {' '.join(words)} " in f" {' '.join(_words_of(running))} "
    sentences = (set(_words_of(running[low:high])) for low, high in spans(running))
    asked = set(words)
    asking = asked & QUESTION_WORDS  # an answer shares all other words
    if exact or any(
        asking
        and asking <= sentence
        and len(asked & sentence) >= _RESEMBLANCE * len(asked | sentence)
        for sentence in sentences
    ):
        yield "question"


def find_restating(
    questions: Sequence[str],
    ranked: IntArray,
    chunks: pd.DataFrame,
    *,
    vouched: BoolArray | None,
) -> pd.DataFrame:
    """Find the chunks (CHUNKS) that restate a question for which they rank first.

    `ranked`, [n_questions, k], are the first chunks of each question, -1 in an empty place.
    `vouched`, [n_chunks], marks the chunks of trusted sources; None where nothing is configured to
    trust. Returns FINDINGS by chunk row, all warnings.
    """
    rules: set[tuple[int, str]] = set()
    used = np.unique(ranked[ranked >= 0])
    texts, titles = (
        dict(zip(used.tolist(), map(plain, chunks[name].iloc[used].str[:_READ]), strict=True))
        for name in ("text", "title")
    )
    for question, rows in zip(questions, ranked.tolist(), strict=True):
        for row in rows:
            if row >= 0 and not (vouched is not None and vouched[row]):
                of_question = _find_rules(
                    question, titles[row], texts[row], headings=vouched is not None
                )
                rules.update((row, rule) for rule in of_question)
    detail = "restates a question of the gold set for which it ranks first"
    return make_frame(
        FINDINGS,
        [(row, -1, -1, "restates_query", rule, "warning", detail) for row, rule in sorted(rules)],
    )
