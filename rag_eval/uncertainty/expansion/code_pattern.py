"""Code patterns: other writings of identifiers and compounds that the corpus has: `sortValues`, `sort_values`, `sort values`, `IL6`, `IL-6`.

The analyzer takes `sort_values` and `sort values` for the same two terms, but `sortvalues`, `DataFrame` or `IL6` for one. So each run of letters and digits is
cut where case or digits change, neighbours are joined, and common affixes are put on and taken off; what is a term of the corpus and not yet of the question
is added.
"""

import itertools
import re
from collections.abc import Iterator, Sequence

from rag_eval.uncertainty.expansion.context import ExpansionContext, IntArray
from rag_eval.uncertainty.expansion.words import MAX_QUESTION_CHARS, MAX_WORD_CHARS, CorpusWords

MOST = 8
JOINED = 3
"""Neighbours that are joined at most."""
MAX_CANDIDATES = 300
"""Writings, and words with affixes, that are looked up for one question: the analyzer remembers every word it is asked for."""
MIN_JOINED_CHARS = 3
MIN_STEM_CHARS = 4
_RUN = re.compile(r"[^\W_]+")
_PART = re.compile(r"[A-Z]+(?![^\W\d_A-Z])|[A-Z]?[^\W\d_A-Z]+|\d+")
PREFIXES = (
    "anti",
    "auto",
    "bi",
    "co",
    "de",
    "dis",
    "hyper",
    "hypo",
    "in",
    "inter",
    "is",
    "micro",
    "multi",
    "non",
    "over",
    "poly",
    "post",
    "pre",
    "re",
    "sub",
    "to",
    "un",
    "up",
)
SUFFIXES = ("able", "al", "er", "ing", "ity", "ion", "ive", "less", "ness", "or", "s")


def parts(word: str) -> tuple[str, ...]:
    """Cut a run of letters and digits where case or digits change.

    Examples
    --------
    >>> parts("readCSVFile2"), parts("IL6")
    (('read', 'CSV', 'File', '2'), ('IL', '6'))
    """
    return tuple(_PART.findall(word[:MAX_WORD_CHARS]))


def runs_of(question: str) -> list[str]:
    """Runs of letters and digits of a question, as written; longer ones than a word can be are left out."""
    return [
        run for run in _RUN.findall(question[:MAX_QUESTION_CHARS]) if len(run) <= MAX_WORD_CHARS
    ]


def is_identifier(run: str) -> bool:
    """Whether a run changes case or between letters and digits within, as identifiers do."""
    return len(parts(run)) > 1


def _writings(runs: Sequence[str]) -> Iterator[str]:
    """Candidate writings, those of single words first."""
    for run in runs:
        cut = parts(run)
        if len(cut) > 1:
            yield " ".join(cut)
            yield from ("".join(cut[: at + 1]) for at in range(1, len(cut) - 1))
    for size in range(2, JOINED + 1):
        for start in range(len(runs) - size + 1):
            joined = "".join(runs[start : start + size])
            if MIN_JOINED_CHARS <= len(joined) <= MAX_WORD_CHARS and not joined.isdecimal():
                yield joined


def _affixed(run: str) -> Iterator[str]:
    """A word with common affixes put on or taken off."""
    word = run.lower()
    yield from (
        word[len(prefix) :]
        for prefix in PREFIXES
        if word.startswith(prefix) and len(word) - len(prefix) >= MIN_STEM_CHARS
    )
    yield from (
        word[: -len(suffix)]
        for suffix in SUFFIXES
        if word.endswith(suffix) and len(word) - len(suffix) >= MIN_STEM_CHARS
    )
    if len(word) >= MIN_STEM_CHARS:
        yield from (prefix + word for prefix in PREFIXES)
        yield from (word + suffix for suffix in SUFFIXES)


def expand(context: ExpansionContext, which: IntArray) -> list[str | None]:
    """Add the corpus's writings of each question's identifiers and compounds; affixes only for words that the corpus does not have as written."""
    questions = context.asked(which)
    return context.words.widened(
        questions, [_found(context.words, question) for question in questions]
    )


def _found(words: CorpusWords, question: str) -> list[int]:
    runs = runs_of(question)
    own = words.table.query_terms(runs)
    held = {term for row in own for term in row}
    unknown = [
        run
        for run, row in zip(runs, own, strict=True)
        if row
        and all(term >= words.space.n_terms or not words.space.frequency[term] for term in row)
    ]
    writings, affixed = _writings(runs), (other for run in unknown for other in _affixed(run))
    candidates = [
        *itertools.islice(writings, MAX_CANDIDATES),
        *itertools.islice(affixed, MAX_CANDIDATES),
    ]
    added: dict[int, None] = {}
    for row in words.table.query_terms(candidates):
        if row and all(term < words.space.n_terms and words.surface[term] for term in row):
            added.update(dict.fromkeys(term for term in row if term not in held))
    return list(added)[:MOST]
