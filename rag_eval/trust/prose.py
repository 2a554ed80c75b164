"""Which parts of a document are sentences, and which are code, tables, parameter lists and headings.

Belongs here: telling them apart, line by line, for plain text, Markdown, reStructuredText and docstrings. What is no sentence is skipped by
the topic-shift check: it has another vocabulary and another grammar than the prose around it, in honest documents too. Linear in the text.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator

from rag_eval.corpus import sentences

LEAST_WORDS = 3
MOST_CHARACTERS = 2_000
"""A longer run without a sentence's end is no sentence whose form could be told; it is read up to here."""

_LINE = re.compile(r"[^\r\n]*+(?:\r\n?|\n|\Z)")
_WORD = re.compile(r"[^\W\d_]{2,}")
_FENCE = ("```", "~~~")
_PROMPT = (">>>", "...", "$ ")
_BULLET = re.compile(r"(?:[-*+•]|\d{1,3}[.)])\s++")
_RULE = re.compile(r"([=\-~^\"'`#*+_.:])\1{2,}+\Z")
_LITERAL = re.compile(
    r"\.\. (?:\[|(?:code|math|ipython|parsed-literal|plot|testcode|testoutput|doctest|prompt|list-table|csv-table|table|image|figure)\b)"
)
_MARKUP = re.compile(
    r"#{1,6}\s|\.\.\s|\||\+[-=]|:[\w .-]{1,60}:|In \[\d|Out\[\d|https?://\S++\Z|[=\-]{3,}\s"
)
_NAMES = re.compile(
    r"[*`]{0,2}[\w.\[\]]{1,80}+[*`]{0,2}(?:, {0,4}[*`]{0,2}[\w.\[\]]{1,80}+[*`]{0,2}){0,12}\s?:(?:\s|\Z)"
)
_CODE = frozenset(
    "import from def class return with for if elif else: try: except except: raise assert while".split()
)
_CLOSERS = "\"'”’»)]*_"
_SENTENCE_WORDS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a document.

    Parameters
    ----------
    start, end
        Its characters in the document.
    introduces_code
        Whether a fenced block of code follows it.
    """

    start: int
    end: int
    introduces_code: bool


def _stands_for_itself(line: str) -> bool:
    """Whether a line reads like a sentence even where none is expected, as between a doctest and its output."""
    bullet = _BULLET.match(line)
    line = line[bullet.end() :] if bullet else line
    return (
        line[:1].isalpha()
        and "|" not in line
        and line.rstrip(_CLOSERS)[-1:] in {".", "?", "!", ":"}
        and len(_WORD.findall(line[:MOST_CHARACTERS])) >= _SENTENCE_WORDS
    )


def _is_code(line: str) -> bool:
    """Whether a line is code though nothing fences it."""
    return line.split(maxsplit=1)[0] in _CODE and (
        line.endswith((":", ")", "*")) or " import " in line or line.startswith("import ")
    )


def _skipped(line: str, following: str) -> bool:
    """Whether a line, stripped, is no prose: markup, a parameter, code, a heading or the rule below one."""
    if _BULLET.match(line):
        return False
    if _RULE.match(line) or _MARKUP.match(line) or _is_code(line):
        return True
    if _NAMES.match(line) and not line.endswith("?"):
        return True
    return bool(_RULE.match(following)) and not _stands_for_itself(line)


def paragraphs(text: str) -> Iterator[tuple[int, int, bool]]:
    """Runs of prose lines as (start, end, whether a fenced block follows)."""
    fenced, output = False, False
    literal = -1  # indentation of what introduced a literal block; -1 outside
    start, end, level = 0, 0, -1  # the run so far; level -1: there is none
    ends = itertools.chain(_LINE.finditer(text), [None])
    match = next(ends)
    while match is not None:
        following = next(ends)
        line = match[0].strip()
        indent = len(match[0]) - len(match[0].lstrip())
        below = following[0].strip() if following else ""
        opens = line.startswith(_FENCE)
        literal = -1 if line and indent <= literal else literal
        if opens or not line:
            output = False
        skip = (
            opens
            or not line
            or fenced
            or literal >= 0
            or line.startswith(_PROMPT)
            or (output and not _stands_for_itself(line))
            or _skipped(line, below)
        )
        output = output or line.startswith(_PROMPT)
        if (
            line
            and literal < 0
            and (_LITERAL.match(line) or (line.endswith("::") and not line.startswith(".. ")))
        ):
            literal = indent
        if skip:
            if level >= 0 and (
                line or not below.startswith(_FENCE)
            ):  # a blank line may stand before a fence
                yield start, end, opens and not fenced
                level = -1
        else:
            bullet = _BULLET.match(line)
            here = indent + (bullet.end() if bullet else 0)
            if level >= 0 and (bullet or here != level):
                yield start, end, False
                level = -1
            if level < 0:
                start, level = match.start() + here, here
            end = match.start() + indent + len(line)
        fenced ^= opens
        match = following
    if level >= 0:
        yield start, end, False


def sentences_of(text: str) -> list[Sentence]:
    r"""Sentences of a document in order: at least three words, at most MOST_CHARACTERS characters.

    Examples
    --------
    >>> text = "Sort the values.\n\nParameters\n----------\nby : str\n    Name of the column to use.\n"
    >>> [text[its.start:its.end] for its in sentences_of(text)]
    ['Sort the values.', 'Name of the column to use.']
    """
    found = []
    for start, end, before_code in paragraphs(text):
        spans = sentences.spans(text, start, end)
        last = len(spans) - 1
        for i, (low, high) in enumerate(spans):
            cut = min(high, low + MOST_CHARACTERS)
            if len(_WORD.findall(text, low, cut)) >= LEAST_WORDS:
                found.append(Sentence(low, cut, before_code and i == last))
    return found
