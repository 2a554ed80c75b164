"""Every kind of strategy ranks a query alone as in a batch, and two processes agree.

The head of a ranking does not depend on the depth.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from corpora import listed, places, table

from rag_eval.core.errors import InputError
from rag_eval.core.parts import Embedding
from rag_eval.core.strategy import Rerank
from rag_eval.retrieval import dense as hybrid
from rag_eval.retrieval.chroma import ChromaStore
from rag_eval.retrieval.dense import Hybrid, Vector
from rag_eval.retrieval.lexical import Bm25
from rag_eval.retrieval.strategies import ReadyStrategy, StrategyIndex
from rag_eval.storage.hashing import digest

LSA = Embedding(model="lsa-16")
SEED = 13
STRATEGIES = [
    Bm25(name="bm25", kind="bm25"),
    Bm25(name="rank-bm25", kind="bm25", engine="rank-bm25"),
    Bm25(name="bm25-mmr", kind="bm25", rerank=Rerank(kind="mmr", depth=30, embedding=LSA)),
    Bm25(name="bm25-mmr-default", kind="bm25", rerank=Rerank(kind="mmr", depth=20)),
    Bm25(name="bm25-shortest", kind="bm25", rerank=Rerank(kind="shortest_first", depth=7)),
    Vector(name="vector", kind="vector", embedding=LSA),
    Vector(name="vector-mmr", kind="vector", embedding=LSA, rerank=Rerank(kind="mmr", depth=150)),
    Vector(name="approximate", kind="vector", embedding=LSA, search="approximate"),
    Hybrid(name="hybrid", kind="hybrid", embedding=LSA),
    Hybrid(name="hybrid-rrf", kind="hybrid", embedding=LSA, fusion="rrf", engine="rank-bm25"),
    Hybrid(
        name="hybrid-approximate",
        kind="hybrid",
        embedding=LSA,
        search="approximate",
        alpha=0.3,
        beta=1.0,
        rerank=Rerank(kind="shortest_first", depth=5),
    ),
]
WORDS = [
    f"{stem}{i}"
    for stem in ("graph", "tree", "query", "index", "vector", "chunk")
    for i in range(20)
]
QUERIES = [
    "graph1 tree2",
    "",
    "the and of",
    "unheard",
    *[" ".join(WORDS[i : i + 3]) for i in range(0, 117, 5)],
    "graph1 graph1 graph1",
    "graph1 tree2",
]


def texts():
    random = np.random.default_rng(17)
    weights = 1 / np.arange(1, len(WORDS) + 1)
    written = [
        " ".join(random.choice(WORDS, size=random.integers(1, 25), p=weights / weights.sum()))
        for _ in range(240)
    ]
    return written + written[:40] + ["", "the and"]  # duplicates, and chunks without any term


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strategies")
    rerankers = {"shortest_first": "rerankers:ShortestFirst", "ready": "rerankers:READY"}
    index = StrategyIndex(
        table(texts()), places(folder), ChromaStore(folder / "chroma"), rerankers, prefix="test."
    )
    source = index.source(LSA)
    index.chroma.build(
        index.graph_name(source.model, SEED),
        index.table.owners,
        source.chunk_vectors(),
        seed=SEED,
    )
    return index


@pytest.fixture(params=STRATEGIES, ids=lambda spec: spec.name)
def strategy(request, index):
    return ReadyStrategy(request.param, index)


def assert_same(one, other, query_of_one, query_of_other, depth):
    for name in ("rows", "raw", "norm", "k_pos", "rerank"):
        left, right = (
            getattr(one, name)[query_of_one, :depth],
            getattr(other, name)[query_of_other, :depth],
        )
        assert np.array_equal(left, right, equal_nan=left.dtype.kind == "f"), name


@pytest.mark.parametrize("cached", [True, False])
def test_a_query_alone_ranks_as_in_a_batch(strategy, cached):
    together = strategy.search(QUERIES, 50, SEED)
    for query, text in enumerate(QUERIES):
        alone = strategy.search([text], 50, SEED, cached=cached)
        assert_same(alone, together, 0, query, 50)
        assert alone.candidates[0] == together.candidates[query]


@pytest.mark.parametrize("name", ["hybrid", "hybrid-rrf"])
def test_fusion_in_batches_changes_nothing(index, name, monkeypatch):
    strategy = ReadyStrategy(next(spec for spec in STRATEGIES if spec.name == name), index)
    whole = strategy.search(QUERIES, 50, SEED)
    monkeypatch.setattr(hybrid, "BATCH", 4)
    parts = strategy.search(QUERIES, 50, SEED)
    assert_same(parts, whole, slice(None), slice(None), 50)
    assert np.array_equal(parts.candidates, whole.candidates)


def test_the_first_ten_of_a_hundred_are_the_first_ten(strategy):
    few, many = (strategy.search(QUERIES, depth, SEED) for depth in (10, 100))
    assert_same(few, many, slice(None), slice(None), 10)


def test_scores_are_normalised_and_ordered(strategy):
    found = strategy.search(QUERIES, 100, SEED)
    assert found.rows.shape == (len(QUERIES), 100)
    for query in range(len(QUERIES)):
        pairs, step = listed(found, query, "norm"), strategy.spec.rerank
        assert len({row for row, _ in pairs}) == len(pairs)
        assert all(0 <= norm <= 1 for _, norm in pairs)
        if step is None:
            order = [(-norm, row) for row, norm in pairs]
            assert order == sorted(order)
            assert not pairs or pairs[0][1] == 1.0 or isinstance(strategy.spec, Hybrid)
        reranked = ~np.isnan(found.rerank[query, : len(pairs)])
        assert reranked.sum() == (min(len(pairs), step.depth) if step else 0)
        places = sorted(found.k_pos[query, : len(pairs)].tolist())
        assert places == list(range(1, len(pairs) + 1)) or len(pairs) == 100


def test_only_allowed_chunks_are_ranked(strategy):
    allowed = np.zeros(len(strategy.index.table), dtype=bool)
    allowed[3:60:2] = True
    found = strategy.search(QUERIES, 100, SEED, allowed=allowed)
    assert found.has_chunk.any()
    assert allowed[found.rows[found.has_chunk]].all()
    assert not strategy.search(
        QUERIES, 10, SEED, allowed=np.zeros(len(allowed), dtype=bool)
    ).has_chunk.any()


def test_a_reranker_that_the_settings_do_not_enable_is_refused(index):
    strategy = ReadyStrategy(
        Bm25(name="bm25", kind="bm25", rerank=Rerank(kind="unheard_of")), index
    )
    with pytest.raises(InputError, match="unheard_of") as caught:
        strategy.search(["graph1"], 10)
    assert caught.value.problems[0].code == "unknown_reranker"
    assert "mmr, ready, shortest_first" in caught.value.problems[0].accepted


def summarize(ready):
    """Return the index hash of a strategy and a digest of its rankings."""
    found = ready.search(QUERIES, 50)
    arrays = (found.rows, found.raw, found.norm, np.nan_to_num(found.rerank, nan=-9))
    return [ready.index_hash, digest([array.tolist() for array in arrays])]


_OTHER_PROCESS = """
import json, sys
from pathlib import Path
from corpora import places, table
from test_retrieval_strategies import STRATEGIES, summarize, texts
from rag_eval.retrieval.strategies import ReadyStrategy, StrategyIndex
rerankers = {"shortest_first": "rerankers:ShortestFirst"}
index = StrategyIndex(table(texts()), places(Path(sys.argv[1])), None, rerankers)
exact = [spec for spec in STRATEGIES if getattr(spec, "search", "exact") == "exact"]
found = {spec.name: summarize(ReadyStrategy(spec, index)) for spec in exact}
print(json.dumps(found))
"""


def test_another_process_with_another_hash_seed_ranks_alike(index, tmp_path, project_root):
    path = os.pathsep.join(
        str(project_root / folder) for folder in (".", "tests/reference", "tests/retrieval")
    )
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "4711"}
    done = subprocess.run(
        [sys.executable, "-c", _OTHER_PROCESS, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    assert len(there) == 9
    specs = [spec for spec in STRATEGIES if spec.name in there]
    assert there == {spec.name: summarize(ReadyStrategy(spec, index)) for spec in specs}
