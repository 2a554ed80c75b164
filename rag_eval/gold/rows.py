"""One row of a gold file: its fields taken out one by one, each checked, each fault named.

Belongs here: what an id, a text, a flag or an offset may be. Not here: which fields a file has.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from rag_eval.corpus.raw_documents import ACCEPTED_QUERY_ID, is_query_id
from rag_eval.gold.problem_list import ProblemList
from rag_eval.records.problems import quoted

MAX_NAME_CHARS = 1_000
MAX_TEXT_CHARS = 20_000
ACCEPTED_NAME = f"1 to {MAX_NAME_CHARS} characters, no control characters, no .. between slashes, no leading or trailing white space"

_NAME_FAULT = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ud800-\udfff]|(?:^|[/\\])\.\.(?:[/\\#]|$)|^\s|\s$"
)
_TEXT_FAULT = re.compile(r"[\x00\ud800-\udfff]")


def is_name(text: str) -> bool:
    """Whether a text may name a document or section. Slashes are fine, walking out of a folder is not."""
    return 0 < len(text) <= MAX_NAME_CHARS and not _NAME_FAULT.search(text)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A JSON object, where it stood, and where its faults go."""

    values: Mapping[str, Any]
    file: str
    line: int
    problems: ProblemList

    def fault(self, code: str, message: str, field: str, value: object, accepted: str) -> None:
        """Report one fault of this row."""
        found = None if value is None else quoted(value)
        self.problems.add(
            code,
            message,
            file=self.file,
            line=self.line,
            field=field,
            found=found,
            accepted=accepted,
        )

    def _string(self, key: str, accepted: str) -> str | None:
        if key not in self.values:
            self.fault("missing_key", f"{key} is missing", key, None, accepted)
            return None
        value = self.values[key]
        if not isinstance(value, str):
            self.fault("wrong_type", f"{key} must be a text", key, value, accepted)
            return None
        return value

    def identifier(self, key: str) -> str | None:
        """Take the id of a query or paraphrase, or None with a fault (`missing_key`, `wrong_type`, `bad_id`)."""
        value = self._string(key, ACCEPTED_QUERY_ID)
        if value is not None and not is_query_id(value):
            self.fault("bad_id", f"{key} is not an id", key, value, ACCEPTED_QUERY_ID)
            return None
        return value

    def name(self, key: str, field: str | None = None) -> str | None:
        """Take the name of a document or section, or None with a fault (`missing_key`, `wrong_type`, `bad_id`)."""
        value = self._string(key, ACCEPTED_NAME)
        if value is not None and not is_name(value):
            self.fault(
                "bad_id",
                f"{key} cannot name a document or section",
                field or key,
                value,
                ACCEPTED_NAME,
            )
            return None
        return value

    def text(self, key: str) -> str | None:
        """Take a text (may be empty), or None with a fault (`missing_key`, `wrong_type`, `bad_text`, `text_too_long`).

        Control characters other than NUL stay: people's keyboards put them into real questions, and lint mentions them.
        """
        value = self._string(key, "a text")
        if value is None:
            return None
        if len(value) > MAX_TEXT_CHARS:
            self.fault(
                "text_too_long",
                f"{key} is too long",
                key,
                f"{len(value)} characters",
                f"at most {MAX_TEXT_CHARS} characters",
            )
            return None
        if fault := _TEXT_FAULT.search(value):
            self.fault(
                "bad_text",
                f"{key} holds a character that no text file can keep",
                key,
                f"U+{ord(fault.group()):04X} at character {fault.start() + 1}",
                "Unicode text without NUL",
            )
            return None
        return value

    def optional_text(self, key: str) -> str:
        """Take a text, or the empty text where the key is absent or null."""
        return "" if self.values.get(key) is None else self.text(key) or ""

    def flag(self, key: str) -> bool | None:
        """Take true or false; None where the key is absent, or with a fault (`wrong_type`)."""
        value = self.values.get(key)
        if key in self.values and not isinstance(value, bool):
            self.fault(
                "wrong_type", f"{key} must be true or false", key, repr(value), "true, false"
            )
            return None
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Take a list of texts; empty where the key is absent, or with a fault (`wrong_type`)."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(
            isinstance(item, str) and not _TEXT_FAULT.search(item) for item in value
        ):
            self.fault(
                "wrong_type",
                f"{key} must be a list of texts",
                key,
                value,
                'a list such as ["setup", "limits"]',
            )
            return ()
        return tuple(value)

    def objects(self, key: str) -> list["Row"]:
        """Take the objects of a list, each as a row of the same line; empty where the key is absent, or with a fault (`wrong_type`)."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.fault(
                "wrong_type", f"{key} must be a list of objects", key, value, f"{key}: [{{...}}]"
            )
            return []
        return [Row(item, self.file, self.line, self.problems) for item in value]

    def offsets(self) -> tuple[int, int] | None:
        """Take `start` and `end` in characters, or None with a fault (`wrong_type`, `bad_offsets`, `bad_unit`)."""
        accepted = "whole numbers with 0 <= start < end"
        start, end = self.values.get("start"), self.values.get("end")
        if self.values.get("unit", "char") != "char":
            self.fault("bad_unit", "offsets count characters", "unit", self.values["unit"], "char")
            return None
        if type(start) is not int or type(end) is not int:
            self.fault(
                "wrong_type",
                "start and end must be whole numbers",
                "start",
                f"start {start!r}, end {end!r}",
                accepted,
            )
            return None
        if not 0 <= start < end < 2**62:
            self.fault(
                "bad_offsets",
                "the offsets name no text",
                "start",
                f"start {start}, end {end}",
                accepted,
            )
            return None
        return start, end
