"""Markdown in character offsets: front matter, headings, blocks; headings of reStructuredText."""

import functools
import itertools
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_FRONT_MATTER = 65_536
_LINE = re.compile(r"[^\r\n]*+(?:\r\n?|\n)|[^\r\n]++")
_FRONT = re.compile(r"(?P<fence>---|\+\+\+)[ \t]*(?:\r\n?|\n)")


class Heading(NamedTuple):
    """A heading: its level from 1, its plain text and the offset of its line."""

    level: int
    title: str
    start: int


def line_starts(text: str, start: int = 0) -> list[int]:
    """Return the offset of each line from `start` on, and the end of the text."""
    return [*(match.start() for match in _LINE.finditer(text, start)), len(text)]


_INLINE = ("inline", "text_join")
"""Rules of inline text; parsing blocks alone saves most of the time."""


@functools.lru_cache(maxsize=4)
def _parser(*disabled: str) -> "MarkdownIt":
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table").disable(list(disabled))


def parse_blocks(text: str) -> "list[Token]":
    """Return the tokens of blocks; the inline text in them is not parsed."""
    return _parser(*_INLINE).parse(text)


def plain_text(inline: str) -> str:
    """Return the words of inline Markdown without emphasis, links and code marks."""
    tokens = _parser().parseInline(inline)
    children = [child for token in tokens for child in token.children or ()]
    words = (child.content or " " for child in children if child.type != "html_inline")
    return " ".join("".join(words).split())


def headings(text: str, start: int = 0) -> list[Heading]:
    """Return the headings of a document, except headings in fences, quotes, lists or HTML."""
    starts = line_starts(text, start)
    tokens = parse_blocks(text[start:])
    return [
        Heading(int(opening.tag[1:]), plain_text(inline.content), starts[opening.map[0]])
        for opening, inline in itertools.pairwise(tokens)
        if opening.type == "heading_open" and opening.level == 0 and opening.map
    ]


_RST_RULE = re.compile(r"([!-/:-@\[-`{-~])\1+[ \t]*$")


def rst_headings(text: str) -> list[Heading]:
    """Return the underlined headings of reStructuredText, perhaps with a line above.

    The first style of rules is level 1, the next new style level 2, and so on.
    """
    starts = line_starts(text)
    lines = [text[start:end].rstrip("\r\n") for start, end in itertools.pairwise(starts)]
    rules = [match and match[1] for match in map(_RST_RULE.match, lines)]
    heads, levels = [], dict[tuple[str, bool], int]()
    for at, mark in enumerate(rules[1:], 1):
        title = lines[at - 1].rstrip()
        above = at > 1 and rules[at - 2] == mark
        is_first = at == 1 or not lines[at - 2].strip() or above
        if not mark or rules[at - 1] or not is_first or not title.strip():
            continue
        if len(lines[at].rstrip()) >= len(title) and (above or not title[0].isspace()):
            level = levels.setdefault((mark, above), len(levels) + 1)
            heads.append(Heading(level, title.strip(), starts[at - 1 - above]))
    return heads


def _read_mapping(block: str, fence: str) -> dict[str, object] | None:
    import tomllib

    import yaml

    try:
        values = tomllib.loads(block.replace("\r\n", "\n")) if fence == "+++" else None
        if values is None and "*" in block:
            events = yaml.parse(block, Loader=yaml.SafeLoader)
            if any(isinstance(event, yaml.AliasEvent) for event in events):
                return None  # merged aliases of merged aliases grow without bound
        values = yaml.safe_load(block) if values is None else values
    except (yaml.YAMLError, RecursionError, ValueError):  # a fault of TOML is a ValueError
        return None
    return values if isinstance(values, dict) else None


def front_matter(text: str) -> tuple[dict[str, object], int]:
    """Return the YAML (`---`) or TOML (`+++`) front matter of a file, and the end offset.

    A file without front matter gives ({}, 0), even if the file begins with a rule.
    """
    head = _FRONT.match(text)
    if head is None:
        return {}, 0
    closing = re.compile(rf"^{re.escape(head['fence'])}[ \t]*(?:\r\n?|\n|\Z)", re.MULTILINE).search(
        text, head.end(), MAX_FRONT_MATTER
    )
    if closing is None:
        return {}, 0
    values = _read_mapping(text[head.end() : closing.start()], head["fence"])
    return ({}, 0) if values is None else (values, closing.end())
