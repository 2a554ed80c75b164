"""Unify the spelling of text, and undo spellings that dodge the rules."""

import functools
import itertools
import re
import string
import sys
import tomllib
import unicodedata
from collections.abc import Callable, Iterator
from importlib.resources import files


@functools.cache
def _word_file() -> dict[str, dict[str, str]]:
    return tomllib.loads((files("rag_eval.trust") / "words.toml").read_text(encoding="utf-8"))


def load_words(section: str) -> dict[str, list[str]]:
    """Read the word lists of a section of `words.toml`."""
    return {name: text.split() for name, text in _word_file()[section].items()}


# ---- Spelling

_MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_MARK = re.compile(f"[{_MARKS}]+")
_MARKS_IN_A_ROW = 30
_FAR_FROM_ASCII = re.compile(f"[^\\x00-\\x7f]{{{_MARKS_IN_A_ROW + 1}}}")
_SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f"
_LOWER = bytes.maketrans(
    (string.ascii_uppercase + _SPACES).encode(),
    (string.ascii_lowercase + " " * len(_SPACES)).encode(),
)
_LATIN = (0xC0, 0x2B0), (0x1D00, 0x1F00), (0x2C60, 0x2C80), (0xA720, 0xAB70), (0x1F130, 0x1F18A)
"""Ranges of Unicode with Latin letters."""
_LATIN_NAME = re.compile(
    r"LATIN (?:CAPITAL |SMALL )?LETTER (?:SMALL CAPITAL |DOTLESS |SCRIPT )?([A-Z])( WITH .*)?\Z"
)


def _name_letter(letter: str) -> tuple[str, bool]:
    """Return the ASCII letter in the Unicode name of a letter, and whether it has an accent."""
    in_name = _LATIN_NAME.search(unicodedata.name(letter, ""))
    if in_name is None:
        return "", False
    return (in_name[1] if letter.isupper() else in_name[1].lower()), in_name[2] is not None


@functools.cache
def load_folds() -> tuple[dict[str, str], dict[str, str]]:
    """Return two tables: accented Latin letters, and characters that look like Latin letters.

    The look-alikes come from the confusables table of Unicode (UTS 39). A letter without an entry
    takes the entry of its other case.
    """
    from confusable_homoglyphs.confusables import confusables_data

    accents: dict[str, str] = {}
    # Attackers write these letters, but Unicode does not call them confusable.
    alike = {"п": "n", "ω": "w", "ε": "e", "И": "N", "Я": "R"}
    for character in map(chr, itertools.chain.from_iterable(itertools.starmap(range, _LATIN))):
        plain, accented = _name_letter(character)
        if plain and not unicodedata.normalize("NFKC", character).isascii():
            (accents if accented else alike)[character] = plain
    for character, others in confusables_data.items():
        if len(character) > 1 or not character.isalnum() or character.isascii():
            continue
        shapes = (_MARK.sub("", other["c"]) for other in others)
        plains = (_name_letter(shape)[0] for shape in shapes if len(shape) == 1)
        plain = next(filter(None, plains), "")
        if plain and (character not in accents or plain.lower() != accents[character].lower()):
            accents.pop(character, None)
            plain = "I" if character.isupper() and plain == "l" else plain  # Unicode joins I and l
            alike.setdefault(character, plain.upper() if character.isupper() else plain.lower())
    for character, plain in list(alike.items()):
        if not (other := character.swapcase()).isascii() and len(other) == 1:
            alike.setdefault(other, plain.swapcase())
    return accents, alike


@functools.cache
def _load_table(place: int) -> dict[int, str]:
    return str.maketrans(load_folds()[place])


@functools.cache
def _many_marks() -> re.Pattern[str]:
    """Compile a pattern for overlong runs of combining marks, which NFKC sorts slowly."""
    marks = "".join(
        chr(code) for code in range(0x300, sys.maxunicode + 1) if unicodedata.combining(chr(code))
    )
    return re.compile(f"([{marks}]{{{_MARKS_IN_A_ROW}}})[{marks}]+")


def _compose(text: str) -> str:
    """Return the text in NFKC."""
    if unicodedata.is_normalized("NFKC", text):
        return text
    if _FAR_FROM_ASCII.search(text):
        text = _many_marks().sub(r"\1", text)
    return unicodedata.normalize("NFKC", text)


def normalise(text: str) -> str:
    """Return the text in NFKC and lower case, with one space for each run of white space."""
    if text.isascii():
        data = text.encode().translate(_LOWER)
        return (b" ".join(data.split()) if b"  " in data else data.strip(b" ")).decode()
    return " ".join(_compose(text).lower().split())


# ---- Spellings that dodge the rules: accents, look-alikes, digits, separators

STEMS = load_words("decoding")["orders"]
"""Beginnings of words that orders to a model use."""
_DIGITS = dict(zip("oeasbtgil", "0 3 4@ 5$ 8 7 69 1!| 1!|".split(), strict=True))
_LETTERS = str.maketrans("034@5$8769", "oeaassbtgg")
_STEM = re.compile("|".join(STEMS))
_SEPARATORS = "._*|~+-"
_BETWEEN = rf"[,;:!?]?(?:[/{_SEPARATORS}]{{1,2}} {{0,2}}| {{1,4}})"
_LEET_WORD = re.compile(
    r"(?<![a-z0-9@$])(?=[a-z]{0,30}[0-9@$!|])(?=[0-9@$!|]{0,30}[a-z])"
    r"[!|]?[a-z0-9@$]+(?:[!|]{1,2}[a-z0-9@$]+)*"
)
_LEET_NUMBER = re.compile(r"(?<![a-z0-9.,])[0134578@$]{1,4}(?![a-z0-9,])")
_LETTERS_APART = re.compile(
    rf"(?<![a-z0-9])[a-z0-9@$!](?:{_BETWEEN}[a-z0-9@$!](?![a-z0-9])){{4,}}+"
)
_WORDS_JOINED = re.compile(
    rf"(?:https?://|www\.)\S+"
    rf"|(?<![\w/@{_SEPARATORS}])[a-z]+(?:[,;:]?[{_SEPARATORS}]{{1,3}}[a-z0-9']+)++(?![/(@])"
)
_AMBIGUOUS, _LEAST_LEET, _LEAST_JOINED = 4, 3, 4
_ANY_STEM = "|".join(STEMS)
GLUED = (
    rf"(?i)(?:{_ANY_STEM})[a-z0-9]*[{_SEPARATORS}][a-z0-9{_SEPARATORS}]*(?:{_ANY_STEM})"
    rf"|(?:{_ANY_STEM})[a-z]{{0,4}}[{_SEPARATORS}]{{1,3}}(?:all|any|the)\b"
)
"""RE2 pattern of two words of an order with separators instead of spaces."""
JOINED = rf"(?i)[a-z'](?:[,;:]?[{_SEPARATORS}]{{1,3}}[a-z0-9']+){{5}}"
"""RE2 pattern of any six words with separators."""
_DIGIT_WORD = r"(?:[a-z]+[0134578@$!]+|[0134578@$!]+)[a-z][a-z0-9@$!]*"
DIGITS = rf"(?i)(?:{_DIGIT_WORD}[ ,.;:_-]{{1,2}}(?:[a-z0-9@$!]+[ ,.;:_-]{{1,2}}){{0,2}}){{3}}"
"""RE2 pattern of three words, with digits for letters, near each other."""
APART = rf"(?:[A-Za-z]{_BETWEEN}(?:[0-9@$!]{_BETWEEN}){{0,2}}){{7}}"
"""RE2 pattern of letters with separators between them."""


@functools.cache
def list_odd_spellings() -> str:
    """Return an RE2 pattern of the stems with accents, look-alikes, digits or separators.

    A stem has one alternative for each place of its first odd letter.
    """
    shapes = dict(_DIGITS)
    for letter, plain in itertools.chain.from_iterable(table.items() for table in load_folds()):
        shapes[plain.lower()] = shapes.get(plain.lower(), "") + letter
    between = f"[/{_MARKS}{_SEPARATORS}]*"

    def spell(stem: str) -> Iterator[str]:
        spelled = [f"{between}[{letter}{shapes[letter]}]" for letter in stem]
        for at, letter in enumerate(stem):
            odd = f"[{shapes[letter]}]" + (
                f"|{letter}[/{_MARKS}{_SEPARATORS}]" if at < len(stem) - 1 else ""
            )
            yield f"{stem[:at]}(?:{odd}){''.join(spelled[at + 1 :])}"

    return f"(?i){'|'.join(itertools.chain.from_iterable(map(spell, STEMS)))}"


@functools.cache
def _load_vocabulary() -> frozenset[str]:
    sentences = load_words("sentences")
    verbs = [*sentences["tasks"], *sentences["nouns_too"]]
    stems = {verb.removesuffix("e") for verb in verbs}
    endings = (f"{stem}{ending}" for stem in stems for ending in ("s", "ed", "es", "ing", "ion"))
    vocabulary = (*load_words("decoding")["common"], *sentences["closed"], *verbs, *endings)
    return frozenset(word for word in vocabulary if len(word) > 1)


def _fold_digits(match: re.Match[str]) -> str:
    """Read the digits and signs of a word as letters; 1 is i or l, whichever makes a known word."""
    word = match[0]
    first, *others = re.split("[1!|]", word.translate(_LETTERS))
    tries = range(2 ** min(len(others), _AMBIGUOUS))
    choices = ("".join("il"[code >> at & 1] for at in range(len(others))) for code in tries)
    spelled = [
        first + "".join(map("".join, zip(choice, others, strict=True))) for choice in choices
    ]
    readable = (
        spelling
        for spelling in spelled
        if spelling == "a" or spelling in _load_vocabulary() or _STEM.search(spelling)
    )
    return next(readable, spelled[0] if match.re is _LEET_WORD else word)


def _fold_leet(text: str) -> str:
    """Read digits in words as letters, and numbers too where several words have digits."""
    text, changed = _LEET_WORD.subn(_fold_digits, text)
    return _LEET_NUMBER.sub(_fold_digits, text) if changed >= _LEAST_LEET else text


def _join_letters(match: re.Match[str]) -> str:
    """Join letters that stand apart; wider gaps, or spaces beside separators, end a word."""
    run = match[0]
    between = r" {2,}" if "  " in run else r" " if re.search(r"[^a-z0-9@$! ]", run) else r"(?!)"
    return " ".join(re.sub(r"[^a-z0-9@$!]", "", word) for word in re.split(between, run))


def _part_words(match: re.Match[str]) -> str:
    """Read separators as spaces between four words or more, and as nothing inside a known word."""
    run = match[0]
    words = re.split(f"[{_SEPARATORS}]+", run)
    if (whole := "".join(words)) in _load_vocabulary():
        return whole
    is_address = run.startswith(("http", "www."))
    return run if is_address or len(words) < _LEAST_JOINED else " ".join(words)


_STEPS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("marks", lambda text: _MARK.sub("", text.translate(_load_table(0)))),
    ("confusables", lambda text: text.translate(_load_table(1)).lower()),
    ("separators", functools.partial(_LETTERS_APART.sub, _join_letters)),
    ("leet", _fold_leet),
    ("separators", functools.partial(_WORDS_JOINED.sub, _part_words)),
)


def undo_tricks(text: str) -> tuple[str, str]:
    """Return the names of the tricks in the spelling of a text, and the text without them."""
    text = _compose(text).lower()
    names: dict[str, None] = {}
    for name, step in _STEPS:
        plain = step(text)
        if plain != text:
            names[name] = None
        text = plain
    return "+".join(names), text
