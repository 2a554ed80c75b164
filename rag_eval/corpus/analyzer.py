"""The analyzer (text -> terms) of the lexical index, LSA, chunk sizes and comparisons.

English as Lucene treats it: lower case, possessive 's removed, Lucene's 33 stop words removed,
Porter stems. A term is a run of letters and digits of any script, so that `sort_values` and
`pandas.DataFrame` are found by their parts.
"""

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

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


def count_matrix(
    ids: Sequence[Sequence[int]], n_terms: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count terms below `n_terms`: data, indices and indptr of a CSR matrix [len(ids), n_terms]."""
    lengths = np.fromiter((len(row) for row in ids), dtype=np.int64, count=len(ids))
    flat = np.fromiter(
        (term for row in ids for term in row), dtype=np.int64, count=int(lengths.sum())
    )
    rows = np.repeat(np.arange(len(ids), dtype=np.int64), lengths)
    known = flat < n_terms
    keys, counts = np.unique(rows[known] * n_terms + flat[known], return_counts=True)
    indptr = np.searchsorted(keys, np.arange(len(ids) + 1, dtype=np.int64) * n_terms)
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
