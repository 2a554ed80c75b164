"""Count, name and report relevant documents that the poisoning guard keeps out of the index."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from rag_eval.core.errors import Problem, quoted

CODE = "gold_blocked"
MAX_LISTED = 20
"""Largest number of warnings that name a document. One more warning counts the rest."""


class BlockedDocument(NamedTuple):
    """A relevant document with chunks that are kept out of the index."""

    doc_id: str
    n_chunks: int
    n_blocked: int
    n_queries: int


class BlockedGold(NamedTuple):
    """Numbers of relevant documents and their questions, and of those with blocked chunks.

    A document counts as blocked with one blocked chunk, and as wholly blocked if all chunks are
    blocked. `documents` lists the blocked documents; documents of most questions come first.
    """

    n_documents: int
    n_blocked: int
    n_wholly_blocked: int
    n_queries: int
    n_queries_blocked: int
    documents: list[BlockedDocument]


def blocked_gold(qrels: pd.DataFrame, doc_ids: pd.Series, admitted: pd.Series) -> BlockedGold:
    """Find the relevant documents (QRELS) with chunks that are not admitted to the index.

    `doc_ids` [n_chunks] holds the document of each chunk. `admitted` [n_indexed] holds the document
    of each indexed chunk.
    """
    relevant = qrels[qrels["gain"] > 0]
    n_chunks = doc_ids.value_counts()
    n_blocked = n_chunks - admitted.value_counts().reindex(n_chunks.index, fill_value=0)
    touched = relevant[relevant["item_id"].isin(n_blocked.index[n_blocked > 0])]
    n_queries = touched.groupby("item_id")["query_id"].nunique()
    names = n_queries.index
    columns = (names, n_chunks.reindex(names), n_blocked.reindex(names), n_queries)
    documents = [BlockedDocument(*row) for row in zip(*map(list, columns), strict=True)]
    return BlockedGold(
        n_documents=int(relevant["item_id"].nunique()),
        n_blocked=len(documents),
        n_wholly_blocked=sum(document.n_blocked == document.n_chunks for document in documents),
        n_queries=int(relevant["query_id"].nunique()),
        n_queries_blocked=int(touched["query_id"].nunique()),
        documents=sorted(documents, key=lambda document: (-document.n_queries, document.doc_id)),
    )


def describe(documents: Sequence[BlockedDocument]) -> Iterator[str]:
    """Yield each document with its number of blocked chunks as text."""
    for document in documents:
        yield f"{quoted(document.doc_id)} ({document.n_blocked} of {document.n_chunks} chunks)"


def blocked_problems(found: BlockedGold) -> list[Problem]:
    """Warn of each blocked document, in the order of `found.documents`, and count the rest."""
    accepted = "gold without blocked chunks: rag-eval trust list shows why, trust allow lets one in"
    problems = [
        Problem(
            CODE,
            f"the poisoning guard blocks {document.n_blocked} of {document.n_chunks} chunks of a"
            f" document that is relevant to {document.n_queries} of {found.n_queries} questions",
            field="corpus",
            found=quoted(document.doc_id),
            accepted=accepted,
            severity="warning",
        )
        for document in found.documents[:MAX_LISTED]
    ]
    if found.n_blocked > MAX_LISTED:
        message = (
            f"the poisoning guard blocks chunks of {found.n_blocked} of {found.n_documents}"
            f" relevant documents; {found.n_blocked - MAX_LISTED} more are not listed"
        )
        problems.append(
            Problem(CODE, message, field="corpus", accepted=accepted, severity="warning")
        )
    return problems
