"""Rankings over the chunks as a batch that estimators of a miss look at.

Belongs here: which lists, terms and vectors stand beside a strategy's rankings, and which second retriever they are held against.
"""

from typing import TYPE_CHECKING

import numpy as np

from rag_eval.evaluation.embeddings import stability_embedding
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.records.gold_set import Bm25, External, Strategy, Vector
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.retrieval.ranking import Ranking
from rag_eval.uncertainty.batch import RankedBatch, TermSpace

if TYPE_CHECKING:
    from rag_eval.evaluation.index_steps import Opened

SECOND_DEPTH = 100
SECOND_LEXICAL = Bm25(name="second", kind="bm25")
"""BM25 with its defaults: the second retriever of whatever is not lexical itself."""


def term_space(evaluation: Evaluation, opened: "Opened") -> TermSpace:
    """Terms of the admitted chunks, counted once an evaluation."""
    return evaluation.once(
        "term space", lambda: TermSpace(opened.table.terms, opened.table.n_terms)
    )


def second_of(
    evaluation: Evaluation, opened: "Opened", spec: Strategy, texts: list[str]
) -> Ranking:
    """Rank with the second retriever: by vectors where the strategy is lexical, else by BM25."""
    if not isinstance(evaluation.config.base_of(spec), Bm25):
        return opened.index.by_term(SECOND_LEXICAL, texts, SECOND_DEPTH, None)
    source = opened.index.source(
        stability_embedding(evaluation)
    )  # a file of vectors knows the gold set's own wordings, which are all that is asked
    return ExactSearch(source.chunk_vectors()).search(source.query_vectors(texts), SECOND_DEPTH)


def can_be_asked(evaluation: Evaluation, opened: "Opened", spec: Strategy, text: str) -> bool:
    """Whether `batch_of` can look at a wording that is not the gold set's: where vectors come from a file, only at those that the file has."""
    base = evaluation.config.base_of(spec)
    return opened.index.source(
        stability_embedding(evaluation) if isinstance(base, Bm25 | External) else base.embedding
    ).can_embed(text)


def batch_of(
    evaluation: Evaluation, opened: "Opened", spec: Strategy, texts: list[str], found: Ranking
) -> RankedBatch:
    """Make the batch of rankings over the chunks, just found or stored; no question of it is known to be another's wording.

    Parameters
    ----------
    texts
        The n wordings.
    found
        Their rankings by `spec`.
    """
    base = evaluation.config.base_of(spec)
    source = None if isinstance(base, Bm25 | External) else opened.index.source(base.embedding)
    other = second_of(evaluation, opened, spec, texts)
    return RankedBatch(
        rows=found.rows,
        raw=found.raw,
        norm=found.norm,
        cosine=isinstance(base, Vector) and base.rerank is None,
        space=term_space(evaluation, opened),
        query_terms=opened.table.query_terms(texts),
        other_rows=other.rows,
        other_raw=other.raw,
        query_vectors=None if source is None else source.query_vectors(texts),
        chunk_vectors=None if source is None else np.asarray(source.chunk_vectors()),
        document=evaluation.once(
            "documents of chunks",
            lambda: np.unique(np.array(opened.table.doc_ids, dtype=object), return_inverse=True)[
                1
            ].astype(np.int64),
        ),
    )
