"""A text as a model would read it: normalised, with a way back to the characters it came from.

Belongs here: `View` and the normalisation that all views share. Not here: where hidden and encoded text is found.
"""

import dataclasses
import re
import unicodedata
from bisect import bisect_right

from rag_eval.trust.rule_file import ViewKind

_WORD = re.compile(r"\S+")


@dataclasses.dataclass(frozen=True)
class View:
    """One reading of a text.

    Parameters
    ----------
    kind
        What a person sees, what is hidden from a person, or what was decoded.
    text
        Normalised: NFKC, lower case, one space for every run of white space, no leading or trailing space.
    source
        Where it was: `text`, `html_comment`, `tag_characters`, `base64`, ...
    start, end
        Characters of the original text that it came from.
    original
        The original text where positions of this view can be led back to it (the visible view); else None.
    """

    kind: ViewKind
    text: str
    source: str
    start: int
    end: int
    original: str | None = dataclasses.field(default=None, repr=False)

    def locate(self, start: int, end: int) -> tuple[int, int]:
        """Characters of the original text behind text[start:end]; the whole span of the view where that is not known."""
        if self.original is None:
            return self.start, self.end
        return _located(self.original, self.text, start, end)


def _located(original: str, text: str, start: int, end: int) -> tuple[int, int]:
    """Word by word: exact where a word kept its length, in proportion elsewhere."""
    words = [match.span() for match in _WORD.finditer(original)]
    starts, at = [], 0
    shown = text.split(" ")
    for word in shown:
        starts.append(at)
        at += len(word) + 1
    if len(words) != len(shown):  # a character that normalisation made two words of
        scale = len(original) / max(len(text), 1)
        return int(start * scale), min(len(original), int(end * scale) + 1)

    def back(place: int) -> int:
        index = bisect_right(starts, place) - 1
        first, last = words[index]
        inside, length = place - starts[index], len(shown[index])
        return min(last, first + (inside if last - first == length else round(inside * (last - first) / max(length, 1))))

    return back(start), back(max(end - 1, start)) + 1


def normalised(text: str) -> str:
    """NFKC, lower case, one space for every run of white space."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.lower().split())


def views_of(text: str) -> list[View]:
    """All readings of a text, the visible one first."""
    return [View("visible", normalised(text), "text", 0, len(text), text)]
