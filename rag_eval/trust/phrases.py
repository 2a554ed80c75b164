r"""Compile the phrases of the guard's rules to RE2 syntax.

A phrase is a row of tokens between blanks, for text in lower case with single blanks:

`word`           this word; `-` also matches a blank or nothing
`this|that`      one of these words
`{ignore}`       an entry of the word list `ignore`; an entry `re:...` is RE2 syntax
`token?`         the token or nothing
`..`, `...`      at most 2 or 6 other words of the same sentence
`^`              the beginning of a sentence; only as the first token
`re:...`         a whole phrase in RE2 syntax, for structure instead of words

Marks may stand between words, but no end of a sentence. Chinese has no blanks: there, tokens follow
each other directly, and `..` and `...` are at most 4 and 12 characters.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

Lists = Mapping[str, str | Sequence[str]]
"""Word lists by name: words between blanks, or entries of several words."""

_MARKS = r"\x00-/:-@\[-`{-~\x{a0}-\x{bf}\x{2000}-\x{206f}\x{3000}-\x{303f}"
_WORD = rf"[^{_MARKS}]+(?:[._][^{_MARKS}]+)*"
_BETWEEN = r"[\x00- \"-\-/:->@\[-`{-~\x{a0}-\x{bf}\x{2000}-\x{2025}\x{2027}-\x{206f}]{1,4}"
_BEGIN = (
    r"(?:^|[.!?:;*#>|=\-)\]}\x{2013}\x{2014}\x{2022}\x{2026}\x{3002}])[ \"'*_(\[`\x{201c}]{0,4}"
)
_GAPS = {"..": 2, "...": 6}
_WITHOUT_BLANKS = frozenset(("zh", "ja"))
_CHARACTERS = 2
"""Most characters in place of a word, in languages without blanks."""
_IN_SENTENCE = r"[^.!?\x{3002}]"
_TOKEN = re.compile(r"\{(\w+)\}|[^{}|]+(?:\|[^{}|]+)*")


def entries(words: str | Sequence[str]) -> list[str]:
    """Return the entries of a word list."""
    return words.split() if isinstance(words, str) else list(words)


def _compile_word(entry: str, between: str) -> str:
    if entry.startswith("re:"):
        return f"(?:{entry[3:]})"
    words = (re.escape(word).replace(r"\-", "[ -]?") for word in entry.split())
    return between.join(words).replace("'", r"['\x{2019}]")


def _compile_token(token: str, lists: Lists, between: str) -> str:
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise ValueError(f"{token!r} is no token of a phrase")
    if found[1] and found[1] not in lists:
        raise ValueError(f"no word list is named {found[1]!r}")
    options = entries(lists[found[1]]) if found[1] else token.split("|")
    return f"(?:{'|'.join(_compile_word(option, between) for option in options)})"


def _compile_phrase(tokens: Sequence[str], lists: Lists, language: str) -> str:
    blanks = language not in _WITHOUT_BLANKS
    between = _BETWEEN if blanks else "[ ]?"
    pieces: list[str] = []
    begun = False
    for token in tokens:
        if token in _GAPS:
            if not begun:
                raise ValueError(f"{' '.join(tokens)!r} begins with a gap")
            if blanks:
                pieces.append(f"(?:{between}{_WORD}){{0,{_GAPS[token]}}}")
            else:
                pieces.append(f"{_IN_SENTENCE}{{0,{_CHARACTERS * _GAPS[token]}}}")
            continue
        optional = token.endswith("?")
        piece = _compile_token(token.removesuffix("?"), lists, between)
        if optional:
            piece = f"(?:{between}{piece})?" if begun else f"(?:{piece}{between})?"
        elif begun:
            piece = between + piece
        pieces.append(piece)
        begun = begun or not optional
    if not begun:
        raise ValueError(f"{' '.join(tokens)!r} has no token that must be there")
    return "".join(pieces)


def compile_phrases(phrases: Iterable[str], lists: Lists, language: str = "en") -> str:
    r"""Compile the phrases of a rule to one pattern, whose last group is the match.

    Examples
    --------
    >>> import re
    >>> pattern = compile_phrases(["{ignore} ... rules?"], {"ignore": "ignore disregard"})
    >>> pattern[:40]
    '(?:^|[\\x00-/:-@\\[-`{-~\\x{a0}-\\x{bf}\\x{20'
    """
    ends = (
        (rf"(?:^|[{_MARKS}])", rf"(?:$|[{_MARKS}])")
        if language not in _WITHOUT_BLANKS
        else ("", "")
    )
    inner: list[str] = []
    first: list[str] = []
    raw: list[str] = []
    for phrase in phrases:
        if phrase.startswith("re:"):
            raw.append(f"({phrase[3:]})")
            continue
        tokens = phrase.split()
        kind = first if tokens[0] == "^" else inner
        kind.append(_compile_phrase(tokens[kind is first :], lists, language))
    groups = [(ends[0], inner, ends[1]), (_BEGIN, first, ends[1])]
    found = [f"{left}({'|'.join(some)}){right}" for left, some, right in groups if some]
    return "|".join((*found, *raw))
