"""Structure of a Markdown text in character offsets: front matter, headings, blocks.

Belongs here: what markdown-it-py and YAML are asked. Sections and chunks are made of it in `sections` and `borders`.
"""

import functools
import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from yaml import SafeLoader, ScalarNode

MAX_FRONT_MATTER = 65_536
_LINE = re.compile(r"[^\r\n]*+(?:\r\n?|\n)|[^\r\n]++")
_FRONT = re.compile(r"(?P<fence>---|\+\+\+)[ \t]*(?:\r\n?|\n)")


class Heading(NamedTuple):
    """A heading of the document itself: its level from 1, its plain text and the offset of its line."""

    level: int
    title: str
    start: int


def line_starts(text: str, start: int = 0) -> list[int]:
    """Offset of the first character of each line from `start` on, and the end of the text; LF, CRLF and CR end lines."""
    starts = [match.start() for match in _LINE.finditer(text, start)]
    return [*starts, len(text)]


@functools.lru_cache(maxsize=2)
def _parser(*, inline: bool) -> "MarkdownIt":
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    return parser if inline else parser.disable(["inline", "text_join"])


def _tokens(text: str) -> "list[Token]":
    """Block tokens; the inline content stays unparsed, which is most of the time saved."""
    return _parser(inline=False).parse(text)


def plain_text(inline: str) -> str:
    """Words of a heading without emphasis, links and code marks."""
    children = [
        child
        for token in _parser(inline=True).parseInline(inline)
        for child in token.children or ()
    ]
    return " ".join(
        "".join(child.content or " " for child in children if child.type != "html_inline").split()
    )


def headings(text: str, start: int = 0) -> list[Heading]:
    """Headings of the document, in order: not those in fences, quotes, lists or HTML."""
    starts = line_starts(text, start)
    found = []
    for opening, inline in itertools.pairwise(_tokens(text[start:])):
        if opening.type == "heading_open" and opening.level == 0 and opening.map:
            found.append(
                Heading(int(opening.tag[1:]), plain_text(inline.content), starts[opening.map[0]])
            )
    return found


class Blocks(NamedTuple):
    """Where blocks begin: those of the text itself, those inside others (list items, quotes), and the first one after a leading heading."""

    top: list[int]
    nested: list[int]
    content: int


def blocks(text: str, start: int, end: int) -> Blocks:
    """Blocks of text[start:end], as offsets in text."""
    starts = [start + offset for offset in line_starts(text[start:end])]
    top: dict[int, str] = {}
    nested: set[int] = set()
    for token in _tokens(text[start:end]):
        if token.map and token.nesting >= 0 and token.type != "inline":
            at = starts[token.map[0]]
            if token.level == 0:
                top.setdefault(at, token.type)
            else:
                nested.add(at)
    content = next((at for at, kind in top.items() if kind != "heading_open"), end)
    return Blocks(
        sorted(top),
        sorted(nested),
        content if next(iter(top.values()), "") == "heading_open" else start,
    )


@functools.cache
def _front_matter_loader() -> "type[SafeLoader]":
    """YAML's safe loader, for which a day that the calendar lacks (2024-02-30) is a text: it must not cost the title and the address."""
    import yaml

    class Loader(yaml.SafeLoader):
        def day_or_text(self, node: "ScalarNode") -> object:
            try:
                return self.construct_yaml_timestamp(node)
            except (ValueError, OverflowError):
                return self.construct_scalar(node)

    Loader.add_constructor("tag:yaml.org,2002:timestamp", Loader.day_or_text)
    return Loader


def _mapping(block: str, fence: str) -> dict[str, object] | None:
    if fence == "+++":
        import tomllib

        try:
            return tomllib.loads(block.replace("\r\n", "\n"))
        except (tomllib.TOMLDecodeError, RecursionError):
            return None
    import yaml

    try:
        found = yaml.load(block, _front_matter_loader())  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def front_matter(text: str) -> tuple[dict[str, object], int]:
    """YAML (`---`) or TOML (`+++`) mapping at the head of a file, and the offset of what follows it.

    A file that merely begins with a rule has none: ({}, 0).
    """
    head = _FRONT.match(text)
    if head is None:
        return {}, 0
    closing = re.compile(rf"^{re.escape(head['fence'])}[ \t]*(?:\r\n?|\n|\Z)", re.MULTILINE).search(
        text, head.end(), MAX_FRONT_MATTER
    )
    if closing is None:
        return {}, 0
    values = _mapping(text[head.end() : closing.start()], head["fence"])
    return ({}, 0) if values is None else (values, closing.end())


def first_string(values: dict[str, object], keys: Sequence[str]) -> str | None:
    """First of these keys that has a non-empty string."""
    return next(
        (
            value.strip()
            for key in keys
            if isinstance(value := values.get(key), str) and value.strip()
        ),
        None,
    )
