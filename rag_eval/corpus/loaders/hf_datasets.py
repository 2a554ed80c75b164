"""Loader `hf_datasets`: a Hugging Face `datasets` data set, from local files or the hub.

No other module imports `datasets`. Environment variables set the offline mode and the hub's cache.
Manifests and signatures use the canonical JSON of a document's id, title and text as the bytes of
the document.
"""

import itertools
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_ACCEPTED_PATH = (
    f"a file ({', '.join(_FORMATS)}), a folder of such files or made by save_to_disk, "
    "or a name on the hub (owner/name)"
)
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def _refusal(code: str, message: str, field: str, found: str, accepted: str) -> InputError:
    return InputError.of(code, message, field=f"corpus.{field}", found=found, accepted=accepted)


def _refuse_outside(files: Iterable[object], folder: Path) -> None:
    """Refuse data files that a data set's own description places outside its folder."""
    for file in map(str, files):
        if not Path(file).resolve().is_relative_to(folder.resolve()):
            message = "the data set's description names a file outside its folder"
            accepted = "data files inside the data set's folder"
            raise _refusal("outside_folder", message, "path", file, accepted)


def _refuse_absent(names: Mapping[str, str | None], present: Sequence[str]) -> None:
    for column, name in names.items():
        if name is not None and name not in present:
            accepted, message = ", ".join(present), "there is no such column"
            raise _refusal("unknown_column", message, f"{column}_column", name, accepted)


class HuggingFace(PathLoader):
    """A data set of Hugging Face `datasets`, from local files (jsonl, csv, parquet) or the hub."""

    loader: Literal["hf_datasets"]
    path: str = Field(description="a local file or folder, or a hub name")
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    id_column: str = "id"
    title_column: str | None = None
    text_column: str = "text"
    url_column: str | None = Field(
        default=None, description="address of the document, for its link and its domain"
    )
    author_column: str | None = None
    date_column: str | None = Field(
        default=None, description="date or time of the document's last change (ISO 8601)"
    )
    chunker: Chunker = Chunker(kind="text")

    def links(self, base: Path) -> Iterator[Path]:
        """Yield the symbolic links in all folders below the path, sorted."""
        folder = resolve(self.path, base)
        yield from sorted(path for path in folder.rglob("*") if path.is_symlink())

    def identity(self, base: Path) -> list[str]:
        """Return content hashes of local files, or name and revision of a hub data set.

        A pinned revision notices changes on the hub.
        """
        path = resolve(self.path, base)
        if path.is_file():
            return ["file", file_hash(path)]
        if path.is_dir():
            files = [one for one in path.rglob("*") if one.is_file()]
            names = sorted((one.relative_to(path).as_posix(), one) for one in files)
            return ["folder", *(part for name, one in names for part in (name, file_hash(one)))]
        return ["hub", self.path, self.config or "", self.split, self.revision or ""]

    def _open(self, path: Path, cache: str) -> Any:
        import datasets

        if path.is_file():
            if path.suffix not in _FORMATS:
                message = "the file's format is not known"
                raise _refusal("unknown_format", message, "path", path.name, _ACCEPTED_PATH)
            # `datasets` names the split of a single file `train`
            return datasets.load_dataset(
                _FORMATS[path.suffix], data_files=str(path), split="train", cache_dir=cache
            )
        if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
            found = datasets.load_from_disk(str(path))
            if isinstance(found, dict):
                if self.split not in found:
                    accepted = ", ".join(sorted(map(str, found)))
                    message = "the data set has no such split"
                    raise _refusal("unknown_split", message, "split", self.split, accepted)
                found = found[self.split]
            _refuse_outside((file["filename"] for file in found.cache_files), path)
            return found
        if path.is_dir():
            builder = datasets.load_dataset_builder(str(path), name=self.config, cache_dir=cache)
            files = (builder.config.data_files or {}).values()
            _refuse_outside(itertools.chain.from_iterable(files), path)
            return datasets.load_dataset(
                str(path), name=self.config, split=self.split, cache_dir=cache
            )
        # for a name such as `text`, `datasets` would read files of the working folder
        if not _HUB_NAME.fullmatch(self.path):
            message = "no such file, and not a name on the hub"
            raise _refusal("missing_input", message, "path", self.path, _ACCEPTED_PATH)
        return datasets.load_dataset(
            self.path, name=self.config, split=self.split, revision=self.revision
        )

    def _columns(self, path: Path) -> list[list[Any]]:
        """Read the columns of `_COLUMNS`; an absent column gives None for every row."""
        import datasets

        had_bars = not datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            # the Arrow cache of local files lives only as long as the reading
            with tempfile.TemporaryDirectory(prefix="rag-eval-datasets-") as cache:
                found = self._open(path, cache)
                names = {column: getattr(self, f"{column}_column") for column in _COLUMNS}
                _refuse_absent(names, found.column_names)
                return [
                    [None] * len(found) if name is None else list(found[name])
                    for name in names.values()
                ]
        except InputError:
            raise
        except Exception as error:
            message = f"datasets cannot load it: {type(error).__name__}: {str(error)[:500]}"
            refusal = _refusal("not_loadable", message, "path", self.path, _ACCEPTED_PATH)
            raise refusal from error
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
