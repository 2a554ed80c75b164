"""What the detectors of hidden and encoded text hand on, and how a text is edited without losing where its characters came from.

Belongs here: the values that `invisible`, `markup` and `encoded` share.
"""

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable
from typing import Literal, NamedTuple

from rag_eval.records.trust import Severity


class Cut(NamedTuple):
    """Characters [start, end) of a text that are read as `instead`."""

    start: int
    end: int
    instead: str


class Part(NamedTuple):
    """Text that is not seen as such: what it says, how it was put out of sight, and the characters it came from."""

    kind: Literal["hidden", "decoded"]
    source: str
    text: str
    start: int
    end: int


class Trick(NamedTuple):
    """A trick found: characters [start, end), the check it belongs to and its name, how bad it is, and a sentence of our own."""

    start: int
    end: int
    check: Literal["hidden", "encoded"]
    rule: str
    severity: Severity
    detail: str


def merged(tricks: Iterable[Trick], near: int) -> list[Trick]:
    """Neighbours of the same name, at most `near` characters from each other, as one with the gravest severity: a million of them are not a million findings."""
    grave = ("hint", "warning", "blocked")
    found: dict[tuple[str, str], list[tuple[Trick, int]]] = {}
    for trick in sorted(tricks):
        group = found.setdefault((trick.check, trick.rule), [])
        if group and trick.start - group[-1][0].end <= near:
            before, count = group[-1]
            worst = max((before, trick), key=lambda one: grave.index(one.severity))
            group[-1] = (
                worst._replace(start=before.start, end=max(before.end, trick.end)),
                count + 1,
            )
        else:
            group.append((trick, 1))
    ordered = sorted(
        (pair for group in found.values() for pair in group), key=lambda pair: pair[0][:2]
    )
    return [
        trick if count == 1 else trick._replace(detail=f"{trick.detail}; {count} places")
        for trick, count in ordered
    ]


@dataclasses.dataclass
class Looked:
    """What one detector saw in a text."""

    cuts: list[Cut] = dataclasses.field(default_factory=list)
    parts: list[Part] = dataclasses.field(default_factory=list)
    tricks: list[Trick] = dataclasses.field(default_factory=list)


class Edited:
    """A text after cuts, with the way back.

    Parameters
    ----------
    text
        Before.
    cuts
        Sorted by start; one that begins inside another is left out.
    """

    def __init__(self, text: str, cuts: Iterable[Cut]) -> None:
        pieces: list[str] = []
        self._new: list[int] = [0]
        self._old: list[tuple[int, int]] = []
        at = length = 0
        for start, end, instead in cuts:
            if start < at:
                continue
            length += start - at
            pieces += [text[at:start], instead]
            self._old += [(at, start), (start, end)]
            self._new += [length, length + len(instead)]
            length += len(instead)
            at = end
        pieces.append(text[at:])
        self._old.append((at, len(text)))
        self.text = "".join(pieces)

    def back(self, start: int, end: int) -> tuple[int, int]:
        """Characters of the text before the cuts that text[start:end] came from."""
        return self._place(start)[0], self._place(max(end - 1, start))[1]

    def _place(self, place: int) -> tuple[int, int]:
        index = bisect_right(self._new, place) - 1
        first, last = self._old[index]
        if index % 2:  # what stands there instead comes from the whole cut
            return first, last
        found = min(first + place - self._new[index], max(last - 1, first))
        return found, min(found + 1, last)
