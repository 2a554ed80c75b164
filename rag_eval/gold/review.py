"""Drafts of a gold set, and the decision of a person on one: accept with any text, or drop.

Only the lines of the draft change, so that edits of another program or person are kept.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from rag_eval.core.errors import InputError, ProblemList
from rag_eval.core.rows import Fault, parse_object
from rag_eval.gold.files import rows_of
from rag_eval.gold.lint import DRAFT
from rag_eval.gold.loading import GoldSet
from rag_eval.gold.resolving import Catalogue, locate
from rag_eval.storage.files import atomic_path
from rag_eval.storage.hashing import text_hash

_BEFORE, _AFTER = 240, 400
"""Largest numbers of characters shown around a quote."""
_ONE_WRITER = threading.Lock()
"""The requests of a page are decided in several threads."""


class Draft(NamedTuple):
    """A draft question with the passage around its quote.

    `version` is a hash of the text: a decision is made on the text that the person saw.
    """

    query_id: str
    text: str
    version: str
    target: str
    before: str
    quote: str
    after: str


def list_drafts(gold: GoldSet, documents: pd.DataFrame, sections: pd.DataFrame) -> list[Draft]:
    """List the drafts of a gold set on DOCUMENTS and SECTIONS, in the order of the file.

    `before`, `quote` and `after` are empty if the document has changed and lacks the quote.
    """
    anchors = gold.anchors.drop_duplicates("query_id", ignore_index=True)
    catalogue = Catalogue(documents, sections)
    located = locate(anchors, catalogue, ProblemList(), passages=False)
    texts = documents["text"].tolist()
    bounds = list(zip(sections["start"], sections["end"], strict=True))
    passages: dict[str, tuple[str, str, str]] = {}
    for row in rows_of(located):
        text = texts[row.document]
        low, high = bounds[row.section] if row.section >= 0 else (0, len(text))
        before = text[max(low, row.start - _BEFORE) : row.start]
        after = text[row.end : min(high, row.end + _AFTER)]
        passage = (before, text[row.start : row.end], after)
        passages[anchors["query_id"][row.anchor]] = passage
    targets = dict(zip(gold.judgements["query_id"], gold.judgements["target"], strict=True))
    return [
        Draft(
            query.query_id,
            query.text,
            text_hash(query.text),
            targets.get(query.query_id, ""),
            *passages.get(query.query_id, ("", "", "")),
        )
        for query in rows_of(gold.queries)
        if DRAFT in query.tags
    ]


class StaleDraftError(Exception):
    """The draft has changed, or was decided, since the person saw it."""


def _query_id(line: bytes) -> str | None:
    """Return the question of a row of answers, paraphrases or judgements."""
    if not line.lstrip().startswith(b"{"):
        return line.split(b"\t")[0].strip().decode("utf-8", "replace")
    row = parse_object(line)
    return None if isinstance(row, Fault) else row.get("query_id")


def _write(path: Path, lines: Sequence[bytes]) -> None:
    with atomic_path(path, path.stat().st_mode & 0o777) as partial:
        partial.write_bytes(b"".join(lines))


def _find(lines: Sequence[bytes], query_id: str, version: str) -> tuple[int, Mapping[str, Any]]:
    for place, line in enumerate(lines):
        row = parse_object(line.removeprefix(b"\xef\xbb\xbf")) if line.strip() else {}
        if isinstance(row, Fault) or row.get("query_id") != query_id:
            continue
        if DRAFT in row.get("tags", ()) and text_hash(str(row.get("text"))) == version:
            return place, row
    raise StaleDraftError


def decide(folder: Path, query_id: str, version: str, text: str | None) -> None:
    """Accept a draft with `text`, or drop the draft with its evidence where `text` is None.

    Each file is replaced as a whole. A dropped question leaves its own file last, so that a killed
    process leaves a draft that can be dropped again. Raises StaleDraftError, and InputError
    (`missing_file`) without a file of questions.
    """
    questions = folder / "queries.jsonl"
    if not questions.is_file():
        raise InputError.of("missing_file", "the file of questions does not exist", questions)
    with _ONE_WRITER:
        lines = questions.read_bytes().splitlines(keepends=True)
        place, row = _find(lines, query_id, version)
        if text is not None:
            tags = [tag for tag in row["tags"] if tag != DRAFT]
            changed = json.dumps({**row, "text": text, "tags": tags}, ensure_ascii=False)
            end = lines[place][len(lines[place].rstrip(b"\r\n")) :]
            lines[place] = changed.encode() + end
        else:
            for name in ("qrels.tsv", "answers.jsonl", "paraphrases.jsonl"):
                path = folder / name
                old = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
                others = [line for line in old if _query_id(line) != query_id]
                if len(others) < len(old):
                    _write(path, others)
            del lines[place]
        _write(questions, lines)
