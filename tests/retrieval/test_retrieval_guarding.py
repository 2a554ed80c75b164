"""Pairs that are left out of a ranking, and the trust threshold of the port."""

import numpy as np
import pytest
from corpora import documents_frame, made_ranking, places, table

from rag_eval.core.types import RetrievalOptions
from rag_eval.retrieval.lexical import Bm25
from rag_eval.retrieval.service import RetrievalService
from rag_eval.retrieval.strategies import ReadyStrategy, StrategyIndex

N_CHUNKS = 12


def test_an_empty_place_is_no_pair_of_the_query_before():
    """An empty place (row -1) of query 1 has the pair code of the last chunk of query 0."""
    before = made_ranking([[(N_CHUNKS - 1, 1.0)], [(3, 1.0)]], 3)
    after = before.without(np.array([N_CHUNKS - 1]), N_CHUNKS)
    assert after.rows.tolist() == [[-1, -1, -1], [3, -1, -1]]


def test_the_default_threshold_holds_for_calls_that_name_none(tmp_path):
    ids = [(f"d{number}", f"c{number}") for number in range(8)]
    chunks = table([f"The tower of Amberley holds bell {number}." for number in range(8)], ids)
    strategy = ReadyStrategy(
        Bm25(name="bm25", kind="bm25"), StrategyIndex(chunks, places(tmp_path))
    )
    made = {"corpus_rev": "r", "default": "bm25"}
    trust = np.linspace(0, 1, len(ids))

    def port(**options):
        return RetrievalService(
            {"bm25": strategy}, documents_frame(chunks.frame), **made, **options
        )

    def shown(**options):
        limited = port(trust=trust, default_threshold=0.5)
        found = limited.retrieve("bells of Amberley", RetrievalOptions(top_k=50, **options))
        return {chunk.snippet_id for chunk in found.chunks}

    assert shown() == {name for (_, name), value in zip(ids, trust, strict=True) if value >= 0.5}
    assert shown(trust_threshold=0.0) == {name for _, name in ids}
    with pytest.raises(ValueError, match="default_threshold"):
        port(default_threshold=0.5)
