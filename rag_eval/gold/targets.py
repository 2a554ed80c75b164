"""Names in gold files -> rows of the corpus frames: which document or section a target is in this revision of the corpus.

Belongs here: looking names up and saying what is gone. Where a quote stands inside a document is found in `anchors`.
"""

import collections
import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np
import pandas as pd

from rag_eval.corpus.sections import slug
from rag_eval.gold.frames import rows_of
from rag_eval.gold.problem_list import ProblemList
from rag_eval.records.problems import quoted

_MAX_SUGGESTIONS = 10
"""Lookups that get a did-you-mean: comparing with every name of a large corpus is slow, and nobody reads more."""
_MAX_COMPARED = 20_000


@dataclasses.dataclass(frozen=True, slots=True)
class Catalogue:
    """The corpus as gold files name it: row of each document name, row of each section id, and the document row of each section."""

    documents: pd.DataFrame
    sections: pd.DataFrame
    document_row: Mapping[str, int]
    section_row: Mapping[str, int]
    section_document: np.ndarray


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """Where n targets are: `document` and `section` rows, -1 for none. A named section has its document's row too."""

    document: np.ndarray
    section: np.ndarray


def catalogue(documents: pd.DataFrame, sections: pd.DataFrame) -> Catalogue:
    """Index DOCUMENTS and SECTIONS by name. A doc_id wins over another document's alias; of two equal aliases the first document wins."""
    document_row: dict[str, int] = {}
    for row, names in enumerate(documents["names"]):
        for name in names:
            document_row.setdefault(name, row)
    document_row.update({doc_id: row for row, doc_id in enumerate(documents["doc_id"])})
    section_row = {section_id: row for row, section_id in enumerate(sections["section_id"])}
    owner = pd.Index(documents["doc_id"]).get_indexer(pd.Index(sections["doc_id"]))
    return Catalogue(documents, sections, document_row, section_row, owner)


def _by_heading(corpus: Catalogue) -> dict[tuple[int, str], int]:
    """Row of each section by its document and the slug of its heading; headings that a document has twice are left out."""
    keys = list(
        zip(corpus.section_document.tolist(), map(slug, corpus.sections["title"]), strict=True)
    )
    uses = collections.Counter(keys)
    return {key: row for row, key in enumerate(keys) if uses[key] == 1}


def _section(
    target: str, corpus: Catalogue, headings: Callable[[], Mapping[tuple[int, str], int]]
) -> int:
    """Row of a section, its document named by its id or by an alias; -1 for none."""
    row = corpus.section_row.get(target, -1)
    place = target.find("#")
    while row < 0 and place >= 0:
        owner = corpus.document_row.get(target[:place], -1)
        if owner >= 0:
            row = corpus.section_row.get(
                f"{corpus.documents['doc_id'].iloc[owner]}{target[place:]}", -1
            )
            if row < 0:
                row = headings().get((owner, slug(target[place + 1 :].rsplit("/", 1)[-1])), -1)
        place = target.find("#", place + 1)
    return row


def find_targets(targets: Iterable[str], corpus: Catalogue) -> Found:
    """Look every target up: a document by any of its names, else a section of it.

    A section is named by its id, its document by any name (`isna#notes` for `pandas.isna#notes`), or by its heading where the document has
    that heading once (`guide.md#Retry limits`, `guide.md#retry-limits`).
    """
    headings = functools.cache(lambda: _by_heading(corpus))
    names = np.asarray(list(targets), dtype=object)
    codes, unique = pd.factorize(names)
    document = np.array([corpus.document_row.get(name, -1) for name in unique], dtype=np.int64)
    section = np.array(
        [
            _section(name, corpus, headings) if row < 0 else -1
            for name, row in zip(unique, document, strict=True)
        ],
        dtype=np.int64,
    )
    if len(corpus.section_document):
        document = np.where(section >= 0, corpus.section_document[section], document)
    return Found(document[codes], section[codes])


def _accepted(target: str, corpus: Catalogue) -> str:
    """Name what may stand there: the nearest section ids of the document, or the nearest document names."""
    owner = corpus.document_row.get(target.partition("#")[0], -1)
    if owner >= 0:
        choices = corpus.sections["section_id"][corpus.section_document == owner].tolist()
        near = difflib.get_close_matches(target, choices, n=3) or choices[:3]
    else:
        choices = [
            name
            for name in corpus.document_row
            if abs(len(name) - len(target)) <= len(target) // 2 + 1
        ]
        near = (
            difflib.get_close_matches(target, choices, n=3) if len(choices) <= _MAX_COMPARED else []
        )
    shown = f"; did you mean {' or '.join(quoted(name) for name in near)}?" if near else ""
    return f"a document name or section id of this revision of the corpus{shown}"


def report_dangling(
    rows: pd.DataFrame,
    column: str,
    found: Found,
    corpus: Catalogue,
    problems: ProblemList,
    *,
    field: str,
    severity: Literal["error", "warning"] = "error",
) -> None:
    """Report every row whose target is not in the corpus (`dangling_target`). `rows` has the column, `file` and `line`."""
    gone = rows[found.document < 0]
    cached: dict[str, str] = {}
    for target, file, line in rows_of(gone[[column, "file", "line"]]):
        if target not in cached:
            cached[target] = (
                _accepted(target, corpus)
                if len(cached) < _MAX_SUGGESTIONS
                else "a document name or section id of this revision of the corpus"
            )
        problems.add(
            "dangling_target",
            "this document or section is not in this revision of the corpus",
            file=file,
            line=int(line),
            field=field,
            found=quoted(target),
            accepted=cached[target],
            severity=severity,
        )
