"""Signal stage: what a strategy's stored lists say of a miss, for every wording and seed, before any outcome is known."""

from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.batch_steps import stored_batches
from rag_eval.evaluation.embeddings import stability_embedding
from rag_eval.evaluation.fingerprints import strategy_fingerprint
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.storage.artifacts import Artifact
from rag_eval.uncertainty.heuristic import heuristic_v0
from rag_eval.uncertainty.signals import SIGNALS, signals

KEYS = ("variant", "seed", "failed", "heuristic_v0")
"""Columns beside the signals: row of the variants frame, seed, whether the retrieval failed, the uncalibrated heuristic."""


def fingerprint_of(runs: Runs, name: str) -> str:
    """Identity of everything that decides the rankings of a strategy of this evaluation."""
    return strategy_fingerprint(runs.evaluation, runs.spec(name), str(runs.artifact(name).json("about")["index_hash"]))


def strategy_signals(runs: Runs, name: str) -> Artifact:
    """Signals of one strategy's runs. Parts: signals (KEYS, then a column a signal; NaN where undefined), about (names, n, fingerprint)."""
    return runs.evaluation.once(f"signals {name}", lambda: _strategy_signals(runs, name))


def _strategy_signals(runs: Runs, name: str) -> Artifact:
    evaluation, run = runs.evaluation, runs.artifact(name)
    k, fingerprint = evaluation.config.uncertainty.k, fingerprint_of(runs, name)
    embedding = stability_embedding(evaluation).model_dump(mode="json")
    key = evaluation.key("signals", run.key, gold_variants(evaluation).key, admitted_chunks(evaluation).key, k, embedding, fingerprint)

    def make() -> dict[str, Any]:
        parts = []
        failed = run.frame("failed")
        with evaluation.progress.step(f"Signals of {name}", len(runs.gold.variants), "wordings") as advance:
            for seed, batch in stored_batches(runs, name).items():
                broken = np.zeros(len(batch), dtype=bool)
                broken[failed.loc[failed["seed"] == seed, "variant"].to_numpy()] = True
                part = pd.DataFrame(signals(batch, k), columns=list(SIGNALS))
                part.insert(0, "heuristic_v0", heuristic_v0(batch, k))
                part.insert(0, "failed", broken)
                part.insert(0, "seed", seed)
                part.insert(0, "variant", np.arange(len(batch), dtype=np.int64))
                parts.append(part)
                advance(len(batch) // max(len(run.json("about")["seeds"]), 1))
        frame = pd.concat(parts, ignore_index=True)
        return {"signals": frame[runs.ran(name)[frame["variant"].to_numpy()]].reset_index(drop=True), "about": {"names": list(SIGNALS), "n": len(frame), "fingerprint": fingerprint}}

    return evaluation.memo("signals", key, make)
