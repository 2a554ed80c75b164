"""Loaders of a corpus, as `gold_set.yaml` configures them, and the only list of them.

A loader is a subclass of `Loader` in a file of its own. Other code calls its methods and never
tests its class, so that another package can add a loader by an entry point.
"""

import dataclasses
import functools
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from rag_eval.core.errors import ProblemList
from rag_eval.core.parts import AnyClass, Part, load_classes

LOADERS: Final[Mapping[str, str]] = {
    "package_docs": "rag_eval.corpus.loaders.package_docs:PackageDocs",
    "folder": "rag_eval.corpus.loaders.folder:Folder",
    "beir": "rag_eval.corpus.loaders.beir:Beir",
    "hf_datasets": "rag_eval.corpus.loaders.hf_datasets:HuggingFace",
    "parquet": "rag_eval.corpus.loaders.parquet:Parquet",
    "recorded": "rag_eval.corpus.loaders.recorded:Recorded",
}
"""Loaders of this package: name -> class, loaded when a configuration is read."""
SHARD_DOCUMENTS: Final = 10_000
"""Most documents of an automatic shard, on average."""
GROUP: Final = "rag_eval.loaders"
"""Entry points by which other packages add loaders. The name of the entry point is the loader."""


class Chunker(Part):
    """How documents are cut into chunks.

    `whole` keeps a document as one chunk; `sentence` makes one chunk of each sentence.
    """

    kind: Literal["numpydoc", "markdown", "text", "sentence", "whole"]
    """Format that decides where a text may be cut."""
    max_tokens: int = Field(default=256, ge=8, le=100_000)
    """Longest chunk in words; each character of a script without blanks counts as a word."""
    overlap: int = Field(default=0, ge=0)
    """Tokens repeated from the end of the chunk before (kinds text and markdown)."""

    @model_validator(mode="after")
    def _overlap_is_smaller(self) -> Self:
        if self.overlap >= self.max_tokens:
            raise ValueError("overlap must be smaller than max_tokens")
        return self


class RawDocument(NamedTuple):
    """A document as its source has it, before masking."""

    doc_id: str
    title: str
    text: str
    source_url: str
    kind: str
    """Format of the text: numpydoc, markdown, rst, text, passages, or pages between form feeds."""
    source: bytes
    """Unchanged bytes of the source, which manifests hash."""
    rev: str = ""
    """Revision of the document; empty stands for the content hash."""
    is_dirty: bool = False
    """Whether the content differs from the revision `rev`."""
    names: tuple[str, ...] = ()
    """Other names of the document, without its doc_id."""
    body_start: int = 0
    """Position of the first character after the front matter, from 0."""
    section_id: str | None = None
    """Id of the only section; None where the source names no section."""
    passages: tuple[tuple[str, int, int], ...] = ()
    """(section_id, start, end) of each passage, if only passages of the document are known."""
    place: str = ""
    """`file` or `file:line` where the document stands, for messages."""
    author: str = ""
    date: str = ""
    """Date as YYYY-MM-DD; empty where the source gives no date."""
    page: str = ""
    """Page of the source where the document starts; empty where the source names none."""


@dataclasses.dataclass(frozen=True, slots=True)
class RawCorpus:
    """All documents of a source."""

    documents: Sequence[RawDocument]
    rev: str = ""
    """Revision of the corpus; empty stands for the hash of the contents."""
    is_dirty: bool = False
    """Whether the content differs from the revision `rev`, so that the hash is shown too."""


class Loader(Part):
    """Configuration of a corpus. Each loader is a subclass with its own fields."""

    loader: str
    chunker: Chunker
    mask_pii: bool = True
    """Whether personal data is masked before texts are stored."""

    has_whole_documents: ClassVar[bool] = True
    """Whether whole documents are known, not only their retrieved parts."""

    @abstractmethod
    def identity(self, base: Path) -> Sequence[str]:
        """Return texts that identify the content of the input of `read`, without parsing the input.

        Raises `InputError` if the input is missing.
        """

    @abstractmethod
    def read(self, base: Path) -> RawCorpus:
        """Read the documents; relative paths start from `base`, the gold set's folder.

        Raises `InputError` with every problem of the input.
        """

    def files(self) -> dict[tuple[str | int, ...], str]:
        """Return the paths that the configuration names, by field."""
        return {}

    def distributions(self) -> dict[tuple[str | int, ...], str]:
        """Return the installed distributions whose code `read` imports, by field.

        Raises `InputError` if one is not installed.
        """
        return {}

    def links(self, base: Path) -> Iterator[Path]:
        """Yield the symbolic links that `read` would follow."""
        del base
        yield from ()

    def gold_folder(self, base: Path) -> Path | None:
        """Return the folder of questions and judgements beside the documents; None without one."""
        del base
        return None


def is_address(path: str) -> bool:
    """Tell whether a path is the address of an object store, such as `s3://bucket/corpus`."""
    return "://" in path


class PathLoader(Loader):
    """Configuration of a corpus at one path."""

    path: str
    """File or folder, relative to the gold set's folder."""

    def files(self) -> dict[tuple[str | int, ...], str]:
        """Return the path, by field."""
        return {("path",): self.path}


class ShardedLoader(Loader):
    """Configuration of a corpus that can be read in batches and cut into shards."""

    shards: Annotated[int, Field(ge=1, le=100_000)] | Literal["auto", False] = Field(
        default="auto",
        description="number of parts that are read, cut and screened on their own; `auto`: parts "
        f"of up to {SHARD_DOCUMENTS:,} documents, when there are more; `off` (false): one corpus",
    )

    @abstractmethod
    def n_rows(self, base: Path) -> int:
        """Count the documents without reading them. Raises `InputError`."""

    @abstractmethod
    def batches(self, base: Path) -> Iterator[Any]:
        """Read the input in bounded Arrow record batches.

        The first columns identify a document, beginning with its `id`; the last two are its
        `file` and `line`, for messages. Raises `InputError`.
        """

    @abstractmethod
    def documents_of(self, batches: Iterable[Any], problems: ProblemList) -> Iterator[RawDocument]:
        """Make the documents of batches, and collect the problems."""

    def n_shards(self, base: Path) -> int | None:
        """Return the number of shards; None for one corpus."""
        if self.shards == "auto":
            parts = math.ceil(self.n_rows(base) / SHARD_DOCUMENTS)
            return parts if parts > 1 else None
        return self.shards or None


@functools.cache
def loaders() -> dict[str, type[Loader]]:
    """Load every loader: those of this package, then those of other packages."""
    return load_classes(Loader, "loader", LOADERS, GROUP)  # type: ignore[type-abstract]  # the base of the classes


AnyLoader = Annotated[Loader, AnyClass("loader", loaders)]
"""The type of a field that holds one corpus of any loader. Its model needs `defer_build`."""
