"""Answer a question with the best sentences of its first passages, or refuse.

A sentence is scored by the words that it shares with the question. Nothing is learned.
"""

import functools
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Final, NamedTuple

import numpy as np

from rag_eval.corpus.analyzer import Analyzer, DocumentFrequencies
from rag_eval.corpus.chunking import spans, trim

PASSAGES: Final = 3
"""Passages of the evidence, best first, that an answer may cite."""
SENTENCES: Final = 3
"""Most sentences of an answer."""
NEAR: Final = 0.7
"""A further sentence is cited from this share of the best score. On the first half of CLAPnq, lower
shares lose more precision than they add recall."""
COST_OF_RANK: Final = 0.1
"""Share of its score that a sentence loses for each passage before its own."""
MAX_SENTENCE: Final = 2000
"""Longest sentence in characters; longer sentences, such as tables, are cut."""

_HEADING = re.compile(r"[^\n]*\n[-=~^]{3,80}+[^\S\n]*\n\s*")


class Passage(NamedTuple):
    """A passage that an answer may cite. The title counts as part of every sentence."""

    text: str
    title: str = ""


class Sentence(NamedTuple):
    """A sentence to cite: its passage, counted from 0, its characters there, and its score."""

    passage: int
    start: int
    end: int
    score: float


class Extract(NamedTuple):
    """Sentences for an answer, best first, and the score of the best one: 0 without a sentence.

    `answered` is false if the signal is under the threshold.
    """

    sentences: tuple[Sentence, ...]
    signal: float
    answered: bool


def _split_sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield the sentences of a passage with a letter or digit, without underlined headings."""
    for first, end in spans(text):
        heading = _HEADING.match(text, first, end)
        start = heading.end() if heading else first
        while start < end:
            cut = end
            if end - start > MAX_SENTENCE:
                blank = text.rfind(" ", start + MAX_SENTENCE // 2, start + MAX_SENTENCE)
                cut = blank if blank > 0 else start + MAX_SENTENCE
            if any(map(str.isalnum, text[start:cut])) and (piece := trim(text, start, cut)):
                yield piece
            start = cut


@functools.cache
def _function_words() -> tuple[str, ...]:
    """Read the English words that build a question and say nothing about its subject."""
    text = files("rag_eval.answers").joinpath("function_words.json").read_text("utf-8")
    return tuple(json.loads(text))


class Extractive:
    """Answers questions with sentences of their evidence.

    `frequencies` of the corpus weigh the words. A question whose best sentence scores less than
    `abstain_below` is refused.
    """

    def __init__(self, frequencies: DocumentFrequencies, abstain_below: float) -> None:
        self._frequencies, self._abstain_below = frequencies, abstain_below
        self._analyzer = Analyzer()
        rows = self._analyzer.index(_function_words())
        self._function_words = frozenset(itertools.chain.from_iterable(rows))
        self._weights: list[float] = []

    def answer(self, question: str, passages: Sequence[Passage]) -> Extract:
        """Choose the sentences that answer a question from its passages, best first.

        The score of a sentence, in [0, 1], is the mean of two shares of the question's weight of
        words: the words in the sentence, and the words in the sentence or the title. Function words
        of the question do not count. Of equal sentences, the first one is cited.
        """
        passages = passages[:PASSAGES]
        places = [
            (number, start, end)
            for number, passage in enumerate(passages)
            for start, end in _split_sentences(passage.text)
        ]
        titles = [passage.title.replace("_", " ") for passage in passages]
        texts = [passages[number].text[start:end] for number, start, end in places]
        first, *rows = map(set, self._analyzer.index([question, *titles, *texts]))
        self._weigh_new_words()
        asked = first - self._function_words
        total = self._weigh(asked)
        if not places or not total:
            return Extract((), 0.0, answered=False)
        in_titles, in_sentences = rows[: len(titles)], rows[len(titles) :]
        sentences: dict[str, Sentence] = {}
        for place, text, words in zip(places, texts, in_sentences, strict=True):
            shared, titled = asked & words, asked & (words | in_titles[place[0]])
            share = (self._weigh(shared) + self._weigh(titled)) / (2 * total)
            score = round(share * (1 - COST_OF_RANK * place[0]), 6)
            sentences.setdefault(" ".join(text.lower().split()), Sentence(*place, score))
        ranked = sorted(sentences.values(), key=lambda sentence: -sentence.score)
        signal = ranked[0].score
        cited = [sentence for sentence in ranked[:SENTENCES] if sentence.score >= NEAR * signal]
        return Extract(tuple(cited), signal, answered=signal >= self._abstain_below)

    def _weigh(self, words: set[int]) -> float:
        return sum(self._weights[word] for word in sorted(words))

    def _weigh_new_words(self) -> None:
        """Compute the idf of words, ln(1 + (N - df + 0.5) / (df + 0.5)); a new word has df 0."""
        n, counts = self._frequencies
        for word in itertools.islice(self._analyzer.vocabulary, len(self._weights), None):
            df = counts.get(word, 0)
            self._weights.append(float(np.log1p((max(n - df, 0) + 0.5) / (df + 0.5))))
