"""Texts of the explorer: masked, cut to a snippet, nothing hidden in them; and windows of a text around what is marked in it.

Belongs here: characters and offsets. Which texts are shown is the business of the other explorer modules.
"""

import functools
import re
from collections.abc import Sequence
from typing import Final

from rag_eval.corpus.masking import PATTERNS
from rag_eval.corpus.outgoing import MAX_READ_CHARS, masked_text, shown, shown_address
from rag_eval.records.snippets import ELLIPSIS, SNIPPET_CHARS, is_joined, snippet
from rag_eval.reporting.html.untrusted import visible, web_address

MAX_NAME, MAX_ADDRESS, MAX_QUESTION, MAX_WORDING, MAX_ANSWER = 200, 500, 300, 600, 600
"""Code points of ids and titles, addresses, questions in the table, wordings, answers."""
REACH: Final = 500
"""Characters beside a window that are masked with it, so that a value is known although the window shows its end only."""
_ESCAPE: Final = 12
"""No escape of one character is longer."""
_ANCHORS: Final = tuple(sorted({anchor for pattern in PATTERNS for anchor in pattern.anchors}))
_NUMBER: Final = re.compile(r"[0-9][0-9 .()/-]{6}")
"""Every pattern of personal data needs one of its anchors or, where it has none, so long a run as this."""
_ENCODED: Final = re.compile("%[2-7][0-9A-Fa-f]")
"""What may be an anchor once it is read."""
_PLAIN: Final = re.compile(
    "[ -~\u00a1-\u00ac\u00ae-\u02ff\u0391-\u03a1\u03a3-\u0482\u048a-\u052f\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff]*"
)
"""Characters that are written as they are; of others it is looked up, one by one."""


def _unmasked(text: str) -> bool:
    """Whether a glance shows that nothing in the text is masked: most texts hold no personal data, and looking for each pattern takes longer than all the rest."""
    if _NUMBER.search(text) or _ENCODED.search(text):
        return False
    lowered = text.lower()
    return not any(anchor in lowered for anchor in _ANCHORS)


def line(text: str, limit: int = SNIPPET_CHARS) -> str:
    """Write a text as one line of at most `limit` code points: personal data masked, what cannot be seen written out.

    The same as `visible(shown(text, limit))`, sooner for texts without anything to mask or to write out.
    """
    head = " ".join(text[:MAX_READ_CHARS].split(None, limit + 1)[: limit + 1])[
        : limit + 1
    ]  # no word is empty, so so many reach over the limit
    if not _PLAIN.fullmatch(head) or not _unmasked(text[:MAX_READ_CHARS]):
        return visible(shown(text, limit))
    return head if len(head) <= limit else head[: limit - 1].rstrip() + ELLIPSIS


@functools.lru_cache(maxsize=20_000)
def name(text: str, limit: int = MAX_NAME) -> str:
    """Write an id, a title or a tag: a `line` that comes again and again."""
    return line(text, limit)


@functools.lru_cache(maxsize=20_000)
def address(url: str) -> tuple[str, str]:
    """Write an address as text, and as what a browser may follow: empty where it is no web address or personal data had to be masked in it."""
    read = url[: 10 * MAX_ADDRESS]
    masked = read if "%" not in read and _unmasked(read) else shown_address(read)
    plain = len(masked) <= MAX_ADDRESS and " " not in masked and _PLAIN.fullmatch(masked)
    return masked if plain else visible(snippet(masked, MAX_ADDRESS)), web_address(
        url
    ) if masked == url else ""


@functools.lru_cache(maxsize=10_000)
def _piece(character: str) -> str:
    return " " if character.isspace() else visible(snippet(character, _ESCAPE))


def _pieces(text: str) -> list[str]:
    """What each character is written as; of a run of white space only the first is."""
    if "  " not in text and _PLAIN.fullmatch(text):
        return list(text)
    found, blank = [], False
    for character in text:
        here = character.isspace()
        found.append("" if here and blank else _piece(character))
        blank = here
    return found


def _window(pieces: Sequence[str], begin: int, end: int, budget: int) -> tuple[int, int]:
    """Places of the window: as much of begin..end as fits, then as much before and after it, half each where both have more."""
    right, left_over = begin, budget
    while right < end and len(pieces[right]) <= left_over:
        left_over -= len(pieces[right])
        right += 1
    left, half = begin, left_over // 2
    while left > 0 and len(pieces[left - 1]) <= half:
        left -= 1
        half -= len(pieces[left])
        left_over -= len(pieces[left])
    while right < len(pieces) and len(pieces[right]) <= left_over:
        left_over -= len(pieces[right])
        right += 1
    while left > 0 and len(pieces[left - 1]) <= left_over:
        left -= 1
        left_over -= len(pieces[left])
    return left, right


def part(text: str, start: int, end: int) -> str:
    """A part of a text as `line` writes it, masked with what stands around it: what says that it is a secret may stand before it."""
    low = max(0, start - REACH)
    around = text[low : end + REACH]
    return line((around if _unmasked(around) else masked_text(around))[start - low : end - low])


def marked(
    text: str, spans: Sequence[tuple[int, int]], limit: int = SNIPPET_CHARS
) -> tuple[str, list[list[int]]]:
    """Cut a window of a text around the first of several spans.

    Parameters
    ----------
    text
        Any text.
    spans
        [begin, end) in characters of `text`, begin at least 0; what lies behind the text is no part of it.
    limit
        Most code points of the window, ellipses included.

    Returns
    -------
    window
        One line: personal data masked, white space evened out, what cannot be seen written out.
    at
        [begin, end) of the spans in code points of the window, rising, none touching another; a span that the window cuts is marked to its border.
    """
    spans = [
        (start, min(stop, len(text)))
        for start, stop in sorted(spans)
        if start < min(stop, len(text))
    ]
    if not spans:
        return line(text, limit), []
    begin, end = spans[0]
    low, high = (
        max(0, begin - limit - REACH),
        min(len(text), min(end, begin + limit) + limit + REACH),
    )
    inside, outside = max(0, begin - limit), min(len(text), min(end, begin + limit) + limit)
    around = text[low:high]
    region = (around if _unmasked(around) else masked_text(around))[inside - low : outside - low]
    pieces = _pieces(region)
    left, right = _window(
        pieces, begin - inside, min(end, outside) - inside, limit - 2 * len(ELLIPSIS)
    )
    while left < begin - inside and (not pieces[left].strip() or is_joined(region[left])):
        left += 1
    while right > begin - inside + 1 and (
        not pieces[right - 1].strip() or (right < len(region) and is_joined(region[right]))
    ):
        right -= 1
    before = ELLIPSIS if inside + left > 0 and text[: inside + left].strip() else ""
    after = ELLIPSIS if text[inside + right :].strip() else ""
    place = [len(before)]
    for piece in pieces[left:right]:
        place.append(place[-1] + len(piece))
    at: list[list[int]] = []
    for start, stop in spans:
        first, last = (
            place[min(max(edge - inside - left, 0), right - left)] for edge in (start, stop)
        )
        if at and first <= at[-1][1]:
            at[-1][1] = max(at[-1][1], last)
        elif first < last:
            at.append([first, last])
    return before + "".join(pieces[left:right]) + after, at
