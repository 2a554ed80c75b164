"""Loader `hf_datasets`: a Hugging Face `datasets` data set, from a local file or the hub.

Environment variables set the offline mode and the hub's cache.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rag_eval.core.errors import ProblemList
from rag_eval.core.loader import Chunker, RawCorpus
from rag_eval.core.rows import (
    TEXT_TABLES,
    ending_of,
    read_records,
)
from rag_eval.corpus.loading import (
    TableLoader,
    TableRow,
    missing_input,
    naming_errors,
    resolve,
)
from rag_eval.storage.hashing import file_hash

_ENDINGS = (*TEXT_TABLES, ".parquet")
_ACCEPTED_DATA = f"a file ({', '.join(_ENDINGS)}), or a name on the hub (owner/name)"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


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

    def _columns(self, path: Path) -> list[list[Any]]:
        """Read the columns of `COLUMNS`; an absent column gives None for every row."""
        import datasets

        # for a folder, or a name such as `text`, `datasets` would read files of its own choosing
        is_local = path.is_file() and path.suffix == ".parquet"
        is_hub = self._is_hub_name and not path.exists() and not Path(self.path).exists()
        if not (is_local or is_hub):
            raise missing_input(self.path, _ACCEPTED_DATA)
        datasets.disable_progress_bars()
        # the Arrow cache of local files lives only as long as the reading
        with tempfile.TemporaryDirectory(prefix="rag-eval-datasets-") as cache:
            options: dict[str, Any] = {"name": self.config, "split": self.split}
            options["revision"] = self.revision
            if is_local:  # `datasets` names the split of a single file `train`
                options = {"data_files": str(path), "split": "train", "cache_dir": cache}
            data: Any = datasets.load_dataset("parquet" if is_local else self.path, **options)
            # the rows of `data` would open files and addresses that an image column names
            return [
                [None] * len(data) if name is None else data.data.column(name).to_pylist()
                for name in self.column_names(data.column_names).values()
            ]

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
        path, problems = resolve(self.path, base), ProblemList()
        if path.is_file() and ending_of(path) in TEXT_TABLES:
            return self.read_rows(self._text_rows(path, problems), problems)
        with naming_errors(self.path, _ACCEPTED_DATA):
            columns = enumerate(zip(*self._columns(path), strict=True), start=1)
        corpus = self.read_rows(((self.path, line, row) for line, row in columns), problems)
        is_pinned = self.revision is not None and not path.exists()
        rev = f"{self.path}@{self.revision}" if is_pinned else ""
        return RawCorpus(corpus.documents, rev)
