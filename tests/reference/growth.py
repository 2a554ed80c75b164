"""How processor time grows with the size of an input."""

import gc
import time
from collections.abc import Callable

TOO_SHORT = 0.02
"""Seconds below which a ratio depends more on the machine than on the code."""


def _seconds(run: Callable[[object], object], value: object, repeats: int) -> float:
    taken = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            started = time.process_time()
            run(value)
            taken.append(time.process_time() - started)
    finally:
        gc.enable()
    return min(taken)


def growth(
    run: Callable[[object], object],
    make: Callable[[int], object],
    small: int,
    large: int,
    repeats: int = 2,
) -> float:
    """Return seconds for make(large) over seconds for make(small).

    Returns 0 when make(large) takes less than TOO_SHORT seconds.

    A busy machine can only add time, so the least of several runs counts.
    """
    run(make(small // 8))
    slow = _seconds(run, make(large), repeats)
    return 0.0 if slow < TOO_SHORT else slow / _seconds(run, make(small), repeats + 1)
