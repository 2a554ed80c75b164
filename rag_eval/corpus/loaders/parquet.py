"""Loader `parquet`: Parquet files, read in batches, from a folder or an object store."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rag_eval.core.errors import InputError, ProblemList, quoted
from rag_eval.core.loader import Chunker, RawCorpus, RawDocument, ShardedLoader
from rag_eval.corpus.source import (
    COLUMNS,
    TableLoader,
    empty_corpus,
    is_address,
    latest_day,
    list_files,
    missing_input,
    read_author,
    resolve,
)
from rag_eval.storage.hashing import file_hash

if TYPE_CHECKING:
    import pyarrow as pa

ENDING = ".parquet"
_ACCEPTED = f"a {ENDING} file, a folder of them, or the address of one, such as s3://bucket/corpus"
_BATCH_ROWS = 4096


@contextlib.contextmanager
def _named_errors(path: str) -> Iterator[None]:
    """Name the corpus in errors of the file, of its store, and of a missing package of the store.

    The stores of fsspec have exceptions of their own without a common base.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        message = f"it cannot be read: {type(error).__name__}: {str(error)[:500]}"
        raise InputError.of(
            "not_loadable", message, field="corpus.path", found=path, accepted=_ACCEPTED
        ) from error


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
        if not is_address(self.path):
            root = resolve(self.path, base)
            paths = list_files(root) if root.is_dir() else ()
            yield from sorted(path for path in paths if path.is_symlink())

    def _open(self, base: Path) -> tuple[Any, str, list[str]]:
        """Return the file system, the path of the corpus in it, and the paths of its files."""
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        if is_address(self.path):
            files, root = url_to_fs(self.path)
        else:  # `url_to_fs` would see an address in a name with `::`
            files, root = LocalFileSystem(), str(resolve(self.path, base))
        names = sorted(name for name in files.find(root) if name.endswith(ENDING))
        if not is_address(self.path):
            for name in names:
                if not Path(name).is_file():  # reading a pipe would wait for ever
                    message = "not a regular file, or a link to nothing"
                    raise InputError.of("not_a_file", message, name, accepted="regular files")
        if not names:
            raise missing_input(self.path, _ACCEPTED)
        return files, root, names

    def identity(self, base: Path) -> list[str]:
        """Return name and content hash of each file; in an object store, what the store states.

        That is usually the size, the time and a hash.
        """
        with _named_errors(self.path):
            files, root, names = self._open(base)
            is_remote = is_address(self.path)
            return [
                text
                for name in names
                for text in (
                    name.removeprefix(root),
                    str(files.ukey(name)) if is_remote else file_hash(Path(name)),
                )
            ]

    def _check_columns(self, schema: "pa.Schema", place: str) -> dict[str, str | None]:
        """Return the names of the columns, whose types must suit."""
        import pyarrow.types as kinds

        names = self.column_names(schema.names)
        for column in ("id", "text", "title", "url"):
            name = names[column]
            if name is None:
                continue
            kind = schema.field(name).type
            value = kind.value_type if kinds.is_dictionary(kind) else kind
            is_text = kinds.is_string(value) or kinds.is_large_string(value)
            if not is_text and not (column == "id" and kinds.is_integer(value)):
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
        with _named_errors(self.path):
            files, _, names = self._open(base)
        for name in names:
            with _named_errors(name), files.open(name) as stream:
                n_rows += pq.read_metadata(stream).num_rows
        return n_rows

    def batches(self, base: Path) -> Iterator["pa.RecordBatch"]:
        """Read the rows in bounded batches of `COLUMNS`, `file` and `line` (the row, from 1).

        Ids are texts, authors and days are in the form of `RawDocument`.
        """
        import pyarrow.parquet as pq

        with _named_errors(self.path):
            files, root, paths = self._open(base)
        for name in paths:
            place = self.path.rstrip("/") + name.removeprefix(root)
            with (
                _named_errors(place),
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
        rows = (
            row
            for batch in batches
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        return self.make_documents(((row[-2], row[-1], row[:-2]) for row in rows), problems)

    def read(self, base: Path) -> RawCorpus:
        """Read the documents."""
        problems = ProblemList()
        documents = list(self.documents_of(self.batches(base), problems))
        problems.raise_errors()
        if not documents:
            raise empty_corpus("there is no document", self.path, "at least one row")
        return RawCorpus(documents)


def _normalise(
    batch: "pa.RecordBatch", names: dict[str, str | None], file: str, line: int
) -> "pa.RecordBatch":
    import pyarrow as pa

    n_rows = batch.num_rows
    columns: dict[str, Any] = {}
    for column in COLUMNS:
        name = names[column]
        if name is None:
            columns[column] = pa.nulls(n_rows, pa.large_string())
        elif column == "author":
            columns[column] = [read_author(value) for value in batch[name].to_pylist()]
        elif column == "date":
            columns[column] = [latest_day([value]) for value in batch[name].to_pylist()]
        else:
            columns[column] = batch[name]
    columns["file"] = pa.array([file] * n_rows, pa.large_string())
    columns["line"] = range(line, line + n_rows)
    types = [*(pa.field(name, pa.large_string()) for name in (*COLUMNS, "file"))]
    schema = pa.schema([*types, pa.field("line", pa.int64())])
    return pa.RecordBatch.from_pydict(columns, schema)
