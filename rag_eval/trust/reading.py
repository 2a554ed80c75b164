"""Read a text as a person sees it and as a model may read it: visible, hidden, decoded views.

Each view maps its characters back to the original text.
"""

import dataclasses
import functools
import html
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence

from rag_eval.trust.hidden_text import (
    INVISIBLE,
    SIGNALS,
    SPELLINGS,
    Cut,
    Discovery,
    Edited,
    Part,
    Trick,
    find_encoded,
    find_invisible,
    merge_tricks,
)
from rag_eval.trust.markup import find_in_markup, read_tags
from rag_eval.trust.rules import Signals, ViewKind
from rag_eval.trust.spelling import load_words, normalise, unify_spelling

_INVISIBLE = re.compile(f"[{INVISIBLE}]+")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

# ---- Plain text, for checks that compare wordings

_DRESSED = re.compile(r"[<&\x00-\x08\x0b\x0e-\x1f\x7f]")
_BLOCKS = frozenset(load_words("markup")["blocks"])


def plain(text: str) -> str:
    r"""Return the readable text without markup, in NFKC, with unchanged case and line breaks.

    Tags of blocks become line breaks.

    Examples
    --------
    >>> plain("<h2>Depth</h2><i>h\u200bow</i> <b>dеep</b> &#105;s it")
    '\nDepth\nhow deep is it'
    """
    if text.isascii() and not _DRESSED.search(text):
        return text
    text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    text = _INVISIBLE.sub("", text)
    cuts = (
        # An index reads a comment that is not closed.
        Cut(
            tag.start,
            tag.end if tag.complete else tag.start + len("<!--"),
            "\n" * (tag.name in _BLOCKS),
        )
        for tag in read_tags(text)
    )
    return unify_spelling(Edited(text, cuts).text)


# ---- Views

_TOKEN = re.compile(r"\S+")
_NEAR = 500
"""Most characters between hidden parts of one sentence; a wider gap ends the sentence."""

Way = Callable[[int, int], tuple[int, int]]
"""Maps a range of a view's text to its range in the original text."""


@dataclasses.dataclass(frozen=True)
class View:
    """A normalised reading of a text or of its hidden parts."""

    kind: ViewKind
    text: str
    source: str
    """Trick that hides the text, such as `html_comment` or `base64`; `text` for visible text."""
    back: Way = dataclasses.field(repr=False, compare=False)
    """Maps places to the original text: exact in plain text, else the whole word or hidden part."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """All views of a text, the visible one first, and the tricks behind the others."""

    views: tuple[View, ...]
    tricks: tuple[Trick, ...] = ()


@functools.cache
def _load_signals() -> list[Signals]:
    """Compile the signals, in sets, because one automaton for all of them would be too large."""
    invisible = "".join(c if c == "-" else f"\\x{{{ord(c):x}}}" for c in INVISIBLE)
    of_markup = {
        "invisible": f"[{invisible}]",
        "markup": r"<[A-Za-z!?/]|\]\(|\]:[ \t]{0,20}(?:#|<>)",
        "entity": r"&[#A-Za-z][A-Za-z0-9]{1,31};",
    }
    words = {name: write() for name, write in SPELLINGS.items()}
    apart = (("ciphered", "glued"), ("odd",))
    sets = [{name: words.pop(name) for name in names} for names in apart]
    return [Signals(patterns) for patterns in (of_markup | SIGNALS | words, *sets)]


def find_signals(texts: Sequence[str]) -> list[set[str]]:
    """List the names of the detectors that each text needs; all others would find nothing.

    Each set searches all texts before the next set, because alternating automata drive each other
    out of the processor's cache.
    """
    data = [text.encode("utf-8", "replace") for text in texts]
    names: list[set[str]] = [set() for _ in texts]
    for signals in _load_signals():
        for found, one in zip(names, data, strict=True):
            found.update(signals.find(one))
    return names


def _way_by_words(before: str, after: str) -> Way:
    """Map places back word by word."""
    words = [match.span() for match in _TOKEN.finditer(before)]
    starts = [match.start() for match in _TOKEN.finditer(after)]
    if len(words) != len(starts) or not starts:  # normalising split a word
        scale = len(before) / max(len(after), 1)
        return lambda start, end: (int(start * scale), min(len(before), int(end * scale) + 1))

    def back(place: int) -> int:
        index = bisect_right(starts, place) - 1
        first, last = words[index]
        return min(max(last - 1, first), first + place - starts[index])

    return lambda start, end: (back(start), back(max(end - 1, start)) + 1)


def _visible(edited: str, edits: list[Edited]) -> View:
    """Make the visible view; the mapping back is computed for the first match only."""
    shown = normalise(edited)
    ways: list[Way] = []

    def back(start: int, end: int) -> tuple[int, int]:
        if not ways:
            ways.append(_way_by_words(edited, shown))
        place = ways[0](start, end)
        for edit in reversed(edits):
            place = edit.back(*place)
        return place

    return View("visible", shown, "text", back)


def _decode_entities(text: str) -> Edited:
    cuts = (
        Cut(*match.span(), _INVISIBLE.sub("", html.unescape(match[0])))
        for match in _ENTITY.finditer(text)
    )
    return Edited(text, cuts)


def _view_parts(kind: ViewKind, source: str, parts: list[Part]) -> View | None:
    """Read all parts of one trick as one view; None if they hold no text."""
    pieces: list[str] = []
    starts: list[int] = []
    kept: list[Part] = []
    length = end = 0
    for part in sorted(parts, key=lambda part: (part.start, part.end)):
        text = part.text
        if not (text.isalnum() and text.isascii()):
            text = _decode_entities(_INVISIBLE.sub("", text)).text
        if not (text := normalise(text)):
            continue
        between = "" if not kept else " " if part.start - end <= _NEAR else " . "
        pieces += [between, text]
        starts.append(length + len(between))
        kept.append(part)
        length, end = starts[-1] + len(text), max(end, part.end)

    def back(start: int, last: int) -> tuple[int, int]:
        first = max(bisect_right(starts, start) - 1, 0)
        final = max(bisect_right(starts, max(last - 1, start)) - 1, 0)
        return kept[first].start, max(part.end for part in kept[first : final + 1])

    return View(kind, "".join(pieces), source, back) if kept else None


def read_all(texts: Sequence[tuple[str, bool]]) -> list[Reading]:
    """Read the visible text, and all text that a person would not see, in linear time.

    Each text comes with whether it is known to be Markdown.
    """
    names = find_signals([text for text, _ in texts])
    return [
        _read(text, found, markdown=markdown)
        for (text, markdown), found in zip(texts, names, strict=True)
    ]


def read(text: str, *, markdown: bool = False) -> Reading:
    """Read one text like `read_all`."""
    return read_all([(text, markdown)])[0]


def _read(text: str, names: set[str], *, markdown: bool) -> Reading:
    if not names:
        return Reading((_visible(text, []),))
    edits: list[Edited] = []
    parts: list[Part] = []
    tricks: list[Trick] = []
    now = text
    if "invisible" in names:
        invisible = find_invisible(text)
        tricks += invisible.tricks
        parts += invisible.parts
        for part in invisible.parts:  # invisible characters may spell encoded text
            deeper = find_encoded(part.text, 1).parts
            parts += [found._replace(start=part.start, end=part.end) for found in deeper]
        edits.append(Edited(text, invisible.cuts))
        now = edits[0].text
        [names] = find_signals([now])
    places = edits[0].back if edits else (lambda start, end: (start, end))
    discoveries = (
        find_encoded(now, names=names),
        find_in_markup(now, markdown=markdown) if "markup" in names else Discovery(),
    )
    for found in discoveries:
        for part in found.parts:
            start, end = places(part.start, part.end)
            parts.append(part._replace(start=start, end=end))
        for trick in found.tricks:
            start, end = places(trick.start, trick.end)
            tricks.append(trick._replace(start=start, end=end))
        if found.cuts:
            edits.append(Edited(now, found.cuts))
            now = edits[-1].text
    if "entity" in names:
        edits.append(_decode_entities(now))
        now = edits[-1].text
    groups: dict[tuple[ViewKind, str], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.kind, part.source), []).append(part)
    hidden = (_view_parts(*key, group) for key, group in groups.items())
    views = (_visible(now, edits), *(view for view in hidden if view is not None))
    return Reading(views, tuple(merge_tricks(tricks, _NEAR)))
