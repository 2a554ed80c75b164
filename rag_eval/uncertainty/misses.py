"""Misses of strategies: compared on the same queries, and traced to the step that lost the gold."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, number
from rag_eval.core.frames import schema
from rag_eval.core.records import CountedInterval
from rag_eval.core.types import BinaryTarget
from rag_eval.measures.intervals import (
    FEW_DIFFERING,
    delta_of,
    holm,
    paired_comparison,
    within_query,
)
from rag_eval.measures.overlap import SharedGold
from rag_eval.measures.run_scores import ALWAYS_K, RankedRuns, cutoffs_of, figure_of, judge_runs
from rag_eval.retrieval.ranking import Ranking
from rag_eval.uncertainty.claims import original_claims
from rag_eval.uncertainty.miss_rate_report import (
    ComparedStrategy,
    MissComparison,
    MissDifference,
    MissesPart,
    MissMeasure,
    MissPair,
    ObservedMisses,
)
from rag_eval.uncertainty.validation import finite, mean_figure


@dataclasses.dataclass(frozen=True)
class Misses:
    """Outcomes and miss rates of one strategy on n queries, in the same order for all strategies.

    `missed` [n] are 0, 1 or NaN = not judged. `calibrated` [n] come from models that did not see
    the query's group, NaN = no estimate. `raw` [n] is `heuristic_v0`.
    """

    name: str
    missed: FloatArray
    calibrated: FloatArray
    raw: FloatArray

    @property
    def squared_error(self) -> FloatArray:
        """Squared error of each calibrated miss rate, [n]."""
        return np.asarray((self.calibrated - self.missed) ** 2)

    def skills(self, rows: BoolArray | None = None) -> FloatArray:
        """Compute values [n] that have the Brier skill of some queries as mean; NaN for others.

        Skill is ``1 - E / B`` with the mean squared error E and ``B = m (1 - m)``, the error of a
        forecaster who knows the miss rate m beforehand: the hardest constant reference to beat.
        Each value is the skill plus the influence of the query on it, so their mean has the
        uncertainty of the skill (Hampel 1974, JASA 69:383-393). NaN where all or none missed.
        """
        error = self.squared_error if rows is None else np.where(rows, self.squared_error, np.nan)
        has_error = ~np.isnan(error)
        n = max(int(has_error.sum()), 1)
        mean, rate = error[has_error].sum() / n, self.missed[has_error].sum() / n
        base = rate * (1 - rate)
        if base <= 1e-12:  # noqa: PLR2004 - rounding
            return np.full(len(error), np.nan)
        of_rate = mean * (1 - 2 * rate) / base**2
        return np.asarray(1 - error / base + of_rate * (self.missed - rate))


def compare_stated(
    runs: RankedRuns, claims_of: Mapping[str, pd.DataFrame], predictions: pd.DataFrame
) -> tuple[MissComparison | None, str]:
    """Compare all calibrated strategies; None with the reason when there is no comparison.

    The questions are those that were judged for every strategy, in their original wording and under
    the first seed. The outcomes are those of the fit (`predictions`), with corrections, because
    predictions must match their training data. `claims_of` has the claims by strategy.
    """
    if len(claims_of) < 2:  # noqa: PLR2004 - a pair
        return None, f"{len(claims_of)} strategies have enough outcomes; a comparison needs two"
    fitted = predictions.set_index("claim_id")[["missed", "predicted"]].astype(float)
    fitted, parts = fitted.where(fitted["predicted"].notna()), dict[str, pd.DataFrame]()
    for name, claims in claims_of.items():
        original = original_claims(claims, runs, name)[["claim_id", "query_id", "heuristic_v0"]]
        frame = original.join(fitted, on="claim_id").set_index("query_id")
        parts[name] = frame.reindex(runs.gold.queries["query_id"])
    common = np.all([part["missed"].notna().to_numpy() for part in parts.values()], axis=0)
    if not common.any():
        return None, "no question was judged for every strategy"
    columns = ["missed", "predicted", "heuristic_v0"]
    misses = [
        Misses(name, *part.loc[common, columns].to_numpy(dtype=np.float64).T)
        for name, part in parts.items()
    ]
    return _compare(misses, runs.gold.shared.take(common)), ""


def _compare(strategies: Sequence[Misses], gold: SharedGold) -> MissComparison:
    """Compare every pair of two or more strategies on the same queries, in the order given.

    `gold` is that of the n queries. p is adjusted over all pairs, separately for each measure: the
    measures answer different questions, and estimated miss rates nearly always differ.
    """
    pairs = itertools.combinations(strategies, 2)
    rows = [row for a, b in pairs for row in _compare_pair(a, b, gold)]
    for measure in get_args(MissMeasure):
        places = [at for at, row in enumerate(rows) if row.measure == measure]
        # NumPy turns None into NaN.
        adjusted = holm(np.array([rows[at].p for at in places], dtype=np.float64))
        for at, p in zip(places, adjusted, strict=True):
            rows[at] = MissDifference(**{**dict(rows[at]), "p_holm": finite(p)})
    figures = [
        ComparedStrategy(
            name=entry.name,
            observed=mean_figure(entry.missed, gold),
            raw=mean_figure(entry.raw, gold),
            calibrated=mean_figure(entry.calibrated, gold),
            brier=mean_figure(entry.squared_error, gold),
            skill=mean_figure(entry.skills(), gold, unit_range=False),
        )
        for entry in strategies
    ]
    return MissComparison(strategies=figures, differences=rows, n=len(gold))


def _compare_pair(a: Misses, b: Misses, gold: SharedGold) -> list[MissDifference]:
    """Compare all measures of the queries; skills on the queries that have all four values."""
    shared = ~np.isnan(a.squared_error + b.squared_error)
    left, right = (
        np.column_stack(
            [one.missed, one.raw, one.calibrated, one.squared_error, one.skills(shared)]
        )
        for one in (a, b)
    )
    unit_range = [measure != "skill" for measure in get_args(MissMeasure)]
    paired = paired_comparison(left, right, gold, higher_is_better=False, unit_range=unit_range)
    *_, n_errors, _ = (paired.n_better + paired.n_worse).tolist()
    if n_errors < FEW_DIFFERING:
        # Too few differing queries would give a skill a false interval without width.
        for figures in (paired.ci_low, paired.ci_high, paired.p, paired.minimum_detectable):
            figures[-1] = np.nan
    n_both, rows = (~np.isnan(left - right)).sum(axis=0).tolist(), []
    for at, measure in enumerate(get_args(MissMeasure)):
        has_counts = n_both[at] and measure != "skill"
        counts = {
            name: int(getattr(paired, name)[at]) if has_counts else None
            for name in ("n_better", "n_worse", "n_tied")
        }
        delta = CountedInterval(
            value=finite(paired.delta[at]),
            low=finite(paired.ci_low[at]),
            high=finite(paired.ci_high[at]),
            n=n_both[at],
            n_effective=float(paired.n_effective[at]),
        )
        p, detectable = finite(paired.p[at]), finite(paired.minimum_detectable[at])
        pair = {"a": a.name, "b": b.name, "measure": measure, "delta": delta}
        rows.append(MissDifference(**pair, p=p, p_holm=None, detectable=detectable, **counts))
    return rows


# ---- Observed misses of both targets at every cutoff, and their paired differences.

NONE_JUDGED: Final = "no question of this gold set can be judged"


def observe_misses(runs: RankedRuns) -> tuple[list[ObservedMisses], list[MissPair]]:
    """Observe the misses of every strategy and pair, for both targets at every cutoff.

    A failed retrieval misses. A question counts by its mean over wordings and seeds, and a pair is
    compared on the wordings that both strategies were run on.
    """
    cells = list(itertools.product(get_args(BinaryTarget), cutoffs_of(runs.config.k)))
    labels, level = [f"{target}_at_{k}" for target, k in cells], runs.config.level
    missed, figures = dict[str, FloatArray](), list[ObservedMisses]()
    for name in runs.names:
        missed[name] = _miss_columns(runs, name, cells)
        records = runs.aggregate(name, labels, missed[name], level, failed_value=1.0)
        for (target, k), record in zip(cells, records, strict=True):
            figure = dict(figure_of(record, None if record.n_scored else NONE_JUDGED))
            figures.append(ObservedMisses(strategy=name, target=target, k=k, **figure))
    pairs = list(itertools.combinations(missed, 2))
    if not pairs:
        return figures, []
    left, right = (
        np.hstack([_within_pair(runs, pair, missed[pair[side]], pair[side]) for pair in pairs])
        for side in (0, 1)
    )
    comparison = paired_comparison(left, right, runs.gold.shared, higher_is_better=False)
    adjusted = holm(comparison.p)
    return figures, [
        MissPair.model_validate(
            {
                **dict(zip(("a", "b", "target", "k"), (*pair, *cell), strict=True)),
                **delta_of(comparison, at),
                "p": number(comparison.p[at]),
                "p_adjusted": number(adjusted[at]),
                "minimum_detectable": number(comparison.minimum_detectable[at]),
            }
        )
        for at, (pair, cell) in enumerate(itertools.product(pairs, cells))
    ]


def _within_pair(
    runs: RankedRuns, pair: tuple[str, str], missed: FloatArray, name: str
) -> FloatArray:
    """Average the misses of each question over the wordings that both strategies were run on."""
    variant, gold = runs.scores(name).variant, runs.gold
    both = (runs.ran(pair[0]) & runs.ran(pair[1]))[variant]
    values = np.where(both[:, None], missed, np.nan)
    return within_query(values, gold.query_of[variant], len(gold.queries))


def _miss_columns(
    runs: RankedRuns, name: str, cells: Sequence[tuple[BinaryTarget, int]]
) -> FloatArray:
    """Judge every run of a strategy by each (target, K), [n_runs, n_cells]; NaN = not judged."""
    judgements, scores, level = judge_runs(runs, name), runs.scores(name), runs.config.level
    columns = []
    for target, k in cells:
        at_k = dataclasses.replace(judgements, recall=scores.column(level, f"R@{k}"))
        columns.append(at_k.missed(target, k))
    query = runs.gold.query_of[judgements.variant]
    is_failed = judgements.failed & ~scores.ineligible(level, runs.gold)[query]
    return np.where(is_failed[:, None], 1.0, np.stack(columns, axis=1))


# ---- The step of a strategy that lost the gold of a missed question.

MISSED: Final = schema(
    "missed",
    strategy=("str", "strategy that missed the question"),
    query_id=("str", "question, in its original wording and under the first seed"),
    lexical=("float", "rank of the first gold item in the lexical list before fusion; NaN: none"),
    vector=("float", "the same in the vector list before fusion"),
    ranked=("float", "the same after fusion, before the rerank step"),
    final=("float", "the same in the list of the run"),
    depth=("int", "length of the lists before fusion; 0 where only the list of the run is known"),
    ranked_depth=("int", "length of the list after fusion"),
    lost=("str", "step that lost the gold: retrieval, fusion, rerank or cutoff"),
)
STEPS: Final = ("lexical", "vector", "ranked", "final")
SearchSteps = Callable[[str, IntArray], Mapping[str, Ranking]]
"""Function that searches wordings (rows of variants) by a strategy again; the lists by step."""


def trace_misses(
    runs: RankedRuns, name: str, search: SearchSteps
) -> tuple[pd.DataFrame, MissesPart]:
    """Find the step that lost the gold of each missed question of a strategy.

    Returns the questions (MISSED) and their counts.
    """
    judgements, gold = judge_runs(runs, name), runs.gold
    counted = (gold.wordings[0] == 0)[judgements.variant] & ~np.isnan(judgements.first)
    counted &= judgements.seed == runs.first_seed(name)
    missed = counted & (judgements.first > ALWAYS_K) & ~judgements.failed
    variant, final = judgements.variant[missed], judgements.first[missed]
    lists = search(name, variant) if len(variant) else {}
    lengths = {step: ranking.rows.shape[1] for step, ranking in lists.items()}
    ranks = dict.fromkeys(STEPS, np.full(len(variant), np.nan))
    ranks |= {step: _rank_first(runs, name, lists[step], variant) for step in lists}
    ranks["final"] = np.where(np.isfinite(final), final, np.nan)
    frame = pd.DataFrame(
        {
            "strategy": name,
            "query_id": gold.queries["query_id"].to_numpy()[gold.query_of[variant]],
            **ranks,
            "depth": max(lengths.values(), default=0),
            "ranked_depth": lengths.get("ranked", runs.config.depth),
            "lost": _lost_by(ranks),
        }
    ).astype(dict.fromkeys(("strategy", "query_id", "lost"), "str"))
    part = MissesPart(
        n_judged=int(counted.sum()),
        n_failed=int((counted & judgements.failed).sum()),
        n_missed=len(frame),
        lost={str(step): int(n) for step, n in frame["lost"].value_counts().items()},
    )
    return MISSED.check(frame), part


def _rank_first(runs: RankedRuns, name: str, lists: Ranking, variant: IntArray) -> FloatArray:
    """Rank the first gold item of each list at the headline level; NaN without one."""
    rows = np.asarray(lists.rows, dtype=np.int64)
    rank, owner = runs.gold_of(name).rank(rows, runs.config.level, variant)
    first = np.full(len(variant), np.inf)
    np.minimum.at(first, owner, rank)
    return np.where(np.isfinite(first), first, np.nan)


def _lost_by(ranks: Mapping[str, FloatArray]) -> list[str]:
    """Name the last step that moved the gold out of the first ALWAYS_K ranks."""
    best = np.fmin(ranks["lexical"], ranks["vector"])
    ranked = np.stack([best, ranks["ranked"], ranks["final"]])
    moved = [ranks["ranked"] <= ALWAYS_K, best <= ALWAYS_K, np.isfinite(ranked).any(axis=0)]
    lost: list[str] = np.select(moved, ["rerank", "fusion", "cutoff"], "retrieval").tolist()
    return lost


# ---- One plain sentence about a miss.

_LISTS: Final = {"lexical": "the lexical list", "vector": "the vector list"}


def describe_miss(row: Mapping[Any, Any]) -> str:
    """Say in one sentence which list had the gold, and which step lost it; `row` is of MISSED.

    Examples
    --------
    >>> describe_miss({"lexical": float("nan"), "vector": 14.0, "ranked": 23.0,
    ...     "final": 23.0, "depth": 1000, "ranked_depth": 100, "lost": "cutoff"})
    'The vector list had it at 14, the lexical list below 1000; fusion moved it to 23; the cut-off \
at 10 lost it.'
    """
    rank = {step: int(row[step]) for step in STEPS if row[step] == row[step]}  # NaN differs
    ranked, final, lost = rank.get("ranked"), rank.get("final"), row["lost"]
    below, depth = f"below {row['ranked_depth']}", row["depth"]
    lists = sorted(_LISTS, key=lambda step: step not in rank)
    if lost == "retrieval":
        clauses = [f"no list had it in its first {depth}" if depth else "no list had it"]
    elif lists[0] in rank:
        places = [f"at {rank[step]}" if step in rank else f"below {depth}" for step in lists]
        first, second = (f"{_LISTS[step]} {{}}{at}" for step, at in zip(lists, places, strict=True))
        clauses = [f"{first.format('had it ')}, {second.format('')}"]
        clauses.append(f"fusion moved it {below if ranked is None else f'to {ranked}'}")
    else:
        clauses = [f"its list had it at {final if ranked is None else ranked}"]
    if ranked is not None and ranked != final:
        clauses.append(f"the rerank moved it {below if final is None else f'to {final}'}")
    if lost == "cutoff":
        clauses.append(f"the cut-off at {ALWAYS_K} lost it")
    elif lost in {"fusion", "rerank"}:
        clauses[-1] += " and lost it"
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."
