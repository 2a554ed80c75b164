"""Signal stage: what a strategy's stored lists say of a miss, for every wording and seed, before any outcome is known."""

from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.batch_steps import stored_batches
from rag_eval.evaluation.batches import term_space
from rag_eval.evaluation.embeddings import stability_embedding
from rag_eval.evaluation.fingerprints import strategy_fingerprint
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.storage.artifacts import Artifact
from rag_eval.uncertainty.batch import RankedBatch
from rag_eval.uncertainty.expansion.context import ExpansionContext
from rag_eval.uncertainty.expansion.words import CorpusWords
from rag_eval.uncertainty.gaps import semantic_gaps
from rag_eval.uncertainty.heuristic import heuristic_v0
from rag_eval.uncertainty.signals import SIGNALS, signals

KEYS = ("variant", "seed", "failed", "heuristic_v0")
"""Columns beside the signals: row of the variants frame, seed, whether the retrieval failed, the uncalibrated heuristic."""


def fingerprint_of(runs: Runs, name: str) -> str:
    """Identity of everything that decides the rankings of a strategy of this evaluation."""
    return strategy_fingerprint(
        runs.evaluation, runs.spec(name), str(runs.artifact(name).json("about")["index_hash"])
    )


def strategy_signals(runs: Runs, name: str) -> Artifact:
    """Signals of one strategy's runs.

    Parts: signals (KEYS, then a column a signal; NaN where undefined), gaps (by seed a list for each variant; null where the strategy's own units
    were retrieved, which the words of the corpus say nothing of), about (names, n, fingerprint).
    """
    return runs.evaluation.once(f"signals {name}", lambda: _strategy_signals(runs, name))


def _strategy_signals(runs: Runs, name: str) -> Artifact:
    evaluation, run = runs.evaluation, runs.artifact(name)
    k, fingerprint = evaluation.config.uncertainty.k, fingerprint_of(runs, name)
    embedding = stability_embedding(evaluation).model_dump(mode="json")
    key = evaluation.key(
        "signals",
        run.key,
        gold_variants(evaluation).key,
        admitted_chunks(evaluation).key,
        k,
        embedding,
        fingerprint,
    )

    def make() -> dict[str, Any]:
        parts, gaps = [], dict[str, list[list[dict[str, Any]]] | None]()
        failed = run.frame("failed")
        with evaluation.progress.step(
            f"Signals of {name}", len(runs.gold.variants), "wordings"
        ) as advance:
            for seed, batch in stored_batches(runs, name).items():
                broken = np.zeros(len(batch), dtype=bool)
                broken[failed.loc[failed["seed"] == seed, "variant"].to_numpy()] = True
                part = pd.DataFrame(signals(batch, k), columns=list(SIGNALS))
                part.insert(0, "heuristic_v0", heuristic_v0(batch, k))
                part.insert(0, "failed", broken)
                part.insert(0, "seed", seed)
                part.insert(0, "variant", np.arange(len(batch), dtype=np.int64))
                parts.append(part)
                gaps[str(seed)] = _gaps(runs, batch, k)
                advance(len(batch) // max(len(run.json("about")["seeds"]), 1))
        frame = pd.concat(parts, ignore_index=True)
        return {
            "signals": frame[runs.ran(name)[frame["variant"].to_numpy()]].reset_index(drop=True),
            "gaps": gaps,
            "about": {"names": list(SIGNALS), "n": len(frame), "fingerprint": fingerprint},
        }

    return evaluation.memo("signals", key, make)


def _gaps(runs: Runs, batch: RankedBatch, k: int) -> list[list[dict[str, Any]]] | None:
    """Semantic gaps of every wording, as JSON objects."""
    opened = runs.opened()
    if batch.space is not term_space(runs.evaluation, opened):
        return None
    words = runs.evaluation.once("corpus words", lambda: CorpusWords(opened.table, batch.space))
    context = ExpansionContext(batch, runs.gold.variants["text"].tolist(), words)
    return [
        [gap.as_json() for gap in found]
        for found in semantic_gaps(context, np.arange(len(batch)), k)
    ]
