"""Reading a list of synonyms, and finding its terms in questions.

Belongs here: which words a question means beside those it has, and how surely. What a match is worth is the ranking's (`scoring`) and the
answerer's business.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence
from importlib.resources import files

from pydantic import BaseModel, ConfigDict, Field

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.storage.hashing import digest

NAMES = ("data-terms",)
"""Lists that come with the package."""

SLACK = 2
"""Other terms that may stand among those of a phrase: "pull the number out" is "pull out", "text into numbers" is "numbers kept as text"."""

Phrase = tuple[int, ...]
"""Term ids of a listed phrase, stop words aside, or of a single term."""


@dataclasses.dataclass(frozen=True, slots=True)
class Mean:
    """What a word also means: all `terms` together, counted as `weight` of the word itself."""

    terms: Phrase
    weight: float


class Entry(BaseModel):
    """`terms` (words or phrases of questions) also mean `means` (words or phrases of documents), worth `weight` of themselves."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    terms: tuple[str, ...] = Field(min_length=1)
    means: tuple[str, ...] = Field(min_length=1)
    weight: float = Field(gt=0, le=1)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: int = Field(ge=1)
    ignored: tuple[str, ...] = ()
    entries: tuple[Entry, ...]


@dataclasses.dataclass(frozen=True)
class Expansion:
    """A list of synonyms.

    Parameters
    ----------
    name, version
        Of the list.
    ignored
        Words that ask and say nothing of the subject: by themselves they count nothing, but they may be part of a phrase.
    entries
        Its entries, in the order of the file.
    identity
        Name, version and content hash: what an index_hash carries. White space in the file does not change it.
    """

    name: str
    version: int
    ignored: tuple[str, ...]
    entries: tuple[Entry, ...]
    identity: str

    @classmethod
    def load(cls, name: str) -> "Expansion":
        """Read a list that comes with the package; each is read once.

        Raises
        ------
        ValueError
            There is no list of this name, or it is malformed.
        """
        return _load(name)

    @classmethod
    def parse(cls, text: str | bytes, name: str) -> "Expansion":
        """Read `{"version": 1, "ignored": [...], "entries": [{"terms": [...], "means": [...], "weight": 0.6}, ...]}`.

        Raises
        ------
        ValueError
            Naming each faulty entry, what was found and what is accepted.
        """
        file = _File.model_validate_json(text)
        return cls(
            name,
            file.version,
            file.ignored,
            file.entries,
            f"{name}-{file.version}@{digest(file.model_dump(mode='json'), 16)}",
        )

    def bind(self, analyzer: Analyzer) -> "BoundExpansion":
        """Translate the list into term ids of one analyzer, whose vocabulary grows by the list's terms."""
        return BoundExpansion(self, analyzer)

    def expand(self, texts: Sequence[str]) -> list[list[tuple[str, float]]]:
        """Extra terms of each text.

        Parameters
        ----------
        texts
            Questions, any number.

        Returns
        -------
        list of list of (term, weight)
            Stemmed terms that the text itself lacks, each with its largest weight; heaviest first, then by term. A meaning of several terms
            gives each of them.
        """
        analyzer = Analyzer()
        bound = self.bind(analyzer)
        rows = analyzer.index(texts)
        vocabulary = list(analyzer.vocabulary)
        result = []
        for row, phrases in zip(rows, bound.phrases(rows), strict=True):
            heaviest: dict[int, float] = {}
            for mean in (mean for phrase in phrases for mean in bound.all_means(phrase)):
                for term in mean.terms:
                    heaviest[term] = max(mean.weight, heaviest.get(term, 0.0))
            own = set(row)
            found = [
                (vocabulary[term], weight) for term, weight in heaviest.items() if term not in own
            ]
            result.append(sorted(found, key=lambda pair: (-pair[1], pair[0])))
        return result


class BoundExpansion:
    """A list of synonyms in the term ids of one analyzer. The cost of a question is a dictionary look-up a term."""

    def __init__(self, expansion: Expansion, analyzer: Analyzer) -> None:
        self.ignored = frozenset(term for row in analyzer.index(expansion.ignored) for term in row)
        terms = iter(analyzer.index([term for entry in expansion.entries for term in entry.terms]))
        means = iter(analyzer.index([mean for entry in expansion.entries for mean in entry.means]))
        found: dict[Phrase, dict[Phrase, float]] = {}
        for entry in expansion.entries:
            meant = [tuple(next(means)) for _ in entry.means]
            for _ in entry.terms:
                phrase = tuple(next(terms))
                its = found.setdefault(phrase, {})
                for mean in meant:
                    if phrase and mean and mean != phrase:
                        its[mean] = max(entry.weight, its.get(mean, 0.0))
        self._means = {
            phrase: tuple(Mean(terms, weight) for terms, weight in its.items())
            for phrase, its in found.items()
            if its
        }
        self._number = {phrase: number for number, phrase in enumerate(self._means)}
        self._having: dict[int, list[Phrase]] = {}
        for phrase in self._means:
            if len(phrase) > 1:
                self._having.setdefault(phrase[-1], []).append(phrase)

    def means(self, phrase: Phrase) -> tuple[Mean, ...]:
        """What exactly this phrase also means."""
        return self._means.get(phrase, ())

    def all_means(self, phrase: Phrase) -> tuple[Mean, ...]:
        """What a phrase means, as a whole and by its single terms."""
        single = (
            ()
            if len(phrase) == 1
            else tuple(mean for term in phrase for mean in self.means((term,)))
        )
        return (*self.means(phrase), *single)

    def phrases(self, rows: Sequence[Sequence[int]]) -> list[list[Phrase]]:
        """Cut questions into listed phrases and the single terms left over.

        A phrase is found where all its terms stand close together, in any order; longer ones come first, then those closer together, then
        those in the order of the list's writing.

        Parameters
        ----------
        rows
            Term ids of each question.

        Returns
        -------
        list of list of Phrase
            Each term of the question is in one phrase, as often as it stands there.
        """
        return [
            [
                tuple(row[place] for place in places) if phrase is None else phrase
                for places, phrase in self._cut(row)
            ]
            for row in rows
        ]

    def _cut(self, row: Sequence[int]) -> list[tuple[tuple[int, ...], Phrase | None]]:
        """Places in the question of each phrase, and the phrase; by first place."""
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
        free, found = set(range(len(row))), []
        for *_, span, phrase in sorted(candidates):
            if free.issuperset(span):
                free.difference_update(span)
                found.append((span, phrase))
        singles: list[tuple[tuple[int, ...], Phrase | None]] = [((place,), None) for place in free]
        return sorted([*found, *singles], key=lambda pair: min(pair[0]))


def _spans(phrase: Phrase, places: dict[int, list[int]]) -> list[tuple[int, ...]]:
    """Where a phrase stands in a question, one set of places for each occurrence of its first term; none where they are too far apart."""
    found = []
    for start in places[phrase[0]]:
        span = [start]
        for term in phrase[1:]:
            left = [place for place in places[term] if place not in span]
            if not left:
                break
            span.append(min(left, key=lambda place: (abs(place - span[-1]), place)))
        if len(span) == len(phrase) and max(span) - min(span) < len(phrase) + SLACK:
            found.append(tuple(span))
    return found


@functools.lru_cache(maxsize=4)
def _load(name: str) -> Expansion:
    if name not in NAMES:
        raise ValueError(f"expansion: found {name!r}, accepted {', '.join(NAMES)}")
    file = re.sub(r"[^a-z]", "_", name) + ".json"
    return Expansion.parse((files("rag_eval.retrieval.synonyms") / file).read_bytes(), name)
