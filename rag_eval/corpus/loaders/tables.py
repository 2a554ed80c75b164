"""Loaders of corpora with one document in each row: `beir`, `hf_datasets` and `parquet`."""

import contextlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rag_eval.core.errors import InputError, ProblemList, quoted
from rag_eval.core.loader import Chunker, PathLoader, RawCorpus, RawDocument, ShardedLoader
from rag_eval.core.rows import (
    TEXT_TABLES,
    Fault,
    SeenIds,
    check_row,
    ending_of,
    find_file,
    parse_object,
    read_raw_lines,
    read_records,
)
from rag_eval.core.types import Id
from rag_eval.corpus.loading import (
    DocumentRow,
    Page,
    day_of,
    empty_corpus,
    find_author,
    is_address,
    latest_day,
    list_files,
    missing_input,
    resolve,
)
from rag_eval.storage.hashing import canonical_json, file_hash

if TYPE_CHECKING:
    import pyarrow as pa

# ---- BEIR

_DATE_KEYS = ("date", "updated", "published", "last_modified", "timestamp")
_FILE = "corpus.jsonl"
_ACCEPTED_LINE = '{"_id": "…", "title": "…", "text": "…", "metadata": {…}}'


class _Metadata(BaseModel):
    model_config = ConfigDict(extra="allow")

    section_id: Id | None = None
    page: Page | None = None


class _Row(DocumentRow):
    id: Id = Field(alias="_id")
    metadata: _Metadata | None = None


class Beir(PathLoader):
    """A BEIR folder with `corpus.jsonl`.

    `metadata` may have `section_id`, `page`, `url`, `author` or `authors`, and dates at `date`,
    `updated`, `published`, `last_modified` or `timestamp`, of which the latest counts.
    """

    loader: Literal["beir"]
    chunker: Chunker = Chunker(kind="whole")

    def links(self, base: Path) -> Iterator[Path]:
        """Yield the symbolic links in the folder and in the folder `qrels`, sorted."""
        folder = resolve(self.path, base)
        paths = (*folder.glob("*"), *folder.glob("qrels/*"))
        yield from sorted(path for path in paths if path.is_symlink())

    def gold_folder(self, base: Path) -> Path | None:
        """Return the folder, because a BEIR folder also holds queries and judgements."""
        return base / self.path

    def _path(self, base: Path) -> Path:
        path = find_file(resolve(self.path, base) / _FILE)
        if not path.is_file():
            raise missing_input(f"{self.path}/{_FILE}", f"a folder in BEIR layout with {_FILE}")
        return path

    def identity(self, base: Path) -> list[str]:
        """Return the name of the file and the hash of its bytes."""
        return [_FILE, file_hash(self._path(base))]

    def read(self, base: Path) -> RawCorpus:
        """Read the documents, one a line."""
        problems = ProblemList()
        ids = SeenIds(problems)
        documents: list[RawDocument] = []
        for line, data in read_raw_lines(self._path(base), problems):
            if data is not None and not data.strip():
                continue
            # foreign metadata may hold NaN and repeated keys
            values = parse_object(data, strict=False)
            if isinstance(values, Fault):
                values.report(problems, Path(_FILE), line, _ACCEPTED_LINE)
                continue
            row = check_row(values, _Row, problems, _FILE, line)
            if row is not None and ids.add(row.id, _FILE, line, "_id"):
                source = (data or b"").removesuffix(b"\n").removesuffix(b"\r")
                documents.append(_read_line(row, source, line))
        problems.raise_errors()
        if not documents:
            raise empty_corpus("there is no document", self.path, "one JSON object a line")
        return RawCorpus(documents)


def _read_line(row: _Row, source: bytes, line: int) -> RawDocument:
    metadata = row.metadata or _Metadata()
    values = metadata.model_extra or {}
    url = values.get("url")
    return RawDocument(
        row.id,
        row.title,
        row.text,
        url if isinstance(url, str) and url else f"{_FILE}#{row.id}",
        "text",
        source,
        section_id=metadata.section_id,
        place=f"{_FILE}:{line}",
        author=find_author(values),
        date=latest_day(values.get(key) for key in _DATE_KEYS),
        page="" if metadata.page is None else str(metadata.page),
    )


# ---- Tables with columns. Manifests use the canonical JSON of a document's id, title and text as
# the bytes of the document.

TableRow = tuple[str, int, Sequence[object]]
"""File, line or row from 1, and values of `_COLUMNS`."""
_COLUMNS = ("id", "text", "title", "url", "author", "date")


class TableLoader(PathLoader):
    """Configuration of a corpus with one document in each row of a table."""

    id_column: str = "id"
    """Id of a document."""
    text_column: str = "text"
    """Text of a document. Columns of the names title, url, author and date are read too."""

    def column_names(self, present: Sequence[str]) -> dict[str, str | None]:
        """Return the names in the table by the names of `_COLUMNS`; None stands for no column.

        Raises InputError `unknown_column` if the table has no column for ids or texts.
        """
        names: dict[str, str | None] = {
            name: name if name in present else None for name in _COLUMNS
        }
        for column, name in (("id", self.id_column), ("text", self.text_column)):
            if name not in present:
                field, accepted = f"corpus.{column}_column", ", ".join(present)
                message = "there is no such column"
                raise InputError.of(
                    "unknown_column", message, field=field, found=name, accepted=accepted
                )
            names[column] = name
        return names

    def make_documents(
        self, rows: Iterable[TableRow], problems: ProblemList
    ) -> Iterator[RawDocument]:
        """Make a document of each row, and collect problems."""
        ids = SeenIds(problems)
        for file, line, (doc_id, text, title, url, author, date) in rows:
            values = {"id": doc_id, "title": title, "text": text}
            row = check_row(values, DocumentRow, problems, file, line)
            if row is not None and ids.add(row.id, file, line, "id"):
                yield RawDocument(
                    row.id,
                    row.title,
                    row.text,
                    url if isinstance(url, str) and url else f"{self.path}#{row.id}",
                    "text",
                    canonical_json(row.model_dump()).encode("utf-8", "surrogatepass"),
                    place=f"{file}:{line}",
                    author=find_author({"author": author}),
                    date=day_of(date),
                )

    def _read_rows(self, rows: Iterable[TableRow], problems: ProblemList) -> RawCorpus:
        documents = list(self.make_documents(rows, problems))
        problems.raise_errors()
        if not documents:
            raise empty_corpus("there is no document", self.path, "at least one row")
        return RawCorpus(documents)


@contextlib.contextmanager
def _loading(path: str, accepted: str) -> Iterator[None]:
    """Name the corpus in errors of files, stores and packages, which share no base class."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        message = f"it cannot be loaded: {type(error).__name__}: {str(error)[:500]}"
        raise InputError.of(
            "not_loadable", message, field="corpus.path", found=path, accepted=accepted
        ) from error


# ---- Data sets of Hugging Face. Environment variables set the offline mode and the hub's cache.

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
        """Read the columns of `_COLUMNS`; an absent column gives None for every row."""
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
            return self._read_rows(self._text_rows(path, problems), problems)
        with _loading(self.path, _ACCEPTED_DATA):
            columns = enumerate(zip(*self._columns(path), strict=True), start=1)
        corpus = self._read_rows(((self.path, line, row) for line, row in columns), problems)
        is_pinned = self.revision is not None and not path.exists()
        rev = f"{self.path}@{self.revision}" if is_pinned else ""
        return RawCorpus(corpus.documents, rev)


# ---- Parquet, read in batches

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
        with _loading(self.path, _ACCEPTED):
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
        with _loading(self.path, _ACCEPTED):
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
            with _loading(name, _ACCEPTED), files.open(name) as stream:
                n_rows += pq.read_metadata(stream).num_rows
        return n_rows

    def batches(self, base: Path) -> Iterator["pa.RecordBatch"]:
        """Read the rows in bounded batches of `_COLUMNS`, `file` and `line` (the row, from 1).

        Ids are texts, authors and days are in the form of `RawDocument`.
        """
        import pyarrow.parquet as pq

        files, root, paths = self._open(base)
        for name in paths:
            place = self.path.rstrip("/") + name.removeprefix(root)
            with (
                _loading(place, _ACCEPTED),
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
        return self._read_rows(_rows_of(self.batches(base)), ProblemList())


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
        for column in _COLUMNS
    }
    columns["author"] = [find_author({"author": it}) for it in columns["author"].to_pylist()]
    columns["date"] = list(map(day_of, columns["date"].to_pylist()))
    columns["file"] = [file] * n_rows
    columns["line"] = range(line, line + n_rows)
    types = [(name, text) for name in (*_COLUMNS, "file")]
    return pa.RecordBatch.from_pydict(columns, pa.schema([*types, ("line", pa.int64())]))
