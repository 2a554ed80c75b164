"""Types of arrays: one name for each element type."""

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
