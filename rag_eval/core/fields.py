"""The rules for ids, grades and titles, which every reader applies, and types of fields.

An id is only a name in tables. An id never becomes a path, so an id may look like one.
"""

import numbers
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rag_eval.core.errors import refuse, require

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

    Examples
    --------
    >>> read_id(7), read_id(" 007 "), read_id("/data/a.md"), read_id(True), read_id(1.0)
    ('7', '007', '/data/a.md', None, None)
    """
    if isinstance(value, str):
        text = value.strip()
        return text if 0 < len(text) <= MAX_ID_CHARS and not _CONTROL.search(text) else None
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return str(value) if is_whole else None


def _read_grade(value: object) -> int | None:
    """Return a relevance grade, 0 for a negative number; None for a value that is no grade.

    Examples
    --------
    >>> _read_grade(2), _read_grade("1.0"), _read_grade(-2), _read_grade(0.5), _read_grade(True)
    (2, 1, 0, None, None)
    """
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
        found = self.read(value)
        if found is None:
            raise refuse(self.code, self.message, self.accepted)
        return found


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
    """Return the place of a column of COLUMN_NAMES in a header; a name in capitals counts too.

    Examples
    --------
    >>> find_column("doc_id", ["Query-ID", "Corpus-ID"]), find_column("score", ["Score", "score"])
    (1, 1)
    """
    exact = [str(name).strip() for name in names]
    spellings = (exact, [name.lower() for name in exact])
    places = (
        spelling.index(name)
        for spelling in spellings
        for name in COLUMN_NAMES[column]
        if name in spelling
    )
    return next(places, None)


# ---- Ids in TREC files, whose columns are separated by white space.

_ENCODED: Final = (" ", "%", '"')


def encode_id(text: str) -> str:
    """Percent-encode white space, controls, quotes and percent signs of an id.

    Examples
    --------
    >>> encode_id("my notes.md"), encode_id("100%"), encode_id("überblick/a.md")
    ('my%20notes.md', '100%25', 'überblick/a.md')
    """
    if text.isprintable() and not any(char in text for char in _ENCODED):
        return text
    return "".join(
        char
        if char.isprintable() and not char.isspace() and char not in _ENCODED
        else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in text
    )


def decode_id(text: str) -> str:
    """Undo `encode_id`; a text that `encode_id` never writes stays as it is.

    Examples
    --------
    >>> decode_id("my%20notes.md"), decode_id("https://example.org/a%2Fb"), decode_id("5% off")
    ('my notes.md', 'https://example.org/a%2Fb', '5% off')
    """
    plain = urllib.parse.unquote(text) if "%" in text else text
    return plain if encode_id(plain) == text else text


# ---- Types of fields that models of rows, of the settings and of `gold_set.yaml` share.

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME)]

Id = Annotated[str, BeforeValidator(ID.check)]
"""The id of a question, wording, document, section or passage, as a field of a row."""
Grade = Annotated[int, BeforeValidator(GRADE.check)]
"""A relevance grade, as a field of a row."""
PlainText = Annotated[
    str,
    require(
        lambda text: "\x00" not in text,
        "nul_byte",
        "the text holds a NUL byte",
        "a string without NUL bytes",
    ),
]
"""A text of any length, as a field of a row."""
Title = Annotated[PlainText, BeforeValidator(lambda value: "" if value is None else value)]
"""A title, as a field of a row; null is an empty title."""

ConfigValue = str | int | float | bool
BUILT_IN_MODEL = re.compile(
    r"lsa-[1-9]\d{0,3}|all-MiniLM-L6-v2|chroma:(?:default|onnx_mini_lm_l6_v2)"
)
"""Models that compute on this machine and need no configuration."""
MODELS = (
    "lsa-<dimensions>, all-MiniLM-L6-v2, chroma:default, chroma:onnx_mini_lm_l6_v2, "
    "or the name of an entry of `embeddings` in settings.toml"
)
NAME_AN_ENTRY = "name an entry of `embeddings` in settings.toml"


class Part(BaseModel):
    """A part of `gold_set.yaml`; unknown keys are refused, and the fields cannot be set."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Embedding(Part):
    """Turns texts into vectors: a built-in model, an entry of the settings, or a file of vectors.

    A gold set comes from a stranger, so it gives no `config`: a configuration can hold an address
    or the name of an environment variable. Only `from_settings` fills it.
    """

    model: str | None = Field(default=None, description=MODELS)
    config: dict[str, ConfigValue] = Field(default_factory=dict)
    vectors: str | None = Field(
        default=None, description="an .npz file with `sha256` and `vectors`"
    )

    @classmethod
    def from_settings(cls, function: str, config: Mapping[str, ConfigValue]) -> "Embedding":
        """Make the embedding of a Chroma function that the settings configure."""
        return Embedding.model_construct(
            model=f"chroma:{function}", config=dict(config), vectors=None
        )

    @property
    def is_named(self) -> bool:
        """Whether `model` is the name of an entry of the settings."""
        return (
            self.model is not None
            and re.fullmatch(NAME, self.model) is not None
            and (BUILT_IN_MODEL.fullmatch(self.model) is None)
        )

    @model_validator(mode="before")
    @classmethod
    def _has_no_config(cls, data: object) -> object:
        if isinstance(data, Mapping) and (unknown := data.keys() - {"model", "vectors"}):
            reason = "a gold set gives no address, key, variable or configuration"
            raise ValueError(f"{min(unknown)}: {reason}; {NAME_AN_ENTRY}")
        return data

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.model is None) == (self.vectors is None):
            raise ValueError("give either model or vectors")
        if (
            self.model is not None
            and BUILT_IN_MODEL.fullmatch(self.model) is None
            and (not self.is_named or self.model.startswith("lsa-"))
        ):
            raise ValueError(f"accepted models: {MODELS}")
        return self
