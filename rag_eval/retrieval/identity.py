"""`index_hash`: what an index was made from. Equal hashes mean equal rankings for exact engines.

`<engine>:` + hash of (chunks_hash, analyzer, embed_model, engine version and parameters, synonyms where there are any), one for each strategy.
"""

from pathlib import Path

from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.records.configuration_parts import Embedding
from rag_eval.records.gold_set import Bm25, Hybrid, Vector
from rag_eval.retrieval.embedding.lsa import fit_hash
from rag_eval.retrieval.synonyms.expansion import Expansion
from rag_eval.retrieval.synonyms.scoring import SCORING
from rag_eval.storage.code import library_versions
from rag_eval.storage.hashing import digest, file_hash

LocalStrategy = Bm25 | Vector | Hybrid
"""Strategies that run here; an external one has its identity in `external_source`."""

ENGINE_VERSIONS = {
    "bm25s": "bm25s",
    "rank-bm25": "rank-bm25",
    "exact": "numpy",
    "approximate": "chromadb",
}
ENGINE_NAMES = {"exact": "exact", "approximate": "chroma-hnsw"}


def embed_model(embedding: Embedding, text_hashes: list[str], base: Path) -> str:
    """Name the model and whatever changes its vectors, without loading it.

    Parameters
    ----------
    embedding
        The configuration.
    text_hashes
        Of the indexed texts; a fitted model is fitted on them.
    base
        Folder that relative paths start from.
    """
    if embedding.vectors is not None:
        path = base / embedding.vectors
        return f"vectors-file@{file_hash(path)[:16]}" if path.is_file() else "vectors-file@missing"
    model = embedding.model or ""
    if model.startswith("lsa-"):
        return f"{model}@{fit_hash(text_hashes, int(model.removeprefix('lsa-')))}"
    if model.startswith("chroma:"):
        return f"{model}@{digest(dict(embedding.config), 16)}"
    return model


def _lexical(strategy: Bm25 | Hybrid, chunks_hash: str) -> str:
    version = library_versions()[ENGINE_VERSIONS[strategy.engine]]
    parameters: dict[str, float | str] = {"k1": strategy.k1, "b": strategy.b}
    if strategy.expand is not None:
        parameters["expand"] = f"{Expansion.load(strategy.expand).identity} {SCORING}"
    return f"{strategy.engine}:{digest([chunks_hash, ANALYZER, '', version, parameters])}"


def _dense(strategy: Vector | Hybrid, chunks_hash: str, model: str) -> str:
    version = library_versions()[ENGINE_VERSIONS[strategy.search]]
    return f"{ENGINE_NAMES[strategy.search]}:{digest([chunks_hash, ANALYZER, model, version, {'space': 'cosine'}])}"


def index_hash(strategy: LocalStrategy, chunks_hash: str, model: str) -> str:
    """Identity of the index that a strategy reads.

    Parameters
    ----------
    strategy
        Its configuration.
    chunks_hash
        Identity of the chunks.
    model
        See `embed_model`; empty for lexical strategies.
    """
    if isinstance(strategy, Bm25):
        return _lexical(strategy, chunks_hash)
    if isinstance(strategy, Vector):
        return _dense(strategy, chunks_hash, model)
    weights: dict[str, float] = (
        {"rrf_k": strategy.rrf_k}
        if strategy.fusion == "rrf"
        else {"alpha": strategy.alpha, "beta": strategy.beta}
    )
    fusion = {"fusion": strategy.fusion, **weights}
    return f"hybrid:{digest([_lexical(strategy, chunks_hash), _dense(strategy, chunks_hash, model), fusion])}"
