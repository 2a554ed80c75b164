"""Quoted evidence -> character spans of the documents of this revision. A quote must stand there exactly once.

Belongs here: finding and checking. What carries a span is in `spans`.
"""

import dataclasses

import numpy as np
import pandas as pd

from rag_eval.gold.frames import rows_of
from rag_eval.gold.problem_list import ProblemList
from rag_eval.gold.targets import Catalogue, find_targets, report_dangling
from rag_eval.records.problems import quoted


@dataclasses.dataclass(frozen=True, slots=True)
class Located:
    """Anchors that were found: `anchor` (row of the anchors frame), `document` (row), `section` (row that holds the first character, or -1), `start`, `end`."""

    anchor: np.ndarray
    document: np.ndarray
    section: np.ndarray
    start: np.ndarray
    end: np.ndarray


def _lines(text: str, *places: int) -> str:
    return " and ".join(f"line {text.count(chr(10), 0, place) + 1}" for place in places)


def _quote(
    text: str, quote: str, low: int, high: int, *, passages: bool = False
) -> tuple[int, str, str]:
    """(start, code, found) of a quote within text[low:high]; start is -1 with a code."""
    first = text.find(quote, low, high)
    if first < 0:
        folded = " ".join(quote.split()) in " ".join(text[low:high].split())
        hint = "; it is there with other white space: copy it verbatim" if folded else ""
        return -1, "anchor_not_found", f"{quoted(quote)}{hint}"
    second = text.find(quote, first + 1, high)
    if second >= 0 and not passages:
        return (
            -1,
            "anchor_ambiguous",
            f"{quoted(quote)} in {_lines(text, first, second)} of the document",
        )
    return first, "", ""


def _offsets(text: str, quote: str, start: int, end: int) -> tuple[int, str, str]:
    """(start, code, found) of given offsets; a text beside them must stand there, or exactly once elsewhere (masking may move it)."""
    if end > len(text):
        return (
            -1,
            "bad_offsets",
            f"start {start}, end {end} in a document of {len(text)} characters",
        )
    if quote and text[start:end] != quote:
        moved, code, _ = _quote(text, quote, 0, len(text))
        return (
            (-1, "offset_mismatch", f"{quoted(text[start:end])} where {quoted(quote)} should be")
            if code
            else (moved, "", "")
        )
    return start, "", ""


_ACCEPTED = {
    "anchor_not_found": ("the quote is not in the document", "verbatim text of the document"),
    "anchor_ambiguous": (
        "the quote stands in the document more than once",
        "a longer quote that stands there once, or a section_id beside it",
    ),
    "bad_offsets": ("the offsets lie outside the document", "0 <= start < end <= length"),
    "offset_mismatch": (
        "other text stands at the offsets",
        "the offsets of the text in this revision",
    ),
    "section_of_other_document": (
        "the section belongs to another document",
        "a section of the document named beside it",
    ),
}


def _section_of(document: np.ndarray, start: np.ndarray, corpus: Catalogue) -> np.ndarray:
    """Row of the innermost section that holds each place; -1 for none."""
    if not len(corpus.sections) or not len(document):
        return np.full(len(document), -1, dtype=np.int64)
    order = np.lexsort(
        (
            -corpus.sections["end"].to_numpy(),
            corpus.sections["start"].to_numpy(),
            corpus.section_document,
        )
    )
    size = int(max(corpus.sections["end"].max(), start.max())) + 2
    keys = corpus.section_document[order] * size + corpus.sections["start"].to_numpy()[order]
    position = np.searchsorted(keys, document * size + start, side="right") - 1
    result = np.full(len(document), -1, dtype=np.int64)
    ends = corpus.sections["end"].to_numpy()
    open_ = position >= 0
    while open_.any():  # one step a level of nesting: an inner section that ended before the place is left for the one around it
        row = order[np.maximum(position, 0)]
        same = open_ & (corpus.section_document[row] == document)
        holds = same & (ends[row] > start)
        result[holds] = row[holds]
        open_ = same & ~holds & (position > 0)
        position = position - 1
    return result


def locate(
    anchors: pd.DataFrame, corpus: Catalogue, problems: ProblemList, *, passages: bool = False
) -> Located:
    """Find every anchor (ANCHORS) in the documents.

    A quote is looked for in its document, or in its section where a `section_id` stands beside it. Problems: `dangling_target`,
    `section_of_other_document`, `anchor_not_found`, `anchor_ambiguous`, `bad_offsets`, `offset_mismatch`; such anchors are left out.

    With `passages`, only passages of the documents are known: offsets say nothing (`bad_offsets` where no quote stands beside them), and a
    quote that stands in two overlapping passages is found in the first.
    """
    named = find_targets(anchors["doc"], corpus)
    report_dangling(anchors, "doc", named, corpus, problems, field="doc_id")
    given = (anchors["section"] != "").to_numpy()
    narrowed = find_targets(anchors["section"], corpus)
    sectioned = anchors[given]
    within = find_targets(sectioned["section"], corpus)
    report_dangling(sectioned, "section", within, corpus, problems, field="section_id")
    section = np.where(given, narrowed.section, named.section)
    texts = corpus.documents["text"].to_numpy(dtype=object)
    starts, ends = corpus.sections["start"].to_numpy(), corpus.sections["end"].to_numpy()
    rows: list[tuple[int, int, int, int]] = []
    usable = (named.document >= 0) & (~given | (narrowed.document >= 0))
    for anchor, row in enumerate(rows_of(anchors)):
        if not usable[anchor]:
            continue
        document, part = int(named.document[anchor]), int(section[anchor])
        text = texts[document]
        if given[anchor] and narrowed.document[anchor] != document:
            start, code, found = (
                -1,
                "section_of_other_document",
                f"{quoted(row.section)}, {quoted(row.doc)}",
            )
        elif passages and row.start >= 0 and not row.quote:
            start, code, found = (
                -1,
                "bad_offsets",
                f"start {row.start}, end {row.end} of a document of which only passages are known",
            )
        elif row.start >= 0 and not passages:
            start, code, found = _offsets(text, row.quote, row.start, row.end)
        else:
            start, code, found = _quote(
                text,
                row.quote,
                *((int(starts[part]), int(ends[part])) if part >= 0 else (0, len(text))),
                passages=passages,
            )
        if code:
            message, accepted = _ACCEPTED[code]
            problems.add(
                code,
                message,
                file=row.file,
                line=int(row.line),
                field="anchors",
                found=found,
                accepted=accepted,
            )
        else:
            rows.append((anchor, document, start, start + (len(row.quote) or row.end - row.start)))
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return Located(
        table[:, 0],
        table[:, 1],
        _section_of(table[:, 1], table[:, 2], corpus),
        table[:, 2],
        table[:, 3],
    )
