"""What a text copies of its sources word for word, cut so that no source is copied by more than a snippet.

Belongs here: finding copies and cutting them. White space and the case of ASCII letters make no difference; copies of fewer than `SHORTEST`
other characters are nobody's, unless they are a whole quote.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rag_eval.records.snippets import ELLIPSIS, SNIPPET_CHARS, is_joined

SHORTEST = 24
"""Characters, white space aside, from which equal words are a copy: four or five words."""
_SHORTEST_QUOTE = 8
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that no character is lost from the hash; two windows that fall together by chance only cut a text short."""
_WHITE = np.array(
    [
        *range(0x09, 0x0E),
        *range(0x1C, 0x21),
        0x85,
        0xA0,
        0x1680,
        *range(0x2000, 0x200B),
        0x2028,
        0x2029,
        0x202F,
        0x205F,
        0x3000,
    ],
    dtype=np.uint32,
)
"""What `str.isspace` calls white space."""

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A piece of a source; pieces of one name are one source."""

    name: str
    text: str


@dataclasses.dataclass(frozen=True)
class Uncopied:
    """A text that copies no source by more than a snippet.

    Parameters
    ----------
    text
        With an ellipsis where something was left out.
    used
        Characters that it still copies of each source, by name; sources that it copies nothing of are left out.
    """

    text: str
    used: dict[str, int]


def _plain(text: str) -> tuple[npt.NDArray[np.uint64], Ints]:
    """Codes of the characters that are no white space, ASCII letters in lower case, and where each stands in the text."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    places = np.flatnonzero(~np.isin(codes, _WHITE)).astype(np.int64)
    kept = codes[places].astype(np.uint64)
    return np.where((kept >= ord("A")) & (kept <= ord("Z")), kept + np.uint64(32), kept), places


def _windows(codes: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.uint64]:
    """Hash of every run of `width` codes, `[len(codes) - width + 1]`; empty where there is none."""
    n = len(codes) - width + 1
    if n <= 0:
        return np.zeros(0, dtype=np.uint64)
    found = np.zeros(n, dtype=np.uint64)
    for place in range(width):
        found = found * _FACTOR + codes[place : place + n]  # modulo 2**64
    return found


def _covered(length: int, places: Ints, starts: Ints, width: int) -> Flags:
    """Characters of a text of this length that runs of `width` plain characters beginning at `starts` cover, white space inside them too."""
    change = np.zeros(length + 1, dtype=np.int64)
    np.add.at(change, places[starts], 1)
    np.add.at(change, places[starts + width - 1] + 1, -1)
    return np.asarray(np.cumsum(change)[:length] > 0)


def copies(text: str, sources: Sequence[Source]) -> dict[str, Flags]:
    """For each source the characters of the text that stand in it word for word.

    Returns
    -------
    dict
        name -> bool `[len(text)]`; sources that are not copied are left out. The work grows with the lengths of the text and the sources.
    """
    codes, places = _plain(text)
    hashes: dict[int, npt.NDArray[np.uint64]] = {}
    found: dict[str, Flags] = {}
    for source in sources:
        own, _ = _plain(source.text)
        width = min(SHORTEST, len(own))
        if width < _SHORTEST_QUOTE or len(codes) < width:
            continue
        if width not in hashes:
            hashes[width] = _windows(codes, width)
        starts = np.flatnonzero(np.isin(hashes[width], _windows(own, width))).astype(np.int64)
        if len(starts):
            covered = _covered(len(text), places, starts, width)
            found[source.name] = found[source.name] | covered if source.name in found else covered
    return found


def uncopied(text: str, sources: Sequence[Source], limit: int = SNIPPET_CHARS) -> Uncopied:
    """Cut what a text copies of each source down to `limit` characters, the first ones, the ellipsis of the cut included.

    Parameters
    ----------
    text
        Any text, for example an answer.
    sources
        What it may have copied, for example its evidence and its quotes.
    limit
        Characters of each source that may stay.
    """
    if len(text) <= limit:
        found = copies(text, sources) if sources else {}
        return Uncopied(text, {name: int(copied.sum()) for name, copied in found.items()})
    found = copies(text, sources)
    dropped = np.zeros(len(text), dtype=bool)
    for copied in found.values():
        if copied.sum() > limit:
            dropped |= copied & (np.cumsum(copied) > limit - 1)
    used = {name: int((copied & ~dropped).sum()) for name, copied in found.items()}
    return Uncopied(_without(text, dropped), {name: n for name, n in used.items() if n})


def _without(text: str, dropped: Flags) -> str:
    """Write the text with an ellipsis in the place of each run that is dropped; marks stay with their letters."""
    borders = np.flatnonzero(np.diff(np.concatenate([[False], dropped, [False]]).astype(np.int8)))
    pieces: list[str] = []
    done = 0
    for start, end in zip(borders[::2].tolist(), borders[1::2].tolist(), strict=True):
        cut, resumed = start, end
        while cut > done and is_joined(text[cut]):
            cut -= 1
        while resumed < len(text) and is_joined(text[resumed]):
            resumed += 1
        pieces += (text[done:cut].rstrip() if cut > done else "", ELLIPSIS)
        done = resumed
    return "".join(pieces) + text[done:]
