"""How much of the corpus can be retrieved at all: counted from the index, no estimate."""

from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.corpus_steps import corpus_chunks, corpus_snapshot
from rag_eval.evaluation.index_steps import corpus_index
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.records.confidence import Deterministic, as_json


def corpus_coverage(runs: Runs) -> dict[str, Any]:
    """Count the shares of documents indexed, of text in chunks and of chunks with vectors, each a deterministic confidence value with its denominators."""
    return runs.evaluation.once("corpus coverage", lambda: _corpus_coverage(runs))


def _corpus_coverage(runs: Runs) -> dict[str, Any]:
    evaluation = runs.evaluation
    documents = corpus_snapshot(evaluation).frame("documents")
    columns = ["doc_id", "start", "end"]
    cut, kept = (
        pd.read_parquet(part.path("chunks.parquet"), columns=columns)
        for part in (corpus_chunks(evaluation), admitted_chunks(evaluation))
    )
    length = int(documents["text"].str.len().sum())
    vectors = corpus_index(evaluation, runs.opened).json("about")["vectors"]
    figures = {
        "documents_indexed": (
            int(kept["doc_id"].nunique()),
            len(documents),
            "documents with an indexed chunk",
        ),
        "text_in_chunks": (
            covered(kept),
            length,
            "characters of the documents that an indexed chunk holds",
        ),
        "chunks_admitted": (len(kept), len(cut), "chunks that the poisoning guard admitted"),
    }
    found = {name: _share(*parts) for name, parts in figures.items()}
    found["chunks_embedded"] = {
        model: _share(
            int(entry["added"]) + int(entry["kept"]),
            len(kept),
            "chunks whose vectors stand in the store",
        )
        for model, entry in sorted(vectors.items())
    }
    return found


def _share(part: int, whole: int, what: str) -> dict[str, Any]:
    value = min(part / whole, 1.0) if whole else 0.0
    return {
        "n": part,
        "of": whole,
        "confidence": as_json(
            Deterministic(value=value, reason=f"counted: {part} of {whole} {what}")
        ),
    }


def covered(chunks: pd.DataFrame) -> int:
    """Characters that lie in at least one chunk; chunks of a document may overlap."""
    ordered = chunks.sort_values(["doc_id", "start"], kind="stable")
    start, end = ordered["start"].to_numpy(dtype=np.int64), ordered["end"].to_numpy(dtype=np.int64)
    reach = (
        ordered["end"]
        .groupby(ordered["doc_id"])
        .cummax()
        .groupby(ordered["doc_id"])
        .shift(fill_value=0)
        .to_numpy(dtype=np.int64)
    )
    return int(np.maximum(end - np.maximum(start, reach), 0).sum())
