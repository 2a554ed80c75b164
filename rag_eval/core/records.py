"""Records of the report, the reasons of their null fields, and figures with intervals.

In JSON, a null figure has its reason in `<name>_reason`. The code that makes the figure gives the
reason. Without such a reason, the type of the field gives a default (`Because`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    NonNegativeInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from rag_eval.core.types import Level

# ---- Records, and why a field of one is null.

NOT_SCORED: Final = "no question was scored"
FEW_EFFECTIVE: Final = 5
"""Number of effective questions under which the gold hardly supports an interval."""
HARDLY_SUPPORTED: Final = "the gold hardly supports an interval"
ONE_QUESTION: Final = "one question gives no interval"
NO_SPREAD: Final = "it is no mean over two or more questions, so it has no interval"
NOT_PAIRED: Final = "no question was scored for both strategies"
NOTHING: Final = "there is no value to compute it from"


@dataclasses.dataclass(frozen=True)
class Because:
    """The default reason of a null field, else NOTHING. An empty reason is not written.

    A bound of an interval names its figure in `figure`, and is not scored if the figure is null.
    """

    reason: str
    figure: str = ""


def _has_null(value: object) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_null, value)))


class Record(BaseModel):
    """A part of the report. A field with a default is left out of the JSON unless it was set."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, serialize_by_alias=True, allow_inf_nan=False
    )
    why: dict[str, str] = Field(default_factory=dict, exclude=True, repr=False)
    """Field -> the reason why it is null."""

    @model_validator(mode="before")
    @classmethod
    def _take_reasons(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        fields, why = dict(value), dict(value.get("why", {}))
        for name in value:
            field = str(name).removesuffix("_reason")
            if field != name and field in cls.model_fields and name not in cls.model_fields:
                why[field] = fields.pop(name)
        return fields | {"why": why}

    @model_validator(mode="after")
    def _give_reasons(self) -> "Record":
        for name in self.model_fields_set:
            if name not in self.why and _has_null(getattr(self, name)):
                self.why[name] = self._explain_null(name)
        return self

    def _explain_null(self, name: str) -> str:
        for hint in type(self).model_fields[name].metadata:
            if isinstance(hint, Because):
                is_scored = not hint.figure or getattr(self, hint.figure) is not None
                return hint.reason if is_scored else NOT_SCORED
        return NOTHING

    @model_serializer(mode="wrap")
    def _write_reasons(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        unset = type(self).model_fields.keys() - self.model_fields_set
        values = {name: value for name, value in write(self).items() if name not in unset}
        return values | {f"{name}_reason": why for name, why in self.why.items() if why}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        resolved = handler.resolve_ref_schema(schema)
        resolved["properties"].pop("why", None)
        resolved["patternProperties"] = {"_reason$": {"type": "string", "minLength": 1}}
        return schema

    def dump(self) -> dict[str, Any]:
        """Return the JSON values of this part."""
        return self.model_dump(mode="json")


class Absent(BaseModel):
    """A part that was not measured, with the reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    value: None = None
    reason: str = Field(min_length=1)

    @model_serializer
    def _write(self) -> dict[str, str | None]:
        return {"value": None, "reason": self.reason}


Count = NonNegativeInt
Counts = dict[str, Count]
Size = Annotated[float, Field(ge=0)]
"""A number of questions that need not be whole."""
Unit = Annotated[float, Field(ge=0, le=1)]
Signed = Annotated[float, Field(ge=-1, le=1)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{32,64}$")]
IndexHash = Annotated[str, Field(pattern=r"^[a-z0-9-]+:[0-9a-f]{32}$")]
RunId = Annotated[str, Field(pattern=r"^[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}$")]
Timestamp = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$")]
RuleCode = Annotated[str, Field(pattern=r"^[a-z_]+(\.[A-Za-z0-9_]+)*$")]
Text = Annotated[str, Field(min_length=1)]
ShortText = Annotated[str, Field(max_length=1000)]
Open = dict[str, JsonValue]
"""A part that has no type."""
PValue = Annotated[Unit | None, Because(NOT_PAIRED)]

# ---- Figures.


Triple = tuple[float | None, float | None, float | None]


class Estimate(Record):
    """A value with its 95 % interval."""

    value: Annotated[float | None, Because(NOT_SCORED)]
    ci_low: Annotated[float | None, Because(ONE_QUESTION, "value")]
    ci_high: Annotated[float | None, Because(ONE_QUESTION, "value")]

    @property
    def triple(self) -> Triple:
        """Value, lower and upper bound."""
        return self.value, self.ci_low, self.ci_high


class Figure(Estimate):
    """Mean over questions with its 95 % interval.

    `n_effective` is the number of independent questions that the scored questions are worth.
    """

    n_attempted: Count
    n_scored: Count
    n_ineligible: Count
    n_effective: Size


class Interval(Record):
    """A figure of a calibration with its 95 % interval."""

    value: Annotated[float | None, Because(NOT_SCORED)]
    low: float | None
    high: float | None

    @property
    def triple(self) -> Triple:
        """Value, lower and upper bound."""
        return self.value, self.low, self.high


class CountedInterval(Interval):
    """A figure of a calibration over n questions, worth `n_effective` independent ones."""

    n: Count
    n_effective: Size


class Share(Record):
    """A share of runs or questions, with their number."""

    share: Annotated[Unit | None, Because("there is no run")]
    n: Count


class Measure(Figure):
    """One measure of one strategy at one level."""

    label: str = Field(description="the field's name, as ir-measures writes it")
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    level: Level
    value: Annotated[Unit | None, Because(NOT_SCORED)]
    n_failed: Count
    judged_at_k: Annotated[
        Unit | None,
        Because("the measure has no cutoff k, or no question was scored"),
    ]
    value_if_unjudged_relevant: Annotated[
        Unit | None,
        Because(NOT_SCORED),
        Field(description="P@k if every unjudged item were relevant"),
    ] = None


class AnswerFigure(Figure):
    """A measure of answers or citations.

    n_units is its own denominator: citations or spans for ratios, else questions.
    """

    name: str
    n_failed: Count
    n_units: Count
    target: str | None = None


class PairedDelta(Record):
    """Paired difference on the same questions, with its 95 % interval."""

    delta: Annotated[Signed | None, Because(NOT_PAIRED)]
    ci_low: Annotated[float | None, Because(ONE_QUESTION, "delta")]
    ci_high: Annotated[float | None, Because(ONE_QUESTION, "delta")]
    n_better: Count
    n_worse: Count
    n_tied: Count
    n_effective: Size

    @property
    def triple(self) -> Triple:
        """Difference, lower and upper bound."""
        return self.delta, self.ci_low, self.ci_high


class StrategyDelta(PairedDelta):
    """Paired difference between strategies; p is adjusted by Holm over all rows."""

    measure: str
    level: Level
    p_adjusted: PValue
    minimum_detectable: Annotated[float | None, Because("fewer than two questions, or more than 1")]


class ComparedPair(StrategyDelta):
    """Paired difference a - b."""

    a: str
    b: str
    p: PValue
    n_wordings: Count | None = Field(
        None, description="wordings compared, where one of the two was not run on all"
    )
