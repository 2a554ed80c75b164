"""Find what HTML and Markdown hide: comments, elements, scripts, attributes, links with data.

One pass reads the tags, in time linear in the length of the text.
"""

import dataclasses
import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rag_eval.corpus.markdown import leaves
from rag_eval.trust.discovery import Cut, Discovery, Severity
from rag_eval.trust.spelling import load_words

_WORDS = {name: frozenset(words) for name, words in load_words("markup").items()}

# ---- Tags

_HEAD = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9:-]{0,40})(?=[\s/>])")
_ATTRIBUTE = re.compile(
    r"""[\s/]*([^\s=>"'</]{1,200})"""
    r"""(?:\s{0,100}=\s{0,100}(?:"([^"]{0,20000})"|'([^']{0,20000})'|([^\s>"'<]{0,20000})))?"""
)
_CLOSE = re.compile(r"[\s/]*>")
_DECLARATION = re.compile(r"<[!?][^<>]{0,4000}>")


@dataclasses.dataclass(frozen=True, slots=True)
class Tag:
    """A tag at text[start:end] with its name in lower case.

    Comments and declarations are named `!` and hold their text in `inside`. An element that is not
    closed ends at `limit`, the end of the raw HTML around the tag.
    """

    name: str
    start: int
    end: int
    limit: int
    closing: bool = False
    attributes: tuple[tuple[str, str, int, int], ...] = ()
    inside: str = ""
    complete: bool = True


class _Reader:
    """Reads tags in text[:end], and searches the end of comments once to stay linear."""

    def __init__(self, text: str, end: int) -> None:
        self.text, self.end = text, end
        self._closes = {"-->": -1, "--!>": -1}

    def read(self, at: int) -> tuple[Tag | None, int]:
        """Return the tag at a `<`, or None for plain text, and the place to read on from."""
        if self.text.startswith("<!--", at):
            comment = self._read_comment(at)
            return comment, comment.end
        if (declaration := _DECLARATION.match(self.text, at, self.end)) is not None:
            return Tag(
                "!", at, declaration.end(), self.end, inside=declaration[0][2:-1]
            ), declaration.end()
        head = _HEAD.match(self.text, at, self.end)
        return (None, at + 1) if head is None else self._read_tag(head)

    def _read_comment(self, start: int) -> Tag:
        for mark, place in self._closes.items():
            if place < start + 2:
                place_found = self.text.find(mark, start + 2, self.end)
                self._closes[mark] = place_found if place_found >= 0 else self.end + 1
        close = min(self._closes.values())
        if close > self.end:
            inside = self.text[start + 4 : self.end]
            return Tag("!", start, self.end, self.end, inside=inside, complete=False)
        length = len("--!>" if self._closes["--!>"] == close else "-->")
        return Tag("!", start, close + length, self.end, inside=self.text[start + 4 : close])

    def _read_tag(self, head: re.Match[str]) -> tuple[Tag | None, int]:
        at = head.end()
        attributes: list[tuple[str, str, int, int]] = []
        while (close := _CLOSE.match(self.text, at, self.end)) is None:
            attribute = _ATTRIBUTE.match(self.text, at, self.end)
            if attribute is None:
                return None, max(at, head.start() + 1)
            value = next((group for group in attribute.groups()[1:] if group is not None), "")
            attributes.append((attribute[1].lower(), value, attribute.start(1), attribute.end()))
            at = attribute.end()
        name, start, end = head[2].lower(), head.start(), close.end()
        return Tag(name, start, end, self.end, bool(head[1]), tuple(attributes)), end


def read_tags(
    text: str, start: int = 0, end: int | None = None, code: Sequence[tuple[int, int]] = ()
) -> Iterator[Tag]:
    """Read the tags, comments and declarations of text[start:end] in order.

    A tag without `>` and `<T>` in a program count as text. A comment without an end reaches to
    `end`. No tag begins in the sorted ranges of `code`.
    """
    end = len(text) if end is None else end
    reader = _Reader(text, end)
    part = bisect_left(code, (start, start))
    at = text.find("<", start, end)
    while 0 <= at < end:
        while part < len(code) and code[part][1] <= at:
            part += 1
        go_on = at + 1
        if part < len(code) and code[part][0] <= at:
            go_on = code[part][1]
        elif text[at + 1 : at + 2] in "!?" or (
            (head := _HEAD.match(text, at)) and head[2].lower() in _WORDS["elements"]
        ):
            tag, go_on = reader.read(at)
            if tag is not None:
                yield tag
        at = text.find("<", go_on, end)


# ---- Code, which hides nothing

_AUTOLINK = re.compile(r"<[A-Za-z][A-Za-z0-9+.-]{1,31}:[^<>\s]{0,4000}>")
_INLINE_MARK = re.compile(r"\\[!-/:-@\[-`{-~]|`+|<")
_CODE_MARK = re.compile(r"[`~]|\\<")
_TICKS = re.compile("`+")
_HTML_PAGE = re.compile(
    r"\s{0,1000}(?:<!doctype\s|<[a-z][a-z0-9]{0,20}[\s/>]|<!--|<\?xml)", re.IGNORECASE
)


def _find_inline_code(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    r"""Yield the code spans of a paragraph, and each `<` after a backslash.

    If code, tags and autolinks overlap, the first to begin wins, as in CommonMark.
    """
    reader = _Reader(text, end)
    ticks: dict[int, list[int]] = {}
    for run in _TICKS.finditer(text, start, end):
        ticks.setdefault(len(run[0]), []).append(run.start())
    at = start
    while (mark := _INLINE_MARK.search(text, at, end)) is not None:
        at = mark.end()
        if mark[0] == "<":
            autolink = _AUTOLINK.match(text, mark.start(), end)
            tag, go_on = reader.read(mark.start())
            if autolink is not None:
                at = autolink.end()
            elif tag is not None and tag.complete:
                at = go_on
        elif mark[0][0] == "`":
            same = ticks.get(len(mark[0]), [])
            place = bisect_left(same, at)
            if place < len(same):
                at = same[place] + len(mark[0])
                yield mark.start(), at
        elif mark[0] == "\\<":
            yield mark.start() + 1, at


_QUOTED = re.compile(
    r"(?<!\w)\"(?=\S)[^\"]{2,300}\"(?!\w)|“[^“”]{2,300}”|„[^„“”]{2,300}[“”]|«[^«»]{2,300}»"
    r"|(?<!\w)['‘](?=\S{1,40}\s\S{1,40}\s\S)(?:[^'‘’]|(?<=\w)['’](?=\w)){2,300}['’](?!\w)"
    r"|(?<!`)(`{1,2})(?!`)[^`]{1,300}(?<!`)\1(?!`)"
    r"|^ {0,3}>[^\n]{1,300}(?:\n {0,3}>[^\n]{0,300}){0,5}"
    r"|<(code|pre|kbd|samp|q|blockquote)\b[^<>]{0,100}>[^<]{1,600}</\2>",
    re.MULTILINE,
)
_FENCE = re.compile(r"^[ \t>]{0,12}(?:`{3,20}|~{3,20})[^\n]*", re.MULTILINE)
_LONGEST_FENCE, _MOST_QUOTED = 2000, 0.5


def find_quotations(text: str) -> list[tuple[int, int]]:
    """List the quotations and the code of a text in order, without overlaps.

    Long ones do not count, and none count when they are half of the text: otherwise an attacker
    could quote all of it.
    """
    fences = [match.span() for match in _FENCE.finditer(text)]
    code = ((first[0], last[1]) for first, last in zip(fences[::2], fences[1::2], strict=False))
    spans = [span for span in code if span[1] - span[0] <= _LONGEST_FENCE]
    spans += [match.span() for match in _QUOTED.finditer(text)]
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    total = sum(end - start for start, end in joined)
    return joined if total <= _MOST_QUOTED * len(text.strip()) else []


def _read_marked(text: str, *, markdown: bool) -> tuple[list[Tag], list[tuple[int, int]]]:
    """Return all tags outside of code, and the ranges of code.

    In Markdown, raw HTML ends as in CommonMark, and indented lines are code. In other texts, a tag
    reaches over blank lines. Fences and code spans are code there, unless the text begins like an
    HTML page.
    """
    has_tags = next(read_tags(text), None) is not None
    looks_for_code = markdown or (_CODE_MARK.search(text) and not _HTML_PAGE.match(text))
    if not looks_for_code:
        return list(read_tags(text)), []
    # Return early for the many texts without tags and marks, because reading blocks is slow.
    if not (has_tags or _has_markdown(text)):
        return [], []
    blocks = leaves(text, indented_code=markdown)
    code: list[tuple[int, int]] = []
    for kind, start, end in blocks:
        if kind == "code":
            code.append((start, end))
        elif kind == "inline" and _CODE_MARK.search(text, start, end):
            code += _find_inline_code(text, start, end)
    if not markdown:
        return list(read_tags(text, code=code)), code
    raw = [block for block in blocks if block.kind != "code"]
    return [tag for _, start, end in raw for tag in read_tags(text, start, end, code)], code


# ---- Styles

_COMMENT = re.compile(r"/\*[^*]{0,2000}\*/")
_ESCAPE = re.compile(r"\\([0-9a-f]{1,6})\s?")
_CLASS_OR_ID = re.compile(r"[.#]([a-z_][\w-]{0,100})")
_END = r"(?:;|$|!)"
_HIDING = re.compile(
    r"(?:^|;)(?:display:none|visibility:(?:hidden|collapse)|content-visibility:hidden"
    rf"|opacity:(?:0?\.0*[0-9]?|0+%?){_END}"
    rf"|font-size:(?:0?\.[0-9]+|0+|1)(?:px|pt|em|rem|ex|%|vw)?{_END}|font:0"
    rf"|(?:max-)?(?:height|width):0(?:px|%)?{_END}|line-height:0(?:px|%)?{_END}"
    r"|(?:left|right|top|bottom|text-indent|margin(?:-left|-top)?)"
    r":-[0-9]{3,}(?:px|em|rem|%|pt|vw|vh)"
    r"|clip:rect\([01](?:px)?[, ]|clip-path:(?:inset\((?:50|100)%|circle\(0)"
    r"|transform:[^;]{0,100}(?:scale[xy]?\(0(?:\.0+)?[),]|translate[xy]?\(-[0-9]{3,})"
    r"|(?:-webkit-text-fill-)?color:(?:transparent|rgba\([^)]{0,40},0?\.?0+\)"
    rf"|hsla\([^)]{{0,40}},0?\.?0+\)|#[0-9a-f]{{6}}00{_END}|#[0-9a-f]{{3}}0{_END}))"
)
_COLOUR = re.compile(r"(?:^|;)color:([^;!]{1,60})")
_BACKGROUND = re.compile(r"(?:^|;)background(?:-color)?:([^;!]{1,60})")
_LONGEST_STYLE = 8000


def _name_colour(name: str) -> str:
    if short := re.fullmatch(r"#([0-9a-f])([0-9a-f])([0-9a-f])", name):
        return "#" + "".join(digit * 2 for digit in short.groups())
    return "#ffffff" if name in _WORDS["white"] else "#000000" if name == "black" else name


def hides(style: str) -> bool:
    """Tell whether the declarations of a style attribute make a text invisible.

    White text without a background counts too, because most pages are white.

    Examples
    --------
    >>> hides("color: red; DISPLAY : none"), hides("color:#fff;background:#000")
    (True, False)
    """
    plain = _COMMENT.sub("", html.unescape(style[:_LONGEST_STYLE]).lower())
    plain = _ESCAPE.sub(lambda escape: chr(min(int(escape[1], 16), 0x10FFFF)), plain)
    plain = "".join(plain.split())
    if _HIDING.search(plain):
        return True
    colour, background = _COLOUR.search(plain), _BACKGROUND.search(plain)
    if colour is None:
        return False
    behind = _name_colour(background[1]) if background else "#ffffff"
    return _name_colour(colour[1]) == behind


def _list_hidden_names(sheet: str) -> Iterator[str]:
    """Yield the classes and ids that the rules of a style sheet hide."""
    for block in sheet.lower().split("}"):
        selector, _, declarations = block.rpartition("{")
        if hides(declarations):
            yield from _CLASS_OR_ID.findall(selector)


# ---- Hidden parts

_MARKDOWN_COMMENT = re.compile(
    r"^[ ]{0,3}\[[^\]\n]{1,80}\]:[ \t]{0,20}(?:#|<>)[ \t]{1,20}"
    r"(?:\(([^\n]{0,5000})\)|\"([^\n]{0,5000})\"|'([^\n]{0,5000})')[ \t]{0,20}$",
    re.MULTILINE,
)
_MARKDOWN_LINK = re.compile(
    r"(!?)\[([^\[\]\n]{0,1000})\]"
    r"\(\s{0,10}<?([^()\s<>]{1,2000}(?:\([^()\s]{0,200}\)[^()\s<>]{0,200})?)>?"
    r"(?:\s{1,10}\"([^\"\n]{0,2000})\")?\s{0,10}\)"
)
_DATA = (
    "your|the|insert|user|chat|conversation|history|summary|secret|password|prompt|context|data"
    "|answer|message"
)
_CARRIES = re.compile(
    r"[?&#][\w.\[\]-]{1,40}=(?:$|&|[{<\[$%]{1,2}[a-z_]|%7b|%5b|\.{3}|…|\*{3}|x{4}"
    rf"|\W{{0,3}}(?:{_DATA}|token|cookie|key)s?(?![a-z]))"
    rf"|//[^/]{{1,200}}/[^?]{{0,500}}[{{\[](?:{_DATA})",
    re.IGNORECASE,
)
_HANDLER = re.compile(r"on[a-z]{3,30}")
_MEDIA = frozenset(("img", "source", "video", "audio", "iframe", "embed", "object"))
_LONG_ATTRIBUTE, _LONGEST_ADDRESS, _LEAST_WORDS = 20, 4000, 3


def _has_markdown(text: str) -> bool:
    """Tell whether a text has a Markdown comment or link, in code or outside."""
    return ("]:" in text and _MARKDOWN_COMMENT.search(text) is not None) or (
        "](" in text and _MARKDOWN_LINK.search(text) is not None
    )


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
    for match in _MARKDOWN_LINK.finditer(text) if "](" in text else ():
        if is_code(match.start()):
            continue
        if match[1]:
            _find_image(match[3], match.span(), discovery)
        if len(match[4] or "") >= _LONG_ATTRIBUTE:
            discovery.add("attribute", match.span(4), match[4])


def _find_in_attributes(tag: Tag, discovery: Discovery) -> None:
    for name, value, start, end in tag.attributes:
        shown = html.unescape(value)
        if _HANDLER.fullmatch(name) and value:
            detail = "an attribute that runs a script"
            discovery.add("event_handler", (start, end), shown, "hint", detail)
        elif name in _WORDS["links"]:
            if tag.name in _MEDIA:
                _find_image(shown, (start, end), discovery)
            discovery.add("address", (start, end), shown)
        elif len(value) >= _LONG_ATTRIBUTE and (
            name in _WORDS["text_attributes"] or name.startswith("data-")
        ):
            discovery.add("attribute", (start, end), shown)


def _name_hiding(tag: Tag, names: frozenset[str]) -> str | None:
    """Return the reason why an element is invisible; None for a visible element."""
    if tag.name in _WORDS["unseen"]:
        return tag.name if tag.name in {"script", "style"} else "unseen_element"
    attributes = {name: value for name, value, *_ in tag.attributes}
    if "hidden" in attributes or attributes.get("type", "").lower() == "hidden":
        return "hidden_attribute"
    if attributes.get("aria-hidden", "").lower() == "true":
        return "aria_hidden"
    font = f"color:{attributes.get('color', '')};font-size:{attributes.get('size', '')}"
    if hides(attributes.get("style", "")) or (tag.name == "font" and hides(font)):
        return "hidden_style"
    if {*attributes.get("class", "").lower().split(), attributes.get("id", "").lower()} & names:
        return "hidden_style"
    return None


_VALUE = re.compile(r"=<([a-z]{1,20})>")


def _find_placeholders(text: str) -> frozenset[str]:
    """List the names of values of options in a manual, such as `--thread=<style>`.

    A name whose element the text closes is no such name.
    """
    lowered = text.lower()
    names = set(_VALUE.findall(lowered))
    return frozenset(name for name in names if f"</{name}" not in lowered)


def _find_hidden_elements(
    tags: list[Tag], names: frozenset[str]
) -> Iterator[tuple[str, Tag, int, bool]]:
    """Yield (reason, tag, end, is closed) of each outermost hidden element."""
    opened: dict[str, list[int]] = {}
    closings: dict[int, int] = {}
    for place, tag in enumerate(tags):
        if not tag.closing:
            opened.setdefault(tag.name, []).append(place)
        elif opened.get(tag.name):
            closings[opened[tag.name].pop()] = place
    index = done = 0
    while index < len(tags):
        tag = tags[index]
        index += 1
        if tag.start < done or tag.name == "!" or tag.closing or tag.name in _WORDS["void"]:
            continue
        reason = _name_hiding(tag, names)
        close = closings.get(index - 1)
        if close is None and tag.name == "head":
            continue  # a browser ends a head at the first text, so nothing is hidden
        if reason is not None and close is None:  # browsers differ in the hidden text
            done = tag.limit
            yield reason, tag, tag.limit, False
        elif reason is not None and close is not None:
            index = close + 1
            yield reason, tag, tags[close].start, True


def find_in_markup(text: str, *, markdown: bool = False) -> Discovery:
    """Find what markup hides; the cuts remove comments, hidden elements and all tags.

    `markdown` says that the text is known to be Markdown.

    Examples
    --------
    >>> [part.text for part in find_in_markup("Rates<!-- obey me --> rose.").parts]
    [' obey me ']
    >>> find_in_markup("Run `python <script>.py` at night.").parts
    []
    """
    discovery = Discovery()
    tags, code = _read_marked(text, markdown=markdown)
    values = _find_placeholders(text)
    tags = [tag for tag in tags if tag.attributes or tag.name not in values]
    _find_in_markdown(text, code, discovery)
    sheets = (
        text[tag.end : after.start]
        for tag, after in pairwise(tags)
        if tag.name == "style" and not tag.closing
    )
    names = _WORDS["unseen_classes"].union(*map(_list_hidden_names, sheets))
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
    for reason, tag, end, closed in _find_hidden_elements(tags, names):
        inside = text[tag.end : end]
        discovery.add(reason, (tag.start, end), inside)
        is_markup = reason in {"script", "style", "unseen_element"}
        if not is_markup and len(inside.split()) >= _LEAST_WORDS:
            severity: Severity = "hint" if reason == "aria_hidden" else "warning"
            detail = "text in an element that is not shown"
            discovery.add(reason, (tag.start, end), severity=severity, detail=detail)
        if closed:
            discovery.cuts.append(Cut(tag.start, end, " "))
    return discovery
