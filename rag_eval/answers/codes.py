"""Codes of broken contract rules, event lines of a run, and patterns with a time limit."""

import itertools
import json
import math
import re
import time
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final, NamedTuple

from rag_eval.core.types import SNIPPET_CHARS
from rag_eval.corpus.masking import mask

# ---- Codes


class CodeInfo(NamedTuple):
    """Meaning and remedy of a code."""

    meaning: str
    fix: str


CODES: Final[dict[str, CodeInfo]] = {
    code: CodeInfo(**info)
    for code, info in json.loads(
        files("rag_eval.answers").joinpath("codes.json").read_text("utf-8")
    ).items()
}
"""Every code, in the order of the rules."""

PROVENANCE: Final[frozenset[str]] = frozenset({"unknown_snippet", "path_not_in_evidence"})
"""Codes that start an adaptive rerun, because more evidence can mend the answer."""


class Fault(NamedTuple):
    """A broken rule of the contract, with a message for the model and the log."""

    code: str
    message: str


# ---- Events of a run as log lines `event=<name> key=value ...` that no value can break or forge

Value = str | int | float | bool | None
_MAX_MASKED_CHARS = 20_000
_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+,#%-]+")


def _format_value(key: str, value: Value) -> str:
    """Format a plain value bare, any other value as a JSON string with `=` escaped too."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if not isinstance(value, str):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    # ids are not masked, because people search for them; other text may repeat a source
    text = value if key.endswith("_id") else mask(value[:_MAX_MASKED_CHARS]).text
    text = text if len(text) <= SNIPPET_CHARS else f"{text[: SNIPPET_CHARS - 3]}..."
    if _PLAIN.fullmatch(text):
        return text
    return json.dumps(text).replace("=", "\\u003d").replace("\x7f", "\\u007f")


class Events:
    """Collects event lines: ASCII, with personal data masked and long values cut."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: str, **fields: Value) -> None:
        r"""Record one event.

        Examples
        --------
        >>> log = Events()
        >>> log.add("question.done", query_id="q 1", message="a\nevent=run.start")
        >>> log.lines
        ['event=question.done query_id="q 1" message="a\\nevent\\u003drun.start"']
        """
        parts = [f"{key}={_format_value(key, value)}" for key, value in fields.items()]
        self.lines.append(" ".join([f"event={name}", *parts]))


# ---- Regular expressions of gold sets, with limits of size and time

SECONDS = 2.0
"""Time limit of one pattern over all texts of a call."""
MAX_REPEATS = 100_000
_COUNTS = re.compile(r"\{(?:\d*,)?(\d+)")


class PatternTimeoutError(Exception):
    """A pattern ran out of time."""


class TimedPattern:
    """A pattern in the syntax of the `regex` package, with a time limit for its searches.

    Raises ValueError for a pattern that does not compile. Also raises ValueError if the repeats of
    the pattern multiply to over 100,000, because compiling the pattern would take seconds.
    """

    def __init__(self, pattern: str) -> None:
        import regex  # type: ignore[import-untyped]  # the package has no types; not in the core

        self.pattern = pattern
        repeats = math.prod(int(count[:9]) or 1 for count in _COUNTS.findall(pattern))
        if repeats > MAX_REPEATS:
            raise ValueError(f"pattern {pattern!r}: repeat counts multiply to over {MAX_REPEATS}")
        try:
            self._compiled: Any = regex.compile(pattern)
        except (regex.error, RecursionError, OverflowError, ValueError) as error:
            raise ValueError(f"pattern {pattern!r} does not compile: {error}") from None

    def count_in(
        self, texts: Sequence[str], at_most: int | None = None, seconds: float = SECONDS
    ) -> list[int]:
        """Count the matches in each text; raises PatternTimeoutError over all texts."""
        ends, counts = time.monotonic() + seconds, []
        try:
            for text in texts:
                left = max(ends - time.monotonic(), 1e-9)
                matches = self._compiled.finditer(text, timeout=left)
                counts.append(sum(1 for _ in itertools.islice(matches, at_most)))
        except TimeoutError:
            message = f"pattern {self.pattern!r} took longer than {seconds:g} s"
            raise PatternTimeoutError(message) from None
        return counts
