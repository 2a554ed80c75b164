"""Chunks that the guard and the trust filter keep from a question's evidence, whichever preflight finds them.

Belongs here: asking whether a chunk may be evidence. Which chunks those are is `rag_eval.evaluation.guard_steps`.
"""

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class Withheld:
    """Chunks that grep and section must not give.

    Parameters
    ----------
    of_question
        query_id -> rows of the chunks that restate a wording of this question.
    allowed
        bool [n_chunks]: chunks that the trust filter lets through; None without a filter.
    """

    of_question: Mapping[str, frozenset[int]] = dataclasses.field(default_factory=dict)
    allowed: npt.NDArray[np.bool_] | None = None

    def left(self, query_id: str, rows: Iterable[int]) -> list[int]:
        """Rows that may be evidence for a question, in their order."""
        restating = self.of_question.get(query_id, frozenset())
        return [
            row
            for row in rows
            if row not in restating and (self.allowed is None or bool(self.allowed[row]))
        ]
