"""Types of arrays, one name for each element type, and ranges of elements or characters."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]


def count_within(sizes: IntArray) -> IntArray:
    """Number the members of consecutive groups from 0; `sizes` is [n_groups]."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def expand_ranges(starts: IntArray, lengths: IntArray) -> tuple[IntArray, IntArray]:
    """Return row and position of every element of the ranges starts[i]:starts[i] + lengths[i]."""
    row = np.repeat(np.arange(len(starts)), lengths)
    return row, starts[row] + count_within(lengths)


def find_rows(kept_rows: npt.NDArray[np.bytes_], wanted: npt.NDArray[np.bytes_]) -> IntArray:
    """Return the first row of each wanted key among kept keys of the same width; -1 for none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def pack(keys: npt.NDArray[np.bytes_]) -> pa.Array:
        data = pa.py_buffer(np.ascontiguousarray(keys))
        return pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(keys.dtype.itemsize), len(keys), [None, data]
        )

    rows = pc.fill_null(pc.index_in(pack(wanted), value_set=pack(kept_rows)), -1)
    return np.asarray(rows, dtype=np.int64)


class Ranges(NamedTuple):
    """Ranges [n] of characters with the numbers of their documents, -1 for no document."""

    document: IntArray
    start: IntArray
    end: IntArray


def find_overlaps(ranges: Ranges, chunks: Ranges) -> tuple[IntArray, IntArray]:
    """Return rows of `ranges` and of `chunks` that overlap, by range and then by place."""
    order = np.lexsort((chunks.start, chunks.document))
    document, low, high = (column[order] for column in chunks)
    width = int(max(high.max(initial=0), ranges.end.max(initial=0))) + 2
    # Search the furthest end so far, because chunks of a document may overlap.
    reach = np.maximum.accumulate(document * width + high)
    first = np.searchsorted(reach, ranges.document * width + ranges.start, side="right")
    last = np.searchsorted(document * width + low, ranges.document * width + ranges.end)
    counts = np.where(ranges.document < 0, 0, np.maximum(last - first, 0))
    row = np.repeat(np.arange(len(counts)), counts)
    at = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
    met = (low[at] < ranges.end[row]) & (ranges.start[row] < high[at])
    met &= document[at] == ranges.document[row]
    return row[met], order[at[met]]


def number(value: float) -> float | None:
    """Convert a figure for JSON: null for NaN and infinity, else twelve significant digits."""
    # Equal inputs give equal bytes.
    return float(f"{value:.12g}") if math.isfinite(value) else None
