"""The engines reproduce published figures on SciFact."""

import ir_measures
import pytest
from corpora import places
from ir_measures import R, nDCG

from rag_eval.core.parts import Embedding
from rag_eval.retrieval.dense import Hybrid, Vector
from rag_eval.retrieval.lexical import Bm25
from rag_eval.retrieval.strategies import ReadyStrategy, StrategyIndex


def measured(data, spec, folder):
    found = ReadyStrategy(spec, StrategyIndex(data.table, places(folder))).search(data.queries, 100)
    assert found.rows.shape == (300, 100)
    run = [
        ir_measures.ScoredDoc(query_id, data.table.doc_ids[row], -float(place))
        for query_id, rows in zip(data.query_ids, found.rows.tolist(), strict=True)
        for place, row in enumerate(rows)
        if row >= 0
    ]
    return ir_measures.calc_aggregate([nDCG @ 10, R @ 10, R @ 100], data.qrels, run)


def test_bm25_gives_the_published_figures(scifact_data, tmp_path):
    found = measured(scifact_data, Bm25(name="bm25", kind="bm25"), tmp_path)
    assert found[nDCG @ 10] == pytest.approx(0.679, abs=0.010)
    assert found[R @ 100] == pytest.approx(0.925, abs=0.010)


def test_minilm_vectors_give_the_published_figures(scifact_data, shared_data, tmp_path):
    embedding = Embedding(vectors=str(shared_data / "embeddings" / "all-MiniLM-L6-v2.npz"))
    found = measured(
        scifact_data, Vector(name="vector", kind="vector", embedding=embedding), tmp_path
    )
    assert found[nDCG @ 10] == pytest.approx(0.6451, abs=0.0005)
    assert found[R @ 10] == pytest.approx(0.7833, abs=0.0005)
    assert found[R @ 100] == pytest.approx(0.9250, abs=0.0005)


def test_hybrid_is_as_good_as_its_train_questions_promise(scifact_data, shared_data, tmp_path):
    embedding = Embedding(vectors=str(shared_data / "embeddings" / "all-MiniLM-L6-v2.npz"))
    spec = Hybrid(name="hybrid", kind="hybrid", embedding=embedding)
    found = measured(scifact_data, spec, tmp_path)
    assert found[nDCG @ 10] >= 0.725
    assert found[R @ 10] >= 0.84
