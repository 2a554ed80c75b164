"""The analyzer (text -> terms) of the lexical index, LSA, chunk sizes and comparisons; numbers.

English as Lucene treats it: lower case, possessive 's removed, Lucene's 33 stop words removed,
Porter stems. A term is a run of letters and digits of any script, so that `sort_values` and
`pandas.DataFrame` are found by their parts. A run of a script without blanks between words gives
its overlapping pairs of characters, as in Lucene's CJKAnalyzer, and a single character itself.
Full-width letters and digits count as those of ASCII, and letters with marks as composed letters.
"""

import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rag_eval.core.arrays import FloatArray, Int32Array, IntArray, expand_ranges

ANALYZER = "english-porter-1"
"""Name and version of the rules for words between blanks. Change it with any change of them."""
BIGRAM_ANALYZER = f"{ANALYZER}+bigrams-2"
"""Name for texts that `_IS_CUT` finds, so that the index of other texts keeps its hash."""

STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then"
    " there these they this to was will with".split()
)

BLANKLESS = (
    r"\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf"  # Thai, Lao
    r"\u1000-\u103f\u1050-\u108f\u1780-\u17d3\u17dc\u17dd"  # Myanmar, Khmer
    r"\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb\uffa0-\uffdc"  # Hangul
    r"\u3041-\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u312f\u31f0-\u31ff\uff66-\uff9f"  # kana
    r"\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
"""Characters of scripts without blanks between words, combining marks included."""
MAX_WORD = 64
"""Most characters of a word that counts as one token, and of symbols that count as none."""

WORD = re.compile(r"[^\W_]+")
_WIDE = {0xFEE0 + code: code for code in range(0x21, 0x7F)}  # full-width forms of ASCII
_IS_CUT = re.compile(rf"[{BLANKLESS}\u0300-\u036f\uff01-\uff5e]")
_PART = re.compile(rf"(?P<run>[{BLANKLESS}]+)|[^\W_{BLANKLESS}]+")


def _compile_tokens(letter: str, symbol: str, blankless: str = r"[^\s\S]") -> re.Pattern[str]:
    whole = rf"(?<!{letter}){letter}{{1,{MAX_WORD}}}+(?!{letter})"
    beyond = rf"{symbol}(?<={symbol}{{{MAX_WORD + 1}}}){symbol}{{0,3}}+"
    return re.compile(rf"{whole}|{letter}{{1,4}}+|{blankless}|{beyond}")


_ASCII_TOKEN = _compile_tokens("[a-zA-Z0-9]", r"[^\sa-zA-Z0-9]")  # three times as fast
_TOKEN = _compile_tokens(
    rf"[^\W_{BLANKLESS}]",
    r"(?:[^\w\s]|_)",
    rf"[{BLANKLESS}](?:(?!\w)[{BLANKLESS}]){{0,8}}+",  # a character with its marks
)
_POSSESSIVE = re.compile(r"['’]s\b")


def words(text: str) -> list[str]:
    """Return the lower-cased words, stop words and inflections kept."""
    return WORD.findall(text.lower())


def count_tokens(text: str) -> int:
    """Count the tokens of a text, as `token_spans` finds them."""
    return len(_token_pattern(text).findall(text))


def _token_pattern(text: str) -> re.Pattern[str]:
    return _ASCII_TOKEN if text.isascii() else _TOKEN


def token_spans(text: str, start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """Return the character ranges of the tokens of text[start:end].

    A token is a word, a character of a script without blanks, or four characters of a word or of
    symbols that are longer than `MAX_WORD`, so that no text is long and has few tokens.
    """
    end = len(text) if end is None else end
    return [match.span() for match in _token_pattern(text).finditer(text, start, end)]


def name_analyzer(texts: Iterable[str]) -> str:
    """Name the rules that texts are cut into terms by."""
    is_cut = any(not text.isascii() and _IS_CUT.search(text) for text in texts)
    return BIGRAM_ANALYZER if is_cut else ANALYZER


def _split(text: str) -> Iterator[str]:
    """Yield the words of a text, and the pairs of characters of runs without blanks."""
    for match in _PART.finditer(unicodedata.normalize("NFC", text.translate(_WIDE))):
        if match.lastgroup is None:
            yield match[0]
        else:  # half-width and composed forms become the usual characters
            run = unicodedata.normalize("NFKC", match[0])
            yield from map("".join, itertools.pairwise(run)) if len(run) > 1 else (run,)


def find_pairs(vocabulary: Iterable[str]) -> dict[str, list[int]]:
    """Return the ids of the pairs of characters that hold each character."""
    pairs: dict[str, list[int]] = {}
    for term, name in enumerate(vocabulary):
        if len(name) > 1 and _IS_CUT.match(name):
            for character in dict.fromkeys(name):
                pairs.setdefault(character, []).append(term)
    return pairs


BLOCK = 32_768
"""Number of texts in a block of `TermRows`."""


@dataclasses.dataclass(frozen=True)
class TermRows:
    """Term ids of texts in two flat arrays, which may be memory-mapped.

    Text i has the terms `ids[indptr[i] : indptr[i + 1]]`, with every repetition.
    """

    indptr: IntArray
    ids: Int32Array

    @staticmethod
    def of(rows: "Rows") -> "TermRows":
        """Flatten lists of term ids."""
        if isinstance(rows, TermRows):
            return rows
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        flat = itertools.chain.from_iterable(rows)
        ids = np.fromiter(flat, dtype=np.int32, count=int(lengths.sum()))
        return TermRows(np.concatenate([[0], np.cumsum(lengths)]), ids)

    @staticmethod
    def join(parts: "Iterable[TermRows]") -> "TermRows":
        """Join the texts of several parts."""
        rows = list(parts)
        lengths = np.concatenate([[0], *(np.diff(part.indptr) for part in rows)])
        ids = np.concatenate([np.zeros(0, dtype=np.int32), *(part.ids for part in rows)])
        return TermRows(np.cumsum(lengths), ids)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def blocks(self, size: int | None = None) -> "Iterator[TermRows]":
        """Cut the texts into blocks of `size`, default `BLOCK`, which bound the memory of work."""
        size = size or BLOCK
        for start in range(0, len(self), size):
            indptr = self.indptr[start : start + size + 1]
            yield TermRows(indptr - indptr[0], self.ids[indptr[0] : indptr[-1]])

    def take(self, rows: IntArray) -> "TermRows":
        """Return the texts of these rows."""
        lengths = np.diff(self.indptr)[rows]
        _, places = expand_ranges(self.indptr[rows], lengths)
        return TermRows(np.concatenate([[0], np.cumsum(lengths)]), self.ids[places])

    @property
    def n_terms(self) -> int:
        """One more than the highest id."""
        return 1 + int(self.ids.max(initial=-1))


Rows = Sequence[Sequence[int]] | TermRows
"""Term ids of texts."""


class Analyzer:
    """Maps texts to term ids over one growing vocabulary; each distinct word is stemmed once."""

    def __init__(self) -> None:
        import Stemmer

        self.stem = Stemmer.Stemmer("porter").stemWord
        self.vocabulary: dict[str, int] = {}
        self._ids: dict[str, int] = {}

    def learn(self, word: str) -> int:
        """Return the term id of one word in lower case; -1 for a stop word."""
        if word in STOP_WORDS:
            number = -1
        else:
            term = self.stem(word)
            number = self.vocabulary.setdefault(term, len(self.vocabulary))
        self._ids[word] = number
        return number

    def index(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the term ids of each text without stop words, and learn new terms."""
        ids, learn = self._ids, self.learn
        result = []
        for text in texts:
            lowered = text.lower()
            if "'" in lowered or "’" in lowered:
                lowered = _POSSESSIVE.sub("", lowered)
            is_cut = not lowered.isascii() and _IS_CUT.search(lowered)
            texts_words = _split(lowered) if is_cut else WORD.findall(lowered)
            row = [ids[word] if word in ids else learn(word) for word in texts_words]
            result.append([term for term in row if term >= 0])
        return result


@functools.lru_cache(maxsize=1)
def _shared() -> Analyzer:
    return Analyzer()


def terms(text: str) -> list[str]:
    """Return the stemmed terms of one text as strings."""
    analyzer = _shared()
    ids = analyzer.index([text])[0]
    names = list(analyzer.vocabulary)
    return [names[i] for i in ids]


def count_matrix(ids: Rows, n_terms: int) -> tuple[FloatArray, Int32Array, Int32Array]:
    """Count terms below `n_terms`: data, indices and indptr of a CSR matrix [len(ids), n_terms]."""
    rows = TermRows.of(ids)
    row = np.repeat(np.arange(len(rows), dtype=np.int64), np.diff(rows.indptr))
    in_vocabulary = rows.ids < n_terms
    keys, counts = np.unique(
        row[in_vocabulary] * n_terms + rows.ids[in_vocabulary], return_counts=True
    )
    indptr = np.searchsorted(keys, np.arange(len(rows) + 1, dtype=np.int64) * n_terms)
    return counts.astype(np.float64), (keys % n_terms).astype(np.int32), indptr.astype(np.int32)


class DocumentFrequencies(NamedTuple):
    """Number of texts, and the number of texts that have each term of the analyzer."""

    n_texts: int
    counts: Mapping[str, int]


def count_documents(texts: Sequence[str]) -> DocumentFrequencies:
    """Count the texts that have each term."""
    analyzer = Analyzer()
    rows = analyzer.index(texts)
    terms = np.fromiter(itertools.chain.from_iterable(map(set, rows)), np.int64)
    counts = np.bincount(terms, minlength=len(analyzer.vocabulary)).tolist()
    return DocumentFrequencies(len(texts), dict(zip(analyzer.vocabulary, counts, strict=True)))


# ---- Numbers of a text

NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
"""Words for 0 to 20."""
_SPELLED = {word: str(number) for number, word in enumerate(NUMBER_WORDS) if word != "one"}
_SPELLED_WORD = re.compile(rf"\b(?:{'|'.join(_SPELLED)})\b", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![^\W_])\d+(?:[.,]\d+)*")
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:[.,]\d{3})+")


@functools.lru_cache(maxsize=4096)
def spell_number(number: str) -> str:
    """Spell a number with a decimal point, without separators of thousands and idle zeros."""
    if not number.isascii():
        number = "".join(char if char in ".," else str(unicodedata.digit(char)) for char in number)
    if _GROUPED.fullmatch(number):
        return re.sub(r"[.,]", "", number)
    whole, point, decimals = number.replace(",", ".").partition(".")
    whole = whole.lstrip("0") or "0"
    decimals = decimals if "." in decimals else decimals.rstrip("0")
    return f"{whole}.{decimals}" if point and decimals else whole


def numbers(text: str) -> list[str]:
    """Find numbers and spell them alike, so that those of two texts can be compared.

    A point or comma before three digits separates thousands, so `3.125` is 3125. A number that
    starts with 0 has no thousands. The rule holds for answers and for evidence.
    """
    return [spell_number(number) for number in _NUMBER.findall(text)]


def spell_alike(text: str) -> str:
    """Write the numbers of a text alike, number words in digits; "one" seldom counts, and stays."""
    digits = _SPELLED_WORD.sub(lambda word: _SPELLED[word[0].lower()], text)
    return _NUMBER.sub(lambda number: spell_number(number[0]), digits)
