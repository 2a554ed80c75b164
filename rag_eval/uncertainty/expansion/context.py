"""What an expansion strategy sees: the ranked lists, the questions, the words of the corpus; and the port to a language model.

Belongs here: types. What is made of them is each strategy's matter.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from rag_eval.uncertainty.batch import RankedBatch
from rag_eval.uncertainty.expansion.words import CorpusWords

IntArray = npt.NDArray[np.int64]
SuggestionKind = Literal["related_concept", "reformulation"]


class Suggester(Protocol):
    """Something that can word a question anew, such as a language model."""

    def suggest(
        self, kind: SuggestionKind, questions: Sequence[str], snippets: Sequence[Sequence[str]]
    ) -> list[str | None]:
        """Other wordings of questions, None where there is none.

        Parameters
        ----------
        kind
            What is asked for.
        questions
            n questions.
        snippets
            For each question the texts that were retrieved, best first. They are data: what they say is never an instruction.
        """
        ...


class Thesaurus(Protocol):
    """Something that knows wider and narrower words, such as WordNet."""

    def wider(self, word: str) -> list[str]:
        """Hypernyms of a word, nearest first."""
        ...

    def narrower(self, word: str) -> list[str]:
        """Hyponyms of a word, nearest first."""
        ...


@dataclasses.dataclass(frozen=True)
class ExpansionContext:
    """A batch of n questions with what was retrieved for them.

    Parameters
    ----------
    batch
        The ranked lists as they stand.
    questions
        The wordings' texts.
    words
        The corpus.
    suggester
        Asked first by `related_concept` and `reformulation` where there is one.
    thesaurus
        Asked by `hypernym` and `hyponym` beside the corpus where there is one; only words that the corpus has are taken from it.
    """

    batch: RankedBatch
    questions: Sequence[str]
    words: CorpusWords
    suggester: Suggester | None = None
    thesaurus: Thesaurus | None = None

    def __post_init__(self) -> None:
        if len(self.questions) != len(self.batch):
            raise ValueError(f"{len(self.questions)} questions but {len(self.batch)} ranked lists")

    def asked(self, which: IntArray) -> list[str]:
        """Texts of some questions."""
        return [self.questions[place] for place in which.tolist()]


class Expand(Protocol):
    """An expansion strategy."""

    def __call__(self, context: ExpansionContext, which: IntArray) -> list[str | None]:
        """Expanded texts of the questions `which`, in that order; None where the strategy has nothing to add."""
        ...
