"""Measure groundedness without a model: the share of each answer sentence in the evidence.

`retrieval_gaps` judges FK019: whether an answer uses its retrieved texts.
"""

import functools
import itertools
import json
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Literal, NamedTuple

import numpy as np

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.corpus import chunking as sentences
from rag_eval.corpus.analyzer import STOP_WORDS, Analyzer, DocumentFrequencies
from rag_eval.measures.ranking import csr, expand

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
# The look-behind and the possessive quantifiers try a run of white space only from its beginning.
# So the time for long runs is linear.
_CITATION = re.compile(
    r"(?<!\s)\s*+\[\^?(?:(?:source|doc|document|ref)\s*+)?\d{1,3}"
    r"(?:\s*+[,;–-]\s*+\^?\d{1,3})*\](?:\([^()\s]*+\))?",
    re.IGNORECASE,
)
_ITEM = re.compile(r"(?<!\s)[^\S\r\n]*+[\r\n]\s*+(?=(?:[-*•‣–]|\d{1,3}[.)])\s)")
_BULLET = re.compile(r"\s*+(?:[-*•‣–]|\d{1,3}[.)])\s++")
_NUMBER = re.compile(r"(?<![^\W_])\d+(?:[.,]\d+)*")
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:[.,]\d{3})+")
_WORD = re.compile(r"[^\W_]+")
_TITLE_CASE = 0.6
"""Share of capitalised words above which a sentence is a title; its capitals mark no names."""
_FEW_WORDS = 4
_SHORTEST_PART = 3
"""Least length of a part of an identifier: shorter parts are common aliases (df, ax, np)."""

NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
"""Words for 0 to 20. In evidence such a word matches the number in the answer."""


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


def answer_sentences(text: str) -> list[str]:
    r"""Split an answer without citation marks and bullets; each item of a list is a sentence.

    Examples
    --------
    >>> answer_sentences("Two facts [1]:\n- Snow is white [2].\n- Coal is black.")
    ['Two facts:', 'Snow is white.', 'Coal is black.']
    """
    plain = _CITATION.sub("", text) if "[" in text else text
    parts = []
    for item in _ITEM.split(plain) if "\n" in plain or "\r" in plain else [plain]:
        body = item[marked.end() :] if (marked := _BULLET.match(item)) else item
        parts += [body[start:end] for start, end in sentences.spans(body)]
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
    return [_respell(number) for number in _NUMBER.findall(text)]


@functools.lru_cache(maxsize=4096)
def _respell(number: str) -> str:
    if not number.isascii():
        number = "".join(char if char in ".," else str(unicodedata.digit(char)) for char in number)
    if _GROUPED.fullmatch(number):
        return re.sub(r"[.,]", "", number)
    whole, point, rest = number.replace(",", ".").partition(".")
    whole = whole.lstrip("0") or "0"
    rest = rest if "." in rest else rest.rstrip("0")
    return f"{whole}.{rest}" if point and rest else whole


def names(sentence: str) -> list[str]:
    """Find names: capitalised words, acronyms, words with digits, and identifiers.

    A capitalised first word counts only as an acronym or an identifier. In a title, most words
    are capitalised, so only identifiers count.

    Examples
    --------
    >>> names("The tower of Gustave Eiffel is drawn by `ax.plot_wireframe`.")
    ['Gustave', 'Eiffel', 'plot', 'wireframe']
    """
    tokens = sentence.split()
    odd = [token for token in tokens if not token.islower()]
    named = [
        word
        for token in odd
        for word in _WORD.findall(token)
        if len(word) > 1 and not word.islower() and not word.isdigit()
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


# ---- The window of evidence sentences with most of a sentence's words

WINDOW = 3
"""Number of evidence sentences in a window."""
_SCALE = 2**20
"""Scale of the integer weights; sums of integers do not depend on the order of addition."""
_CELLS = 4_000_000
"""Number of evidence terms, or (sentence, window) sums, in memory at a time."""


class _Wanted(NamedTuple):
    """Distinct terms of every answer sentence, with weights.

    Sentence s has the terms from `indptr[s]` to `indptr[s + 1]`.
    """

    indptr: IntArray
    terms: IntArray
    weights: FloatArray
    answer_of: IntArray
    """Answer of each sentence, [n_sentences], rising."""


class _Texts(NamedTuple):
    """Sentences and terms of every evidence text.

    Text t has the sentences from `sentence_indptr[t]` to `sentence_indptr[t + 1]`. Sentence e has
    the terms from `term_indptr[e]` to `term_indptr[e + 1]`.
    """

    sentence_indptr: IntArray
    term_indptr: IntArray
    terms: IntArray


class _Offered(NamedTuple):
    """Evidence of every answer: answer a has the texts `texts[indptr[a]:indptr[a + 1]]`."""

    indptr: IntArray
    texts: IntArray


def _distinct(keys: IntArray) -> IntArray:
    """Return the distinct keys, rising; sorting is faster than the hashing of `np.unique`."""
    ordered = np.sort(keys)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def _columns(texts: _Texts) -> IntArray:
    """Count the columns of each text: one for each window, and one that ends the intervals."""
    sizes = np.diff(texts.sentence_indptr)
    return np.where(sizes > 0, np.maximum(sizes - WINDOW + 1, 1) + 1, 0)


def _best_windows(wanted: _Wanted, texts: _Texts, offered: _Offered) -> tuple[BoolArray, BoolArray]:
    """Find the window of three evidence sentences with most of each sentence's weight.

    A window lies inside one text. The first of equal windows counts. Returns two arrays [n_terms]:
    whether the window holds the term, and whether the text of the window holds the term.
    """
    inside, beside = (np.zeros(len(wanted.terms), dtype=bool) for _ in range(2))
    n_answers = len(offered.indptr) - 1
    first = np.searchsorted(wanted.answer_of, np.arange(n_answers + 1))
    n_terms = np.diff(texts.term_indptr[texts.sentence_indptr])
    owner = np.repeat(np.arange(n_answers), np.diff(offered.indptr))
    width, read = (
        np.bincount(owner, weights=part[offered.texts], minlength=n_answers)
        for part in (_columns(texts), n_terms)
    )
    block_of = (np.cumsum(np.maximum(width * np.diff(first), read)) // _CELLS).astype(np.int64)
    edges = [0, *(np.flatnonzero(np.diff(block_of)) + 1).tolist(), n_answers]
    for low, high in itertools.pairwise(edges):
        rows = slice(first[low], first[high])
        indptr = wanted.indptr[first[low] : first[high] + 1]
        entries = slice(indptr[0], indptr[-1])
        given = slice(offered.indptr[low], offered.indptr[high])
        inside[entries], beside[entries] = _search_block(
            _Wanted(
                indptr - indptr[0],
                wanted.terms[entries],
                wanted.weights[entries],
                wanted.answer_of[rows] - low,
            ),
            texts,
            _Offered(offered.indptr[low : high + 1] - given.start, offered.texts[given]),
        )
    return inside, beside


def _search_block(wanted: _Wanted, texts: _Texts, offered: _Offered) -> tuple[BoolArray, BoolArray]:
    """Search the windows of a block of answers, as `_best_windows` describes."""
    answer, text = wanted.answer_of, offered.texts
    row_of = np.repeat(np.arange(len(answer)), np.diff(wanted.indptr))
    owner = np.repeat(np.arange(len(offered.indptr) - 1), np.diff(offered.indptr))
    left = np.concatenate([[0], np.cumsum(_columns(texts)[text])])  # first column of each offer
    row_left = left[offered.indptr]
    row_width = np.diff(row_left)[answer]
    row_start = np.cumsum(row_width) - row_width

    entry, offer, at = _matches((answer[row_of], wanted.terms), texts, text, owner)
    row = row_of[entry]
    # Windows that hold the term's previous sentence in this text must not count the term again.
    before = np.full(len(entry), -1)
    same = (entry[1:] == entry[:-1]) & (offer[1:] == offer[:-1])
    before[1:][same] = at[:-1][same]
    last = np.maximum(np.diff(texts.sentence_indptr)[text[offer]] - WINDOW, 0)
    low, high = np.maximum(np.maximum(at - WINDOW, before) + 1, 0), np.minimum(at, last)
    new = low <= high
    weight = np.rint(wanted.weights * _SCALE).astype(np.int64)[entry[new]]
    base = row_start[row] + left[offer] - row_left[answer[row]]
    sums = np.zeros(int(row_width.sum()) + 1, dtype=np.int64)
    np.add.at(sums, (base + low)[new], weight)
    np.add.at(sums, (base + high)[new] + 1, -weight)
    sums = np.cumsum(sums)[:-1]

    inside, beside = (np.zeros(len(wanted.terms), dtype=bool) for _ in range(2))
    some = np.flatnonzero(row_width > 0)
    if not len(some):
        return inside, beside
    best = np.maximum.reduceat(sums, row_start[some])
    cells = np.flatnonzero(sums == np.repeat(best, row_width[some]))
    cell = cells[np.searchsorted(cells, row_start[some])]
    column = cell - row_start[some] + row_left[answer[some]]
    chosen, first = np.full(len(answer), -1), np.full(len(answer), -1)
    chosen[some] = np.searchsorted(left, column, side="right") - 1
    first[some] = column - left[chosen[some]]
    in_text = offer == chosen[row]
    in_window = in_text & (at >= first[row]) & (at < first[row] + WINDOW)
    inside[entry[in_window]], beside[entry[in_text]] = True, True
    return inside, beside


def _matches(
    wanted: tuple[IntArray, IntArray], texts: _Texts, text: IntArray, offer_answer: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """List each place of a wanted term once, ordered: (entry, offer, sentence of the text)."""
    answer, term = wanted
    n_terms = max(int(term.max(initial=-1)), int(texts.terms.max(initial=-1))) + 1
    order = np.argsort(answer * n_terms + term, kind="stable")
    keys, starts = np.unique((answer * n_terms + term)[order], return_index=True)
    if not len(keys) or not len(text):
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, nothing
    starts = np.append(starts, len(order))
    offer, token = expand(texts.term_indptr[texts.sentence_indptr], text)
    token_keys = offer_answer[offer] * n_terms + texts.terms[token]
    places = np.minimum(np.searchsorted(keys, token_keys), len(keys) - 1)
    kept = np.flatnonzero(keys[places] == token_keys)
    sentence = np.searchsorted(texts.term_indptr, token[kept], side="right") - 1
    at = sentence - texts.sentence_indptr[text[offer[kept]]]
    match, place = expand(starts, places[kept])
    depth, n_offers = int(at.max(initial=0)) + 1, len(text)
    unique = _distinct((order[place] * n_offers + offer[kept][match]) * depth + at[match])
    pair, at = np.divmod(unique, depth)
    entry, offer = np.divmod(pair, n_offers)
    return entry, offer, at


# ---- Groundedness of answer sentences.

_BLOCK = 256
"""Number of documents read at a time."""
SUPPORTED = 0.5
"""Score from which a sentence counts as supported."""
_NUMBER_MISSING = 0.5
"""Factor of the score if the text of the window lacks a number of the sentence."""
_NO_NAME = 0.25
"""Factor of the score if the text of the window has no name of the sentence."""


class Groundedness(NamedTuple):
    """Scores of every answer sentence, [n_sentences], and of every answer, [n_answers]."""

    answer_of: IntArray
    """Answer of each sentence, rising."""
    sentences: list[str]
    score: FloatArray
    """Score of each sentence in [0, 1]; NaN for a sentence without a content word."""
    share: FloatArray
    """Weighted share of content words in the best window; NaN without a content word."""
    n_words: IntArray
    """Number of distinct content words of each sentence."""
    value: FloatArray
    """Mean score of each answer's sentences; NaN if no sentence has a score."""
    supported: FloatArray
    """Share of each answer's supported sentences; NaN if no sentence has a score."""


def groundedness(
    answers: Sequence[str],
    evidence: Sequence[Sequence[str]],
    frequencies: DocumentFrequencies | None = None,
) -> Groundedness:
    """Score every sentence of every answer on the answer's evidence.

    A term weighs its BM25 idf, ``log(1 + (N - n + 0.5) / (n + 0.5))`` (as in Lucene). n, the number
    of texts with the term, is at least 1: with a single text all words weigh the same. Stop and
    function words weigh nothing. The share is the weight of the sentence's distinct words in the
    best window of three consecutive sentences of one evidence text, over the weight of all words.

    ``score = share * max(names_share, 0.25)``, halved if one of the sentence's numbers is missing.
    Names and numbers count anywhere in the text of the best window, because texts name a thing once
    and then say "it". The factor is 1 for a sentence without names. An answer without evidence
    scores 0. A translated answer scores near 0, because only words are compared.

    Parameters
    ----------
    answers
        Texts.
    evidence
        The texts given to each answer; equal texts are read once.
    frequencies
        Document frequencies of the `comparable` texts of the corpus. The default counts the
        distinct texts of `evidence`, so scores then depend on the other answers of the call.

    Examples
    --------
    >>> answers = ["Paris is the capital of France.", "The capital of Germany is Berlin."]
    >>> groundedness(answers, [["The capital of France is Paris."]] * 2).value.round(2).tolist()
    [1.0, 0.08]
    """
    analyzer = Analyzer()
    function_words = analyzer.index([" ".join(FUNCTION_WORDS)])[0]
    pieces = [answer_sentences(answer) for answer in answers]
    flat = list(itertools.chain.from_iterable(pieces))
    answer_of = np.repeat(np.arange(len(answers)), [len(piece) for piece in pieces])
    rows, terms = _flatten(analyzer.index([comparable(sentence) for sentence in flat]))
    named = [" ".join(map(comparable, names(sentence))) for sentence in flat]
    name_rows, name_terms = _flatten(analyzer.index(named))
    codes: dict[str, int] = {}
    number_rows, number_terms = _flatten(
        [[codes.setdefault(one, len(codes)) for one in numbers(sentence)] for sentence in flat]
    )
    place: dict[str, int] = {}
    offers, offered = _flatten(
        [[place.setdefault(text, len(place)) for text in texts] for texts in evidence]
    )
    with_numbers = np.zeros(len(place), dtype=bool)
    with_numbers[offered[np.isin(offers, answer_of[number_rows])]] = True
    texts = _read(list(place), analyzer, codes, with_numbers)

    # Numbers follow the vocabulary as terms of weight 0, because they only count as found or not.
    n_terms = len(analyzer.vocabulary)
    width = max(n_terms + len(codes), 1)
    weights = np.zeros(width)
    weights[:n_terms] = _weights(texts, analyzer, frequencies)
    weights[function_words] = 0.0
    number_keys = number_rows * width + number_terms + n_terms
    keys = _distinct(np.concatenate([rows * width + terms, number_keys]))
    row, term = np.divmod(keys, width)
    weight, is_number = weights[term], term >= n_terms
    is_name = np.isin(keys, name_rows * width + name_terms)
    inside, beside = _best_windows(
        _Wanted(np.searchsorted(row, np.arange(len(flat) + 1)), term, weight, answer_of),
        texts,
        _Offered(np.searchsorted(offers, np.arange(len(answers) + 1)), offered),
    )

    def add_up(values: FloatArray | BoolArray) -> FloatArray:
        return np.bincount(row, weights=values, minlength=len(flat)).astype(np.float64)

    def share_of(part: FloatArray | BoolArray, whole: FloatArray | BoolArray) -> FloatArray:
        total = add_up(whole)
        quotient: FloatArray = np.divide(
            add_up(part), total, out=np.full(len(flat), np.nan), where=total > 0
        )
        return quotient

    share = np.minimum(share_of(weight * inside, weight), 1.0)
    numbers_share = share_of(is_number & beside, is_number)
    names_share = share_of(is_name & beside, is_name)
    names_factor = np.where(np.isnan(names_share), 1.0, np.maximum(names_share, _NO_NAME))
    score = share * names_factor * np.where(numbers_share < 1, _NUMBER_MISSING, 1.0)
    n_words = add_up(weight > 0).astype(np.int64)
    value, supported = _average(score, answer_of, len(answers))
    return Groundedness(answer_of, flat, score, share, n_words, value, supported)


def _flatten(rows: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Return the row and the value of every entry of a ragged list."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    values = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(lengths.sum()))
    return np.repeat(np.arange(len(rows)), lengths), values


def _read(
    documents: list[str], analyzer: Analyzer, codes: Mapping[str, int], with_numbers: BoolArray
) -> _Texts:
    """Read the terms of every evidence sentence; numbers of `codes` are terms too.

    `with_numbers` marks the evidence of answers with numbers. No other document is searched for
    numbers.
    """
    spelled = np.array([ids[0] for ids in analyzer.index(NUMBER_WORDS)], dtype=np.int64)
    blocks = [
        _read_block(documents[at : at + _BLOCK], analyzer, codes, with_numbers[at : at + _BLOCK])
        for at in range(0, len(documents), _BLOCK)
    ]
    n_sentences, lengths, terms = (
        np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        for parts in (zip(*blocks, strict=True) if blocks else ((), (), ()))
    )
    n_terms, rows = len(analyzer.vocabulary), np.repeat(np.arange(len(lengths)), lengths)
    terms = np.where(terms < 0, n_terms - 1 - terms, terms)
    code_of_term = np.full(n_terms + len(codes), -1, dtype=np.int64)
    code_of_term[spelled] = [codes.get(str(number), -1) for number in range(len(spelled))]
    words = np.flatnonzero(code_of_term[terms] >= 0)
    term_indptr, ordered = csr(
        np.concatenate([rows, rows[words]]),
        len(lengths),
        np.concatenate([terms, n_terms + code_of_term[terms[words]]]),
    )
    return _Texts(np.concatenate([[0], np.cumsum(n_sentences)]), term_indptr, ordered)


def _read_block(
    documents: list[str], analyzer: Analyzer, codes: Mapping[str, int], with_numbers: BoolArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the number of sentences of each document, of terms of each sentence, and the terms.

    Number c is the term -1 - c here. Blocks keep the number of lists small, because the garbage
    collector visits every list.
    """
    spans = [sentences.spans(document) for document in documents]
    parts = [
        document[start:end]
        for document, pieces in zip(documents, spans, strict=True)
        for start, end in pieces
    ]
    n_sentences = np.fromiter(map(len, spans), np.int64, len(spans))
    rows = analyzer.index([comparable(part) for part in parts])
    for at in np.flatnonzero(np.repeat(with_numbers, n_sentences)).tolist():
        rows[at] += [-1 - codes[number] for number in numbers(parts[at]) if number in codes]
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return n_sentences, lengths, _flatten(rows)[1]


def _weights(
    texts: _Texts, analyzer: Analyzer, frequencies: DocumentFrequencies | None
) -> FloatArray:
    """Return the BM25 idf of every term; a term without a text weighs like a term in one text."""
    n_terms = len(analyzer.vocabulary)
    if frequencies is None:
        n_texts = len(texts.sentence_indptr) - 1
        text = np.repeat(np.arange(n_texts), np.diff(texts.term_indptr[texts.sentence_indptr]))
        words = texts.terms < n_terms
        pairs = _distinct(text[words] * n_terms + texts.terms[words])
        counts = np.bincount(pairs % max(n_terms, 1), minlength=n_terms)
    else:
        n_texts = frequencies.n_texts
        known = (frequencies.counts.get(term, 0) for term in analyzer.vocabulary)
        counts = np.fromiter(known, np.int64, n_terms)
    n = np.clip(counts, 1, max(n_texts, 1))
    return np.log1p((n_texts - n + 0.5) / (n + 0.5)) if n_texts else np.ones(n_terms)


def _average(
    score: FloatArray, answer_of: IntArray, n_answers: int
) -> tuple[FloatArray, FloatArray]:
    """Return the mean score and the share of supported sentences of each answer."""
    owner, known = answer_of[~np.isnan(score)], score[~np.isnan(score)]
    counts = np.bincount(owner, minlength=n_answers).astype(np.float64)
    counts[counts == 0] = np.nan
    total, supported = (
        np.bincount(owner, weights=part, minlength=n_answers)
        for part in (known, known >= SUPPORTED)
    )
    return total / counts, supported / counts


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
_MARKER = re.compile(
    r"(?<![=(\[,:]\s)(?<![=(\[,])(?<!list\s)(?<!array\s)(?<!index\s)"
    r"\[\^?(?:(?:source|doc|document|ref)\s*)?"
    r"(?P<numbers>\d{1,3}(?:\s*[,;–-]\s*\d{1,3})*)\](?!\s*=|[(\[.]\w)",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[.;:!?。！？\n]|,?\s+but\s|,\s*(?:aber|mais|pero|ma|mas|но)\s")
_LOOK_BACK = 60


def refers_to_sources(text: str, n_sources: int) -> str:
    """Return the first words that refer to the sources, or an empty text.

    A marker `[7]` among fewer sources, or inside code, refers to nothing.

    Examples
    --------
    >>> refers_to_sources("According to the retrieved documentation, it rains.", 1)
    'According to the retrieved documentation'
    >>> refers_to_sources("Without looking at the provided context: it rains.", 1)
    ''
    """
    plain = _CODE.sub(" ", text[:MOST])
    for match in _MARKER.finditer(plain):
        if any(int(number) <= n_sources for number in re.findall(r"\d+", match["numbers"])):
            return match[0]
    for match in _REFERENCE.finditer(plain):
        before = plain[max(match.start() - _LOOK_BACK, 0) : match.start()]
        if not _NEGATOR.search(_CLAUSE.split(before)[-1]):
            return match[0]
    return ""


def acknowledges_nothing_found(text: str) -> str:
    """Return the first words that say that the sources have no answer, or an empty text.

    Examples
    --------
    >>> acknowledges_nothing_found("The documents do not mention the price.")
    'The documents do not mention'
    >>> acknowledges_nothing_found("There is no shortage of information.")
    ''
    """
    match = _ACKNOWLEDGEMENT.search(_CODE.sub(" ", text[:MOST]))
    return match[0] if match else ""


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
    "empty_answer",
]
VIOLATIONS: frozenset[Reason] = frozenset({"content_unused", "empty_answer"})
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
    cites: Sequence[bool] | None = None,
    purpose: Purpose = "answer",
    frequencies: DocumentFrequencies | None = None,
) -> list[Gap]:
    """Judge whether every answer uses its retrieved texts.

    The first condition that holds makes an answer comply:

    - Nothing was retrieved, or the purpose is `context`.
    - The answer has a citation.
    - The answer refers to the sources, rightly or wrongly, without a negation.
    - The answer states that nothing relevant was found.
    - The groundedness of one sentence is 0.5 or more.

    A quote of three words or more is also a sentence of its own, because the words around it may
    be in another language. A sentence of one or two content words must have all words in the
    evidence: "Python is great" does not use a text on Python.

    An answer without letter or digit after a retrieval is the violation `empty_answer`, because an
    empty answer must not look best. Only words are compared. So an answer that translates its
    sources without naming them is a violation.

    Parameters
    ----------
    answers
        Texts, as the user sees them.
    retrieved
        The retrieved texts of each answer; texts without content count as not retrieved.
    cites
        Whether each answer cites a retrieved text outside the text of the answer.
    purpose
        `context` exempts every answer, for retrieval that only sets the tone.
    frequencies
        As for `groundedness`.
    """
    shown = [[text for text in texts if _has_content(text)] for texts in retrieved]
    verdicts = [
        _judge_without_overlap(answer, len(texts), is_cited=is_cited, purpose=purpose)
        for answer, texts, is_cited in zip(
            answers, shown, cites or [False] * len(answers), strict=True
        )
    ]
    open_cases = [at for at, verdict in enumerate(verdicts) if verdict is None]
    scored = groundedness(
        [_with_quotes(answers[at]) for at in open_cases],
        [shown[at] for at in open_cases],
        frequencies,
    )
    uses = np.where(scored.n_words <= _FEW, scored.score >= _WHOLE, scored.score >= SUPPORTED)
    first: dict[int, str] = {}
    for sentence in np.flatnonzero(uses).tolist():
        first.setdefault(open_cases[int(scored.answer_of[sentence])], scored.sentences[sentence])
    used = {at: Gap("content_used", text[:_SHOWN]) for at, text in first.items()}
    unused = Gap("content_unused")
    return [verdict or used.get(at, unused) for at, verdict in enumerate(verdicts)]


def _judge_without_overlap(
    answer: str, n_texts: int, *, is_cited: bool, purpose: Purpose
) -> Gap | None:
    """Return a verdict without comparing texts; None if only a comparison can decide."""
    if not n_texts or purpose == "context":
        return Gap("context_only" if n_texts else "no_retrieval")
    if not _has_content(answer):
        return Gap("empty_answer")
    if is_cited:
        return Gap("cited")
    if phrase := refers_to_sources(answer, n_texts):
        return Gap("refers_to_sources", phrase[:_SHOWN])
    phrase = acknowledges_nothing_found(answer)
    return Gap("acknowledged", phrase[:_SHOWN]) if phrase else None


def _with_quotes(answer: str) -> str:
    quotes = _QUOTE.findall(answer)
    long = [quote for quote in quotes if len(comparable(quote[1:-1]).split()) >= _QUOTED_WORDS]
    return "\n\n".join([answer, *long])


def _has_content(text: str) -> bool:
    return any(character.isalnum() for character in text)
