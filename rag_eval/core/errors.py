"""Faults of inputs: the record of a fault, the error that carries faults, and their list."""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

if TYPE_CHECKING:
    from pydantic import BeforeValidator
    from pydantic_core import PydanticCustomError

Severity = Literal["error", "warning"]

MAX_QUOTED_CHARS = 120
OUTAGES = frozenset({"database_failed", "home_unreachable"})
"""Codes of problems with a server of the home."""
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ud800-\udfff]"
)


def quoted(value: object, limit: int = MAX_QUOTED_CHARS) -> str:
    """Make untrusted text safe for one line of a log: escape controls, bound the length."""
    text = value if isinstance(value, str) else repr(value)
    head = _CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", text[:limit])
    return f"{head}… ({len(text)} characters)" if len(text) > limit else head


def format_count(number: int, noun: str) -> str:
    """Write a number with its noun, as `1 run` and `1,200 queries`."""
    if number != 1:
        noun = f"{noun[:-1]}ies" if re.search("[^aeiou]y$", noun) else f"{noun}s"
    return f"{number:,} {noun}"


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One fault of an input: the error, its place, the found value and the accepted values.

    `code` is a stable machine name. Untrusted text in `message` goes through `quoted`. `line`
    counts from 1. An error blocks the run, a warning is shown.
    """

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    field: str | None = None
    found: str | None = None
    accepted: str | None = None
    severity: Severity = "error"

    def __str__(self) -> str:
        """Return `file:line: error code [field]: message (found: ...; accepted: ...)`, one line."""
        file = None if self.file is None else quoted(self.file, 400)
        place = "".join(f"{part}:" for part in (file, self.line) if part is not None)
        field = f" [{quoted(self.field)}]" if self.field is not None else ""
        detail = "; ".join(
            f"{name}: {quoted(value, 400)}"
            for name, value in (("found", self.found), ("accepted", self.accepted))
            if value is not None
        )
        tail = f" ({detail})" if detail else ""
        return f"{place}{' ' * bool(place)}{self.severity} {self.code}{field}: {self.message}{tail}"


_PLACES = 3
"""Largest number of places that a line of a group of problems names besides the first."""


def grouped(problems: Iterable[Problem]) -> Iterator[str]:
    """Yield a line for the problems of each code: the first of them, their number and places."""
    groups: dict[str, list[Problem]] = {}
    for problem in problems:
        groups.setdefault(problem.code, []).append(problem)
    for first, *others in groups.values():
        places = [
            f"line {other.line}"
            if other.file == first.file
            else f"{quoted(other.file)}:{other.line}"
            for other in others[:_PLACES]
            if other.line is not None
        ]
        shown = ", ".join(places + ["..."] * (len(others) > _PLACES))
        also = f"; {len(others)} more of this kind: {shown}" if others else ""
        yield f"{first}{also}".rstrip(": ")


class Place(TypedDict, total=False):
    """Optional parts of a problem."""

    line: int | None
    field: str | None
    found: str | None
    accepted: str | None
    severity: Severity


class InputError(Exception):
    """The input cannot be used. The error carries every problem, not only the first."""

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (
            (problems,) if isinstance(problems, Problem) else tuple(problems)
        )
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def of(
        cls, code: str, message: str, file: object = None, **more: Unpack[Place]
    ) -> "InputError":
        """Make the error of one problem; the parameters are those of `Problem`."""
        return cls(Problem(code, message, None if file is None else str(file), **more))

    @property
    def is_outage(self) -> bool:
        """Whether a server of the home did not answer, so that a later try may succeed."""
        return all(problem.code in OUTAGES for problem in self.problems)


MAX_WHO, MAX_WHY = 200, 2000


def check_decision(who: str, why: str) -> tuple[str, str]:
    """Return the name and reason of a person without outer white space.

    Raises InputError if one is empty, too long, or no text on one line.
    """
    for option, text, limit in (("--who", who, MAX_WHO), ("--why", why, MAX_WHY)):
        # Bytes outside UTF-8 on the command line become surrogates, which are not printable.
        if not text.strip() or len(text) > limit or not text.strip().isprintable():
            raise InputError.of(
                "bad_arguments",
                f"{option} needs text: the record of the decision holds it",
                field=option,
                found=f"{len(text)} characters",
                accepted=f"1 to {limit} characters on one line",
            )
    return who.strip(), why.strip()


MAX_LISTED = 100
"""Largest number of listed problems of one severity. Further problems are only counted."""


class ProblemList:
    """Problems in the order of `add`; at most `MAX_LISTED` of each severity are kept."""

    def __init__(self) -> None:
        self._kept: list[Problem] = []
        self._counts: Counter[Severity] = Counter()

    def add(self, code: str, message: str, file: object = None, **more: Unpack[Place]) -> None:
        """Add one problem; the parameters are those of `Problem`."""
        self.extend([Problem(code, message, None if file is None else str(file), **more)])

    def extend(self, problems: Iterable[Problem]) -> None:
        """Add problems."""
        for problem in problems:
            self._counts[problem.severity] += 1
            if self._counts[problem.severity] <= MAX_LISTED:
                self._kept.append(problem)

    @property
    def n_errors(self) -> int:
        """Number of errors found, listed or not."""
        return self._counts["error"]

    def listed(self) -> tuple[Problem, ...]:
        """Return every kept problem, then one `more_problems` for each severity that was cut."""
        more = [
            Problem(
                "more_problems",
                f"{count - MAX_LISTED} more {severity}s are not listed; mend these first",
                severity=severity,
            )
            for severity, count in self._counts.items()
            if count > MAX_LISTED
        ]
        return (*self._kept, *more)

    def raise_errors(self) -> None:
        """Raise `InputError` with all kept problems if at least one of them is an error."""
        if self.n_errors:
            raise InputError(self.listed())


# ---- Errors of validators of pydantic models.


def refuse(code: str, message: str, accepted: str, field: str = "") -> "PydanticCustomError":
    """Make the error that a validator raises: code, sentence and accepted values.

    `field` names the faulty key if the validator checks several keys.
    """
    from pydantic_core import PydanticCustomError

    context = {"accepted": accepted, "field": field, "sentence": message}
    return PydanticCustomError(code, "{sentence}", context)


def require(
    holds: Callable[[str], object], code: str, message: str, accepted: str
) -> "BeforeValidator":
    """Make a validator that refuses texts for which `holds` is false; other types pass on."""
    from pydantic import BeforeValidator

    def check(value: object) -> object:
        if isinstance(value, str) and not holds(value):
            raise refuse(code, message, accepted)
        return value

    return BeforeValidator(check)
