"""Where readers of gold files put what they find: a bounded list, so that one bad file of a million lines stays readable.

Belongs here: collecting and the cap. Not here: what counts as a problem.
"""

from collections.abc import Iterable
from typing import Literal

from rag_eval.records.problems import InputError, Problem

MAX_LISTED = 100
"""Problems listed one by one; the rest is counted."""


def _printable(text: str | None) -> str | None:
    """Lone surrogates escaped: a terminal cannot print them."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode("utf-8")


class ProblemList:
    """Problems in the order in which they were found, at most `MAX_LISTED` of each severity kept and the others counted."""

    def __init__(self) -> None:
        self._kept: list[Problem] = []
        self._counts: dict[str, int] = {"error": 0, "warning": 0}

    def add(
        self,
        code: str,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        found: str | None = None,
        accepted: str | None = None,
        severity: Literal["error", "warning"] = "error",
    ) -> None:
        """Add one problem; the parameters are those of `Problem`."""
        self._counts[severity] += 1
        if self._counts[severity] <= MAX_LISTED:
            file, field, found = _printable(file), _printable(field), _printable(found)
            self._kept.append(
                Problem(
                    code, _printable(message) or "", file, line, field, found, accepted, severity
                )
            )

    def extend(self, problems: Iterable[Problem]) -> None:
        """Add problems that were made elsewhere."""
        for problem in problems:
            self._counts[problem.severity] += 1
            if self._counts[problem.severity] <= MAX_LISTED:
                self._kept.append(problem)

    @property
    def n_errors(self) -> int:
        """Number of errors found, listed or not."""
        return self._counts["error"]

    def listed(self) -> tuple[Problem, ...]:
        """Every kept problem, then one `more_problems` for each severity that was cut short."""
        more = [
            Problem(
                "more_problems",
                f"{count - MAX_LISTED} more {severity}s are not listed; mend these first",
                severity="error" if severity == "error" else "warning",
            )
            for severity, count in self._counts.items()
            if count > MAX_LISTED
        ]
        return (*self._kept, *more)

    def raise_errors(self) -> None:
        """Raise `InputError` with everything found when at least one problem is an error."""
        if self.n_errors:
            raise InputError(self.listed())
