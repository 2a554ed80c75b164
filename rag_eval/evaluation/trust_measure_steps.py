"""Trust of what was retrieved, blocked chunks that got through, and what the trust filter costs."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.guard_steps import blocked_pairs, guarded_search, restated
from rag_eval.evaluation.measure_steps import (
    BOOTSTRAP_SEED,
    COMPARED,
    Runs,
    comparison_rows,
    interval_of,
    with_holm,
)
from rag_eval.evaluation.scoring import ALWAYS_K, Scores, score_strategy
from rag_eval.evaluation.trust_steps import admitted_trust, evidence_trust
from rag_eval.evaluation.unit_verdicts import unit_verdicts
from rag_eval.measures.aggregate import aggregate
from rag_eval.measures.paired import paired_comparison
from rag_eval.records.gold_set import External
from rag_eval.storage.artifacts import Artifact

MAX_EXAMPLES = 20
FloatArray = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Judged:
    """What the guard says of the units of one strategy: trust, verdict and reasons by row; and (wording, unit) pairs that are blocked only together."""

    trust: FloatArray
    verdict: npt.NDArray[np.object_]
    reasons: list[list[str]]
    names: pd.DataFrame
    pairs: npt.NDArray[np.int64]


def _judged(runs: Runs, name: str) -> Judged:
    evaluation = runs.evaluation
    if isinstance(runs.spec(name), External):
        found = unit_verdicts(evaluation, runs.units(name))
        names = runs.units(name).rename(columns={"unit_id": "chunk_id"})[["chunk_id", "doc_id"]]
        return Judged(found.trust, found.verdict, found.reasons, names, found.pairs)
    facts = admitted_trust(evaluation)
    pairs = blocked_pairs(evaluation, len(facts))
    return Judged(
        facts["trust"].to_numpy(),
        facts["verdict"].to_numpy(dtype=object),
        facts["reasons"].tolist(),
        facts[["chunk_id", "doc_id"]],
        pairs,
    )


def _retrieved(runs: Runs, name: str) -> dict[str, Any]:
    """Mean trust of the first ten, and every blocked chunk among all that came back."""
    judged, gold = _judged(runs, name), runs.gold
    n_units = max(1, len(judged.names))
    blocked_unit = judged.verdict == "blocked"
    means, owners = [], []
    n_retrieved = n_blocked = n_warned = 0
    examples: dict[int, dict[str, Any]] = {}
    chunk_ids, doc_ids, query_ids = (
        judged.names["chunk_id"].tolist(),
        judged.names["doc_id"].tolist(),
        gold.variants["query_id"].tolist(),
    )
    for rows in runs.rows(name).values():
        found = rows >= 0
        codes = np.arange(len(rows), dtype=np.int64)[:, None] * n_units + rows
        restates = np.isin(codes, judged.pairs) & found
        bad = (blocked_unit[rows] & found) | restates if len(judged.names) else found & False
        n_retrieved += int(found.sum())
        n_blocked += int(bad.sum())
        n_warned += (
            int(((judged.verdict == "warning")[rows] & found & ~bad).sum())
            if len(judged.names)
            else 0
        )
        for variant, place in zip(*np.nonzero(bad), strict=True):
            unit = int(rows[variant, place])
            reasons = [
                *judged.reasons[unit],
                *(["restates_query.retrieved"] if restates[variant, place] else []),
            ]
            first = {
                "chunk_id": chunk_ids[unit],
                "doc_id": doc_ids[unit],
                "query_id": query_ids[variant],
                "rank": int(place) + 1,
            }
            entry = examples.setdefault(unit, {**first, "reasons": reasons, "n": 0})
            entry["n"] += 1
        top = rows[:, :ALWAYS_K]
        trust = np.where(top >= 0, judged.trust[top] if len(judged.names) else 0.0, np.nan)
        with_any = (top >= 0).any(axis=1)
        mean = np.full(len(rows), np.nan)
        mean[with_any] = (
            np.nanmean(trust[with_any], axis=1) if evaluation_has_trust(runs) else np.nan
        )
        means.append(mean)
        owners.append(gold.query_of)
    figure = interval_of(
        aggregate(
            ["avg_trust_score"],
            np.concatenate(means)[:, None],
            gold.groups,
            BOOTSTRAP_SEED,
            query_of=np.concatenate(owners),
        )[0]
    )
    return {
        "avg_trust": figure
        if evaluation_has_trust(runs)
        else {**figure, "value_reason": NOT_CONFIGURED},
        "n_retrieved": n_retrieved,
        "n_blocked": n_blocked,
        "n_warned": n_warned,
        "blocked": sorted(examples.values(), key=lambda entry: (-entry["n"], entry["chunk_id"]))[
            :MAX_EXAMPLES
        ],
    }


NOT_CONFIGURED = (
    "the gold set names no trusted domains, authors or keys, so there is nothing to trust by"
)


def evaluation_has_trust(runs: Runs) -> bool:
    """Whether trust has a value at all."""
    return runs.evaluation.config.trust.configured


def _other_scores(runs: Runs, name: str) -> Scores:
    """Score the strategy as it would be with the filter where it runs without, and the other way round."""
    evaluation, filtered = runs.evaluation, not runs.evaluation.config.trust.filter
    if isinstance(runs.spec(name), External):
        return _external_filtered(runs, name)
    seeds = runs.artifact(name).json("about")["seeds"]
    rows = {}
    for seed in seeds:
        found, _ = guarded_search(evaluation, runs.opened, name, seed, filtered=filtered)
        padded = np.full((len(found.rows), evaluation.config.depth), -1, dtype=np.int64)
        padded[:, : found.rows.shape[1]] = found.rows
        rows[seed] = padded
    return score_strategy(
        rows, runs.gold_of(name), evaluation.config.k, runs.artifact(name).frame("failed")
    )


def _external_filtered(runs: Runs, name: str) -> Scores:
    """Take units under the threshold out of what an outside retriever returned; it cannot be asked for what stood behind."""
    threshold = runs.evaluation.config.trust.threshold or 0.0
    below = _judged(runs, name).trust < threshold
    rows = {}
    for seed, ranked in runs.rows(name).items():
        gone = (ranked < 0) | (below[ranked] if len(below) else True)
        order = np.argsort(gone, axis=1, kind="stable")
        rows[seed] = np.take_along_axis(np.where(gone, -1, ranked), order, axis=1)
    scores = score_strategy(
        rows, runs.gold_of(name), runs.evaluation.config.k, runs.artifact(name).frame("failed")
    )
    return scores.limited(runs.ran(name), runs.unmeasured(name))


def _filter_cost(runs: Runs) -> dict[str, Any]:
    """Recall with and without the trust filter, paired question by question."""
    spec, level = runs.evaluation.config.trust, runs.evaluation.config.level
    if spec.threshold is None:
        return {"value": None, "reason": "no trust.threshold is configured"}
    facts = admitted_trust(runs.evaluation)
    rows = []
    for name in [name for name in runs.names if level not in runs.unmeasured(name)]:
        if isinstance(runs.spec(name), External) and spec.filter:
            continue  # an outside retriever ranks without our filter; its figures with it would be another system's
        own, other = runs.scores(name), _other_scores(runs, name)
        pair = (own, other) if spec.filter else (other, own)
        columns = [own.labels[level].index(label) for label in COMPARED]
        with_filter, without = (
            scores.per_query(level, len(runs.gold.queries), runs.gold)[:, columns]
            for scores in pair
        )
        found = paired_comparison(with_filter, without, runs.gold.groups, BOOTSTRAP_SEED)
        values = [
            aggregate(COMPARED, part, runs.gold.groups, BOOTSTRAP_SEED)
            for part in (with_filter, without)
        ]
        for at, row in enumerate(comparison_rows("with", "without", level, found)):
            rows.append(
                {
                    "strategy": name,
                    **{key: value for key, value in row.items() if key not in {"a", "b"}},
                    "with_filter": interval_of(values[0][at]),
                    "without_filter": interval_of(values[1][at]),
                }
            )
    return {
        "threshold": spec.threshold,
        "applied": spec.filter,
        "n_chunks": len(facts),
        "n_below": int((facts["trust"] < spec.threshold).sum()),
        "rows": [
            {key: value for key, value in row.items() if key != "p"} for row in with_holm(rows)
        ],
    }


def trust_measures(runs: Runs) -> Artifact:
    """Measure trust over the stored runs. Parts: about (strategies: what each retrieved; filter: what the threshold costs)."""
    return runs.evaluation.once("trust measures", lambda: _trust_measures(runs))


def _trust_measures(runs: Runs) -> Artifact:
    evaluation = runs.evaluation
    key = evaluation.key(
        *(
            "trust measures",
            gold_variants(evaluation).key,
            runs.keys,
            evidence_trust(evaluation).key,
            restated(evaluation).key,
            corpus_snapshot(evaluation).key,
        ),
        evaluation.config.trust.model_dump(mode="json"),
        evaluation.config.k,
        evaluation.config.level,
        evaluation.config.depth,
    )

    def make() -> dict[str, Any]:
        with evaluation.progress.step(
            "Judging the trust of what was retrieved", len(runs.names), "strategies"
        ) as advance:
            strategies = {}
            for name in runs.names:
                strategies[name] = _retrieved(runs, name)
                advance(1)
        return {"about": {"strategies": strategies, "filter": _filter_cost(runs)}}

    return evaluation.memo("trust measures", key, make)
