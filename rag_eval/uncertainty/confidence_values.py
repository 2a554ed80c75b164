"""Confidence values: a closed set of types, and how they compose. No number is a confidence."""

import datetime as dt
import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    field_serializer,
    field_validator,
    model_validator,
)

UnitInterval = Annotated[float, Field(ge=0, le=1, strict=True, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
AbsentReason = Literal["uncalibrated", "insufficient_data", "not_applicable"]


class StrictRecord(BaseModel):
    """A record that converts no value and ignores none."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Deterministic(StrictRecord):
    """A certain confidence: 0, 1 or a counted share, with the reason."""

    type: Literal["deterministic"] = "deterministic"
    value: UnitInterval
    reason: Text


class Measured(StrictRecord):
    """A confidence measured on outcomes, with data set, size, 95 % interval and time."""

    type: Literal["measured"] = "measured"
    value: UnitInterval
    dataset: Text
    n: Annotated[int, Field(ge=1)]
    ci_low: UnitInterval
    ci_high: UnitInterval
    measured_at: dt.datetime

    @model_validator(mode="after")
    def _inside(self) -> "Measured":
        if not self.ci_low <= self.value <= self.ci_high:
            raise ValueError(
                f"the interval [{self.ci_low}, {self.ci_high}] does not hold the value {self.value}"
            )
        return self


class Bounded(StrictRecord):
    """A confidence between two known bounds, with their basis."""

    type: Literal["bounded"] = "bounded"
    low: UnitInterval
    high: UnitInterval
    basis: Text
    citation: Text

    @model_validator(mode="after")
    def _ordered(self) -> "Bounded":
        if self.low > self.high:
            raise ValueError(f"low {self.low} is over high {self.high}")
        return self


class Absent(StrictRecord):
    """An unknown confidence, with the reason; its `effective` value is 0."""

    type: Literal["absent"] = "absent"
    reason: AbsentReason


class Derived(StrictRecord):
    """A confidence computed from other confidence values by a named formula."""

    type: Literal["derived"] = "derived"
    value: UnitInterval
    formula: Text
    inputs: Mapping[str, "Confidence"] = Field(min_length=1)

    @field_validator("inputs", mode="before")
    @classmethod
    def _read_list(cls, value: Any) -> Any:
        """Read the inputs as they are written: a list of `name` and `confidence`."""
        if isinstance(value, dict) and all(isinstance(part, TYPES) for part in value.values()):
            return value
        if not isinstance(value, list) or not all(
            isinstance(item, dict) and item.keys() == {"name", "confidence"} for item in value
        ):
            raise ValueError("the inputs are a list, each with a name and a confidence")
        if len({str(item["name"]) for item in value}) < len(value):
            raise ValueError("every input has a name of its own")
        return {item["name"]: item["confidence"] for item in value}

    @field_validator("inputs")
    @classmethod
    def _names_are_given(cls, value: Mapping[str, "Confidence"]) -> Mapping[str, "Confidence"]:
        if not all(value):
            raise ValueError("every input has a name")
        return value

    @field_serializer("inputs")
    def _write_list(self, value: Mapping[str, "Confidence"]) -> list["NamedConfidence"]:
        return [NamedConfidence(name=name, confidence=part) for name, part in value.items()]


class NamedConfidence(StrictRecord):
    """One input of a derived confidence."""

    name: Text
    confidence: "Confidence"


Confidence = Annotated[
    Deterministic | Derived | Measured | Bounded | Absent, Field(discriminator="type")
]
TYPES: Final = (Deterministic, Derived, Measured, Bounded, Absent)

_ADAPTER: TypeAdapter[Confidence] = TypeAdapter(Confidence)


def parse(value: object) -> Confidence:
    """Read a confidence value from its JSON form; raise ValidationError for any other JSON."""
    return _ADAPTER.validate_python(value, strict=False)


def as_json(value: Confidence) -> dict[str, JsonValue]:
    """Write a confidence value as a JSON object."""
    dumped: dict[str, JsonValue] = _checked(value).model_dump(mode="json")
    return dumped


def _checked(value: Confidence) -> Confidence:
    if not isinstance(value, TYPES):
        raise TypeError(f"found {type(value).__name__}, accepted a confidence value")
    return value


def effective(value: Confidence) -> float:
    """Return the lowest confidence that a value allows: the low end of bounds, 0 for `Absent`.

    Raises TypeError for anything but a confidence value, also for a bare number.
    """
    _checked(value)
    if isinstance(value, Bounded):
        return value.low
    return 0.0 if isinstance(value, Absent) else value.value


def compose(how: Literal["sequence", "all_of", "any_of"], /, **parts: Confidence) -> Derived:
    """Compose confidence values, each by its `effective` value.

    A `sequence` of steps has the minimum, because the weakest step limits all. Independent parts
    that must all hold have the product. If one of them suffices, it is 1 - product(1 - x).
    """
    if not parts:
        raise ValueError("nothing to compose")
    values = list(map(effective, parts.values()))
    failures = " * ".join(f"(1 - {name})" for name in parts)
    value, formula = {
        "sequence": (min(values), f"min({', '.join(parts)})"),
        "all_of": (math.prod(values), " * ".join(parts)),
        "any_of": (1 - math.prod(1 - x for x in values), f"1 - {failures}"),
    }[how]
    return Derived(value=value, formula=formula, inputs=parts)
