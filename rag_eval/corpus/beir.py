"""Loader `beir`: `corpus.jsonl` in BEIR's layout (`_id`, `title`, `text`, `metadata`), and more files of the same layout.

Belongs here: reading and refusing lines.

`metadata` may say: `url`; `section_id`; `author` or `authors`, a name or a list of names; `date`, `updated`, `published`, `last_modified` and
`timestamp`, of which the latest counts. What else it says is passed over.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rag_eval.corpus import authors, dates
from rag_eval.corpus.json_lines import lines, object_of
from rag_eval.corpus.raw_documents import (
    ACCEPTED_ID,
    Problems,
    RawCorpus,
    RawDocument,
    id_fault,
    missing,
    resolve,
    text_faults,
)
from rag_eval.records.gold_set import Beir
from rag_eval.records.problems import Problem
from rag_eval.storage.hashing import file_hash

MAX_LINE_BYTES = 10 * 1024 * 1024
_AUTHOR_KEYS = ("author", "authors")
_DATE_KEYS = ("date", "updated", "published", "last_modified", "timestamp")
_ACCEPTED_LINE = '{"_id": "…", "title": "…", "text": "…", "metadata": {…}}'


def _files(spec: Beir, base: Path) -> list[tuple[str, Path]]:
    """Name as the configuration has it, and path, of each file."""
    folder = resolve(spec.path, base)
    files = [(name, folder / name) for name in ("corpus.jsonl", *spec.extra)]
    for number, (name, path) in enumerate(files):
        if not path.is_file():
            field = f"corpus.extra[{number - 1}]" if number else "corpus.path"
            raise missing(
                f"{spec.path}/{name}",
                "a folder in BEIR layout with corpus.jsonl, and the extra files in it",
                field,
            )
    return files


def identity(spec: Beir, base: Path) -> list[str]:
    """Content hashes of the files."""
    return [part for name, path in _files(spec, base) for part in (name, file_hash(path))]


def _faults(row: dict[str, Any]) -> Iterator[tuple[str, str, str, Any, str]]:
    """Field, code, sentence, value and what is accepted, for every fault of a row."""
    fault = id_fault(row.get("_id"))
    if fault:
        yield "_id", *fault, row.get("_id"), ACCEPTED_ID
    for field, code, sentence in text_faults(row.get("title", ""), row.get("text")):
        yield field, code, sentence, row.get(field), "a string without NUL bytes"
    metadata = row.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        yield "metadata", "bad_type", "metadata is not an object", metadata, "an object, or none"
    elif metadata and metadata.get("section_id") is not None:
        section_fault = id_fault(metadata["section_id"])
        if section_fault:
            yield (
                "metadata.section_id",
                section_fault[0],
                section_fault[1].replace("id", "section id", 1),
                metadata["section_id"],
                ACCEPTED_ID,
            )


def _document(row: dict[str, Any], source: bytes, file: str, line: int) -> tuple[RawDocument, int]:
    """Make the document, and count the dates that could not be read."""
    metadata = row.get("metadata") or {}
    doc_id = row["_id"]
    url = metadata.get("url")
    dated = dates.latest(metadata.get(key) for key in _DATE_KEYS)
    document = RawDocument(
        doc_id,
        row.get("title", ""),
        row["text"],
        url if isinstance(url, str) and url else f"{file}#{doc_id}",
        "text",
        section_id=metadata.get("section_id"),
        file=file,
        line=line,
        author=authors.author_of(metadata, _AUTHOR_KEYS),
        date=dated.day,
        source=source.removesuffix(b"\n").removesuffix(b"\r"),
    )
    return document, dated.unreadable


def load(spec: Beir, base: Path) -> RawCorpus:
    """Read the documents. A byte-order mark at a file's start and blank lines are passed over.

    Raises
    ------
    InputError
        Files that are missing or empty, and every line that cannot be used; the first hundred are listed.
    """
    problems = Problems()
    documents: list[RawDocument] = []
    unreadable = 0
    place: dict[str, tuple[str, int]] = {}
    for file, path in _files(spec, base):
        with path.open("rb") as stream:
            for line, data in lines(stream, MAX_LINE_BYTES):
                if data is not None and not data.strip():
                    continue
                row = object_of(data)
                if isinstance(row, tuple):
                    accepted = (
                        f"at most {MAX_LINE_BYTES} bytes"
                        if row[0] == "too_long"
                        else _ACCEPTED_LINE
                    )
                    problems.add(Problem(row[0], row[1], file=file, line=line, accepted=accepted))
                    continue
                faults = list(_faults(row))
                for field, code, sentence, value, accepted in faults:
                    found = None if value is None else repr(value)[:200]
                    problems.add(
                        Problem(
                            code,
                            sentence,
                            file=file,
                            line=line,
                            field=field,
                            found=found,
                            accepted=accepted,
                        )
                    )
                if faults:
                    continue
                first = place.setdefault(row["_id"], (file, line))
                if first != (file, line):
                    sentence = f"the id was already used at {first[0]}:{first[1]}"
                    problems.add(
                        Problem(
                            "duplicate_id",
                            sentence,
                            file=file,
                            line=line,
                            field="_id",
                            found=row["_id"],
                            accepted="every id once",
                        )
                    )
                    continue
                document, undated = _document(row, data or b"", file, line)
                unreadable += undated
                documents.append(document)
    if not documents and not problems.listed:
        problems.add(
            Problem(
                "empty_corpus",
                "there is no document",
                file="corpus.jsonl",
                accepted="one JSON object a line",
            )
        )
    problems.raise_if_any()
    return RawCorpus(documents, unreadable_dates=unreadable)
