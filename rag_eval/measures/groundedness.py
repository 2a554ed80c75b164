"""Measure groundedness: the share of each answer sentence in the evidence.

`retrieval_gaps` judges FK019: whether an answer uses its retrieved texts.
"""

import functools
import itertools
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import numpy as np

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, expand_ranges
from rag_eval.corpus import chunking as sentences
from rag_eval.corpus.analyzer import STOP_WORDS, Analyzer, DocumentFrequencies
from rag_eval.corpus.markers import remove_marks
from rag_eval.measures.contradiction import NUMBER_WORDS, Conflict, find_conflicts, spell_number

# ---- Sentences of a text, and their words in any script, numbers and names

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

# Runs of characters of scripts without spaces between words. Short runs of hiragana are dropped,
# because most are endings and particles. Hangul is included, because its particles join the word.
# The alternatives are hiragana, katakana with bopomofo, Han, Hangul, Thai with Lao, Burmese, Khmer.
_UNSPACED = re.compile(
    r"(?P<endings>[\u3041-\u309f]+)|[\u30a0-\u312f\u31a0-\u31bf\u31f0-\u31ff]+"
    r"|[\u3005-\u3007\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af]+"
    r"|[\u1100-\u11ff\uac00-\ud7af]+|[\u0e00-\u0eff]+|[\u1000-\u109f]+|[\u1780-\u17ff]+"
)
_LONG_ENDING = 4
_NUMBER = re.compile(r"(?<![^\W_])\d+(?:[.,]\d+)*")
_WORD = re.compile(r"[^\W_]+")
_TITLE_CASE = 0.6
"""Share of capitalised words above which a sentence is a title; its capitals mark no names."""
_FEW_WORDS = 4
_SHORTEST_PART = 3
"""Least length of a part of an identifier: shorter parts are common aliases (df, ax, np)."""


@functools.lru_cache(maxsize=1)
def _marks() -> dict[int, None]:
    """List vowel signs and accents that stand alone after composition and break words."""
    codes = range(0x300, min(0x1B00, sys.maxunicode))
    return {code: None for code in codes if unicodedata.category(chr(code)) in {"Mn", "Mc"}}


def _pairs(match: re.Match[str]) -> str:
    run = match[0]
    if match["endings"] and len(run) < _LONG_ENDING:
        return " "
    words = [run] if len(run) == 1 else map("".join, itertools.pairwise(run))
    return f" {' '.join(words)} "


def comparable(text: str) -> str:
    """Return composed text without free-standing marks, so that the analyzer finds its words.

    Scripts without spaces become overlapping character pairs.

    Examples
    --------
    >>> comparable("巴黎是首都 in France")
    ' 巴黎 黎是 是首 首都  in France'
    """
    if text.isascii():
        return text
    composed = unicodedata.normalize("NFKC", text).translate(_marks())
    return _UNSPACED.sub(_pairs, composed)


_SPECIAL_TOKEN = re.compile(
    r"</?s>|<(?:pad|unk|bos|eos|cls|sep|mask)>|<\|[a-z_]{1,30}\|>|\[(?:CLS|SEP|PAD|UNK|MASK)\]"
)


def _without_tokens(text: str) -> str:
    """Replace the special tokens of language models, which end a passage, by a blank line."""
    return _SPECIAL_TOKEN.sub("\n\n", text) if "<" in text or "[" in text else text


def answer_sentences(text: str) -> list[str]:
    r"""Split an answer without citation markers into its segments.

    Examples
    --------
    >>> answer_sentences("Two facts [1]:\n- Snow is white [2].\n- Coal is black.")
    ['Two facts:', 'Snow is white.', 'Coal is black.']
    """
    plain = remove_marks(_without_tokens(text))
    parts = (plain[start:end] for start, end in sentences.segments(plain))
    return [sentence for sentence in parts if _WORD.search(sentence)]


def numbers(text: str) -> list[str]:
    """Find numbers and spell them alike, with a decimal point and without idle zeros.

    A point or comma before three digits separates thousands, so `3.125` is 3125. A number that
    starts with 0 has no thousands. The rule holds for answers and for evidence.

    Examples
    --------
    >>> numbers("In 1889, 1,000 of 2.50 kg; 3,5 % of int64.")
    ['1889', '1000', '2.5', '3.5']
    """
    return [spell_number(number) for number in _NUMBER.findall(text)]


def _names(sentence: str) -> list[str]:
    """Find names: capitalised words, acronyms, words with digits, and identifiers.

    A capitalised first word counts only as an acronym or an identifier. In a title, most words
    are capitalised, so only identifiers count.

    Examples
    --------
    >>> _names("The tower of Gustave Eiffel is drawn by `ax.plot_wireframe`.")
    ['Gustave', 'Eiffel', 'plot', 'wireframe']
    """
    tokens = sentence.split()
    # a script without capitals marks no names
    odd = [token for token in tokens if token != token.lower()]
    named = [
        word
        for token in odd
        for word in _WORD.findall(token)
        if len(word) > 1 and word != word.lower()
    ]
    identifiers = [word for word in named if not word[1:].islower() and not word.isupper()]
    if "_" in sentence or "()" in sentence or "." in sentence[:-1]:
        dotted = [token for token in tokens if "_" in token or "()" in token or "." in token[1:-1]]
        identifiers += [
            part
            for token in dotted
            for part in _WORD.findall(token)
            if len(part) >= _SHORTEST_PART and not part.isdigit()
        ]
    capitals = [word for word in named if word[0].isupper()]
    if len(tokens) >= _FEW_WORDS and len(capitals) > _TITLE_CASE * len(tokens):
        return identifiers
    if capitals and not capitals[0].isupper() and _WORD.findall(tokens[0])[:1] == capitals[:1]:
        del capitals[0]
    return list(dict.fromkeys([*filter(_names_something, capitals), *identifiers]))


def _names_something(word: str) -> bool:
    lowered = word.lower()
    return lowered not in STOP_WORDS and lowered not in FUNCTION_WORDS


# ---- Groundedness: the share of a sentence's words in, near or far from the best window

WINDOW = 3
"""Number of evidence sentences in a window."""
SUPPORTED = 0.5
"""Score from which a sentence counts as supported."""
HALVING = 4
"""Number of sentences from the window at which a term counts half."""
ANYWHERE = 0.3
"""Least value of a term that the evidence has."""
PAIR = 0.25
"""Weight of a pair of neighbouring words, over the mean weight of its words."""
MISSING = 0.5
"""Factor of the score if a name is not in the evidence, or a number not in the window.

It is `SUPPORTED`, so no sentence with such a name or number is supported.
"""
CONTRADICTED = 0.4
"""Factor of the score of a sentence with a conflict, so that it is not supported."""
_COMPARED = SUPPORTED / 2
"""Least score at which conflicts are looked for: below it, the window is about something else."""
_SCALE = 2**20
"""Scale of the integer weights; sums of integers do not depend on the order of addition."""
_BLOCK = 256
"""Number of answers compared at a time, so that memory does not grow with the answers."""


Score = Callable[[list[str], list[str]], FloatArray]
"""A verifier: (sentences, evidence of each) -> probability of support, [n]; NaN if it fails."""


class Groundedness(NamedTuple):
    """Scores of every answer sentence, [n_sentences], and of every answer, [n_answers]."""

    answer_of: IntArray
    """Answer of each sentence, rising."""
    sentences: list[str]
    window: list[str]
    """Best window of each sentence; empty without evidence or without a content word."""
    conflicts: list[list[Conflict]]
    """What each sentence says otherwise than its window, if its score is at least 0.25 without."""
    score: FloatArray
    """Score of each sentence in [0, 1]; NaN for a sentence without a content word."""
    share: FloatArray
    """Weighted mean value of the terms of each sentence; NaN without a content word."""
    n_words: IntArray
    """Number of distinct content words of each sentence."""
    value: FloatArray
    """Mean score of each answer's sentences; NaN if no sentence has a score."""
    supported: FloatArray
    """Share of each answer's supported sentences; NaN if no sentence has a score."""

    def rescored(self, score: FloatArray) -> "Groundedness":
        """Return the scores of a verifier, [n_sentences], instead of those of the words.

        Sentences without a content word keep NaN and do not count. Another NaN is a failed verdict,
        which leaves its answer without a value.
        """
        counts = ~np.isnan(self.score)
        means = _average(self.answer_of, score, counts, len(self.value))
        own = np.where(counts, score, np.nan)
        return self._replace(score=own, value=means[0], supported=means[1])


class _Terms(NamedTuple):
    """Terms of sentences in reading order: the sentence of each term, and the term."""

    n_sentences: int
    sentence: IntArray
    term: IntArray

    def pairs(self, weights: FloatArray) -> tuple[IntArray, IntArray]:
        """Return sentence and code of each pair of neighbours among the words with a weight.

        Two words alone are no pair, because their order says nothing.
        """
        heavy = weights[self.term] > 0
        sentence, term = self.sentence[heavy], self.term[heavy]
        same = sentence[1:] == sentence[:-1]
        same &= np.bincount(sentence, minlength=1)[sentence[1:]] > 2  # noqa: PLR2004 - a pair
        return sentence[1:][same], term[:-1][same] * len(weights) + term[1:][same]

    def matrix(self, weights: FloatArray, known: IntArray) -> Any:
        """Return a CSR matrix of ones [n_sentences, n_terms + n_pairs] of terms and known pairs."""
        sentence, code = self.pairs(weights)
        at = np.searchsorted(known, code)
        kept = np.append(known, -1)[at] == code
        return _membership(
            np.concatenate([self.sentence, sentence[kept]]),
            np.concatenate([self.term, len(weights) + at[kept]]),
            (self.n_sentences, len(weights) + len(known)),
        )


def _split(text: str) -> list[str]:
    """Split an evidence text into sentences."""
    plain = _without_tokens(text)
    return [plain[start:end] for start, end in sentences.spans(plain)]


def _read(parts: Sequence[str], analyzer: Analyzer, spelled: Sequence[str] = ()) -> _Terms:
    """Read the terms of sentences: their words, and their numbers as `#1889`.

    `spelled` are words that also count as the number of their place.
    """
    vocabulary = analyzer.vocabulary
    rows = analyzer.index([comparable(part) for part in parts])
    known = {
        ids[0]: vocabulary.setdefault(f"#{number}", len(vocabulary))
        for number, ids in enumerate(analyzer.index(spelled))
    }
    for row in rows if known else ():
        row += [known[term] for term in row if term in known]
    for row, part in zip(rows, parts, strict=True):
        row += [vocabulary.setdefault(f"#{one}", len(vocabulary)) for one in numbers(part)]
    sentence = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return _Terms(len(rows), sentence, np.fromiter(itertools.chain(*rows), np.int64, len(sentence)))


def _membership(owner: IntArray, member: IntArray, shape: tuple[int, int]) -> Any:
    """Return a CSR matrix with a 1 for every (owner, member)."""
    from scipy.sparse import csr_array

    matrix = csr_array((np.ones(len(owner), np.int64), (owner, member)), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix


def groundedness(
    answers: Sequence[str],
    evidence: Sequence[Sequence[str]],
    frequencies: DocumentFrequencies | None = None,
) -> Groundedness:
    """Score every sentence of every answer on the answer's evidence.

    The evidence of an answer is one running text: the sentences of its texts in order. The terms of
    a sentence are its distinct words without stop and function words, and the pairs of neighbours
    among them. The best window is the three consecutive evidence sentences with most of the terms'
    weight. A term d sentences from the window has the value ``max(2**(-d / 4), 0.3)``, which is 1
    in the window. A term that the evidence lacks has the value 0.

    The score is the weighted mean value of the terms. It is halved if the evidence has not all
    names of the sentence, or the window not all numbers, because texts name a thing once and then
    say "it". A sentence that says otherwise than its window, as `find_conflicts` tells, keeps 0.4
    of the mean. An answer without evidence scores 0. A translated answer scores near 0, because
    only words are compared. The score of a sentence does not depend on other answers.

    A word weighs 1, or its BM25 idf ``log(1 + (N - n + 0.5) / (n + 0.5))`` (as in Lucene), if
    `frequencies` has the counts of the `comparable` texts of a corpus. A pair weighs a quarter of
    the mean of its words.

    Examples
    --------
    >>> answers = ["The capital of France is Paris.", "The capital of Germany is Berlin."]
    >>> groundedness(answers, [["The capital of France is Paris."]] * 2).value.round(2).tolist()
    [1.0, 0.14]
    """
    analyzer = Analyzer()
    function_words = analyzer.index([" ".join(FUNCTION_WORDS)])[0]
    pieces = [answer_sentences(answer) for answer in answers]
    flat = list(itertools.chain.from_iterable(pieces))
    answer_of = np.repeat(np.arange(len(answers)), [len(piece) for piece in pieces])
    own = _read(flat, analyzer)
    named = _read([" ".join(_names(one)) for one in flat], analyzer)
    # a text that many answers were offered is read once
    place = {text: at for at, text in enumerate(dict.fromkeys(itertools.chain(*evidence)))}
    split = [_split(text) for text in place]
    parts = list(itertools.chain.from_iterable(split))
    shown = _read(parts, analyzer, NUMBER_WORDS)
    weights = _weigh(analyzer, frequencies)
    weights[function_words] = 0.0
    pairs = np.unique(own.pairs(weights)[1])
    wanted, offered = (terms.matrix(weights, pairs) for terms in (own, shown))
    row, term = np.repeat(np.arange(len(flat)), np.diff(wanted.indptr)), wanted.indices
    paired = PAIR / 2 * weights[np.stack(np.divmod(pairs, max(len(weights), 1)))].sum(axis=0)
    weight = np.concatenate([weights, paired])[term]

    # the sentences of the evidence of every answer, one answer after the other
    texts = np.fromiter((place[text] for text in itertools.chain(*evidence)), np.int64)
    lengths = np.fromiter(map(len, split), np.int64, len(split))
    which, sentence = expand_ranges((np.cumsum(lengths) - lengths)[texts], lengths[texts])
    owner = np.repeat(np.arange(len(answers)), list(map(len, evidence)))[which]
    distance, window = np.full(len(row), np.inf), np.zeros((len(flat), 2), np.int64)
    for low in range(0, len(answers), _BLOCK):
        ends = [low, low + _BLOCK]
        block, seen = (slice(*np.searchsorted(one, ends)) for one in (answer_of, owner))
        entries = slice(*wanted.indptr[[block.start, block.stop]])
        if seen.stop > seen.start and entries.stop > entries.start:
            distance[entries], window[block] = _search(
                row[entries] - block.start,
                term[entries],
                weight[entries],
                answer_of[block] - low,
                owner[seen] - low,
                offered[sentence[seen]],
            )
            window[block] += seen.start

    def total(part: FloatArray | BoolArray) -> FloatArray:
        return np.asarray(np.bincount(row, weights=part, minlength=len(flat)), np.float64)

    value = np.maximum(np.exp2(-distance / HALVING), ANYWHERE * np.isfinite(distance))
    weighed = total(weight)
    share = np.full(len(flat), np.nan)
    np.divide(total(weight * value), weighed, out=share, where=weighed > 0)
    is_word = term < len(weights)
    kinds = [name[:1] == "#" for name in analyzer.vocabulary]
    is_number = np.array(kinds + [False] * len(pairs), dtype=bool)[term]
    is_name = is_word & _has(named.matrix(weights, pairs), row, term)
    lacks = (is_number & (distance > 0)) | (is_name & np.isinf(distance))
    share = np.minimum(share, 1.0)
    score = share * np.where(total(lacks) > 0, MISSING, 1.0)
    window[weighed == 0] = 0
    shown_in = [" ".join(parts[at] for at in sentence[start:end]) for start, end in window.tolist()]
    edges = np.searchsorted(owner, np.arange(len(answers) + 1))

    @functools.cache
    def running(answer: int) -> list[str]:
        return [" ".join(parts[at] for at in sentence[edges[answer] : edges[answer + 1]])]

    conflicts = [
        find_conflicts(one, shown_in[at], running(answer_of[at])) if score[at] >= _COMPARED else []
        for at, one in enumerate(flat)
    ]
    score = np.where(list(map(bool, conflicts)), share * CONTRADICTED, score)
    mean, supported = _average(answer_of, score, ~np.isnan(score), len(answers))
    n_words = total((weight > 0) & is_word).astype(np.int64)
    return Groundedness(
        answer_of, flat, shown_in, conflicts, score, share, n_words, mean, supported
    )


def _average(
    answer_of: IntArray, score: FloatArray, counted: BoolArray, n: int
) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the supported share of the counted sentences of each answer, [n]."""
    owner, scored = answer_of[counted], score[counted]
    counts = np.bincount(owner, minlength=n).astype(np.float64)
    counts[counts == 0] = np.nan
    reached = np.where(np.isnan(scored), np.nan, scored >= SUPPORTED)
    value, supported = (
        np.bincount(owner, weights=part, minlength=n) / counts for part in (scored, reached)
    )
    return value, supported


def _search(  # noqa: PLR0917 - parallel arrays
    row: IntArray,
    term: IntArray,
    weight: FloatArray,
    answer_of: IntArray,
    owner: IntArray,
    offered: Any,
) -> tuple[FloatArray, IntArray]:
    """Find the window of three evidence sentences with most of each sentence's weight.

    The first of equal windows counts. `row` and `term` are the terms of the answer sentences,
    ordered. `owner` is the answer of each evidence sentence, rising, and `offered` has a row of
    terms for each. Returns the number of sentences from the window to the nearest sentence with
    each term, 0 inside and infinite without any; and the range of each window, [n_sentences, 2].
    """
    from scipy.sparse import csr_array

    n_answers, n_terms = int(max(answer_of[-1], owner[-1])) + 1, offered.shape[1]
    keys, column = np.unique(answer_of[row] * n_terms + term, return_inverse=True)
    # a term of the evidence counts for the answer that was offered the text
    found = offered.tocoo()
    found_keys = owner[found.row] * n_terms + found.col
    at = np.minimum(np.searchsorted(keys, found_keys), len(keys) - 1)
    kept = keys[at] == found_keys
    place, key = found.row[kept].astype(np.int64), at[kept]

    first = np.searchsorted(owner, np.arange(n_answers + 1))
    lengths = np.diff(first)
    n_windows = np.where(lengths > 0, np.maximum(lengths - WINDOW + 1, 1), 0)
    asker, start = expand_ranges(first[:-1], n_windows)
    end = np.minimum(start + WINDOW, first[asker + 1])
    inside, member = expand_ranges(start, end - start)
    windows = _membership(inside, member, (len(start), len(owner))) @ _membership(
        place, key, (len(owner), len(keys))
    )
    windows.data[:] = 1
    scaled = np.rint(weight * _SCALE).astype(np.int64)
    wanted = csr_array((scaled, (row, column)), shape=(len(answer_of), len(keys)))
    sums = (wanted @ windows.T).tocsr()
    sums.sort_indices()
    # without a match, the first window of the answer counts
    best = np.searchsorted(asker, answer_of)
    filled = np.flatnonzero(np.diff(sums.indptr))
    if len(filled):
        most = np.maximum.reduceat(sums.data, sums.indptr[filled])
        equal = np.flatnonzero(sums.data == np.repeat(most, np.diff(sums.indptr)[filled]))
        place_of_best = equal[np.searchsorted(equal, sums.indptr[filled])]
        best[filled[most > 0]] = sums.indices[place_of_best[most > 0]]

    # the nearest sentences with the term, before and behind the beginning of the window
    without = lengths[answer_of] == 0
    range_of = np.stack([np.append(start, 0)[best], np.append(end, 0)[best]], axis=1)
    range_of[without] = 0
    low, high = range_of[row].T
    size = len(owner) + 1
    occurrences = np.sort(key * size + place)
    edges = np.concatenate([[-1], occurrences, [size * (len(keys) + 1)]])
    behind = np.searchsorted(occurrences, column * size + low) + 1
    distance = np.full(len(row), np.inf)
    for at in (behind - 1, behind):
        away = np.maximum(np.maximum(low - edges[at] % size, edges[at] % size - high + 1), 0)
        is_same = edges[at] // size == column
        distance = np.where(is_same, np.minimum(distance, away), distance)
    return distance, range_of


def _has(matrix: Any, rows: IntArray, columns: IntArray) -> BoolArray:
    """Tell for each (row, column) whether a CSR matrix has a value there."""
    return np.asarray(matrix[rows, columns] > 0).ravel() if len(rows) else np.zeros(0, dtype=bool)


def _weigh(analyzer: Analyzer, frequencies: DocumentFrequencies | None) -> FloatArray:
    """Return the weight of every term: its BM25 idf, or 1 without frequencies; 0 for a number.

    A term without a text weighs like a term in one text.
    """
    vocabulary = analyzer.vocabulary
    is_word = np.fromiter((not name.startswith("#") for name in vocabulary), bool, len(vocabulary))
    if frequencies is None or not frequencies.n_texts:
        return is_word.astype(np.float64)
    n_texts = frequencies.n_texts
    known = (frequencies.counts.get(term, 0) for term in vocabulary)
    n = np.clip(np.fromiter(known, np.int64, len(vocabulary)), 1, n_texts)
    return is_word * np.log1p((n_texts - n + 0.5) / (n + 0.5))


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


# ---- FK019, the retrieval-to-answer gap: the answer neither cites nor uses what was retrieved.

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
    "no_verdict",
]
Cites = bool | Literal["no_verdict"] | None
"""Whether the citations of an answer support one of its sentences; None without a citation."""
VIOLATIONS: frozenset[Reason] = frozenset(
    {"content_unused", "citation_unsupported", "empty_answer"}
)
_USED = 0.45
"""Score from which a sentence uses the evidence; the name of a title may be missing."""
_FEW = 2
"""Sentences with at most this number of content words need all words in the evidence."""
_WHOLE = 0.999
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
    score: Score | None = None,
) -> list[Gap]:
    """Judge whether every answer uses its retrieved texts.

    The first condition that holds makes an answer comply:

    - Nothing was retrieved, or the purpose is `context`.
    - The answer has a citation whose text supports a sentence of the answer.
    - The answer has no citation, and refers to the sources in words, rightly or wrongly, without a
      negation.
    - The answer states that nothing relevant was found.
    - The groundedness of one sentence is 0.45 or more. A sentence that says otherwise than the
      evidence (`find_conflicts`) has at most 0.4.

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
    sets the tone. `frequencies` are as for `groundedness`.

    `score` is a verifier, whose probability of 0.5 or more takes the place of the groundedness. If
    a missing verdict leaves a case open, its reason is `no_verdict`, which is no violation.
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
    uses = scored.score >= np.where(scored.n_words <= _FEW, _WHOLE, _USED)
    unjudged = {at for at in open_cases if cites[at] == "no_verdict"}
    if score is not None and open_cases:
        texts = ["\n\n".join(shown[open_cases[at]]) for at in scored.answer_of.tolist()]
        verdicts_of = score(scored.sentences, texts)
        uses = scored.rescored(verdicts_of).score >= SUPPORTED
        failed = scored.answer_of[np.isnan(verdicts_of) & ~np.isnan(scored.score)]
        unjudged |= {open_cases[at] for at in failed.tolist()}
    first: dict[int, str] = {}
    for sentence in np.flatnonzero(uses).tolist():
        first.setdefault(open_cases[int(scored.answer_of[sentence])], scored.sentences[sentence])
    used = {at: Gap("content_used", text[:_SHOWN]) for at, text in first.items()}
    unused = [Gap("content_unused" if one is None else "citation_unsupported") for one in cites]
    used = {at: Gap("no_verdict") for at in unjudged} | used
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
    long = [quote for quote in quotes if len(comparable(quote[1:-1]).split()) >= _QUOTED_WORDS]
    return "\n\n".join([answer, *long])


def _has_content(text: str) -> bool:
    return any(character.isalnum() for character in text)
