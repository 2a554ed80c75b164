"""What HTML and Markdown keep from being seen: comments, hidden elements, scripts, attributes, links that carry data out.

Belongs here: what elements and attributes mean for a reader. Not here: what a style hides (`styles`).
"""

import html
import re
from collections.abc import Iterator
from itertools import pairwise

from rag_eval.trust.styles import hides, hiding_names
from rag_eval.trust.tags import Tag, tags
from rag_eval.trust.tricks import Cut, Looked, Part, Trick

_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark nobr q s samp small span strike strong sub sup tt u var wbr".split()
)
_UNSEEN = frozenset("script style template noscript title datalist head noframes".split())
_UNSEEN_CLASSES = frozenset(
    "hidden sr-only visually-hidden visuallyhidden screen-reader-text d-none invisible is-hidden hide".split()
)
_TEXT_ATTRIBUTES = frozenset(
    "title alt aria-label aria-description placeholder content value summary srcdoc longdesc label description".split()
)
_LINKS = frozenset("href src action formaction xlink:href data poster background".split())
_MARKDOWN_COMMENT = re.compile(
    r"^[ ]{0,3}\[[^\]\n]{1,80}\]:[ \t]{0,20}(?:#|<>)[ \t]{1,20}(?:\(([^\n]{0,5000})\)|\"([^\n]{0,5000})\"|'([^\n]{0,5000})')[ \t]{0,20}$",
    re.MULTILINE,
)
_MARKDOWN_LINK = re.compile(
    r"(!?)\[([^\[\]\n]{0,1000})\]\(\s{0,10}<?([^()\s<>]{1,2000}(?:\([^()\s]{0,200}\)[^()\s<>]{0,200})?)>?(?:\s{1,10}\"([^\"\n]{0,2000})\")?\s{0,10}\)"
)
_CARRIES = re.compile(
    r"[?&#][\w.\[\]-]{1,40}=(?:$|&|[{<\[$%]{1,2}[a-z_]|%7b|%5b|\.{3}|…|\*{3}|x{4}"
    r"|\W{0,3}(?:your|the|insert|user|chat|conversation|history|summary|secret|password|prompt|context|data|answer|message|token|cookie|key)s?(?![a-z]))"
    r"|//[^/]{1,200}/[^?]{0,500}[{\[](?:your|the|insert|user|chat|conversation|history|summary|secret|password|prompt|context|data|answer|message)",
    re.IGNORECASE,
)
_RUNS = re.compile(
    r"\s{0,20}(?:j\s{0,3}a\s{0,3}v\s{0,3}a\s{0,3}s\s{0,3}c\s{0,3}r\s{0,3}i\s{0,3}p\s{0,3}t|vbscript)\s{0,3}:|\s{0,20}data:(?:text/html|text/javascript|application/(?:xhtml|javascript)|image/svg)",
    re.IGNORECASE,
)
_HANDLER = re.compile(r"on[a-z]{3,30}")
_LONG_ATTRIBUTE, _LONGEST_ADDRESS, _WORDS_THAT_SAY_SOMETHING = 20, 4000, 3


def _hiding(tag: Tag, names: frozenset[str]) -> str | None:
    """Name of what keeps the element's text from being seen; None where it is seen."""
    if tag.name in _UNSEEN:
        return tag.name if tag.name in {"script", "style"} else "unseen_element"
    given = {name: value for name, value, _, _ in tag.attributes}
    if "hidden" in given or given.get("type", "").lower() == "hidden":
        return "hidden_attribute"
    if given.get("aria-hidden", "").lower() == "true":
        return "aria_hidden"
    if hides(given.get("style", "")) or (
        tag.name == "font"
        and hides(f"color:{given.get('color', '')};font-size:{given.get('size', '')}")
    ):
        return "hidden_style"
    if names and {*given.get("class", "").lower().split(), given.get("id", "").lower()} & names:
        return "hidden_style"
    return None


def _attributes(tag: Tag, looked: Looked) -> None:
    for name, value, start, end in tag.attributes:
        if _HANDLER.fullmatch(name) and value:
            looked.parts.append(Part("hidden", "event_handler", html.unescape(value), start, end))
            looked.tricks.append(
                Trick(
                    start, end, "hidden", "event_handler", "hint", "an attribute that runs a script"
                )
            )
        elif name in _LINKS:
            _link(
                html.unescape(value),
                start,
                end,
                looked,
                image=tag.name in {"img", "source", "video", "audio", "iframe", "embed", "object"},
            )
            looked.parts.append(Part("hidden", "address", html.unescape(value), start, end))
        elif (name in _TEXT_ATTRIBUTES or name.startswith("data-")) and len(
            value
        ) >= _LONG_ATTRIBUTE:
            looked.parts.append(Part("hidden", "attribute", html.unescape(value), start, end))


def _link(address: str, start: int, end: int, looked: Looked, *, image: bool) -> None:
    if _RUNS.match(address):
        looked.parts.append(Part("hidden", "script_link", address, start, end))
        looked.tricks.append(
            Trick(
                start,
                end,
                "hidden",
                "script_link",
                "warning",
                "a link that runs a script or holds a page",
            )
        )
    elif "//" in address and _CARRIES.search(address, 0, _LONGEST_ADDRESS):
        looked.tricks.append(
            Trick(
                start,
                end,
                "hidden",
                "carrying_image" if image else "carrying_link",
                "warning" if image else "hint",
                "an address with a place for data to be put in",
            )
        )


def _markdown(text: str, looked: Looked) -> None:
    for match in _MARKDOWN_COMMENT.finditer(text) if "]:" in text else ():
        looked.parts.append(
            Part(
                "hidden", "markdown_comment", match[1] or match[2] or match[3] or "", *match.span()
            )
        )
        looked.tricks.append(
            Trick(
                *match.span(),
                "hidden",
                "markdown_comment",
                "hint",
                "a Markdown comment, which no reader sees",
            )
        )
        looked.cuts.append(Cut(*match.span(), " "))
    for match in _MARKDOWN_LINK.finditer(text) if "](" in text else ():
        _link(match[3], *match.span(), looked, image=bool(match[1]))
        if match[1] and len(match[2]) >= _LONG_ATTRIBUTE:
            looked.parts.append(Part("hidden", "attribute", match[2], *match.span(2)))
        if match[4] and len(match[4]) >= _LONG_ATTRIBUTE:
            looked.parts.append(Part("hidden", "attribute", match[4], *match.span(4)))


def _comment(tag: Tag, looked: Looked) -> None:
    looked.parts.append(Part("hidden", "html_comment", tag.inside, tag.start, tag.end))
    looked.tricks.append(
        Trick(
            tag.start,
            tag.end,
            "hidden",
            "html_comment",
            "hint",
            "an HTML comment, which no reader sees" + ("" if tag.complete else "; it has no end"),
        )
    )
    looked.cuts.append(
        Cut(
            tag.start,
            tag.end if tag.complete else tag.start,
            " " if tag.inside[:1].isspace() and tag.inside[-1:].isspace() else "",
        )
    )


def _hidden_elements(
    found: list[Tag], names: frozenset[str], text: str
) -> Iterator[tuple[str, Tag, int, int]]:
    """(how, tag, start, end) of what is inside each hidden element; an element inside another is part of it."""
    index = 0
    while index < len(found):
        tag = found[index]
        index += 1
        how = None if tag.name == "!" or tag.closing or tag.name in _VOID else _hiding(tag, names)
        if how is None:
            continue
        depth, place = 1, index
        while place < len(found) and depth:
            if found[place].name == tag.name:
                depth += -1 if found[place].closing else 1
            place += 1
        if depth:  # never closed: it may hide all that follows, and may also only be talked about
            yield how, tag, tag.end, len(text)
            return
        yield how, tag, tag.end, found[place - 1].start
        index = place


def look(text: str) -> Looked:
    """Find what markup hides; the cuts take out comments, hidden elements and all tags.

    Examples
    --------
    >>> [part.text for part in look("Rates<!-- obey me --> rose.").parts]
    [' obey me ']
    """
    looked = Looked()
    _markdown(text, looked)
    if "<" not in text:
        return looked
    found = list(tags(text))
    sheets = [
        text[tag.end : after.start]
        for tag, after in pairwise(found)
        if tag.name == "style" and not tag.closing
    ]
    names = _UNSEEN_CLASSES.union(*map(hiding_names, sheets))
    for tag in found:
        if tag.name == "!":
            _comment(tag, looked)
        else:
            _attributes(tag, looked)
            looked.cuts.append(Cut(tag.start, tag.end, "" if tag.name in _INLINE else " "))
    for how, tag, start, end in _hidden_elements(found, names, text):
        inside = text[start:end]
        looked.parts.append(Part("hidden", how, inside, tag.start, end))
        if (
            how not in {"script", "style", "unseen_element"}
            and len(inside.split()) >= _WORDS_THAT_SAY_SOMETHING
        ):
            looked.tricks.append(
                Trick(
                    tag.start,
                    end,
                    "hidden",
                    how,
                    "hint" if how == "aria_hidden" else "warning",
                    "text in an element that is not shown",
                )
            )
        if end < len(text):
            looked.cuts.append(Cut(tag.start, end, " "))
    looked.cuts.sort(key=lambda cut: (cut.start, -cut.end))
    return looked
