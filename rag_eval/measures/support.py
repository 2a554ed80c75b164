"""Score how far texts support a sentence, by words alone.

Groundedness gives the scorer all evidence of an answer, citation support the cited spans. Answers
that do not use what was retrieved (FK019) are found by it, and its bar is fitted to labels.
"""

import functools
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Literal, NamedTuple, get_args

import numpy as np

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.types import Answer, CitedSpan, Evidence
from rag_eval.corpus import chunking
from rag_eval.corpus.analyzer import (
    STOP_WORDS,
    WORD,
    Analyzer,
    DocumentFrequencies,
    numbers,
    spell_alike,
    words,
)
from rag_eval.corpus.markers import remove_marks
from rag_eval.measures.contradiction import FUNCTION_WORDS, Conflict, find_conflicts

# ---- The score of a sentence

WINDOW = 3
"""Number of evidence sentences in a window."""
BAR = 0.5
"""Score from which a sentence is supported."""
PAIRS = 0.5
"""Weight of the share of word pairs, over that of the share of words."""
MISSING = 0.5
"""Factor of the score if the evidence lacks a name or a number of the sentence."""
CONTRADICTED = 0.4
"""Factor of the score of a sentence with a conflict, so that it is not supported."""
INVENTED = 3
"""Least content words in a row that the texts lack, in a sentence that they support *partly*."""
_FEW, _WHOLE = 2, 0.999
"""A sentence of at most this number of content words needs this score."""
_COMPARED = 0.25
"""Least score at which conflicts are looked for: below it, the window is about something else."""
_SHORTEST_PART = 3
"""Least length of a part of an identifier: shorter parts are common aliases (df, ax, np)."""
_ROUNDING = 1e-9
_IDENTIFIER = re.compile(r"\w+")

Score = Callable[[list[str], list[str]], FloatArray]
"""A verifier: (sentences, evidence of each) -> probability of support, [n]; NaN if it fails."""
Verdict = Literal["supported", "partly", "unsupported"]


class Support(NamedTuple):
    """How far texts support a sentence."""

    score: float
    """In [0, 1]; NaN for a sentence without a content word."""
    n_words: int
    """Number of distinct content words."""
    window: str
    """The three consecutive sentences of the texts with most of the words; empty without words."""
    conflicts: list[Conflict]
    """What the sentence says otherwise than its window."""
    lacks: tuple[str, ...]
    """Content words, as they are spelled, of runs of three or more that the texts lack."""

    def reaches(self, bar: float) -> bool:
        """Tell whether the score reaches a bar; one or two content words must all be there."""
        return self.score >= (_WHOLE if self.n_words <= _FEW else bar)

    def verdict(self, bar: float = BAR) -> Verdict:
        """Judge the sentence; *partly* supported is one with a run of words that the texts lack."""
        if not self.reaches(bar):
            return "unsupported"
        return "partly" if self.lacks else "supported"


class _Passage(NamedTuple):
    """The sentences of texts in order, as one running text."""

    sentences: list[str]
    text: str
    places: Mapping[int, list[int]]
    """Sentences of each term."""
    pairs: set[tuple[int, int]]
    """Neighbours among the content words of a sentence, in either order."""
    numbers: set[str]

    def best_window(self, weights: Mapping[int, float]) -> tuple[float, int]:
        """Return the share of weight in the best window, and its first sentence.

        The first of equal windows counts.
        """
        last = max(len(self.sentences) - WINDOW, 0)
        sums = defaultdict[int, float](float)
        for term, weight in weights.items():
            ends = self.places.get(term, ())
            starts = {start for end in ends for start in range(end - WINDOW + 1, end + 1)}
            for start in {min(max(start, 0), last) for start in starts}:
                sums[start] += weight
        best = max(sums.values(), default=0.0)
        first = min((start for start in sums if sums[start] >= best - _ROUNDING), default=0)
        return best / sum(weights.values()), first


class _Scorer:
    """Scores sentences on texts by the terms of one analyzer."""

    def __init__(self, frequencies: DocumentFrequencies | None) -> None:
        self.analyzer, self.frequencies = Analyzer(), frequencies
        self.ignored = set(itertools.chain(*self.analyzer.index([" ".join(FUNCTION_WORDS)])))
        self.read = functools.lru_cache(maxsize=64)(self._read)
        self._names: list[str] = []

    def content_words(self, text: str) -> list[int]:
        """Return the terms of the content words in their order."""
        terms = self.analyzer.index([spell_alike(text)])[0]
        return [term for term in terms if term not in self.ignored]

    def weigh(self, terms: Sequence[int]) -> dict[int, float]:
        """Weigh terms by 1, or by their idf in the corpus as Lucene's BM25 has it.

        A term that the corpus lacks weighs like one in one text.
        """
        if self.frequencies is None or not self.frequencies.n_texts:
            return dict.fromkeys(terms, 1.0)
        n_texts, counts = self.frequencies
        if len(self._names) < len(self.analyzer.vocabulary):
            self._names = list(self.analyzer.vocabulary)
        n = {term: min(max(counts.get(self._names[term], 0), 1), n_texts) for term in terms}
        return {
            term: float(np.log1p((n_texts - n[term] + 0.5) / (n[term] + 0.5))) for term in terms
        }

    def _read(self, texts: tuple[str, ...]) -> _Passage:
        """Read texts, whose layout does not matter."""
        sentences = [text[start:end] for text in texts for start, end in chunking.spans(text)]
        places, pairs, figures = defaultdict[int, list[int]](list), set(), set[str]()
        alike = list(map(spell_alike, sentences))
        for at, row in enumerate(self.analyzer.index(alike)):
            pairs.update(_pairs([term for term in row if term not in self.ignored]))
            figures.update(numbers(alike[at]))
            for term in set(row):
                places[term].append(at)
        return _Passage(sentences, " ".join(sentences), dict(places), pairs, figures)

    def score(self, sentence: str, texts: Sequence[str]) -> Support:
        """Score a sentence, as `support` defines it."""
        passage, order = self.read(tuple(texts)), self.content_words(sentence)
        weights = self.weigh(order)
        if not sum(weights.values()):
            return Support(float("nan"), len(weights), "", [], ())
        share, first = passage.best_window(weights)
        pairs = _pairs(order) if len(weights) > _FEW else ()
        paired = {pair: weights[pair[0]] + weights[pair[1]] for pair in pairs}
        if paired:
            shared = sum(weight for pair, weight in paired.items() if pair in passage.pairs)
            share = (share + PAIRS * shared / sum(paired.values())) / (1 + PAIRS)
        names = itertools.chain(*self.analyzer.index([" ".join(_names(sentence))]))
        lacks_name = not passage.places.keys() >= set(names)
        lacks_number = not passage.numbers >= set(numbers(spell_alike(sentence)))
        score = share * (MISSING if lacks_name or lacks_number else 1.0)
        window = " ".join(passage.sentences[first : first + WINDOW])
        conflicts: list[Conflict] = []
        # a whole sentence of the texts says what they say
        if score >= _COMPARED and sentence.split() not in map(str.split, passage.sentences):
            conflicts = find_conflicts(sentence, window, passage.text)
            score = share * CONTRADICTED if conflicts else score
        return Support(score, len(weights), window, conflicts, self._find_runs(sentence, passage))

    def _find_runs(self, sentence: str, passage: _Passage) -> tuple[str, ...]:
        """Return the content words of runs of three or more that the passage lacks."""
        runs: list[list[str]] = [[]]
        for word in WORD.findall(sentence):
            terms = self.content_words(word)
            if terms and not passage.places.keys().isdisjoint(terms):
                runs.append([])
            elif terms:
                runs[-1].append(word)
        return tuple(itertools.chain(*(run for run in runs if len(run) >= INVENTED)))


def _pairs(terms: Sequence[int]) -> list[tuple[int, int]]:
    """Return the distinct pairs of neighbours, each in rising order."""
    return list(dict.fromkeys((min(pair), max(pair)) for pair in itertools.pairwise(terms)))


def _names(sentence: str) -> list[str]:
    """Find names: words with a capital, and the parts of identifiers with an underscore.

    A first word that is only capitalised counts for nothing.

    Examples
    --------
    >>> _names("The tower of Gustave Eiffel is drawn by `ax.plot_wireframe`.")
    ['Gustave', 'Eiffel', 'plot', 'wireframe']
    """
    every = WORD.findall(sentence)
    names = [word for word in every if len(word) > 1 and word != word.lower()]
    if names and names[0] == every[0] and every[0][1:].islower():
        del names[0]
    joined = (name.strip("_") for name in _IDENTIFIER.findall(sentence))
    parts = itertools.chain.from_iterable(name.split("_") for name in joined if "_" in name)
    names += [part for part in parts if len(part) >= _SHORTEST_PART and not part.isdigit()]
    return [name for name in names if name.lower() not in STOP_WORDS | FUNCTION_WORDS]


def support(
    sentences: Sequence[str],
    texts: Sequence[Sequence[str]],
    frequencies: DocumentFrequencies | None = None,
) -> list[Support]:
    """Score how far the texts of each sentence support it.

    The words of a sentence are its distinct words without stop and function words, its pairs the
    neighbours among them in either order. The score is two thirds of the share of the words in the
    best window of three consecutive sentences of the texts, and one third of the share of the pairs
    anywhere in the texts. The words alone count in a sentence of two words.
    The score is halved if the texts lack a name or a number of the sentence. A sentence that says
    otherwise than its window, as `find_conflicts` tells, keeps 0.4 of the score.
    Words weigh by `frequencies`, the counts of a corpus, a pair like the mean of its words. A score
    depends on no other sentence, and not on the layout of the texts.

    Examples
    --------
    >>> shown = ["The capital of France is Paris."]
    >>> sentences = ["France has the capital Paris.", "The capital of Germany is Berlin."]
    >>> [round(each.score, 2) for each in support(sentences, [shown, shown])]
    [0.83, 0.11]
    """
    scorer = _Scorer(frequencies)
    return [scorer.score(*pair) for pair in zip(sentences, texts, strict=True)]


# ---- Groundedness: the support of the sentences of answers by all evidence


class Groundedness(NamedTuple):
    """Scores of every answer sentence, [n_sentences], and of every answer, [n_answers]."""

    answer_of: IntArray
    """Answer of each sentence, rising."""
    sentences: list[str]
    supports: list[Support]
    score: FloatArray
    """Score of each sentence in [0, 1]; NaN for a sentence without a content word."""
    value: FloatArray
    """Mean score of each answer's sentences; NaN if no sentence has a score."""
    supported: FloatArray
    """Share of each answer's supported sentences, those *partly* supported left out; NaN likewise.
    """

    def rescored(self, score: FloatArray) -> "Groundedness":
        """Return the scores of a verifier, [n_sentences], instead of those of the words.

        Sentences without a content word keep NaN and do not count. Another NaN is a failed verdict,
        which leaves its answer without a value.
        """
        counts, n = ~np.isnan(self.score), len(self.value)
        reached = np.where(np.isnan(score), np.nan, score >= BAR)
        return self._replace(
            score=np.where(counts, score, np.nan),
            value=_average(self.answer_of, score, counts, n),
            supported=_average(self.answer_of, reached, counts, n),
        )


def answer_sentences(text: str) -> list[str]:
    r"""Split an answer without citation markers into its segments.

    Examples
    --------
    >>> answer_sentences("Two facts [1]:\n- Snow is white [2].\n- Coal is black.")
    ['Two facts:', 'Snow is white.', 'Coal is black.']
    """
    plain = remove_marks(text)
    parts = (plain[start:end] for start, end in chunking.segments(plain))
    return [sentence for sentence in parts if WORD.search(sentence)]


def groundedness(
    answers: Sequence[str],
    evidence: Sequence[Sequence[str]],
    frequencies: DocumentFrequencies | None = None,
    bar: float = BAR,
) -> Groundedness:
    """Score every sentence of every answer on the answer's evidence (see `support`)."""
    pieces = list(map(answer_sentences, answers))
    answer_of = np.repeat(np.arange(len(answers)), list(map(len, pieces)))
    sentences = list(itertools.chain.from_iterable(pieces))
    supports = support(sentences, [evidence[at] for at in answer_of.tolist()], frequencies)
    score = np.array([each.score for each in supports], dtype=np.float64)
    passes = np.array([each.verdict(bar) == "supported" for each in supports], dtype=np.float64)
    counts, n = ~np.isnan(score), len(answers)
    value, supported = (_average(answer_of, part, counts, n) for part in (score, passes))
    return Groundedness(answer_of, sentences, supports, score, value, supported)


def _average(answer_of: IntArray, values: FloatArray, counted: BoolArray, n: int) -> FloatArray:
    """Return the mean of the counted sentences of each answer, [n]."""
    owner = answer_of[counted]
    counts = np.bincount(owner, minlength=n).astype(np.float64)
    counts[counts == 0] = np.nan
    return np.asarray(np.bincount(owner, weights=values[counted], minlength=n) / counts)


# ---- Citation support: the support of the sentences of answers by the spans that they cite

_IDLE = frozenset("a an the and or is are was were be been being has have had it its".split())
"""Words that two ways to say the same do not share."""
_JOINING = _IDLE | frozenset(
    "of in at to by for with from as that which who this these those they them their he she his "
    "her we our us you your i there also must do does did can will would should one".split()
)
"""Words that a sentence may have beside those of its passage."""
_MOST_WORDS = 150
"""Most words of a sentence that are searched for an exchange, which takes quadratic time."""
_FRACTION = re.compile(r"(?<!\d)\d{1,9} of \d{1,9}(?!\d)")
_POSSESSIVE = re.compile(r"['’]s\b")


class SentenceSupport(NamedTuple):
    """A sentence of an answer, held against the spans that it cites.

    `segment` numbers the sentence from 0. `places` are its citations among those of the answer.
    `score` in [0, 1] is its support by the cited text, or the verdict of a verifier, NaN if that
    failed. `passage` is the window of the cited text that supports it best, `conflict` what the
    window says otherwise, and `lacks` are words in a row that the cited text lacks.
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

    def missing_words(self) -> list[str]:
        """Return the numbers and words that the passage lacks, by their stems."""
        stem = Analyzer().stem
        here, there = (_POSSESSIVE.sub("", spell_alike(part)) for part in (self.text, self.passage))
        offered = {stem(word) for word in WORD.findall(there.lower())}
        joining = (word for word in WORD.findall(here) if word.lower() not in _JOINING)
        lacking = [
            word for word in joining if not word.isdigit() and stem(word.lower()) not in offered
        ]
        return [*(_quantities(self.text) - _quantities(self.passage)), *lacking]

    def exchanged_words(self) -> tuple[str, str] | None:
        """Find two groups of words that the sentence has in each other's places of the passage.

        Of both texts, only the words that they share count, in their order, without articles,
        auxiliaries and "and". An exchange is `A m B` in place of `B m A`. Without a word m, a part
        only moved. A passive (another number of "by") exchanges the groups rightly.
        """
        stem = Analyzer().stem
        here, there = (
            [stem(word) for word in WORD.findall(text.lower()) if word not in _IDLE]
            for text in (self.text, self.passage)
        )
        here = here[:_MOST_WORDS]
        shared = Counter(here) & Counter(there)
        if here.count("by") != there.count("by"):
            return None
        here, there = _take(here, shared), _take(there, shared)
        differs = [at for at, pair in enumerate(zip(here, there, strict=True)) if len({*pair}) > 1]
        low, high = (differs[0], differs[-1] + 1) if differs else (0, 0)
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
    seen = Counter[str]()
    taken = []
    for word in words:
        seen[word] += 1
        if seen[word] <= counts.get(word, 0):
            taken.append(word)
    return taken


def _quantities(text: str) -> Counter[str]:
    """Count the numbers of a text, also of number words, and its fractions such as `3 of 5`."""
    return Counter([*numbers(spell_alike(text)), *_FRACTION.findall(text)])


def citation_support(
    answers: Sequence[Answer],
    frequencies: DocumentFrequencies | None = None,
    score: Score | None = None,
    bar: float = BAR,
) -> list[list[SentenceSupport]]:
    """Score the sentences of every answer against the spans that they cite.

    A sentence cites the spans of its markers, else the spans that the answer lists without one,
    which support it together. One that holds several items of a list is as good as its weakest
    item. Sentences that state nothing, such as "Reasons:", are left out. `score` is a verifier,
    which replaces the comparison of words.
    """
    rows = [(at, *row) for at, answer in enumerate(answers) for row in _cited_texts(answer)]
    scored = groundedness([row[2] for row in rows], [row[4] for row in rows], frequencies)
    verdicts: list[Verdict] = [support.verdict(bar) for support in scored.supports]
    if score is not None:
        cited = ["\n\n".join(rows[at][4]) for at in scored.answer_of.tolist()]
        scored = scored.rescored(score(scored.sentences, cited))
        verdicts = ["supported" if high else "unsupported" for high in scored.score >= BAR]
    weakest: dict[int, SentenceSupport] = {}
    for part in np.argsort(np.nan_to_num(scored.score, nan=-1.0), kind="stable").tolist():
        at, support = int(scored.answer_of[part]), scored.supports[part]
        if support.n_words > scored.sentences[part].endswith(":") and at not in weakest:
            weakest[at] = SentenceSupport(
                *rows[at][1:4],
                score=float(scored.score[part]),
                verdict=verdicts[part],
                passage=support.window,
                conflict="; ".join(map(str, support.conflicts)),
                lacks=support.lacks,
            )
    sentences: list[list[SentenceSupport]] = [[] for _ in answers]
    for at in sorted(weakest):
        sentences[rows[at][0]].append(weakest[at])
    return sentences


def _cited_texts(answer: Answer) -> list[tuple[int, str, tuple[int, ...], list[str]]]:
    """List (number, sentence, its citations by place, the cited texts) of an answer."""
    marked: dict[int, list[int]] = {}
    for place, span in enumerate(answer.citations):
        marked.setdefault(span.segment, []).append(place)
    texts = [_read_span(span, answer.evidence) for span in answer.citations]
    rows = []
    for segment, (start, end) in enumerate(chunking.segments(answer.text)):
        places = tuple(marked.get(segment, marked.get(-1, ())))
        rows.append((segment, answer.text[start:end], places, [texts[place] for place in places]))
    return rows


def _read_span(span: CitedSpan, evidence: Sequence[Evidence]) -> str:
    """Return the whole sentences that a citation touches; empty for a fabricated citation."""
    if not 0 <= span.evidence < len(evidence):
        return ""
    chunk = evidence[span.evidence].chunk
    start, end = span.start - chunk.offsets.start, span.end - chunk.offsets.start
    if start <= 0 and len(chunk.text) <= end:
        return chunk.text
    touched = [part for part in chunking.spans(chunk.text) if part[0] < end and start < part[1]]
    return chunk.text[touched[0][0] : touched[-1][1]] if touched else ""


# ---- Phrases that refer to the sources, or say that the sources have no answer.

MOST = 20_000
"""Largest number of characters read of an answer."""
_LOOK_BACK = 60
"""Characters before a reference in which a negation is looked for."""


def _read_phrases() -> dict[str, re.Pattern[str]]:
    """Compile the phrases of every language by kind; `<word>` stands for a list under `words`."""
    file = files("rag_eval.measures").joinpath("gap_phrases.json")
    content = json.loads(file.read_text("utf-8"))
    words, patterns = content.pop("words"), {}
    for kind, by_language in content.items():
        phrases = "|".join(f"(?:{phrase})" for part in by_language.values() for phrase in part)
        while (filled := re.sub(r"<(\w+)>", lambda name: words[name[1]], phrases)) != phrases:
            phrases = filled
        patterns[kind] = re.compile(phrases, re.IGNORECASE)
    return patterns


_PHRASES = _read_phrases()


def _refers_to_sources(plain: str) -> str:
    """Return the first words that refer to the sources, or an empty text.

    A reference behind a negation, as in "without looking at the provided context", is none.
    """
    for match in _PHRASES["references"].finditer(plain):
        before = plain[max(match.start() - _LOOK_BACK, 0) : match.start()]
        if not _PHRASES["negators"].search(_PHRASES["clauses"].split(before)[-1]):
            return match[0]
    return ""


# ---- The verdict on an answer

CODE = "FK019"
Purpose = Literal["answer", "context"]
Violation = Literal["content_unused", "citation_unsupported", "empty_answer"]
Compliance = Literal[
    "no_retrieval", "context_only", "cited", "refers_to_sources", "acknowledged", "content_used"
]
Cites = bool | None
"""Whether the citations of an answer support one of its sentences; None without a citation."""
_USED = 0.45
"""Score from which a sentence uses the evidence; the name of a title may be missing."""
_SHOWN = 120
_QUOTED_WORDS = 3
"""Least number of words in a quote; fewer words in quotation marks are a term."""


class Gap(NamedTuple):
    """Verdict on an answer; `detail` is the deciding phrase or sentence, or empty."""

    reason: Violation | Compliance
    detail: str = ""

    @property
    def violation(self) -> bool:
        """Whether the answer broke the rule."""
        return self.reason in get_args(Violation)


def retrieval_gaps(
    answers: Sequence[str],
    retrieved: Sequence[Sequence[str]],
    *,
    cites: Sequence[Cites] | None = None,
    purpose: Purpose = "answer",
    frequencies: DocumentFrequencies | None = None,
) -> list[Gap]:
    """Judge whether every answer uses its retrieved texts, by the first condition that holds.

    - Nothing with content was retrieved, or the purpose is `context`, which only sets the tone.
    - The answer has a citation whose text supports one of its sentences (`cites` is true).
    - It has no citation (None), and refers to the sources in words without a negation.
    - It states that nothing relevant was found.
    - The score of one sentence (see `support`) is 0.45 or more. A quote of three words or more is
      a sentence of its own, because the words around it may be in another language.

    Else the answer is a violation, also an empty one, which must not look best. A false `cites` is
    the violation `citation_unsupported`: a phrase does not mend a citation. Only words are
    compared, so an answer that translates its sources without naming them is a violation.
    """
    shown = [[text for text in texts if WORD.search(text)] for texts in retrieved]
    cites = cites or [None] * len(answers)
    verdicts = [
        _judge_without_overlap(answer, len(texts), is_cited, purpose)
        for answer, texts, is_cited in zip(answers, shown, cites, strict=True)
    ]
    open_cases = [at for at, verdict in enumerate(verdicts) if verdict is None]
    scored = groundedness(
        [_with_quotes(answers[at]) for at in open_cases],
        [shown[at] for at in open_cases],
        frequencies,
    )
    used: dict[int, Gap] = {}
    for at, sentence, one in zip(scored.answer_of, scored.sentences, scored.supports, strict=True):
        if one.reaches(_USED):
            used.setdefault(open_cases[at], Gap("content_used", sentence[:_SHOWN]))
    unused = [Gap("content_unused" if one is None else "citation_unsupported") for one in cites]
    return [verdict or used.get(at, unused[at]) for at, verdict in enumerate(verdicts)]


def _judge_without_overlap(
    answer: str, n_texts: int, is_cited: Cites, purpose: Purpose
) -> Gap | None:
    """Return a verdict without comparing texts; None if only a comparison can decide."""
    if not n_texts or purpose == "context":
        return Gap("context_only" if n_texts else "no_retrieval")
    if not WORD.search(answer):
        return Gap("empty_answer")
    if is_cited is True:
        return Gap("cited")
    plain = _PHRASES["code"].sub(" ", answer[:MOST])
    if is_cited is None and (phrase := _refers_to_sources(plain)):
        return Gap("refers_to_sources", phrase[:_SHOWN])
    match = _PHRASES["acknowledgements"].search(plain)
    return Gap("acknowledged", match[0][:_SHOWN]) if match else None


def _with_quotes(answer: str) -> str:
    quotes = _PHRASES["quotes"].findall(answer)
    long = [quote for quote in quotes if len(words(quote[1:-1])) >= _QUOTED_WORDS]
    return "\n\n".join([answer, *long])


# ---- A bar that is fitted to labels

_FOLDS = 5


class Label(NamedTuple):
    """A sentence, the texts that it was judged on, and whether they support it.

    `question` keeps sentences of one question in one fold.
    """

    question: str
    sentence: str
    texts: Sequence[str]
    supported: bool


class FittedBar(NamedTuple):
    """A bar, and its balanced accuracy on labels that it was not fitted to, beside that of 0.5."""

    bar: float
    accuracy: float
    accuracy_of_half: float
    n: int


def fit_bar(labels: Sequence[Label]) -> FittedBar:
    """Fit the bar with the best balanced accuracy, and judge it out of fold.

    A fold holds whole questions. Raises ValueError with fewer than two questions that have
    supported sentences, or fewer than two with others.
    """
    scored = groundedness([label.sentence for label in labels], [label.texts for label in labels])
    score = np.nan_to_num(scored.value)
    is_supported = np.array([label.supported for label in labels], dtype=bool)
    _, question = np.unique([label.question for label in labels], return_inverse=True)
    for name, rows in (("supported", is_supported), ("other", ~is_supported)):
        if (n := len(np.unique(question[rows]))) < 2:  # noqa: PLR2004 - one to fit, one to judge
            raise ValueError(f"labels: {n} questions with {name} sentences; accepted: 2 or more")
    fold = np.random.default_rng(0).permutation(int(question.max()) + 1)[question] % _FOLDS
    passes = np.zeros(len(labels), dtype=bool)
    for number in range(_FOLDS):
        rows = fold == number
        passes[rows] = score[rows] >= _best_bar(score[~rows], is_supported[~rows])
    return FittedBar(
        _best_bar(score, is_supported),
        _accuracy(passes, is_supported),
        _accuracy(score >= BAR, is_supported),
        len(labels),
    )


def _best_bar(score: FloatArray, is_supported: BoolArray) -> float:
    """Return the middle between the two scores that part the labels best."""
    distinct = np.unique(score)
    bars = np.append((distinct[1:] + distinct[:-1]) / 2, BAR)
    accuracy = [_accuracy(score >= bar, is_supported) for bar in bars]
    return float(bars[int(np.argmax(accuracy))])


def _accuracy(passes: BoolArray, is_supported: BoolArray) -> float:
    """Return the mean of the rates of right verdicts on supported and on other sentences."""
    rates = [passes[is_supported].mean(), 1 - passes[~is_supported].mean()]
    return float(np.mean(rates)) if 0 < is_supported.sum() < len(is_supported) else 0.0
