"""Lists of synonyms, and BM25 over the terms of a question and their synonyms."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

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
        self._number = {phrase: number for number, phrase in enumerate(self._means)}
        self._having: dict[int, list[Phrase]] = {}
        for phrase in self._means:
            if len(phrase) > 1:
                self._having.setdefault(phrase[-1], []).append(phrase)

    def means(self, phrase: Phrase) -> tuple[Mean, ...]:
        """Return the synonyms of exactly this phrase; empty without any."""
        return self._means.get(phrase, ())

    def phrases(self, rows: Sequence[Sequence[int]]) -> list[list[Phrase]]:
        """Cut questions, given as term ids, into listed phrases and the remaining single terms.

        The terms of a phrase stand close together, in any order. Longer phrases win, then closer
        terms, then the order of the list. Each occurrence of a term is in one phrase.
        """
        return [
            [
                tuple(row[place] for place in places) if phrase is None else phrase
                for places, phrase in self._cut(row)
            ]
            for row in rows
        ]

    def _cut(self, row: Sequence[int]) -> list[tuple[tuple[int, ...], Phrase | None]]:
        """Return (places in the question, phrase) by first place; None for a single term."""
        places: dict[int, list[int]] = {}
        for place, term in enumerate(row):
            places.setdefault(term, []).append(place)
        candidates = []
        for term in places:
            for phrase in self._having.get(term, ()):
                if all(other in places for other in phrase):
                    candidates += [
                        (
                            -len(phrase),
                            max(span) - min(span),
                            list(span) != sorted(span),
                            self._number[phrase],
                            span,
                            phrase,
                        )
                        for span in _spans(phrase, places)
                    ]
        free, chosen = set(range(len(row))), []
        for *_, span, phrase in sorted(candidates):
            if free.issuperset(span):
                free.difference_update(span)
                chosen.append((span, phrase))
        singles: list[tuple[tuple[int, ...], Phrase | None]] = [((place,), None) for place in free]
        return sorted([*chosen, *singles], key=lambda pair: min(pair[0]))


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

    `data`, `indices`, `indptr` are the score of each term in each chunk, as compressed rows.
    """

    def __init__(
        self,
        data: npt.NDArray[np.float32],
        indices: npt.NDArray[np.int32],
        indptr: npt.NDArray[np.int64],
        n_terms: int,
        n_chunks: int,
    ) -> None:
        self._terms = _csr(
            (data.astype(np.float64), indices, indptr[: n_terms + 1]), (n_terms, n_chunks)
        )
        self._there = _csr(
            (np.ones(len(data)), indices, indptr[: n_terms + 1]), (n_terms, n_chunks)
        )
        frequency = np.diff(self._terms.indptr)
        self._idf = np.log1p((n_chunks - frequency + 0.5) / (frequency + 0.5))
        self._known = frequency > 0

    def dense(
        self, expansion: BoundExpansion, rows: Sequence[Sequence[int]]
    ) -> npt.NDArray[np.float64]:
        """Score every chunk for each query, [n, n_chunks].

        Each distinct term, phrase and meaning of the batch is scored once. Their order is by term
        ids, so that a query's sum has the same bits alone and in a batch.
        """
        cut = expansion.phrases(rows)
        tokens = {
            term: place for place, term in enumerate(sorted({term for row in rows for term in row}))
        }
        phrases = {
            phrase: len(tokens) + place
            for place, phrase in enumerate(
                sorted({phrase for parts in cut for phrase in parts if len(phrase) > 1})
            )
        }
        singles, several = [(term,) for term in tokens], list(phrases)
        scores = self._widened(self._terms_of(singles, expansion.ignored), singles, expansion)
        if several:
            from scipy.sparse import vstack

            members = [
                (place, tokens[term], 1.0)
                for place, phrase in enumerate(several)
                for term in phrase
            ]
            sums = _entries(members, (len(several), len(tokens))) @ scores
            scores = vstack([scores, self._widened(sums, several, expansion)], format="csr")
        asked = [
            (query, tokens[phrase[0]] if len(phrase) == 1 else phrases[phrase], 1.0)
            for query, parts in enumerate(cut)
            for phrase in parts
        ]
        return np.asarray((_entries(asked, (len(rows), scores.shape[0])) @ scores).toarray())

    def _has(self, phrase: Phrase) -> bool:
        return all(term < len(self._known) and self._known[term] for term in phrase)

    def _rarity(self, phrase: Phrase) -> float:
        return float(self._idf[list(phrase)].max()) if self._has(phrase) else np.inf

    def _terms_of(self, singles: Sequence[Phrase], ignored: frozenset[int]) -> Any:
        known = [
            (place, term, 1.0)
            for place, (term,) in enumerate(singles)
            if self._has((term,)) and term not in ignored
        ]
        return _entries(known, (len(singles), len(self._known))) @ self._terms

    def _widened(self, scores: Any, phrases: Sequence[Phrase], expansion: BoundExpansion) -> Any:
        """Add the meanings of phrases to their scores, CSR [len(phrases), n_chunks]."""
        found: list[tuple[int, Mean]] = [
            (place, mean)
            for place, phrase in enumerate(phrases)
            for mean in expansion.means(phrase)
            if self._has(mean.terms)
        ]
        if not found:
            return scores
        means = {
            terms: place for place, terms in enumerate(sorted({mean.terms for _, mean in found}))
        }
        meant, rarity = self._together(list(means))
        rarest = [self._rarity(phrase) for phrase in phrases]
        values = [
            (
                place,
                means[mean.terms],
                len(phrases[place])
                * mean.weight
                * min(1.0, rarest[place] / max(rarity[means[mean.terms]], 1e-9)),
            )
            for place, mean in found
        ]
        weights = _entries(values, (len(phrases), len(means)))
        return (scores.power(2) + weights.power(2) @ meant.power(2)).sqrt()

    def _together(self, means: Sequence[Phrase]) -> tuple[Any, npt.NDArray[np.float64]]:
        """Return scores of meanings (0 for a chunk without all terms) and their mean idf."""
        distinct = [tuple(dict.fromkeys(terms)) for terms in means]
        member = _entries(
            [(place, term, 1.0) for place, terms in enumerate(distinct) for term in terms],
            (len(means), len(self._known)),
        )
        sizes = member.sum(axis=1)
        whole = (member @ self._there).tocoo()
        kept = whole.data >= sizes[whole.row]
        complete = _csr(
            (1.0 / sizes[whole.row[kept]], (whole.row[kept], whole.col[kept])), whole.shape
        )
        return (member @ self._terms).multiply(complete).tocsr(), np.asarray(
            member @ self._idf / sizes
        )


def _csr(parts: Any, shape: tuple[int, int]) -> Any:
    from scipy.sparse import csr_array

    return csr_array(parts, shape=shape)


def _entries(entries: Sequence[tuple[int, int, float]], shape: tuple[int, int]) -> Any:
    """Make a CSR array of (row, column, value); values at equal places are added."""
    rows, columns, values = (
        np.array([entry[i] for entry in entries], dtype=kind)
        for i, kind in enumerate((np.int64, np.int64, np.float64))
    )
    return _csr((values, (rows, columns)), shape)
