"""A retrieval strategy as `gold_set.yaml` configures it, and the one list of its kinds.

A kind is a subclass of `Strategy` in a file of its own. Other code calls its methods and never
tests its class, so that another package can add a kind by an entry point.
"""

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field

from rag_eval.core.parts import AnyClass, Embedding, Name, Part, load_classes
from rag_eval.core.settings import Settings

KINDS: Final[Mapping[str, str]] = {
    "bm25": "rag_eval.retrieval.lexical:Bm25",
    "vector": "rag_eval.retrieval.dense:Vector",
    "hybrid": "rag_eval.retrieval.dense:Hybrid",
    "external": "rag_eval.retrieval.kinds.external:External",
    "opensearch": "rag_eval.retrieval.kinds.opensearch:OpenSearch",
    "qdrant": "rag_eval.retrieval.kinds.qdrant:Qdrant",
    "pgvector": "rag_eval.retrieval.kinds.pgvector:Pgvector",
    "iterative": "rag_eval.uncertainty.iterative:Iterative",
}
"""Kinds of this package: name -> class, loaded when a configuration is read."""
GROUP: Final = "rag_eval.strategies"
"""Entry points by which other packages add kinds. The name of the entry point is the kind."""

Retriever = Literal["bm25", "vector"]
PriorKind = Literal["any", "bm25", "vector", "hybrid"]


class Rerank(Part):
    """A step after retrieval. `mmr`: lambda weighs relevance against likeness to chosen chunks."""

    kind: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """`mmr`, or a name that the settings map to an import path."""
    lambda_: float = Field(default=0.7, ge=0, le=1, alias="lambda")
    """Weight of relevance in `mmr`; the rest weighs novelty."""
    depth: int = Field(default=50, ge=1, le=1000)
    """Results that are ordered anew."""
    embedding: Embedding | None = None
    """Vectors for `mmr`; default: those of the strategy."""


@dataclasses.dataclass(frozen=True)
class Identity:
    """Origin of a strategy's rankings: index and embedding model; no vectors, empty model."""

    index_hash: str
    embed_model: str

    @property
    def stated_model(self) -> str:
        """Model and pooling as a citation states them, `lsa-256:sum@1f2e`; `none` without any."""
        name, at, fit = self.embed_model.partition("@")
        pooling = next((kind for model, kind in _POOLING.items() if name.startswith(model)), "")
        return f"{name}:{pooling}{at}{fit}" if pooling else self.embed_model or "none"


_POOLING: Final[Mapping[str, str]] = {
    "all-MiniLM-L6-v2": "mean",
    "lsa-": "sum",  # of the vectors of the terms, weighted by tf-idf
    "chroma:": "unstated",
    "vectors-file": "unstated",
}
"""Start of an embedding model's name -> how token vectors become the vector of a text."""


@dataclasses.dataclass(frozen=True)
class IdentityInputs:
    """Inputs of an identity besides the strategy's own configuration."""

    folder: Path
    """Folder of the gold set, where relative paths start."""
    settings: Settings
    chunks_hash: str
    lsa_fit: Callable[[int], str]
    """Return the id of the LSA model of a number of dimensions for the indexed texts."""
    base: Identity | None
    """Identity of the base strategy; None where the strategy has none."""
    calibrator_id: Callable[[str], str]
    """Return the id of the calibrator for an index hash of the base; empty without a calibrator."""
    stated: Callable[[], Mapping[str, object]]
    """Description that the user's retriever gives of its index."""


class Strategy(Part):
    """Configuration of a strategy. Each kind is a subclass with its own fields."""

    name: Name
    """Name in reports and commands."""
    rerank: Rerank | None = None
    """Step after retrieval; default: none."""
    kind: str

    own_units: ClassVar[bool] = False
    """Whether rankings hold units of an outside system, and not chunks of this corpus."""
    vectors_alone: ClassVar[bool] = False
    """Whether the raw scores are cosines of vectors and nothing else."""
    second: ClassVar[Retriever] = "bm25"
    """Second retriever; the estimate of a miss compares the rankings of both."""
    prior: ClassVar[PriorKind] = "any"
    """Kind of retrieval that the shipped prior of miss rates was fitted on."""

    @abstractmethod
    def identity(self, inputs: IdentityInputs) -> Identity:
        """Return the identity of index and model, before indexing and retrieval.

        Raises `InputError` if a needed setting or file is missing.
        """

    @property
    def base_name(self) -> str | None:
        """Name of the base strategy that each round queries; None without a base."""
        return None

    @property
    def runs_here(self) -> bool:
        """Whether the strategy ranks chunks of this corpus by itself."""
        return not self.own_units and self.base_name is None

    @property
    def embeds_with(self) -> Embedding | None:
        """Embedding of the compared vectors; None where no vectors are compared."""
        return None

    def with_embedding(self, embedding: Embedding) -> Self:
        """Return a copy with another embedding; a strategy without vectors returns itself."""
        return (
            self if self.embeds_with is None else self.model_copy(update={"embedding": embedding})
        )

    def embeddings(self) -> dict[tuple[str, ...], Embedding]:
        """Return every embedding of the configuration, by its keys there."""
        embeddings: dict[tuple[str, ...], Embedding] = {}
        if self.embeds_with is not None:
            embeddings["embedding",] = self.embeds_with
        if self.rerank is not None and self.rerank.embedding is not None:
            embeddings["rerank", "embedding"] = self.rerank.embedding
        return embeddings

    def files(self) -> dict[str, str]:
        """Return the paths that the configuration names, by field, without those of embeddings."""
        return {}

    @property
    def chats_with(self) -> str | None:
        """Name of the chat endpoint that the strategy asks; None for none."""
        return None

    @property
    def seed_matters(self) -> bool:
        """Whether rankings depend on the seed."""
        return False

    @property
    def store_name(self) -> str:
        """Name of the store of postings or vectors, as traces show it."""
        return self.kind

    def question_price(self, per_1k_tokens: float) -> float:
        """Return the price of 1,000 tokens of questions, given the price of embedding them."""
        return per_1k_tokens

    def ranking_options(self) -> dict[str, object]:
        """Return the configuration that decides the rankings; the name is left out."""
        return self.model_dump(mode="json", exclude={"name"})


@functools.cache
def strategy_kinds() -> dict[str, type[Strategy]]:
    """Load every kind: those of this package, then those of other packages."""
    return load_classes(Strategy, "kind", KINDS, GROUP)  # type: ignore[type-abstract]  # the base of the classes


AnyStrategy = Annotated[Strategy, AnyClass("kind", strategy_kinds)]
"""The type of a field that holds one strategy of any kind. Its model needs `defer_build`."""
