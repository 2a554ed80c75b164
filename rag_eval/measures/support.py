"""Score how far texts support a sentence, by words alone.

Groundedness gives the scorer all evidence of an answer, citation support the cited spans. Answers
that do not use what was retrieved (FK019) are found by it, and its bar is fitted to labels.
"""

import functools
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Literal, NamedTuple

import numpy as np

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.corpus import chunking
from rag_eval.corpus.analyzer import (
    STOP_WORDS,
    Analyzer,
    DocumentFrequencies,
    numbers,
    spell_alike,
    words,
)
from rag_eval.corpus.markers import remove_marks
from rag_eval.measures.contradiction import Conflict, find_conflicts

# ---- Sentences of a text, and their names

_FUNCTION_WORDS = """
about above across after again against all along also although always am among any anyone anything
around away back because been before being below between both came can cannot come could did do
does doing done down during each either else enough etc ever every few from further get gets
getting give given go goes going got had has have having he her here hers herself him himself his
how however i its itself just least less let like likely made mainly make makes making many may me
might more most much must my myself neither never next none nor now off often once one only other
others otherwise our ours ourselves out over own per perhaps please quite rather really same see
seem several shall she should since so some someone something still than themselves though through
thus together too toward under until up upon us use used uses using various very via want was we
well were what whatever when where whereas whether which while who whole whom whose why within
without would yet you your yours yourself according regarding overall furthermore moreover
therefore hence
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split()) - STOP_WORDS
"""English words without weight in a comparison, besides the analyzer's stop words."""
_WORD = re.compile(r"[^\W_]+")


def answer_sentences(text: str) -> list[str]:
    r"""Split an answer without citation markers into its segments.

    Examples
    --------
    >>> answer_sentences("Two facts [1]:\n- Snow is white [2].\n- Coal is black.")
    ['Two facts:', 'Snow is white.', 'Coal is black.']
    """
    plain = remove_marks(text)
    parts = (plain[start:end] for start, end in chunking.segments(plain))
    return [sentence for sentence in parts if _WORD.search(sentence)]


_IDENTIFIER = re.compile(r"\w+")
_SHORTEST_PART = 3
"""Least length of a part of an identifier: shorter parts are common aliases (df, ax, np)."""


def _names(sentence: str) -> list[str]:
    """Find names: words with a capital, and the parts of identifiers with an underscore.

    A first word that is only capitalised counts for nothing.

    Examples
    --------
    >>> _names("The tower of Gustave Eiffel is drawn by `ax.plot_wireframe`.")
    ['Gustave', 'Eiffel', 'plot', 'wireframe']
    """
    words = _WORD.findall(sentence)
    names = [word for word in words if len(word) > 1 and word != word.lower()]
    if names and names[0] == words[0] and words[0][1:].islower():
        del names[0]
    joined = (name.strip("_") for name in _IDENTIFIER.findall(sentence))
    parts = itertools.chain.from_iterable(name.split("_") for name in joined if "_" in name)
    names += [part for part in parts if len(part) >= _SHORTEST_PART and not part.isdigit()]
    ignored = STOP_WORDS | FUNCTION_WORDS
    return [name for name in names if name.lower() not in ignored]


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


class _Reader:
    """Reads sentences into terms, and weighs the terms.

    A word weighs 1, or its BM25 idf ``log(1 + (N - n + 0.5) / (n + 0.5))`` (as in Lucene) in the
    corpus of the frequencies; a word that the corpus lacks weighs like one in one text.
    """

    def __init__(self, frequencies: DocumentFrequencies | None) -> None:
        self.analyzer = Analyzer()
        self.ignored = set(itertools.chain(*self.analyzer.index([" ".join(FUNCTION_WORDS)])))
        self.frequencies = frequencies
        self._weights: dict[int, float] = {}
        self._names: list[str] = []

    def words(self, text: str) -> list[int]:
        """Return the content words in their order."""
        terms = self.analyzer.index([spell_alike(text)])[0]
        return [term for term in terms if term not in self.ignored]

    def weight(self, term: int) -> float:
        """Weigh a word."""
        if self.frequencies is None or not self.frequencies.n_texts:
            return 1.0
        if term not in self._weights:
            if term >= len(self._names):
                self._names = list(self.analyzer.vocabulary)
            n_texts = self.frequencies.n_texts
            n = min(max(self.frequencies.counts.get(self._names[term], 0), 1), n_texts)
            self._weights[term] = float(np.log1p((n_texts - n + 0.5) / (n + 0.5)))
        return self._weights[term]


def _pairs(words: Sequence[int]) -> list[tuple[int, int]]:
    """Return the distinct pairs of neighbours, each in rising order."""
    both = ((min(pair), max(pair)) for pair in itertools.pairwise(words))
    return list(dict.fromkeys(both))


class _Passage(NamedTuple):
    """The sentences of the texts in order, as one running text."""

    sentences: list[str]
    text: str
    """All sentences."""
    places: Mapping[int, list[int]]
    """Sentences of each word."""
    pairs: set[tuple[int, int]]
    """Neighbours among the content words of a sentence, in either order."""
    numbers: set[str]

    @staticmethod
    def read(texts: Sequence[str], reader: _Reader) -> "_Passage":
        """Read texts, whose layout does not matter."""
        sentences = [text[start:end] for text in texts for start, end in chunking.spans(text)]
        places, pairs, figures = defaultdict[int, list[int]](list), set(), set[str]()
        alike = list(map(spell_alike, sentences))
        for at, row in enumerate(reader.analyzer.index(alike)):
            words = [term for term in row if term not in reader.ignored]
            pairs.update(_pairs(words))
            figures.update(numbers(alike[at]))
            for term in set(row):
                places[term].append(at)
        return _Passage(sentences, " ".join(sentences), dict(places), pairs, figures)

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


_ROUNDING = 1e-9


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

    Words weigh by `frequencies`, the counts of a corpus, a pair like the mean of its words. Without
    texts the score is 0. A translated sentence scores near 0, because only words are compared. A
    score depends on no other sentence, and not on the layout of the texts.

    Examples
    --------
    >>> shown = ["The capital of France is Paris."]
    >>> sentences = ["France has the capital Paris.", "The capital of Germany is Berlin."]
    >>> [round(one.score, 2) for one in support(sentences, [shown, shown])]
    [0.83, 0.11]
    """
    reader = _Reader(frequencies)
    read = functools.lru_cache(maxsize=64)(lambda key: _Passage.read(key, reader))
    return [
        _score(sentence, read(tuple(shown)), reader)
        for sentence, shown in zip(sentences, texts, strict=True)
    ]


def _score(sentence: str, passage: _Passage, reader: _Reader) -> Support:
    order = reader.words(sentence)
    weights = {term: reader.weight(term) for term in order}
    whole = sum(weights.values())
    if not whole:
        return Support(float("nan"), len(weights), "", [], ())
    share, first = passage.best_window(weights)
    pairs = _pairs(order) if len(weights) > _FEW else ()
    paired = {pair: weights[pair[0]] + weights[pair[1]] for pair in pairs}
    if paired:
        shared = sum(weight for pair, weight in paired.items() if pair in passage.pairs)
        share = (share + PAIRS * shared / sum(paired.values())) / (1 + PAIRS)
    names = itertools.chain(*reader.analyzer.index([" ".join(_names(sentence))]))
    lacks_name = not passage.places.keys() >= set(names)
    lacks_number = not passage.numbers >= set(numbers(spell_alike(sentence)))
    score = share * (MISSING if lacks_name or lacks_number else 1.0)
    window = " ".join(passage.sentences[first : first + WINDOW])
    conflicts: list[Conflict] = []
    if score >= _COMPARED:
        conflicts = find_conflicts(sentence, window, [passage.text])
        score = share * CONTRADICTED if conflicts else score
    return Support(score, len(weights), window, conflicts, _find_runs(sentence, passage, reader))


def _find_runs(sentence: str, passage: _Passage, reader: _Reader) -> tuple[str, ...]:
    """Return the content words of runs of three or more that the passage lacks."""
    runs: list[list[str]] = [[]]
    for word in _WORD.findall(sentence):
        terms = reader.words(word)
        if terms and not passage.places.keys().isdisjoint(terms):
            runs.append([])
        elif terms:
            runs[-1].append(word)
    return tuple(itertools.chain(*(run for run in runs if len(run) >= INVENTED)))


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
        counts = ~np.isnan(self.score)
        reached = np.where(np.isnan(score), np.nan, score >= BAR)
        parts = (score, reached)
        value, supported = (_average(self.answer_of, p, counts, len(self.value)) for p in parts)
        masked = np.where(counts, score, np.nan)
        return self._replace(score=masked, value=value, supported=supported)


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


# ---- Phrases that refer to the sources, or say that the sources have no answer.

MOST = 20_000
"""Largest number of characters read of an answer."""
_WORD_LIST = re.compile(r"<(\w+)>")


def _phrases(kind: str) -> re.Pattern[str]:
    """Compile the phrases of every language; `<word>` stands for a list under `words`."""
    file = files("rag_eval.measures").joinpath("gap_phrases.json")
    content = json.loads(file.read_text("utf-8"))
    phrases = "|".join(f"(?:{phrase})" for part in content[kind].values() for phrase in part)
    while _WORD_LIST.search(phrases):
        phrases = _WORD_LIST.sub(lambda name: content["words"][name[1]], phrases)
    return re.compile(phrases, re.IGNORECASE)


_REFERENCE = _phrases("references")
_ACKNOWLEDGEMENT = _phrases("acknowledgements")
_NEGATOR = re.compile(
    r"\b(?:not(?! only)|never|without|instead of|rather than|regardless of|irrespective of"
    r"|independent(?:ly)? of|ignor(?:e|es|ed|ing)|disregard(?:s|ed|ing)?|no need|nothing|none"
    r"|neither|despite|contrary to|unlike|apart from|refus(?:e|es|ed|ing)|skip(?:ped|ping)?|cannot"
    r"|nicht|ohne|ungeachtet|unabhängig|statt|entgegen|pas|sans|sin|senza|sem|не|без|non|não|no)\b"
    r"|n['’]t\b|不是|没有|沒有|不(?:根据|依据|按照|看)|ではなく|なしに|않고|아니라|دون|بدون|ليس",
    re.IGNORECASE,
)
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_CLAUSE = re.compile(r"[.;:!?。！？\n]|,?\s+but\s|,\s*(?:aber|mais|pero|ma|mas|но)\s")
_LOOK_BACK = 60


def _refers_to_sources(text: str) -> str:
    """Return the first words that refer to the sources, or an empty text.

    A reference inside code or behind a negation, as in "without looking at the provided context",
    is none.
    """
    plain = _CODE.sub(" ", text[:MOST])
    for match in _REFERENCE.finditer(plain):
        before = plain[max(match.start() - _LOOK_BACK, 0) : match.start()]
        if not _NEGATOR.search(_CLAUSE.split(before)[-1]):
            return match[0]
    return ""


# ---- The verdict on an answer

CODE = "FK019"
Purpose = Literal["answer", "context"]
Reason = Literal[
    "no_retrieval",
    "context_only",
    "cited",
    "refers_to_sources",
    "acknowledged",
    "content_used",
    "content_unused",
    "citation_unsupported",
    "empty_answer",
]
Cites = bool | None
"""Whether the citations of an answer support one of its sentences; None without a citation."""
VIOLATIONS: frozenset[Reason] = frozenset(
    {"content_unused", "citation_unsupported", "empty_answer"}
)
_USED = 0.45
"""Score from which a sentence uses the evidence; the name of a title may be missing."""
_SHOWN = 120
_QUOTE = re.compile(
    r'„[^“”"]{3,500}[“”"]|“[^”]{3,500}”|«[^»]{3,500}»|»[^«]{3,500}«|"[^"\n]{3,500}"'
    r"|「[^」]{3,500}」|『[^』]{3,500}』"
)
_QUOTED_WORDS = 3
"""Least number of words in a quote; fewer words in quotation marks are a term."""


class Gap(NamedTuple):
    """Verdict on an answer; `detail` is the deciding phrase or sentence, or empty."""

    reason: Reason
    detail: str = ""

    @property
    def violation(self) -> bool:
        """Whether the answer broke the rule."""
        return self.reason in VIOLATIONS


def retrieval_gaps(
    answers: Sequence[str],
    retrieved: Sequence[Sequence[str]],
    *,
    cites: Sequence[Cites] | None = None,
    purpose: Purpose = "answer",
    frequencies: DocumentFrequencies | None = None,
) -> list[Gap]:
    """Judge whether every answer uses its retrieved texts.

    The first condition that holds makes an answer comply:

    - Nothing was retrieved, or the purpose is `context`.
    - The answer has a citation whose text supports a sentence of the answer.
    - The answer has no citation, and refers to the sources in words, rightly or wrongly, without a
      negation.
    - The answer states that nothing relevant was found.
    - The score of one sentence (see `support`) is 0.45 or more. A sentence that says otherwise than
      the evidence (`find_conflicts`) has at most 0.4.

    A quote of three words or more is also a sentence of its own, because the words around it may
    be in another language. A sentence of one or two content words must have all words in the
    evidence: "Python is great" does not use a text on Python.

    An answer without letter or digit after a retrieval is the violation `empty_answer`, because an
    empty answer must not look best. Only words are compared. So an answer that translates its
    sources without naming them is a violation.

    Retrieved texts without content count as not retrieved. `cites` tells whether the text that an
    answer cites supports one of its sentences (see `citation_support`), and is None without a
    citation. A false value is the violation `citation_unsupported`, unless the answer complies
    otherwise: a phrase does not mend a citation. The purpose `context` is for retrieval that only
    sets the tone. `frequencies` are as for `support`.
    """
    shown = [[text for text in texts if _has_content(text)] for texts in retrieved]
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
    if not _has_content(answer):
        return Gap("empty_answer")
    if is_cited is True:
        return Gap("cited")
    if is_cited is None and (phrase := _refers_to_sources(answer)):
        return Gap("refers_to_sources", phrase[:_SHOWN])
    match = _ACKNOWLEDGEMENT.search(_CODE.sub(" ", answer[:MOST]))
    return Gap("acknowledged", match[0][:_SHOWN]) if match else None


def _with_quotes(answer: str) -> str:
    quotes = _QUOTE.findall(answer)
    long = [quote for quote in quotes if len(words(quote[1:-1])) >= _QUOTED_WORDS]
    return "\n\n".join([answer, *long])


def _has_content(text: str) -> bool:
    return any(character.isalnum() for character in text)


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
    """A bar, and its accuracy on labels that it was not fitted to, beside that of 0.5.

    The accuracy is balanced: the mean of the rates of right verdicts on supported and on other
    sentences.
    """

    bar: float
    accuracy: float
    accuracy_of_half: float
    n: int


def fit_bar(labels: Sequence[Label]) -> FittedBar:
    """Fit the bar with the best balanced accuracy, and judge it out of fold.

    A fold holds whole questions. Raises ValueError with fewer than two questions that have
    supported sentences, or fewer than two with others.
    """
    sentences, texts = [label.sentence for label in labels], [label.texts for label in labels]
    score = np.nan_to_num(groundedness(sentences, texts).value)
    is_supported = np.array([label.supported for label in labels], dtype=bool)
    for name, rows in (("supported", is_supported), ("other", ~is_supported)):
        n = len(
            {label.question for label, is_of_kind in zip(labels, rows, strict=True) if is_of_kind}
        )
        if n < 2:  # noqa: PLR2004 - one to fit and one to judge
            raise ValueError(f"labels: {n} questions with {name} sentences; accepted: 2 or more")
    _, question = np.unique([label.question for label in labels], return_inverse=True)
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
    rates = [passes[is_supported].mean(), 1 - passes[~is_supported].mean()]
    return float(np.mean(rates)) if 0 < is_supported.sum() < len(is_supported) else 0.0
