"""Hold each sentence of an answer against the spans that it cites.

A sentence cites the spans of its markers. A sentence without a marker cites the spans that the
answer lists without one. Only the cited text counts, and `groundedness` compares the words.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from rag_eval.core.arrays import FloatArray
from rag_eval.core.types import CitedSpan, Evidence
from rag_eval.corpus import chunking as sentences
from rag_eval.corpus.analyzer import WORD, Analyzer, DocumentFrequencies
from rag_eval.measures.groundedness import (
    FUNCTION_WORDS,
    NUMBER_WORDS,
    SUPPORTED,
    comparable,
    groundedness,
    numbers,
)

_FEW = 2
"""Sentences with at most this number of content words need all words in the cited text."""
_WHOLE = 0.999
_POSSESSIVE = re.compile(r"['’]s\b")
_SPELLED = {word: str(number) for number, word in enumerate(NUMBER_WORDS)}


class Cited(Protocol):
    """An answer: text without marks, citations by sentence of the text, and their evidence."""

    @property
    def text(self) -> str: ...  # noqa: D102

    @property
    def citations(self) -> tuple[CitedSpan, ...]: ...  # noqa: D102

    @property
    def evidence(self) -> tuple[Evidence, ...]: ...  # noqa: D102


class SentenceSupport(NamedTuple):
    """A sentence of an answer, held against the spans that it cites.

    `segment` is the number of the sentence, from 0. `places` are its citations among those of the
    answer; empty if it cites nothing. `score` in [0, 1] is its groundedness in the cited text, and
    `passage` the window of the cited text that supports it best.
    """

    segment: int
    text: str
    places: tuple[int, ...]
    score: float
    supported: bool
    passage: str


def citation_support(
    answers: Sequence[Cited],
    frequencies: DocumentFrequencies | None = None,
    score: Callable[[list[str], list[str]], FloatArray] | None = None,
) -> list[list[SentenceSupport]]:
    """Score the sentences of every answer against the spans that they cite.

    Cited spans support a sentence together. A sentence that holds several items of a list is as
    good as its weakest item. A sentence of one or two content words needs all of them. Sentences
    without a content word, and a single word before a list ("Reasons:"), state nothing and are left
    out. `score` is a verifier of (sentences, cited texts), which replaces the comparison of words;
    sentences without its verdict, NaN, are left out.
    """
    listed = [_list_sentences(answer) for answer in answers]
    flat = list(itertools.chain.from_iterable(listed))
    found = groundedness([one.text for one in flat], [one.cited for one in flat], frequencies)
    leads_in = np.array([part.endswith(":") for part in found.sentences], dtype=bool)
    states = found.n_words > leads_in
    holds = found.score >= np.where(found.n_words <= _FEW, _WHOLE, SUPPORTED)
    if score is not None:
        cited = ["\n\n".join(flat[at].cited) for at in found.answer_of.tolist()]
        found = found.rescored(score(found.sentences, cited))
        states &= ~np.isnan(found.score)
        holds = found.score >= SUPPORTED
    weakest: dict[int, int] = {}
    for part in np.flatnonzero(states).tolist():
        at = int(found.answer_of[part])
        if found.score[part] < found.score[weakest.setdefault(at, part)]:
            weakest[at] = part
    judged = {
        at: SentenceSupport(
            flat[at].segment,
            flat[at].text,
            flat[at].places,
            score=float(found.score[part]),
            supported=bool(holds[part]),
            passage=found.window[part],
        )
        for at, part in weakest.items()
    }
    row = itertools.count()
    return [
        [judged[at] for at in itertools.islice(row, len(own)) if at in judged] for own in listed
    ]


def missing_words(sentence: str, passage: str) -> list[str]:
    """Return the content words and numbers of a sentence that a passage lacks, by their stems.

    Examples
    --------
    >>> missing_words("It lasts 12 hours, or thirteen days.", "The battery lasts twelve hours.")
    ['thirteen', 'days']
    """
    analyzer = Analyzer()
    known = set(analyzer.index([comparable(passage)])[0])
    quantities = _quantities(passage)
    plain = _POSSESSIVE.sub("", comparable(sentence))
    words = [word for word in WORD.findall(plain) if not word.isdigit()]
    rows = analyzer.index(words)
    missing = [number for number in numbers(sentence) if number not in quantities]
    for word, ids in zip(words, rows, strict=True):
        if word.lower() in _SPELLED:
            lacks = _SPELLED[word.lower()] not in quantities
        else:
            lacks = word.lower() not in FUNCTION_WORDS and not known.issuperset(ids)
        if lacks:
            missing.append(word)
    return missing


def _quantities(text: str) -> set[str]:
    """Return the numbers of a text, also of number words."""
    spelled = (_SPELLED.get(word) for word in WORD.findall(text.lower()))
    return {*numbers(text), *filter(None, spelled)}


class _Sentence(NamedTuple):
    segment: int
    text: str
    places: tuple[int, ...]
    cited: list[str]


def _list_sentences(answer: Cited) -> list[_Sentence]:
    """List the sentences of an answer with the citations of each, and the cited texts."""
    marked: dict[int, list[int]] = {}
    for place, span in enumerate(answer.citations):
        marked.setdefault(span.segment, []).append(place)
    texts = [_read_span(span, answer.evidence) for span in answer.citations]
    found = []
    for segment, (start, end) in enumerate(sentences.spans(answer.text)):
        places = tuple(marked.get(segment, marked.get(-1, ())))
        cited = [texts[place] for place in places]
        found.append(_Sentence(segment, answer.text[start:end], places, cited))
    return found


def _read_span(span: CitedSpan, evidence: Sequence[Evidence]) -> str:
    """Return the whole sentences that a citation touches; empty for a fabricated citation."""
    if not 0 <= span.evidence < len(evidence):
        return ""
    chunk = evidence[span.evidence].chunk
    start, end = span.start - chunk.offsets.start, span.end - chunk.offsets.start
    touched = [one for one in sentences.spans(chunk.text) if one[0] < end and start < one[1]]
    return chunk.text[touched[0][0] : touched[-1][1]] if touched else ""
