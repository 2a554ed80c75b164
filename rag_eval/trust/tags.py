"""HTML tags and comments in a text, read in one pass that never looks twice at a character.

Belongs here: where tags begin and end, and their attributes. Not here: what they mean (`markup`).
"""

import dataclasses
import re
from collections.abc import Iterator

_HEAD = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9:-]{0,40})(?=[\s/>])")
_ATTRIBUTE = re.compile(
    r"""[\s/]*([^\s=>"'</]{1,200})(?:\s{0,100}=\s{0,100}(?:"([^"]{0,20000})"|'([^']{0,20000})'|([^\s>"'<]{0,20000})))?"""
)
_CLOSE = re.compile(r"[\s/]*>")
_DECLARATION = re.compile(r"<[!?][^<>]{0,4000}>")
NAMES = frozenset(
    """
    a abbr acronym address applet area article aside audio b base basefont bdi bdo big blink blockquote body br button canvas caption center cite code
    col colgroup data datalist dd del details dfn dialog dir div dl dt em embed fieldset figcaption figure font footer form frame frameset h1 h2 h3 h4
    h5 h6 head header hgroup hr html i iframe img input ins kbd label legend li link main map mark marquee menu meta meter nav nobr noframes noscript
    object ol optgroup option output p param picture pre progress q rp rt ruby s samp script search section select slot small source span strike
    strong style sub summary sup svg table tbody td template textarea tfoot th thead time title tr track tt u ul var video wbr text path g desc
    math annotation
    """.split()
)
"""Elements of HTML: `<T>` and `<class 'int'>` in programs are no tags."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tag:
    """A tag at text[start:end]; `name` in lower case, `!` for comments and declarations, whose text is `inside`."""

    name: str
    start: int
    end: int
    closing: bool = False
    attributes: tuple[tuple[str, str, int, int], ...] = ()
    inside: str = ""
    complete: bool = True


def _comment(text: str, start: int, ends: dict[str, int]) -> Tag:
    """Read a comment; the place of the next end is looked for once, not again from each opening."""
    for mark in ("-->", "--!>"):
        if ends[mark] < start + 2:
            found = text.find(mark, start + 2)
            ends[mark] = found if found >= 0 else len(text) + 1
    close = min(ends.values())
    if close > len(text):
        return Tag("!", start, len(text), inside=text[start + 4 :], complete=False)
    length = len("--!>" if ends["--!>"] == close else "-->")
    return Tag("!", start, close + length, inside=text[start + 4 : close])


def _tag(text: str, head: re.Match[str]) -> tuple[Tag | None, int]:
    """Read the tag, None where it is not one, and where to read on."""
    at = head.end()
    attributes: list[tuple[str, str, int, int]] = []
    while (close := _CLOSE.match(text, at)) is None:
        found = _ATTRIBUTE.match(text, at)
        if found is None:
            return None, max(at, head.start() + 1)
        value = next((group for group in found.groups()[1:] if group is not None), "")
        attributes.append((found[1].lower(), value, found.start(1), found.end()))
        at = found.end()
    return Tag(
        head[2].lower(), head.start(), close.end(), bool(head[1]), tuple(attributes)
    ), close.end()


def tags(text: str) -> Iterator[Tag]:
    """Tags, comments and declarations in order. What opens and never closes is text, except for a comment: it swallows the rest."""
    at = text.find("<")
    ends = {"-->": -1, "--!>": -1}
    while 0 <= at < len(text):
        go_on = at + 1
        if text.startswith("<!--", at):
            tag: Tag | None = _comment(text, at, ends)
        elif (declaration := _DECLARATION.match(text, at)) is not None:
            tag = Tag("!", at, declaration.end(), inside=declaration[0][2:-1])
        elif (head := _HEAD.match(text, at)) is not None and head[2].lower() in NAMES:
            tag, go_on = _tag(text, head)
        else:
            tag = None
        if tag is not None:
            yield tag
            go_on = tag.end
        at = text.find("<", go_on)
