"""The explorer's table: one entry a question and strategy, for sorting and filtering without any other part."""

from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.explorer_claims import Stated
from rag_eval.evaluation.explorer_packing import CHUNKS, QUESTIONS, SCHEMA_VERSION, nullable
from rag_eval.evaluation.explorer_questions import first_rank
from rag_eval.evaluation.explorer_rankings import DEPTH, BoolArray, FloatArray, Units
from rag_eval.evaluation.explorer_texts import MAX_QUESTION, line, name
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.scoring import ALWAYS_K, wording_of
from rag_eval.evaluation.stability_steps import STATES, stability_measures
from rag_eval.records.answers import OUTCOMES
from rag_eval.records.uncertainty import STATUSES
from rag_eval.reporting.html.untrusted import visible

MEASURE = f"R@{ALWAYS_K}"


def values_of(runs: Runs) -> FloatArray:
    """Recall at 10 of every question at the headline level, mean over wordings and seeds, float [n_strategies, n_questions]."""
    level, n = runs.evaluation.config.level, len(runs.gold.queries)
    return np.stack(
        [
            runs.scores(strategy).per_query(level, n, runs.gold)[
                :, runs.scores(strategy).labels[level].index(MEASURE)
            ]
            for strategy in runs.names
        ]
    )


def _originals(runs: Runs) -> np.ndarray:
    """Variant of each question's original wording."""
    original = np.flatnonzero(wording_of(runs.gold)[0] == 0)
    found = np.empty(len(runs.gold.queries), dtype=np.int64)
    found[runs.gold.query_of[original]] = original
    return found


def _answerable(runs: Runs) -> list[int | None]:
    """1 or 0; null where only recorded outputs name a question and nobody said whether it has an answer."""
    said = runs.gold.queries["answerable"].to_numpy(dtype=bool)
    gold = runs.evaluation.gold
    known = (
        gold.places["has_flag"].to_numpy(dtype=bool)
        if gold.layout == "recorded"
        else np.ones(len(said), dtype=bool)
    )
    return [
        int(flag) if sure else None
        for flag, sure in zip(said.tolist(), known.tolist(), strict=True)
    ]


def _counts(runs: Runs, strategy: str) -> tuple[list[Any], list[Any]]:
    """Retrievals that hit at 10 (null where nothing can be judged), and all there were, by question."""
    level, n, scores, ran = (
        runs.evaluation.config.level,
        len(runs.gold.queries),
        runs.scores(strategy),
        runs.ran(strategy),
    )
    owner, hit = runs.gold.query_of[scores.variant], scores.column(level, f"Success@{ALWAYS_K}")
    judged = ~np.isnan(hit)
    hits = np.bincount(owner[judged], weights=hit[judged], minlength=n)
    there: BoolArray = np.bincount(owner[judged], minlength=n) > 0
    return nullable(np.where(there, hits, np.nan)), np.bincount(
        owner[ran[scores.variant]], minlength=n
    ).tolist()


def _tags(queries: pd.DataFrame) -> tuple[list[str], list[list[int]]]:
    """Tags in the order of their first appearance, and those of each question."""
    shown = [[name(str(tag)) for tag in tags] for tags in queries["tags"].tolist()]
    index = {tag: at for at, tag in enumerate(dict.fromkeys(tag for tags in shown for tag in tags))}
    return list(index), [list(dict.fromkeys(index[tag] for tag in tags)) for tags in shown]


def _states(runs: Runs) -> list[list[int | None]]:
    frame = stability_measures(runs).frame("per_query")
    place = {state: at for at, state in enumerate(STATES)}
    ids = runs.gold.queries["query_id"]
    by_name = {
        strategy: part.set_index("query_id")["lambda_state"].reindex(ids).tolist()
        for strategy, part in frame.groupby("strategy", sort=False)
    }
    return [[place.get(state) for state in by_name[strategy]] for strategy in runs.names]


def summary_of(
    runs: Runs, units: Units, claims: list[Stated], answered: dict[str, list[Any]]
) -> dict[str, Any]:
    """Everything of the summary but what depends on the previous run."""
    evaluation, queries, originals = runs.evaluation, runs.gold.queries, _originals(runs)
    config, level, n_variants = evaluation.config, evaluation.config.level, len(runs.gold.variants)
    tags, tags_of = _tags(queries)
    counts = [_counts(runs, strategy) for strategy in runs.names]
    reciprocal = np.stack(
        [
            runs.scores(strategy).column(level, "RR")[:n_variants][originals]
            for strategy in runs.names
        ]
    )
    return {
        "schema_version": SCHEMA_VERSION,
        "gold_set": config.name,
        "primary": runs.names.index(config.primary_strategy),
        "strategies": runs.names,
        "measure": MEASURE,
        "level": level,
        "target": config.uncertainty.target,
        "k": config.uncertainty.k,
        "depth": DEPTH,
        "statuses": list(STATUSES),
        "states": list(STATES),
        "outcomes": list(OUTCOMES),
        "tags": tags,
        "questions": {
            "id": [visible(query_id) for query_id in queries["query_id"].tolist()],
            "text": [line(text, MAX_QUESTION) for text in queries["text"].tolist()],
            "tags": tags_of,
            "answerable": _answerable(runs),
            "group": runs.gold.groups.tolist(),
            "wordings": np.bincount(runs.gold.query_of, minlength=len(queries)).tolist(),
            "value": nullable(values_of(runs)),
            "first": nullable(first_rank(reciprocal)),
            "hits": [hits for hits, _ in counts],
            "runs": [ran for _, ran in counts],
            "miss": nullable(np.stack([its.figures[0, originals, 0] for its in claims])),
            "status": [its.status[0, originals].tolist() for its in claims],
            "state": _states(runs),
            **answered,
        },
        "shards": {"questions": QUESTIONS, "chunks": CHUNKS},
        "n_questions": len(queries),
        "n_chunks": len(units.unit),
        "texts": {"kept": len(units.unit), "of": len(units.unit)},
    }
