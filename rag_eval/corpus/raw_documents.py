"""What a loader hands to `loading`: documents as they stand in the source, before masking; and the rules for ids and problem lists.

Belongs here: what all loaders share. Reading a format is the loader's own file.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rag_eval.records.problems import InputError, Problem

MAX_PROBLEMS = 100
MAX_ID_CHARS = 1000
_BAD_ID = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_TRAVERSAL = re.compile(r"(?:^|[/\\])\.\.(?:[/\\]|$)|^[/\\]|^[A-Za-z]:[/\\](?![/\\])")
MAX_QUERY_ID_CHARS = 200
ACCEPTED_QUERY_ID = f"1 to {MAX_QUERY_ID_CHARS} characters, no white space, no control characters, no / or \\, not . or .."
_QUERY_ID = re.compile(
    rf"[^\s/\\\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ud800-\udfff]{{1,{MAX_QUERY_ID_CHARS}}}"
)
ACCEPTED_ID = f"a string of 1 to {MAX_ID_CHARS} characters without control characters, `..` path parts or a leading slash"


class RawDocument(NamedTuple):
    """A document as the source has it.

    `kind` is numpydoc, markdown, text or passages; `names` are other names, without the doc_id; an empty `rev` stands for the content hash;
    `dirty` says that the content differs from what `rev` names; `body_start` is the character after the front matter; `section_id`
    names the only section where the source gives one; `passages` are (section_id, start, end) where all that is known of the document
    are passages; `line` is where the document stands in its file, for messages; `author` and `date` (YYYY-MM-DD) are what the source says of
    them, empty where it says nothing; `source` is the document's bytes as its source gives them, which manifests and signatures are about.
    """

    doc_id: str
    title: str
    text: str
    source_url: str
    kind: str
    rev: str = ""
    dirty: bool = False
    names: tuple[str, ...] = ()
    body_start: int = 0
    section_id: str | None = None
    passages: tuple[tuple[str, int, int], ...] = ()
    file: str | None = None
    line: int | None = None
    author: str = ""
    date: str = ""
    source: bytes = b""


@dataclasses.dataclass(frozen=True, slots=True)
class RawCorpus:
    """All documents of a source, the revision of the whole (empty = hash of the contents, dirty = revision plus that hash), and how many dates could not be read."""

    documents: Sequence[RawDocument]
    rev: str = ""
    dirty: bool = False
    unreadable_dates: int = 0


class Problems:
    """Collects problems: the first hundred are listed, the rest counted."""

    def __init__(self) -> None:
        self.listed: list[Problem] = []
        self.unlisted = 0

    def add(self, problem: Problem) -> None:
        """Keep a problem, or count it when the list is full."""
        if len(self.listed) < MAX_PROBLEMS:
            self.listed.append(problem)
        else:
            self.unlisted += 1

    def raise_if_any(self) -> None:
        """Raise `InputError` with all that was found."""
        if self.unlisted:
            self.listed.append(
                Problem(
                    "more_problems",
                    f"{self.unlisted} more problems are not listed; correct these first",
                )
            )
            self.unlisted = 0
        if self.listed:
            raise InputError(self.listed)


def is_query_id(text: str) -> bool:
    """Whether a text may be the id of a query or paraphrase: safe as a file name, in a log line and in a TREC file."""
    return bool(_QUERY_ID.fullmatch(text)) and text not in {".", ".."}


def id_fault(value: object) -> tuple[str, str] | None:
    """Problem code and sentence if this cannot be a document's id, else None."""
    if not isinstance(value, str):
        return (
            ("missing_id", "the document has no id")
            if value is None
            else ("bad_id", "the id is not a string")
        )
    if not value.strip():
        return "missing_id", "the id is empty"
    if len(value) > MAX_ID_CHARS or _BAD_ID.search(value):
        return "bad_id", "the id is too long or has control characters"
    if _TRAVERSAL.search(value):
        return "path_traversal", "the id would lead out of a folder"
    return None


def resolve(path: str, base: Path) -> Path:
    """Path of a configuration, relative to the gold set's folder."""
    return (base / path).absolute()


def missing(shown: str, accepted: str, field: str = "corpus.path") -> InputError:
    """Error for an input that is not there; `shown` is the path as the configuration has it."""
    return InputError(
        Problem(
            "missing_input", "the corpus was not found", field=field, found=shown, accepted=accepted
        )
    )


def text_faults(title: object, text: object) -> Iterator[tuple[str, str, str]]:
    """Field, code and sentence for every reason why these cannot be a document's title and text."""
    for name, value in (("title", title), ("text", text)):
        if not isinstance(value, str):
            yield (
                name,
                ("missing_text" if value is None else "bad_type"),
                f"the {name} is not a string",
            )
        elif "\x00" in value:
            yield name, "nul_byte", f"the {name} holds a NUL byte"
