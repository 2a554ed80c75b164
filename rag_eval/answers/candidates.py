"""What an extractive answer may cite: sentences of prose, entries of parameter lists, list items, blocks of code.

Belongs here: where such units begin and end in a passage. Not here: which of them answer a question (`features`, `extractive`).
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator

from rag_eval.corpus import sentences

MAX_SENTENCE = 2000
"""Characters of a sentence; what is longer (a table, a word without end) is cut."""

MAX_ENTRY = 600
"""Characters of a parameter's entry, a list item or a block of code; what is longer is cut where its sentences end."""

_RULE = re.compile(r"[-=~^]{3,80}+\s*$")
_ITEM = re.compile(r"[*•-] ")
_ENTRY = re.compile(r"\*{0,2}\w[\w*, .]{0,100}? : ")
_BARE_NAME = re.compile(r"\*{0,2}\w[\w.]{0,100}+\s*$")
_CODE = (">>>", "... ")
_POINTERS = frozenset({"see also", "references"})
"""Headings of sections that send the reader elsewhere."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """A citable piece of a passage: text[start:end], without white space at its ends."""

    start: int
    end: int
    kind: str


@dataclasses.dataclass(slots=True)
class _Block:
    """Lines that belong together."""

    start: int
    end: int
    kind: str
    indent: int


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _opens(line: str, following: str) -> str:
    """Kind of block that a line opens by its own form; empty where it reads on or is plain prose."""
    bare = line.lstrip()
    if bare.startswith(_CODE):
        return "code"
    if _ITEM.match(bare):
        return "item"
    if _ENTRY.match(bare) or (
        _BARE_NAME.match(bare) and following.strip() and _indent(following) > _indent(line)
    ):
        return "entry"
    return ""


def _continues(block: _Block | None, line: str, opened: str) -> bool:
    """Whether a line that is not blank belongs to the block before it."""
    if block is None:
        return False
    if block.kind == "code":
        return True  # output follows its statement until a blank line
    if opened == "code":
        return False
    if block.kind in {"entry", "item", "pointer"}:
        return _indent(line) > block.indent
    return not opened


def _blocks(text: str) -> Iterator[_Block]:
    """Parts of a text by the form of its lines: `prose`, `entry`, `item`, `code` and `pointer`; underlined headings are left out."""
    lines = text.splitlines(keepends=True)
    block: _Block | None = None
    at = 0
    heading = pointing = False
    for line, following in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        start, at = at, at + len(line)
        if heading:  # this line is its rule
            heading = False
            continue
        if not line.strip():
            if block and block.kind not in {
                "entry",
                "pointer",
            }:  # an entry goes on over blank lines, for as long as lines stand deeper than its name
                yield block
                block = None
            continue
        heading = bool(_RULE.match(following.lstrip())) and not line.lstrip().startswith(_CODE)
        opened = "" if heading else _opens(line, following)
        if not heading and block and _continues(block, line, opened):
            block.end = at
            continue
        if block:
            yield block
        if heading:
            pointing = line.strip().lower() in _POINTERS
        block = (
            None
            if heading
            else _Block(start, at, "pointer" if pointing else opened or "prose", _indent(line))
        )
    if block:
        yield block


def _cut(text: str, start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """Pieces of at most `longest` characters, cut at white space where there is some."""
    while end - start > longest:
        at = max(
            text.rfind(" ", start + longest // 2, start + longest),
            text.rfind("\n", start + longest // 2, start + longest),
        )
        at = start + longest if at < 0 else at
        if piece := sentences.trim(text, start, at):
            yield piece
        start = at
    if piece := sentences.trim(text, start, end):
        yield piece


def _packed(text: str, start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """A block whole where it fits, else as few runs of whole sentences as its size asks for."""
    if end - start <= longest:
        if piece := sentences.trim(text, start, end):
            yield piece
        return
    low = start
    edges = [*sentences.borders(text, start, end), end]
    for edge, following in zip(edges, [*edges[1:], end + longest + 1], strict=True):
        if following - low > longest:
            yield from _cut(text, low, edge, longest)
            low = edge


def units(text: str) -> list[Unit]:
    r"""Citable units of a passage, in order; they do not overlap and each has a word.

    Prose gives sentences. Where lines show a numpydoc or list form, a parameter with its description, a list item, and a doctest with its
    output are one unit each: half a description answers nothing, and its type line alone even less.

    Examples
    --------
    >>> text = "Sort it. Or not.\n\nParameters\n----------\nkey : callable\n    Applied to the values\n    before sorting.\n"
    >>> [(unit.kind, text[unit.start : unit.end]) for unit in units(text)]
    [('sentence', 'Sort it.'), ('sentence', 'Or not.'), ('entry', 'key : callable\n    Applied to the values\n    before sorting.')]
    """
    found: list[Unit] = []
    for block in _blocks(text):
        if block.kind == "prose":
            spans = (
                piece
                for low, high in sentences.spans(text, block.start, block.end)
                for piece in _cut(text, low, high, MAX_SENTENCE)
            )
            found += [Unit(low, high, "sentence") for low, high in spans]
        else:
            found += [
                Unit(low, high, block.kind)
                for low, high in _packed(text, block.start, block.end, MAX_ENTRY)
            ]
    return [unit for unit in found if any(map(str.isalnum, text[unit.start : unit.end]))]
