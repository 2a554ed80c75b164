"""A strategy's stored run as batches that estimators of a miss look at, one for each seed."""

import dataclasses

import numpy as np
import pandas as pd

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.evaluation.batches import batch_of
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.records.gold_set import External
from rag_eval.retrieval.ranking import Ranking
from rag_eval.uncertainty.batch import RankedBatch, TermSpace


def stored_batches(runs: Runs, name: str) -> dict[int, RankedBatch]:
    """Make the batches of a stored run by seed; rows are variants.

    An external retriever's units that are all chunks of ours are looked at as chunks. Else its own texts are the term space, and nothing
    stands beside its lists: a second retriever's would name other things.
    """
    spec, texts, question = (
        runs.spec(name),
        runs.gold.variants["text"].tolist(),
        np.asarray(runs.gold.query_of, dtype=np.int64),
    )
    about, frame = runs.artifact(name).json("about"), runs.artifact(name).frame("run")
    lists = {
        seed: stored_ranking(frame, seed, len(texts), runs.evaluation.config.depth)
        for seed in about["seeds"]
    }
    if isinstance(spec, External):
        units = runs.units(name)
        chunk_of = units["chunk"].to_numpy()
        if len(chunk_of) and (chunk_of >= 0).all():
            lists = {seed: _renamed(found, chunk_of) for seed, found in lists.items()}
        else:
            return _unit_batches(lists, units["text"].tolist(), texts, question)
    opened = runs.opened()
    return {
        seed: dataclasses.replace(
            batch_of(runs.evaluation, opened, spec, texts, found), question=question
        )
        for seed, found in lists.items()
    }


def stored_ranking(frame: pd.DataFrame, seed: int, n: int, depth: int) -> Ranking:
    """Read one seed of a RUN frame back as a ranking of n variants."""
    part = frame[frame["seed"] == seed]
    place = part["variant"].to_numpy(), part["k_final"].to_numpy() - 1
    rows, raw, norm, k_pos, rerank = (
        np.full((n, depth), -1, dtype=np.int32),
        np.zeros((n, depth)),
        np.zeros((n, depth)),
        np.zeros((n, depth), dtype=np.int32),
        np.full((n, depth), np.nan),
    )
    for array, column in (
        (rows, "chunk"),
        (raw, "score_raw"),
        (norm, "score_norm"),
        (k_pos, "k_pos"),
        (rerank, "rerank_score"),
    ):
        array[place] = part[column].to_numpy()
    return Ranking(
        rows,
        np.nan_to_num(raw),
        np.nan_to_num(norm),
        k_pos,
        rerank,
        (rows >= 0).sum(axis=1).astype(np.int64),
    )


def _renamed(found: Ranking, chunk_of: np.ndarray) -> Ranking:
    rows = np.where(found.rows >= 0, chunk_of[np.maximum(found.rows, 0)], -1).astype(np.int32)
    return Ranking(rows, found.raw, found.norm, found.k_pos, found.rerank, found.candidates)


def _unit_batches(
    lists: dict[int, Ranking], unit_texts: list[str], texts: list[str], question: np.ndarray
) -> dict[int, RankedBatch]:
    analyzer = Analyzer()
    terms = analyzer.index(unit_texts)
    n_terms = 1 + max((max(row) for row in terms if row), default=-1)
    space, query_terms = TermSpace(terms, n_terms), analyzer.index(texts)
    return {
        seed: RankedBatch(
            rows=found.rows,
            raw=found.raw,
            norm=found.norm,
            cosine=False,
            space=space,
            query_terms=query_terms,
            question=question,
        )
        for seed, found in lists.items()
    }
