"""Corpora in the rows of a table: names of the columns, and documents from values.

Manifests and signatures use the canonical JSON of a document's id, title and text as the bytes of
the document.
"""

from collections.abc import Iterable, Iterator, Sequence

from rag_eval.core.errors import InputError, ProblemList
from rag_eval.core.loader import PathLoader, RawDocument
from rag_eval.core.rows import SeenIds, check_row
from rag_eval.corpus.source import DocumentRow, latest_day, read_author
from rag_eval.storage.hashing import canonical_json

TableRow = tuple[str, int, Sequence[object]]
"""File, line or row from 1, and values of `COLUMNS`."""
COLUMNS = ("id", "text", "title", "url", "author", "date")


class TableLoader(PathLoader):
    """Configuration of a corpus with one document in each row of a table."""

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

    def column_names(self, present: Sequence[str]) -> dict[str, str | None]:
        """Return the configured names by the names of `COLUMNS`; None stands for no column.

        Raises InputError `unknown_column` if the table does not have one of them.
        """
        names: dict[str, str | None] = {name: getattr(self, f"{name}_column") for name in COLUMNS}
        for column, name in names.items():
            if name is not None and name not in present:
                accepted, message = ", ".join(present), "there is no such column"
                field = f"corpus.{column}_column"
                raise InputError.of(
                    "unknown_column", message, field=field, found=name, accepted=accepted
                )
        return names

    def make_documents(
        self, rows: Iterable[TableRow], problems: ProblemList
    ) -> Iterator[RawDocument]:
        """Make a document of each row, and collect problems."""
        seen = SeenIds(problems)
        for file, line, (doc_id, text, title, url, author, date) in rows:
            given = {"id": doc_id, "title": title, "text": text}
            row = check_row(given, DocumentRow, problems, file, line)
            if row is not None and seen.add(row.id, file, line, "id"):
                yield RawDocument(
                    row.id,
                    row.title,
                    row.text,
                    url if isinstance(url, str) and url else f"{self.path}#{row.id}",
                    "text",
                    canonical_json(row.model_dump()).encode("utf-8", "surrogatepass"),
                    place=f"{file}:{line}",
                    author=read_author(author),
                    date=latest_day([date]),
                )
