"""`uncertain-retrievals.jsonl`: one line for every retrieval of every strategy, with what is known of what it missed.

Belongs here: what a line holds. Its texts are the gold set's own wordings' words and ids; nothing of a source is quoted.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.corpus.outgoing import shown
from rag_eval.evaluation.answer_confidences import NO_INTERVAL, confidences, miss_rate_of
from rag_eval.evaluation.answer_steps import answers
from rag_eval.evaluation.claim_steps import miss_rate_claims, of_strategy
from rag_eval.evaluation.corpus_coverage import corpus_coverage
from rag_eval.evaluation.measure_steps import Runs, number
from rag_eval.evaluation.signal_steps import strategy_signals
from rag_eval.gold.files import ORIGINAL
from rag_eval.records.confidence import Absent, Confidence, Derived, as_json
from rag_eval.records.gold_set import External, Iterative
from rag_eval.storage.artifacts import Artifact
from rag_eval.uncertainty.answer_confidence import MissRate, retrieval_confidence

FILE_NAME = "uncertain-retrievals.jsonl"
SCHEMA_VERSION = 1
MAX_GAPS = 5
COVERAGE_SIGNAL = "cover_union"
_shown = functools.lru_cache(maxsize=100_000)(shown)
"""Ids and words come again and again."""


def uncertain_line_schema() -> dict[str, Any]:
    """Return the published JSON Schema of a line."""
    loaded: dict[str, Any] = json.loads(
        resources.files("rag_eval.evaluation")
        .joinpath("uncertain-line.schema.json")
        .read_text(encoding="utf-8")
    )
    return loaded


def uncertain_retrievals(runs: Runs) -> Artifact:
    """Write the lines. Parts: uncertain-retrievals.jsonl, about (n)."""
    evaluation, made = runs.evaluation, answers(runs)
    signals = [strategy_signals(runs, name).key for name in runs.names]
    key = evaluation.key(
        "uncertain",
        miss_rate_claims(runs).key,
        signals,
        runs.keys,
        None if made is None else made.key,
        evaluation.config.uncertainty.k,
    )

    def written() -> Iterator[bytes]:
        with evaluation.progress.step(
            "Writing uncertain retrievals", len(runs.names), "strategies"
        ) as advance:
            for name in runs.names:
                for line in _lines(runs, name):  # a line is some 4 KB: they are never held together
                    yield f"{json.dumps(line, sort_keys=True, ensure_ascii=True, allow_nan=False)}\n".encode()
                advance(1)

    def make() -> dict[str, Any]:
        return {FILE_NAME: written(), "about": {"n": len(miss_rate_claims(runs).frame("claims"))}}

    return evaluation.memo("uncertain", key, make)


def _lines(runs: Runs, name: str) -> Iterator[dict[str, Any]]:
    signals = strategy_signals(runs, name)
    frame, gaps = signals.frame("signals"), signals.json("gaps")
    claims = miss_rate_claims(runs).frame("claims").pipe(of_strategy, name).to_dict("records")
    documents, expansions, answered = (
        _documents(runs, name),
        _expansions(runs, name),
        _answered(runs, name),
    )
    harder = (
        pd.Series([row["miss_rate"] for row in claims], dtype=float)
        .rank(pct=True, method="max")
        .to_numpy()
    )
    coverage = frame[COVERAGE_SIGNAL].to_numpy()
    share = {
        key: value["confidence"]
        for key, value in corpus_coverage(runs).items()
        if "confidence" in value
    }
    first_seed = runs.artifact(name).json("about")["seeds"][0]
    for at, row in enumerate(claims):
        variant, miss = int(frame["variant"].iloc[at]), miss_rate_of(runs, row)
        its = expansions.get(variant, []) if row["seed"] == first_seed else []
        first = row["paraphrase_id"] == ORIGINAL and row["seed"] == first_seed
        found = gaps[str(row["seed"])]
        yield {
            "schema_version": SCHEMA_VERSION,
            "strategy": name,
            **{key: row[key] for key in ("claim_id", "query_id", "paraphrase_id", "seed")},
            "documents": documents.get((variant, row["seed"]), []),
            "miss_rate": _miss_rate(row, miss),
            "query_expansions": [
                {
                    key: step[key]
                    for key in (
                        "original",
                        "expanded",
                        "strategy",
                        "result_count",
                        "found_unique_results",
                    )
                }
                for step in its
            ],
            "coverage_estimate": {"signal": COVERAGE_SIGNAL, "value": number(coverage[at])}
            | (
                {}
                if np.isfinite(coverage[at])
                else {"value_reason": "the question has no word to be covered"}
            ),
            "retrieval_confidence": as_json(retrieval_confidence(miss)),
            "uncertainty": {
                "estimated_recall": as_json(_measured(miss)),
                "query_difficulty": as_json(_difficulty(miss, float(harder[at]))),
                "corpus_coverage": share,
                "semantic_gaps": None
                if found is None
                else [
                    {**gap, "description": _shown(gap["description"])}
                    for gap in found[variant][:MAX_GAPS]
                ],
                **(
                    {}
                    if found is not None
                    else {
                        "semantic_gaps_reason": "the retriever's own units were retrieved, which the words of the corpus say nothing of"
                    }
                ),
            },
            "iterations": its,
            **(
                {"answer": answered[row["query_id"]]}
                if first and row["query_id"] in answered
                else {}
            ),
        }


def _miss_rate(row: Mapping[Any, Any], miss: MissRate) -> dict[str, Any]:
    """The statement as it was made; what is null says why."""
    stated = {
        name: number(row[column])
        for name, column in (
            ("value", "miss_rate"),
            ("ci_low", "ci_low"),
            ("ci_high", "ci_high"),
            ("heuristic_v0", "heuristic_v0"),
        )
    }
    why = "the retrieval failed" if stated["value"] is None else NO_INTERVAL
    nulls = {f"{name}_reason": why for name, value in stated.items() if value is None}
    source = {"gold_source": miss.gold_source} | (
        {} if miss.gold_source else {"gold_source_reason": "no outcome stands behind it"}
    )
    return {
        **stated,
        **nulls,
        **{key: row[key] for key in ("target", "k", "status", "calibrator")},
        **source,
    }


def _measured(miss: MissRate) -> Confidence:
    """Only a measured miss rate says anything of recall; before, nothing is known."""
    return (
        retrieval_confidence(miss) if miss.status == "measured" else Absent(reason="uncalibrated")
    )


def _difficulty(miss: MissRate, share_at_most: float) -> Confidence:
    """Ease of a question among those of this run: the share of retrievals that are likelier to have missed."""
    if miss.status != "measured" or np.isnan(share_at_most):
        return Absent(reason="uncalibrated")
    return Derived(
        value=min(max(1 - share_at_most, 0.0), 1.0),
        formula="share of this run's retrievals with a higher miss rate",
        inputs={"retrieval_confidence": retrieval_confidence(miss)},
    )


def _documents(runs: Runs, name: str) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Top K of every (variant, seed), best first."""
    frame, k = runs.artifact(name).frame("run"), runs.evaluation.config.uncertainty.k
    units = runs.units(name)
    ids = units["unit_id" if isinstance(runs.spec(name), External) else "chunk_id"].to_numpy(
        dtype=object
    )
    doc_ids = units["doc_id"].to_numpy(dtype=object)
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    top = frame[frame["k_final"] <= k].sort_values(["variant", "seed", "k_final"], kind="stable")
    for variant, seed, chunk, rank, score in zip(
        *(top[column].tolist() for column in ("variant", "seed", "chunk", "k_final", "score_raw")),
        strict=True,
    ):
        found.setdefault((variant, seed), []).append(
            {
                "chunk_id": _shown(str(ids[chunk])),
                "doc_id": _shown(str(doc_ids[chunk])),
                "rank": rank,
                "score": number(score),
            }
        )
    return found


def _expansions(runs: Runs, name: str) -> dict[int, list[dict[str, Any]]]:
    if not isinstance(runs.spec(name), Iterative):
        return {}
    found: dict[int, list[dict[str, Any]]] = {}
    for row in runs.artifact(name).frame("expansions").to_dict("records"):
        line = {
            str(key): value if not isinstance(value, float) else number(value)
            for key, value in row.items()
            if key != "question"
        }
        found.setdefault(row["question"], []).append(
            {**line, "original": _shown(row["original"]), "expanded": _shown(row["expanded"])}
        )
    return found


def _answered(runs: Runs, name: str) -> dict[str, dict[str, Any]]:
    made = answers(runs)
    return confidences(runs) if made is not None and made.json("about")["strategy"] == name else {}
