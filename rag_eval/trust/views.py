"""A text as a model would read it: normalised, with a way back to the characters it came from.

Belongs here: `View`, and how the readings of a text are put together. Not here: how hidden and encoded text is found (`invisible`, `markup`,
`encoded`), nor which rules apply to which view.
"""

import dataclasses
import functools
import html
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rag_eval.trust import encoded, invisible, markup
from rag_eval.trust.normalising import normalised
from rag_eval.trust.patterns import Signals
from rag_eval.trust.rule_file import ViewKind
from rag_eval.trust.tricks import Cut, Edited, Part, Trick, merged

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    IntArray = npt.NDArray[np.int64]

_WORD = re.compile(r"\S+")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_INVISIBLE = re.compile(f"[{invisible.INVISIBLE}]+")
_SPACES = b"\t\n\v\f\r\x1c\x1d\x1e\x1f"
_BLANK = bytes.maketrans(_SPACES, b" " * len(_SPACES))
_NEAR = 500
"""Hidden parts at most so far from each other are read on from one to the next, as a model would; others end a sentence."""


@dataclasses.dataclass(frozen=True)
class View:
    """One reading of a text.

    Parameters
    ----------
    kind
        What a person sees, what is hidden from a person, or what was decoded.
    text
        Normalised: NFKC, look-alikes folded, lower case, one space for every run of white space.
    source
        Where it was: `text`, `html_comment`, `tag_characters`, `base64`, ...
    start, end
        Characters of the original text that it came from.
    back
        Characters of the original text behind text[start:end]: exact in plain text, the word or the hidden part elsewhere.
    """

    kind: ViewKind
    text: str
    source: str
    start: int
    end: int
    back: Callable[[int, int], tuple[int, int]] = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Reading:
    """All readings of a text, the visible one first, and the tricks that made the others."""

    views: tuple[View, ...]
    tricks: tuple[Trick, ...] = ()


@functools.lru_cache(maxsize=1)
def _signals() -> Signals:
    """What a text must hold for any detector to find something in it; texts without are read as they stand."""
    invisible_characters = "".join(
        character if character == "-" else f"\\x{{{ord(character):x}}}"
        for character in invisible.INVISIBLE
    )
    return Signals(
        {
            "invisible": f"[{invisible_characters}]",
            "markup": r"<[A-Za-z!?/]|\]\(|\]:[ \t]{0,20}(?:#|<>)",
            "entity": r"&[#A-Za-z][A-Za-z0-9]{1,31};",
        }
        | encoded.SIGNALS
    )


def _word_places(text: str) -> "tuple[IntArray, IntArray]":
    """Starts and ends of the words of a text."""
    import numpy as np

    if not text.isascii():
        spans = np.array([match.span() for match in _WORD.finditer(text)], dtype=np.int64).reshape(
            -1, 2
        )
        return spans[:, 0], spans[:, 1]
    blank = np.ones(len(text) + 2, dtype=bool)
    blank[1:-1] = np.frombuffer(text.encode().translate(_BLANK), np.uint8) == ord(" ")
    edges = np.flatnonzero(blank[1:] != blank[:-1])
    return edges[::2], edges[1::2]


def _by_words(before: str, after: str) -> Callable[[int, int], tuple[int, int]]:
    """Way back from a normalised text word by word: exact where a word kept its length, in proportion elsewhere."""
    (firsts, lasts), (starts, ends) = _word_places(before), _word_places(after)
    if len(firsts) != len(starts) or not len(
        starts
    ):  # a character that normalisation made two words of, or a text without words
        scale = len(before) / max(len(after), 1)
        return lambda start, end: (int(start * scale), min(len(before), int(end * scale) + 1))

    def back(place: int) -> int:
        index = int(starts.searchsorted(place, "right")) - 1
        first, last, start, end = (
            int(firsts[index]),
            int(lasts[index]),
            int(starts[index]),
            int(ends[index]),
        )
        inside, length = place - start, end - start
        return min(
            max(last - 1, first),
            first
            + (inside if last - first == length else inside * (last - first) // max(length, 1)),
        )

    return lambda start, end: (back(start), back(max(end - 1, start)) + 1)


def _lazily(
    before: str, after: str, edits: tuple[Edited, ...]
) -> Callable[[int, int], tuple[int, int]]:
    """Way back through all edits; nothing is worked out until a match asks."""
    ways: list[Callable[[int, int], tuple[int, int]]] = []

    def back(start: int, end: int) -> tuple[int, int]:
        if not ways:
            ways.append(_by_words(before, after))
        place = ways[0](start, end)
        for edit in reversed(edits):
            place = edit.back(*place)
        return place

    return back


def _without_entities(text: str) -> Edited:
    return Edited(
        text,
        (
            Cut(*match.span(), _INVISIBLE.sub("", html.unescape(match[0])))
            for match in _ENTITY.finditer(text)
        ),
    )


def _part_views(parts: Iterable[Part]) -> list[View]:
    """One view for each trick, over all its parts."""
    grouped: dict[tuple[ViewKind, str], list[Part]] = {}
    for part in parts:
        grouped.setdefault((part.kind, part.source), []).append(part)
    views = []
    for (kind, source), found in grouped.items():
        found.sort(key=lambda part: (part.start, part.end))
        pieces: list[str] = []
        starts: list[int] = []
        kept: list[Part] = []
        at, end = 0, found[0].start
        for part in found:
            said = (
                part.text
                if part.text.isalnum() and part.text.isascii()
                else _without_entities(_INVISIBLE.sub("", part.text)).text
            )
            said = normalised(said)
            if not said:
                continue
            kept.append(part)
            between = "" if not pieces else " " if part.start - end <= _NEAR else " . "
            pieces += [between, said]
            starts.append(at + len(between))
            at, end = at + len(between) + len(said), max(end, part.end)

        def back(
            start: int, last: int, starts: list[int] = starts, kept: list[Part] = kept
        ) -> tuple[int, int]:
            first, final = (
                max(bisect_right(starts, start) - 1, 0),
                max(bisect_right(starts, max(last - 1, start)) - 1, 0),
            )
            return kept[first].start, max(part.end for part in kept[first : final + 1])

        if kept:
            views.append(View(kind, "".join(pieces), source, kept[0].start, end, back))
    return views


def read(text: str) -> Reading:
    """Read a text as a person would see it, and everything in it that a person would not.

    Returns
    -------
    Reading
        Time is linear in the text's length.
    """
    names = _signals().names(text.encode("utf-8", "replace"))
    if not names:
        plain = normalised(text)
        return Reading((View("visible", plain, "text", 0, len(text), _lazily(text, plain, ())),))
    edits: list[Edited] = []
    parts: list[Part] = []
    tricks: list[Trick] = []
    now = text
    if "invisible" in names:
        looked = invisible.look(text)
        parts, tricks = list(looked.parts), list(looked.tricks)
        for part in looked.parts:  # what is spelt in invisible characters may be encoded on top
            parts.extend(
                found._replace(start=part.start, end=part.end)
                for found in encoded.look(part.text, 1).parts
            )
        edits.append(Edited(text, looked.cuts))
        now = edits[0].text
        names = _signals().names(now.encode("utf-8", "replace"))
    places = edits[0].back if edits else (lambda start, end: (start, end))
    seen = encoded.look(now, names=frozenset(names)) if names & encoded.SIGNALS.keys() else None
    marked = markup.look(now) if "markup" in names else None
    for found_in in (seen, marked):
        if found_in is not None:
            for found in found_in.parts:
                start, end = places(found.start, found.end)
                parts.append(found._replace(start=start, end=end))
            for trick in found_in.tricks:
                start, end = places(trick.start, trick.end)
                tricks.append(trick._replace(start=start, end=end))
    if marked is not None and marked.cuts:
        edits.append(Edited(now, marked.cuts))
        now = edits[-1].text
    if "entity" in names:
        edits.append(_without_entities(now))
        now = edits[-1].text
    shown = normalised(now)
    return Reading(
        (
            View("visible", shown, "text", 0, len(text), _lazily(now, shown, tuple(edits))),
            *_part_views(parts),
        ),
        tuple(merged(tricks, _NEAR)),
    )


def hidden_findings(text: str) -> tuple[Trick, ...]:
    """Tricks of the checks `hidden` and `encoded` in a text, whatever they say."""
    return read(text).tricks
