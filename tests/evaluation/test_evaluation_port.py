"""The port that callers open over a gold set's corpus, and the flag that decides its default."""

import pytest

from rag_eval.core.settings import Settings
from rag_eval.core.types import RetrievalOptions, RetrievalPort
from rag_eval.pipeline.live_questions import open_port
from rag_eval.pipeline.opening import open_gold_set


@pytest.fixture
def opened(project_root, tmp_path):
    def open_with(**settings):
        given = Settings.model_validate(
            {"home": tmp_path / "home", "reports": tmp_path / "reports", **settings}
        )
        return open_port(open_gold_set(project_root / "gold_sets" / "smoke", given))

    return open_with


def test_serves_every_kind_and_bm25_by_default(opened):
    port = opened()
    assert isinstance(port, RetrievalPort)
    assert port.stats().default_strategy == "bm25"
    assert set(port.stats().index_hashes) == {"bm25", "vector", "hybrid"}
    for kind in ("bm25", "vector", "hybrid"):
        result = port.retrieve(
            "What happens to a job that fails?", RetrievalOptions(top_k=3, strategy=kind)
        )
        assert [chunk.k_final for chunk in result.chunks] == [1, 2, 3]
        trust = result.metadata.trust
        assert [one.snippet_id for one in trust] == [chunk.snippet_id for chunk in result.chunks]
        assert {one.factors["domain"]["state"] for one in trust} == {"not_configured"}
        assert all(one.poison_check.passed and one.score is None for one in trust)

    assert opened(feature_hybrid_retrieval=True).stats().default_strategy == "hybrid"
