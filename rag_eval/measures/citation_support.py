"""Hold each sentence of an answer against the spans that it cites.

A sentence cites the spans of its markers. A sentence without a marker cites the spans that the
answer lists without one. Only the cited text counts, and `support` compares the words.
"""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rag_eval.core.types import Answer, CitedSpan, Evidence
from rag_eval.corpus import chunking as sentences
from rag_eval.corpus.analyzer import NUMBER_WORDS, WORD, Analyzer, DocumentFrequencies, numbers
from rag_eval.measures.contradiction import Conflict
from rag_eval.measures.support import BAR, Score, Verdict, groundedness

_IDLE = frozenset("a an the and or is are was were be been being has have had it its".split())
"""Words that two ways to say the same do not share."""
_JOINING = _IDLE | frozenset(
    "of in at to by for with from as that which who this these those they them their he she his "
    "her we our you your i there also must do does did can will would should one".split()
)
"""Words that a sentence may have beside those of its passage."""
_MOST_WORDS = 150
"""Most words of a sentence that are searched for an exchange, which takes quadratic time."""
_FRACTION = re.compile(r"(?<!\d)\d{1,9} of \d{1,9}(?!\d)")
_POSSESSIVE = re.compile(r"['’]s\b")
_SPELLED = {word: str(number) for number, word in enumerate(NUMBER_WORDS) if word != "one"}
"""Number words, without a word that seldom counts."""


class SentenceSupport(NamedTuple):
    """A sentence of an answer, held against the spans that it cites.

    `segment` is the number of the sentence, from 0. `places` are its citations among those of the
    answer; empty if it cites nothing. `score` in [0, 1] is its support by the cited text, or the
    verdict of a verifier, NaN if that failed. `passage` is the window of the cited text that
    supports it best, `conflict` what the window says otherwise, and `lacks` are words in a row that
    the cited text lacks.
    """

    segment: int
    text: str
    places: tuple[int, ...]
    score: float
    verdict: Verdict
    passage: str
    conflict: str
    lacks: tuple[str, ...] = ()

    @property
    def supported(self) -> bool:
        """Whether the cited text supports the whole sentence."""
        return self.verdict == "supported"


def citation_support(
    answers: Sequence[Answer],
    frequencies: DocumentFrequencies | None = None,
    score: Score | None = None,
    bar: float = BAR,
) -> list[list[SentenceSupport]]:
    """Score the sentences of every answer against the spans that they cite.

    Cited spans support a sentence together. A sentence that holds several items of a list is as
    good as its weakest item. Sentences without a content word, and a single word before a list
    ("Reasons:"), state nothing and are left out. `score` is a verifier, which replaces the
    comparison of words. A list with an item without verdict has none.
    """
    listed = [_list_sentences(answer) for answer in answers]
    flat = list(itertools.chain.from_iterable(listed))
    texts = [sentence.cited for sentence in flat]
    scored = groundedness([sentence.text for sentence in flat], texts, frequencies)
    verdicts: list[Verdict] = [support.verdict(bar) for support in scored.supports]
    if score is not None:
        cited = ["\n\n".join(texts[at]) for at in scored.answer_of.tolist()]
        scored = scored.rescored(score(scored.sentences, cited))
        verdicts = ["supported" if high else "unsupported" for high in scored.score >= BAR]
    weakest: dict[int, SentenceSupport] = {}
    rank = np.nan_to_num(scored.score, nan=-1.0)
    for part in np.argsort(rank, kind="stable").tolist():
        at, support = int(scored.answer_of[part]), scored.supports[part]
        if support.n_words > scored.sentences[part].endswith(":") and at not in weakest:
            weakest[at] = SentenceSupport(
                *flat[at][:3],
                score=float(scored.score[part]),
                verdict=verdicts[part],
                passage=support.window,
                conflict="; ".join(map(_describe_conflict, support.conflicts)),
                lacks=support.lacks,
            )
    row = itertools.count()
    return [
        [weakest[at] for at in itertools.islice(row, len(part)) if at in weakest] for part in listed
    ]


def _describe_conflict(conflict: Conflict) -> str:
    """Say what the evidence says otherwise, as `"closes", the evidence says "opens"`."""
    instead = f'says "{conflict.evidence}"' if conflict.evidence else "does not say so"
    return f'"{conflict.sentence}", the evidence {instead}'


def missing_words(sentence: str, passage: str) -> list[str]:
    """Return the words and numbers of a sentence that a passage lacks, by their stems.

    Examples
    --------
    >>> missing_words("It lasts 12 hours, or thirteen days.", "The battery lasts twelve hours.")
    ['13', 'days']
    """
    stem = Analyzer().stem
    offered = {stem(word) for word in WORD.findall(_POSSESSIVE.sub("", passage.lower()))}
    words = WORD.findall(_POSSESSIVE.sub("", sentence))
    return [
        *(_quantities(sentence) - _quantities(passage)),
        *(
            word
            for word in words
            if not word.isdigit() and word.lower() not in _JOINING | _SPELLED.keys()
            if stem(word.lower()) not in offered
        ),
    ]


def exchanged_words(sentence: str, passage: str) -> tuple[str, str] | None:
    """Find two groups of words that a sentence has in each other's places of a passage.

    Of both texts, only the words that they share count, in their order, without articles,
    auxiliaries and "and". An exchange is `A m B` in place of `B m A`. Without a word m, a part only
    moved. A passive (another number of "by") exchanges the groups rightly.

    Examples
    --------
    >>> exchanged_words("Oslo paid 20 crowns to Bergen.", "Bergen paid 20 crowns to Oslo.")
    ('oslo', 'bergen')
    >>> exchanged_words("20 crowns were paid to Oslo by Bergen.", "Bergen paid 20 crowns to Oslo.")
    """
    stem = Analyzer().stem
    here, there = (
        [stem(word) for word in WORD.findall(text.lower()) if word not in _IDLE]
        for text in (sentence, passage)
    )
    here = here[:_MOST_WORDS]
    if here.count("by") != there.count("by"):
        return None
    shared = Counter(here) & Counter(there)
    here, there = (_take(words, shared) for words in (here, there))
    if here == there:
        return None
    same = [left == right for left, right in zip(here, there, strict=True)]
    low, high = same.index(False), len(same) - same[::-1].index(False)
    before, after = here[:low], here[high:]
    here, there = here[low:high], there[low:high]
    for a in range(1, len(here) - 1):
        for b in range(1, len(here) - a):
            middle = here[a:-b]
            # `A m B m` in place of `B m A m` moves clauses
            repeats = middle in (before[-len(middle) :], after[: len(middle)])
            if not repeats and there == here[-b:] + middle + here[:a]:
                return " ".join(here[:a]), " ".join(here[-b:])
    return None


def _take(words: Sequence[str], counts: Mapping[str, int]) -> list[str]:
    """Take the first words of each kind, as many as counted."""
    left = dict(counts)
    taken = []
    for word in words:
        if left.get(word, 0):
            left[word] -= 1
            taken.append(word)
    return taken


def _quantities(text: str) -> Counter[str]:
    """Count the numbers of a text, also of number words, and its fractions such as `3 of 5`."""
    spelled = (_SPELLED.get(word) for word in WORD.findall(text.lower()))
    return Counter([*numbers(text), *filter(None, spelled), *_FRACTION.findall(text)])


class _Sentence(NamedTuple):
    segment: int
    text: str
    places: tuple[int, ...]
    cited: list[str]


def _list_sentences(answer: Answer) -> list[_Sentence]:
    """List the sentences of an answer with the citations of each, and the cited texts."""
    marked: dict[int, list[int]] = {}
    for place, span in enumerate(answer.citations):
        marked.setdefault(span.segment, []).append(place)
    texts = [_read_span(span, answer.evidence) for span in answer.citations]
    found = []
    for segment, (start, end) in enumerate(sentences.segments(answer.text)):
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
    if start <= 0 and len(chunk.text) <= end:
        return chunk.text
    touched = [part for part in sentences.spans(chunk.text) if part[0] < end and start < part[1]]
    return chunk.text[touched[0][0] : touched[-1][1]] if touched else ""
