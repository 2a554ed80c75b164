"""Find what HTML and Markdown hide: comments, elements, scripts, attributes, links with data.

One pass reads code and tags, in time linear in the length of the text.
"""

import dataclasses
import html
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Literal, NamedTuple

from rag_eval.trust.rules import Severity
from rag_eval.trust.spelling import load_words

_WORDS = {name: frozenset(words) for name, words in load_words("markup").items()}

# ---- What a reader of hidden text finds


class Cut(NamedTuple):
    """Replacement of characters [start, end) of a text by `instead`."""

    start: int
    end: int
    instead: str


class Part(NamedTuple):
    """Unseen text, the trick that hides it, and its characters [start, end) in the original."""

    kind: Literal["hidden", "decoded"]
    source: str
    text: str
    start: int
    end: int


class Trick(NamedTuple):
    """A trick in characters [start, end); `detail` never quotes the text."""

    start: int
    end: int
    check: Literal["hidden", "encoded"]
    rule: str
    severity: Severity
    detail: str


@dataclasses.dataclass
class Discovery:
    """Result of one detector on a text."""

    cuts: list[Cut] = dataclasses.field(default_factory=list)
    parts: list[Part] = dataclasses.field(default_factory=list)
    tricks: list[Trick] = dataclasses.field(default_factory=list)

    def add(
        self,
        rule: str,
        span: tuple[int, int],
        text: str | None = None,
        severity: Severity | None = None,
        detail: str = "",
    ) -> None:
        """Add a text that is hidden, or a trick of the check `hidden`, or both."""
        if text is not None:
            self.parts.append(Part("hidden", rule, text, *span))
        if severity is not None:
            self.tricks.append(Trick(*span, "hidden", rule, severity, detail))

    def decode(self, source: str, text: str, span: tuple[int, int], *, suspicious: bool) -> None:
        """Add a decoded text, and a trick of the check `encoded` if the encoding is suspicious."""
        self.parts.append(Part("decoded", source, text, *span))
        if suspicious:
            detail = f"{span[1] - span[0]} characters that decode to text ({source})"
            self.tricks.append(Trick(*span, "encoded", source, "warning", detail))


# ---- Tags and code

_HEAD = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9:-]{0,40})(?=[\s/>])")
_ATTRIBUTE = re.compile(
    r"""[\s/]*([^\s=>"'</]{1,200})"""
    r"""(?:\s{0,100}=\s{0,100}(?:"([^"]{0,20000})"|'([^']{0,20000})'|([^\s>"'<]{0,20000})))?"""
)
_CLOSE = re.compile(r"[\s/]*>")
_DECLARATION = re.compile(r"<[!?][^<>]{0,4000}>")
_COMMENT_END = re.compile(r"--!?>")
_BLANK_LINE = re.compile(r"\n[ \t]*\r?\n|\Z")
_CODE_OR_TAG = re.compile(
    r"^[ \t>]{0,12}(?P<fence>`{3,20}|~{3,20})(?s:.*?)(?:^[ \t>]{0,12}(?P=fence)|\Z)"
    r"|(?<![`\\])`(?!`)(?:[^`\n]|\n(?![ \t]*\n)){1,1000}`(?!`)"
    r"|(?<!`)``(?!`)(?:[^`\n]|`(?!`)|\n(?![ \t]*\n)){1,1000}``(?!`)"
    r"|\\<|<",
    re.MULTILINE,
)
_TAG = re.compile("<")
_HTML_PAGE = re.compile(
    r"\s{0,1000}(?:<!doctype\s|<[a-z][a-z0-9]{0,20}[\s/>]|<!--|<\?xml)", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True, slots=True)
class Tag:
    """A tag at text[start:end] with its name in lower case.

    Comments and declarations are named `!` and hold their text in `inside`.
    """

    name: str
    start: int
    end: int
    closing: bool = False
    attributes: tuple[tuple[str, str, int, int], ...] = ()
    inside: str = ""
    complete: bool = True


class _Reader:
    """Reads tags in linear time: after a comment without an end, no end is searched again."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._has_comment_ends = True

    def read(self, at: int) -> tuple[Tag | None, int]:
        """Return the tag at a `<`, or None for plain text, and the place to read on from."""
        if self.text.startswith("<!--", at):
            comment = self._read_comment(at)
            return comment, comment.end
        if (declaration := _DECLARATION.match(self.text, at)) is not None:
            end = declaration.end()
            return Tag("!", at, end, inside=declaration[0][2:-1]), end
        head = _HEAD.match(self.text, at)
        if head is None or head[2].lower() not in _WORDS["elements"]:
            return None, at + 1
        at = head.end()
        attributes: list[tuple[str, str, int, int]] = []
        while (close := _CLOSE.match(self.text, at)) is None:
            attribute = _ATTRIBUTE.match(self.text, at)
            if attribute is None:
                return None, max(at, head.start() + 1)
            value = attribute[2] or attribute[3] or attribute[4] or ""
            attributes.append((attribute[1].lower(), value, attribute.start(1), attribute.end()))
            at = attribute.end()
        name, start, end = head[2].lower(), head.start(), close.end()
        return Tag(name, start, end, bool(head[1]), tuple(attributes)), end

    def _read_comment(self, start: int) -> Tag:
        close = _COMMENT_END.search(self.text, start + 2) if self._has_comment_ends else None
        if close is None:
            self._has_comment_ends = False
            end = _find_blank_line(self.text, start)
            return Tag("!", start, end, inside=self.text[start + 4 : end], complete=False)
        return Tag("!", start, close.end(), inside=self.text[start + 4 : close.start()])


def _find_blank_line(text: str, start: int) -> int:
    """Return where the paragraph ends, as raw HTML without an end does in Markdown."""
    end = _BLANK_LINE.search(text, start)
    return len(text) if end is None else end.start()


def read_markup(text: str) -> tuple[list[Tag], list[tuple[int, int]]]:
    r"""Return the tags, comments and declarations of a text, and the ranges of code.

    Fences, code spans and `\<` are code, in which no tag begins, unless the text begins like an
    HTML page. Of code and tags that overlap, the first wins, as in CommonMark. A tag without `>`
    and `<T>` in a program are text. A comment without an end reaches to the next blank line.
    """
    reader, pattern = _Reader(text), _TAG if _HTML_PAGE.match(text) else _CODE_OR_TAG
    tags: list[Tag] = []
    code: list[tuple[int, int]] = []
    at = 0
    while (mark := pattern.search(text, at)) is not None:
        if mark[0] == "<":
            tag, at = reader.read(mark.start())
            if tag is not None:
                tags.append(tag)
        else:
            at = mark.end()
            code.append(mark.span())
    return tags, code


# ---- Styles

_END = r"(?:;|$|!)"
_HIDING = re.compile(
    r"(?:^|;)(?:display:none|visibility:(?:hidden|collapse)"
    rf"|opacity:(?:0?\.0*[0-9]?|0+%?){_END}"
    rf"|font-size:(?:0?\.[0-9]+|0+|1)(?:px|pt|em|rem|%)?{_END}|font:0"
    rf"|(?:max-)?(?:height|width):0(?:px|%)?{_END}"
    r"|(?:left|right|top|bottom|text-indent|margin(?:-left|-top)?):-[0-9]{3,}"
    r"|clip:rect\([01](?:px)?[, ]|color:transparent)"
)
_COLOUR = re.compile(r"(?:^|;)color:([^;!]{1,60})")
_BACKGROUND = re.compile(r"(?:^|;)background(?:-color)?:([^;!]{1,60})")
_LONGEST_STYLE = 8000


def _name_colour(name: str) -> str:
    if re.fullmatch("#[0-9a-f]{3}", name):
        name = "#" + "".join(digit * 2 for digit in name[1:])
    return "#ffffff" if name in _WORDS["white"] else name


def _hides(style: str) -> bool:
    """Tell whether a style makes text invisible; pages are white if it names no background."""
    plain = "".join(html.unescape(style[:_LONGEST_STYLE]).lower().split())
    colour, background = _COLOUR.search(plain), _BACKGROUND.search(plain)
    behind = _name_colour(background[1]) if background else "#ffffff"
    is_unseen = colour is not None and _name_colour(colour[1]) == behind
    return is_unseen or _HIDING.search(plain) is not None


# ---- Hidden parts

_MARKDOWN_COMMENT = re.compile(
    r"^[ ]{0,3}\[[^\]\n]{1,80}\]:[ \t]{0,20}(?:#|<>)[ \t]{1,20}"
    r"(?:\(([^\n]{0,5000})\)|\"([^\n]{0,5000})\"|'([^\n]{0,5000})')[ \t]{0,20}$",
    re.MULTILINE,
)
_MARKDOWN_IMAGE = re.compile(
    r"!\[[^\[\]\n]{0,1000}\]\(\s{0,10}<?([^()\s<>]{1,2000})(?=>?\s{0,10}[)\"])"
)
_DATA = (
    r"(?:your|the|insert|user|chat|conversation|history|summary|secret|password|prompt|context"
    r"|data|answer|message)"
)
_CARRIES = re.compile(
    r"[?&#][\w.\[\]-]{1,40}=(?:$|&|[{<\[$%]{1,2}[a-z_]|%7b|%5b|\.{3}|…|\*{3}|x{4}"
    rf"|\W{{0,3}}(?:{_DATA}|token|cookie|key)s?(?![a-z]))"
    rf"|//[^/]{{1,200}}/[^?]{{0,500}}[{{\[]{_DATA}",
    re.IGNORECASE,
)
_MEDIA = frozenset(("img", "source", "video", "audio", "iframe", "embed", "object"))
_LONG_ATTRIBUTE, _LONGEST_ADDRESS, _LEAST_WORDS = 20, 4000, 3


def _find_image(address: str, span: tuple[int, int], discovery: Discovery) -> None:
    if "//" in address and _CARRIES.search(address, 0, _LONGEST_ADDRESS):
        detail = "an image whose address has a place for data to be put in"
        discovery.add("carrying_image", span, severity="warning", detail=detail)


def _find_in_markdown(text: str, code: list[tuple[int, int]], discovery: Discovery) -> None:
    def is_code(at: int) -> bool:
        place = bisect_right(code, (at, len(text) + 1)) - 1
        return place >= 0 and at < code[place][1]

    for match in _MARKDOWN_COMMENT.finditer(text) if "]:" in text else ():
        if not is_code(match.start()):
            comment = match[1] or match[2] or match[3] or ""
            detail = "a Markdown comment, which no reader sees"
            discovery.add("markdown_comment", match.span(), comment, "hint", detail)
            discovery.cuts.append(Cut(*match.span(), " "))
    for match in _MARKDOWN_IMAGE.finditer(text) if "](" in text else ():
        if not is_code(match.start()):
            _find_image(match[1], match.span(), discovery)


def _find_in_attributes(tag: Tag, discovery: Discovery) -> None:
    for name, value, start, end in tag.attributes:
        shown = html.unescape(value)
        if name in _WORDS["links"]:
            if tag.name in _MEDIA:
                _find_image(shown, (start, end), discovery)
            discovery.add("address", (start, end), shown)
        elif len(value) >= _LONG_ATTRIBUTE and (
            name in _WORDS["text_attributes"] or name.startswith(("data-", "on"))
        ):
            discovery.add("attribute", (start, end), shown)


def _name_hiding(tag: Tag) -> str | None:
    """Return the reason why an element is invisible; None for a visible element."""
    if tag.name in _WORDS["unseen"]:
        return tag.name if tag.name in {"script", "style"} else "unseen_element"
    attributes = {name: value for name, value, *_ in tag.attributes}
    if "hidden" in attributes or attributes.get("type", "").lower() == "hidden":
        return "hidden_attribute"
    classes = attributes.get("class", "").lower().split()
    if _hides(attributes.get("style", "")) or not _WORDS["unseen_classes"].isdisjoint(classes):
        return "hidden_style"
    return None


def _find_hidden_elements(text: str, tags: list[Tag]) -> Iterator[tuple[str, Tag, int, bool]]:
    """Yield (reason, tag, end, is closed) of each outermost hidden element."""
    opened: dict[str, list[int]] = {}
    closings: dict[int, int] = {}
    for place, tag in enumerate(tags):
        if not tag.closing:
            opened.setdefault(tag.name, []).append(place)
        elif opened.get(tag.name):
            closings[opened[tag.name].pop()] = place
    done = 0
    for place, tag in enumerate(tags):
        if tag.start < done or tag.name == "!" or tag.closing or tag.name in _WORDS["void"]:
            continue
        close = closings.get(place)
        reason = _name_hiding(tag)
        if reason is None or (close is None and tag.name == "head"):
            continue  # a browser ends a head at the first text, so nothing is hidden
        done = _find_blank_line(text, tag.end) if close is None else tags[close].start
        yield reason, tag, done, close is not None


def find_in_markup(text: str) -> Discovery:
    """Find what markup hides; the cuts remove comments, hidden elements and all tags."""
    discovery = Discovery()
    tags, code = read_markup(text)
    _find_in_markdown(text, code, discovery)
    for tag in tags:
        if tag.name != "!":
            _find_in_attributes(tag, discovery)
            # Browsers and readers for the blind show the text of an image.
            shown = [value for name, value, *_ in tag.attributes if name == "alt"]
            instead = "" if tag.name in _WORDS["inline"] else f" {' '.join(shown)} "
            discovery.cuts.append(Cut(tag.start, tag.end, instead))
            continue
        detail = "an HTML comment, which no reader sees"
        discovery.add("html_comment", (tag.start, tag.end), tag.inside, "hint", detail)
        spaced = tag.inside[:1].isspace() and tag.inside[-1:].isspace()
        end = tag.end if tag.complete else tag.start
        discovery.cuts.append(Cut(tag.start, end, " " if spaced else ""))
    for reason, tag, end, closed in _find_hidden_elements(text, tags):
        inside = text[tag.end : end]
        discovery.add(reason, (tag.start, end), inside)
        is_markup = reason in {"script", "style", "unseen_element"}
        if not is_markup and len(inside.split()) >= _LEAST_WORDS:
            detail = "text in an element that is not shown"
            discovery.add(reason, (tag.start, end), severity="warning", detail=detail)
        if closed:
            discovery.cuts.append(Cut(tag.start, end, " "))
    return discovery
