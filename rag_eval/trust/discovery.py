"""What a reader of hidden text finds: cuts, unseen parts and tricks, with their places."""

import dataclasses
import itertools
from bisect import bisect_right
from collections.abc import Iterable
from typing import Literal, NamedTuple

Severity = Literal["hint", "warning", "blocked"]
"""Severity of a finding. A hint alone does not change the verdict."""


class Cut(NamedTuple):
    """Replacement of characters [start, end) of a text by `instead`."""

    start: int
    end: int
    instead: str


class Part(NamedTuple):
    """Unseen text, the trick that hides it, and its characters [start, end) in the original."""

    kind: Literal["hidden", "decoded"]
    source: str
    text: str
    start: int
    end: int


class Trick(NamedTuple):
    """A trick in characters [start, end); `detail` never quotes the text."""

    start: int
    end: int
    check: Literal["hidden", "encoded"]
    rule: str
    severity: Severity
    detail: str


@dataclasses.dataclass
class Discovery:
    """Result of one detector on a text."""

    cuts: list[Cut] = dataclasses.field(default_factory=list)
    parts: list[Part] = dataclasses.field(default_factory=list)
    tricks: list[Trick] = dataclasses.field(default_factory=list)

    def add(
        self,
        rule: str,
        span: tuple[int, int],
        text: str | None = None,
        severity: Severity | None = None,
        detail: str = "",
    ) -> None:
        """Add a text that is hidden, or a trick of the check `hidden`, or both."""
        if text is not None:
            self.parts.append(Part("hidden", rule, text, *span))
        if severity is not None:
            self.tricks.append(Trick(*span, "hidden", rule, severity, detail))

    def decode(self, source: str, text: str, span: tuple[int, int], *, suspicious: bool) -> None:
        """Add a decoded text, and a trick of the check `encoded` if the encoding is suspicious."""
        self.parts.append(Part("decoded", source, text, *span))
        if suspicious:
            detail = f"{span[1] - span[0]} characters that decode to text ({source})"
            self.tricks.append(Trick(*span, "encoded", source, "warning", detail))


_GRAVE = ("hint", "warning", "blocked")


def merge_tricks(tricks: Iterable[Trick], near: int) -> list[Trick]:
    """Join tricks of one rule that are at most `near` characters apart; keep the gravest.

    A text with a million tricks must not give a million findings.
    """
    merged: dict[str, list[Trick]] = {}
    for trick in sorted(tricks):
        group = merged.setdefault(trick.rule, [])
        if group and trick.start - group[-1].end <= near:
            pair = group.pop(), trick
            worst = max(pair, key=lambda trick: _GRAVE.index(trick.severity))
            end = max(trick.end for trick in pair)
            group.append(worst._replace(start=pair[0].start, end=end))
        else:
            group.append(trick)
    return sorted(itertools.chain.from_iterable(merged.values()))


class Edited:
    """A text after cuts, which maps places back to the text before.

    A cut that begins inside another cut is ignored.
    """

    def __init__(self, text: str, cuts: Iterable[Cut]) -> None:
        pieces: list[str] = []
        self._new: list[int] = [0]
        self._old: list[tuple[int, int]] = []
        at = length = 0
        for start, end, instead in sorted(cuts, key=lambda cut: (cut.start, -cut.end)):
            if start < at:
                continue
            length += start - at
            pieces += [text[at:start], instead]
            self._old += [(at, start), (start, end)]
            self._new += [length, length + len(instead)]
            length += len(instead)
            at = end
        self._old.append((at, len(text)))
        self.text = "".join((*pieces, text[at:]))

    def back(self, start: int, end: int) -> tuple[int, int]:
        """Map [start, end) of the cut text back to characters of the original text."""
        return self._place(start)[0], self._place(max(end - 1, start))[1]

    def _place(self, place: int) -> tuple[int, int]:
        index = bisect_right(self._new, place) - 1
        first, last = self._old[index]
        if index % 2:  # a replacement comes from the whole cut
            return first, last
        at = min(first + place - self._new[index], max(last - 1, first))
        return at, min(at + 1, last)
