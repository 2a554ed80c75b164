"""Where sentences end: a rule-based splitter that keeps character offsets.

Belongs here: the rules. They are written for English prose and hold for most languages with Latin letters; 。！？ end a sentence anywhere.
"""

import itertools
import re

# a run of terminal marks counts once (look-behind, possessive), so that long runs of dots are read once
_END = re.compile(
    r"(?:(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s)|[。！？]++[”’」』）]*+)\s*+|(?:\r\n?+|\n)(?:[^\S\r\n]*+(?:\r\n?+|\n))++\s*+"
)
_BEFORE = re.compile(r"[^\s(\[\"'“‘]*$")
_OPENERS = "\"'“‘«([¿¡"
_LOOK_BACK = 40

_ALWAYS = """
e.g i.e cf vs viz approx ca resp eq eqs fig figs tab ref refs dr mr mrs ms prof st mt dept univ gen col sgt capt lt rev hon gov sen rep
"""
_MAY_END = "al etc jr sr inc ltd co corp a.m p.m u.s u.k ph.d m.d b.sc m.sc"
_BEFORE_NUMBERS = """
no nos nr p pp vol vols ch chap sec secs ed eds jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun
"""
ABBREVIATIONS: dict[str, str] = {
    **dict.fromkeys(_ALWAYS.split(), "always"),
    **dict.fromkeys(_MAY_END.split(), "unless a capital follows"),
    **dict.fromkeys(_BEFORE_NUMBERS.split(), "only before a number"),
}
"""Words whose dot is part of them, and when."""


def _is_abbreviation(before: str, following: str) -> bool:
    """Whether the dot after `before` belongs to the word."""
    match ABBREVIATIONS.get(before.lower()):
        case "always":
            return True
        case "unless a capital follows":
            return not following.isupper()
        case "only before a number":
            return following.isdigit()
        case _:
            return len(before) == 1 and before.isupper() and before != "I"  # initials: J. Smith


def borders(text: str, start: int = 0, end: int | None = None) -> list[int]:
    """Offsets inside text[start:end] where a sentence begins, rising; the first sentence's own start is not one of them.

    A sentence ends at `.`, `!`, `?` or `…` (with closing quotes and brackets) before white space, unless the dot belongs to an
    abbreviation or an initial or a lower-case letter follows; and at a blank line. Decimals have no white space after the dot.
    """
    end = len(text) if end is None else end
    found = []
    for match in _END.finditer(text, start, end):
        at = match.end()
        if at >= end:
            break
        mark = text[match.start()]
        following = text[at : at + 2].lstrip(_OPENERS)[:1]
        if mark in ".…!?":
            if following.islower():
                continue
            word = _BEFORE.search(text, max(start, match.start() - _LOOK_BACK), match.start())
            single_dot = mark == "." and text[match.start() + 1 : match.start() + 2] != "."
            if single_dot and word and _is_abbreviation(word[0], following):
                continue
        found.append(at)
    return found


def spans(text: str, start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """Sentences of text[start:end] as (start, end) offsets without the white space around them; none is empty.

    Examples
    --------
    >>> text = "Dr. Smith saw 3.5 kg. Why? See Fig. 2."
    >>> [text[a:b] for a, b in spans(text)]
    ['Dr. Smith saw 3.5 kg.', 'Why?', 'See Fig. 2.']
    """
    end = len(text) if end is None else end
    edges = [start, *borders(text, start, end), end]
    return [
        trimmed for low, high in itertools.pairwise(edges) if (trimmed := trim(text, low, high))
    ]


def trim(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Span without the white space at its ends; None if nothing is left."""
    piece = text[start:end]
    stripped = piece.strip()
    if not stripped:
        return None
    low = start + len(piece) - len(piece.lstrip())
    return low, low + len(stripped)
