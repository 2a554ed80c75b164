"""What `answers` in `gold_set.yaml` may say, and what a question of `queries.jsonl` may say otherwise.

Belongs here: the shape of the configuration. How questions are answered is `rag_eval.answers`.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rag_eval.records.configuration_parts import Embedding, Name, Part


class Retrieve(Part):
    """Evidence by the strategy's own ranking."""

    kind: Literal["retrieve"]
    top_k: int | None = Field(default=None, ge=1, le=1000, description="default: answers.top_k")


class Grep(Part):
    """Evidence by literal terms or patterns, for identifiers that a ranking may miss."""

    kind: Literal["grep"]
    terms: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        default=(), description="default: names and quoted words of the question"
    )
    patterns: tuple[Annotated[str, Field(min_length=1, max_length=500)], ...] = Field(
        default=(), description="regular expressions, run under a time limit"
    )
    max_hits: int = Field(default=5, ge=1, le=1000)


class Section(Part):
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


class Answers(Part):
    """How questions are answered, and what an answer must keep to. Questions may override mode, preflights, response_schema, verdicts, top_k and retries."""

    mode: AnswerMode = "deterministic"
    strategy: str | None = Field(
        default=None, description="whose retrieval is the evidence; default: the primary strategy"
    )
    top_k: int = Field(default=10, ge=1, le=1000)
    preflights: tuple[Preflight, ...] = Field(default=(Retrieve(kind="retrieve"),), min_length=1)
    embedding: Embedding | None = Field(
        default=None,
        description="for the deterministic mode; default: that of the strategy, else lsa-256",
    )
    max_sentences: int = Field(default=3, ge=1, le=20)
    abstain_below: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="signal under which the deterministic mode says NOT FOUND; default: its own",
    )
    response_schema: ResponseSchema = "json"
    verdicts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_ -]{0,63}$")], ...] = Field(
        default=("SUPPORTED", "CONTRADICTED", "NOT FOUND"), min_length=1
    )
    quote_bypass: Literal["auto", "on", "off"] = "auto"
    strict_fail_on_empty_evidence: bool = False
    fail_closed: bool = False
    retry_on_schema_fail: bool = True
    schema_retry_attempts: int = Field(default=2, ge=0, le=10)
    adaptive_top_k: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = Field(
        default=(20,), description="top_k of each rerun after a provenance failure"
    )
    validators: tuple[ValidatorUse, ...] = ()
    cross_section_allowed: tuple[tuple[str, str], ...] = Field(
        default=(), description="pairs of section_ids that one answer sentence may cite together"
    )
    endpoint: Name | None = Field(
        default=None, description="for llm: a name under `endpoints` of the settings"
    )
    recorded: str | None = Field(
        default=None,
        description="for recorded: the JSONL of the system's outputs; relative to the gold set",
    )
    purpose: Literal["answer", "context"] = Field(
        default="answer",
        description="context: retrieval only sets the tone, and an answer need not use it",
    )
    max_prompt_chars: int = Field(default=60_000, ge=1000, le=10_000_000)
    max_reply_chars: int = Field(default=20_000, ge=100, le=1_000_000)
    ragas_sample_rate: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="share of the questions that FEATURE_RAGAS_EVAL looks at, by hash of the query id",
    )

    @model_validator(mode="after")
    def _mode_has_what_it_needs(self) -> "Answers":
        if self.mode == "llm" and self.endpoint is None:
            raise ValueError("mode llm needs endpoint: a name under endpoints of the settings")
        if self.mode == "recorded" and self.recorded is None:
            raise ValueError("mode recorded needs recorded: the JSONL of the outputs")
        return self


class AnswerOverride(Part):
    """What one question of queries.jsonl may say otherwise than `answers`."""

    answer_mode: AnswerMode | None = None
    preflights: tuple[Preflight, ...] | None = Field(default=None, min_length=1)
    response_schema: ResponseSchema | None = None
    verdicts: (
        tuple[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_ -]{0,63}$")], ...] | None
    ) = Field(default=None, min_length=1)
    top_k: int | None = Field(default=None, ge=1, le=1000)
    schema_retry_attempts: int | None = Field(default=None, ge=0, le=10)
