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
    *("supported_share", "abstention_rate", "answered_anyway", "refused_answerable", "failure_rate", "avg_trust_score"),
)
"""Names that a floor may ask for, beside `<measure>_at_<k>`."""

_FLOOR = re.compile(r"^\s*(>=|<=)\s*(-?\d+(?:\.\d+)?)\s*$")

Name = Annotated[str, Field(pattern=NAME)]
Level = Literal["document", "section", "span"]
Expand = Literal["data-terms"]
"""Lists of synonyms that come with the package; `rag_eval.retrieval.synonyms` has them."""


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


class Recorded(_Part):
    """No corpus of one's own: the contexts of recorded outputs are the documents."""

    loader: Literal["recorded"]
    path: str = Field(description="recorded outputs (JSONL)")
    chunker: Chunker = Chunker(kind="whole")
    mask_pii: bool = False


Corpus = Annotated[PackageDocs | Folder | Beir | HuggingFace | Recorded, Field(discriminator="loader")]


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


def _expandable(engine: str, expand: str | None) -> None:
    if expand is not None and engine != "bm25s":
        raise ValueError(f"expand: works with engine bm25s only, and the engine is {engine}; leave out expand or choose engine: bm25s")


class Bm25(_Strategy):
    """Lexical retrieval. `lucene` is BM25 as Lucene computes it (bm25s); `rank-bm25` is the Okapi variant of that package."""

    kind: Literal["bm25"]
    engine: Literal["bm25s", "rank-bm25"] = "bm25s"
    k1: float = Field(default=0.9, ge=0, le=10)
    b: float = Field(default=0.4, ge=0, le=1)
    expand: Expand | None = Field(default=None, description="list of synonyms that questions are widened by: data-terms, everyday words for those of data handling documentation")

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
    expand: Expand | None = Field(default=None, description="list of synonyms that questions are widened by: data-terms, everyday words for those of data handling documentation")
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
    recorded: str | None = Field(default=None, description="recorded outputs (JSONL); their contexts, in order, are the ranking")
    top_k: int | None = Field(default=None, ge=1, le=1000, description="chunks asked for; default: the gold set's depth")

    @model_validator(mode="after")
    def _one_source(self) -> "External":
        if sum(given is not None for given in (self.source, self.run_file, self.recorded)) != 1:
            raise ValueError("give exactly one of source, run_file and recorded")
        if self.rerank is not None:
            raise ValueError("an external retriever ranks by itself; rerank is for strategies that run here")
        return self


Strategy = Annotated[Bm25 | Vector | Hybrid | External, Field(discriminator="kind")]


class Retrieve(_Part):
    """Evidence by the strategy's own ranking."""

    kind: Literal["retrieve"]
    top_k: int | None = Field(default=None, ge=1, le=1000, description="default: answers.top_k")


class Grep(_Part):
    """Evidence by literal terms or patterns, for identifiers that a ranking may miss."""

    kind: Literal["grep"]
    terms: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(default=(), description="default: names and quoted words of the question")
    patterns: tuple[Annotated[str, Field(min_length=1, max_length=500)], ...] = Field(default=(), description="regular expressions, run under a time limit")
    max_hits: int = Field(default=5, ge=1, le=1000)


class Section(_Part):
    """Evidence by section: those named, else the whole sections of what retrieval put first."""

    kind: Literal["section"]
    sections: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] = ()
    max_sections: int = Field(default=2, ge=1, le=100)


Preflight = Annotated[Retrieve | Grep | Section, Field(discriminator="kind")]
ResponseSchema = Literal["json", "verdict"]
AnswerMode = Literal["deterministic", "llm", "recorded"]


class ValidatorUse(BaseModel):
    """A domain validator by its entry-point name; all other keys are its options and checked by itself."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Name

    @property
    def options(self) -> dict[str, object]:
        """What the validator is given."""
        return dict(self.model_extra or {})


class Answers(_Part):
    """How questions are answered, and what an answer must keep to. Questions may override mode, preflights, response_schema, verdicts, top_k and retries."""

    mode: AnswerMode = "deterministic"
    strategy: str | None = Field(default=None, description="whose retrieval is the evidence; default: the primary strategy")
    top_k: int = Field(default=10, ge=1, le=1000)
    preflights: tuple[Preflight, ...] = Field(default=(Retrieve(kind="retrieve"),), min_length=1)
    embedding: Embedding | None = Field(default=None, description="for the deterministic mode; default: that of the strategy, else lsa-256")
    max_sentences: int = Field(default=3, ge=1, le=20)
    abstain_below: float | None = Field(default=None, ge=0, le=1, description="signal under which the deterministic mode says NOT FOUND; default: its own")
    response_schema: ResponseSchema = "json"
    verdicts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_ -]{0,63}$")], ...] = Field(default=("SUPPORTED", "CONTRADICTED", "NOT FOUND"), min_length=1)
    quote_bypass: Literal["auto", "on", "off"] = "auto"
    strict_fail_on_empty_evidence: bool = False
    fail_closed: bool = False
    retry_on_schema_fail: bool = True
    schema_retry_attempts: int = Field(default=2, ge=0, le=10)
    adaptive_top_k: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = Field(default=(20,), description="top_k of each rerun after a provenance failure")
    validators: tuple[ValidatorUse, ...] = ()
    cross_section_allowed: tuple[tuple[str, str], ...] = Field(default=(), description="pairs of section_ids that one answer sentence may cite together")
    endpoint: Name | None = Field(default=None, description="for llm: a name under `endpoints` of the settings")
    recorded: str | None = Field(default=None, description="for recorded: the JSONL of the system's outputs; relative to the gold set")
    purpose: Literal["answer", "context"] = Field(default="answer", description="context: retrieval only sets the tone, and an answer need not use it")
    max_prompt_chars: int = Field(default=60_000, ge=1000, le=10_000_000)
    max_reply_chars: int = Field(default=20_000, ge=100, le=1_000_000)
    ragas_sample_rate: float = Field(default=0.1, ge=0, le=1, description="share of the questions that FEATURE_RAGAS_EVAL looks at, by hash of the query id")

    @model_validator(mode="after")
    def _mode_has_what_it_needs(self) -> "Answers":
        if self.mode == "llm" and self.endpoint is None:
            raise ValueError("mode llm needs endpoint: a name under endpoints of the settings")
        if self.mode == "recorded" and self.recorded is None:
            raise ValueError("mode recorded needs recorded: the JSONL of the outputs")
        return self


class AnswerOverride(_Part):
    """What one question of queries.jsonl may say otherwise than `answers`."""

    answer_mode: AnswerMode | None = None
    preflights: tuple[Preflight, ...] | None = Field(default=None, min_length=1)
    response_schema: ResponseSchema | None = None
    verdicts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_ -]{0,63}$")], ...] | None = Field(default=None, min_length=1)
    top_k: int | None = Field(default=None, ge=1, le=1000)
    schema_retry_attempts: int | None = Field(default=None, ge=0, le=10)


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


GateName = Literal["acceptance", "regression", "trust", "poisoning", "stability", "answer_contract"]


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
    answers: Answers | None = Field(default=None, description="left out: retrieval alone is evaluated")
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
        if self.answers is not None and self.answers.strategy is not None and self.answers.strategy not in names:
            raise ValueError(f"answers.strategy: accepted are {', '.join(names)}")
        if self.answers is not None and "top_k" in self.answers.model_fields_set and self.answers.top_k > self.depth:
            raise ValueError(f"answers.top_k: found {self.answers.top_k}, but depth retrieves {self.depth} chunks for each wording")
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
