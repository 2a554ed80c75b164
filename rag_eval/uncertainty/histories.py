"""What the rounds of iterative retrieval leave behind: one row a question and expansion, and why each question's rounds ended.

Belongs here: the columns, and the two forms they are handed on in. How rounds run is `iterative`.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from rag_eval.records.frames import schema
from rag_eval.records.uncertainty import ExpansionName
from rag_eval.retrieval.ranking import Ranking, Rows
from rag_eval.uncertainty.batch import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

Stopped = Literal["threshold", "max_iterations", "max_expansions", "no_viable_strategy", "failed"]

EXPANSIONS_FRAME: Final = schema(
    "expansions",
    question=("int", "row of the batch"),
    iteration=("int", "round, from 1"),
    strategy=("str", "the expansion strategy"),
    original=("str", "the wording"),
    expanded=("str", "what was retrieved with"),
    result_count=("int", "chunks that the expanded text retrieved"),
    found_unique_results=("int", "those that no earlier text of this question had retrieved"),
    confidence_before=("float", "retrieval confidence before this round"),
    confidence_after=("float", "and after merging"),
    basis=(
        "str",
        "calibrated | heuristic_v0@<the places of the list that it read>: where the confidence comes from",
    ),
    seconds=("float", "this query's share of the round's time, expanding and retrieving"),
    stopped=("str", "why the rounds ended after this one; empty where another follows"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One expansion of one question; fields as in EXPANSIONS_FRAME."""

    question: int
    iteration: int
    strategy: ExpansionName
    original: str
    expanded: str
    result_count: int
    found_unique_results: int
    confidence_before: float
    confidence_after: float
    basis: str
    seconds: float
    stopped: str = ""

    def as_json(self) -> dict[str, Any]:
        """Write as a JSON object, without the question's row."""
        return {
            name: value for name, value in dataclasses.asdict(self).items() if name != "question"
        }


@dataclasses.dataclass(frozen=True)
class Iterated:
    """Rankings of n questions after all rounds.

    Parameters
    ----------
    ranking
        Merged; the first ranking's own row where a question was not expanded.
    steps
        Every expansion, by question and round.
    stopped
        Why each question's rounds ended, n.
    confidence_first, confidence
        Retrieval confidence [n] of the first ranking and of the last.
    basis
        Where these come from.
    extra_queries
        int64 [n] expansions retrieved with.
    rounds
        Rows of the merged rankings, the first ranking's before them: what each step changed can be measured from them.
    not_viable
        How often each strategy was chosen and had nothing to add.
    """

    ranking: Ranking
    steps: tuple[Step, ...]
    stopped: tuple[Stopped, ...]
    confidence_first: FloatArray
    confidence: FloatArray
    basis: str
    extra_queries: IntArray
    rounds: tuple[Rows, ...]
    not_viable: dict[ExpansionName, int]

    def histories(self) -> list[list[dict[str, Any]]]:
        """List the steps of each question, n."""
        found: list[list[dict[str, Any]]] = [[] for _ in self.stopped]
        for step in self.steps:
            found[step.question].append(step.as_json())
        return found

    def frame(self) -> "pd.DataFrame":
        """All steps as an EXPANSIONS_FRAME."""
        return expansions_frame(self.steps)


def expansions_frame(steps: Sequence[Step]) -> "pd.DataFrame":
    """Steps as an EXPANSIONS_FRAME, with its column types where there is none."""
    import pandas as pd

    kinds = {"int": "int64", "float": "float64", "str": "str"}
    columns = {
        name: pd.Series([getattr(step, name) for step in steps], dtype=kinds[column.kind])
        for name, column in EXPANSIONS_FRAME.columns.items()
    }
    return EXPANSIONS_FRAME.check(pd.DataFrame(columns))


def steps_of(frame: "pd.DataFrame") -> tuple[Step, ...]:
    """Read an EXPANSIONS_FRAME back as steps."""
    return tuple(
        Step(**{str(name): value for name, value in row.items()})
        for row in frame.to_dict("records")
    )
