"""What `gold_set.yaml` may say: one model for the file, one for each part. Unknown keys and impossible values are refused.

Belongs here: the shape of the configuration. Reading the file with line numbers is `rag_eval.gold.configuration`.
"""

import difflib
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
MEASURES_AT_K = ("recall", "success", "precision", "judged")
MEASURES = (
    *("mrr", "ndcg_at_10", "delta_s", "latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "cost_per_1k", "cache_hit_rate"),
    # of answers and sources: a floor on one of these is insufficient evidence until a run measures it
    *("citation_match_rate", "citation_precision", "citation_recall", "citation_validity_rate", "coverage", "groundedness", "faithfulness"),
    *("abstention_rate", "avg_trust_score"),
)
"""Names that a floor may ask for, beside `<measure>_at_<k>`."""

_FLOOR = re.compile(r"^\s*(>=|<=)\s*(-?\d+(?:\.\d+)?)\s*$")

Name = Annotated[str, Field(pattern=NAME)]
Level = Literal["document", "section", "span"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Chunker(_Part):
    """How documents are cut. `whole` keeps a document as one chunk; `sentence` makes one chunk a sentence."""

    kind: Literal["numpydoc", "markdown", "text", "sentence", "whole"]
    max_tokens: int = Field(default=256, ge=8, le=100_000)
    overlap: int = Field(default=0, ge=0, description="tokens repeated from the end of the chunk before (kinds text and markdown)")

    @model_validator(mode="after")
    def _overlap_is_smaller(self) -> "Chunker":
        if self.overlap >= self.max_tokens:
            raise ValueError("overlap must be smaller than max_tokens")
        return self


class PackageDocs(_Part):
    """Docstrings of an installed package."""

    loader: Literal["package_docs"]
    package: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    modules: tuple[str, ...] = Field(default=(), description="dotted modules whose public names are walked; default: the package and every public submodule with __all__")
    exclude: tuple[str, ...] = Field(default=(), description="shell patterns of qualified names to leave out")
    min_chars: int = Field(default=0, ge=0)
    chunker: Chunker = Chunker(kind="numpydoc")
    mask_pii: bool = True


class Folder(_Part):
    """Markdown and text files below a folder."""

    loader: Literal["folder"]
    path: str
    pattern: tuple[str, ...] = ("**/*.md", "**/*.markdown", "**/*.txt", "**/*.rst")
    chunker: Chunker = Chunker(kind="markdown")
    mask_pii: bool = True


class Beir(_Part):
    """A BEIR folder: `corpus.jsonl`, and more files of the same layout as extra documents."""

    loader: Literal["beir"]
    path: str
    extra: tuple[str, ...] = Field(default=(), description="further .jsonl files of the same layout, relative to path")
    chunker: Chunker = Chunker(kind="whole")
    mask_pii: bool = True


class HuggingFace(_Part):
    """A Hugging Face `datasets` data set: local files (jsonl, csv, parquet) or a name on the hub."""

    loader: Literal["hf_datasets"]
    path: str = Field(description="a local file or folder, or a hub name")
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    id_column: str = "id"
    title_column: str | None = None
    text_column: str = "text"
    chunker: Chunker = Chunker(kind="text")
    mask_pii: bool = True


Corpus = Annotated[PackageDocs | Folder | Beir | HuggingFace, Field(discriminator="loader")]


class Embedding(_Part):
    """What turns texts into vectors: a built-in model, a Chroma embedding function by name, or a file of vectors."""

    model: str | None = Field(default=None, description="lsa-<dimensions>, all-MiniLM-L6-v2, or chroma:<function name>")
    config: dict[str, str | int | float | bool] = Field(default_factory=dict, description="passed to the Chroma embedding function")
    vectors: str | None = Field(default=None, description="an .npz file with `sha256` and `vectors`")

    @model_validator(mode="after")
    def _one_source(self) -> "Embedding":
        if (self.model is None) == (self.vectors is None):
            raise ValueError("give either model or vectors")
        if self.model is not None and not re.fullmatch(r"lsa-[1-9]\d{0,3}|all-MiniLM-L6-v2|chroma:[A-Za-z0-9_]+", self.model):
            raise ValueError("accepted models: lsa-<dimensions>, all-MiniLM-L6-v2, chroma:<function name>")
        if self.config and not (self.model or "").startswith("chroma:"):
            raise ValueError("config belongs to chroma: models")
        return self


class Rerank(_Part):
    """A step after retrieval. `mmr`: lambda weighs relevance against likeness to what was already chosen."""

    kind: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="mmr, or a name that the settings map to an import path")
    lambda_: float = Field(default=0.7, ge=0, le=1, alias="lambda")
    depth: int = Field(default=50, ge=1, le=1000)
    embedding: Embedding | None = None


class _Strategy(_Part):
    name: Name
    rerank: Rerank | None = None


class Bm25(_Strategy):
    """Lexical retrieval. `lucene` is BM25 as Lucene computes it (bm25s); `rank-bm25` is the Okapi variant of that package."""

    kind: Literal["bm25"]
    engine: Literal["bm25s", "rank-bm25"] = "bm25s"
    k1: float = Field(default=0.9, ge=0, le=10)
    b: float = Field(default=0.4, ge=0, le=1)


class Vector(_Strategy):
    """Dense retrieval by cosine. `exact` compares with every vector; `approximate` asks Chroma's HNSW graph."""

    kind: Literal["vector"]
    embedding: Embedding = Embedding(model="lsa-256")
    search: Literal["exact", "approximate"] = "exact"


class Hybrid(_Strategy):
    """`alpha * BM25 + beta * vector` on scores normalised within the query, or reciprocal rank fusion."""

    kind: Literal["hybrid"]
    fusion: Literal["weighted", "rrf"] = "weighted"
    alpha: float = Field(default=0.5, ge=0, le=1)
    beta: float = Field(default=0.5, ge=0, le=1)
    rrf_k: int = Field(default=60, ge=1, le=10_000)
    engine: Literal["bm25s", "rank-bm25"] = "bm25s"
    k1: float = Field(default=0.9, ge=0, le=10)
    b: float = Field(default=0.4, ge=0, le=1)
    embedding: Embedding = Embedding(model="lsa-256")
    search: Literal["exact", "approximate"] = "exact"

    @model_validator(mode="after")
    def _some_weight(self) -> "Hybrid":
        if self.alpha + self.beta == 0:
            raise ValueError("alpha and beta must not both be 0")
        return self


Strategy = Annotated[Bm25 | Vector | Hybrid, Field(discriminator="kind")]


class Floor(_Part):
    """One acceptance floor: a measure, a direction and a bound."""

    measure: str
    direction: Literal[">=", "<="]
    bound: float

    @classmethod
    def parse(cls, measure: str, text: object) -> "Floor":
        """Read `">= 0.60"`. Raises ValueError with what is accepted."""
        match = _FLOOR.match(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"acceptance.{measure}: accepted are '>= number' and '<= number'")
        return cls.model_validate({"measure": measure, "direction": match[1], "bound": float(match[2])})


GateName = Literal["acceptance", "regression", "trust", "poisoning", "stability"]


class Gates(_Part):
    """Which gates end the run (`required`) and which only report (`advisory`)."""

    required: tuple[GateName, ...] = ()
    advisory: tuple[GateName, ...] = ("acceptance", "stability")
    min_queries: int = Field(default=50, ge=1)


class GoldSetConfig(_Part):
    """The whole of `gold_set.yaml`."""

    name: Name
    version: int | str = 1
    description: str = ""
    corpus: Corpus
    k: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = (1, 5, 10, 20)
    depth: int = Field(default=100, ge=1, le=10_000, description="chunks retrieved for each wording")
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = (13, 29)
    strategies: tuple[Strategy, ...] = Field(min_length=1)
    primary: str | None = None
    level: Level = "document"
    split: str | None = Field(default=None, description="for gold in BEIR layout: qrels/<split>.tsv")
    acceptance: dict[str, str] = Field(default_factory=dict)
    gates: Gates = Gates()
    nightly: bool = Field(default=True, description="whether the nightly job runs this gold set")

    @field_validator("k")
    @classmethod
    def _k_sorted(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or list(value) != sorted(set(value)):
            raise ValueError("k must be a rising list of different numbers")
        return value

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or len(set(value)) != len(value):
            raise ValueError("seeds must be a list of different numbers")
        return value

    @model_validator(mode="after")
    def _names_fit(self) -> "GoldSetConfig":
        names = [strategy.name for strategy in self.strategies]
        if len(set(names)) != len(names):
            raise ValueError("strategies: names must differ")
        if self.primary is not None and self.primary not in names:
            raise ValueError(f"primary: accepted are {', '.join(names)}")
        if self.depth < max(self.k):
            raise ValueError("depth must be at least the largest k")
        for measure, text in self.acceptance.items():
            Floor.parse(measure, text)
        return self

    @model_validator(mode="after")
    def _floors_can_be_judged(self) -> "GoldSetConfig":
        accepted = {*MEASURES, *(f"{name}_at_{k}" for name in MEASURES_AT_K for k in {*self.k, 10})}
        for measure in self.acceptance:
            if measure not in accepted:
                near = difflib.get_close_matches(measure, sorted(accepted), 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"acceptance.{measure}: no such measure{hint}; accepted are {', '.join(MEASURES)}, and recall_at_, success_at_, precision_at_ and judged_at_ one of k or 10")
        asked = {*self.gates.required, *self.gates.advisory}
        if self.acceptance and "acceptance" not in asked:
            raise ValueError("acceptance: floors are given but the gate acceptance stands under neither gates.required nor gates.advisory, so nothing would judge them")
        if "acceptance" in self.gates.required and not self.acceptance:
            raise ValueError("gates.required: the gate acceptance is required but there is no floor under acceptance to fail")
        return self

    @property
    def primary_strategy(self) -> str:
        """Name of the strategy whose figures stand at the top of the report."""
        return self.primary or self.strategies[0].name

    @property
    def floors(self) -> tuple[Floor, ...]:
        """The acceptance floors, parsed."""
        return tuple(Floor.parse(measure, text) for measure, text in self.acceptance.items())
