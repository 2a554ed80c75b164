"""What a question looks like, and whether words in a text stand there as a heading or in running text.

Belongs here: wh-words, headings of Markdown, reST and HTML, FAQ labels, lines of their own. All searches look at one line of bounded
length around the words, so that their cost does not grow with the document.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

Asking = Literal["wording", "mark", ""]
Form = Literal["heading", "running"]

WH_WORDS = frozenset("who whom whose what which when where why how whats whos".split())
AUXILIARIES = frozenset(
    "is are was were am do does did can could should would will shall may might must has have had isn aren don doesn didn can couldn".split()
)
_OTHER_LANGUAGES = frozenset(
    "wer wen wem wessen was welche welcher welches welchen wann wo wohin woher warum weshalb wie wieso "
    "qui que quoi quel quelle quels quelles quand où pourquoi comment combien "
    "quién quien qué cuál cuáles cuándo dónde cómo cuánto cuántos cuántas "
    "chi cosa quale quali quando dove perché quanto quanti".split()
)

OPENERS = WH_WORDS | AUXILIARIES | _OTHER_LANGUAGES
_MARKS = ("?", "？", "؟")

LINE = 1_000
"""Characters on each side that a line is looked for in; a longer line is running text."""
_SPARE_WORDS = 3
_PAGE = 3
_SENTENCE = re.compile(r"[^.!?。？؟\n]++[.!?。？؟\n]?+")
_OPENING = re.compile(
    r"(?:<(?:h[1-6]|summary|dt|th|strong|b|caption|legend|label)\b[^<>]{0,200}>|\*\*|__)[^\w<>]{0,8}(?:\d{1,3}[.)]?[^\w<>]{0,4}|(?:q|question|frage|pregunta|faq)\b[^\w<>]{0,6}\d{0,3}[^\w<>]{0,4})?\Z",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    r"[^\w<>]{0,4}?(?:\*\*|__|</(?:h[1-6]|summary|dt|th|strong|b|caption|legend|label)\b)",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"(?:\A|[\s>*_#|])(?:q|question|frage|pregunta|domanda|faq)[^\w\n]{0,3}\d{0,3}[*_]{0,2}\s{0,2}[:.)][*_\s\"'“‘]{0,6}\Z",
    re.IGNORECASE,
)
_ANSWER = re.compile(
    r"(?<!\w)(?:a|answer|antwort|réponse|respuesta)[*_]{0,2}\s{0,2}:", re.IGNORECASE
)
_LINK = re.compile(r"\]\([^()\n]{0,400}\)|<[^<>\n]{0,400}>")
_WORD = re.compile(r"[^\W_]+")
_OPENERS_OF_SENTENCES = " \t\"'“‘«([¿*_#>|-"
_UNDERLINE = re.compile(r"\n[ \t]{0,3}([=~^\"'+#`*-])\1{2,200}[ \t\r]{0,9}(?:\n|\Z)")
_CLOSERS = " \t*_\"'”’»)]"


class Place(NamedTuple):
    """How words stand in a text: their form, whether a question mark follows, other words follow in their line, they begin a sentence."""

    form: Form
    marked: bool
    followed: bool
    begins: bool


def asks(words: Sequence[str], text: str) -> Asking:
    """Tell how a text asks: by its wording, by a question mark only, or not at all.

    Parameters
    ----------
    words
        Its words, in any case.
    text
        The text itself.

    Examples
    --------
    >>> asks(["how", "deep", "is", "it"], "how deep is it"), asks(["it", "is", "deep"], "It is deep?"), asks(["the", "deepest", "lake"], "the deepest lake")
    ('wording', 'mark', '')
    """
    lowered = [word.lower() for word in words]
    marked = text.rstrip(_CLOSERS + "\n").endswith(_MARKS)
    if lowered and (
        lowered[0] in OPENERS or (marked and not (WH_WORDS | _OTHER_LANGUAGES).isdisjoint(lowered))
    ):
        return "wording"
    return "mark" if marked else ""


def place(text: str, start: int, end: int) -> Place:
    r"""Tell how text[start:end] stands in a text.

    A heading is a line with `#` or an underline and at most three other words; a line of its own, with a list mark, a number or nothing
    before it and no word behind; what stands alone between the tags or stars of a heading; and what a label (`Q:`, `Question 3.`)
    introduces.

    Examples
    --------
    >>> place("## Why is it so?\n\nBecause.", 3, 15).form
    'heading'
    >>> place("Why is it so? Because.", 0, 12).form
    'running'
    """
    low, high = max(start - LINE, 0), min(end + LINE, len(text))
    line_start = max(
        text.rfind("\n", low, start) + 1, low
    )  # low itself where the line began before it
    broken = text.find("\n", end, high)
    line_end = high if broken < 0 else broken
    before, after = text[line_start:start], text[end:line_end]
    marked = after.lstrip(_CLOSERS).startswith(_MARKS)
    answer = _ANSWER.search(after)
    rest = _LINK.sub(" ", after[: answer.start()] if answer else after)
    followed = bool(_WORD.search(rest))
    begins = not before.rstrip(_OPENERS_OF_SENTENCES) or before.rstrip(
        _OPENERS_OF_SENTENCES
    ).endswith((".", "!", "?", "…", ":", ";", "。"))
    if _LABEL.search(before[-40:]) and (marked or not followed):
        return Place("heading", marked, followed, begins)
    if _OPENING.search(before[-240:]) and _CLOSING.match(after):
        return Place("heading", marked, followed, begins)
    ahead, behind = len(_WORD.findall(_LINK.sub(" ", before))), len(_WORD.findall(rest))
    hashed = before.lstrip().startswith("#") or bool(_UNDERLINE.match(text, line_end))
    whole = (
        "\n" not in text[start:end].strip()
        and (line_start > low or low == 0)
        and (broken >= 0 or high == len(text))
    )
    own = whole and ahead <= _SPARE_WORDS and behind <= (_SPARE_WORDS if hashed else 0)
    return Place("heading" if own else "running", marked, followed, begins)


def page_of_questions(text: str) -> bool:
    """Whether a text asks and answers several questions, as a FAQ page does whose line ends were lost.

    That is: three different sentences that begin with a question's first word, end with a question mark and are followed by another
    sentence. Reads the text once.

    Examples
    --------
    >>> page_of_questions("What is it? A tool. How much is it? It is free. Who made it? We did.")
    True
    """
    questions, previous = set[str](), ""
    for match in _SENTENCE.finditer(text):
        words = _WORD.findall(match[0][:LINE])
        if not words:
            continue
        marked = match[0].endswith(_MARKS)
        if previous and not marked:
            questions.add(previous)
        previous = " ".join(words).lower() if marked and words[0].lower() in OPENERS else ""
    return len(questions) >= _PAGE
