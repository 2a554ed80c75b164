"""Iterative retrieval: expand questions with low retrieval confidence, search again and merge.

A round expands every question whose confidence is below min_recall while its budget lasts. It uses
the expansion strategy that mitigates the severest gap. It retrieves all expanded questions in one
batch, merges the lists and estimates the confidence again. The confidence only steers the rounds,
until outcomes of this strategy calibrate it for merged lists.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from rag_eval.core.arrays import (
    BoolArray,
    Float32Array,
    FloatArray,
    Int32Array,
    IntArray,
    count_within,
    number,
)
from rag_eval.core.config import EXPANSIONS, ExpansionName
from rag_eval.core.errors import quoted
from rag_eval.core.frames import make_frame, schema
from rag_eval.core.parts import Name
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Identity, IdentityInputs, Strategy
from rag_eval.corpus.masking import mask_name
from rag_eval.measures.intervals import paired_comparison, within_query
from rag_eval.measures.overlap import SharedGold
from rag_eval.measures.run_scores import RankedRuns, score_strategy
from rag_eval.retrieval.ranking import FUSED_ROUNDING, Ranking, order, ranking
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.confidence import SEVERITIES, Gap
from rag_eval.uncertainty.expansion import (
    CorpusWords,
    ExpansionContext,
    find_runs,
    is_identifier,
)
from rag_eval.uncertainty.heuristic import HEURISTIC
from rag_eval.uncertainty.miss_rate_report import ExpansionAccount, IterativeAccount
from rag_eval.uncertainty.signals import Evidence, RankedBatch, read_evidence
from rag_eval.uncertainty.validation import finite

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
            "or heuristic_v0, so that outcomes never change the rankings"
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
        # The last part keeps calibrators of versions that could also ask WordNet, without it.
        parts = [base_hash, self.ranking_options(), calibrator_id or HEURISTIC, model, False]
        return f"iterative:{digest(parts)}"

    def identity(self, inputs: IdentityInputs) -> Identity:
        """Identify the rankings by the base's index, the options and the steering calibrator."""
        if inputs.base is None:
            raise ValueError(f"{self.name}: the identity of the base {self.base} is missing")
        base_hash = inputs.base.index_hash
        steered_by = inputs.calibrator_id(base_hash)
        index_hash = self.index_hash(base_hash, steered_by, inputs.settings)
        return Identity(index_hash, inputs.base.embed_model)


# ---- Semantic gaps: parts of a question that retrieved chunks do not cover, and their cures.

MOST_NAMED, MOST_CHARS = 5, 40
"""Most words of the question that a description names, and most characters of a word."""
LEVELS: Final[Mapping[ExpansionName, tuple[float, float, float]]] = {
    "related_concept": (0.15, 0.3, 0.5),
    "synonym": (0.0, 0.1, 0.3),
    "code_pattern": (0.0, 0.1, 0.3),
    "reformulation": (0.5, 0.7, 0.9),
    "hypernym": (0.0, 0.4, 0.7),
    "negative_sampling": (0.5, 0.7, 0.85),
    "hyponym": (0.3, 0.5, 0.8),
}
"""Extents above which a gap is low, medium and high, by the expansion that mends the gap.

Equally severe gaps keep this order, because earlier expansions recovered more misses on one half
of SciFact.
"""
DESCRIPTIONS: Final[Mapping[ExpansionName, str]] = {
    "synonym": "the first {k} results lack {share:.0f} % of the question's words, weighted by"
    " rarity{words}",
    "related_concept": "no single result holds more than {rest:.0f} % of the question's words,"
    " weighted by rarity",
    "code_pattern": "the corpus writes identifiers or words of the question in another way{words}",
    "reformulation": "{share:.0f} % of the first {k} results are not among those of a second"
    " retriever",
    "hypernym": "the question's words are rare and not all of them are found{words}",
    "negative_sampling": "the first {k} results are much alike and leave out words of the"
    " question{words}",
    "hyponym": "the question's words are general and no result is far ahead among the first {k}",
}


def semantic_gaps(
    context: ExpansionContext, which: IntArray, k: int = 10, *, every_word: bool = False
) -> list[list[Gap]]:
    """Find the gaps of some questions in their top k, the severest first.

    A word without content, such as "how", is no gap. Rounds count `every_word`, as it was when
    `LEVELS` were set.
    """
    left_out = frozenset[int]() if every_word else context.words.function_terms
    gaps_of: list[list[Gap]] = []
    for block, evidence in read_evidence(context.batch.take(which), k):
        questions = context.texts(which[block])
        extents, uncovered = _extents(evidence, context, questions, left_out)
        for row, question in enumerate(questions):
            gaps = []
            for name, levels in LEVELS.items():
                extent = float(extents[name][row])
                # an undefined extent (NaN) passes no level, so it is no gap
                if passed := sum(extent > level for level in levels):
                    words = _name_words(name, question, uncovered[row], context.words)
                    share, rest = 100 * extent, 100 * (1 - extent)
                    text = DESCRIPTIONS[name].format(k=k, share=share, rest=rest, words=words)
                    gaps.append(Gap(text, SEVERITIES[passed - 1], name))
            gaps_of.append(sorted(gaps, key=lambda gap: -SEVERITIES.index(gap.severity)))
    return gaps_of


def _name_words(
    name: ExpansionName, question: str, uncovered: list[int], corpus: CorpusWords
) -> str:
    """Quote the words of a question that are not covered, or that the corpus writes otherwise."""
    words = [corpus.surface[term] for term in uncovered]
    if name == "code_pattern":
        runs = find_runs(question)
        terms = [{*row} - corpus.function_terms for row in corpus.table.query_terms(runs)]
        words = [
            run
            for run, row in zip(runs, terms, strict=True)
            if is_identifier(run) or any(term >= corpus.space.n_terms for term in row)
        ]
    chosen = list(dict.fromkeys(filter(None, words)))[:MOST_NAMED]
    quotes = ", ".join(f"“{quoted(word, MOST_CHARS)}”" for word in chosen)
    return f": {quotes}" if quotes else ""


def _extents(
    evidence: Evidence, context: ExpansionContext, questions: list[str], left_out: frozenset[int]
) -> tuple[dict[ExpansionName, FloatArray], list[list[int]]]:
    """Compute the extent of each gap in [0, 1], [n] each; NaN for an undefined extent.

    The terms `left_out` are no part of a question. Also returns the known terms of each question
    that no chunk of the top k holds, rarest first.
    """
    batch, k, known = evidence.batch, evidence.k, evidence.is_known
    rows, raw, others = batch.rows[:, :k], batch.raw[:, :k], batch.other_rows
    most = float(evidence.space.idf.max(initial=1.0))
    idf = np.where(known, evidence.idf, most)
    idf[np.isin(evidence.term, list(left_out))] = 0.0
    total = evidence.per_query(idf)
    is_empty, total = total == 0, np.maximum(total, 1e-9)
    has_term = evidence.frequencies[:, : rows.shape[1]] > 0
    covered = has_term.any(axis=1)
    single = np.pad(evidence.per_query(has_term * idf[:, None]), ((0, 0), (0, 1)))
    together = evidence.per_query(covered * idf) / total + is_empty
    best, first = single.max(axis=1) / total + is_empty, single[:, 0] / total
    lacking = np.round(np.clip(1.0 - together, 0.0, 1.0), 9)

    uncovered: list[list[int]] = [[] for _ in questions]
    left = np.flatnonzero(known & ~covered & (idf > 0))
    for at in left[np.lexsort((evidence.term[left], -idf[left]))].tolist():
        uncovered[evidence.query[at]].append(int(evidence.term[at]))

    counts = evidence.per_query((known & (idf > 0)).astype(float))
    rarity = evidence.per_query(known * idf) / max(most, 1e-9) / np.maximum(counts, 1)
    rarity[counts == 0] = np.nan
    flat, n_results = np.full(evidence.n, np.nan), (rows >= 0).sum(axis=1)
    if rows.shape[1]:
        last = np.take_along_axis(raw, np.maximum(n_results - 1, 0)[:, None], axis=1)[:, 0]
        has_top = (n_results > 1) & (raw[:, 0] > 0)
        flat[has_top] = last[has_top] / raw[has_top, 0]
    runs = [find_runs(text) for text in questions]
    identifiers = np.array([sum(map(is_identifier, part)) / max(len(part), 1) for part in runs])
    missing = evidence.per_query(~known * idf) / total
    agreement = np.full(evidence.n, np.nan) if others is None else _overlap(rows, others[:, :k])
    extents: dict[ExpansionName, FloatArray] = {
        "synonym": lacking,
        "related_concept": np.clip(1.0 - best, 0.0, 1.0),
        "code_pattern": np.maximum(missing, identifiers * (1.0 - first)),
        "reformulation": 1.0 - agreement,
        "hypernym": rarity * lacking**0.5,
        "negative_sampling": _alikeness(context.words.chunk_vectors, rows) * (lacking > 0),
        "hyponym": (1.0 - rarity) * flat,
    }
    # the last bits of a sum depend on its order, and an extent of 0 must pass no level
    return {name: np.round(extent, 9) for name, extent in extents.items()}, uncovered


def _overlap(rows: Int32Array, others: Int32Array) -> FloatArray:
    """Compute the share of the shorter list that the other list holds; NaN if one is empty."""
    same = (rows[:, :, None] == others[:, None, :]) & (rows >= 0)[:, :, None]
    both = same.any(axis=2).sum(axis=1)
    size = np.minimum((rows >= 0).sum(axis=1), (others >= 0).sum(axis=1))
    return np.where(size > 0, both / np.maximum(size, 1), np.nan)


def _alikeness(vectors: Float32Array, rows: Int32Array) -> FloatArray:
    """Compute the mean cosine of retrieved chunks with each other; NaN for fewer than two."""
    has_chunk = rows >= 0
    sums = np.where(has_chunk[:, :, None], vectors[np.maximum(rows, 0)], 0.0).sum(axis=1)
    count = has_chunk.sum(axis=1)
    pairs = (np.einsum("nd,nd->n", sums, sums) - count) / np.maximum(count * (count - 1), 1)
    return np.where(count > 1, pairs, np.nan).astype(np.float64)


# ---- The record of the rounds: a row for each question and expansion, and the reason of each end.

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
    basis=("str", "source of the confidence: calibrated, or heuristic_v0@<ranks that it read>"),
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
class IterativeFacts:
    """Source of the confidence, and counts of the rounds of an iterative strategy, by name."""

    basis: str
    n_rounds: int
    stops: dict[str, int]
    not_viable: dict[str, int]
    suggestions_failed: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Iterated:
    """Rankings of n questions after all rounds; without expansions, that of the first ranking.

    `steps` is an EXPANSIONS_FRAME, sorted by question and round. `stopped` [n] says why rounds
    ended. `rounds` int [n_rounds, n, depth] are the rows of the first ranking and after each round.
    """

    ranking: Ranking
    steps: "pd.DataFrame"
    stopped: tuple[Stopped, ...]
    rounds: IntArray
    facts: IterativeFacts


# ---- The effect of expansions: recovered misses, lost hits, cost and verdict.

RECOVERS: Final = "recovers more than it loses"
HARMS: Final = "harms more than it recovers"
UNDECIDED: Final = "no difference shown"
OVERALL: Final = "overall"


def _account(
    rounds: Sequence[Int32Array] | IntArray,
    steps: "pd.DataFrame",
    recall: Callable[[Int32Array], FloatArray],
    gold: SharedGold,
) -> list[ExpansionAccount]:
    """Return the effect of all rounds first, then the effect of each used strategy.

    `recall` computes recall@K [n] from the rows of a ranking [n, depth]. NaN marks a question
    without gold, which is not counted. `gold` is that of the n questions.
    """
    values = np.stack([recall(rows) for rows in rounds])
    eligible = ~np.isnan(values[0])

    def compare(
        name: str, expanded: "pd.DataFrame", before: FloatArray, after: FloatArray
    ) -> ExpansionAccount:
        counted = expanded[eligible[expanded["question"]]]
        paired = paired_comparison(after, before, gold)
        figures = {
            name: finite(getattr(paired, name)[0]) for name in ("delta", "ci_low", "ci_high", "p")
        }
        low, high = figures["ci_low"] or 0, figures["ci_high"] or 0
        return ExpansionAccount(
            strategy=name,
            questions=int(eligible.sum()),
            triggered=counted["question"].nunique(),
            recovered=int(((before == 0) & (after > 0)).sum()),
            lost=int(((before > 0) & (after == 0)).sum()),
            extra_queries=len(counted),
            extra_seconds=float(counted["seconds"].sum()),
            **figures,
            n_effective=float(paired.n_effective[0]),
            verdict=RECOVERS if low > 0 else HARMS if high < 0 else UNDECIDED,
        )

    accounts = [compare(OVERALL, steps, values[0], values[-1])]
    by_strategy = dict(iter(steps.groupby("strategy")))
    for name in filter(by_strategy.__contains__, EXPANSIONS):
        question, iteration = by_strategy[name][["question", "iteration"]].to_numpy().T
        before, after = np.full((2, len(eligible)), np.nan)
        # A strategy is tried at most once for a question.
        before[question] = values[iteration - 1, question]
        after[question] = values[iteration, question]
        accounts.append(compare(name, by_strategy[name], before, after))
    return accounts


def account_for_rounds(runs: RankedRuns, name: str) -> IterativeAccount:
    """Describe the rounds of an iterative strategy under the first seed."""
    run, spec = runs.runs[name], Iterative.model_validate(runs.spec(name))
    facts, gold, k = run.about.iterative, runs.gold, runs.config.uncertainty.k
    if facts is None or run.rounds is None or run.expansions is None:
        raise RuntimeError(f"{name} was not run in rounds")

    def recall(rows: Int32Array) -> FloatArray:
        scores = score_strategy({0: rows.astype(np.int64)}, gold, [k])
        return scores.column(runs.config.level, f"R@{k}")

    def mean_recall(rows: Int32Array) -> float | None:
        values = within_query(recall(rows)[:, None], gold.query_of, len(gold.queries))
        return number(float(np.nanmean(values))) if np.isfinite(values).any() else None

    accounts = _account(run.rounds, run.expansions, recall, gold.shared.take(gold.query_of))
    return IterativeAccount(
        base=spec.base,
        basis=facts.basis,
        min_recall=spec.min_recall,
        stops=facts.stops,
        not_viable=facts.not_viable,
        suggestions_failed=facts.suggestions_failed,
        recall_before=mean_recall(run.rounds[0]),
        recall_after=mean_recall(run.rounds[-1]),
        k=k,
        accounts=accounts,
        verdict=accounts[0].verdict,
    )


# ---- Fusion: the lists of several wordings become one ranking in which expansions weigh less.

RANK_CONSTANT = 60.0
Weighted = tuple[Ranking, IntArray, FloatArray]
"""Lists of some questions, with the places of these questions and the weight of each list."""


def _merge(lists: Sequence[Weighted], n: int, depth: int) -> Ranking:
    """Fuse lists of n questions, each question with its original list, and keep `depth` ranks.

    Lists of weight 0 are left out. In the result `raw` is the best score that any list gave a
    chunk. `norm` is the weighted mean over all lists, in [0, 1].
    """
    total, candidates = np.zeros(n), np.zeros(n, dtype=np.int64)
    entries: list[tuple[npt.NDArray[Any], ...]] = []
    for part, places, weight in lists:
        total[places] += weight
        candidates[places] = np.maximum(candidates[places], part.candidates)
        row, column = np.nonzero(part.has_chunk & (weight > 0)[:, None])
        shares = (_score_ranks(part) * weight[:, None])[row, column]
        entries.append((places[row], part.rows[row, column], part.raw[row, column], shares))
    query, chunks, raws, shares = map(np.concatenate, zip(*entries, strict=True))
    width = int(chunks.max(initial=0)) + 1
    codes, inverse = np.unique(query * width + chunks, return_inverse=True)
    sums, top = np.bincount(inverse, shares, len(codes)), np.full(len(codes), -np.inf)
    np.maximum.at(top, inverse, raws)
    owner = codes // width
    counts = np.bincount(owner, minlength=n)
    column, shape = count_within(counts), (n, max(int(counts.max(initial=0)), depth))
    union, scores = np.full(shape, -1, dtype=np.int32), np.full(shape, -np.inf)
    union[owner, column], scores[owner, column] = codes % width, sums / total[owner]
    union, scores = order(union, scores, depth, FUSED_ROUNDING)
    question, rank = np.nonzero(union >= 0)
    raw = np.zeros(union.shape)
    raw[question, rank] = top[np.searchsorted(codes, question * width + union[question, rank])]
    return ranking(union, raw, scores, np.maximum(candidates, counts))


def _score_ranks(part: Ranking) -> FloatArray:
    """Return scores in [0, 1] that decrease along each list."""
    by_rank = (RANK_CONSTANT + 1) / (RANK_CONSTANT + np.arange(1, part.rows.shape[1] + 1))
    reranked = ~np.isnan(part.rerank).all(axis=1, keepdims=True)
    return np.where(part.has_chunk, np.where(reranked, by_rank, part.norm), 0.0)


def _replace(whole: Ranking, part: Ranking, places: IntArray) -> Ranking:
    """Replace the lists of some questions."""
    arrays = {}
    for name in ("rows", "raw", "norm", "k_pos", "rerank", "candidates"):
        arrays[name] = getattr(whole, name).copy()
        arrays[name][places] = getattr(part, name)[places]
    return dataclasses.replace(whole, **arrays)


# ---- The rounds.

Risk = Callable[[RankedBatch], tuple[FloatArray, str]]
Search = Callable[[list[str]], Ranking]

WEIGHTS: Final[Mapping[ExpansionName, float]] = {
    "synonym": 0.6,
    "related_concept": 0.7,
    "reformulation": 0.4,
    "hypernym": 0.4,
    "hyponym": 0.25,
    "code_pattern": 1.0,
    "negative_sampling": 0.25,
}
"""Weight of each expansion's scores in the merge. The original list has weight 1.

The weight is multiplied by the estimated miss rate of the first retrieval, because a merge can
only lose chunks that the first retrieval found. The weights were chosen on one half of SciFact's
groups. The choice of the factor used pandas_api too.
"""
FALLBACK: Final[ExpansionName] = "reformulation"
"""Strategy for a question with low confidence for which no gap names a viable strategy."""


class _Questions:
    """What was tried for each of n questions, and why its rounds ended."""

    def __init__(self, texts: Sequence[str], failed: BoolArray | None) -> None:
        n = len(texts)
        self.asked = [{text} for text in texts]
        self.tried: list[set[ExpansionName]] = [set() for _ in texts]
        self.stopped: list[Stopped | None] = [None] * n
        if failed is not None:
            self.stopped = ["failed" if broken else None for broken in failed]
        self.not_viable: Counter[str] = Counter()

    def continue_round(self, iteration: int, confidence: FloatArray, spec: Iterative) -> IntArray:
        """Stop the questions that are confident enough or out of budget; return the others."""
        for place, why in enumerate(self.stopped):
            if why is not None:
                continue
            if confidence[place] >= spec.min_recall:
                self.stopped[place] = "threshold"
            elif iteration > spec.max_iterations:
                self.stopped[place] = "max_iterations"
            elif len(self.asked[place]) > spec.max_expansions:
                self.stopped[place] = "max_expansions"
        return np.flatnonzero([why is None for why in self.stopped])

    def choose(
        self, context: ExpansionContext, active: IntArray, k: int, spec: Iterative
    ) -> dict[int, tuple[ExpansionName, str]]:
        """Choose a viable strategy and its expanded text for each question, severest gap first."""
        queues: dict[int, list[ExpansionName]] = {}
        gaps_of = semantic_gaps(context, active, k, every_word=True)
        for place, gaps in zip(active.tolist(), gaps_of, strict=True):
            names = dict.fromkeys([*(gap.mitigation for gap in gaps), FALLBACK])
            left = {*spec.expansions} - self.tried[place]
            queues[place] = [name for name in names if name in left]
        chosen: dict[int, tuple[ExpansionName, str]] = {}
        while queues := {place: queue for place, queue in queues.items() if queue}:
            wanted: dict[ExpansionName, list[int]] = {}
            for place, queue in queues.items():
                wanted.setdefault(queue.pop(0), []).append(place)
            for name, places in wanted.items():
                texts = context.expand(name, np.array(places, dtype=np.int64))
                for place, text in zip(places, texts, strict=True):
                    self.tried[place].add(name)
                    if text is None or text in self.asked[place]:
                        self.not_viable[name] += 1
                    else:
                        self.asked[place].add(text)
                        chosen[place] = name, text
                        del queues[place]
        for place in set(active.tolist()) - chosen.keys():
            self.stopped[place] = "no_viable_strategy"
        return dict(sorted(chosen.items()))


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
    Gaps are searched in the first `k` ranks.
    """
    import pandas as pd

    n, merged, rounds = len(context.questions), first, [first.rows]
    lists: list[Weighted] = [(first, np.arange(n), np.ones(n))]
    state = _Questions(context.questions, first.failed)
    first_miss, basis = risk(context.batch)
    confidence, tables = 1.0 - first_miss, [make_frame(EXPANSIONS_FRAME, [])]
    for iteration in range(1, spec.max_iterations + 2):
        active, started = state.continue_round(iteration, confidence, spec), time.perf_counter()
        if not len(active) or not (chosen := state.choose(context, active, k, spec)):
            break
        places = np.array([*chosen])
        names, texts = zip(*chosen.values(), strict=True)
        new, earlier = search(list(texts)), _rows_of(lists, n)
        step = {
            "question": places,
            "iteration": iteration,
            "strategy": names,
            "original": context.texts(places),
            "expanded": texts,
            "result_count": new.has_chunk.sum(axis=1),
            "unique_result_count": [
                len({*rows} - {-1} - earlier[place])
                for place, rows in zip(chosen, new.rows.tolist(), strict=True)
            ],
            "confidence_before": confidence[places],
            "seconds": (time.perf_counter() - started) / len(places),
            "stopped": "",
        }
        # an empty or failed list gets weight 0, so that it does not lower the merged scores
        weights = np.array([WEIGHTS[name] for name in names]) * first_miss[places]
        weights = np.where(new.has_chunk.any(axis=1), weights, 0.0)
        lists.append((new, places, weights))
        fused = _merge(lists, n, first.rows.shape[1])
        merged = _replace(merged, fused, places[weights > 0])
        parts = {name: getattr(merged, name) for name in ("rows", "raw", "norm")}
        context = dataclasses.replace(context, batch=dataclasses.replace(context.batch, **parts))
        rounds.append(merged.rows)
        missed, basis = risk(context.batch)
        confidence = 1.0 - missed
        step |= {"confidence_after": confidence[places], "basis": basis}
        tables.append(pd.DataFrame(step))
    steps = pd.concat(tables[1:] or tables, ignore_index=True)
    steps = steps.sort_values(["question", "iteration"], ignore_index=True)
    last = ~steps["question"].duplicated(keep="last")
    steps.loc[last, "stopped"] = [state.stopped[place] for place in steps.loc[last, "question"]]
    stopped = tuple(why for why in state.stopped if why is not None)
    failed = context.suggester.failed if context.suggester else Counter[str]()
    counts: list[Counter[str]] = [Counter(stopped), state.not_viable, failed]
    facts = IterativeFacts(basis, len(rounds), *(dict(sorted(count.items())) for count in counts))
    steps = EXPANSIONS_FRAME.check(steps)
    return Iterated(merged, steps, stopped, np.stack(rounds).astype(np.int64), facts)


def _rows_of(lists: Sequence[Weighted], n: int) -> list[set[int]]:
    """Collect the chunk rows that each question retrieved so far."""
    rows_of: list[set[int]] = [set() for _ in range(n)]
    for part, places, _ in lists:
        for place, rows in zip(places.tolist(), part.rows.tolist(), strict=True):
            rows_of[place].update(rows)
    return rows_of
