"""Is a quote verbatim in the source that it names? The check where no gold offsets exist.

Belongs here: what "verbatim" means, `[ n quote ]` markers, and the match rate of quotes with their named sources.

Two texts are the same words when they are equal after Unicode normalisation NFC and after every run of white space (`str.isspace`) became
one blank, with none at either end. Nothing else is forgiven: case, punctuation, hyphens, quotation marks and compatibility forms (ligatures,
full-width letters) are what a source says, and a quote that changes them is no longer verbatim. NFC and white space differ between copies of
one text without anybody's having changed it: line wrapping, non-breaking blanks, and the two ways to write an accented letter.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_LONGEST_COMPOSITION = 4
"""Code points that NFC joins into one at most (Unicode Standard Annex 15): bounds how much text can equal a quote."""
_OPENING = re.compile(r"\s*(\d{1,6})\s+")


def normalised(text: str) -> str:
    r"""Text in the form in which two texts are compared.

    Examples
    --------
    >>> normalised("  one\n two\u00a0three ")
    'one two three'
    """
    return " ".join(unicodedata.normalize("NFC", text).split())


def same_words(passage: str, quote: str) -> bool:
    """Whether a quote is a passage, both normalised. The work grows with the quote, not with a passage that cannot equal it."""
    if passage == quote:
        return True
    wanted = normalised(quote)
    count = wanted.count(" ") + 1 if wanted else 0
    found = passage.split(
        None, count
    )  # NFC neither makes nor removes white space, so the number of words must agree
    if len(found) != count or sum(map(len, found)) > _LONGEST_COMPOSITION * len(wanted):
        return False
    return unicodedata.normalize("NFC", " ".join(found)) == wanted


def begins_with(passage: str, quote: str) -> bool:
    """Whether a passage begins with a quote that was cut short, both normalised; its last word may be cut too. Nothing begins with no words."""
    wanted = normalised(quote)
    if not wanted:
        return False
    count = wanted.count(" ") + 1
    head = passage.split(None, count)[:count]
    return unicodedata.normalize("NFC", " ".join(head)).startswith(wanted)


@dataclasses.dataclass(frozen=True, slots=True)
class Quote:
    """A quote and the number of the source that it names.

    Parameters
    ----------
    source
        Number of the source, from 1.
    text
        What is quoted.
    start, end
        Where its marker stands in the answer, brackets included, characters.
    """

    source: int
    text: str
    start: int = -1
    end: int = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A numbered source: its text, and its title, which may be quoted too."""

    text: str
    title: str = ""


def quote_markers(answer: str) -> list[Quote]:
    """Read the `[ n quote ]` markers of an answer, outermost brackets only; brackets inside a quote belong to it.

    A bracket that does not begin with a number and white space, or never closes, is no marker.

    Examples
    --------
    >>> [(quote.source, quote.text) for quote in quote_markers("It [ 2 rains [sic] a lot ] there [1].")]
    [(2, 'rains [sic] a lot')]
    """
    closing: dict[int, int] = {}
    opened: list[int] = []
    for match in re.finditer(r"[\[\]]", answer):
        if match.group() == "[":
            opened.append(match.start())
        elif opened:
            closing[opened.pop()] = match.start()
    found: list[Quote] = []
    past = 0
    for start in sorted(closing):
        if start < past:
            continue
        end = closing[start]
        head = _OPENING.match(answer, start + 1, end)
        if head is not None and (text := answer[head.end() : end].strip()):
            found.append(Quote(int(head.group(1)), text, start, end + 1))
            past = end + 1
    return found


def quotes_verbatim(quotes: Sequence[Quote], sources: Sequence[Source]) -> npt.NDArray[np.bool_]:
    """Whether each quote stands verbatim in the text or in the title of the source that it names.

    Parameters
    ----------
    quotes
        The quotes of one answer.
    sources
        Its sources; number n is `sources[n - 1]`.

    Returns
    -------
    array
        Bool `[len(quotes)]`. A number that no source has and a quote without any words are not verbatim.
    """
    texts = {
        number: (normalised(source.text), normalised(source.title))
        for number, source in enumerate(sources, start=1)
    }
    matches = np.zeros(len(quotes), dtype=bool)
    for place, quote in enumerate(quotes):
        wanted = normalised(quote.text)
        matches[place] = bool(wanted) and any(
            wanted in text for text in texts.get(quote.source, ())
        )
    return matches


def quote_match_rate(answers: Sequence[npt.NDArray[np.bool_]]) -> tuple[int, int]:
    """Citation match rate of quotes: (quotes verbatim in their source, citations that were due).

    Parameters
    ----------
    answers
        For each answer that should cite, what `quotes_verbatim` found; an answer without any quote owes one.

    Returns
    -------
    n_correct, n_due
        The rate is n_correct / n_due; n_due is 0 only where no answer was given.
    """
    return sum(int(matches.sum()) for matches in answers), sum(
        max(len(matches), 1) for matches in answers
    )
