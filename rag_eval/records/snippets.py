"""A snippet: the most that is shown of a chunk, or of another piece of evidence, beyond the user's own store, as one line that does nothing where it is printed.

Belongs here: cutting and escaping. What must not be shown at all is masked first, see `rag_eval.corpus.outgoing`.
"""

import unicodedata

SNIPPET_CHARS = 200
"""Characters of one chunk, or of another piece of evidence, in a report, a log, a terminal or a tracking store; the address of its source stands beside them."""
ELLIPSIS = "…"

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Control and format characters (bidirectional ones too), lone surrogates, what no standard gives a shape."""
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}
"""Letters and marks that show nothing: joiners, Hangul fillers, variation selectors, the empty Braille cell."""


def is_seen(character: str) -> bool:
    """Whether a character shows itself, as a sign or as a blank."""
    return character not in _BLANKS and unicodedata.category(character) not in _UNSEEN


def is_joined(character: str) -> bool:
    """Whether a character belongs to the one before it, so that nothing may be cut between them."""
    return unicodedata.category(character) in {"Mn", "Mc", "Me"}


def _piece(character: str) -> str:
    if character.isascii() and character.isprintable():
        return character
    if is_seen(character):
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - the end of the first plane


def snippet(text: str, limit: int = SNIPPET_CHARS) -> str:
    r"""Write a text as one line of at most `limit` characters, the ellipsis of a cut included.

    Runs of white space, line ends among them, become one blank. Control, bidirectional, invisible and broken characters show as escapes. No
    escape is cut, and no letter is parted from the marks on it, unless marks alone would fill the line.

    Parameters
    ----------
    text
        Any text; lone surrogates are allowed.
    limit
        At least 1.

    Raises
    ------
    ValueError
        A limit under 1.

    Examples
    --------
    >>> snippet("one\n  two\u202e")
    'one two\\u202e'
    >>> snippet("abcdef", 4)
    'abc…'
    """
    if limit < 1:
        raise ValueError(f"limit: found {limit}, accepted 1 or more")
    pieces: list[str] = []
    length = 0
    for word in text.split():  # a piece is never empty, so that limit + 1 of them decide
        for character in (" " + word if pieces else word)[: limit + 1]:
            pieces.append(_piece(character))
            length += len(pieces[-1])
        if length > limit:
            break
    if length <= limit:
        return "".join(pieces)
    kept = total = 0
    while total + len(pieces[kept]) < limit:
        total += len(pieces[kept])
        kept += 1
    whole = kept
    while whole and is_joined(pieces[whole][0]):
        whole -= 1
    return "".join(pieces[: whole or kept]).rstrip() + ELLIPSIS
