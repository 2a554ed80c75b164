"""Loader `hf_datasets`: a Hugging Face `datasets` data set, from a local file or the hub.

No other module imports `datasets`. Environment variables set the offline mode and the hub's cache.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rag_eval.core.errors import InputError, ProblemList
from rag_eval.core.loader import Chunker, RawCorpus
from rag_eval.core.rows import TEXT_TABLES, ending_of, read_records
from rag_eval.corpus.source import TableLoader, TableRow, empty_corpus, resolve
from rag_eval.storage.hashing import file_hash

_ENDINGS = (*TEXT_TABLES, ".parquet")
_ACCEPTED_PATH = f"a file ({', '.join(_ENDINGS)}), or a name on the hub (owner/name)"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def _refuse(code: str, message: str, field: str, value: str, accepted: str) -> InputError:
    return InputError.of(code, message, field=f"corpus.{field}", found=value, accepted=accepted)


class HuggingFace(TableLoader):
    """A data set of Hugging Face `datasets`: a local file, or a hub name."""

    loader: Literal["hf_datasets"]
    path: str = Field(
        description="a local file; or a hub name, if `corpus_roots` lists hf://datasets/<name>, "
        "its owner, or hf://datasets"
    )
    config: str | None = None
    """Name of a configuration on the hub."""
    split: str = "train"
    """Part of the data set."""
    revision: str | None = None
    """Revision on the hub."""
    chunker: Chunker = Chunker(kind="text")

    def files(self) -> dict[tuple[str | int, ...], str]:
        """Return the path, or the address of the data set on the hub."""
        return {("path",): f"hf://datasets/{self.path}" if self._is_hub_name else self.path}

    @property
    def _is_hub_name(self) -> bool:
        is_name = _HUB_NAME.fullmatch(self.path) is not None
        return is_name and ending_of(Path(self.path)) not in _ENDINGS

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

        if path.is_file() and path.suffix == ".parquet":
            # `datasets` names the split of a single file `train`
            return datasets.load_dataset(
                "parquet", data_files=str(path), split="train", cache_dir=cache
            )
        # for a folder, or a name such as `text`, `datasets` would read files of its own choosing
        if path.exists() or Path(self.path).exists() or not self._is_hub_name:
            message = "no file of a known format, and not a name on the hub"
            raise _refuse("missing_input", message, "path", self.path, _ACCEPTED_PATH)
        return datasets.load_dataset(
            self.path, name=self.config, split=self.split, revision=self.revision
        )

    def _columns(self, path: Path) -> list[list[Any]]:
        """Read the columns of `COLUMNS`; an absent column gives None for every row."""
        import datasets

        had_bars = not datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            # the Arrow cache of local files lives only as long as the reading
            with tempfile.TemporaryDirectory(prefix="rag-eval-datasets-") as cache:
                data = self._open(path, cache)
                # the rows of `found` would open files and addresses that an image column names
                return [
                    [None] * len(data) if name is None else data.data.column(name).to_pylist()
                    for name in self.column_names(data.column_names).values()
                ]
        except InputError:
            raise
        except Exception as error:
            message = f"datasets cannot load it: {type(error).__name__}: {str(error)[:500]}"
            raise _refuse("not_loadable", message, "path", self.path, _ACCEPTED_PATH) from error
        finally:
            if had_bars:
                datasets.enable_progress_bars()

    def _text_rows(self, path: Path, problems: ProblemList) -> Iterator[TableRow]:
        """Read a text file ourselves, because `datasets` turns the id 007 into the number 7."""
        records = list(read_records(path, problems))
        problems.raise_errors()
        present = dict.fromkeys(name for _, record in records for name in record)
        names = self.column_names(list(present)).values() if records else ()
        for line, record in records:
            yield self.path, line, [None if name is None else record.get(name) for name in names]

    def read(self, base: Path) -> RawCorpus:
        """Read the documents."""
        path = resolve(self.path, base)
        problems = ProblemList()
        if path.is_file() and ending_of(path) in TEXT_TABLES:
            rows = self._text_rows(path, problems)
        else:
            columns = enumerate(zip(*self._columns(path), strict=True), start=1)
            rows = ((self.path, line, values) for line, values in columns)
        documents = list(self.make_documents(rows, problems))
        problems.raise_errors()
        if not documents:
            raise empty_corpus("there is no document", self.path, "at least one row")
        pinned = self.revision if not path.exists() else None
        return RawCorpus(documents, rev=f"{self.path}@{pinned}" if pinned else "")
