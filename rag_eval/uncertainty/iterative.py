"""Iterative retrieval: while a retrieval is not trusted, ask again in other words, and merge what comes back.

First retrieval -> confidence -> while confidence < min_recall and the budget lasts: the strategy that mitigates the severest gap -> expand -> retrieve,
all questions of a round in one batch -> merge -> confidence again. Confidence after a merge comes from the same estimator as before it, which was made
for lists of a single query: it steers the rounds and is no measurement of the merged list until outcomes of this strategy calibrate it.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from rag_eval.records.gold_set import Iterative
from rag_eval.records.uncertainty import ExpansionName
from rag_eval.retrieval.ranking import Ranking
from rag_eval.uncertainty.batch import FloatArray, IntArray, RankedBatch
from rag_eval.uncertainty.expansion.context import ExpansionContext
from rag_eval.uncertainty.expansion.strategies import STRATEGIES
from rag_eval.uncertainty.gaps import semantic_gaps
from rag_eval.uncertainty.histories import Iterated, Step, Stopped
from rag_eval.uncertainty.merging import merged
from rag_eval.uncertainty.ranking_parts import replaced, spread, taken

Risk = Callable[[RankedBatch], tuple[FloatArray, str]]
Search = Callable[[list[str]], Ranking]

WEIGHTS: Final[Mapping[ExpansionName, float]] = MappingProxyType(
    {
        "synonym": 0.6,
        "related_concept": 0.7,
        "reformulation": 0.4,
        "hypernym": 0.4,
        "hyponym": 0.25,
        "code_pattern": 1.0,
        "negative_sampling": 0.25,
    }
)
"""What an expansion's scores weigh in the merge where the first retrieval surely missed, the original's being 1; else times its estimated miss rate,
because only what the first retrieval found can be lost. The weights were chosen on one half of SciFact's groups, the factor with a view to pandas_api too."""


class _Rounds:
    """The state of a batch while it is expanded."""

    def __init__(
        self,
        first: Ranking,
        context: ExpansionContext,
        spec: Iterative,
        *,
        search: Search,
        risk: Risk,
        k: int,
    ) -> None:
        n = len(context.questions)
        self.spec, self.search, self.risk, self.k = spec, search, risk, k
        self.context, self.ranking = context, first
        self.depth = first.rows.shape[1]
        self.lists, self.weights = [first], np.ones((n, 1))
        self.rounds = [first.rows]
        self.confidence, self.basis = self._judged()
        self.first = self.confidence
        self.tried: list[set[ExpansionName]] = [set() for _ in range(n)]
        self.asked = [{text} for text in context.questions]
        self.extra = np.zeros(n, dtype=np.int64)
        self.stopped: list[Stopped | None] = [None] * n
        self.steps: list[Step] = []
        self.not_viable: Counter[ExpansionName] = Counter()

    def _judged(self) -> tuple[FloatArray, str]:
        missed, basis = self.risk(self.context.batch)
        if (
            missed.shape != (len(self.context.questions),)
            or not ((missed >= 0) & (missed <= 1)).all()
        ):
            raise ValueError(
                "risk: found values that are no probabilities of the batch's questions, accepted one in [0, 1] for each"
            )
        return 1.0 - missed, basis

    def stop(self, places: IntArray, why: Stopped) -> None:
        """End the rounds of some questions."""
        for place in places.tolist():
            self.stopped[place] = self.stopped[place] or why

    def active(self) -> IntArray:
        """Questions whose rounds go on."""
        return np.flatnonzero([why is None for why in self.stopped])

    def choose(self, active: IntArray) -> dict[int, tuple[ExpansionName, str]]:
        """Strategy and expanded text of each question that has a viable one, by the severity of its gaps."""
        queues = {
            place: [
                gap.mitigation
                for gap in gaps
                if gap.mitigation in self.spec.expansions
                and gap.mitigation not in self.tried[place]
            ]
            for place, gaps in zip(
                active.tolist(), semantic_gaps(self.context, active, self.k), strict=True
            )
        }
        chosen: dict[int, tuple[ExpansionName, str]] = {}
        while queues:
            wanted: dict[ExpansionName, list[int]] = {}
            for place in [place for place, queue in queues.items() if not queue]:
                del queues[place]
            for place, queue in queues.items():
                wanted.setdefault(queue.pop(0), []).append(place)
            for name, places in wanted.items():
                for place, text in zip(
                    places,
                    STRATEGIES[name](self.context, np.array(places, dtype=np.int64)),
                    strict=True,
                ):
                    self.tried[place].add(name)
                    if text is None or text in self.asked[place]:
                        self.not_viable[name] += 1
                    else:
                        chosen[place] = name, text
                        del queues[place]
        return chosen

    def round(self, iteration: int, active: IntArray) -> None:
        """Expand, retrieve and merge once for the questions that go on."""
        started = time.perf_counter()
        chosen = self.choose(active)
        self.stop(
            np.array([place for place in active.tolist() if place not in chosen], dtype=np.int64),
            "no_viable_strategy",
        )
        if not chosen:
            return
        places = np.array(sorted(chosen), dtype=np.int64)
        found = self.search([chosen[place][1] for place in places.tolist()])
        if len(found.rows) != len(places):
            raise ValueError(f"search: found {len(found.rows)} lists for {len(places)} texts")
        seconds = (time.perf_counter() - started) / len(places)
        unique = self._unique(found, places)
        before = self.confidence
        self._merge(
            found,
            places,
            np.array([WEIGHTS[chosen[place][0]] for place in places.tolist()])
            * (1.0 - self.first[places]),
        )
        for at, place in enumerate(places.tolist()):
            name, text = chosen[place]
            self.asked[place].add(text)
            self.extra[place] += 1
            counts = int(found.found[at].sum()), int(unique[at])
            self.steps.append(
                Step(
                    place,
                    iteration,
                    name,
                    self.context.questions[place],
                    text,
                    *counts,
                    float(before[place]),
                    float(self.confidence[place]),
                    self.basis,
                    seconds,
                )
            )

    def _unique(self, found: Ranking, places: IntArray) -> IntArray:
        """How many retrieved chunks no earlier list of the question has, [len(places)]."""
        seen = np.concatenate([part.rows[places] for part in self.lists], axis=1).astype(np.int64)
        width = int(max(seen.max(initial=0), found.rows.max(initial=0))) + 1
        own = np.arange(len(places), dtype=np.int64)[:, None] * width
        counts: IntArray = (found.found & ~np.isin(own + found.rows, (own + seen)[seen >= 0])).sum(
            axis=1
        )
        return counts

    def _merge(self, found: Ranking, places: IntArray, weights: FloatArray) -> None:
        n = len(self.context.questions)
        self.lists.append(spread(found, places, n))
        column = np.zeros((n, 1))
        column[places, 0] = np.where(
            found.found.any(axis=1), weights, 0.0
        )  # a text that retrieved nothing, or failed, changes nothing
        self.weights = np.concatenate([self.weights, column], axis=1)
        changed = places[column[places, 0] > 0]
        fused = merged(
            [taken(part, changed) for part in self.lists], self.weights[changed], self.depth
        )
        self.ranking = replaced(self.ranking, fused, changed)
        batch = dataclasses.replace(
            self.context.batch, rows=self.ranking.rows, raw=self.ranking.raw, norm=self.ranking.norm
        )
        self.context = dataclasses.replace(self.context, batch=batch)
        self.rounds.append(self.ranking.rows)
        self.confidence, self.basis = self._judged()


def iterate(
    first: Ranking,
    context: ExpansionContext,
    spec: Iterative,
    *,
    search: Search,
    risk: Risk,
    k: int = 10,
) -> Iterated:
    """Run the rounds over a batch of n questions.

    Parameters
    ----------
    first
        What the base retrieved for the questions; `context.batch` holds the same lists.
    context
        The questions, the corpus, and the language model or thesaurus where there is one.
    spec
        Thresholds, budget and the strategies that may be chosen.
    search
        Retrieves with the base for any texts, as deep as `first`.
    risk
        Gives the probability of a miss [n] and where it comes from (`calibrated`, or `heuristic_v0@` and the places of the list that it read).
    k
        Ranks that gaps look at.

    Raises
    ------
    ValueError
        Parts that are not of the same batch, or a risk that is no probability.
    """
    if not np.array_equal(first.rows, context.batch.rows):
        raise ValueError("the first ranking and the batch of the context hold different lists")
    state = _Rounds(first, context, spec, search=search, risk=risk, k=k)
    if first.failed is not None:
        state.stop(np.flatnonzero(first.failed), "failed")
    for iteration in range(1, spec.max_iterations + 1):
        active = state.active()
        state.stop(active[state.confidence[active] >= spec.min_recall], "threshold")
        active = state.active()
        state.stop(active[state.extra[active] >= spec.max_expansions], "max_expansions")
        if not len(active := state.active()):
            break
        state.round(iteration, active)
    left = state.active()
    state.stop(left[state.confidence[left] >= spec.min_recall], "threshold")
    state.stop(state.active(), "max_iterations")
    stopped = tuple(why or "max_iterations" for why in state.stopped)
    last = {step.question: at for at, step in enumerate(state.steps)}
    steps = [
        dataclasses.replace(step, stopped=stopped[step.question])
        if last[step.question] == at
        else step
        for at, step in enumerate(state.steps)
    ]
    steps.sort(key=lambda step: (step.question, step.iteration))
    return Iterated(
        state.ranking,
        tuple(steps),
        stopped,
        state.first,
        state.confidence,
        state.basis,
        state.extra,
        tuple(state.rounds),
        dict(state.not_viable),
    )
