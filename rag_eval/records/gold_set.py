"""What `gold_set.yaml` may say: one model for the file, one for each part. Unknown keys and impossible values are refused.

Belongs here: the shape of the configuration. Reading the file with line numbers is `rag_eval.gold.configuration`.
"""

import difflib
import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from rag_eval.records.answer_settings import Answers
from rag_eval.records.configuration_parts import Embedding, Name, Part
from rag_eval.records.problems import quoted
from rag_eval.records.trust import Trust
from rag_eval.records.uncertainty import EXPANSIONS, ExpansionName, Uncertainty

MEASURES_AT_K = ("recall", "success", "precision", "judged")
MEASURES = (
    *(
        "mrr",
        "ndcg_at_10",
        "delta_s",
        "latency_p50_ms",
        "latency_p95_ms",
        "latency_p99_ms",
        "cost_per_1k",
        "cache_hit_rate",
    ),
    # of answers and sources: a floor on one of these is insufficient evidence until a run measures it
    *(
        "citation_match_rate",
        "citation_precision",
        "citation_recall",
        "citation_validity_rate",
        "coverage",
        "groundedness",
        "faithfulness",
    ),
    *(
        "supported_share",
        "abstention_rate",
        "answered_anyway",
        "refused_answerable",
        "failure_rate",
        "avg_trust_score",
        "convergent_hit_share",
    ),
)
"""Names that a floor may ask for, beside `<measure>_at_<k>`."""

PAIRED_MEASURES = ("mrr", "ndcg_at_10", "delta_s")
"""Names that the regression gate can pair question by question, beside `<measure>_at_<k>`."""

_FLOOR = re.compile(r"^\s*(>=|<=)\s*(-?\d+(?:\.\d+)?)\s*$")

Level = Literal["document", "section", "span"]
Expand = Literal["data-terms"]
"""Lists of synonyms that come with the package; `rag_eval.retrieval.synonyms` has them."""


def _did_you_mean(found: str, accepted: set[str]) -> str:
    near = difflib.get_close_matches(found, sorted(accepted), 1)
    return f"; did you mean {near[0]}?" if near else ""


class Chunker(Part):
    """How documents are cut. `whole` keeps a document as one chunk; `sentence` makes one chunk a sentence."""

    kind: Literal["numpydoc", "markdown", "text", "sentence", "whole"]
    max_tokens: int = Field(default=256, ge=8, le=100_000)
    overlap: int = Field(
        default=0,
        ge=0,
        description="tokens repeated from the end of the chunk before (kinds text and markdown)",
    )

    @model_validator(mode="after")
    def _overlap_is_smaller(self) -> "Chunker":
        if self.overlap >= self.max_tokens:
            raise ValueError("overlap must be smaller than max_tokens")
        return self


class PackageDocs(Part):
    """Docstrings of an installed package."""

    loader: Literal["package_docs"]
    package: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    modules: tuple[str, ...] = Field(
        default=(),
        description="dotted modules whose public names are walked; default: the package and every public submodule with __all__",
    )
    exclude: tuple[str, ...] = Field(
        default=(), description="shell patterns of qualified names to leave out"
    )
    min_chars: int = Field(default=0, ge=0)
    chunker: Chunker = Chunker(kind="numpydoc")
    mask_pii: bool = True


class Folder(Part):
    """Markdown and text files below a folder."""

    loader: Literal["folder"]
    path: str
    pattern: tuple[str, ...] = ("**/*.md", "**/*.markdown", "**/*.txt", "**/*.rst")
    chunker: Chunker = Chunker(kind="markdown")
    mask_pii: bool = True


class Beir(Part):
    """A BEIR folder: `corpus.jsonl`, and more files of the same layout as extra documents."""

    loader: Literal["beir"]
    path: str
    extra: tuple[str, ...] = Field(
        default=(), description="further .jsonl files of the same layout, relative to path"
    )
    chunker: Chunker = Chunker(kind="whole")
    mask_pii: bool = True


class HuggingFace(Part):
    """A Hugging Face `datasets` data set: local files (jsonl, csv, parquet) or a name on the hub."""

    loader: Literal["hf_datasets"]
    path: str = Field(description="a local file or folder, or a hub name")
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    id_column: str = "id"
    title_column: str | None = None
    text_column: str = "text"
    url_column: str | None = Field(
        default=None, description="address of the document, for its link and its domain"
    )
    author_column: str | None = None
    date_column: str | None = Field(
        default=None, description="date or time of the document's last change (ISO 8601)"
    )
    chunker: Chunker = Chunker(kind="text")
    mask_pii: bool = True


class Recorded(Part):
    """No corpus of one's own: the contexts of recorded outputs are the documents."""

    loader: Literal["recorded"]
    path: str = Field(description="recorded outputs (JSONL)")
    chunker: Chunker = Chunker(kind="whole")
    mask_pii: bool = False


Corpus = Annotated[
    PackageDocs | Folder | Beir | HuggingFace | Recorded, Field(discriminator="loader")
]


class Rerank(Part):
    """A step after retrieval. `mmr`: lambda weighs relevance against likeness to what was already chosen."""

    kind: str = Field(
        pattern=r"^[a-z][a-z0-9_]*$",
        description="mmr, or a name that the settings map to an import path",
    )
    lambda_: float = Field(default=0.7, ge=0, le=1, alias="lambda")
    depth: int = Field(default=50, ge=1, le=1000)
    embedding: Embedding | None = None


class _Strategy(Part):
    name: Name
    rerank: Rerank | None = None


def _expandable(engine: str, expand: str | None) -> None:
    if expand is not None and engine != "bm25s":
        raise ValueError(
            f"expand: works with engine bm25s only, and the engine is {engine}; leave out expand or choose engine: bm25s"
        )


class Bm25(_Strategy):
    """Lexical retrieval. `lucene` is BM25 as Lucene computes it (bm25s); `rank-bm25` is the Okapi variant of that package."""

    kind: Literal["bm25"]
    engine: Literal["bm25s", "rank-bm25"] = "bm25s"
    k1: float = Field(default=0.9, ge=0, le=10)
    b: float = Field(default=0.4, ge=0, le=1)
    expand: Expand | None = Field(
        default=None,
        description="list of synonyms that questions are widened by: data-terms, everyday words for those of data handling documentation",
    )

    @model_validator(mode="after")
    def _engine_expands(self) -> "Bm25":
        _expandable(self.engine, self.expand)
        return self


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
    expand: Expand | None = Field(
        default=None,
        description="list of synonyms that questions are widened by: data-terms, everyday words for those of data handling documentation",
    )
    embedding: Embedding = Embedding(model="lsa-256")
    search: Literal["exact", "approximate"] = "exact"

    @model_validator(mode="after")
    def _engine_expands(self) -> "Hybrid":
        _expandable(self.engine, self.expand)
        return self

    @model_validator(mode="after")
    def _some_weight(self) -> "Hybrid":
        if self.alpha + self.beta == 0:
            raise ValueError("alpha and beta must not both be 0")
        return self


class External(_Strategy):
    """The user's own retriever: a name that the settings map to an import path or a URL, a TREC run, or the contexts of recorded outputs."""

    kind: Literal["external"]
    source: Name | None = Field(default=None, description="a name under `sources` of the settings")
    run_file: str | None = Field(default=None, description="a TREC run; relative to the gold set")
    recorded: str | None = Field(
        default=None,
        description="recorded outputs (JSONL); their contexts, in order, are the ranking",
    )
    top_k: int | None = Field(
        default=None, ge=1, le=1000, description="chunks asked for; default: the gold set's depth"
    )

    @model_validator(mode="after")
    def _one_source(self) -> "External":
        if sum(given is not None for given in (self.source, self.run_file, self.recorded)) != 1:
            raise ValueError("give exactly one of source, run_file and recorded")
        if self.rerank is not None:
            raise ValueError(
                "an external retriever ranks by itself; rerank is for strategies that run here"
            )
        return self


class Iterative(_Strategy):
    """Retrieves, looks at how likely it missed something, expands the question and retrieves again, over any other strategy that runs here."""

    kind: Literal["iterative"]
    base: Name = Field(description="name of the strategy that each round retrieves with")
    min_recall: float = Field(
        default=0.7, ge=0, le=1, description="retrieval confidence that ends the rounds"
    )
    max_iterations: int = Field(default=3, ge=1, le=10)
    max_expansions: int = Field(default=5, ge=1, le=50)
    expansions: tuple[ExpansionName, ...] = Field(
        default=EXPANSIONS, min_length=1, description="expansion strategies that may be chosen"
    )
    endpoint: Name | None = Field(
        default=None,
        description="chat endpoint of the settings for related_concept and reformulation; default: the corpus's own associations",
    )

    @model_validator(mode="after")
    def _base_ranks(self) -> "Iterative":
        if self.rerank is not None:
            raise ValueError("rerank belongs to the base strategy")
        if len(set(self.expansions)) != len(self.expansions):
            raise ValueError("expansions: each once")
        return self


Strategy = Annotated[Bm25 | Vector | Hybrid | External | Iterative, Field(discriminator="kind")]


class Floor(Part):
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
        return cls.model_validate(
            {"measure": measure, "direction": match[1], "bound": float(match[2])}
        )


GateName = Literal["acceptance", "regression", "trust", "poisoning", "stability", "answer_contract"]


class Gates(Part):
    """Which gates end the run (`required`) and which only report (`advisory`)."""

    required: tuple[GateName, ...] = ("poisoning",)
    advisory: tuple[GateName, ...] = ("acceptance", "regression", "trust", "stability")
    min_queries: int = Field(default=50, ge=1)
    regression: tuple[str, ...] = Field(
        default=("recall_at_10", "mrr"),
        min_length=1,
        description="measures of the primary strategy that are held against the accepted baseline",
    )
    max_relative_drop: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="a drop of this share whose interval excludes zero fails the regression gate",
    )
    min_convergent_hit: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of questions that must be convergent and hit, for the stability gate",
    )
    min_trust: float = Field(
        default=0.6, ge=0, le=1, description="mean trust of what the primary strategy retrieved"
    )


class GoldSetConfig(Part):
    """The whole of `gold_set.yaml`."""

    name: Name
    version: int | str = 1
    description: str = ""
    corpus: Corpus
    k: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = (1, 5, 10, 20)
    depth: int = Field(
        default=100, ge=1, le=10_000, description="chunks retrieved for each wording"
    )
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = (13, 29)
    strategies: tuple[Strategy, ...] = Field(min_length=1)
    primary: str | None = None
    level: Level = "document"
    split: str | None = Field(
        default=None, description="for gold in BEIR layout: qrels/<split>.tsv"
    )
    trust: Trust = Trust()
    uncertainty: Uncertainty = Uncertainty()
    answers: Answers | None = Field(
        default=None, description="left out: retrieval alone is evaluated"
    )
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
        if (
            self.answers is not None
            and self.answers.strategy is not None
            and self.answers.strategy not in names
        ):
            raise ValueError(f"answers.strategy: accepted are {', '.join(names)}")
        if (
            self.answers is not None
            and "top_k" in self.answers.model_fields_set
            and self.answers.top_k > self.depth
        ):
            raise ValueError(
                f"answers.top_k: found {self.answers.top_k}, but depth retrieves {self.depth} chunks for each wording"
            )
        if self.depth < max(self.k):
            raise ValueError("depth must be at least the largest k")
        if self.uncertainty.k not in {*self.k, 10}:
            raise ValueError(
                f"uncertainty.k: found {self.uncertainty.k}, accepted are 10 and what stands under k: {', '.join(map(str, self.k))}"
            )
        local = {
            strategy.name
            for strategy in self.strategies
            if not isinstance(strategy, (External, Iterative))
        }
        for strategy in self.strategies:
            if isinstance(strategy, Iterative) and strategy.base not in local:
                raise ValueError(
                    f"strategies.{strategy.name}.base: found {strategy.base}, accepted are {', '.join(sorted(local)) or 'none: no strategy here runs by itself'}"
                )
        for measure, text in self.acceptance.items():
            Floor.parse(measure, text)
        return self

    @model_validator(mode="after")
    def _rounds_can_embed(self) -> "GoldSetConfig":
        for strategy in self.strategies:
            if isinstance(strategy, Iterative) and (fault := self.vectors_of_rounds(strategy)):
                raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _floors_can_be_judged(self) -> "GoldSetConfig":
        accepted = {*MEASURES, *(f"{name}_at_{k}" for name in MEASURES_AT_K for k in {*self.k, 10})}
        for measure in self.acceptance:
            if measure not in accepted:
                raise ValueError(
                    f"acceptance.{measure}: no such measure{_did_you_mean(measure, accepted)}; accepted are {', '.join(MEASURES)}, and recall_at_, success_at_, precision_at_ and judged_at_ one of k or 10"
                )
        asked = {*self.gates.required, *self.gates.advisory}
        if self.acceptance and "acceptance" not in asked:
            raise ValueError(
                "acceptance: floors are given but the gate acceptance stands under neither gates.required nor gates.advisory, so nothing would judge them"
            )
        if "acceptance" in self.gates.required and not self.acceptance:
            raise ValueError(
                "gates.required: the gate acceptance is required but there is no floor under acceptance to fail"
            )
        return self

    @model_validator(mode="after")
    def _regression_can_be_measured(self) -> "GoldSetConfig":
        at_k = [
            name for name in MEASURES_AT_K if name != "judged" or self.level != "span"
        ]  # what was not quoted was not judged
        accepted = {*PAIRED_MEASURES, *(f"{name}_at_{k}" for name in at_k for k in {*self.k, 10})}
        for measure in self.gates.regression:
            if measure not in accepted:
                families = ", ".join(f"{name}_at_" for name in at_k)
                known = (
                    "not measured question by question"
                    if measure in MEASURES
                    else "no such measure"
                )
                raise ValueError(
                    f"gates.regression: found {quoted(measure)}, {known}{_did_you_mean(measure, accepted)}; accepted are {', '.join(PAIRED_MEASURES)}, and {families} with one of k or 10"
                )
        return self

    def vectors_of_rounds(self, strategy: Iterative) -> str:
        """Say why an iterative strategy cannot run on its base's vectors: a file has none for the questions that its rounds make; empty where it can."""
        base = self.base_of(strategy)
        if not isinstance(base, Vector | Hybrid) or base.embedding.vectors is None:
            return ""
        accepted = "a base of kind bm25, or one whose embedding names a model"
        return f"strategies.{strategy.name}.base: found {strategy.base}, which reads its vectors from a file, and that has none for the questions that the rounds expand; accepted is {accepted}"

    def base_of(self, strategy: "Strategy") -> Bm25 | Vector | Hybrid | External:
        """Return the strategy that ranks: of an iterative one its base, else the strategy itself."""
        while isinstance(strategy, Iterative):
            strategy = next(other for other in self.strategies if other.name == strategy.base)
        return strategy

    @property
    def primary_strategy(self) -> str:
        """Name of the strategy whose figures stand at the top of the report."""
        return self.primary or self.strategies[0].name

    @property
    def floors(self) -> tuple[Floor, ...]:
        """The acceptance floors, parsed."""
        return tuple(Floor.parse(measure, text) for measure, text in self.acceptance.items())
