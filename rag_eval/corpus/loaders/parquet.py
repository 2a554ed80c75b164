"""Loader `parquet`: Parquet files, read in batches, from a folder or an object store."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rag_eval.core.errors import InputError, ProblemList, quoted
from rag_eval.core.loader import Chunker, RawCorpus, RawDocument, ShardedLoader, is_address
from rag_eval.corpus.loading import (
    COLUMNS,
    TableLoader,
    TableRow,
    day_of,
    find_author,
    list_files,
    missing_input,
    naming_errors,
    resolve,
)
from rag_eval.storage.hashing import file_hash

if TYPE_CHECKING:
    import pyarrow as pa

_ENDING = ".parquet"
_ACCEPTED = f"a {_ENDING} file, a folder of them, or the address of one, such as s3://bucket/corpus"
_BATCH_ROWS = 4096


class Parquet(TableLoader, ShardedLoader):
    """Parquet files in a folder or an object store."""

    loader: Literal["parquet"]
    path: str = Field(
        description="a file, a folder with files at any depth, or an address of an object store "
        "below one of `corpus_roots`"
    )
    chunker: Chunker = Chunker(kind="text")

    def links(self, base: Path) -> Iterator[Path]:
        """Yield the symbolic links in the folder, sorted."""
        root = resolve(self.path, base)
        if not is_address(self.path) and root.is_dir():
            yield from sorted(path for path in list_files(root) if path.is_symlink())

    def _open(self, base: Path) -> tuple[Any, str, list[str]]:
        """Return the file system, the path of the corpus in it, and the paths of its files."""
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        is_remote = is_address(self.path)
        with naming_errors(self.path, _ACCEPTED):
            if is_remote:
                files, root = url_to_fs(self.path)
            else:  # `url_to_fs` would see an address in a name with `::`
                files, root = LocalFileSystem(), str(resolve(self.path, base))
            names = sorted(name for name in files.find(root) if name.endswith(_ENDING))
        for name in names:
            if not is_remote and not Path(name).is_file():  # reading a pipe would wait for ever
                message = "not a regular file, or a link to nothing"
                raise InputError.of("not_a_file", message, name, accepted="regular files")
        if not names:
            raise missing_input(self.path, _ACCEPTED)
        return files, root, names

    def identity(self, base: Path) -> list[str]:
        """Return name and content hash of each file; in an object store, what the store states.

        That is usually the size, the time and a hash.
        """
        files, root, names = self._open(base)
        parts: list[str] = []
        with naming_errors(self.path, _ACCEPTED):
            for name in names:
                state = files.ukey(name) if is_address(self.path) else file_hash(Path(name))
                parts += (name.removeprefix(root), str(state))
        return parts

    def _check_columns(self, schema: "pa.Schema", place: str) -> dict[str, str | None]:
        """Return the names of the columns, whose types must suit."""
        import pyarrow.types as kinds

        names = self.column_names(schema.names)
        for column in ("id", "text", "title", "url"):
            if (name := names[column]) is None:
                continue
            kind = schema.field(name).type
            value = kind.value_type if kinds.is_dictionary(kind) else kind
            is_id = column == "id" and kinds.is_integer(value)
            if not (is_id or kinds.is_string(value) or kinds.is_large_string(value)):
                raise InputError.of(
                    "wrong_type",
                    f"the column {quoted(name)} has values of another type",
                    place,
                    field=f"corpus.{column}_column",
                    found=str(kind),
                    accepted="strings or whole numbers" if column == "id" else "strings",
                )
        return names

    def n_rows(self, base: Path) -> int:
        """Count the rows by the ends of the files."""
        import pyarrow.parquet as pq

        n_rows = 0
        files, _, names = self._open(base)
        for name in names:
            with naming_errors(name, _ACCEPTED), files.open(name) as stream:
                n_rows += pq.read_metadata(stream).num_rows
        return n_rows

    def batches(self, base: Path) -> Iterator["pa.RecordBatch"]:
        """Read the rows in bounded batches of `COLUMNS`, `file` and `line` (the row, from 1).

        Ids are texts, authors and days are in the form of `RawDocument`.
        """
        import pyarrow.parquet as pq

        files, root, paths = self._open(base)
        for name in paths:
            place = self.path.rstrip("/") + name.removeprefix(root)
            with (
                naming_errors(place, _ACCEPTED),
                files.open(name) as stream,
                pq.ParquetFile(stream) as table,
            ):
                names = self._check_columns(table.schema_arrow, place)
                read = sorted(set(filter(None, names.values())))
                line = 1
                for batch in table.iter_batches(_BATCH_ROWS, columns=read):
                    yield _normalise(batch, names, place, line)
                    line += batch.num_rows

    def documents_of(
        self, batches: Iterable["pa.RecordBatch"], problems: ProblemList
    ) -> Iterator[RawDocument]:
        """Make the documents of batches, and collect the problems."""
        return self.make_documents(_rows_of(batches), problems)

    def read(self, base: Path) -> RawCorpus:
        """Read the documents."""
        return self.read_rows(_rows_of(self.batches(base)), ProblemList())


def _rows_of(batches: Iterable["pa.RecordBatch"]) -> Iterator[TableRow]:
    for batch in batches:
        for *values, file, line in zip(*(it.to_pylist() for it in batch.columns), strict=True):
            yield file, line, values


def _normalise(
    batch: "pa.RecordBatch", names: dict[str, str | None], file: str, line: int
) -> "pa.RecordBatch":
    import pyarrow as pa

    n_rows, text = batch.num_rows, pa.large_string()
    columns: dict[str, Any] = {
        column: pa.nulls(n_rows, text) if (name := names[column]) is None else batch[name]
        for column in COLUMNS
    }
    columns["author"] = [find_author({"author": it}) for it in columns["author"].to_pylist()]
    columns["date"] = list(map(day_of, columns["date"].to_pylist()))
    columns["file"] = [file] * n_rows
    columns["line"] = range(line, line + n_rows)
    types = [(name, text) for name in (*COLUMNS, "file")]
    return pa.RecordBatch.from_pydict(columns, pa.schema([*types, ("line", pa.int64())]))
