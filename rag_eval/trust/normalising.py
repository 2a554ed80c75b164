"""One spelling for what looks the same: compatibility forms, letters borrowed from other scripts, case, white space.

Belongs here: what every reading of a text goes through last. Sources: UAX 15 (NFKC, stream-safe text), UTS 39 (confusable characters).
"""

import functools
import re
import sys
import unicodedata

_CYRILLIC = "аеорсухіјѕһԁԛԝѵӏктгпьАВЕКМНОРСТУХІЈЅҺԀԚԜѴӀЬ", "aeopcyxijshdqwvlktrnbABEKMHOPCTYXIJSHDQWVIb"
_GREEK = "αονρυικτχεηωγΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "aovpuiktxenwyABEZHIKMNOPTYX"
_OTHERS = "օոսհցɑɡıɩℓꓲᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ", "onuhgagiiliabcdefghijklmnoprstuvwyz"
_LOOK_ALIKES = str.maketrans("".join(pair[0] for pair in (_CYRILLIC, _GREEK, _OTHERS)), "".join(pair[1] for pair in (_CYRILLIC, _GREEK, _OTHERS)))
_ENCLOSED = {start + place: ord("a") + place for start in (0x1F150, 0x1F170) for place in range(26)}
_FOREIGN = re.compile(f"[{_CYRILLIC[0]}{_GREEK[0]}{_OTHERS[0]}\U0001f150-\U0001f189]")
_FOREIGN_WORD = re.compile(f"[A-Za-z]*[{_CYRILLIC[0]}{_GREEK[0]}{_OTHERS[0]}][A-Za-z{_CYRILLIC[0]}{_GREEK[0]}{_OTHERS[0]}]*")
_LEFT_MARKS = re.compile("(?<=[A-Za-z\u00c0-\u024f\u1e00-\u1eff])[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")
_WORD = re.compile(r"\S+")
_MARKS_IN_A_ROW = 30
_BESIDE = re.compile(r"[^\W\d_]")


@functools.lru_cache(maxsize=1)
def _many_marks() -> re.Pattern[str]:
    """More combining marks in a row than any writing has: ordering them takes quadratic time in normalisation."""
    marks = "".join(chr(code) for code in range(0x300, sys.maxunicode + 1) if unicodedata.combining(chr(code)))
    return re.compile(f"([{marks}]{{{_MARKS_IN_A_ROW}}})[{marks}]+")


def _folded(text: str) -> str:
    """Look-alikes read as the Latin letters they stand for, in words that hold Latin letters too or hold nothing else in a Latin text."""
    text = text.translate(_ENCLOSED)

    def word(found: re.Match[str]) -> str:
        before, after = text[found.start() - 1 : found.start()], text[found.end() : found.end() + 1]
        if _BESIDE.match(before) or _BESIDE.match(after) or not re.search("[A-Za-zᴀ-ᴢɢʜɪɴʀʏʙʟꜰꜱ]", found[0]):
            return found[0]  # part of a word in another script
        return found[0].translate(_LOOK_ALIKES)

    return _FOREIGN_WORD.sub(word, text)


def _unmarked(found: re.Match[str]) -> str:
    """Drop all marks of a Latin word that has more of them than any letter of Unicode."""
    word = found[0]
    if word.isascii() or not _LEFT_MARKS.search(word):
        return word
    return "".join(letter for letter in unicodedata.normalize("NFD", word) if not unicodedata.category(letter).startswith("M"))


def spelled(text: str) -> str:
    """Return the text in NFKC with look-alikes folded; its case and its white space stay."""
    if not text.isascii():
        if not unicodedata.is_normalized("NFKC", text):
            text = unicodedata.normalize("NFKC", _many_marks().sub(r"\1", text))
        if _FOREIGN.search(text):
            text = _folded(text)
        if _LEFT_MARKS.search(text):
            text = _WORD.sub(_unmarked, text)
    return text


def normalised(text: str) -> str:
    r"""Return the text in NFKC, look-alikes folded, in lower case, with one space for every run of white space.

    Examples
    --------
    >>> normalised("  Ｉgnоre\tTHE rules ")
    'ignore the rules'
    """
    return " ".join(spelled(text).lower().split())
