"""Citation markers inside an answer: `[1]`, `[1, 3]`, `[1][3]`, and the answer's text and sentences without them.

Belongs here: where markers stand and which sentence each supports. What a number stands for is `recorded`.
"""

import bisect
import dataclasses
import re

from rag_eval.corpus import sentences

MAX_DIGITS = 3
"""`[2019]` is a year."""

_MARKER = re.compile(rf"\[\s*(\d{{1,{MAX_DIGITS}}}(?:\s*[,;]\s*\d{{1,{MAX_DIGITS}}})*)\s*\]")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]+`", re.DOTALL)
_NUMBER = re.compile(r"\d+")
_CLOSES = ".,;:!?…)]}\"'”’»"


@dataclasses.dataclass(frozen=True, slots=True)
class Marked:
    """An answer without its markers.

    Parameters
    ----------
    text
        What is left; the blank before a marker goes with it.
    segments
        Sentences of `text` as (start, end).
    citations
        (segment, number) of each number of each marker, in order; segment -1 where nothing is left but markers.
    """

    text: str
    segments: list[tuple[int, int]]
    citations: list[tuple[int, int]]


def _found(text: str) -> list[tuple[int, int, list[int]]]:
    """(start, end, numbers) of each marker outside code. A list with a 0 is an interval such as `[0, 1]`; a single `[0]` is a marker, out of range."""
    code = [match.span() for match in _CODE.finditer(text)]
    found = []
    at = 0
    for match in _MARKER.finditer(text):
        while at < len(code) and code[at][1] <= match.start():
            at += 1
        inside = at < len(code) and code[at][0] <= match.start()
        numbers = [int(number) for number in _NUMBER.findall(match[1])]
        if not inside and (len(numbers) == 1 or 0 not in numbers):
            found.append((match.start(), match.end(), numbers))
    return found


def _opening_lines(text: str) -> set[int]:
    """Where the markers begin before which nothing but markers stands on their line, and something behind the last of them."""
    found: set[int] = set()
    at = 0
    for line in text.split("\n"):
        waiting: list[int] = []
        reached = 0
        for match in _MARKER.finditer(line):
            if line[reached : match.start()].strip():
                break
            waiting.append(at + match.start())
            reached = match.end()
        if waiting and _MARKER.sub("", line).strip():
            found.update(waiting)
        at += len(line) + 1
    return found


def read_markers(text: str) -> Marked:
    """Take the markers out of an answer.

    A marker supports the sentence that it stands in or behind; at the beginning of a line, the sentence after it. Markers in code
    (between backticks) are code.

    Examples
    --------
    >>> marked = read_markers("Terns fly far [1][2]. They eat fish. [3]")
    >>> marked.text, marked.citations
    ('Terns fly far. They eat fish.', [(0, 1), (0, 2), (1, 3)])
    """
    kept: list[str] = []
    length = last = 0
    marks: list[tuple[int, bool, list[int]]] = []
    opening = _opening_lines(text)
    for start, end, numbers in _found(text):
        piece = text[last:start]
        opens_line = start in opening
        piece = piece if opens_line else piece.rstrip(" \t\u00a0")
        kept.append(piece)
        length += len(piece)
        marks.append((length, opens_line, numbers))
        last = end
        following = text[end : end + 1]
        if opens_line:
            while text[last : last + 1] in {" ", "\t"}:
                last += 1
        elif (
            following and not following.isspace() and following not in _CLOSES and following != "["
        ):
            kept.append(" ")
            length += 1
    kept.append(text[last:])
    plain = "".join(kept)
    segments = sentences.spans(plain)
    starts, ends = [start for start, _ in segments], [end for _, end in segments]
    return Marked(
        plain,
        segments,
        [
            (_segment(starts, ends, place, opens), number)
            for place, opens, numbers in marks
            for number in numbers
        ],
    )


def _segment(starts: list[int], ends: list[int], place: int, opens: bool) -> int:  # noqa: FBT001 - private, its two callers' one fact
    if not starts:
        return -1
    if opens:
        return min(bisect.bisect_right(ends, place), len(ends) - 1)
    return max(bisect.bisect_left(starts, place) - 1, 0)
