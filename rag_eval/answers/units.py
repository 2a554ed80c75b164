"""Cut a passage into the pieces that an extractive answer may cite."""

import dataclasses
import itertools
import re
from collections.abc import Iterator

from rag_eval.corpus.chunking import borders, spans, trim

MAX_SENTENCE = 2000
"""Longest sentence in characters; longer sentences, such as tables, are cut."""
MAX_ENTRY = 600
"""Longest entry, list item or code block in characters; longer units are cut into sentences."""

_RULE = re.compile(r"[-=~^]{3,80}+\s*$")
_ITEM = re.compile(r"[*•-] ")
_ENTRY = re.compile(r"\*{0,2}\w[\w*, .]{0,100}? : ")
_BARE_NAME = re.compile(r"\*{0,2}\w[\w.]{0,100}+\s*$")
_CODE = (">>>", "... ")
_POINTERS = frozenset({"see also", "references"})  # sections that point to other documents


@dataclasses.dataclass(slots=True)
class Unit:
    """A piece of a passage, text[start:end]; `kind` is sentence, entry, item, code or pointer."""

    start: int
    end: int
    kind: str


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _kind(line: str, following: str) -> str:
    """Return the kind of the block that a line opens, by the form of the line."""
    bare = line.lstrip()
    if bare.startswith(_CODE):
        return "code"
    if _ITEM.match(bare):
        return "item"
    deeper = following.strip() and _indent(following) > _indent(line)
    return "entry" if _ENTRY.match(bare) or (deeper and _BARE_NAME.match(bare)) else "prose"


def _goes_on(block: Unit, kind: str, *, deeper: bool) -> bool:
    """Tell whether a line of a kind belongs to the block before it."""
    if block.kind == "code":
        return True  # output follows a statement until a blank line
    return kind == "prose" if block.kind == "prose" or kind == "code" else deeper


def _blocks(text: str) -> Iterator[Unit]:
    """Yield runs of lines that belong together, without underlined headings."""
    lines = text.splitlines(keepends=True)
    block: Unit | None = None
    at = indent = 0
    is_rule = pointing = False
    for line, following in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        start, at = at, at + len(line)
        if is_rule:
            is_rule = False
            continue
        if not line.strip():
            # an entry continues over blank lines while lines are indented deeper than its name
            if block and block.kind not in {"entry", "pointer"}:
                yield block
                block = None
            continue
        if _RULE.match(following.lstrip()) and not line.lstrip().startswith(_CODE):
            if block:
                yield block
            is_rule, block, pointing = True, None, line.strip().lower() in _POINTERS
            continue
        kind = _kind(line, following)
        if block:
            if _goes_on(block, kind, deeper=_indent(line) > indent):
                block.end = at
                continue
            yield block
        block, indent = Unit(start, at, "pointer" if pointing else kind), _indent(line)
    if block:
        yield block


def _cut(text: str, start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """Yield pieces of at most `longest` characters, cut at white space if possible."""
    while end - start > longest:
        middle, last = start + longest // 2, start + longest
        at = max(text.rfind(" ", middle, last), text.rfind("\n", middle, last))
        at = last if at < 0 else at
        if piece := trim(text, start, at):
            yield piece
        start = at
    if piece := trim(text, start, end):
        yield piece


def _pack(text: str, start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """Yield a block whole if it fits, else in as few runs of whole sentences as fit."""
    edges = [*borders(text, start, end), end] if end - start > longest else [end]
    for edge, following in zip(edges, [*edges[1:], end + longest + 1], strict=True):
        if following - start > longest:
            yield from _cut(text, start, edge, longest)
            start = edge


def cut_units(text: str) -> list[Unit]:
    r"""Cut a passage into units in order, without overlaps, each with a letter or digit.

    Prose gives sentences. A parameter with its description, a list item, and a doctest with its
    output are one unit each, because half a description answers nothing.

    Examples
    --------
    >>> text = "Sort it. Or not.\n\nParameters\n----------\nkey : callable\n    Applied to it.\n"
    >>> [(unit.kind, text[unit.start : unit.end]) for unit in cut_units(text)][1:]
    [('sentence', 'Or not.'), ('entry', 'key : callable\n    Applied to it.')]
    """
    units: list[Unit] = []
    for block in _blocks(text):
        if block.kind == "prose":
            for low, high in spans(text, block.start, block.end):
                units += [Unit(*edges, "sentence") for edges in _cut(text, low, high, MAX_SENTENCE)]
        else:
            pieces = _pack(text, block.start, block.end, MAX_ENTRY)
            units += [Unit(*edges, block.kind) for edges in pieces]
    return [unit for unit in units if any(map(str.isalnum, text[unit.start : unit.end]))]
