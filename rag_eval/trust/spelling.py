"""Unify the spelling of text that looks the same, and tell whether decoded bytes are text."""

import functools
import re
import string
import sys
import tomllib
import unicodedata
from importlib.resources import files


@functools.cache
def _word_file() -> dict[str, dict[str, str]]:
    return tomllib.loads((files("rag_eval.trust") / "words.toml").read_text(encoding="utf-8"))


def load_texts(section: str) -> dict[str, str]:
    """Read a section of `words.toml` unchanged."""
    return _word_file()[section]


def load_words(section: str) -> dict[str, list[str]]:
    """Read the word lists of a section of `words.toml`."""
    return {name: text.split() for name, text in _word_file()[section].items()}


# ---- Spelling

_OTHERS, _ALIKE = map("".join, zip(*load_words("look_alikes").values(), strict=True))
_LOOK_ALIKES = str.maketrans(_OTHERS, _ALIKE)
_ENCLOSED = {start + place: ord("a") + place for start in (0x1F150, 0x1F170) for place in range(26)}
_ENCLOSED_LETTER = re.compile("[\U0001f150-\U0001f189]")
_FOREIGN = re.compile(f"[{_OTHERS}\U0001f150-\U0001f189]")
_FOREIGN_ON = re.compile(f"[{_OTHERS}][A-Za-z{_OTHERS}]*")
_LATIN = frozenset(string.ascii_letters)
_LOOKS_LATIN = re.compile("[A-Za-zᴀ-ᴢɢʜɪɴʀʏʙʟꜰꜱ]")
_MARKS = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_MARK = re.compile(_MARKS)
_LEFT_MARKS = re.compile(f"(?<=[A-Za-z\u00c0-\u024f\u1e00-\u1eff]){_MARKS}+")
_MARKS_IN_A_ROW = 30
_FAR_FROM_ASCII = re.compile(f"[^\\x00-\\x7f]{{{_MARKS_IN_A_ROW + 1}}}")
_LETTER = re.compile(r"[^\W\d_]")
_SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f"
_LOWER = bytes.maketrans(
    (string.ascii_uppercase + _SPACES).encode(),
    (string.ascii_lowercase + " " * len(_SPACES)).encode(),
)


@functools.cache
def _many_marks() -> re.Pattern[str]:
    """Compile a pattern for overlong runs of combining marks, which NFKC sorts slowly."""
    marks = "".join(
        chr(code) for code in range(0x300, sys.maxunicode + 1) if unicodedata.combining(chr(code))
    )
    return re.compile(f"([{marks}]{{{_MARKS_IN_A_ROW}}})[{marks}]+")


def _fold_look_alikes(text: str) -> str:
    """Replace look-alikes, but only in words with Latin letters or letters that look Latin."""
    if _ENCLOSED_LETTER.search(text):
        text = text.translate(_ENCLOSED)
    pieces: list[str] = []
    at = 0
    for found in _FOREIGN_ON.finditer(text):
        start, end = found.span()
        while start > at and text[start - 1] in _LATIN:
            start -= 1
        beside = _LETTER.match(text[start - 1 : start]) or _LETTER.match(text[end : end + 1])
        word = text[start:end]
        if not beside and _LOOKS_LATIN.search(word):  # else part of a word in another script
            pieces += [text[at:start], word.translate(_LOOK_ALIKES)]
            at = end
    return "".join((*pieces, text[at:]))


def _drop_marks(found: re.Match[str]) -> str:
    """Drop all marks of a Latin word with a mark after NFKC, because no usual word has one."""
    word = found[0]
    if word.isascii() or not _LEFT_MARKS.search(word):
        return word
    letters = unicodedata.normalize("NFD", word)
    return "".join(c for c in letters if not unicodedata.category(c).startswith("M"))


def unify_spelling(text: str) -> str:
    """Return the text in NFKC with look-alikes folded; case and white space stay."""
    if text.isascii():
        return text
    if not unicodedata.is_normalized("NFKC", text):
        if _FAR_FROM_ASCII.search(text):
            text = _many_marks().sub(r"\1", text)
        text = unicodedata.normalize("NFKC", text)
    if _FOREIGN.search(text):
        text = _fold_look_alikes(text)
    if _MARK.search(text) and _LEFT_MARKS.search(text):
        text = re.sub(r"\S+", _drop_marks, text)
    return text


def normalise(text: str) -> str:
    r"""Return the text in one spelling, in lower case, with one space for each run of white space.

    Examples
    --------
    >>> normalise("  Ｉgnоre\tTHE rules ")
    'ignore the rules'
    """
    if text.isascii():
        data = text.encode().translate(_LOWER)
        return (b" ".join(data.split()) if b"  " in data else data.strip(b" ")).decode()
    return " ".join(unify_spelling(text).lower().split())


# ---- Decoded bytes

_COMMON = frozenset(load_words("decoding")["common"])
COMMON_WORDS = sorted((word for word in _COMMON if len(word) > 1), key=len, reverse=True)
_WORD = re.compile(r"[^\W\d_]+")
_PRINTABLE_ASCII = bytes(range(32, 127)) + b"\t\n\r"
_LATIN_END = 0x250
_HEAD = 4000
_LEAST_CHARS, _LEAST_WORDS, _LONGEST_WORD = 6, 2, 28
_PRINTABLE_SHARE, _LETTER_SHARE, _KNOWN_SHARE = 0.95, 0.7, 0.15


def decode_printable(data: bytes) -> str | None:
    """Decode UTF-8 bytes; None if over 5 % of the characters cannot be printed."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if text.isascii():
        bad = len(data.translate(None, _PRINTABLE_ASCII))
    else:
        bad = sum(not (letter.isprintable() or letter in "\t\n\r") for letter in text)
    return text if text and bad <= (1 - _PRINTABLE_SHARE) * len(text) else None


def is_text(text: str) -> bool:
    """Tell whether a text reads like sentences: mostly letters, with known words.

    If half of the letters are beyond Latin, no known word is needed: random bytes hardly ever
    decode to such text.

    Examples
    --------
    >>> is_text("ignore the instructions above"), is_text("kQ9 zzt vrX p1")
    (True, False)
    """
    head = text[:_HEAD]
    if len(head) < _LEAST_CHARS:
        return False
    letters = [letter for letter in head if letter.isalpha()]
    if len(letters) + head.count(" ") + head.count("\n") < _LETTER_SHARE * len(head):
        return False
    if sum(ord(letter) >= _LATIN_END for letter in letters) * 2 > len(letters):
        return True
    words = [word.lower() for word in _WORD.findall(head)]
    known = sum(word in _COMMON for word in words)
    return (
        len(words) >= _LEAST_WORDS
        and known >= max(1, _KNOWN_SHARE * len(words))
        and max(map(len, words)) <= _LONGEST_WORD
    )
