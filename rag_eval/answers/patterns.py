"""Regular expressions of gold sets: compiled within limits, run under a time limit.

Belongs here: the limits. `regex` is used because the standard library's engine cannot be stopped.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import regex  # type: ignore[import-untyped]  # the package has no types

SECONDS = 2.0
"""Time that one pattern may take over everything it is run on in one call."""
MAX_REPEATS = 100_000
_T = TypeVar("_T")
_COUNTS = re.compile(r"\{(?:\d*,)?(\d+)")


class BadPatternError(ValueError):
    """A pattern does not compile, or repeats so often that compiling alone would take seconds."""


class PatternTimeoutError(Exception):
    """A pattern ran out of time."""

    def __init__(self, pattern: str, seconds: float) -> None:
        super().__init__(f"pattern {pattern!r} took longer than {seconds:g} s")
        self.pattern = pattern


class TimedPattern:
    """A compiled pattern whose searches end in time.

    Parameters
    ----------
    pattern
        In the syntax of the `regex` package.
    ignore_case
        Whether `a` matches `A`.

    Raises
    ------
    BadPatternError
        It does not compile or its repeat counts multiply to over 100,000.
    """

    def __init__(self, pattern: str, *, ignore_case: bool = False) -> None:
        self.pattern = pattern
        if (
            math.prod(int(count[:9]) for count in _COUNTS.findall(pattern) if int(count[:9]))
            > MAX_REPEATS
        ):
            raise BadPatternError(
                f"pattern {pattern!r}: repeat counts multiply to over {MAX_REPEATS}"
            )
        try:
            self._compiled: Any = regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
        except (regex.error, RecursionError, OverflowError, ValueError) as error:
            raise BadPatternError(f"pattern {pattern!r} does not compile: {error}") from None

    def count(self, text: str, seconds: float = SECONDS) -> int:
        """Count the matches that do not overlap; raises PatternTimeoutError."""

        def matches() -> int:
            return sum(1 for _ in self._compiled.finditer(text, timeout=seconds))

        return self._timed(matches, seconds)

    def found_in(self, texts: Sequence[str], seconds: float = SECONDS) -> list[int]:
        """Places of the texts that match, rising; the time limit is for all of them. Raises PatternTimeoutError."""

        def places() -> Iterable[int]:
            search, ends = self._compiled.search, time.monotonic() + seconds
            for place, text in enumerate(texts):
                left = ends - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                if search(text, timeout=left) is not None:
                    yield place

        return self._timed(lambda: list(places()), seconds)

    def _timed(self, run: Callable[[], _T], seconds: float) -> _T:
        try:
            return run()
        except TimeoutError:
            raise PatternTimeoutError(self.pattern, seconds) from None
