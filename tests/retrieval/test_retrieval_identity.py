"""`index_hash` changes exactly with the inputs that can change a ranking."""

import numpy as np
import pytest

from rag_eval.core.parts import Embedding
from rag_eval.core.strategy import Rerank
from rag_eval.retrieval import dense, lexical
from rag_eval.retrieval.dense import Hybrid, Vector
from rag_eval.retrieval.embedding.embedders import lsa_hash
from rag_eval.retrieval.embedding.source import embed_model
from rag_eval.retrieval.lexical import Bm25
from rag_eval.storage.hashing import library_versions, text_hash

BASE = {
    "bm25": Bm25(name="a", kind="bm25"),
    "vector": Vector(name="a", kind="vector"),
    "hybrid": Hybrid(name="a", kind="hybrid"),
}
CHANGES = {
    "bm25": [{"k1": 1.2}, {"b": 0.75}, {"engine": "rank-bm25"}],
    "vector": [
        {"search": "approximate"},
        {"embedding": Embedding(model="lsa-128")},
        {"embedding": Embedding(model="lsa-256")},
    ],
    "hybrid": [
        {"k1": 1.2},
        {"b": 0.75},
        {"engine": "rank-bm25"},
        {"search": "approximate"},
        {"embedding": Embedding(model="lsa-128")},
        {"alpha": 0.4},
        {"beta": 0.4},
        {"fusion": "rrf"},
        {"fusion": "rrf", "rrf_k": 10},
    ],
}
HASHES = [text_hash("one"), text_hash("two")]


def fit(dimensions):
    return lsa_hash(HASHES, dimensions)


def hash_of(spec, tmp_path, chunks_hash="chunks"):
    model = "" if isinstance(spec, Bm25) else embed_model(spec.embedding, fit, tmp_path)
    return spec.index_hash(chunks_hash, model)


@pytest.mark.parametrize("kind", list(BASE))
def test_the_name_and_the_rerank_step_do_not_count(kind, tmp_path):
    other = BASE[kind].model_copy(update={"name": "b", "rerank": Rerank(kind="mmr")})
    assert hash_of(other, tmp_path) == hash_of(BASE[kind], tmp_path)


@pytest.mark.parametrize("kind", list(BASE))
def test_every_setting_of_the_index_counts_and_no_two_collide(kind, tmp_path):
    specs = [BASE[kind], *(BASE[kind].model_copy(update=change) for change in CHANGES[kind])]
    hashes = [hash_of(spec, tmp_path) for spec in specs]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("kind", list(BASE))
def test_the_chunks_the_analyzer_and_the_engine_count(kind, tmp_path, monkeypatch):
    before = hash_of(BASE[kind], tmp_path)
    assert before == hash_of(BASE[kind], tmp_path)
    assert hash_of(BASE[kind], tmp_path, chunks_hash="other chunks") != before
    with monkeypatch.context() as patch:
        for module in (lexical, dense):
            patch.setattr(module, "ANALYZER", "english-porter-2")
        assert hash_of(BASE[kind], tmp_path) != before
    for library in {"bm25": ["bm25s"], "vector": ["numpy"], "hybrid": ["bm25s", "numpy"]}[kind]:
        with monkeypatch.context() as patch:
            newer = {**library_versions(), library: "99"}
            for module in (lexical, dense):
                patch.setattr(module, "library_versions", lambda newer=newer: newer)
            assert hash_of(BASE[kind], tmp_path) != before, library


def test_a_fitted_model_is_named_with_its_fit_and_a_pretrained_one_is_not(tmp_path):
    lsa, minilm = Embedding(model="lsa-256"), Embedding(model="all-MiniLM-L6-v2")
    assert embed_model(lsa, fit, tmp_path) == f"lsa-256@{fit(256)}"
    assert fit(256) not in {fit(128), lsa_hash(HASHES[:1], 256)}
    assert embed_model(minilm, fit, tmp_path) == "all-MiniLM-L6-v2"


def test_a_vectors_file_is_named_by_its_content(tmp_path):
    file = Embedding(vectors="vectors.npz")
    assert embed_model(file, fit, tmp_path) == "vectors-file@missing"
    np.savez(tmp_path / "vectors.npz", sha256=np.array(HASHES), vectors=np.eye(2, dtype=np.float32))
    first = embed_model(file, fit, tmp_path)
    np.savez(
        tmp_path / "vectors.npz", sha256=np.array(HASHES), vectors=-np.eye(2, dtype=np.float32)
    )
    assert embed_model(file, fit, tmp_path) not in {first, "vectors-file@missing"}


def test_a_chroma_function_is_named_with_its_configuration(tmp_path):
    one, other = (
        embed_model(Embedding.from_settings("x", {"dim": dim}), fit, tmp_path) for dim in (1, 2)
    )
    assert one != other
    assert one.startswith("chroma:x@")
