"""How the explorer's parts are written: rounded numbers, compact JSON, gzip of equal bytes for equal content, and the names of the parts."""

import gzip
import json
from collections.abc import Iterator
from importlib import resources
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

SCHEMA_VERSION: Final = 1
QUESTIONS, CHUNKS = 200, 1000
"""Entries of one part."""
SUMMARY_FILE: Final = "summary.json.gz"
DIGITS, FEW_DIGITS = 6, 4
"""Significant digits of the table; and in the parts of questions, of scores and miss rates, which are most of their bytes."""
_WHOLE: Final = 2.0**53
_EXACT: Final = 22
"""Powers of ten up to this one are exact in float64."""

FloatArray = npt.NDArray[np.float64]


def rounded(values: npt.ArrayLike, digits: int = DIGITS) -> FloatArray:
    """Round to significant digits, to the float64 nearest to that decimal; NaN and infinity stay."""
    found = np.array(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        power = digits - 1 - np.floor(np.log10(np.abs(found)))
        usual = np.isfinite(power) & (np.abs(power) <= _EXACT)
        scale = 10.0 ** np.where(usual, np.abs(power), 0.0)
        up = np.rint(found * scale) / scale
        down = np.rint(found / scale) * scale
        result: FloatArray = np.where(usual, np.where(power >= 0, up, down), found)
    for place in zip(*np.nonzero(np.isfinite(found) & (found != 0) & ~usual), strict=True):
        result[place] = float(f"{found[place]:.{digits}g}")
    return result


def nullable(values: npt.ArrayLike, digits: int = DIGITS) -> list[Any]:
    """Rounded numbers as JSON has them, in the shape of the array: whole ones without a fraction, what is absent as null."""
    found = rounded(values, digits)
    whole = np.isfinite(found) & (found == np.rint(found)) & (np.abs(found) < _WHOLE)
    listed = found.astype(object)
    listed[whole] = found[whole].astype(np.int64)
    listed[~np.isfinite(found)] = None
    result: list[Any] = listed.tolist()
    return result


def packed(value: Any) -> bytes:
    """Write compact JSON, gzipped without a time."""
    return gzip.compress(
        json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(),
        compresslevel=6,
        mtime=0,
    )


def unpacked(data: bytes) -> Any:
    """Read what `packed` wrote."""
    return json.loads(gzip.decompress(data))


def shards(n: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Number, first entry and end of every part."""
    for number, start in enumerate(range(0, n, size)):
        yield number, start, min(start + size, n)


def part_name(kind: Literal["questions", "chunks"], number: int) -> str:
    """Name of a part's file.

    Examples
    --------
    >>> part_name("chunks", 12)
    'chunks-0012.json.gz'
    """
    return f"{kind}-{number:04d}.json.gz"


def explorer_schema(kind: Literal["summary", "questions", "chunks"]) -> dict[str, Any]:
    """Return the published JSON Schema of a part."""
    loaded: dict[str, Any] = json.loads(
        resources.files("rag_eval.evaluation")
        .joinpath(f"explorer-{kind}.schema.json")
        .read_text(encoding="utf-8")
    )
    return loaded
