"""Which parts of a document are sentences, and which are code, tables, parameter lists and headings.

Belongs here: telling them apart, line by line, for plain text, Markdown, reStructuredText and docstrings. What is no sentence is skipped by
the topic-shift check: it has another vocabulary and another grammar than the prose around it, in honest documents too.
"""

import dataclasses
import re
from collections.abc import Iterator

from rag_eval.corpus import sentences

LEAST_WORDS = 3
MOST_CHARACTERS = 2_000
"""A longer run without a sentence's end is no sentence that a form could be told of; it is cut here."""

_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
_WORD = re.compile(r"[^\W\d_]{2,}")
_FENCE = re.compile(r"\s{0,12}(?:```|~~~)")
_BULLET = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+")
_RULE = re.compile(r"\s*([=\-~^\"'`#*+_.:])\1{2,}\s*\Z")
_NOT_PROSE = re.compile(
    r"\s*(?:#{1,6}\s|\.\.\s|\||\+[-=]|:[\w .-]{1,60}:|\$\s|In \[\d+\]|Out\[\d+\]|https?://\S+\s*\Z|[=\-]{3,}\s)"  # heading, directive, table, field, shell, notebook, link, rule
    r"|\s*[*`]{0,2}[\w.\[\]]{1,80}[*`]{0,2}(?:, *[*`]{0,2}[\w.\[\]]{1,80}[*`]{0,2}){0,12}\s?:(?:\s|\Z)"  # name : type
    r"|\s*(?:import|from|def|class|return|with|for|if|elif|else|try|except|raise|assert|while)\b[^.?!]{0,400}(?::|\bimport\b.{0,400})\s*\Z"  # code without a fence
)
_LIKE_A_SENTENCE = re.compile(r"[^\W\d_][^|]*[a-zà-ÿ]{2,}[ ,;][^|]*[.?!:][\"'”’)]*\s*\Z")
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


@dataclasses.dataclass(slots=True)
class _Run:
    """Lines of one paragraph so far."""

    start: int = 0
    end: int = 0
    indent: int = -1  # of the last line; -1: empty


def _stands_for_itself(line: str) -> bool:
    """Whether a line between output and code reads like a sentence all the same."""
    return bool(_LIKE_A_SENTENCE.match(line)) and len(_WORD.findall(line)) >= _SENTENCE_WORDS


def paragraphs(text: str) -> Iterator[tuple[int, int, bool]]:
    """Runs of prose lines as (start, end, whether a fenced block follows)."""
    lines = [(match.start(), match.end(), match[0].rstrip()) for match in _LINE.finditer(text) if match.end() > match.start()]
    fenced, output, literal = False, False, -1
    run = _Run()
    for i, (start, end, line) in enumerate(lines):
        stripped = line.lstrip()
        indent = len(line) - len(stripped)
        if _FENCE.match(line):
            if run.indent >= 0:
                yield run.start, run.end, not fenced
            run, fenced, output = _Run(), not fenced, False
            continue
        prompt = stripped.startswith((">>>", "..."))
        if not stripped:
            output = False
        elif literal >= 0 and indent <= literal:
            literal = -1
        heading = i + 1 < len(lines) and bool(stripped) and bool(_RULE.match(lines[i + 1][2])) and not _stands_for_itself(line)
        skipped = not stripped or fenced or prompt or heading or literal >= 0 or (output and not _stands_for_itself(line)) or bool(_RULE.match(line))
        if not skipped and not _BULLET.match(line):
            skipped = bool(_NOT_PROSE.match(line)) and not _stands_for_itself(stripped.partition(" : ")[0])
        if prompt:
            output = True
        if stripped.endswith("::"):
            literal = indent
        if skipped:
            if run.indent >= 0 and (stripped or i + 1 >= len(lines) or not _FENCE.match(lines[i + 1][2])):
                yield run.start, run.end, False
                run = _Run()
            continue
        bullet = _BULLET.match(line)
        level = bullet.end() if bullet else indent
        if run.indent >= 0 and (bullet or level != run.indent):
            yield run.start, run.end, False
            run = _Run()
        if run.indent < 0:
            run.start = start + level
        run.end, run.indent = start + len(line), level
    if run.indent >= 0:
        yield run.start, run.end, False


def sentences_of(text: str) -> list[Sentence]:
    """Sentences of a document in order: at least three words, at most MOST_CHARACTERS characters.

    Examples
    --------
    >>> text = "Sort the values.\\n\\nParameters\\n----------\\nby : str\\n    Name of the column to use.\\n"
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
