"""Confidence values: a closed set of types, and how they compose. No bare number is a confidence.

Belongs here: what a confidence value is, what it is worth at least (`effective`), and composition. Values always mean goodness, so the low
end of a bounded one is the conservative one. Ranking figures are called score or signal, never confidence.
"""

import datetime as dt
import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator

Unit = Annotated[float, Field(ge=0, le=1, strict=True, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
AbsentReason = Literal["uncalibrated", "insufficient_data", "not_applicable"]


class _Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Deterministic(_Value):
    """Certain: 0 or 1, or a share that was counted and not estimated, with the reason."""

    kind: Literal["deterministic"] = "deterministic"
    value: Unit
    reason: Text


class Measured(_Value):
    """Measured on outcomes: with the data set, its size, the 95 % interval and when."""

    kind: Literal["measured"] = "measured"
    value: Unit
    dataset: Text
    n: Annotated[int, Field(ge=1)]
    ci_low: Unit
    ci_high: Unit
    measured_at: dt.datetime

    @model_validator(mode="after")
    def _inside(self) -> "Measured":
        if not self.ci_low <= self.value <= self.ci_high:
            raise ValueError(
                f"the interval [{self.ci_low}, {self.ci_high}] does not hold the value {self.value}"
            )
        return self


class Bounded(_Value):
    """Known to lie between two bounds, on some basis."""

    kind: Literal["bounded"] = "bounded"
    low: Unit
    high: Unit
    basis: Text
    citation: Text

    @model_validator(mode="after")
    def _ordered(self) -> "Bounded":
        if self.low > self.high:
            raise ValueError(f"low {self.low} is over high {self.high}")
        return self


class Absent(_Value):
    """Not known, and why. Worth nothing: `effective` is 0."""

    kind: Literal["absent"] = "absent"
    reason: AbsentReason


class Derived(_Value):
    """Computed from other confidence values by a named formula."""

    kind: Literal["derived"] = "derived"
    value: Unit
    formula: Text
    inputs: Mapping[str, "Confidence"] = Field(min_length=1)

    @field_validator("inputs")
    @classmethod
    def _named(cls, value: Mapping[str, "Confidence"]) -> Mapping[str, "Confidence"]:
        if not all(value):
            raise ValueError("every input has a name")
        return value


Confidence = Annotated[
    Deterministic | Derived | Measured | Bounded | Absent, Field(discriminator="kind")
]
KINDS: Final = (Deterministic, Derived, Measured, Bounded, Absent)

_ADAPTER: TypeAdapter[Confidence] = TypeAdapter(Confidence)


def parse(value: object) -> Confidence:
    """Read a confidence value from its JSON form.

    Raises
    ------
    pydantic.ValidationError
        It is none; a bare number never is.
    """
    return _ADAPTER.validate_python(value, strict=False)


def as_json(value: Confidence) -> dict[str, Any]:
    """Write a confidence value as a JSON object."""
    dumped: dict[str, Any] = _checked(value).model_dump(mode="json")
    return dumped


def _checked(value: Confidence) -> Confidence:
    if not isinstance(value, KINDS):
        raise TypeError(
            f"found {type(value).__name__}, accepted a confidence value: {', '.join(kind.__name__ for kind in KINDS)}"
        )
    return value


def effective(value: Confidence) -> float:
    """What a value is worth at least, in [0, 1]: the low end of a bounded one, 0 of an absent one, else its value.

    Raises
    ------
    TypeError
        A bare number, or anything else that is no confidence value.
    """
    _checked(value)
    if isinstance(value, Bounded):
        return value.low
    return 0.0 if isinstance(value, Absent) else value.value


def sequence(**steps: Confidence) -> Derived:
    """Compose steps that build on each other: no better than the weakest, min."""
    return Derived(
        value=min(map(effective, _some(steps).values())),
        formula=f"min({', '.join(steps)})",
        inputs=steps,
    )


def all_of(**parts: Confidence) -> Derived:
    """Compose independent parts that must all hold: the product."""
    return Derived(
        value=math.prod(map(effective, _some(parts).values())),
        formula=" * ".join(parts),
        inputs=parts,
    )


def any_of(**parts: Confidence) -> Derived:
    """Compose independent parts of which one suffices: 1 - product(1 - x)."""
    value = 1 - math.prod(1 - effective(part) for part in _some(parts).values())
    return Derived(
        value=value, formula=f"1 - {' * '.join(f'(1 - {name})' for name in parts)}", inputs=parts
    )


def _some(parts: Mapping[str, Confidence]) -> Mapping[str, Confidence]:
    if not parts:
        raise ValueError("nothing to compose")
    return parts
