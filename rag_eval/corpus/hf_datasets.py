"""Loader `hf_datasets`: a Hugging Face `datasets` data set, from local files or the hub.

`url_column`, `author_column` and `date_column` name what is known of a row's source; a row may lack each. A document's bytes, for manifests and
signatures, are the canonical JSON of its id, title and text.

Belongs here: the only import of `datasets` in the project. Offline mode, telemetry and the hub's cache are the environment's business.
"""

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rag_eval.corpus import authors, dates
from rag_eval.corpus.raw_documents import (
    ACCEPTED_ID,
    Problems,
    RawCorpus,
    RawDocument,
    id_fault,
    resolve,
    text_faults,
)
from rag_eval.records.gold_set import HuggingFace
from rag_eval.records.problems import InputError, Problem
from rag_eval.storage.hashing import canonical_json, file_hash

_FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
_COLUMNS = (
    "id_column",
    "text_column",
    "title_column",
    "url_column",
    "author_column",
    "date_column",
)
_ACCEPTED_PATH = f"a file ({', '.join(_FORMATS)}), a folder of such files or made by save_to_disk, or a name on the hub"


def identity(spec: HuggingFace, base: Path) -> list[str]:
    """Content hashes of local files; for a hub data set its name and revision. Pin the revision to notice changes on the hub."""
    path = resolve(spec.path, base)
    if path.is_file():
        return ["file", file_hash(path)]
    if path.is_dir():
        files = sorted(
            (one.relative_to(path).as_posix(), one) for one in path.rglob("*") if one.is_file()
        )
        return ["folder", *(part for name, one in files for part in (name, file_hash(one)))]
    return ["hub", spec.path, spec.config or "", spec.split, spec.revision or ""]


def _split(found: Any, spec: HuggingFace) -> Any:
    """Return the split of what `load_from_disk` gave: one data set, or a mapping of them."""
    if not isinstance(found, dict):
        return found
    if spec.split not in found:
        accepted = ", ".join(sorted(map(str, found)))
        raise InputError(
            Problem(
                "unknown_split",
                "the data set has no such split",
                field="corpus.split",
                found=spec.split,
                accepted=accepted,
            )
        )
    return found[spec.split]


def _open(spec: HuggingFace, path: Path, cache: str) -> Any:
    import datasets

    if path.is_file():
        if path.suffix not in _FORMATS:
            raise InputError(
                Problem(
                    "unknown_format",
                    "the file's format is not known",
                    field="corpus.path",
                    found=path.name,
                    accepted=_ACCEPTED_PATH,
                )
            )
        # one file is one split, whatever its name: `train` is what datasets calls it
        return datasets.load_dataset(
            _FORMATS[path.suffix], data_files=str(path), split="train", cache_dir=cache
        )
    if path.is_dir():
        if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
            return _split(datasets.load_from_disk(str(path)), spec)
        return datasets.load_dataset(str(path), name=spec.config, split=spec.split, cache_dir=cache)
    return datasets.load_dataset(
        spec.path, name=spec.config, split=spec.split, revision=spec.revision
    )


def _columns(spec: HuggingFace, path: Path) -> dict[str, Sequence[Any]]:
    """Return the columns that the configuration names; the Arrow cache of local files lives only as long as the reading."""
    import datasets

    bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory(prefix="rag-eval-datasets-") as cache:
            try:
                found = _open(spec, path, cache)
            except InputError:
                raise
            except Exception as error:
                message = f"datasets cannot load it: {type(error).__name__}: {str(error)[:500]}"
                raise InputError(
                    Problem(
                        "not_loadable",
                        message,
                        field="corpus.path",
                        found=spec.path,
                        accepted=_ACCEPTED_PATH,
                    )
                ) from error
            named = {field: getattr(spec, field) for field in _COLUMNS}
            wanted = {field: name for field, name in named.items() if name is not None}
            absent = {
                field: name for field, name in wanted.items() if name not in found.column_names
            }
            if absent:
                accepted = ", ".join(found.column_names)
                raise InputError(
                    [
                        Problem(
                            "unknown_column",
                            "there is no such column",
                            field=f"corpus.{field}",
                            found=name,
                            accepted=accepted,
                        )
                        for field, name in absent.items()
                    ]
                )
            return {field: list(found[name]) for field, name in wanted.items()}
    finally:
        if bars:
            datasets.enable_progress_bars()


class _Row(NamedTuple):
    """A row's values, whatever their type; None where there is no such column."""

    doc_id: Any
    text: Any
    title: Any
    url: Any
    author: Any
    date: Any


def _rows(columns: dict[str, Sequence[Any]]) -> Iterator[_Row]:
    nothing = [None] * len(columns["id_column"])
    for row in itertools.starmap(
        _Row, zip(*(columns.get(field, nothing) for field in _COLUMNS), strict=True)
    ):
        # hub data sets often number their rows; a missing title is an empty one
        doc_id = (
            str(row.doc_id)
            if isinstance(row.doc_id, int) and not isinstance(row.doc_id, bool)
            else row.doc_id
        )
        yield row._replace(doc_id=doc_id, title="" if row.title is None else row.title)


def _document(spec: HuggingFace, values: _Row, line: int) -> tuple[RawDocument, int]:
    """Make the document, and count the dates that could not be read."""
    doc_id, text, title, url = values[:4]
    dated = dates.latest([values.date])
    source = canonical_json({"id": doc_id, "title": title, "text": text}).encode(
        "utf-8", "surrogatepass"
    )
    address = url if isinstance(url, str) and url else f"{spec.path}#{doc_id}"
    author = authors.named(values.author)
    return RawDocument(
        doc_id,
        title,
        text,
        address,
        "text",
        file=spec.path,
        line=line,
        author=author,
        date=dated.day,
        source=source,
    ), dated.unreadable


def load(spec: HuggingFace, base: Path) -> RawCorpus:
    """Read the documents. Whole numbers serve as ids; `line` in a problem is the row, from 1.

    Raises
    ------
    InputError
        It cannot be loaded, a column is missing, or rows cannot be used; the first hundred are listed.
    """
    path = resolve(spec.path, base)
    problems = Problems()
    documents: list[RawDocument] = []
    unreadable = 0
    first: dict[str, int] = {}
    for row, values in enumerate(_rows(_columns(spec, path)), start=1):
        doc_id = values.doc_id
        fault = id_fault(doc_id)
        if fault:
            problems.add(
                Problem(
                    *fault,
                    file=spec.path,
                    line=row,
                    field=spec.id_column,
                    found=repr(doc_id)[:200],
                    accepted=ACCEPTED_ID,
                )
            )
        faults = list(text_faults(values.title, values.text))
        for name, code, sentence in faults:
            field = spec.text_column if name == "text" else spec.title_column
            problems.add(
                Problem(
                    code,
                    sentence,
                    file=spec.path,
                    line=row,
                    field=field,
                    accepted="a string without NUL bytes",
                )
            )
        if fault or faults:
            continue
        if first.setdefault(doc_id, row) != row:
            sentence = f"the id was already used in row {first[doc_id]}"
            problems.add(
                Problem(
                    "duplicate_id",
                    sentence,
                    file=spec.path,
                    line=row,
                    field=spec.id_column,
                    found=doc_id,
                    accepted="every id once",
                )
            )
            continue
        document, undated = _document(spec, values, row)
        unreadable += undated
        documents.append(document)
    if not documents and not problems.listed:
        problems.add(
            Problem(
                "empty_corpus", "there is no document", file=spec.path, accepted="at least one row"
            )
        )
    problems.raise_if_any()
    pinned = spec.revision if not path.exists() else None
    return RawCorpus(
        documents, rev=f"{spec.path}@{pinned}" if pinned else "", unreadable_dates=unreadable
    )
