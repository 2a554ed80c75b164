"""Schemas of the frames inside a gold set, and the one way to make a frame from rows.

Belongs here: frames that only this stage and its readers know. What other stages are handed is in `rag_eval.records.frames`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.records.frames import Column, FrameSchema

_FILE = Column("str", "the file it was read from")
_LINE = Column("int", "line in that file, from 1")

PARAPHRASES = FrameSchema(
    "paraphrases",
    {
        "query_id": Column("str", "the gold query"),
        "paraphrase_id": Column("str", "unique within the query; never `original`"),
        "text": Column("str", "the other wording"),
        "source": Column("str", "who or what made it; may be empty"),
        "file": _FILE,
        "line": _LINE,
    },
)

QUERY_PLACES = FrameSchema(
    "query_places",
    {
        "query_id": Column("str", "the gold query, in the order of the queries frame"),
        "has_flag": Column("bool", "whether the file says if the question is answerable"),
        "file": _FILE,
        "line": _LINE,
    },
)

JUDGEMENTS = FrameSchema(
    "judgements",
    {
        "query_id": Column("str", "the gold query"),
        "target": Column("str", "name of a document, or a section id, as it stands in the file"),
        "gain": Column("int", "relevance grade; 0 = judged not relevant"),
        "explicit": Column(
            "bool", "from qrels; false where an answer row names its document or section"
        ),
        "file": _FILE,
        "line": _LINE,
    },
)

ANCHORS = FrameSchema(
    "anchors",
    {
        "query_id": Column("str", "the gold query"),
        "doc": Column("str", "name of the document, as it stands in the file"),
        "section": Column("str", "section id that narrows the search; empty where none was given"),
        "quote": Column(
            "str", "verbatim text of the document; empty where only offsets were given"
        ),
        "start": Column(
            "int", "first character in the document's text; -1 where only a quote was given"
        ),
        "end": Column("int", "one past the last character; -1 where only a quote was given"),
        "label": Column(
            "str", "SUPPORT, CONTRADICT or another label of the evidence; may be empty"
        ),
        "file": _FILE,
        "line": _LINE,
    },
)

DECOYS = FrameSchema(
    "decoys",
    {
        "query_id": Column("str", "the gold query"),
        "target": Column("str", "name of a document, or a section id, that looks right and is not"),
        "file": _FILE,
        "line": _LINE,
    },
)

REFERENCE_ANSWERS = FrameSchema(
    "reference_answers",
    {
        "query_id": Column("str", "the gold query"),
        "text": Column("str", "an accepted answer"),
    },
)

RESOLVED_DECOYS = FrameSchema(
    "resolved_decoys",
    {
        "query_id": Column("str", "the gold query"),
        "doc_id": Column("str", "the document"),
        "section_id": Column("str", "the section; empty where the whole document is the decoy"),
    },
)

SPAN_CHUNKS = FrameSchema(
    "span_chunks",
    {
        "span": Column("int", "row of the spans frame"),
        "chunk": Column("int", "row of the chunks frame"),
    },
)

_DTYPES = {"str": "str", "int": "int64", "float": "float64", "bool": "bool"}


def make_frame(schema: FrameSchema, rows: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    """Frame of a schema from rows in the order of its columns; the kinds are right for no rows at all too."""
    columns: dict[str, Any] = {}
    for place, (name, column) in enumerate(schema.columns.items()):
        values = [row[place] for row in rows]
        if column.kind == "list":
            holder = np.empty(len(values), dtype=object)
            holder[:] = values
            columns[name] = pd.Series(holder, dtype=object)
        else:
            columns[name] = pd.Series(values, dtype=_DTYPES[column.kind])
    return schema.check(pd.DataFrame(columns, columns=list(schema.columns)))


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """Rows as named tuples whose cells have the kinds of their columns; pandas' own type for a cell is a union of everything."""
    return iter(frame.itertuples(index=False))
