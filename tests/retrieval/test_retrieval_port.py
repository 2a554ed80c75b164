"""RetrievalPort, version 1, is frozen: a change of its types or signatures needs version 2."""

import dataclasses
import inspect
import re

import numpy as np
import pandas as pd
import pytest
from corpora import documents_frame, places, table

import rag_eval.core.types as port
from rag_eval.core.parts import Embedding
from rag_eval.core.strategy import Identity, Rerank
from rag_eval.core.types import RetrievalOptions, RetrievalPort
from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.retrieval.chroma import ChromaStore
from rag_eval.retrieval.dense import Hybrid, Vector
from rag_eval.retrieval.lexical import Bm25
from rag_eval.retrieval.service import Payloads, Rank, RetrievalService
from rag_eval.retrieval.strategies import ReadyStrategy, StrategyIndex

FROZEN = {
    "RetrievalOptions": """top_k: int = 10
        filters: Mapping[str, str | Sequence[str]] | None = None
        strategy: Literal['bm25', 'vector', 'hybrid'] | None = None
        trust_threshold: float | None = None""",
    "Offsets": """start: int
        end: int
        unit: Literal['char', 'token'] = 'char'""",
    "ScoredChunk": """doc_id: str
        section_id: str
        snippet_id: str
        source_url: str
        offsets: Offsets
        tokens: int
        index_hash: str
        embed_model: str
        analyzer: str
        rev: str
        text: str
        score_raw: float
        score_norm: float
        k_pos: int
        k_final: int
        rerank_score: float | None = None
        window: Window | None = None
        page: int | str | None = None""",
    "Window": """pre: int
        post: int""",
    "RetrievalMetadata": """strategy: str
        duration: float
        total_candidates: int
        trust_scores: Mapping[str, float] = <factory>
        trust: tuple[TrustScore, ...] = ()""",
    "TrustScore": """snippet_id: str
        score: float | None
        factors: Mapping[str, Mapping[str, str | float | None]]
        poison_check: PoisonCheck""",
    "PoisonCheck": """passed: bool
        blocked: bool
        warnings: tuple[str, ...]""",
    "RetrievalResult": """chunks: tuple[ScoredChunk, ...]
        metadata: RetrievalMetadata""",
    "RetrievalStats": """n_documents: int
        n_chunks: int
        corpus_rev: str
        chunks_hash: str
        index_hashes: Mapping[str, str]
        default_strategy: str""",
}
METHODS = {
    "retrieve": "(self, query: str, options: RetrievalOptions) -> RetrievalResult",
    "batch_retrieve": (
        "(self, queries: Sequence[str], options: RetrievalOptions) -> list[RetrievalResult]"
    ),
    "stats": "(self) -> RetrievalStats",
}


def write_type(annotation):
    """Write a type as in source code, because Python versions print types differently."""
    text = inspect.formatannotation(annotation)
    text = re.sub(r"\b(rag_eval\.core\.types|collections\.abc|typing)\.", "", text)
    return re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)


def write_field(field):
    default = f" = {field.default!r}" if field.default is not dataclasses.MISSING else ""
    factory = " = <factory>" if field.default_factory is not dataclasses.MISSING else ""
    return f"{field.name}: {write_type(field.type)}{default}{factory}"


@pytest.mark.parametrize("name", FROZEN)
def test_the_types_are_frozen(name):
    fields = dataclasses.fields(vars(port)[name])
    assert [write_field(field) for field in fields] == FROZEN[name].split("\n        ")
    assert vars(port)[name].__dataclass_params__.frozen


@pytest.mark.parametrize("holder", [RetrievalPort, RetrievalService])
def test_the_methods_are_frozen(holder):
    assert RetrievalPort.__annotations__ == {"version": int}
    functions = {name for name, value in vars(RetrievalPort).items() if inspect.isfunction(value)}
    assert {name for name in functions if not name.startswith("_")} == set(METHODS)
    for name, wanted in METHODS.items():
        text = str(inspect.signature(getattr(holder, name)))
        text = re.sub(r"\b(rag_eval\.core\.types|collections\.abc|typing)\.", "", text)
        assert text == wanted


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
        chunks.owners,
        source.chunk_vectors(),
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
        documents_frame(dict.fromkeys(ready["bm25"].index.table.frame["doc_id"], "")),
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
    for chunk in result.chunks:
        for field in dataclasses.fields(chunk):
            kinds = {str, int, float, port.Offsets, port.Window, type(None)}
            assert type(getattr(chunk, field.name)) in kinds
    first = dataclasses.asdict(result.chunks[0])
    assert first.pop("score_raw") > 0
    assert first.pop("rerank_score") is not None
    assert first == {
        "doc_id": "a",
        "section_id": "a#one",
        "snippet_id": "c1",
        "text": "graph tree",
        "source_url": "https://example.org/a",
        "rev": "rev-a",
        "analyzer": ANALYZER,
        "embed_model": "none",
        "window": {"pre": 0, "post": 0},
        "page": None,
        "offsets": {"start": 0, "end": len("graph tree"), "unit": "char"},
        "tokens": 2,
        "index_hash": ready["bm25"].index_hash,
        "score_norm": 1.0,
        "k_pos": 1,
        "k_final": 1,
    }
    metadata = dataclasses.asdict(result.metadata)
    assert metadata.pop("duration") > 0
    assert metadata == {
        "strategy": "lexical",
        "total_candidates": 4,
        "trust_scores": {},
        "trust": (),
    }


def test_window_is_bounded_and_form_feeds_count_pages():
    text = f"{'a' * 500}\fgraph\f{'b' * 50}"
    documents = pd.DataFrame({"doc_id": ["d", "e"], "text": [text, "graph"]})
    documents = documents.assign(rev="r", source_url="u", page=["", "iv"])
    chunks = pd.DataFrame({"doc_id": ["d", "e"], "chunk_id": ["c", "f"], "text": "graph"})
    chunks = chunks.assign(section_id="s", start=[501, 0], end=[506, 5], tokens=1)
    payloads, rank = Payloads(chunks, documents), Rank(1.0, 1.0, 1, 1, None)
    found = [payloads.scored(row, Identity("x", "lsa-8@1f"), rank) for row in (0, 1)]
    assert [one.page for one in found] == [2, "iv"]
    assert [one.window for one in found] == [port.Window(200, 51), port.Window(0, 0)]
    assert found[0].embed_model == "lsa-8:sum@1f"


@pytest.mark.parametrize(
    ("model", "stated"),
    [
        ("", "none"),
        ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2:mean"),
        ("lsa-256@1f2e", "lsa-256:sum@1f2e"),
        ("vectors-file@ab", "vectors-file:unstated@ab"),
        ("chroma:default@ab", "chroma:default:unstated@ab"),
        ("text-embedding-3", "text-embedding-3"),  # stated by the retriever of a user
    ],
)
def test_embedding_model_is_stated_with_its_pooling(model, stated):
    assert Identity("x", model).stated_model == stated


def test_filters_apply_before_ranks_are_given(ready):
    port_ = service(ready)

    def search(kind="hybrid", **filters):
        return port_.retrieve("graph vector", RetrievalOptions(filters=filters, strategy=kind))

    def found(**filters):
        return [chunk.snippet_id for chunk in search(**filters).chunks]

    assert set(found(doc_id="a")) == {"c1", "c2"}
    assert set(found(doc_id=["a", "c"])) == {"c1", "c2", "c5"}
    assert found(section_id="b#one") == ["c3"]
    assert found(doc_id="b", section_id=("b#two", "c")) == ["c4"]
    assert found(doc_id="unheard") == found(doc_id=[]) == found(doc_id="a", section_id="c") == []
    first = search("vector", doc_id="b").chunks[0]
    assert (first.k_pos, first.k_final, first.score_norm) == (1, 1, 1.0)
    with pytest.raises(ValueError, match="found 'title', accepted doc_id, section_id"):
        found(title="x")


def test_trust_filters_and_is_reported(ready):
    port_, query = service(ready, trust=TRUST), "graph tree vector index"
    result = port_.retrieve(query, RetrievalOptions(trust_threshold=0.5, strategy="hybrid"))
    assert {chunk.snippet_id for chunk in result.chunks} == {"c1", "c3", "c4"}
    assert result.metadata.trust_scores == {"c1": 0.9, "c3": 0.5, "c4": 0.7}
    whole = port_.retrieve(query, RetrievalOptions(trust_threshold=0.0, strategy="hybrid"))
    assert len(whole.chunks) == 5
    assert port_.retrieve("graph", RetrievalOptions(trust_threshold=1.0)).chunks == ()


def test_the_default_threshold_holds_for_calls_that_name_none(ready):
    limited, query = service(ready, trust=TRUST, default_threshold=0.5), "graph tree vector index"

    def shown(**options):
        result = limited.retrieve(query, RetrievalOptions(strategy="hybrid", **options))
        return {chunk.snippet_id for chunk in result.chunks}

    assert shown() == {"c1", "c3", "c4"}
    assert len(shown(trust_threshold=0.0)) == 5
    with pytest.raises(ValueError, match="default_threshold"):
        service(ready, default_threshold=0.5)


def test_a_strategy_that_is_not_served_is_an_error(ready):
    only = {"bm25": ready["bm25"]}
    with pytest.raises(ValueError, match="found hybrid, accepted bm25"):
        service(only).retrieve("graph", RetrievalOptions(strategy="hybrid"))
    with pytest.raises(ValueError, match="found vector, accepted bm25"):
        RetrievalService(
            only,
            documents_frame(dict.fromkeys(ready["bm25"].index.table.frame["doc_id"], "")),
            corpus_rev="",
            default="vector",
        )


@pytest.mark.parametrize(
    "wrong",
    [{"top_k": 0}, *({"trust_threshold": x} for x in (1.1, float("nan")))],
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: found .* accepted"):
        RetrievalOptions(**wrong)


def test_stats(ready):
    hashes = {strategy.name: strategy.index_hash for strategy in ready.values()}
    chunks_hash = ready["bm25"].index.table.chunks_hash
    wanted = port.RetrievalStats(3, 5, "rev7", chunks_hash, hashes, "bm25")
    assert service(ready).stats() == wanted
