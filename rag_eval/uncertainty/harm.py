"""What expanding did: misses recovered and hits lost, by strategy and overall, what it cost, and a verdict.

Belongs here: accounts of rounds that ran, against gold. A miss is a question with nothing relevant in the top K.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from rag_eval.measures.paired import paired_comparison
from rag_eval.records.uncertainty import EXPANSIONS
from rag_eval.retrieval.ranking import Rows
from rag_eval.uncertainty.batch import FloatArray, IntArray
from rag_eval.uncertainty.histories import Step

RECOVERS: Final = "recovers more than it loses"
HARMS: Final = "harms more than it recovers"
UNDECIDED: Final = "no difference shown"
OVERALL: Final = "overall"
SEED = 13


@dataclasses.dataclass(frozen=True, slots=True)
class Harm:
    """Accounts of one expansion strategy, or of all rounds.

    Parameters
    ----------
    strategy
        Its name, or `overall`.
    questions
        Questions with gold.
    triggered
        Of these, how many were expanded.
    recovered, lost
        Misses that became hits, and hits that became misses.
    extra_queries, extra_seconds
        What it cost beyond the first retrieval, over the questions with gold.
    delta, ci_low, ci_high, p, n_groups
        Mean recall@K after minus before, its 95 % interval over groups and two-sided p: over the expanded questions for one strategy, over all questions overall. NaN where nothing was expanded.
    verdict
        In words, by the interval.
    """

    strategy: str
    questions: int
    triggered: int
    recovered: int
    lost: int
    extra_queries: int
    extra_seconds: float
    delta: float
    ci_low: float
    ci_high: float
    p: float
    n_groups: int
    verdict: str

    def as_json(self) -> dict[str, Any]:
        """Write as a JSON object; what is not defined is null."""
        return {
            name: None if isinstance(value, float) and np.isnan(value) else value
            for name, value in dataclasses.asdict(self).items()
        }


def verdict(low: float, high: float) -> str:
    """Say in words what an interval of the difference of recall shows."""
    if low > 0:
        return RECOVERS
    return HARMS if high < 0 else UNDECIDED


def harm(
    rounds: Sequence[Rows],
    steps: Sequence[Step],
    recall: Callable[[Rows], FloatArray],
    groups: IntArray,
    seed: int = SEED,
) -> list[Harm]:
    """Account for all rounds (first) and for each strategy that was used.

    Parameters
    ----------
    rounds, steps
        Rows of the merged rankings by round, the first ranking's before them, and every expansion (`Iterated.rounds`, `Iterated.steps`).
    recall
        Recall@K [n] of rankings' rows [n, depth]; NaN for a question without gold, which counts for nothing.
    groups
        Group code of each question, [n]: the unit of the interval.
    seed
        Of the interval and the test.
    """
    values = [recall(rows) for rows in rounds]
    eligible = ~np.isnan(values[0])
    found = [
        _account(
            OVERALL,
            steps,
            np.where(eligible, values[0], np.nan),
            values[-1],
            eligible=eligible,
            groups=groups,
            seed=seed,
        )
    ]
    for name in EXPANSIONS:
        own = [step for step in steps if step.strategy == name]
        if not own:
            continue
        before, after = np.full(len(eligible), np.nan), np.full(len(eligible), np.nan)
        for step in own:  # a strategy is tried at most once a question
            before[step.question], after[step.question] = (
                values[step.iteration - 1][step.question],
                values[step.iteration][step.question],
            )
        found.append(
            _account(name, own, before, after, eligible=eligible, groups=groups, seed=seed)
        )
    return found


def _account(
    name: str,
    steps: Iterable[Step],
    before: FloatArray,
    after: FloatArray,
    *,
    eligible: np.ndarray,
    groups: IntArray,
    seed: int,
) -> Harm:
    counted = [step for step in steps if eligible[step.question]]
    paired = paired_comparison(after, before, groups, seed)
    low, high = float(paired.ci_low[0]), float(paired.ci_high[0])
    return Harm(
        strategy=name,
        questions=int(eligible.sum()),
        triggered=len({step.question for step in counted}),
        recovered=int(((before == 0) & (after > 0)).sum()),
        lost=int(((before > 0) & (after == 0)).sum()),
        extra_queries=len(counted),
        extra_seconds=sum(step.seconds for step in counted),
        delta=float(paired.delta[0]),
        ci_low=low,
        ci_high=high,
        p=float(paired.p[0]),
        n_groups=int(paired.n_groups[0]),
        verdict=verdict(low, high),
    )
