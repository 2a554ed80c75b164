"""Where a text may be cut, for each kind of chunker: levels of borders from strong to weak.

Belongs here: what a parameter, a block, a paragraph or a line is. How pieces are put together is `chunking`.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from rag_eval.corpus import markdown, sections, sentences

_NEWLINE = r"(?:\r\n?+|\n)"
_PARAGRAPH = re.compile(rf"{_NEWLINE}(?:[^\S\r\n]*+{_NEWLINE})++")
_LINE = re.compile(_NEWLINE)
_SPACE = re.compile(r"\s++")
_TOKEN = re.compile(r"(?<=[\W_])(?=[^\W_])")
_PARAMETER = re.compile(rf"^(?=\S[^\r\n]*+{_NEWLINE}[ \t]++\S)", re.MULTILINE)
_PROMPT = re.compile(r"^(?=>>> )", re.MULTILINE)
_DEFINITION_LISTS = frozenset(
    {
        "parameters",
        "other parameters",
        "returns",
        "yields",
        "receives",
        "raises",
        "warns",
        "warnings",
        "attributes",
        "methods",
        "see also",
    }
)

Level = Callable[[str, int, int], list[int]]
"""A border finder: text, start, end -> rising offsets between them where a piece may begin."""


class Levels(NamedTuple):
    """Border finders from strong to weak, and the offset before which only the weakest two apply: a heading stays with what follows it."""

    finders: tuple[Level, ...]
    content: int


def _at(pattern: re.Pattern[str]) -> Level:
    def find(text: str, start: int, end: int) -> list[int]:
        return [match.end() for match in pattern.finditer(text, start, end)]

    return find


def _given(offsets: list[int]) -> Level:
    def find(text: str, start: int, end: int) -> list[int]:
        del text
        return [offset for offset in offsets if start < offset < end]

    return find


PARAGRAPHS, LINES, WORDS, TOKENS = _at(_PARAGRAPH), _at(_LINE), _at(_SPACE), _at(_TOKEN)
WEAKEST = (WORDS, TOKENS)
"""Between words; and, in a run without white space, before each word token, so that a chunk can always be made small enough."""


def of_numpydoc(text: str, start: int, end: int, heading: str) -> Levels:
    """Parameters, then paragraphs, prompts of examples, lines."""
    content = sections.numpydoc_content(text, start, end)
    parameters = (_at(_PARAMETER),) if heading.lower() in _DEFINITION_LISTS else ()
    return Levels(
        (*parameters, PARAGRAPHS, _at(_PROMPT), LINES, sentences.borders, *WEAKEST), content
    )


def of_markdown(text: str, start: int, end: int, heading: str) -> Levels:
    """Blocks of the document, then list items and other nested blocks, paragraphs, lines, sentences."""
    del heading
    blocks = markdown.blocks(text, start, end)
    return Levels(
        (_given(blocks.top), _given(blocks.nested), PARAGRAPHS, LINES, sentences.borders, *WEAKEST),
        blocks.content,
    )


def of_text(text: str, start: int, end: int, heading: str) -> Levels:
    """Paragraphs, then sentences."""
    del text, end, heading
    return Levels((PARAGRAPHS, sentences.borders, *WEAKEST), start)
