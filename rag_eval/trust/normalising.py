"""One spelling for what looks the same: compatibility forms, letters borrowed from other scripts, case, white space.

Belongs here: what every reading of a text goes through last. Sources: UAX 15 (NFKC, stream-safe text), UTS 39 (confusable characters).
"""

import functools
import re
import string
import sys
import unicodedata

_CYRILLIC = (
    "аеорсухіјѕһԁԛԝѵӏктгпьАВЕКМНОРСТУХІЈЅҺԀԚԜѴӀЬ",
    "aeopcyxijshdqwvlktrnbABEKMHOPCTYXIJSHDQWVIb",
)
_GREEK = "αονρυικτχεηωγΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "aovpuiktxenwyABEZHIKMNOPTYX"
_OTHERS = "օոսհցɑɡıɩℓꓲᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ", "onuhgagiiliabcdefghijklmnoprstuvwyz"
_LOOK_ALIKES = str.maketrans(
    "".join(pair[0] for pair in (_CYRILLIC, _GREEK, _OTHERS)),
    "".join(pair[1] for pair in (_CYRILLIC, _GREEK, _OTHERS)),
)
_ENCLOSED = {start + place: ord("a") + place for start in (0x1F150, 0x1F170) for place in range(26)}
_ENCLOSED_LETTER = re.compile("[\U0001f150-\U0001f189]")
_FOREIGN = re.compile(f"[{_CYRILLIC[0]}{_GREEK[0]}{_OTHERS[0]}\U0001f150-\U0001f189]")
_FOREIGN_ON = re.compile(
    f"[{_CYRILLIC[0]}{_GREEK[0]}{_OTHERS[0]}][A-Za-z{_CYRILLIC[0]}{_GREEK[0]}{_OTHERS[0]}]*"
)
_LATIN = frozenset(string.ascii_letters)
_LOOKS_LATIN = re.compile("[A-Za-zᴀ-ᴢɢʜɪɴʀʏʙʟꜰꜱ]")
_MARKS = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_MARK = re.compile(_MARKS)
_LEFT_MARKS = re.compile(f"(?<=[A-Za-z\u00c0-\u024f\u1e00-\u1eff]){_MARKS}+")
_WORD = re.compile(r"\S+")
_MARKS_IN_A_ROW = 30
_FAR_FROM_ASCII = re.compile(f"[^\\x00-\\x7f]{{{_MARKS_IN_A_ROW + 1}}}")
"""So many characters in a row could be marks; nearly no text has them, and whether they are marks takes longer to tell."""
_BESIDE = re.compile(r"[^\W\d_]")
_SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f"
_LOWER = bytes.maketrans(
    (string.ascii_uppercase + _SPACES).encode(),
    (string.ascii_lowercase + " " * len(_SPACES)).encode(),
)
"""Case and white space of ASCII, as `str.lower` and `str.split` know them, at the speed of copying."""


@functools.lru_cache(maxsize=1)
def _many_marks() -> re.Pattern[str]:
    """More combining marks in a row than any writing has: ordering them takes quadratic time in normalisation."""
    marks = "".join(
        chr(code) for code in range(0x300, sys.maxunicode + 1) if unicodedata.combining(chr(code))
    )
    return re.compile(f"([{marks}]{{{_MARKS_IN_A_ROW}}})[{marks}]+")


def _folded(text: str) -> str:
    """Look-alikes read as the Latin letters they stand for, in words that hold Latin letters too or hold nothing else in a Latin text."""
    if _ENCLOSED_LETTER.search(text):
        text = text.translate(_ENCLOSED)
    pieces: list[str] = []
    at = 0
    for found in _FOREIGN_ON.finditer(text):
        (start, end), first = found.span(), at
        while (
            start > first and text[start - 1] in _LATIN
        ):  # the word begins before its first foreign letter
            start -= 1
        word = text[start:end]
        if not (
            _BESIDE.match(text[start - 1 : start]) or _BESIDE.match(text[end : end + 1])
        ) and _LOOKS_LATIN.search(word):  # else part of a word in another script
            pieces += [text[at:start], word.translate(_LOOK_ALIKES)]
            at = end
    return "".join((*pieces, text[at:]))


def _unmarked(found: re.Match[str]) -> str:
    """Drop all marks of a Latin word that has more of them than any letter of Unicode."""
    word = found[0]
    if word.isascii() or not _LEFT_MARKS.search(word):
        return word
    return "".join(
        letter
        for letter in unicodedata.normalize("NFD", word)
        if not unicodedata.category(letter).startswith("M")
    )


def spelled(text: str) -> str:
    """Return the text in NFKC with look-alikes folded; its case and its white space stay."""
    if not text.isascii():
        if not unicodedata.is_normalized("NFKC", text):
            text = unicodedata.normalize(
                "NFKC", _many_marks().sub(r"\1", text) if _FAR_FROM_ASCII.search(text) else text
            )
        if _FOREIGN.search(text):
            text = _folded(text)
        if _MARK.search(text) and _LEFT_MARKS.search(text):
            text = _WORD.sub(_unmarked, text)
    return text


def normalised(text: str) -> str:
    r"""Return the text in NFKC, look-alikes folded, in lower case, with one space for every run of white space.

    Examples
    --------
    >>> normalised("  Ｉgnоre\tTHE rules ")
    'ignore the rules'
    """
    if text.isascii():
        data = text.encode().translate(_LOWER)
        return (b" ".join(data.split()) if b"  " in data else data.strip(b" ")).decode()
    return " ".join(spelled(text).lower().split())
