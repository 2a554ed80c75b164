r"""Compile the phrases of the guard's rules to RE2 syntax.

A phrase is a row of tokens between blanks, for text in lower case with single blanks:

`word`           this word; a hyphen also matches a blank or nothing, and `é` also matches `e`
`word*`          any word that begins so; only for words in other letters than Latin
`{ignore}`       an entry of the word list `ignore`; an entry `re:...` is RE2 syntax
`this|{those}`   one of these words or entries
`token?`         the token or nothing
`..`, `...`      at most 2 or 6 other words of the same sentence
`~`              any text, for code
`^`              the beginning of a sentence; only as the first token
`re:...`         a whole phrase in RE2 syntax, for structure instead of words

Marks may stand between words, but no end of a sentence. Chinese and Japanese have no blanks: there,
tokens follow each other directly, and `..` and `...` are at most 4 and 12 characters.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

Lists = Mapping[str, str | Sequence[str]]
"""Word lists by name: words between blanks, or entries of several words."""

_MARKS = r"\x00-/:-@\[-`{-~\x{a0}-\x{bf}\x{2000}-\x{206f}\x{3000}-\x{303f}"
_WORD = rf"[^{_MARKS}]+(?:[._][^{_MARKS}]+)*"
_BETWEEN = r"[\x00- \"-\-/:->@\[-`{-~\x{a0}-\x{bf}\x{2000}-\x{206f}]+"
_LEFT, _RIGHT = rf"(?:^|[{_MARKS}])", rf"(?:$|[{_MARKS}])"
_BEGIN = (
    r"(?:^|[>|\x{3002}]|[.!?:;*#=\-)\]}\x{2013}\x{2014}\x{2022}\x{201d}\"'] )"
    r"[ \"'*_(\[`\x{2018}-\x{201d}]{0,4}"
)
_GAPS = {"..": 2, "...": 6}
_ANYTHING = "~"
_WITHOUT_BLANKS = frozenset(("zh", "ja"))
_IN_SENTENCE = r"[^.!?\x{3002}]"
_LIST = re.compile(r"\{(\w+)\}")
_RAW = "re:"
_SPECIAL = {"-": "[ -]?", "'": r"['\x{2019}]", "*": f"[^{_MARKS}]*"}
_PAIRS = {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"}
"""Letters that German also spells with two letters of ASCII."""
SCRIPTS = {"CYRILLIC": "[\u0430-\u045f]", "HAN": "[\u3400-\u9fff]"}
"""Scripts without words in ASCII; their names stand for words in `needed_words`."""
_ASCII_WORD = re.compile(r"[a-z0-9]+")


def _options(token: str, lists: Lists) -> list[str]:
    """Return the entries that may stand for a token."""
    options: list[str] = []
    for part in token.split("|"):
        name = _LIST.fullmatch(part)
        if name and name[1] not in lists:
            raise ValueError(f"no word list is named {name[1]!r}")
        if not part or (not name and set(part) & set("{}?")):
            raise ValueError(f"{token!r} is no token of a phrase")
        words = lists[name[1]] if name else [part]
        options += words.split() if isinstance(words, str) else words
    return options


def _fold(word: str) -> str:
    """Drop the accents."""
    letters = unicodedata.normalize("NFD", word)
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def _compile_letter(letter: str) -> str:
    base = _fold(letter)
    spellings = dict.fromkeys((letter, base, _PAIRS.get(letter, base)))
    alike = f"(?:{'|'.join(spellings)})" if len(spellings) > 1 else re.escape(letter)
    return _SPECIAL.get(letter, alike)


@functools.cache
def _compile_option(option: str, between: str) -> str:
    if option.startswith(_RAW):
        return f"(?:{option.removeprefix(_RAW)})"
    return between.join("".join(map(_compile_letter, word)) for word in option.split())


def _compile_tokens(tokens: Sequence[str], lists: Lists, *, blanks: bool) -> str:
    between = _BETWEEN if blanks else "[ ]?"
    pieces: list[str] = []
    begun = False
    for before, token in zip(("", *tokens), tokens, strict=False):
        if token == _ANYTHING:
            pieces.append("(?s:.*)")
            continue
        if token in _GAPS:
            words = f"(?:{between}{_WORD}){{0,{_GAPS[token]}}}"
            pieces.append(words if blanks else f"{_IN_SENTENCE}{{0,{2 * _GAPS[token]}}}")
            continue
        options = _options(token.removesuffix("?"), lists)
        piece = f"(?:{'|'.join(_compile_option(option, between) for option in options)})"
        if token.endswith("?"):
            piece = f"(?:{between}{piece})?" if begun else f"(?:{piece}{between})?"
        elif before == _ANYTHING:
            piece = f"[{_MARKS}]{piece}"
        else:
            piece, begun = (between if begun else "") + piece, True
        pieces.append(piece)
    if {tokens[0], tokens[-1]} & {*_GAPS, _ANYTHING} or not begun:
        raise ValueError(f"{' '.join(tokens)!r} is only a gap, or has one at an end")
    return "".join(pieces)


def compile_phrases(phrases: Iterable[str], lists: Lists, language: str = "en") -> str:
    """Compile the phrases of a rule to one pattern; its only group that matched is the phrase."""
    blanks = language not in _WITHOUT_BLANKS
    inner: list[str] = []
    first: list[str] = []
    raw: list[str] = []
    for phrase in phrases:
        if phrase.startswith(_RAW):
            raw.append(f"({phrase.removeprefix(_RAW)})")
        else:
            tokens = phrase.split()
            anchored = tokens[0] == "^"
            compiled = _compile_tokens(tokens[anchored:], lists, blanks=blanks)
            (first if anchored else inner).append(compiled)
    left, right = (_LEFT, _RIGHT) if blanks else ("", "")
    parts = [f"{left}({'|'.join(inner)}){right}"] if inner else []
    parts += [f"{_BEGIN}({'|'.join(first)}){right}"] if first else []
    return "|".join((*parts, *raw))


@functools.cache
def _keys(option: str, frequent: frozenset[str]) -> list[str]:
    """List words in ASCII or scripts, one of which stands in every text with the option."""
    if option.startswith(_RAW):
        return []
    for script, letters in SCRIPTS.items():
        if re.search(letters, option):
            return [script]
    word = max(option.split(), key=lambda word: (word not in frequent, len(word)))
    pairs = "".join(_PAIRS.get(letter, letter) for letter in word)
    runs = [
        _ASCII_WORD.findall(spelling.partition("-")[0]) for spelling in (word, _fold(word), pairs)
    ]
    joined = [_fold(word).replace("-", "")] if "-" in word else []
    return [max(run, key=len) for run in runs] + joined if all(runs) else []


def needed_words(phrase: str, lists: Lists, frequent: frozenset[str]) -> list[frozenset[str]]:
    """List sets of ASCII words and SCRIPTS; every text with the phrase has one of each set.

    Of an entry with several words it is one that is not `frequent`: needing those rules out few
    texts. The list is empty for a phrase in RE2 syntax.

    Examples
    --------
    >>> lists = {"ignore": ["ignore", "skip these"]}
    >>> found = needed_words("{ignore} .. my? rules", lists, frozenset({"these"}))
    >>> [sorted(words) for words in found]
    [['ignore', 'skip'], ['rules']]
    """
    if phrase.startswith(_RAW):
        return []
    needed = []
    for token in phrase.removeprefix("^ ").split():
        if token not in (*_GAPS, _ANYTHING) and not token.endswith("?"):
            keys = [_keys(option, frequent) for option in _options(token, lists)]
            if all(keys):
                needed.append(frozenset(key for some in keys for key in some))
    return needed
