"""What answering works with: the corpus, the ranking and the answerers, by the protocols that they keep to.

Belongs here: types. `Chat` is `rag_eval.records.answers`; the retriever's type is `preflights.Retriever`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rag_eval.answers.evidence import Library
from rag_eval.answers.pool import Passage
from rag_eval.answers.preflights import Retriever
from rag_eval.answers.withheld import Withheld
from rag_eval.records.answers import Answer, Chat


class ExtractedSentence(Protocol):
    """A chosen sentence: the number of its passage from 0, and its characters in that passage."""

    @property
    def passage(self) -> int: ...  # noqa: D102 - see the class
    @property
    def start(self) -> int: ...  # noqa: D102 - see the class
    @property
    def end(self) -> int: ...  # noqa: D102 - see the class


class Extract(Protocol):
    """What an extractive answerer chose for one question, best first; `signal` in [0, 1]; `answered` is False where it abstains."""

    @property
    def sentences(self) -> Sequence[ExtractedSentence]: ...  # noqa: D102 - see the class
    @property
    def signal(self) -> float: ...  # noqa: D102 - see the class
    @property
    def answered(self) -> bool: ...  # noqa: D102 - see the class


class Extractor(Protocol):
    """An extractive answerer, asked once for all questions."""

    def answer(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]]
    ) -> Sequence[Extract]:
        """Choose sentences for each question from its own passages."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Tools:
    """What answering works with.

    Parameters
    ----------
    library
        The corpus.
    retrieve
        (queries, top_k) -> one RetrievalResult a query, of the strategy whose evidence is used.
    extract, chat, recorded
        What the modes deterministic, llm and recorded need; None where no question uses the mode.
    store
        Called with each preflight artifact, in the order of the questions.
    concurrency
        Questions asked of the model at a time.
    withheld
        Chunks that preflights leave out of what they find without the ranking.
    """

    library: Library
    retrieve: Retriever
    extract: Extractor | None = None
    chat: Chat | None = None
    recorded: Mapping[str, Answer] | None = None
    store: Callable[[dict[str, Any]], None] | None = None
    concurrency: int = 4
    withheld: Withheld | None = None
