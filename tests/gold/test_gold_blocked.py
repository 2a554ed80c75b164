"""Relevant documents that the poisoning guard keeps out of the index are counted and named."""

import pandas as pd
import pytest

from rag_eval.gold.lint import MAX_BLOCKED, blocked_gold, blocked_problems

JUDGED = [("q1", "a", 1), ("q2", "a", 2), ("q2", "b", 1), ("q3", "c", 1), ("q4", "d", 0)]
CHUNKS = ["a", "a", "a", "b", "b", "c", "d", "e"]


def found(judged, chunks, admitted):
    qrels = pd.DataFrame(judged, columns=["query_id", "item_id", "gain"])
    return blocked_gold(qrels, pd.Series(chunks, dtype=str), pd.Series(admitted, dtype=str))


@pytest.mark.parametrize(
    ("admitted", "counts", "documents"),
    [
        (CHUNKS, (0, 0, 0), []),
        (["a", "a", "a", "b", "b", "c"], (0, 0, 0), []),
        (["a", "b", "b", "c", "d", "e"], (1, 0, 2), [("a", 3, 2, 2)]),
        (["a", "a", "d", "e"], (3, 2, 3), [("a", 3, 1, 2), ("b", 2, 2, 1), ("c", 1, 1, 1)]),
        ([], (3, 3, 3), [("a", 3, 3, 2), ("b", 2, 2, 1), ("c", 1, 1, 1)]),
    ],
)
def test_only_relevant_documents_with_blocked_chunks_count(admitted, counts, documents):
    gold = found(JUDGED, CHUNKS, admitted)
    assert (gold.n_documents, gold.n_queries) == (3, 3)
    assert (gold.n_blocked, gold.n_wholly_blocked, gold.n_queries_blocked) == counts
    rows = [(one.doc_id, one.n_chunks, one.n_blocked, one.n_queries) for one in gold.documents]
    assert rows == documents


def test_a_relevant_document_that_the_corpus_lacks_is_not_blocked():
    gold = found([("q1", "gone", 1)], CHUNKS, CHUNKS)
    assert (gold.n_documents, gold.n_blocked, gold.n_queries_blocked) == (1, 0, 0)


def test_each_blocked_document_is_a_warning_with_its_denominators():
    (problem,) = blocked_problems(found(JUDGED, CHUNKS, ["a", "b", "b", "c"]))
    assert (problem.code, problem.severity, problem.found) == ("gold_blocked", "warning", "a")
    assert "2 of 3 chunks" in problem.message
    assert "2 of 3 questions" in problem.message


def test_many_blocked_documents_are_counted_in_one_more_warning():
    names = [f"d{n:02}" for n in range(MAX_BLOCKED + 5)]
    problems = blocked_problems(found([("q", name, 1) for name in names], names, []))
    assert len(problems) == MAX_BLOCKED + 1
    assert "25 of 25 relevant documents; 5 more" in problems[-1].message
