"""Corpora in the rows of a table: names of the columns, and documents from values.

Manifests use the canonical JSON of a document's id, title and text as the bytes of the document.
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
    text_column: str = "text"
    """Text of a document. Columns of the names title, url, author and date are read too."""

    def column_names(self, present: Sequence[str]) -> dict[str, str | None]:
        """Return the names in the table by the names of `COLUMNS`; None stands for no column.

        Raises InputError `unknown_column` if the table has no column for ids or texts.
        """
        configured = {"id": self.id_column, "text": self.text_column}
        for column, name in configured.items():
            if name not in present:
                accepted, message = ", ".join(present), "there is no such column"
                field = f"corpus.{column}_column"
                raise InputError.of(
                    "unknown_column", message, field=field, found=name, accepted=accepted
                )
        optional = {name: name if name in present else None for name in COLUMNS}
        return {**optional, **configured}

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
                    author=read_author(author),
                    date=latest_day([date]),
                )
