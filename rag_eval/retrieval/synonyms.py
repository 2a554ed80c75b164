"""Lists of synonyms, and BM25 over the terms of a question and their synonyms."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from rag_eval.core.arrays import FloatArray
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.storage.hashing import digest

FILES = {"data-terms": "data_terms.json"}
"""File of each list that comes with the package."""

SLACK = 2
"""Number of other terms allowed inside a phrase: "pull the number out" is "pull out"."""

Phrase = tuple[int, ...]
"""Term ids of a listed phrase without stop words, or of a single term."""


@dataclasses.dataclass(frozen=True, slots=True)
class Mean:
    """A synonym of a phrase. All `terms` together count as `weight` times the phrase."""

    terms: Phrase
    weight: float


class Entry(BaseModel):
    """An entry of a list: `terms` in a question also mean `means` in documents, with `weight`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    terms: tuple[str, ...] = Field(min_length=1)
    means: tuple[str, ...] = Field(min_length=1)
    weight: float = Field(gt=0, le=1)


class Expansion(BaseModel):
    """A list of synonyms. `ignored` words count within a phrase, and are ignored alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: int = Field(ge=1)
    ignored: tuple[str, ...] = ()
    entries: tuple[Entry, ...]

    @staticmethod
    @functools.cache
    def load(name: str) -> "Expansion":
        """Read a list that comes with the package."""
        file = files("rag_eval.retrieval").joinpath(FILES[name])
        return Expansion.model_validate_json(file.read_bytes())

    def identify(self, name: str) -> str:
        """Write name, version and content hash, which are part of an index_hash."""
        return f"{name}-{self.version}@{digest(self.model_dump(mode='json'), 16)}"

    def bind(self, analyzer: Analyzer) -> "BoundExpansion":
        """Translate the list into term ids of an analyzer, whose vocabulary grows by its terms."""
        return BoundExpansion(self, analyzer)


class BoundExpansion:
    """A list of synonyms in the term ids of one analyzer."""

    def __init__(self, expansion: Expansion, analyzer: Analyzer) -> None:
        self.ignored = frozenset(term for row in analyzer.index(expansion.ignored) for term in row)
        heaviest: dict[Phrase, dict[Phrase, float]] = {}
        for entry in expansion.entries:
            phrases = map(tuple, analyzer.index(entry.terms))
            means = [tuple(row) for row in analyzer.index(entry.means)]
            for phrase, mean in itertools.product(phrases, means):
                if phrase and mean and mean != phrase:
                    known = heaviest.setdefault(phrase, {})
                    known[mean] = max(entry.weight, known.get(mean, 0.0))
        self._means = {
            phrase: tuple(Mean(terms, weight) for terms, weight in known.items())
            for phrase, known in heaviest.items()
        }
        self._having: dict[int, list[tuple[int, Phrase]]] = {}
        for number, phrase in enumerate(self._means):
            if len(phrase) > 1:
                self._having.setdefault(phrase[-1], []).append((number, phrase))

    def means(self, phrase: Phrase) -> tuple[Mean, ...]:
        """Return the synonyms of exactly this phrase; empty without any."""
        return self._means.get(phrase, ())

    def phrases(self, rows: Sequence[Sequence[int]]) -> list[list[Phrase]]:
        """Cut questions, given as term ids, into listed phrases and the remaining single terms.

        The terms of a phrase stand close together, in any order. Longer phrases win, then closer
        terms, then the order of the list. Each occurrence of a term is in one phrase.
        """
        return [self._cut(row) for row in rows]

    def _cut(self, row: Sequence[int]) -> list[Phrase]:
        places: dict[int, list[int]] = {}
        for place, term in enumerate(row):
            places.setdefault(term, []).append(place)
        candidates = [
            (-len(phrase), max(span) - min(span), list(span) != sorted(span), number, span, phrase)
            for term in places
            for number, phrase in self._having.get(term, ())
            if all(other in places for other in phrase)
            for span in _spans(phrase, places)
        ]
        found: dict[int, Phrase] = {place: (term,) for place, term in enumerate(row)}
        taken = set[int]()
        for *_, span, phrase in sorted(candidates):
            if taken.isdisjoint(span):
                taken.update(span)
                for place in span:
                    del found[place]
                found[min(span)] = phrase
        return [found[place] for place in sorted(found)]


def _spans(phrase: Phrase, places: dict[int, list[int]]) -> list[tuple[int, ...]]:
    """Find places of a phrase in a question, at most one for each occurrence of its first term."""
    spans = []
    for start in places[phrase[0]]:
        span = [start]
        for term in phrase[1:]:
            left = [place for place in places[term] if place not in span]
            if not left:
                break
            span.append(min(left, key=lambda place: (abs(place - span[-1]), place)))
        if len(span) == len(phrase) and max(span) - min(span) < len(phrase) + SLACK:
            spans.append(tuple(span))
    return spans


# ---- BM25 over the terms of a question and their synonyms.

SCORING = "norm-2"
"""Name of the formula in an index_hash. A change of behaviour needs a new name."""


class ExpandedScores:
    """Scores of chunks for widened questions.

    `postings` holds the score of each term in each chunk, CSR [n_terms, n_chunks]. A phrase scores
    the sum of its terms. Each synonym is added to the score s of a phrase as sqrt(s^2 + (w m)^2):
    m is the mean score of its terms in chunks that have all of them. The weight w is the listed one
    times the length of the phrase, and no synonym counts as rarer than its phrase.
    """

    def __init__(self, postings: Any) -> None:
        self._postings = postings
        n_terms, self.n_chunks = postings.shape
        frequency = np.diff(postings.indptr)
        self._idf = np.log1p((self.n_chunks - frequency + 0.5) / (frequency + 0.5))
        self._known = frozenset(np.flatnonzero(frequency[:n_terms]).tolist())

    def dense(self, expansion: BoundExpansion, rows: Sequence[Sequence[int]]) -> FloatArray:
        """Score every chunk for each query, [n, n_chunks]."""
        scores = np.zeros((len(rows), self.n_chunks))
        for query, phrases in enumerate(expansion.phrases(rows)):
            for phrase in phrases:
                scores[query] += self._widen(expansion, phrase)
        return scores

    def _widen(self, expansion: BoundExpansion, phrase: Phrase) -> FloatArray:
        """Score a phrase with its synonyms, [n_chunks]; a term of it has its own synonyms too."""
        if len(phrase) > 1:
            scores = np.sum([self._widen(expansion, (term,)) for term in phrase], axis=0)
        elif expansion.ignored.isdisjoint(phrase):
            scores = self._score(phrase[0])
        else:
            scores = np.zeros(self.n_chunks)
        rarest = self._idf[list(phrase)].max() if self._known.issuperset(phrase) else np.inf
        squares = scores**2
        for mean in expansion.means(phrase):
            terms = list(dict.fromkeys(mean.terms))
            if self._known.issuperset(terms):
                parts = np.stack([self._score(term) for term in terms])
                meant = np.where((parts > 0).all(axis=0), parts.mean(axis=0), 0.0)
                limit = min(1.0, rarest / max(self._idf[terms].mean(), 1e-9))
                squares += (len(phrase) * mean.weight * limit * meant) ** 2
        return np.asarray(np.sqrt(squares))

    def _score(self, term: int) -> FloatArray:
        scores = np.zeros(self.n_chunks)
        if term in self._known:
            part = slice(*self._postings.indptr[term : term + 2])
            scores[self._postings.indices[part]] = self._postings.data[part]
        return scores
