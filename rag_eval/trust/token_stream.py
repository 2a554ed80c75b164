"""Texts as streams of numbers: words as they stand, and the analyzer's terms with the word each comes from.

Belongs here: tokenising for the checks that compare wordings. What a wording means to the guard is `restating`, `leads` and `floods`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rag_eval.corpus.analyzer import Analyzer

Ints = npt.NDArray[np.int64]

BLOCK_CHARACTERS = 12_000_000
"""Texts that are looked at together: some two million words, which bounds the memory whatever the corpus."""

_WORD = re.compile(r"[^\W_]+")
_STOPPED = -1


class Streams(NamedTuple):
    """The words and terms of some texts, one text after the other.

    `words` is `[n_words]`, the text i has words `bounds[i]:bounds[i + 1]`. `terms` is `[n_terms]`: the words that are no stop words, by
    stem; text i has `term_bounds[i]:term_bounds[i + 1]`, and `word_of` says which word (of `words`) each term is.
    """

    words: Ints
    bounds: Ints
    terms: Ints
    term_bounds: Ints
    word_of: Ints


class Vocabulary:
    """Numbers for words and terms; case counts for nothing. What is read first gets the lowest numbers."""

    def __init__(self) -> None:
        self._analyzer = Analyzer()
        self._spellings: dict[str, int] = {}
        self._lowered: dict[str, int] = {}
        self._term_of: list[int] = []

    @property
    def n_terms(self) -> int:
        """How many terms are known."""
        return len(self._analyzer.vocabulary)

    def _learn(self, spelling: str) -> int:
        return self._spellings.setdefault(
            spelling, self._lowered.setdefault(spelling.lower(), len(self._lowered))
        )

    def number(self, word: str) -> int:
        """Give the number of a word in lower case, -1 where no text has had it."""
        return self._lowered.get(word, -1)

    def term(self, word: str) -> int:
        """Give the number of a word's term, -1 for stop words and words that no text has had."""
        number = self.number(word)
        return self._term_of[number] if 0 <= number < len(self._term_of) else -1

    def read(self, texts: Sequence[str]) -> Streams:
        """Read texts; linear in their length."""
        known, learn = self._spellings, self._learn
        rows = [
            [known[word] if word in known else learn(word) for word in _WORD.findall(text)]
            for text in texts
        ]
        bounds = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=bounds[1:])
        words = np.fromiter(
            (word for row in rows for word in row), dtype=np.int64, count=int(bounds[-1])
        )
        new = list(self._lowered)[len(self._term_of) :]
        # "s" is what is left of a possessive; words such as the Turkish dotted I fall into parts in lower case, the first one counts
        self._term_of += [
            row[0] if row and word != "s" else _STOPPED
            for word, row in zip(new, self._analyzer.index(new), strict=True)
        ]
        every = np.array(self._term_of, dtype=np.int64)[words]
        word_of = np.flatnonzero(every != _STOPPED)
        return Streams(words, bounds, every[word_of], np.searchsorted(word_of, bounds), word_of)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Characters of each word of one text, in the order in which `Vocabulary.read` counts them."""
    return [match.span() for match in _WORD.finditer(text)]


def blocks(texts: Sequence[str]) -> Iterator[slice]:
    """Part texts into runs of bounded size; a text is never cut."""
    start = size = 0
    for at, text in enumerate(texts):
        if size and size + len(text) > BLOCK_CHARACTERS:
            yield slice(start, at)
            start, size = at, 0
        size += len(text) + 1
    if len(texts) > start:
        yield slice(start, len(texts))


def ragged(starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Row and position of every element of the ranges starts[i]:starts[i] + lengths[i]."""
    row = np.repeat(np.arange(len(starts)), lengths)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return row, starts[row] + offset
