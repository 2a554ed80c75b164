"""The rules for ids, grades and columns, which every reader applies.

An id is only a name in tables. An id never becomes a path, so an id may look like one.
"""

import numbers
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from rag_eval.core.errors import refuse

MAX_ID_CHARS: Final = 1000
MAX_GRADE: Final = 1000
ACCEPTED_ID: Final = (
    f"a text of 1 to {MAX_ID_CHARS} characters without control characters, or a whole number"
)
ACCEPTED_GRADE: Final = (
    f"a whole number from -{MAX_GRADE} to {MAX_GRADE}, such as 1 or 1.0; below 0 counts as 0"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,4}(?:\.0{0,20})?")


def read_id(value: object) -> str | None:
    """Return an id as text without outer white space; None for a value that is no id.

    Whole numbers of Python and NumPy serve as ids. A float does not, because 1.0 may stand for the
    texts 1 and 1.0.
    """
    if isinstance(value, str):
        text = value.strip()
        return text if 0 < len(text) <= MAX_ID_CHARS and not _CONTROL.search(text) else None
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return str(value) if is_whole else None


def _read_grade(value: object) -> int | None:
    """Return a relevance grade, 0 for a negative number; None for a value that is no grade."""
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    number: Any = value
    is_grade = -MAX_GRADE <= number <= MAX_GRADE and number == int(number)
    return max(int(number), 0) if is_grade else None


class Rule(NamedTuple):
    """A rule of a field: its function, which returns None for a refused value, and its error."""

    read: Callable[[object], Any]
    code: str
    message: str
    accepted: str

    def check(self, value: object) -> Any:
        """Return the value as the rule reads it; raise the error of a pydantic validator."""
        read = self.read(value)
        if read is None:
            raise refuse(self.code, self.message, self.accepted)
        return read


ID: Final = Rule(read_id, "bad_id", "this is not an id", ACCEPTED_ID)
GRADE: Final = Rule(_read_grade, "bad_grade", "this is not a relevance grade", ACCEPTED_GRADE)
COLUMN_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "query_id": ("query_id", "query-id", "qid", "q_id"),
    "doc_id": ("doc_id", "doc-id", "docno", "corpus-id", "corpus_id", "item_id", "docid"),
    "score": ("score",),
    "relevance": ("relevance", "label", "gain", "rel", "score"),
}
"""Accepted names of each column: ours, ir-measures', PyTerrier's and BEIR's. The first one wins."""


def find_column(column: str, names: Iterable[object]) -> int | None:
    """Return the place of a column of COLUMN_NAMES in a header; a name in capitals counts too."""
    exact = [str(name).strip() for name in names]
    for header in (exact, [name.lower() for name in exact]):
        for name in COLUMN_NAMES[column]:
            if name in header:
                return header.index(name)
    return None


# ---- Ids in TREC files, whose columns are separated by white space.

_ENCODED: Final = (" ", "%", '"')


def encode_id(text: str) -> str:
    """Percent-encode white space, controls, quotes and percent signs: `my%20notes.md`."""
    if text.isprintable() and not any(char in text for char in _ENCODED):
        return text  # the usual case
    return "".join(
        char
        if char.isprintable() and not char.isspace() and char not in _ENCODED
        else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in text
    )


def decode_id(text: str) -> str:
    """Undo `encode_id`; a text that `encode_id` never writes, such as `5% off`, stays as it is."""
    plain = urllib.parse.unquote(text) if "%" in text else text
    return plain if encode_id(plain) == text else text
