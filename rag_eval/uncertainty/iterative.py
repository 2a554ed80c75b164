"""Iterative retrieval: expand questions with low retrieval confidence, search again and merge.

A round expands every question whose confidence is below min_recall while its budget lasts. It uses
the expansion strategy that mitigates the severest gap. It retrieves all expanded questions in one
batch, merges the lists and estimates the confidence again.

The estimator was made for lists of a single query, and it also judges merged lists. The confidence
therefore only steers the rounds. It measures merged lists once outcomes of this strategy calibrate
it.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from rag_eval.core.arrays import FloatArray, Int32Array, IntArray
from rag_eval.core.config import EXPANSIONS, ExpansionName
from rag_eval.core.errors import Name
from rag_eval.core.frames import schema
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Identity, IdentityInputs, Strategy
from rag_eval.measures.paired import paired_comparison
from rag_eval.retrieval.ranking import FUSED_ROUNDING, Ranking, order, ranking
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.expansion import STRATEGIES, ExpansionContext
from rag_eval.uncertainty.gaps import semantic_gaps
from rag_eval.uncertainty.signals import RankedBatch
from rag_eval.uncertainty.suggestions import installed_wordnet

if TYPE_CHECKING:
    import pandas as pd

# ---- The strategy kind `iterative`.

HEURISTIC: Final = "heuristic_v0"
"""Estimator that steers the rounds if no calibrator was accepted for the base."""


class Iterative(Strategy):
    """Strategy that expands probably missed questions and retrieves again with its base."""

    kind: Literal["iterative"]
    base: Name = Field(description="name of the strategy that each round retrieves with")
    min_recall: float = Field(
        default=0.7, ge=0, le=1, description="retrieval confidence that ends the rounds"
    )
    max_iterations: int = Field(default=3, ge=1, le=10)
    max_expansions: int = Field(default=5, ge=1, le=50)
    expansions: tuple[ExpansionName, ...] = Field(
        default=EXPANSIONS, min_length=1, description="expansion strategies that may be chosen"
    )
    endpoint: Name | None = Field(
        default=None,
        description=(
            "chat endpoint of the settings for related_concept and reformulation; default: the "
            "corpus's own associations"
        ),
    )

    @model_validator(mode="after")
    def _base_ranks(self) -> Self:
        if self.rerank is not None:
            raise ValueError("rerank belongs to the base strategy")
        if len(set(self.expansions)) != len(self.expansions):
            raise ValueError("expansions: each once")
        return self

    @property
    def base_name(self) -> str:
        """Name of the strategy that each round retrieves with."""
        return self.base

    def ranking_options(self) -> dict[str, Any]:
        """Options without the names of the strategy and of its base."""
        return self.model_dump(mode="json", exclude={"name", "base"})

    def index_hash(self, base_hash: str, calibrator_id: str, settings: Settings) -> str:
        """Hash the base's index, the options, the chat model and the steering calibrator."""
        endpoint = settings.endpoints.get(self.endpoint or "")
        model = "" if endpoint is None else endpoint.model
        steered = calibrator_id or HEURISTIC
        has_thesaurus = installed_wordnet() is not None
        parts = [base_hash, self.ranking_options(), steered, model, has_thesaurus]
        return f"iterative:{digest(parts)}"

    def identity(self, inputs: IdentityInputs) -> Identity:
        """Identify the rankings by the base's index, the options and the steering calibrator."""
        if inputs.base is None:
            raise ValueError(f"{self.name}: the identity of the base {self.base} is missing")
        base_hash = inputs.base.index_hash
        steered = inputs.calibrator_id(base_hash)
        return Identity(
            self.index_hash(base_hash, steered, inputs.settings), inputs.base.embed_model
        )


# ---- The record of the rounds: a row for each question and expansion, and the reason of each end

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
        (
            "calibrated | heuristic_v0@<the places of the list that it read>: "
            "where the confidence comes from"
        ),
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


@dataclasses.dataclass(frozen=True)
class Iterated:
    """Rankings of n questions after all rounds.

    Parameters
    ----------
    ranking
        Merged lists. A question without expansions keeps its list of the first ranking.
    steps
        Every expansion, by question and round.
    stopped
        Reason why each question's rounds ended, n.
    confidence_first, confidence
        Retrieval confidence [n] of the first ranking and of the last.
    basis
        Source of the confidence values.
    extra_queries
        int64 [n] number of retrieved expansions.
    rounds
        Rows of the first ranking and of the ranking after each round. They show the effect of
        each step.
    not_viable
        Number of times that each strategy was chosen and had nothing to add.
    """

    ranking: Ranking
    steps: tuple[Step, ...]
    stopped: tuple[Stopped, ...]
    confidence_first: FloatArray
    confidence: FloatArray
    basis: str
    extra_queries: IntArray
    rounds: tuple[Int32Array, ...]
    not_viable: dict[ExpansionName, int]

    def frame(self) -> "pd.DataFrame":
        """Return all steps as an EXPANSIONS_FRAME."""
        return expansions_frame(self.steps)


def expansions_frame(steps: Sequence[Step]) -> "pd.DataFrame":
    """Return steps as an EXPANSIONS_FRAME. An empty frame has the same column types."""
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


# ---- The effect of expansions: recovered misses, lost hits, cost and verdict

RECOVERS: Final = "recovers more than it loses"
HARMS: Final = "harms more than it recovers"
UNDECIDED: Final = "no difference shown"
OVERALL: Final = "overall"
TOO_FEW: Final = "too few groups of questions were expanded"
SEED = 13


@dataclasses.dataclass(frozen=True, slots=True)
class Harm:
    """Effect and cost of one expansion strategy, or of all rounds.

    Parameters
    ----------
    strategy
        Name of the expansion strategy, or `overall`.
    questions
        Number of questions with gold.
    triggered
        Number of expanded questions with gold.
    recovered, lost
        Misses that became hits, and hits that became misses.
    extra_queries, extra_seconds
        Cost beyond the first retrieval, over the questions with gold.
    delta, ci_low, ci_high, p, n_groups
        Mean recall@K after minus before, with 95 % interval over groups and two-sided p. A
        strategy counts its expanded questions, `overall` counts all questions. NaN if nothing was
        expanded.
    verdict
        Conclusion in words from the interval.
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
        """Write as a JSON object; an undefined value is null and has a reason beside it."""
        found = dataclasses.asdict(self)
        undefined = [name for name, value in found.items() if value != value]  # noqa: PLR0124
        return found | {
            key: value
            for name in undefined
            for key, value in ((name, None), (f"{name}_reason", TOO_FEW))
        }


def verdict(low: float, high: float) -> str:
    """Describe in words an interval of the difference of recall."""
    if low > 0:
        return RECOVERS
    return HARMS if high < 0 else UNDECIDED


def harm(
    rounds: Sequence[Int32Array],
    steps: Sequence[Step],
    recall: Callable[[Int32Array], FloatArray],
    groups: IntArray,
    seed: int = SEED,
) -> list[Harm]:
    """Account for all rounds (first) and for each strategy that was used.

    Parameters
    ----------
    rounds, steps
        Rows of the rankings and every expansion, as in `Iterated.rounds` and `Iterated.steps`.
    recall
        Computes recall@K [n] from the rows of a ranking [n, depth]. NaN marks a question without
        gold, which is not counted.
    groups
        Group code of each question, [n]: the unit of the interval.
    seed
        Seed of the interval and the test.
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


# ---- Fusion: the lists of several wordings become one ranking in which expansions weigh less

RANK_CONSTANT = 60.0


def merged(lists: Sequence[Ranking], weights: FloatArray, depth: int) -> Ranking:
    """Fuse lists of the same n questions.

    Parameters
    ----------
    lists
        Lists of the original questions, then lists of the expansions. A question without an
        expansion has an empty row.
    weights
        [n, len(lists)], at least 0. The weight of the original is positive.
    depth
        Number of ranks to keep.

    Returns
    -------
    Ranking
        `raw` is the best score that any list gave a chunk. `norm` is the weighted mean over all
        lists, in [0, 1].
    """
    n = len(weights)
    rows = np.concatenate([part.rows for part in lists], axis=1)
    shares = np.concatenate(
        [_scores(part) * weights[:, [at]] for at, part in enumerate(lists)], axis=1
    )
    raws = np.concatenate([part.raw for part in lists], axis=1)
    query, place = np.nonzero(
        (rows >= 0) & (np.repeat(weights, [part.rows.shape[1] for part in lists], axis=1) > 0)
    )
    width = int(rows.max(initial=0)) + 1
    codes, inverse = np.unique(
        query.astype(np.int64) * width + rows[query, place], return_inverse=True
    )
    sums = np.bincount(inverse, shares[query, place], minlength=len(codes))
    top = np.full(len(codes), -np.inf)
    np.maximum.at(top, inverse, raws[query, place])
    owner, chunk = codes // width, codes % width
    counts = np.bincount(owner, minlength=n)
    column = np.arange(len(codes)) - (np.cumsum(counts) - counts)[owner]
    shape = (n, max(int(counts.max(initial=0)), depth))
    union, scores = np.full(shape, -1, dtype=np.int32), np.full(shape, -np.inf)
    union[owner, column], scores[owner, column] = chunk, sums / weights.sum(axis=1)[owner]
    union, scores = order(union, scores, depth, FUSED_ROUNDING)
    found = union >= 0
    raw = np.zeros(union.shape)
    asked = np.repeat(np.arange(n), found.sum(axis=1)).astype(np.int64) * width + union[found]
    raw[found] = top[np.searchsorted(codes, asked)]
    candidates = np.max([part.candidates for part in lists], axis=0).astype(np.int64)
    return ranking(union, raw, np.where(found, scores, 0.0), np.maximum(candidates, counts))


def _scores(part: Ranking) -> FloatArray:
    """Return scores in [0, 1] that follow the list's order."""
    by_rank = (RANK_CONSTANT + 1) / (RANK_CONSTANT + np.arange(1, part.rows.shape[1] + 1))
    reranked = ~np.isnan(part.rerank).all(axis=1, keepdims=True)
    return np.where(part.found, np.where(reranked, by_rank, part.norm), 0.0)


# ---- Rankings of some questions of a batch

_PARTS: Final = {"rows": -1, "raw": 0.0, "norm": 0.0, "k_pos": 0, "rerank": np.nan, "candidates": 0}


def taken(part: Ranking, places: IntArray) -> Ranking:
    """Take the lists of some questions."""
    made: dict[str, Any] = {name: getattr(part, name)[places] for name in _PARTS}
    return Ranking(**made)


def spread(part: Ranking, places: IntArray, n: int) -> Ranking:
    """Place the lists of some questions among n lists; the other lists are empty."""
    made: dict[str, Any] = {
        name: np.full((n, *getattr(part, name).shape[1:]), fill, dtype=getattr(part, name).dtype)
        for name, fill in _PARTS.items()
    }
    for name, values in made.items():
        values[places] = getattr(part, name)
    return Ranking(**made)


def replaced(whole: Ranking, part: Ranking, places: IntArray) -> Ranking:
    """Replace the lists of some questions in the lists of all."""
    made: dict[str, Any] = {name: getattr(whole, name).copy() for name in _PARTS}
    for name, values in made.items():
        values[places] = getattr(part, name)
    return dataclasses.replace(whole, **made)


# ---- The rounds

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
"""Weight of each expansion's scores in the merge. The original list has weight 1.

The weight is multiplied by the estimated miss rate of the first retrieval, because a merge can
only lose chunks that the first retrieval found. The weights were chosen on one half of SciFact's
groups. The factor was chosen with pandas_api in view too.
"""


class _Rounds:
    """State of a batch between its rounds."""

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
                "risk: found values that are no probabilities of the batch's questions, "
                "accepted one in [0, 1] for each"
            )
        return 1.0 - missed, basis

    def stop(self, places: IntArray, why: Stopped) -> None:
        """End the rounds of some questions."""
        for place in places.tolist():
            self.stopped[place] = self.stopped[place] or why

    def active(self) -> IntArray:
        """Return the questions whose rounds go on."""
        return np.flatnonzero([why is None for why in self.stopped])

    def choose(self, active: IntArray) -> dict[int, tuple[ExpansionName, str]]:
        """Choose a viable strategy and its expanded text for each question, severest gap first."""
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
        """Count the retrieved chunks that no earlier list of the question has, [len(places)]."""
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
        # an empty or failed list gets weight 0, so that it does not lower the merged scores
        column[places, 0] = np.where(found.found.any(axis=1), weights, 0.0)
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
        Ranking of the questions by the base; `context.batch` holds the same lists.
    context
        The questions, the corpus, and the optional language model or thesaurus.
    spec
        Thresholds, budget and permitted expansion strategies.
    search
        Retrieves with the base for any texts, as deep as `first`.
    risk
        Estimates the probability of a miss [n] and names its source. The source is `calibrated`,
        or `heuristic_v0@` and the places of the list that it read.
    k
        Number of ranks in which gaps are looked for.

    Raises
    ------
    ValueError
        The arguments belong to different batches, or a risk is not a probability.
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
