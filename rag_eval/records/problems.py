"""Errors about input: every one names file, line, field, what was found and what is accepted.

Belongs here: `Problem`, `InputError` and the limits on what is quoted back to a person. Not here: who looks for problems.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Literal

MAX_QUOTED_CHARS = 120
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]")


def quoted(value: object, limit: int = MAX_QUOTED_CHARS) -> str:
    """Untrusted text made safe for one line of a log or a terminal: controls escaped, length bounded."""
    text = value if isinstance(value, str) else repr(value)
    head = _CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", text[:limit])
    return f"{head}… ({len(text)} characters)" if len(text) > limit else head


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input.

    Parameters
    ----------
    code
        Stable machine name (`duplicate_id`, `dangling_target`, ...).
    message
        One sentence for a person. Untrusted text in it goes through `quoted`.
    file, line, field
        Where: a path, a line counted from 1, and a key or column; None where it does not apply.
    found, accepted
        What stood there and what may stand there.
    severity
        An error blocks the run, a warning is shown.
    """

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    field: str | None = None
    found: str | None = None
    accepted: str | None = None
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        """One line: `file:line: error code [field]: message (found ..., accepted ...)`."""
        place = ":".join(
            quoted(part, 400) if isinstance(part, str) else str(part)
            for part in (self.file, self.line)
            if part is not None
        )
        field = f" [{quoted(self.field)}]" if self.field is not None else ""
        detail = [
            f"{name}: {quoted(value, 400)}"
            for name, value in (("found", self.found), ("accepted", self.accepted))
            if value is not None
        ]
        tail = f" ({'; '.join(detail)})" if detail else ""
        return f"{place + ': ' if place else ''}{self.severity} {self.code}{field}: {self.message}{tail}"


class InputError(Exception):
    """Input cannot be used; carries every problem found, not only the first."""

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (
            (problems,) if isinstance(problems, Problem) else tuple(problems)
        )
        super().__init__("\n".join(str(problem) for problem in self.problems))
