"""Models of `gold_set.yaml`: one for the file, and one for each part.

Unknown keys and impossible values are refused. `rag_eval.gold.configuration` reads the file, and
`rag_eval.gates.verdict` checks the names of gates and of the measures that they compare.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from rag_eval.core.errors import quoted, require
from rag_eval.core.frames import FrameSchema, schema
from rag_eval.core.loader import AnyLoader
from rag_eval.core.parts import Name, Part
from rag_eval.core.rows import suggest
from rag_eval.core.strategy import AnyStrategy, Strategy
from rag_eval.core.types import BinaryTarget, Level

# ---- Answers


class Retrieve(Part):
    """Evidence by the strategy's own ranking."""

    kind: Literal["retrieve"]
    top_k: int | None = Field(default=None, ge=1, le=1000)
    """Default: answers.top_k."""


class Grep(Part):
    """Evidence by literal terms, for identifiers that a ranking may miss."""

    kind: Literal["grep"]
    terms: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ()
    """Default: names and quoted words of the question."""
    max_hits: int = Field(default=5, ge=1, le=1000)
    """Most passages for one question."""


class Section(Part):
    """Evidence by section: those of `sections`, else two of the first retrieved chunks."""

    kind: Literal["section"]
    sections: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] = ()
    """Section ids to use for every question."""


Preflight = Annotated[Retrieve | Grep | Section, Field(discriminator="kind")]
ResponseSchema = Literal["json", "auditable", "verdict"]
AnswerMode = Literal["deterministic", "llm", "recorded"]


class PluginUse(BaseModel):
    """A validator or postprocessor by its name; all other keys are its options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Name
    """An entry point of `rag_eval.validators` or `rag_eval.postprocessors`. Shipped validators are
    `ban_regex`, `require_citation_support` and `require_min_inline_regex_count`."""

    @property
    def options(self) -> dict[str, object]:
        """Options that the plug-in receives: every key but `name`."""
        return dict(self.model_extra or {})


VerdictWord = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_ -]{0,63}$",
        description="letters, digits, spaces, _ and -, starting with a letter",
    ),
]


class Answers(Part):
    """How questions are answered, and the rules that an answer must follow."""

    mode: AnswerMode = "deterministic"
    """Who answers: sentences of the evidence, a chat endpoint, or a file of outputs."""
    strategy: str | None = None
    """Whose retrieval is the evidence; default: the primary strategy."""
    top_k: int = Field(default=10, ge=1, le=1000)
    """Chunks that the preflight `retrieve` gives."""
    preflights: tuple[Preflight, ...] = Field(default=(Retrieve(kind="retrieve"),), min_length=1)
    """How evidence is gathered, in this order."""
    abstain_below: float = Field(default=0.39, ge=0, le=1)
    """Score of the best sentence under which the deterministic mode says NOT FOUND."""
    response_schema: ResponseSchema = "json"
    """Form of a reply: a JSON object that cites tokens, one that cites snippets with their fields,
    or VERDICT= and CITATIONS= lines before the text."""
    verdicts: tuple[VerdictWord, ...] = Field(
        default=("SUPPORTED", "CONTRADICTED", "NOT FOUND"), min_length=1
    )
    """Words that VERDICT= may give."""
    quote_bypass: Literal["auto", "on", "off"] = "auto"
    """Whether a model only analyzes evidence and refuses with INSUFFICIENT EVIDENCE."""
    strict_fail_on_empty_evidence: bool = False
    """Whether a question without evidence ends the run before a model is asked."""
    schema_retry_attempts: int = Field(default=2, ge=0, le=10)
    """How often a reply of the wrong form is requested again, with the reason."""
    adaptive_top_k: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = (20,)
    """`top_k` of each rerun after a provenance failure."""
    validators: tuple[PluginUse, ...] = ()
    """Domain rules for answers."""
    postprocessors: tuple[PluginUse, ...] = ()
    """Plug-ins that reword an accepted answer or extract findings from it, in this order."""
    cross_section_allowed: tuple[tuple[str, str], ...] = ()
    """Pairs of section_ids that one answer sentence may cite together."""
    endpoint: Name | None = None
    """For llm: a name under `endpoints` of the settings."""
    recorded: str | None = None
    """For recorded: the JSONL of the system's outputs; relative to the gold set."""
    verifier: Name | None = None
    """Model that scores the answer sentences instead of their words: a name under `verifiers` of
    the settings."""
    purpose: Literal["answer", "context"] = "answer"
    """Context: retrieval only sets the tone, and an answer need not use it."""
    max_prompt_chars: int = Field(default=60_000, ge=1000, le=10_000_000)
    """Evidence that does not fit is left out, the last ranks first."""
    max_reply_chars: int = Field(default=20_000, ge=100, le=1_000_000)
    """A longer reply breaks the contract."""
    ragas_sample_rate: float = Field(default=0.01, ge=0, le=1)
    """Share of the questions that FEATURE_RAGAS_EVAL judges; a gold set of hundreds needs more."""

    @model_validator(mode="after")
    def _mode_has_what_it_needs(self) -> "Answers":
        if self.mode == "llm" and self.endpoint is None:
            raise ValueError("mode llm needs endpoint: a name under endpoints of the settings")
        if self.mode == "recorded" and self.recorded is None:
            raise ValueError("mode recorded needs recorded: the JSONL of the outputs")
        return self


class AnswerOverride(Part):
    """Answer settings that one question of queries.jsonl may change."""

    answer_mode: AnswerMode | None = None
    preflights: tuple[Preflight, ...] | None = Field(default=None, min_length=1)
    response_schema: ResponseSchema | None = None
    verdicts: tuple[VerdictWord, ...] | None = Field(default=None, min_length=1)
    top_k: int | None = Field(default=None, ge=1, le=1000)
    schema_retry_attempts: int | None = Field(default=None, ge=0, le=10)


# ---- Trust, and the frames of its stage

DOMAIN_WEIGHT, SIGNATURE_WEIGHT, AUTHOR_WEIGHT = 0.4, 0.3, 0.3
FRESH, STALE, YEAR_DAYS = 1.0, 0.7, 365
"""The freshness factor falls from FRESH at age 0 to STALE at one year and later."""

_KEY_BYTES = 32
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_DOMAIN = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*|python:[A-Za-z_][A-Za-z0-9_]*")

Verdict = Literal["clean", "warning", "blocked"]
Quarantine = Literal["none", "blocked", "warnings"]
_WITHHELD: Final[Mapping[Quarantine, tuple[Verdict, ...]]] = {
    "none": (),
    "blocked": ("blocked",),
    "warnings": ("blocked", "warning"),
}
CHECKS = tuple("domain pattern hidden encoded manifest topic_shift flood restates_query".split())
"""Checks of the poisoning guard. A reason code begins with the name of its check."""
FreshnessState = Literal["dated", "future", "unknown"]
DomainState = Literal["allowed", "not_listed", "lookalike", "unknown", "not_configured"]
SignatureState = Literal["valid", "invalid", "missing", "not_configured"]
AuthorState = Literal["known", "not_listed", "unknown", "not_configured"]
AuthorName = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]


def _normalise_domain(value: object) -> object:
    if not isinstance(value, str) or value.startswith("python:"):
        return value
    return value.strip().rstrip(".").lower()


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == _KEY_BYTES
    except ValueError:
        return False


_ACCEPTED_DOMAIN = "example.org, *.example.org and python:<package>; other letters as xn--"
_ACCEPTED_KEY = f"an Ed25519 public key, {_KEY_BYTES} bytes in base64"
Domain = Annotated[
    str,
    require(_DOMAIN.fullmatch, "bad_value", "this is not a domain", _ACCEPTED_DOMAIN),
    BeforeValidator(_normalise_domain),
]
PublicKey = Annotated[str, require(_is_key, "bad_value", "this is not a key", _ACCEPTED_KEY)]


class Trust(Part):
    """Trusted domains, authors and keys of the corpus, and settings of the poisoning guard."""

    domains: tuple[Domain, ...] = Field(default=(), max_length=10_000)
    """Allowlist: example.org (and www.example.org), *.example.org with all below, python:<package>
    for docstrings."""
    authors: tuple[AuthorName, ...] = Field(default=(), max_length=10_000)
    """Known authors; compared without regard to case and runs of white space."""
    keys: dict[Name, PublicKey] = Field(default_factory=dict)
    """Public keys by name: Ed25519, 32 bytes in base64."""
    manifest: str | None = None
    """Recorded hashes of the documents, relative to the gold set; <manifest>.sig must sign it where
    keys are given."""
    unlisted: Literal["allow", "warn", "block"] = "warn"
    """What happens to documents of domains that are not on the allowlist, and to those without an
    address; look-alikes are always blocked."""
    quarantine: Quarantine = "blocked"
    """Chunks that are left out of the index and of results: those that are blocked, those with
    warnings too, or none. Chunks that stay in are only reported."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    """Trust under which chunks are left out; recall is reported with and without."""
    filter: bool = False
    """Whether strategies retrieve with the threshold; else the report only states its effect on
    recall."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "Trust":
        if self.filter and self.threshold is None:
            raise ValueError("filter: true needs a threshold, under which chunks are left out")
        if self.threshold is not None and not self.configured:
            raise ValueError("threshold: nothing says whom to trust; give domains, authors or keys")
        if self.keys and self.manifest is None:
            raise ValueError("keys: nothing is signed; give manifest")
        return self

    @property
    def withheld(self) -> tuple[Verdict, ...]:
        """Verdicts of the chunks that are left out, unless a person allowed the chunk."""
        return _WITHHELD[self.quarantine]

    @property
    def configured(self) -> bool:
        """Whether domains, authors or keys are given. Without them, trust has no value."""
        return bool(self.domains or self.authors or self.keys)


FINDINGS: FrameSchema = schema(
    "findings",
    row=("int", "row of the checked document, chunk or text"),
    start=("int", "first character in its text; -1 where the finding is about the whole"),
    end=("int", "one past the last; -1 likewise"),
    check=("str", "one of CHECKS"),
    rule=("str", "what was found, within the check: reply_instruction, lookalike, ..."),
    severity=("str", "hint | warning | blocked"),
    detail=("str", "at most 200 characters in our own words, without control characters"),
)

EVIDENCE_TRUST: FrameSchema = schema(
    "evidence_trust",
    "chunk_id doc_id trust domain domain_state signature_state author_state freshness_state "
    "freshness date verdict reasons allowed_by",
    chunk_id=("str", "the chunk, in the order of chunks"),
    trust=("float", "0 to 1; NaN where the gold set configures no trust"),
    domain=("str", "host of its source; empty where there is none"),
    domain_state=("str", "allowed | not_listed | lookalike | unknown | not_configured"),
    signature_state=("str", "valid | invalid | missing | not_configured"),
    author_state=("str", "known | not_listed | unknown | not_configured"),
    freshness_state=("str", "dated | future | unknown"),
    freshness=("float", "0.7 to 1"),
    date=("str", "YYYY-MM-DD; empty where unknown"),
    verdict=("str", "clean | warning | blocked; after what a person allowed"),
    reasons=("list", "reason codes <check>.<rule>, the blocking ones first"),
    allowed_by=("str", "person who allowed the chunk; empty if nobody did"),
)


# ---- Uncertainty, its names of targets and statuses, and the frames of its stage

ExpansionName = Literal[
    "synonym",
    "related_concept",
    "reformulation",
    "hypernym",
    "hyponym",
    "code_pattern",
    "negative_sampling",
]

EXPANSIONS: Final[tuple[ExpansionName, ...]] = get_args(ExpansionName)

PRIOR_QUERIES = 50
"""Fewest unlabelled queries for the z-scores of the prior."""
PROVISIONAL_OUTCOMES, PROVISIONAL_EACH = 25, 5
"""Fewest groups with outcomes, and with misses or hits each, of a provisional miss rate."""
MEASURED_OUTCOMES, MEASURED_EACH = 200, 30
"""Fewest groups with outcomes, and with misses or hits each, of a measured miss rate."""
SLOPE: Final = (0.8, 1.25)
"""Lowest and highest calibration slope that count as near 1."""


class Measures(Part):
    """How answers are measured."""

    support_bar: float = Field(default=0.5, ge=0, le=1)
    """Score from which texts support a sentence; `measures.support.fit_bar` fits it to labels."""


class Uncertainty(Part):
    """How the nightly run estimates and calibrates miss rates."""

    k: int = Field(default=10, ge=1, le=1000)
    """Cutoff of the target: 10, or one of the gold set's k."""
    target: BinaryTarget = "miss_any"
    """What counts as a miss: none of the gold in the first K, or some of it below K."""
    stale_after_days: int = Field(default=180, ge=1, le=3650)
    """Older outcomes no longer count for a status."""


CLAIMS = schema(
    "miss_rate_claims",
    claim_id=("str", "hash of (strategy fingerprint, query id, paraphrase id, seed, wording)"),
    query_id=("str", "the gold query, or the query of production traffic"),
    paraphrase_id=("str", "`original` or the paraphrase's id"),
    group_id=("str", "unit of inference"),
    seed=("int", "the seed that the retriever was given"),
    strategy=("str", "name of the strategy"),
    strategy_fingerprint=("str", "identity of everything that decides its rankings"),
    target=("str", "miss_any | miss_some"),
    k=("int", "cutoff of the target"),
    miss_rate=("float", "the estimate that was shown; NaN where absent"),
    ci_low=("float", "its 95 % interval; NaN where none is known"),
    ci_high=("float", "its 95 % interval; NaN where none is known"),
    status=("str", "status of the estimate"),
    calibrator=("str", "id of the calibrator that gave it; empty for heuristic_v0"),
    heuristic_v0=("float", "the uncalibrated heuristic, kept for comparison"),
    similar_judged=("int", "similar judged questions in its history; 0: the constant 0.3"),
)


# ---- Gates, and the whole file

_FLOOR = re.compile(r"^\s*(>=|<=)\s*(-?\d+(?:\.\d+)?)\s*$")


def _require_known(place: str, name: str, accepted: Sequence[str], kind: str = "strategy") -> None:
    if name not in accepted:
        wrong = f"{place}: found {quoted(name)}, no such {kind}{suggest(name, accepted)}"
        raise ValueError(f"{wrong}; accepted are {', '.join(accepted)}")


class Floor(Part):
    """One acceptance floor: a measure, a direction and a bound."""

    measure: str
    direction: Literal[">=", "<="]
    bound: float


_IS_FLOOR = require(
    _FLOOR.match, "bad_value", "the floor cannot be read", '">= number" or "<= number", in quotes'
)
FloorText = Annotated[str, _IS_FLOOR]


class Gates(Part):
    """Which gates end the run (`required`) and which only report (`advisory`)."""

    required: tuple[str, ...] = ("poisoning",)
    """Gates that end the run with exit status 2, such as `answer_contract`."""
    advisory: tuple[str, ...] = ("acceptance", "regression", "trust", "stability")
    """Gates that are only reported."""
    min_queries: int = Field(default=50, ge=1)
    """Fewest effective questions for a verdict of acceptance and regression."""
    regression: tuple[str, ...] = Field(default=("recall_at_10", "mrr"), min_length=1)
    """Measures of the primary strategy that are compared with the accepted baseline."""
    max_relative_drop: float = Field(default=0.05, gt=0, lt=1)
    """A drop of this share whose interval excludes zero fails the regression gate."""
    min_trust: float = Field(default=0.6, ge=0, le=1)
    """Mean trust of the primary strategy's results."""


class GoldSetConfig(Part):
    """The whole of `gold_set.yaml`."""

    model_config = ConfigDict(defer_build=True)  # kinds of strategies are loaded at the first use

    name: Name
    """Name of the gold set; reports and commands use it."""
    version: int | str = 1
    """Your own number or word, which the report repeats."""
    corpus: AnyLoader
    """Where the documents come from, and how they are cut."""
    k: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = (1, 5, 10, 20)
    """Cutoffs of the measures, rising."""
    depth: int = Field(default=100, ge=1, le=10_000)
    """Chunks retrieved for each wording."""
    ignore_identical_ids: bool = False
    """Whether the document with the id of a question is left out of its rankings, as BEIR does."""
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = (13, 29)
    """Seeds of strategies whose rankings depend on chance."""
    strategies: tuple[AnyStrategy, ...] = Field(min_length=1)
    """Ways to retrieve that are compared."""
    primary: str | None = None
    """Strategy of the headline figures and of the gates; default: the first."""
    level: Level = "document"
    """What counts as relevant in the headline figures."""
    split: str | None = None
    """For gold in BEIR layout: qrels/<split>.tsv."""
    trust: Trust = Trust()
    uncertainty: Uncertainty = Uncertainty()
    answers: Answers | None = None
    """Left out: retrieval alone is evaluated."""
    measures: Measures = Measures()
    acceptance: dict[str, FloorText] = Field(default_factory=dict)
    """Measure -> floor, such as `recall_at_10: ">= 0.60"`."""
    gates: Gates = Gates()
    ragas: bool = False
    """Whether ragas computes its measures that need no model, beside ours. It takes seconds."""
    nightly: bool = True
    """Whether the nightly job runs this gold set."""

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
        if self.primary is not None:
            _require_known("primary", self.primary, names)
        if (answers := self.answers) is not None:
            if answers.strategy is not None:
                _require_known("answers.strategy", answers.strategy, names)
            if "top_k" in answers.model_fields_set and answers.top_k > self.depth:
                raise ValueError(
                    f"answers.top_k: found {answers.top_k}, but depth retrieves {self.depth} chunks"
                )
        if self.depth < max(self.k):
            raise ValueError("depth must be at least the largest k")
        if self.uncertainty.k not in {*self.k, 10}:
            cutoffs = [str(k) for k in (*self.k, 10)]
            _require_known("uncertainty.k", str(self.uncertainty.k), cutoffs, "k")
        return self

    @model_validator(mode="after")
    def _bases_fit(self) -> "GoldSetConfig":
        local = [strategy.name for strategy in self.strategies if strategy.runs_here]
        for strategy in self.strategies:
            if strategy.base_name is not None:
                _require_known(f"strategies.{strategy.name}.base", strategy.base_name, local)
        for strategy in self.strategies:
            if fault := self.vectors_of_rounds(strategy):
                raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _gates_can_be_judged(self) -> "GoldSetConfig":
        gates = self.gates
        if self.acceptance and "acceptance" not in {*gates.required, *gates.advisory}:
            raise ValueError(
                "acceptance: nothing judges the floors; name acceptance under gates.required or"
                " gates.advisory"
            )
        if "acceptance" in gates.required and not self.acceptance:
            raise ValueError("gates.required: acceptance is required but there is no floor to fail")
        if "answer_contract" in gates.required and self.answers is None:
            raise ValueError(
                "gates.required: answer_contract is required but nothing answers; add answers, or"
                " take answer_contract out"
            )
        return self

    def vectors_of_rounds(self, strategy: Strategy) -> str:
        """Say why the rounds of a strategy cannot query its base; empty where they can.

        A base with a file of vectors has no vectors for the questions of the rounds.
        """
        embedding = self.base_of(strategy).embeds_with
        if strategy.base_name is None or embedding is None or embedding.vectors is None:
            return ""
        return (
            f"strategies.{strategy.name}.base: found {strategy.base_name}, whose file of vectors"
            " has none for the questions of the rounds; accepted is a base of kind bm25, or one"
            " whose embedding names a model"
        )

    def strategy(self, name: str) -> Strategy:
        """Return the strategy of a name."""
        return next(strategy for strategy in self.strategies if strategy.name == name)

    def base_of(self, strategy: Strategy) -> Strategy:
        """Return the innermost base of a strategy, or the strategy itself without a base."""
        while strategy.base_name is not None:
            strategy = self.strategy(strategy.base_name)
        return strategy

    @property
    def primary_strategy(self) -> str:
        """Name of the strategy whose figures stand at the top of the report."""
        return self.primary or self.strategies[0].name

    @property
    def floors(self) -> tuple[Floor, ...]:
        """The acceptance floors, parsed."""
        parsed = ((measure, *_FLOOR.findall(text)[0]) for measure, text in self.acceptance.items())
        return tuple(
            Floor(measure=measure, direction=direction, bound=float(bound))
            for measure, direction, bound in parsed
        )
