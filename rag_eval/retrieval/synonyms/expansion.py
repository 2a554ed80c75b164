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

Phrase = tuple[int, ...]
"""Term ids that stand next to each other, stop words aside."""


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
    entries: tuple[Entry, ...]


@dataclasses.dataclass(frozen=True)
class Expansion:
    """A list of synonyms.

    Parameters
    ----------
    name, version
        Of the list.
    entries
        Its entries, in the order of the file.
    identity
        Name, version and content hash: what an index_hash carries. White space in the file does not change it.
    """

    name: str
    version: int
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
        """Read `{"version": 1, "entries": [{"terms": [...], "means": [...], "weight": 0.6}, ...]}`.

        Raises
        ------
        ValueError
            Naming each faulty entry, what was found and what is accepted.
        """
        file = _File.model_validate_json(text)
        return cls(name, file.version, file.entries, f"{name}-{file.version}@{digest(file.model_dump(mode='json'), 16)}")

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
            found = [(vocabulary[term], weight) for term, weight in heaviest.items() if term not in own]
            result.append(sorted(found, key=lambda pair: (-pair[1], pair[0])))
        return result


class BoundExpansion:
    """A list of synonyms in the term ids of one analyzer. The cost of a question is a dictionary look-up a term."""

    def __init__(self, expansion: Expansion, analyzer: Analyzer) -> None:
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
        self._means = {phrase: tuple(Mean(terms, weight) for terms, weight in its.items()) for phrase, its in found.items() if its}
        by_start: dict[int, set[int]] = {}
        for phrase in self._means:
            by_start.setdefault(phrase[0], set()).add(len(phrase))
        self._lengths = {start: tuple(sorted(lengths, reverse=True)) for start, lengths in by_start.items()}

    def means(self, phrase: Phrase) -> tuple[Mean, ...]:
        """What exactly this phrase also means."""
        return self._means.get(phrase, ())

    def all_means(self, phrase: Phrase) -> tuple[Mean, ...]:
        """What a phrase means, as a whole and by its single terms."""
        single = () if len(phrase) == 1 else tuple(mean for term in phrase for mean in self.means((term,)))
        return (*self.means(phrase), *single)

    def phrases(self, rows: Sequence[Sequence[int]]) -> list[list[Phrase]]:
        """Cut questions into listed phrases, the longest first, and the single terms between them.

        Parameters
        ----------
        rows
            Term ids of each question.

        Returns
        -------
        list of list of Phrase
            Strung together, they are the question's terms.
        """
        return [self._cut(tuple(row)) for row in rows]

    def _cut(self, row: Phrase) -> list[Phrase]:
        found, start = [], 0
        while start < len(row):
            lengths = self._lengths.get(row[start], ())
            length = next((length for length in lengths if row[start : start + length] in self._means), 1)
            found.append(row[start : start + length])
            start += length
        return found


@functools.lru_cache(maxsize=4)
def _load(name: str) -> Expansion:
    if name not in NAMES:
        raise ValueError(f"expansion: found {name!r}, accepted {', '.join(NAMES)}")
    file = re.sub(r"[^a-z]", "_", name) + ".json"
    return Expansion.parse((files("rag_eval.retrieval.synonyms") / file).read_bytes(), name)
