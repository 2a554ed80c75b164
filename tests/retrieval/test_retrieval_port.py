"""RetrievalPort, version 1, is frozen: a change of its types or signatures needs version 2."""

import dataclasses
import inspect

import numpy as np
import pytest
from corpora import documents_frame, places, table

import rag_eval.core.types as port
from rag_eval.core.errors import Embedding
from rag_eval.core.strategy import Rerank
from rag_eval.core.types import RetrievalOptions, RetrievalPort
from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.retrieval.dense import ChromaStore
from rag_eval.retrieval.kinds.bm25 import Bm25
from rag_eval.retrieval.kinds.hybrid import Hybrid
from rag_eval.retrieval.kinds.vector import Vector
from rag_eval.retrieval.service import RetrievalService
from rag_eval.retrieval.strategies import ReadyStrategy, StrategyIndex

FROZEN = {
    "RetrievalOptions": {
        "top_k": "int = 10",
        "filters": (
            "collections.abc.Mapping[str, str | collections.abc.Sequence[str]] | None = None"
        ),
        "strategy": "typing.Optional[typing.Literal['bm25', 'vector', 'hybrid']] = None",
        "trust_threshold": "float | None = None",
    },
    "Offsets": {"start": "int", "end": "int", "unit": "typing.Literal['char', 'token'] = 'char'"},
    "ScoredChunk": {
        "doc_id": "str",
        "section_id": "str",
        "snippet_id": "str",
        "source_url": "str",
        "offsets": "rag_eval.core.types.Offsets",
        "tokens": "int",
        "index_hash": "str",
        "embed_model": "str",
        "analyzer": "str",
        "rev": "str",
        "text": "str",
        "score_raw": "float",
        "score_norm": "float",
        "k_pos": "int",
        "k_final": "int",
        "rerank_score": "float | None = None",
    },
    "RetrievalMetadata": {
        "strategy": "str",
        "duration": "float",
        "total_candidates": "int",
        "trust_scores": "collections.abc.Mapping[str, float] = <factory>",
    },
    "RetrievalResult": {
        "chunks": "tuple[rag_eval.core.types.ScoredChunk, ...]",
        "metadata": "rag_eval.core.types.RetrievalMetadata",
    },
    "RetrievalStats": {
        "n_documents": "int",
        "n_chunks": "int",
        "corpus_rev": "str",
        "chunks_hash": "str",
        "index_hashes": "collections.abc.Mapping[str, str]",
        "default_strategy": "str",
    },
}
METHODS = {
    "retrieve": {
        "self": None,
        "query": str,
        "options": port.RetrievalOptions,
        "return": port.RetrievalResult,
    },
    "batch_retrieve": {
        "self": None,
        "queries": "collections.abc.Sequence[str]",
        "options": port.RetrievalOptions,
        "return": list[port.RetrievalResult],
    },
    "stats": {"self": None, "return": port.RetrievalStats},
}


def field_text(field):
    kind = inspect.formatannotation(field.type)
    if kind.startswith("Optional["):
        kind = f"typing.{kind}"
    kind = kind.replace("Optional[Literal", "Optional[typing.Literal").replace(
        "typing.typing.", "typing."
    )
    if kind.startswith("Literal["):
        kind = f"typing.{kind}"
    if field.default_factory is not dataclasses.MISSING:
        return f"{kind} = <factory>"
    return kind if field.default is dataclasses.MISSING else f"{kind} = {field.default!r}"


def test_the_types_are_frozen():
    types = {name: vars(port)[name] for name in FROZEN}
    assert {
        name: {field.name: field_text(field) for field in dataclasses.fields(value)}
        for name, value in types.items()
    } == FROZEN
    assert all(value.__dataclass_params__.frozen for value in types.values())


@pytest.mark.parametrize("holder", [RetrievalPort, RetrievalService])
def test_the_methods_are_frozen(holder):
    assert RetrievalPort.__annotations__ == {"version": int}
    public = {
        name
        for name, value in vars(RetrievalPort).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert public == set(METHODS)
    for name, wanted in METHODS.items():
        signature = inspect.signature(getattr(holder, name))
        assert list(signature.parameters) == [key for key in wanted if key != "return"]
        assert all(
            parameter.default is inspect.Parameter.empty
            for parameter in signature.parameters.values()
        )
        assert inspect.formatannotation(signature.return_annotation) == inspect.formatannotation(
            wanted["return"]
        )
        for key, kind in wanted.items():
            if key not in {"self", "return"}:
                assert inspect.formatannotation(signature.parameters[key].annotation) == (
                    kind if isinstance(kind, str) else inspect.formatannotation(kind)
                )


TEXTS = ["graph tree", "graph graph", "tree vector", "vector index", "index graph vector"]
IDS = [("a#one", "c1"), ("a#two", "c2"), ("b#one", "c3"), ("b#two", "c4"), ("c", "c5")]
TRUST = np.array([0.9, 0.2, 0.5, 0.7, 0.0])


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    folder = tmp_path_factory.mktemp("port")
    chunks = table(TEXTS, IDS)
    chunks.frame["doc_id"] = [section.split("#")[0] for section in chunks.frame["section_id"]]
    index = StrategyIndex(chunks, places(folder), ChromaStore(folder / "chroma"))
    embedding = Embedding(model="lsa-4")
    source = index.source(embedding)
    index.chroma.build(
        index.graph_name(source.model, 29),
        chunks.chunk_ids,
        source.chunk_vectors(),
        chunks.doc_ids,
        seed=29,
    )
    return {
        "bm25": ReadyStrategy(
            Bm25(
                name="lexical", kind="bm25", rerank=Rerank(kind="mmr", depth=2, embedding=embedding)
            ),
            index,
        ),
        "vector": ReadyStrategy(
            Vector(name="near", kind="vector", embedding=embedding, search="approximate"), index
        ),
        "hybrid": ReadyStrategy(Hybrid(name="both", kind="hybrid", embedding=embedding), index),
    }


def service(ready, **options):
    return RetrievalService(
        ready,
        documents_frame(ready["bm25"].index.table.frame),
        corpus_rev="rev7",
        default="bm25",
        seed=29,
        **options,
    )


def test_the_service_is_a_port(ready):
    assert isinstance(service(ready), RetrievalPort)
    assert service(ready).version == RetrievalService.version == 1


def test_every_chunk_carries_the_whole_citation_payload(ready):
    result = service(ready).retrieve("graph tree", RetrievalOptions(top_k=3))
    assert [chunk.k_final for chunk in result.chunks] == [1, 2, 3]
    assert sorted(chunk.k_pos for chunk in result.chunks) == [1, 2, 3]
    assert [chunk.rerank_score is None for chunk in result.chunks] == [False, False, True]
    first = result.chunks[0]
    assert (first.doc_id, first.section_id, first.snippet_id, first.text) == (
        "a",
        "a#one",
        "c1",
        "graph tree",
    )
    assert (first.source_url, first.rev, first.analyzer, first.embed_model) == (
        "https://example.org/a",
        "rev-a",
        ANALYZER,
        "",
    )
    assert (first.offsets.start, first.offsets.end, first.offsets.unit, first.tokens) == (
        0,
        len("graph tree"),
        "char",
        2,
    )
    assert first.index_hash == ready["bm25"].index_hash
    assert first.score_norm == 1.0
    assert first.score_raw > 0
    for chunk in result.chunks:
        for field in dataclasses.fields(chunk):
            assert type(getattr(chunk, field.name)) in {
                str,
                int,
                float,
                port.Offsets,
                type(None),
            }, field.name
    assert result.metadata.strategy == "lexical"
    assert result.metadata.duration > 0
    assert result.metadata.total_candidates == 4
    assert result.metadata.trust_scores == {}


@pytest.mark.parametrize("kind", ["bm25", "vector", "hybrid"])
def test_batch_and_single_are_alike_but_for_the_time(ready, kind):
    queries = ["graph tree", "", "unheard", "vector index", "graph tree"]
    together = service(ready, trust=TRUST).batch_retrieve(
        queries, RetrievalOptions(top_k=4, strategy=kind)
    )
    assert len(together) == len(queries)
    for query, result in zip(queries, together, strict=True):
        alone = service(ready, trust=TRUST).retrieve(
            query, RetrievalOptions(top_k=4, strategy=kind)
        )
        assert alone.chunks == result.chunks
        assert dataclasses.replace(alone.metadata, duration=0) == dataclasses.replace(
            result.metadata, duration=0
        )
    assert service(ready).batch_retrieve([], RetrievalOptions()) == []


def test_filters_apply_before_ranks_are_given(ready):
    port_ = service(ready)

    def found(**filters):
        return [
            chunk.snippet_id
            for chunk in port_.retrieve(
                "graph vector", RetrievalOptions(filters=filters, strategy="hybrid")
            ).chunks
        ]

    assert set(found(doc_id="a")) == {"c1", "c2"}
    assert set(found(doc_id=["a", "c"])) == {"c1", "c2", "c5"}
    assert found(section_id="b#one") == ["c3"]
    assert found(doc_id="b", section_id=("b#two", "c")) == ["c4"]
    assert found(doc_id="unheard") == found(doc_id=[]) == found(doc_id="a", section_id="c") == []
    first = port_.retrieve(
        "graph vector", RetrievalOptions(filters={"doc_id": "b"}, strategy="vector")
    ).chunks[0]
    assert (first.k_pos, first.k_final, first.score_norm) == (1, 1, 1.0)
    with pytest.raises(ValueError, match="found 'title', accepted doc_id, section_id"):
        found(title="x")


def test_trust_filters_and_is_reported(ready):
    port_ = service(ready, trust=TRUST)
    result = port_.retrieve(
        "graph tree vector index", RetrievalOptions(trust_threshold=0.5, strategy="hybrid")
    )
    assert {chunk.snippet_id for chunk in result.chunks} == {"c1", "c3", "c4"}
    assert result.metadata.trust_scores == {"c1": 0.9, "c3": 0.5, "c4": 0.7}
    assert (
        len(
            port_.retrieve(
                "graph tree vector index", RetrievalOptions(trust_threshold=0.0, strategy="hybrid")
            ).chunks
        )
        == 5
    )
    assert port_.retrieve("graph", RetrievalOptions(trust_threshold=1.0)).chunks == ()


def test_a_trust_threshold_without_scores_is_an_error(ready):
    with pytest.raises(ValueError, match="no trust scores"):
        service(ready).retrieve("graph", RetrievalOptions(trust_threshold=0.1))


def test_a_strategy_that_is_not_served_is_an_error(ready):
    only = {"bm25": ready["bm25"]}
    with pytest.raises(ValueError, match="found hybrid, accepted bm25"):
        service(only).retrieve("graph", RetrievalOptions(strategy="hybrid"))
    with pytest.raises(ValueError, match="found vector, accepted bm25"):
        RetrievalService(
            only, documents_frame(ready["bm25"].index.table.frame), corpus_rev="", default="vector"
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"top_k": 0},
        {"top_k": -3},
        {"trust_threshold": 1.1},
        {"trust_threshold": -0.1},
        {"trust_threshold": float("nan")},
    ],
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: found .* accepted"):
        RetrievalOptions(**wrong)


def test_stats(ready):
    stats = service(ready).stats()
    assert (stats.n_documents, stats.n_chunks, stats.corpus_rev, stats.default_strategy) == (
        3,
        5,
        "rev7",
        "bm25",
    )
    assert stats.chunks_hash == ready["bm25"].index.table.chunks_hash
    assert stats.index_hashes == {strategy.name: strategy.index_hash for strategy in ready.values()}
