"""Loader `beir`: a folder in BEIR's layout, with one document in each line of a file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from rag_eval.core.errors import ProblemList
from rag_eval.core.loader import Chunker, PathLoader, RawCorpus, RawDocument
from rag_eval.core.rows import (
    Fault,
    SeenIds,
    check_row,
    find_file,
    parse_object,
    read_raw_lines,
)
from rag_eval.core.types import Id
from rag_eval.corpus.loading import (
    DocumentRow,
    Page,
    empty_corpus,
    find_author,
    latest_day,
    missing_input,
    resolve,
)
from rag_eval.storage.hashing import file_hash

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
