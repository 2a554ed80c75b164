"""The stored run of a strategy as a retriever: what it found, with the payload that an answer can cite. Nothing is searched again."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.corpus.analyzer import count_tokens
from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.records.gold_set import External
from rag_eval.records.retrieval import RetrievalMetadata, RetrievalResult, ScoredChunk
from rag_eval.retrieval.payloads import Payloads


class StoredRetrieval:
    """Rankings of one strategy under its first seed, by the wording that was asked.

    Parameters
    ----------
    runs
        The stored runs.
    name
        The strategy.
    """

    def __init__(self, runs: Runs, name: str) -> None:
        evaluation = runs.evaluation
        artifact = runs.artifact(name)
        about = artifact.json("about")
        run, failed, seed = artifact.frame("run"), artifact.frame("failed"), about["seeds"][0]
        run = run[run["seed"] == seed].sort_values(["variant", "k_final"], kind="stable")
        self._about: dict[str, Any] = about
        self._columns = {
            column: run[column].to_numpy()
            for column in ("chunk", "k_pos", "k_final", "score_raw", "score_norm", "rerank_score")
        }
        variants = runs.gold.variants
        self._bounds = np.searchsorted(run["variant"].to_numpy(), np.arange(len(variants) + 1))
        self._failed = set(failed.loc[failed["seed"] == seed, "variant"].tolist())
        self._variant_of: dict[str, int] = {}
        for row, text in enumerate(variants["text"].tolist()):
            self._variant_of.setdefault(text, row)
        self._payloads = Payloads(
            self._units(runs, name), corpus_snapshot(evaluation).frame("documents")
        )

    @staticmethod
    def _units(runs: Runs, name: str) -> pd.DataFrame:
        """What the rows of the ranking name, with the columns of chunks; an external unit that is one of our chunks is that chunk."""
        chunks = admitted_chunks(runs.evaluation).frame("chunks")
        if not isinstance(runs.spec(name), External):
            return chunks
        units = runs.units(name)
        own = units["chunk"].to_numpy()
        ids = np.where(
            own >= 0,
            chunks["chunk_id"].to_numpy(dtype=object)[np.maximum(own, 0)],
            units["unit_id"].to_numpy(dtype=object),
        )
        return units.assign(chunk_id=ids, tokens=[count_tokens(text) for text in units["text"]])

    @property
    def index_hash(self) -> str:
        """Identity of the index that was searched."""
        return str(self._about["index_hash"])

    @property
    def embed_model(self) -> str:
        """Its embedding; empty for lexical retrieval."""
        return str(self._about["embed_model"])

    def __call__(self, queries: Sequence[str], top_k: int) -> list[RetrievalResult | None]:
        """Return the first top_k chunks of each wording; None where its retrieval failed."""
        return [self._result(self._variant_of[query], top_k) for query in queries]

    def _result(self, variant: int, top_k: int) -> RetrievalResult | None:
        if variant in self._failed:
            return None
        low, high = int(self._bounds[variant]), int(self._bounds[variant + 1])
        chunks = tuple(self._chunk(place) for place in range(low, min(high, low + top_k)))
        return RetrievalResult(chunks, RetrievalMetadata(str(self._about["name"]), 0.0, high - low))

    def _chunk(self, place: int) -> ScoredChunk:
        value = {name: column[place] for name, column in self._columns.items()}
        return self._payloads.scored(
            int(value["chunk"]),
            index_hash=self.index_hash,
            embed_model=self.embed_model,
            score_raw=float(value["score_raw"]),
            score_norm=float(value["score_norm"]),
            k_pos=int(value["k_pos"]),
            k_final=int(value["k_final"]),
            rerank_score=None if np.isnan(value["rerank_score"]) else float(value["rerank_score"]),
        )
