"""Signals of a miss: cheap figures of a ranked list, vectorised over the batch. They are signals, never confidence.

Belongs here: the list of signals and the one function that computes them all. What each means stands in its module.
"""

import dataclasses
from typing import Final

import numpy as np

from rag_eval.uncertainty.batch import FloatArray, RankedBatch
from rag_eval.uncertainty.signals.agreement import agreement
from rag_eval.uncertainty.signals.candidates import candidates
from rag_eval.uncertainty.signals.clustering import clustering
from rag_eval.uncertainty.signals.coherence import coherence
from rag_eval.uncertainty.signals.corpus_weights import corpus_weights
from rag_eval.uncertainty.signals.coverage import coverage
from rag_eval.uncertainty.signals.evidence import Evidence
from rag_eval.uncertainty.signals.score_shape import score_shape
from rag_eval.uncertainty.signals.specificity import specificity
from rag_eval.uncertainty.signals.wordings import NAMES as WORDINGS
from rag_eval.uncertainty.signals.wordings import wordings

FAMILIES: Final = (score_shape, coverage, agreement, candidates, specificity, coherence, clustering)
SIGNALS: Final[tuple[str, ...]] = (
    *("tail_ratio", "score_sd", "wig", "nqc", "cut_gap"),
    *("cover_union", "cover_best", "cover_rare", "cover_top", "cover_crowd"),
    *("overlap", "rbo", "other_first", "first_in_other", "same_first"),
    *(
        "lexical_other",
        "cosine_other",
        "lexical_crowd",
        "beyond_lexical",
        "beyond_cosine",
        "beyond_fused",
        "fused_gap",
    ),
    *("idf_mean", "idf_max", "length", "unknown", "generic"),
    *("coherence", "clarity", "same_document"),
    *WORDINGS,
)
SINGLE_PREDICTORS: Final[tuple[str, ...]] = (
    "nqc",
    "wig",
    "clarity",
    "tail_ratio",
    "cover_union",
    "cover_best",
)
"""Signals that are reported alone too, as others use them."""

BLOCK_BYTES = 64 * 2**20
"""Memory of one table of term frequencies, terms of a block of queries x chunks: queries share terms within it, so larger is faster."""
QUERY_TERMS = 16
"""Terms that a query is taken to have in that."""
BLOCK_PLACES = 50_000
"""Places (queries x K) that are looked at together."""
CENTRE_SAMPLE = 10_000
"""Chunks that the mean of the chunk vectors is taken of, evenly over the corpus: a live query must not read all of them."""


def signals(batch: RankedBatch, k: int) -> FloatArray:
    """All SIGNALS of a batch.

    Parameters
    ----------
    batch
        n ranked lists.
    k
        Cutoff of the target, at least 1.

    Returns
    -------
    array
        float64 [n, len(SIGNALS)], NaN where a signal is not defined for a query.

    Raises
    ------
    ValueError
        k is under 1.
    """
    if k < 1:
        raise ValueError(f"k: found {k}, accepted at least 1")
    found = np.full((len(batch), len(SIGNALS)), np.nan)
    corpus, vectors = corpus_weights(batch.space), batch.chunk_vectors
    centre = (
        None
        if vectors is None or not len(vectors)
        else vectors[:: -(-len(vectors) // CENTRE_SAMPLE)].mean(axis=0)
    )
    together = wordings(batch, k)
    step = max(
        1, min(BLOCK_PLACES // k, BLOCK_BYTES // (2 * QUERY_TERMS * max(corpus.n_chunks, 1)))
    )
    for start in range(0, len(batch), step):
        block = slice(start, start + step)
        evidence = Evidence(_part(batch, block), k, corpus, centre)
        by_name = {
            name: values for family in FAMILIES for name, values in family(evidence).items()
        } | {name: values[block] for name, values in together.items()}
        found[block] = np.stack([by_name[name] for name in SIGNALS], axis=1)
    return found


def _part(batch: RankedBatch, block: slice) -> RankedBatch:
    """Some queries of a batch; what is not of queries is shared."""
    names = (
        "rows",
        "raw",
        "norm",
        "query_terms",
        "other_rows",
        "other_raw",
        "query_vectors",
        "question",
    )
    parts = {name: getattr(batch, name) for name in names}
    return dataclasses.replace(
        batch, **{name: part[block] for name, part in parts.items() if part is not None}
    )
