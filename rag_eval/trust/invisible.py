"""Characters that are not seen: zero-width, bidirectional, tags, variation selectors, terminal escapes.

Belongs here: which of them are legitimate writing (joiners in Persian, Indic and emoji, marks beside Hebrew and Arabic, flags of emoji) and what the
others say. Sources: Unicode 16 (chapter 23, special areas and format characters), UTS 51 (emoji tag sequences), UAX 9 (bidirectional algorithm).
"""

import re
from collections.abc import Iterator

from rag_eval.records.trust import Severity
from rag_eval.trust.plausible import is_text
from rag_eval.trust.tricks import Cut, Looked, Part, Trick

ZERO_WIDTH = "\u200b\u200c\u200d\u2060\ufeff\u180e\u034f\u2061\u2062\u2063\u2064\u206a-\u206f\u115f\u1160\u17b4\u17b5\u3164\uffa0\ufff9-\ufffb"
BIDI = "\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069"
SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
TAGS = "\U000e0000-\U000e007f"
CONTROLS = "\x00-\x08\x0b\x0e-\x1b\x7f-\x84\x86-\x9f"
INVISIBLE = f"{ZERO_WIDTH}{BIDI}{SELECTORS}{TAGS}{CONTROLS}\u00ad"
"""All of them, as the inside of a character class; a detector of this module looks closer where one is there."""

_ALL = re.compile(f"[{INVISIBLE}]+")
_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-9;:?<=>]{0,40}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b\n]{0,2000}(?:\x07|\x1b\\)?|\x1b[ -~]?"
)
_CONCEALED = re.compile(
    r"(?:\x1b\[|\x9b)(?:[0-9]{1,3};){0,6}8(?:;[0-9]{1,3}){0,6}m([^\x1b\x9b]{1,100000})"
)
_FLAG = re.compile(r"\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f")
_TAGS = re.compile(f"[{TAGS}]+")
_SELECTORS = re.compile(f"[{SELECTORS}]+")
_ON_LETTERS = re.compile(f"(?<=[A-Za-z .,])[{SELECTORS}]")
_OVERRIDE = re.compile(r"[\u202d\u202e]([^\u202c\n]*)")
_RTL = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_EMBEDDED = re.compile(r"[\u202a\u202b\u2066-\u2068]")
_SPLIT = re.compile(f"(?<=[A-Za-z])[{ZERO_WIDTH}]+(?=[A-Za-z])")
_RUN = re.compile(r"[\u200b-\u200f\u2060-\u2064\ufeff]{8,}")
_HYPHEN = re.compile(r"(?<=[0-9])\u00ad+(?=[0-9])")
_FEW, _MANY_SELECTORS, _MANY_SPLITS, _MANY_ESCAPES = 2, 4, 3, 3


def _bytes_of(selectors: str) -> str:
    """Variation selectors carry a byte each: 1 to 16 are 0 to 15, 17 to 256 the rest."""
    return bytes(
        ord(mark) - 0xFE00 if ord(mark) < 0xFE10 else ord(mark) - 0xE0100 + 16 for mark in selectors
    ).decode("utf-8", "replace")  # noqa: PLR2004 - the blocks' borders


def _smuggled(looked: Looked, part: Part, severity: Severity, detail: str) -> None:
    looked.parts.append(part)
    looked.tricks.append(Trick(part.start, part.end, "hidden", part.source, severity, detail))


def _tags(text: str, looked: Looked) -> None:
    flags = {match.start() + 1: match.end() for match in _FLAG.finditer(text)}
    for match in _TAGS.finditer(text):
        start, end = max(match.start(), flags.get(match.start(), 0)), match.end()
        if start < end:
            said = "".join(chr(ord(mark) - 0xE0000) for mark in text[start:end])
            _smuggled(
                looked,
                Part("hidden", "tag_characters", said, start, end),
                "blocked",
                f"{end - start} invisible tag characters that spell text",
            )


def _selectors(text: str, looked: Looked) -> None:
    for match in _SELECTORS.finditer(text):
        if len(match[0]) >= _FEW:
            said = _bytes_of(match[0])
            severity: Severity = "blocked" if len(match[0]) >= _MANY_SELECTORS else "hint"
            _smuggled(
                looked,
                Part("hidden", "variation_selectors", said, *match.span()),
                severity,
                f"{len(match[0])} variation selectors in a row carry bytes",
            )
    single = list(_ON_LETTERS.finditer(text))
    if len(single) >= _MANY_SELECTORS:
        said = _bytes_of("".join(match[0] for match in single))
        _smuggled(
            looked,
            Part("hidden", "variation_selectors", said, single[0].start(), single[-1].end()),
            "blocked",
            f"{len(single)} variation selectors on plain letters carry bytes",
        )


def _bits(run: str) -> Iterator[str]:
    """Readings of a run of two kinds of invisible characters as bits."""
    kinds = sorted(set(run))
    if len(kinds) == _FEW:
        for zero, one in (kinds, kinds[::-1]):
            bits = run.replace(zero, "0").replace(one, "1")
            for width in (8, 7):
                yield bytes(
                    int(bits[place : place + width], 2) & 0xFF
                    for place in range(0, len(bits) - width + 1, width)
                ).decode("latin-1")


def _runs(text: str, looked: Looked) -> None:
    for match in _RUN.finditer(text):
        said = next((reading for reading in _bits(match[0]) if is_text(reading)), "")
        severity: Severity = "blocked" if said else "warning"
        _smuggled(
            looked,
            Part("hidden", "zero_width_run", said, *match.span()),
            severity,
            f"{len(match[0])} invisible characters in a row"
            + (" spell text in bits" if said else ""),
        )


def _bidirectional(text: str, looked: Looked) -> None:
    for match in _OVERRIDE.finditer(text):
        latin = sum("a" <= letter <= "z" for letter in match[1].lower()) >= _FEW
        severity: Severity = "blocked" if latin else "warning"
        _smuggled(
            looked,
            Part("hidden", "bidirectional_override", match[1][::-1], *match.span()),
            severity,
            "a bidirectional override shows characters in another order than they are read",
        )
    if (control := _EMBEDDED.search(text)) and not _RTL.search(text):
        looked.tricks.append(
            Trick(
                *control.span(),
                "hidden",
                "bidirectional_control",
                "hint",
                "bidirectional controls in a text without right-to-left letters",
            )
        )


def _inside_words(text: str, looked: Looked) -> None:
    split = list(_SPLIT.finditer(text))
    if split:
        first, last = max(split[0].start() - 40, 0), min(split[-1].end() + 40, len(text))
        # the same characters may stand for the spaces of a sentence: removing them is one reading, a space for each the other
        looked.parts.append(
            Part("hidden", "zero_width", _ALL.sub(" ", text[first:last]), first, last)
        )
        severity: Severity = "warning" if len(split) >= _MANY_SPLITS else "hint"
        if severity == "warning":
            looked.parts.append(Part("hidden", "broken_words", text[first:last], first, last))
        looked.tricks.append(
            Trick(
                split[0].start(),
                split[-1].end(),
                "hidden",
                "zero_width",
                severity,
                f"invisible characters inside words at {len(split)} places",
            )
        )
    hyphens = list(_HYPHEN.finditer(text))
    if hyphens:
        looked.tricks.append(
            Trick(
                hyphens[0].start(),
                hyphens[-1].end(),
                "hidden",
                "soft_hyphen_in_number",
                "warning",
                f"soft hyphens inside numbers at {len(hyphens)} places",
            )
        )


def _terminal(text: str, looked: Looked) -> None:
    escapes = list(_ANSI.finditer(text))
    if escapes:
        concealed = [
            Part("hidden", "terminal_escape", match[1], *match.span())
            for match in _CONCEALED.finditer(text)
        ]
        severity: Severity = "warning" if concealed or len(escapes) >= _MANY_ESCAPES else "hint"
        looked.tricks.append(
            Trick(
                escapes[0].start(),
                escapes[-1].end(),
                "hidden",
                "terminal_escape",
                severity,
                f"{len(escapes)} terminal escape sequences",
            )
        )
        looked.parts.extend(concealed)
    looked.cuts.extend(Cut(*match.span(), "") for match in escapes)


def look(text: str) -> Looked:
    """Find what is invisible in a text; the cuts take it out.

    Examples
    --------
    >>> [part.text for part in look("Hi" + "".join(chr(0xE0000 + ord(letter)) for letter in "obey")).parts]
    ['obey']
    """
    looked = Looked()
    if text.isascii():
        _terminal(text, looked)
    else:
        for detector in (_terminal, _tags, _selectors, _runs, _bidirectional, _inside_words):
            detector(text, looked)
    looked.cuts.extend(Cut(*match.span(), "") for match in _ALL.finditer(text))
    looked.cuts.sort(key=lambda cut: (cut.start, -cut.end))
    return looked
