"""A text without its dress, for checks that compare wordings: no tags, entities or unseen characters, look-alikes as the letters they stand for.

Belongs here: what such a check reads beside the text as it stands. Unlike `views`, line breaks and headings stay, since they tell how a sentence
stands in its text; there is no way back to the characters of the original.
"""

import html
import re

from rag_eval.trust.invisible import INVISIBLE
from rag_eval.trust.normalising import spelled
from rag_eval.trust.tags import tags

_DRESSED = re.compile(r"[<&\x00-\x08\x0b\x0e-\x1f\x7f]")
_UNSEEN = re.compile(f"[{INVISIBLE}]+")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_OTHER_TAG = re.compile(r"</?[A-Za-z][^<>\n]{0,400}>")
_HEAD = re.compile(r"\w+")
_STRONG = frozenset(("b", "strong"))
_BLOCKS = frozenset(
    """
    address article aside blockquote body br caption center dd details dialog dir div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 head header
    hgroup hr html label legend li main menu nav ol option p pre section summary table tbody td tfoot th thead title tr ul
    """.split()
)
_HEADING_WORDS = 4
"""Between `<b>` and `</b>`: fewer words restate nothing, so that the tags only stand between the words of something longer."""


def plain(text: str, gap: str = "") -> str:
    r"""Return a text as it is read, with its line breaks.

    Tags of blocks become line breaks. `<b>` and `<strong>` around four words or more become `**`, by which a heading is known as well.

    Parameters
    ----------
    text
        Any text; ASCII without `<`, `&` and control characters is returned as it is.
    gap
        What stands in place of other tags and of unseen characters: nothing, as a person reads it, or a blank, as an index that ends words
        there does.

    Returns
    -------
    str
        In NFKC, its case kept. Time is linear in the length.

    Examples
    --------
    >>> plain("<h2>Depth</h2><i>h\u200bow</i> <b>dеep</b> &#105;s it")
    '\nDepth\nhow deep is it'
    """
    if text.isascii() and not _DRESSED.search(text):
        return text
    text = _ENTITY.sub(lambda found: html.unescape(found[0]), text)
    text = _UNSEEN.sub(gap, text)
    if "<" in text:
        text = _OTHER_TAG.sub(gap, _untagged(text, gap))
    return spelled(text)


def _untagged(text: str, gap: str) -> str:
    pieces: list[str] = []
    at, opened = 0, -1  # the piece that a `<b>` left, and where its text begins
    begun = 0
    for tag in tags(text):
        pieces.append(text[at : tag.start])
        if tag.name in _STRONG:
            if (
                tag.closing
                and opened >= 0
                and len(_HEAD.findall(text, begun, tag.start)) >= _HEADING_WORDS
            ):
                pieces[opened] = "**"
                pieces.append("**")
            else:
                pieces.append(gap)
            opened, begun = (-1, 0) if tag.closing else (len(pieces) - 1, tag.end)
        else:
            pieces.append("\n" if tag.name in _BLOCKS else gap)
        at = (
            tag.end if tag.complete else tag.start + len("<!--")
        )  # what an open comment swallows is text to an index
    pieces.append(text[at:])
    return "".join(pieces)


def readings(text: str) -> list[str]:
    """Return the text as it stands, and plain with and without gaps where these differ."""
    return list(dict.fromkeys((text, plain(text), plain(text, " "))))
