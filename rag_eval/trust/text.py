"""Read a text as a person sees it and as a model may read it: visible, hidden and decoded views.

Hidden: zero-width and tag characters, selectors, bidirectional overrides, and what markup hides
(`markup`). Decoded: base64, hexadecimal, and odd spellings of orders (`spelling`). Each view maps
its characters back to the original text.
"""

import base64
import binascii
import contextlib
import dataclasses
import functools
import html
import itertools
import re
import string
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from rag_eval.trust.markup import Cut, Discovery, Part, Trick, find_in_markup, read_markup
from rag_eval.trust.rules import LinearPattern, Severity, Signals, ViewKind
from rag_eval.trust.spelling import (
    APART,
    DIGITS,
    GLUED,
    JOINED,
    STEMS,
    list_odd_spellings,
    load_words,
    normalise,
    undo_tricks,
)

# ---- Texts after cuts


class _Edited:
    """A text after cuts, which maps places back; a cut inside another cut is ignored."""

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


# ---- Invisible characters

_ZERO_WIDTH = (
    "\u200b\u200c\u200d\u2060\ufeff\u180e\u034f\u2061\u2062\u2063\u2064\u206a-\u206f"
    "\u115f\u1160\u17b4\u17b5\u3164\uffa0\ufff9-\ufffb"
)
_BIDI = "\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069"
_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_TAGS = "\U000e0000-\U000e007f"
_CONTROLS = "\x00-\x08\x0b\x0e-\x1b\x7f-\x84\x86-\x9f"
_INVISIBLE = f"{_ZERO_WIDTH}{_BIDI}{_SELECTORS}{_TAGS}{_CONTROLS}\u00ad"
"""All invisible characters, as the inside of a character class."""

_INVISIBLE_RE2 = "".join(c if c == "-" else f"\\x{{{ord(c):x}}}" for c in _INVISIBLE)

_RUN = re.compile(f"[{_INVISIBLE}]+")
_ANSI = re.compile(r"(?:\x1b\[|\x9b)[0-9;]{0,40}[A-Za-z]")
_FLAG = "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f"
_TAG_RUN = re.compile(f"{_FLAG}|([{_TAGS}]+)")
_SELECTOR_RUN = re.compile(f"[{_SELECTORS}]{{2,}}")
_ZERO_WIDTH_RUN = re.compile(r"[\u200b-\u200f\u2060-\u2064\ufeff]{8,}")
_OVERRIDE = re.compile(r"[\u202d\u202e][^\u202c\n]*")
_SPLIT = re.compile(f"(?<=[A-Za-z])[{_ZERO_WIDTH}]+(?=[A-Za-z])")
_LATIN = re.compile(r"[A-Za-z].*?[A-Za-z]")
_MANY_SELECTORS, _MANY = 4, 3


def _find_runs(text: str, discovery: Discovery) -> None:
    """Find runs of invisible characters that carry text or bytes."""
    for match in _TAG_RUN.finditer(text):
        if match[1]:
            spelled = "".join(chr(ord(mark) - 0xE0000) for mark in match[1])
            detail = f"{len(match[1])} invisible tag characters that spell text"
            discovery.add("tag_characters", match.span(1), spelled, "blocked", detail)
    for match in _SELECTOR_RUN.finditer(text):
        severity: Severity = "blocked" if len(match[0]) >= _MANY_SELECTORS else "hint"
        detail = f"{len(match[0])} variation selectors carry bytes"
        discovery.add("variation_selectors", match.span(), None, severity, detail)
    for match in _ZERO_WIDTH_RUN.finditer(text):
        detail = f"{len(match[0])} invisible characters in a row"
        discovery.add("zero_width_run", match.span(), None, "warning", detail)
    for match in _OVERRIDE.finditer(text):
        severity = "blocked" if _LATIN.search(match[0]) else "warning"
        detail = "a bidirectional override shows characters in another order"
        discovery.add("bidirectional_override", match.span(), match[0][:0:-1], severity, detail)


def _find_inside_words(text: str, discovery: Discovery) -> None:
    if split := list(_SPLIT.finditer(text)):
        low, high = split[0].start(), split[-1].end()
        around = max(low - 40, 0), min(high + 40, len(text))
        # The cuts remove these characters; the characters may also replace spaces of a sentence.
        discovery.add("zero_width", around, _RUN.sub(" ", text[slice(*around)]))
        severity: Severity = "warning" if len(split) >= _MANY else "hint"
        detail = f"invisible characters inside words at {len(split)} places"
        discovery.add("zero_width", (low, high), severity=severity, detail=detail)


def _find_invisible(text: str) -> Discovery:
    """Find the invisible characters of a text; the cuts remove them."""
    discovery = Discovery()
    discovery.cuts.extend(Cut(*match.span(), "") for match in _ANSI.finditer(text))
    if not text.isascii():
        _find_runs(text, discovery)
        _find_inside_words(text, discovery)
    discovery.cuts.extend(Cut(*match.span(), "") for match in _RUN.finditer(text))
    return discovery


# ---- Encoded text

_LONGEST, _DISTINCT_LETTERS = 1 << 20, 7
_NEAR_WORDS, _AROUND, _LEAST_STEM = 120, 160, 6

_BASE64 = (
    r"[A-Za-z0-9+/_-]{16,}(?:\r?\n[ \t]{0,20}[A-Za-z0-9+/_-]{20,})*"
    r"(?:\r?\n[ \t]{0,20}[A-Za-z0-9+/_-]{2,19})?={0,2}"
)
_HEX = r"(?:0x|\\x)?[0-9A-Fa-f]{2}(?:[ ,:]{0,2}(?:0x|\\x)?[0-9A-Fa-f]{2}){7,}"
SIGNALS: tuple[dict[str, Callable[[], str]], ...] = (
    {
        "invisible": lambda: f"[{_INVISIBLE_RE2}]",
        "markup": lambda: r"<[A-Za-z!?/]|\]\(|\]:[ \t]{0,20}(?:#|<>)",
        "entity": lambda: r"&[#A-Za-z][A-Za-z0-9]{1,31};",
        # A long run of base64 has capitals after small letters or digits, unlike long words.
        "base64": lambda: (
            r"[a-z0-9][A-Z][A-Za-z0-9+/_-]{0,20}[a-z0-9][A-Z][A-Za-z0-9+/_-]{8}"
            r"|[A-Za-z0-9+/_-]{8}[a-z0-9][A-Z][A-Za-z0-9+/_-]{0,20}[a-z0-9][A-Z]"
        ),
        "hex": lambda: r"(?:[0-9A-Fa-f]{2}(?:[ ,:]{0,2}(?:0x|\\x)?)?){8}",
        "digits": lambda: DIGITS,
        "apart": lambda: APART,
        "joined": lambda: JOINED,
    },
    {"glued": lambda: GLUED},
    {"odd": list_odd_spellings},
    {"cipher": lambda: rf"(?i)\b(?:{'|'.join(_SHIFT_OF)})"},
)
"""Signal -> writer of an RE2 pattern, in sets, because one automaton would be too large.

A detector runs only on texts that match its pattern."""
_RESPELLED = ("odd", "joined", "glued", "digits", "apart")


def _shift(text: str, by: int) -> str:
    """Move the letters of a text through the alphabet, as in ROT13 and Caesar's cipher."""
    lower, upper = string.ascii_lowercase, string.ascii_uppercase
    shifted = (letters[by:] + letters[:by] for letters in (lower, upper))
    return text.translate(str.maketrans(lower + upper, "".join(shifted)))


_SHIFT_OF: dict[str, int] = {
    _shift(stem, -by): by for by in range(1, 26) for stem in STEMS if len(stem) >= _LEAST_STEM
}
"""Shifted beginning of a word of an order -> shift that reads the word."""


_COMMON = frozenset(load_words("decoding")["common"])
_WORD = re.compile(r"[^\W\d_]+")
_LATIN_END, _HEAD = 0x250, 4000
_LEAST_CHARS, _LEAST_WORDS, _LONGEST_WORD = 6, 2, 28
_ODD_SHARE, _LETTER_SHARE, _KNOWN_SHARE = 0.05, 0.7, 0.15


def _decode_printable(data: bytes) -> str | None:
    """Decode UTF-8 bytes; None if over 5 % of the characters cannot be printed."""
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode("utf-8")
        odd = sum(not (letter.isprintable() or letter in "\t\n\r") for letter in text)
        return text if odd <= _ODD_SHARE * len(text) else None
    return None


def _is_text(text: str) -> bool:
    """Tell whether a text reads like sentences: mostly letters, with known words."""
    head = text[:_HEAD]
    letters = [letter for letter in head if letter.isalpha()]
    n_blanks = head.count(" ") + head.count("\n")
    if len(head) < _LEAST_CHARS or len(letters) + n_blanks < _LETTER_SHARE * len(head):
        return False
    if sum(ord(letter) >= _LATIN_END for letter in letters) * 2 > len(letters):
        return True  # random bytes hardly ever decode to such text
    words = [word.lower() for word in _WORD.findall(head)]
    n_known = sum(word in _COMMON for word in words)
    return (
        len(words) >= _LEAST_WORDS
        and n_known >= max(1, _KNOWN_SHARE * len(words))
        and max(map(len, words)) <= _LONGEST_WORD
    )


def _decode_base64(run: str) -> Iterator[bytes]:
    """Decode a run and then the first line alone, because later lines may only look encoded."""
    if len(set(run[:200])) < _DISTINCT_LETTERS:  # a line of few different letters, such as a rule
        return
    for letters in dict.fromkeys(("".join(run.split()), run.split(None, 1)[0])):
        whole = letters.rstrip("=")
        whole = whole[: len(whole) - (len(whole) % 4 == 1)]
        with contextlib.suppress(binascii.Error):
            raw = base64.urlsafe_b64decode(f"{whole}{'=' * (-len(whole) % 4)}")
            is_wide = raw[1::2].count(0) > len(raw) // 4  # as PowerShell encodes
            yield raw.decode("utf-16-le", "replace").encode("utf-8", "replace") if is_wide else raw


def _decode_hex(run: str) -> Iterator[bytes]:
    digits = re.sub(r"0x|\\x|[ ,:]", "", run)
    yield bytes.fromhex(digits[: len(digits) // 2 * 2])


_DECODERS: dict[str, tuple[LinearPattern, Callable[[str], Iterator[bytes]]]] = {
    "base64": (LinearPattern(_BASE64), _decode_base64),
    "hex": (LinearPattern(_HEX), _decode_hex),
}
"""Signal -> pattern of a run, and its decoder."""


def _join_near(spans: Iterable[tuple[int, int]], length: int) -> Iterator[tuple[int, int]]:
    """Yield each passage of a text around spans that are near each other."""
    low = high = -1
    for start, end in spans:
        if high >= 0 and start - high > _NEAR_WORDS:
            yield max(low - _AROUND, 0), min(high + _AROUND, length)
            low = start
        low, high = low if high >= 0 else start, max(high, end)
    if high >= 0:
        yield max(low - _AROUND, 0), min(high + _AROUND, length)


@functools.cache
def _load_spelling(name: str) -> LinearPattern:
    return LinearPattern(next(some[name] for some in SIGNALS if name in some)())


def _find_encoded(text: str, names: set[str]) -> Discovery:
    """Find encoded text, and orders in odd spellings; `names` are the signals of the text."""
    discovery = Discovery()
    for name, (runs, decode) in _DECODERS.items():
        for start, end in runs.find_all(text) if name in names else ():
            texts = map(_decode_printable, decode(text[start : min(end, start + _LONGEST)]))
            if decoded := next((read for read in texts if read and _is_text(read)), None):
                discovery.decode(name, decoded, (start, end), suspicious=True)
    spans = (_load_spelling(name).find_all(text) for name in _RESPELLED if name in names)
    for span in _join_near(sorted(itertools.chain.from_iterable(spans)), len(text)):
        source, respelled = undo_tricks(text[slice(*span)])
        if source:
            discovery.decode(source, respelled, span, suspicious=False)
    shifted: dict[int, list[tuple[int, int]]] = {}
    for start, end in _load_spelling("cipher").find_all(text) if "cipher" in names else ():
        shifted.setdefault(_SHIFT_OF[text[start:end].lower()], []).append((start, end))
    for by, words in shifted.items():
        for span in _join_near(words, len(text)):
            if _is_text(decoded := _shift(text[slice(*span)], by)):
                discovery.decode("cipher", decoded, span, suspicious=True)
    return discovery


# ---- Plain text, for checks that compare wordings

_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_DRESSED = re.compile(r"[<&\x00-\x08\x0b\x0e-\x1f\x7f]")
_BLOCKS = frozenset(load_words("markup")["blocks"])


def plain(text: str) -> str:
    """Return the readable text without markup, in NFKC; tags of blocks become line breaks."""
    if text.isascii() and not _DRESSED.search(text):
        return text
    text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    text = _RUN.sub("", text)
    cuts = (
        # An index reads a comment that is not closed.
        Cut(
            tag.start,
            tag.end if tag.complete else tag.start + len("<!--"),
            "\n" * (tag.name in _BLOCKS),
        )
        for tag in read_markup(text)[0]
    )
    return unicodedata.normalize("NFKC", _Edited(text, cuts).text)


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
    return [Signals({name: write() for name, write in some.items()}) for some in SIGNALS]


def _find_signals(texts: Sequence[str]) -> list[set[str]]:
    """List the names of the detectors that each text needs; all others would find nothing."""
    data = [text.encode("utf-8", "replace") for text in texts]
    names: list[set[str]] = [set() for _ in texts]
    # Each set searches all texts before the next set, because alternating automata drive each other
    # out of the processor's cache.
    for signals in _load_signals():
        for of_text, encoded in zip(names, data, strict=True):
            of_text.update(signals.find(encoded))
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


def _visible(edited: str, edits: list[_Edited]) -> View:
    """Make the visible view; the mapping back is computed for the first match only."""
    shown = normalise(edited)
    way = functools.cache(lambda: _way_by_words(edited, shown))

    def back(start: int, end: int) -> tuple[int, int]:
        place = way()(start, end)
        for edit in reversed(edits):
            place = edit.back(*place)
        return place

    return View("visible", shown, "text", back)


def _decode_entities(text: str) -> _Edited:
    cuts = (
        Cut(*match.span(), _RUN.sub("", html.unescape(match[0])))
        for match in _ENTITY.finditer(text)
    )
    return _Edited(text, cuts)


def _view_parts(kind: ViewKind, source: str, parts: list[Part]) -> View | None:
    """Read all parts of one trick as one view; None if they hold no text."""
    pieces: list[str] = []
    starts: list[int] = []
    shown: list[Part] = []
    length = end = 0
    for part in sorted(parts, key=lambda part: (part.start, part.end)):
        text = part.text
        if not (text.isalnum() and text.isascii()):
            text = _decode_entities(_RUN.sub("", text)).text
        if not (text := normalise(text)):
            continue
        between = "" if not shown else " " if part.start - end <= _NEAR else " . "
        pieces += [between, text]
        starts.append(length + len(between))
        shown.append(part)
        length, end = starts[-1] + len(text), max(end, part.end)

    def back(start: int, last: int) -> tuple[int, int]:
        first = max(bisect_right(starts, start) - 1, 0)
        final = max(bisect_right(starts, max(last - 1, start)) - 1, 0)
        return shown[first].start, max(part.end for part in shown[first : final + 1])

    return View(kind, "".join(pieces), source, back) if shown else None


_GRAVE = ("hint", "warning", "blocked")


def _merge_tricks(tricks: Iterable[Trick], near: int) -> list[Trick]:
    """Join tricks of one rule at most `near` characters apart, to bound the number of findings."""
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


def read_all(texts: Sequence[str]) -> list[Reading]:
    """Read the visible text, and all text that a person would not see, in linear time."""
    return [_read(text, names) for text, names in zip(texts, _find_signals(texts), strict=True)]


def _read(text: str, names: set[str]) -> Reading:
    if not names:
        return Reading((_visible(text, []),))
    edits: list[_Edited] = []
    parts: list[Part] = []
    tricks: list[Trick] = []
    now = text
    if "invisible" in names:
        invisible = _find_invisible(text)
        tricks += invisible.tricks
        parts += invisible.parts
        for part in invisible.parts:  # invisible characters may spell base64
            deeper = _find_encoded(part.text, {"base64"}).parts
            parts += [inner._replace(start=part.start, end=part.end) for inner in deeper]
        edits.append(_Edited(text, invisible.cuts))
        now = edits[0].text
        [names] = _find_signals([now])
    places = edits[0].back if edits else (lambda start, end: (start, end))
    discoveries = (
        _find_encoded(now, names),
        find_in_markup(now) if "markup" in names else Discovery(),
    )
    for discovery in discoveries:
        for part in discovery.parts:
            start, end = places(part.start, part.end)
            parts.append(part._replace(start=start, end=end))
        for trick in discovery.tricks:
            start, end = places(trick.start, trick.end)
            tricks.append(trick._replace(start=start, end=end))
        if discovery.cuts:
            edits.append(_Edited(now, discovery.cuts))
            now = edits[-1].text
    if "entity" in names:
        edits.append(_decode_entities(now))
        now = edits[-1].text
    groups: dict[tuple[ViewKind, str], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.kind, part.source), []).append(part)
    hidden = (_view_parts(*key, group) for key, group in groups.items())
    views = (_visible(now, edits), *(view for view in hidden if view is not None))
    return Reading(views, tuple(_merge_tricks(tricks, _NEAR)))
