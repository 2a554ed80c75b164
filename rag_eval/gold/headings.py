"""Headings as people and links name them: the slug of a heading, and the headings of a Markdown document."""

import itertools
import re
import unicodedata

_NOT_WORD = re.compile(r"[^\w]+")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?^(?:---|\.\.\.)[ \t]*$", re.DOTALL | re.MULTILINE)


def heading_slug(heading: str) -> str:
    """Lower-case words of a heading joined by hyphens, punctuation left out.

    Examples
    --------
    >>> heading_slug("Retry limits & back-off")
    'retry-limits-back-off'
    """
    return _NOT_WORD.sub("-", unicodedata.normalize("NFKC", heading).casefold()).strip("-")


def markdown_headings(text: str) -> list[tuple[int, str]]:
    """(level, plain text) of every heading of a Markdown text, in order; lines inside code fences, quotes, lists and front matter are none."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").parse(_FRONT_MATTER.sub("", text.replace("\r\n", "\n"), count=1))
    found = []
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open" and opening.level == 0:
            shown = "".join(part.content for part in inline.children or [] if part.type in {"text", "code_inline"})
            found.append((int(opening.tag[1:]), " ".join(shown.split())))
    return found
