"""Iterative retrieval: expand questions with low retrieval confidence, search again and merge.

A round expands every question whose confidence is below min_recall while its budget lasts. It uses
the expansion strategy that mitigates the severest gap. It retrieves all expanded questions in one
batch, merges the lists and estimates the confidence again.

The estimator was made for lists of a single query, and it also judges merged lists. The confidence
therefore only steers the rounds. After a calibration by outcomes of this strategy, the confidence
also measures merged lists.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from rag_eval.core.arrays import BoolArray, FloatArray, Int32Array, IntArray, number
from rag_eval.core.config import EXPANSIONS, ExpansionName
from rag_eval.core.frames import make_frame, schema
from rag_eval.core.parts import Name
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Identity, IdentityInputs, Strategy
from rag_eval.corpus.masking import mask_name
from rag_eval.measures.intervals import paired_comparison, within_query
from rag_eval.measures.overlap import SharedGold
from rag_eval.measures.run_scores import AnyRuns, score_strategy
from rag_eval.retrieval.ranking import FUSED_ROUNDING, Ranking, order, ranking
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.expansion import STRATEGIES, ExpansionContext
from rag_eval.uncertainty.gaps import mitigations
from rag_eval.uncertainty.heuristic import HEURISTIC
from rag_eval.uncertainty.miss_rate_report import ExpansionAccount, IterativeAccount
from rag_eval.uncertainty.signals import RankedBatch
from rag_eval.uncertainty.stored import finite

if TYPE_CHECKING:
    import pandas as pd

# ---- The strategy kind `iterative`.


class Iterative(Strategy):
    """Strategy that expands probably missed questions and retrieves again with its base."""

    kind: Literal["iterative"]
    base: Name = Field(description="name of the strategy that each round retrieves with")
    min_recall: float = Field(
        default=0.7, ge=0, le=1, description="retrieval confidence that ends the rounds"
    )
    max_iterations: int = Field(default=3, ge=1, le=10)
    """Most rounds for one question."""
    max_expansions: int = Field(default=5, ge=1, le=50)
    """Most further queries for one question."""
    steered_by: Literal["calibrator", "heuristic_v0"] = Field(
        default="calibrator",
        description=(
            "source of the confidence that ends the rounds: the calibrator accepted for the base, "
            "or heuristic_v0 on every night, so that outcomes never change the rankings"
        ),
    )
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
    def chats_with(self) -> str | None:
        """Name of the endpoint that suggests wordings."""
        return self.endpoint

    @property
    def base_name(self) -> str:
        """Name of the strategy that each round retrieves with."""
        return self.base

    def ranking_options(self) -> dict[str, object]:
        """Options without the names of the strategy and of its base."""
        return self.model_dump(mode="json", exclude={"name", "base"})

    def index_hash(self, base_hash: str, calibrator_id: str, settings: Settings) -> str:
        """Hash the base's index, the options, the chat model and the steering calibrator."""
        endpoint = settings.endpoints.get(self.endpoint or "")
        model = "" if endpoint is None else endpoint.model
        steered = calibrator_id or HEURISTIC  # steers without a calibrator of the base
        # The last part keeps calibrators of versions that could also ask WordNet, without it.
        parts = [base_hash, self.ranking_options(), steered, model, False]
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
    unique_result_count=("int", "those that no earlier text of this question had retrieved"),
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


def list_expansions(steps: "pd.DataFrame") -> dict[int, list[dict[str, object]]]:
    """List the rounds of an EXPANSIONS_FRAME by question as JSON objects with masked texts."""
    rounds_of: dict[int, list[dict[str, object]]] = {}
    for row in steps.to_dict("records"):
        line = {
            str(key): number(value) if isinstance(value, float) else value
            for key, value in row.items()
            if key != "question"
        }
        line |= {key: mask_name(row[key]) for key in ("original", "expanded")}
        line["found_unique_results"] = row["unique_result_count"] > 0
        rounds_of.setdefault(row["question"], []).append(line)
    return rounds_of


@dataclasses.dataclass(frozen=True)
class Iterated:
    """Rankings of n questions after all rounds.

    A question without expansions keeps its list of the first ranking. `steps` is an
    EXPANSIONS_FRAME, sorted by question and round. `stopped` [n] says why each question's rounds
    ended. `basis` is the source of the confidence values. `rounds` are the rows of the first
    ranking and of the ranking after each round. `not_viable` counts how often each strategy was
    chosen and had nothing to add.
    """

    ranking: Ranking
    steps: "pd.DataFrame"
    stopped: tuple[Stopped, ...]
    basis: str
    rounds: tuple[Int32Array, ...]
    not_viable: dict[ExpansionName, int]

    def stacked_rounds(self) -> IntArray:
        """Combine the rounds in one array, [n_rounds, n, depth], padded with -1."""
        width = max(rows.shape[1] for rows in self.rounds)
        padded = (
            np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=-1)
            for rows in self.rounds
        )
        return np.asarray(np.stack([*padded]), dtype=np.int64)


# ---- The effect of expansions: recovered misses, lost hits, cost and verdict

RECOVERS: Final = "recovers more than it loses"
HARMS: Final = "harms more than it recovers"
UNDECIDED: Final = "no difference shown"
OVERALL: Final = "overall"


def harm(
    rounds: Sequence[Int32Array],
    steps: "pd.DataFrame",
    recall: Callable[[Int32Array], FloatArray],
    gold: SharedGold,
) -> list[ExpansionAccount]:
    """Return the effect of all rounds first, then the effect of each used strategy.

    `rounds` and `steps` are those of `Iterated`. `recall` computes recall@K [n] from the rows of a
    ranking [n, depth]. NaN marks a question without gold, which is not counted. `gold` is that of
    the n questions.
    """
    values = np.stack([recall(rows) for rows in rounds])
    eligible = ~np.isnan(values[0])

    def account(
        name: str, expanded: "pd.DataFrame", before: FloatArray, after: FloatArray
    ) -> ExpansionAccount:
        counted = expanded[eligible[expanded["question"]]]
        paired = paired_comparison(after, before, gold)
        low, high = finite(paired.ci_low[0]), finite(paired.ci_high[0])
        return ExpansionAccount(
            strategy=name,
            questions=int(eligible.sum()),
            triggered=counted["question"].nunique(),
            recovered=int(((before == 0) & (after > 0)).sum()),
            lost=int(((before > 0) & (after == 0)).sum()),
            extra_queries=len(counted),
            extra_seconds=float(counted["seconds"].sum()),
            delta=finite(paired.delta[0]),
            ci_low=low,
            ci_high=high,
            p=finite(paired.p[0]),
            n_effective=float(paired.n_effective[0]),
            verdict=RECOVERS if (low or 0) > 0 else HARMS if (high or 0) < 0 else UNDECIDED,
        )

    accounts = [account(OVERALL, steps, values[0], values[-1])]
    by_strategy = dict(iter(steps.groupby("strategy")))
    for name in filter(by_strategy.__contains__, EXPANSIONS):
        question, iteration = by_strategy[name][["question", "iteration"]].to_numpy().T
        before, after = np.full((2, len(eligible)), np.nan)
        # A strategy is tried at most once for a question.
        before[question] = values[iteration - 1, question]
        after[question] = values[iteration, question]
        accounts.append(account(name, by_strategy[name], before, after))
    return accounts


def account_for_rounds(runs: AnyRuns, name: str) -> IterativeAccount:
    """Describe the rounds of an iterative strategy under the first seed."""
    run, spec = runs.runs[name], Iterative.model_validate(runs.spec(name))
    facts, gold, k = run.about.iterative, runs.gold, runs.config.uncertainty.k
    if facts is None or run.rounds is None or run.expansions is None:
        raise RuntimeError(f"{name} was not run in rounds")
    rounds, level = list(run.rounds), runs.config.level

    def recall(rows: Int32Array) -> FloatArray:
        scores = score_strategy({0: rows.astype(np.int64)}, gold, [k])
        return scores.column(level, f"R@{k}")

    def mean_recall(rows: Int32Array) -> float | None:
        values = within_query(recall(rows)[:, None], gold.query_of, len(gold.queries))
        return number(float(np.nanmean(values))) if np.isfinite(values).any() else None

    harms = harm(rounds, run.expansions, recall, gold.shared.take(gold.query_of))
    return IterativeAccount(
        base=spec.base,
        basis=facts.basis,
        min_recall=spec.min_recall,
        stops=facts.stops,
        not_viable=facts.not_viable,
        suggestions_failed=facts.suggestions_failed,
        recall_before=mean_recall(rounds[0]),
        recall_after=mean_recall(rounds[-1]),
        k=k,
        accounts=harms,
        verdict=harms[0].verdict,
    )


# ---- Fusion: the lists of several wordings become one ranking in which expansions weigh less

RANK_CONSTANT = 60.0
_ARRAYS: Final = ("rows", "raw", "norm", "k_pos", "rerank", "candidates")


def _merge(lists: Sequence[Ranking], weights: FloatArray, depth: int) -> Ranking:
    """Fuse lists of the same n questions and keep `depth` ranks.

    `lists` holds the lists of the original questions, then the lists of the expansions. A question
    without an expansion has an empty row. `weights` [n, len(lists)] are at least 0, and positive
    for the original list. In the result `raw` is the best score that any list gave a chunk. `norm`
    is the weighted mean over all lists, in [0, 1].
    """
    n = len(weights)
    rows = np.concatenate([part.rows for part in lists], axis=1)
    raws = np.concatenate([part.raw for part in lists], axis=1)
    weight = np.repeat(weights, [part.rows.shape[1] for part in lists], axis=1)
    shares = np.concatenate([_score_ranks(part) for part in lists], axis=1) * weight
    query, place = np.nonzero((rows >= 0) & (weight > 0))
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
    question, rank = np.nonzero(union >= 0)
    raw = np.zeros(union.shape)
    raw[question, rank] = top[np.searchsorted(codes, question * width + union[question, rank])]
    candidates = np.max([part.candidates for part in lists], axis=0).astype(np.int64)
    return ranking(union, raw, scores, np.maximum(candidates, counts))


def _score_ranks(part: Ranking) -> FloatArray:
    """Return scores in [0, 1] that decrease along each list."""
    by_rank = (RANK_CONSTANT + 1) / (RANK_CONSTANT + np.arange(1, part.rows.shape[1] + 1))
    reranked = ~np.isnan(part.rerank).all(axis=1, keepdims=True)
    return np.where(part.has_chunk, np.where(reranked, by_rank, part.norm), 0.0)


def _spread(part: Ranking, places: IntArray, n: int) -> Ranking:
    """Place the lists of some questions among n lists; the other lists are empty."""
    row, absent = np.zeros(n, dtype=np.int64), np.ones(n, dtype=bool)
    row[places], absent[places] = np.arange(len(places)), False
    spread = Ranking(*(getattr(part, name)[row] for name in _ARRAYS)).blank(absent)
    return dataclasses.replace(spread, candidates=np.where(absent, 0, spread.candidates))


def _replace(whole: Ranking, part: Ranking, chosen: BoolArray) -> Ranking:
    """Replace the lists of the chosen questions [n]."""
    arrays = {name: getattr(whole, name).copy() for name in _ARRAYS}
    for name, array in arrays.items():
        array[chosen] = getattr(part, name)[chosen]
    return dataclasses.replace(whole, **arrays)


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
groups. The choice of the factor used pandas_api too.
"""


FALLBACK: Final[ExpansionName] = "reformulation"
"""Strategy for a question with low confidence for which no gap names a viable strategy."""


class _Rounds:
    """State of a batch between its rounds."""

    def __init__(
        self, first: Ranking, context: ExpansionContext, spec: Iterative, search: Search, risk: Risk
    ) -> None:
        n = len(context.questions)
        self.spec, self.search, self.risk = spec, search, risk
        self.context, self.ranking = context, first
        self.lists, self.weights, self.rounds = [first], np.ones((n, 1)), [first.rows]
        self.missed, self.basis = risk(context.batch)
        self.first_miss = self.missed
        self.tried: list[set[ExpansionName]] = [set() for _ in range(n)]
        self.asked = [{text} for text in context.questions]
        self.stopped: list[Stopped | None] = [None] * n
        self.steps: list[dict[str, object]] = []
        self.not_viable: Counter[ExpansionName] = Counter()

    @property
    def confidence(self) -> FloatArray:
        """Retrieval confidence of the current lists, [n]."""
        return 1.0 - self.missed

    def stop(self, places: IntArray, why: Stopped) -> None:
        """End the rounds of some questions and keep the first reason."""
        for place in places.tolist():
            self.stopped[place] = self.stopped[place] or why

    def active(self) -> IntArray:
        """Return the indices of the questions that still take part in the rounds."""
        return np.flatnonzero([why is None for why in self.stopped])

    def choose(self, active: IntArray, k: int) -> dict[int, tuple[ExpansionName, str]]:
        """Choose a viable strategy and its expanded text for each question, severest gap first.

        Without a viable strategy of a gap, FALLBACK is chosen.
        """
        allowed, gaps = set(self.spec.expansions), mitigations(self.context, active, k)
        queues: dict[int, list[ExpansionName]] = {}
        for place, names in zip(active.tolist(), gaps, strict=True):
            left = allowed - self.tried[place]
            queues[place] = [name for name in dict.fromkeys([*names, FALLBACK]) if name in left]
        chosen: dict[int, tuple[ExpansionName, str]] = {}
        while queues := {place: queue for place, queue in queues.items() if queue}:
            wanted: dict[ExpansionName, list[int]] = {}
            for place, queue in queues.items():
                wanted.setdefault(queue.pop(0), []).append(place)
            for name, places in wanted.items():
                texts = STRATEGIES[name](self.context, np.array(places, dtype=np.int64))
                for place, text in zip(places, texts, strict=True):
                    self.tried[place].add(name)
                    if text is None or text in self.asked[place]:
                        self.not_viable[name] += 1
                    else:
                        chosen[place] = name, text
                        del queues[place]
        return dict(sorted(chosen.items()))

    def run(self, iteration: int, active: IntArray, k: int) -> None:
        """Expand, retrieve and merge once for the active questions."""
        started = time.perf_counter()
        chosen = self.choose(active, k)
        self.stop(np.setdiff1d(active, list(chosen)), "no_viable_strategy")
        if not chosen:
            return
        places = np.array(list(chosen), dtype=np.int64)
        names, texts = zip(*chosen.values(), strict=True)
        expansions = self.search(list(texts))
        earlier_rows = np.hstack([part.rows[places] for part in self.lists]).tolist()
        steps = {
            "question": places,
            "iteration": iteration,
            "strategy": names,
            "original": [self.context.questions[place] for place in chosen],
            "expanded": texts,
            "result_count": expansions.has_chunk.sum(axis=1),
            "unique_result_count": [
                len({*found} - {-1, *earlier})
                for found, earlier in zip(expansions.rows.tolist(), earlier_rows, strict=True)
            ],
            "confidence_before": self.confidence[places],
            "seconds": (time.perf_counter() - started) / len(places),
            "stopped": "",
        }
        self._merge(expansions, places, np.array([WEIGHTS[name] for name in names]))
        for place, text in zip(chosen, texts, strict=True):
            self.asked[place].add(text)
        steps |= {"confidence_after": self.confidence[places], "basis": self.basis}
        self.steps.append(steps)

    def _merge(self, new: Ranking, places: IntArray, weights: FloatArray) -> None:
        """Merge the lists of expansions into the lists of their questions, and estimate anew."""
        self.lists.append(_spread(new, places, len(self.asked)))
        column = np.zeros(len(self.asked))
        # an empty or failed list gets weight 0, so that it does not lower the merged scores
        has_list = new.has_chunk.any(axis=1)
        column[places] = np.where(has_list, weights * self.first_miss[places], 0.0)
        self.weights = np.column_stack([self.weights, column])
        fused = _merge(self.lists, self.weights, self.ranking.rows.shape[1])
        self.ranking = _replace(self.ranking, fused, column > 0)
        rows, raw, norm = self.ranking.rows, self.ranking.raw, self.ranking.norm
        batch = dataclasses.replace(self.context.batch, rows=rows, raw=raw, norm=norm)
        self.context = dataclasses.replace(self.context, batch=batch)
        self.rounds.append(self.ranking.rows)
        self.missed, self.basis = self.risk(batch)


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

    `first` is their ranking by the base, and `context.batch` holds the same lists. `spec` has the
    thresholds, the budget and the permitted expansions. `search` retrieves with the base for any
    texts, as deep as `first`. `risk` estimates the probability of a miss [n] and names its source.
    The source is `calibrated`, or `heuristic_v0@` with the ranks that the estimate read. Gaps are
    searched in the first `k` ranks.
    """
    import pandas as pd

    state = _Rounds(first, context, spec, search, risk)
    if first.failed is not None:
        state.stop(np.flatnonzero(first.failed), "failed")
    for iteration in range(1, spec.max_iterations + 1):
        active = state.active()
        state.stop(active[state.confidence[active] >= spec.min_recall], "threshold")
        spent = np.array([len(texts) > spec.max_expansions for texts in state.asked])
        state.stop(np.flatnonzero(spent), "max_expansions")
        if not len(active := state.active()):
            break
        state.run(iteration, active, k)
    left = state.active()
    state.stop(left[state.confidence[left] >= spec.min_recall], "threshold")
    stopped = tuple(why or "max_iterations" for why in state.stopped)
    steps = make_frame(EXPANSIONS_FRAME, [])
    if state.steps:
        steps = pd.concat(map(pd.DataFrame, state.steps), ignore_index=True)[list(steps)]
        steps = steps.sort_values(["question", "iteration"], ignore_index=True)
        last = ~steps["question"].duplicated(keep="last")
        steps.loc[last, "stopped"] = [stopped[place] for place in steps.loc[last, "question"]]
    rounds = tuple(state.rounds)
    steps = EXPANSIONS_FRAME.check(steps)
    return Iterated(state.ranking, steps, stopped, state.basis, rounds, dict(state.not_viable))
