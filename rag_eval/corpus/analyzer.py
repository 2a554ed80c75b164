"""The analyzer (text -> terms) of the lexical index, LSA, chunk sizes and comparisons.

English as Lucene treats it: lower case, possessive 's removed, Lucene's 33 stop words removed,
Porter stems. A term is a run of letters and digits of any script, so that `sort_values` and
`pandas.DataFrame` are found by their parts.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rag_eval.core.arrays import FloatArray, Int32Array, IntArray, expand_ranges

ANALYZER = "english-porter-1"
"""Name and version, part of every index_hash. Change the version with any change of behaviour."""

STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then"
    " there these they this to was will with".split()
)

WORD = re.compile(r"[^\W_]+")
_POSSESSIVE = re.compile(r"['’]s\b")


def words(text: str) -> list[str]:
    """Return the lower-cased words, stop words and inflections kept."""
    return WORD.findall(text.lower())


def count_tokens(text: str) -> int:
    """Count the words of a text."""
    return len(WORD.findall(text))


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the character ranges of the words of a text."""
    return [match.span() for match in WORD.finditer(text)]


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
        found = list(parts)
        lengths = np.concatenate([[0], *(np.diff(part.indptr) for part in found)])
        ids = np.concatenate([np.zeros(0, dtype=np.int32), *(part.ids for part in found)])
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

    def _learn(self, word: str) -> int:
        if word in STOP_WORDS:
            found = -1
        else:
            term = self.stem(word)
            found = self.vocabulary.setdefault(term, len(self.vocabulary))
        self._ids[word] = found
        return found

    def index(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the term ids of each text without stop words, and learn new terms."""
        ids, learn = self._ids, self._learn
        result = []
        for text in texts:
            lowered = text.lower()
            if "'" in lowered or "’" in lowered:
                lowered = _POSSESSIVE.sub("", lowered)
            row = [ids[word] if word in ids else learn(word) for word in WORD.findall(lowered)]
            result.append([term for term in row if term >= 0])
        return result


@functools.lru_cache(maxsize=1)
def _shared() -> Analyzer:
    return Analyzer()


def terms(text: str) -> list[str]:
    """Return the stemmed terms of one text as strings.

    Examples
    --------
    >>> terms("The reader's sort_values and Sorting")
    ['reader', 'sort', 'valu', 'sort']
    """
    analyzer = _shared()
    ids = analyzer.index([text])[0]
    names = list(analyzer.vocabulary)
    return [names[i] for i in ids]


def count_matrix(ids: Rows, n_terms: int) -> tuple[FloatArray, Int32Array, Int32Array]:
    """Count terms below `n_terms`: data, indices and indptr of a CSR matrix [len(ids), n_terms]."""
    rows = TermRows.of(ids)
    row = np.repeat(np.arange(len(rows), dtype=np.int64), np.diff(rows.indptr))
    known = rows.ids < n_terms
    keys, counts = np.unique(row[known] * n_terms + rows.ids[known], return_counts=True)
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
