"""Words that a match of a pattern must hold, worked out from the pattern itself.

Belongs here: reading RE2 syntax as far as that takes. What is not understood asks for nothing, so a text is looked at too often and never too seldom.
Method: the usual one of literal prefilters (R. Cox, "Regular Expression Matching with a Trigram Index", 2012), kept to one set of words per pattern.
"""

import math
from typing import NamedTuple

_MOST, _SHORTEST = 100, 3
"""Words that a sequence is multiplied out to at most, and characters of a word that is worth looking for."""
_SHARE = dict(zip(" etaoinshrdlucmfwypvbgkjqxz", (18, 10, 7.5, 6.5, 6.2, 5.7, 5.7, 5.3, 5, 5, 3.3, 3.3, 2.3, 2.2, 2, 2, 1.7, 1.6, 1.5, 0.8, 1.3, 1.6, 0.5, 0.1, 0.1, 0.2, 0.1), strict=True))
"""Rough per cent of the characters of English that each letter is; any other is rare."""
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}


class _Known(NamedTuple):
    """What is known of an expression: all texts it can match, where they are few; and the best set of words of which every match holds one."""

    exact: frozenset[str] | None
    words: frozenset[str] | None


_EMPTY, _ANYTHING = _Known(frozenset({""}), None), _Known(None, None)


def commonness(words: frozenset[str]) -> float:
    """Roughly how often a place of English text begins one of the words; for comparing sets of words."""
    return sum(math.prod(_SHARE.get(letter, 0.05) / 100 for letter in word) for word in words)


def _better(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=commonness)


def _words(known: _Known) -> frozenset[str] | None:
    """The best set of an expression, its texts themselves among them where they are long enough to look for."""
    whole = known.exact if known.exact and min(map(len, known.exact)) >= _SHORTEST else None
    return _better(whole, known.words)


def _either(branches: list[_Known]) -> _Known:
    exact: frozenset[str] | None = frozenset()
    words: frozenset[str] | None = frozenset()
    for branch in branches:
        exact = None if exact is None or branch.exact is None else exact | branch.exact
        found = _words(branch)
        words = None if words is None or found is None else words | found
    return _Known(exact if exact is not None and len(exact) <= _MOST else None, words)


def _one_after_another(parts: list[_Known]) -> _Known:
    """Texts of neighbours are multiplied out while they are few; the words of the best stretch are the words of the sequence."""
    words: frozenset[str] | None = None
    stretch, whole = _EMPTY, True
    for part in parts:
        if part.exact is not None and stretch.exact is not None and len(part.exact) * len(stretch.exact) <= _MOST:
            stretch = _Known(frozenset(first + second for first in stretch.exact for second in part.exact), None)
            words = _better(words, part.words)
        else:
            words = _better(_better(words, _words(stretch)), _words(part))
            stretch, whole = part if part.exact is not None else _EMPTY, False
    words = _better(words, _words(stretch))
    return _Known(stretch.exact if whole else None, words)


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
        return _Known(known.exact | {""}, None) if most == 1 and known.exact is not None else _ANYTHING

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
        return _Known(frozenset({letter}), None)

    def _escape(self) -> _Known:
        letter = self._take()
        if letter in "bBAz":
            return _EMPTY
        if letter in "dDsSwW":
            return _ANYTHING
        if letter in _CONTROL:
            return _Known(frozenset({_CONTROL[letter]}), None)
        if letter.isalnum() or not letter.isascii():
            raise _NotUnderstoodError
        return _Known(frozenset({letter}), None)

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
        return _Known(frozenset(letters), None) if few else _ANYTHING


def necessary_words(pattern: str) -> frozenset[str] | None:
    r"""Words of which every text that the pattern matches holds at least one; None where none can be told.

    Examples
    --------
    >>> sorted(necessary_words(r"\b(?:add|use) [^.]{0,40}your (?:answer|reply)") or ())
    ['your answer', 'your reply']
    """
    try:
        return _words(_Reader(pattern).read())
    except (_NotUnderstoodError, ValueError, RecursionError):
        return None
