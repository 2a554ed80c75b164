"""Loader `hf_datasets`: a Hugging Face `datasets` data set, from a local file or the hub.

No other module imports `datasets`. Environment variables set the offline mode and the hub's cache.
Manifests and signatures use the canonical JSON of a document's id, title and text as the bytes of
the document.
"""

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rag_eval.core.errors import InputError, ProblemList
from rag_eval.core.loader import Chunker, PathLoader, RawCorpus, RawDocument
from rag_eval.core.rows import check_row
from rag_eval.corpus.source import (
    DocumentRow,
    SeenIds,
    empty_corpus,
    latest_day,
    read_author,
    resolve,
)
from rag_eval.storage.hashing import canonical_json, file_hash

_FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
_COLUMNS = ("id", "text", "title", "url", "author", "date")
_ACCEPTED_PATH = f"a file ({', '.join(_FORMATS)}), or a name on the hub (owner/name)"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def _refuse(code: str, message: str, field: str, found: str, accepted: str) -> InputError:
    return InputError.of(code, message, field=f"corpus.{field}", found=found, accepted=accepted)


def _refuse_absent(names: Mapping[str, str | None], present: Sequence[str]) -> None:
    for column, name in names.items():
        if name is not None and name not in present:
            accepted, message = ", ".join(present), "there is no such column"
            raise _refuse("unknown_column", message, f"{column}_column", name, accepted)


class HuggingFace(PathLoader):
    """A data set of Hugging Face `datasets`: a local file (jsonl, csv, parquet) or a hub name."""

    loader: Literal["hf_datasets"]
    path: str = Field(description="a local file, or a hub name")
    config: str | None = None
    """Name of a configuration on the hub."""
    split: str = "train"
    """Part of the data set."""
    revision: str | None = None
    """Revision on the hub."""
    id_column: str = "id"
    """Id of a document."""
    title_column: str | None = None
    """Title of a document; default: none."""
    text_column: str = "text"
    """Text of a document."""
    url_column: str | None = None
    """Address of the document, for its link and its domain."""
    author_column: str | None = None
    """Author of a document; default: unknown."""
    date_column: str | None = None
    """Date or time of the document's last change (ISO 8601)."""
    chunker: Chunker = Chunker(kind="text")

    def identity(self, base: Path) -> list[str]:
        """Return the content hash of a local file, or name and revision of a hub data set.

        A pinned revision notices changes on the hub.
        """
        path = resolve(self.path, base)
        if path.is_file():
            return ["file", file_hash(path)]
        return ["hub", self.path, self.config or "", self.split, self.revision or ""]

    def _open(self, path: Path, cache: str) -> Any:
        import datasets

        if path.is_file() and path.suffix in _FORMATS:
            # `datasets` names the split of a single file `train`
            return datasets.load_dataset(
                _FORMATS[path.suffix], data_files=str(path), split="train", cache_dir=cache
            )
        # for a folder, or a name such as `text`, `datasets` would read files of its own choosing
        if path.exists() or not _HUB_NAME.fullmatch(self.path):
            message = "no file of a known format, and not a name on the hub"
            raise _refuse("missing_input", message, "path", self.path, _ACCEPTED_PATH)
        return datasets.load_dataset(
            self.path, name=self.config, split=self.split, revision=self.revision
        )

    def _columns(self, path: Path) -> list[list[Any]]:
        """Read the columns of `_COLUMNS`; an absent column gives None for every row."""
        import datasets

        had_bars = not datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        names = {column: getattr(self, f"{column}_column") for column in _COLUMNS}
        try:
            # the Arrow cache of local files lives only as long as the reading
            with tempfile.TemporaryDirectory(prefix="rag-eval-datasets-") as cache:
                found = self._open(path, cache)
                _refuse_absent(names, found.column_names)
                return [
                    [None] * len(found) if name is None else list(found[name])
                    for name in names.values()
                ]
        except InputError:
            raise
        except Exception as error:
            message = f"datasets cannot load it: {type(error).__name__}: {str(error)[:500]}"
            raise _refuse("not_loadable", message, "path", self.path, _ACCEPTED_PATH) from error
        finally:
            if had_bars:
                datasets.enable_progress_bars()

    def read(self, base: Path) -> RawCorpus:
        """Read the documents; whole numbers serve as ids."""
        path = resolve(self.path, base)
        problems = ProblemList()
        seen = SeenIds(problems)
        documents: list[RawDocument] = []
        for line, values in enumerate(zip(*self._columns(path), strict=True), start=1):
            doc_id, text, title, url, author, date = values
            # hub data sets often number their rows; a missing title becomes an empty title
            given = {"id": str(doc_id) if type(doc_id) is int else doc_id, "text": text}
            given["title"] = "" if title is None else title
            row = check_row(given, DocumentRow, problems, self.path, line)
            if row is not None and seen.add(row.id, self.path, line, "id"):
                documents.append(
                    RawDocument(
                        row.id,
                        row.title,
                        row.text,
                        url if isinstance(url, str) and url else f"{self.path}#{row.id}",
                        "text",
                        canonical_json(row.model_dump()).encode("utf-8", "surrogatepass"),
                        place=f"{self.path}:{line}",
                        author=read_author(author),
                        date=latest_day([date]),
                    )
                )
        problems.raise_errors()
        if not documents:
            raise empty_corpus("there is no document", self.path, "at least one row")
        pinned = self.revision if not path.exists() else None
        return RawCorpus(documents, rev=f"{self.path}@{pinned}" if pinned else "")
