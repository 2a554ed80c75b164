"""Words that a match of a pattern must hold, worked out from the pattern itself.

Belongs here: reading RE2 syntax as far as that takes. What is not understood asks for nothing, so a text is looked at too often and never too seldom.
Method: the usual one of literal prefilters (R. Cox, "Regular Expression Matching with a Trigram Index", 2012), kept to a few sets of words per pattern.
"""

import math
from typing import NamedTuple

_MOST, _SHORTEST, _SETS = 100, 3, 2
"""Words that a sequence is multiplied out to at most, and bytes of a word that is worth looking for; and sets of words that are kept."""
_SHARE = dict(
    zip(
        " etaoinshrdlucmfwypvbgkjqxz",
        (
            18,
            10,
            7.5,
            6.5,
            6.2,
            5.7,
            5.7,
            5.3,
            5,
            5,
            3.3,
            3.3,
            2.3,
            2.2,
            2,
            2,
            1.7,
            1.6,
            1.5,
            0.8,
            1.3,
            1.6,
            0.5,
            0.1,
            0.1,
            0.2,
            0.1,
        ),
        strict=True,
    )
)
"""Rough per cent of the characters of English that each letter is; any other is rare."""
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}


Words = frozenset[str]


class _Known(NamedTuple):
    """What is known of an expression: all texts it can match, where they are few; else the best sets of words, of each of which every match holds one."""

    exact: Words | None
    words: tuple[Words, ...] = ()


_EMPTY, _ANYTHING = _Known(frozenset({""})), _Known(None)


def commonness(words: Words) -> float:
    """Roughly how often a place of English text begins one of the words; for comparing sets of words."""
    return sum(math.prod(_SHARE.get(letter, 0.05) / 100 for letter in word) for word in words)


def _words(known: _Known) -> tuple[Words, ...]:
    """The best sets of an expression; its texts themselves where they are few and long enough to look for."""
    if known.exact:
        return (
            (known.exact,)
            if min(len(word.encode("utf-8", "replace")) for word in known.exact) >= _SHORTEST
            else ()
        )
    return known.words


def _either(branches: list[_Known]) -> _Known:
    if all(branch.exact is not None for branch in branches):
        exact = frozenset().union(*(branch.exact or () for branch in branches))
        if len(exact) <= _MOST:
            return _Known(exact)
    found = [_words(branch) for branch in branches]
    if not all(found):
        return _ANYTHING
    # the first sets of all branches make one, and so on; a branch with fewer stands with its last in every one
    return _Known(
        None,
        tuple(
            dict.fromkeys(
                frozenset().union(*(sets[min(place, len(sets) - 1)] for sets in found))
                for place in range(max(map(len, found)))
            )
        ),
    )


def _one_after_another(parts: list[_Known]) -> _Known:
    """Texts of neighbours are multiplied out while they are few; the words of the best stretches are the words of the sequence."""
    words: list[Words] = []
    stretch, whole = _EMPTY, True
    for part in parts:
        if (
            part.exact is not None
            and stretch.exact is not None
            and len(part.exact) * len(stretch.exact) <= _MOST
        ):
            stretch = _Known(
                frozenset(first + second for first in stretch.exact for second in part.exact)
            )
        else:
            words += [*_words(stretch), *(() if part.exact is not None else part.words)]
            stretch, whole = part if part.exact is not None else _EMPTY, False
    if whole:
        return stretch
    return _Known(None, tuple(sorted({*words, *_words(stretch)}, key=commonness)[:_SETS]))


class _NotUnderstoodError(Exception):
    """Syntax that this reader does not know."""


class _Reader:
    """Recursive descent over a pattern."""

    def __init__(self, pattern: str) -> None:
        self._text, self._at = pattern, 0

    def read(self) -> _Known:
        found = self._alternatives()
        if self._at < len(self._text):
            raise _NotUnderstoodError
        return found

    def _next(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _take(self) -> str:
        if self._at >= len(self._text):
            raise _NotUnderstoodError
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> _Known:
        branches = [self._sequence()]
        while self._next("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else _either(branches)

    def _sequence(self) -> _Known:
        parts = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return _one_after_another(parts)

    def _repeated(self, known: _Known) -> _Known:
        while True:
            if self._next("?"):
                least, most = 0, 1
            elif self._next("*"):
                least, most = 0, 2
            elif self._next("+"):
                least, most = 1, 2
            elif self._next("{"):
                end = self._text.find("}", self._at)
                counts = self._text[self._at : max(end, self._at)].split(",")
                if not counts[0].isdecimal() or not counts[0].isascii():
                    raise _NotUnderstoodError
                least, most = int(counts[0]), int(counts[0]) if len(counts) == 1 else 2
                self._at = end + 1
            else:
                return known
            known = self._times(known, least, most)

    @staticmethod
    def _times(known: _Known, least: int, most: int) -> _Known:
        if least == most == 1:
            return known
        if least >= 1:
            return _Known(None, _words(known))
        return _Known(known.exact | {""}) if most == 1 and known.exact is not None else _ANYTHING

    def _atom(self) -> _Known:
        letter = self._take()
        if letter == "(":
            if self._next("?") and not self._next(":"):
                raise _NotUnderstoodError
            found = self._alternatives()
            if not self._next(")"):
                raise _NotUnderstoodError
            return found
        if letter == "[":
            return self._class()
        if letter in "^$":
            return _EMPTY
        if letter == ".":
            return _ANYTHING
        if letter == "\\":
            return self._escape()
        if letter in "?*+{":
            raise _NotUnderstoodError
        return _Known(frozenset({letter}))

    def _escape(self) -> _Known:
        letter = self._take()
        if letter in "bBAz":
            return _EMPTY
        if letter in "dDsSwW":
            return _ANYTHING
        if letter in _CONTROL:
            return _Known(frozenset({_CONTROL[letter]}))
        if letter.isalnum() or not letter.isascii():
            raise _NotUnderstoodError
        return _Known(frozenset({letter}))

    def _class(self) -> _Known:
        negated = self._next("^")
        letters: set[str] = set()
        first, few = True, not negated
        while first or not self._next("]"):
            first, letter = False, self._take()
            if letter == "\\":
                letter = self._take()
                if self._next("{"):
                    self._at = self._text.index("}", self._at) + 1
                few = few and not letter.isalnum()
            elif letter == "[" and self._text[self._at : self._at + 1] in {":", "."}:
                raise _NotUnderstoodError
            elif letter == "-" and letters and self._text[self._at : self._at + 1] != "]":
                few = False  # a range
            letters.add(letter)
        return _Known(frozenset(letters)) if few else _ANYTHING


def necessary_words(pattern: str) -> tuple[Words, ...]:
    r"""Sets of words, the rarest first: every text that the pattern matches holds at least one word of each; none where nothing can be told.

    Examples
    --------
    >>> [sorted(words) for words in necessary_words(r"\b(?:add|use)\b[^.]{0,40}your (?:answer|reply)")]
    [['your answer', 'your reply'], ['add', 'use']]
    """
    try:
        return _words(_Reader(pattern).read())
    except (_NotUnderstoodError, ValueError, RecursionError):
        return ()
