"""Write records as JSON values and read them back, by the annotations of their fields."""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Self

import numpy as np
from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from rag_eval.core.arrays import FloatArray

JsonObject = dict[str, Any]
"""A JSON object of a report or of a stored file."""


def finite(value: float) -> float | None:
    """Turn NaN and infinity into None."""
    return float(value) if np.isfinite(value) else None


Floats = Annotated[
    FloatArray,
    PlainValidator(lambda values: np.array(values, dtype=np.float64)),
    PlainSerializer(lambda values: values.tolist()),
]
"""An array that is stored as nested lists without rounding."""


# Callers ignore a type error: mypy checks __hash__ of instances, but the key is the class.
@functools.cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class Stored:
    """A dataclass that is stored as JSON values."""

    def to_json(self) -> JsonObject:
        """Write the fields as JSON values, exactly."""
        values: JsonObject = _adapter(type(self)).dump_python(self, mode="json")  # type: ignore[arg-type]  # see above
        return values

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read fields from JSON values that `to_json` wrote; further keys are ignored."""
        record: Self = _adapter(cls).validate_python(document)  # type: ignore[arg-type]  # see above
        return record
