"""The whole report of an evaluation, `retrieval-metrics.json`: its type, its hash and its JSON.

The rooms below own the types of its parts. The JSON Schema is generated from the types:
`python -m rag_eval.reporting.report` writes it.
"""

import datetime as dt
import importlib
import json
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, PositiveInt, StrictBool, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import to_jsonable_python

from rag_eval.core.errors import InputError
from rag_eval.core.loader import Chunker
from rag_eval.core.parts import Name
from rag_eval.core.records import (
    NOT_SCORED,
    Absent,
    Because,
    ComparedPair,
    Count,
    Counts,
    Hash,
    Open,
    Record,
    RunId,
    ShortText,
    Timestamp,
    Unit,
)
from rag_eval.core.rows import Fault, format_location, parse_object
from rag_eval.core.types import SNIPPET_CHARS, Level, Status
from rag_eval.corpus.masking import mask_snippet, masked_tree
from rag_eval.gates.gate import GatePart, PreviousPart
from rag_eval.gold.lint import GoldPart
from rag_eval.measures.answers import AnswersPart, CitationsPart, RagasFigure
from rag_eval.measures.stability import StabilityPart
from rag_eval.measures.strategy_figures import SlicesPart, StrategyPart
from rag_eval.storage.hashing import digest
from rag_eval.trust.trust_report import TrustPart
from rag_eval.uncertainty.miss_rate_report import CalibrationPart, MissesPart, UncertaintyPart

SCHEMA_VERSION: Final = 2
SCHEMA_FILE: Final = Path(__file__).parent / "retrieval-metrics.schema.json"


# ---- What was evaluated.


class Evaluated(Record):
    """How the gold set was evaluated."""

    k: list[PositiveInt] = Field(min_length=1)
    depth: Count
    level: Level
    primary: Name
    partial: StrictBool = Field(
        default=False, description="whether only some strategies, or other vectors, were run"
    )
    known: StrictBool = Field(
        default=True, description="whether the gold set is one of the folder of gold sets"
    )


class IndexPart(Record):
    """The corpus and its index."""

    hash: str
    rev: str
    corpus_rev: str
    chunks_hash: Hash
    analyzer: str
    chunker: Chunker
    embed_model: str
    n_documents: Count
    n_chunks: Count
    loader: str
    masked: Annotated[Counts | None, Because("masking is off for this corpus")]
    strategies: dict[Name, dict[Literal["index_hash", "embed_model"], str]]


class Code(Record):
    """Versions of the code and of the libraries."""

    version: str = Field(description="hash of the sources that computed")
    libraries: dict[str, str]


class Embeddings(Record):
    """Numbers of texts that needed a vector and that were embedded."""

    models: list[str]
    needed: Count
    embedded: Count


class Reused(Record):
    """Results that were reused from an earlier run."""

    index: StrictBool
    runs: dict[Name, StrictBool]


# ---- Questions to look at first.


class FoundCount(Record):
    """Retrievals of a question with gold in the top 10, of all wordings and seeds."""

    strategy: Name
    n_found: Count
    n_runs: PositiveInt


class LookFirst(Record):
    """A question that the primary strategy misses under most of its wordings.

    `other` is the strategy that finds the gold most often. `miss_rate` and `status` are the claim
    of the primary strategy for the original wording.
    """

    query_id: str
    text: ShortText
    primary: FoundCount
    other: Annotated[FoundCount | None, Because("no other strategy finds the gold")]
    miss_rate: Annotated[Unit | None, Because("the strategy states no miss rate")]
    status: Status
    lost: Annotated[ShortText | None, Because("the original wording finds the gold")] = Field(
        description="sentence on the step that lost the gold of the original wording"
    )


# ---- The whole report.


class Report(Record):
    """The report of an evaluation.

    A figure that could not be computed is null and has its reason beside it, under <name>_reason.
    A draft, whose hash is not known yet, lacks previous and look_first.
    """

    schema_version: Literal[2]
    version: str
    run_id: RunId
    timestamp: Timestamp
    content_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = Field(
        description="over everything but itself, run_id, times, latencies, cache and reuse figures"
    )
    strategy: Name
    recallAt10: Annotated[Unit | None, Because(NOT_SCORED)]  # noqa: N815 - a name of the contract
    mrr: Annotated[Unit | None, Because(NOT_SCORED)]
    groundedness: Unit | None
    faithfulness: Unit | None
    avgTrustScore: Unit | None  # noqa: N815 - a name of the contract
    poisonedBlocked: Count = Field(  # noqa: N815 - a name of the contract
        description="Distinct chunks that the guard kept from callers; 0 where quarantine is off."
    )
    cacheHitRate: Unit | None  # noqa: N815 - a name of the contract
    code: Code
    features: dict[Annotated[str, Field(pattern=r"^FEATURE_[A-Z_]+$")], StrictBool]
    evaluation: Evaluated
    gold: GoldPart
    index: IndexPart
    strategies: list[StrategyPart] = Field(min_length=1)
    comparisons: list[ComparedPair]
    stability: StabilityPart
    slices: SlicesPart
    answers: AnswersPart | Absent
    citations: CitationsPart | Absent
    trust: TrustPart
    uncertainty: UncertaintyPart
    calibration: CalibrationPart
    gates: list[GatePart]
    embeddings: Embeddings
    reused: Reused
    misses: dict[Name, MissesPart]
    previous: PreviousPart | None = None
    ragas: list[RagasFigure] | None = Field(
        default=None, description="by the primary strategy, where the gold set asks for ragas"
    )
    look_first: list[LookFirst] | None = Field(
        None, description="missed questions of different groups, the worst first"
    )

    @property
    def primary(self) -> StrategyPart:
        """Strategy of the headline figures."""
        return next(entry for entry in self.strategies if entry.name == self.strategy)

    @classmethod
    def draft(cls, fields: Mapping[str, Any], now: dt.datetime) -> Self:
        """Make a report without its gates from the joined fields; its texts are masked.

        `now`: time of the run, with a time zone.
        """
        moment = now.astimezone(dt.UTC)
        return cls.model_validate(
            {
                **_outgoing_body(to_jsonable_python(fields)),
                "schema_version": SCHEMA_VERSION,
                "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "run_id": f"{moment.strftime('%Y%m%dT%H%M%S%f')[:-3]}Z-{'0' * 8}",
                "content_hash": "0" * 64,
            }
        )

    def finish(self, gates: Iterable[GatePart]) -> Self:
        """Add the gates, the hash of the contents and the run id to a draft."""
        masked = [GatePart.model_validate(masked_tree(gate.dump(), NAME_KEYS)) for gate in gates]
        report = self.model_copy(update={"gates": masked})
        content = content_hash(report.dump())
        run_id = f"{self.run_id.partition('-')[0]}-{content[:8]}"
        return report.model_copy(update={"content_hash": content, "run_id": run_id})


# ---- The content hash: what was found, without times and what a cache decides

_VOLATILE: Final = frozenset(
    "cacheHitRate cacheHitRate_reason calibration code content_hash drift embeddings history "
    "look_first previous previous_reason reused run_id timestamp uncertainty".split()
)
"""Top-level keys that may differ between two runs on equal inputs."""
_VOLATILE_OF_STRATEGY: Final = frozenset({"cost_per_1k", "latency_ms"})
_VOLATILE_MEASURES: Final = ("latency", "cache_hit_rate", "cost")


def content_hash(report: Mapping[str, Any]) -> str:
    """Hash the results of a report; equal for equal inputs, at any time and with any cache."""
    return digest(_stable_part(report), 64)


def _leave_out(part: Mapping[str, Any], names: Container[str]) -> Open:
    return {key: value for key, value in part.items() if key not in names}


def _stable_part(report: Mapping[str, Any]) -> Open:
    """Leave out everything that may differ between two runs on equal inputs."""
    part = _leave_out(report, _VOLATILE)
    part["strategies"] = [
        _leave_out(entry, _VOLATILE_OF_STRATEGY) for entry in report.get("strategies", [])
    ]
    part["answers"] = _leave_out(report.get("answers", {}), {"usage", "verifier_usage"})
    part["trust"] = _leave_out(report.get("trust", {}), {"as_of"})
    part["gates"] = [_stable_gate(gate) for gate in report.get("gates", [])]
    return part


def _stable_gate(gate: Mapping[str, Any]) -> Open:
    """Keep only the question of a gate on a figure that may differ."""
    evidence = gate.get("evidence", {})
    is_volatile = str(evidence.get("measure", "")).startswith(_VOLATILE_MEASURES)
    if gate.get("gate") != "regression" and not is_volatile:
        return dict(gate)
    asked = {name: gate.get(name) for name in ("id", "required")}
    return {**asked, "accepted": evidence.get("accepted")}


# ---- Making a report, and its JSON

REPORT_FILE: Final = "retrieval-metrics.json"
NAME_KEYS: Final = frozenset({"query_id", "hash", "index_hash", "chunks_hash", "version", "file"})
"""Keys whose values are names, which are never masked."""
_PROBLEM_CHARS: Final = {
    "found": SNIPPET_CHARS,
    "message": 2 * SNIPPET_CHARS,
    "accepted": 2 * SNIPPET_CHARS,
}
_UNPRINTABLE = re.compile(
    r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ud800-\udfff\ufeff]"
)


def _outgoing_body(body: Mapping[str, Any]) -> Open:
    """Mask every text of a report, and shorten the quotes in warnings about the gold set."""
    masked: Open = masked_tree(dict(body), NAME_KEYS)
    gold: Any = masked.get("gold", {})
    for warning in gold.get("warnings", ()):
        for name, limit in _PROBLEM_CHARS.items():
            if isinstance(warning.get(name), str):
                warning[name] = mask_snippet(warning[name], limit)
    return masked


def dumps(report: Mapping[str, Any]) -> str:
    """Write JSON for a file: sorted keys, indent of two spaces, LF, no NaN.

    Characters that a terminal would act on are escaped, so that printing the file is safe.
    """
    text = json.dumps(report, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match.group()):04x}", text) + "\n"


# ---- Reading a report: it must be whole and unchanged

MAX_BYTES: Final = 200_000_000


def _unreadable(path: Path, field: str | None, value: str | None) -> InputError:
    message = "not a whole report as this version of rag-eval wrote it"
    accepted = f"a {REPORT_FILE} of schema_version {SCHEMA_VERSION}, unchanged"
    return InputError.of(
        "run_unreadable", message, path, field=field, found=value, accepted=accepted
    )


def read_object(path: Path) -> dict[str, Any]:
    """Read a file of one JSON object; raise InputError if it is missing, too large or no object."""
    if not path.is_file():
        accepted = "the report of a run: rag-eval run writes it"
        raise InputError.of("run_not_found", "no such report", path, accepted=accepted)
    if path.stat().st_size > MAX_BYTES:
        raise _unreadable(path, None, f"{path.stat().st_size} bytes")
    value = parse_object(path.read_bytes())
    if isinstance(value, Fault):
        raise _unreadable(path, None, value.message)
    return value


def _first_fault(report: Mapping[str, Any]) -> tuple[str, str] | None:
    """Check the JSON values of a report; return the place and text of the first fault, or None."""
    try:
        Report.model_validate_json(json.dumps(report), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        return format_location(first["loc"]), first["msg"]
    return None


def whole_report(report: Mapping[str, Any], path: Path) -> Report:
    """Check a report; raise InputError with `path` if it breaks its schema or was changed."""
    if (version := report.get("schema_version")) != SCHEMA_VERSION:
        raise _unreadable(path, "schema_version", str(version))
    if (fault := _first_fault(report)) is not None:
        raise _unreadable(path, *fault)
    if report["content_hash"] != content_hash(report):
        raise _unreadable(path, "content_hash", report["content_hash"])
    return Report.model_validate(report)


# ---- The JSON Schema


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: object) -> bool:
        del schema
        return False


def make_schema() -> JsonSchemaValue:
    """Generate the JSON Schema of the report."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Report.model_json_schema(schema_generator=_Untitled),
        "title": "retrieval-metrics.json",
    }


if __name__ == "__main__":
    # The names in the schema hold the name of the module, which is __main__ here.
    generated = importlib.import_module("rag_eval.reporting.report").make_schema()
    SCHEMA_FILE.write_text(json.dumps(generated, indent=1, sort_keys=True) + "\n", "utf-8")
