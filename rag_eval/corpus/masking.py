"""Overwrites personal data and secrets before anything is stored, character for character, so that offsets stay true.

Belongs here: the search and the overwriting. What is looked for is `pii_patterns`.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rag_eval.corpus.pii_patterns import PATTERNS, Pattern

__all__ = ["NAMES", "PATTERNS", "MaskedText", "mask"]

FILL = "█"
NAMES: tuple[str, ...] = tuple(sorted({pattern.name for pattern in PATTERNS}))
_DIGITS = re.compile(r"[0-9][0-9 .()/-]{6,}+")  # no phone, card or account number is shorter
_KEPT = re.compile(r"[^\r\n]")
_LINE_END = re.compile(r"[\r\n]")


class MaskedText(NamedTuple):
    """A text of the same length as before, and how many pieces were masked, by pattern name."""

    text: str
    counts: dict[str, int]


def _positions(lowered: str, anchors: Iterable[str]) -> Iterator[int]:
    """Every place where an anchor stands, rising."""
    found = []
    for anchor in anchors:
        at = lowered.find(anchor)
        while at >= 0:
            found.append(at)
            at = lowered.find(anchor, at + len(anchor))
    return iter(sorted(found))


def _windows(
    spans: Iterable[tuple[int, int]], pattern: Pattern, length: int
) -> Iterator[tuple[int, int]]:
    """Spans (in order) widened by the pattern's reach and merged, so that each character of the text is in at most one."""
    begin = end = -1
    for left, right in spans:
        low, high = max(0, left - pattern.before), min(length, right + pattern.after)
        if low > end >= 0:
            yield begin, end
        if low > end:
            begin, end = low, high
        else:
            end = max(end, high)
    if end >= 0:
        yield begin, end


def _matches(
    text: str, lowered: str, pattern: Pattern, digits: list[tuple[int, int]]
) -> Iterator[re.Match[str]]:
    """Candidates in order, none overlapping another."""
    if pattern.anchors and pattern.before == 0:
        done = 0
        for at in _positions(lowered, pattern.anchors):
            if at >= done and (match := pattern.regex.match(text, at)):
                done = match.end()  # also when the check refuses it: a long value is judged once, not at each anchor inside it
                yield match
    else:
        spans = (
            ((at, at + 1) for at in _positions(lowered, pattern.anchors))
            if pattern.anchors
            else iter(digits)
        )
        for low, high in _windows(spans, pattern, len(text)):
            yield from pattern.regex.finditer(text, low, high)


def _cover(piece: str, name: str) -> str:
    """Characters of the same number that say what was here; line ends stay."""
    label = f"[{name}"[: len(piece)]
    if _LINE_END.search(piece[: len(label)]):
        label = ""
    return label + _KEPT.sub(FILL, piece[len(label) :])


def _apply(
    text: str, lowered: str, pattern: Pattern, digits: list[tuple[int, int]]
) -> tuple[str, int]:
    group = "value" if "value" in pattern.regex.groupindex else 0
    pieces: list[str] = []
    done = 0
    for match in filter(pattern.check, _matches(text, lowered, pattern, digits)):
        start, end = match.span(group) if match[group] is not None else match.span()
        pieces += (text[done:start], _cover(text[start:end], pattern.name))
        done = end
    return "".join(pieces) + text[done:] if pieces else text, len(pieces) // 2


def _lower(text: str) -> str:
    """Lower case at the same positions: the few capitals that grow when lowered, such as İ, are left."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(low if len(low := character.lower()) == 1 else character for character in text)


def mask(text: str) -> MaskedText:
    """Overwrite e-mail addresses, phone, card and account numbers, and keys.

    Parameters
    ----------
    text
        Any text; lone surrogates and any line ends are allowed and kept.

    Returns
    -------
    MaskedText
        A text of exactly the same length in which each hit reads `[email████`, and the number of hits of each pattern name that hit.
        Time is linear in the length; texts without an anchor (`@`, a run of digits, a known prefix) are only scanned for those.

    Examples
    --------
    >>> mask("write to jane.doe@example.org today")
    MaskedText(text='write to [email██████████████ today', counts={'email': 1})
    """
    counts: dict[str, int] = {}
    digits = [match.span() for match in _DIGITS.finditer(text)]
    lowered = _lower(text)
    for pattern in PATTERNS:
        if not digits and not pattern.anchors:
            continue
        text, hits = _apply(text, lowered, pattern, digits)
        if hits:
            counts[pattern.name] = counts.get(pattern.name, 0) + hits
    return MaskedText(text, counts)
