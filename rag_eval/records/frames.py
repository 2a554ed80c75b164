"""Column schemas of the frames that stages hand to each other, and the one check that a frame keeps its schema.

A schema maps a column to its Arrow type and its meaning. Frames are stored as Parquet with exactly these columns.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column: its kind (`str`, `int`, `float`, `bool`, `list`) and what it means."""

    kind: str
    meaning: str


@dataclasses.dataclass(frozen=True, slots=True)
class FrameSchema:
    """Name and columns of a frame."""

    name: str
    columns: Mapping[str, Column]

    def check(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        """Return the frame with its columns in order.

        Raises
        ------
        TypeError
            A column is missing, left over, or of another kind: a defect of the stage that made it.
        """
        missing = [name for name in self.columns if name not in frame.columns]
        extra = [name for name in frame.columns if name not in self.columns]
        if missing or extra:
            raise TypeError(
                f"frame {self.name}: missing columns {missing}, columns without meaning {extra}"
            )
        accepted = {"str": "OTSU", "list": "O", "int": "iu", "float": "f", "bool": "b"}
        for name, column in self.columns.items():
            kind = frame[name].dtype.kind
            if kind not in accepted[column.kind]:
                raise TypeError(
                    f"frame {self.name}: column {name} has dtype {frame[name].dtype}, not {column.kind}"
                )
        return frame[list(self.columns)]


def schema(name: str, **columns: tuple[str, str]) -> FrameSchema:
    """Make a schema from `column=(kind, meaning)`."""
    return FrameSchema(
        name, {key: Column(kind, meaning) for key, (kind, meaning) in columns.items()}
    )


DOCUMENTS = schema(
    "documents",
    doc_id=("str", "stable across revisions; unique"),
    title=("str", "shown and indexed before each chunk; may be empty"),
    text=("str", "the source text after masking; offsets count its characters"),
    rev=("str", "revision of this document"),
    content_hash=("str", "sha256 of the masked text, hex"),
    source_url=("str", "where a person can open it"),
    kind=(
        "str",
        "numpydoc | markdown | text | passages (all that is known of it are its sections)",
    ),
    names=("list", "every name this document is known by, its doc_id first"),
)

SECTIONS = schema(
    "sections",
    section_id=(
        "str",
        "unique in the corpus: <doc_id>#<path of slugs>, or the doc_id itself where a document has no headings",
    ),
    doc_id=("str", "its document"),
    title=("str", "the heading"),
    start=("int", "first character in the document's text"),
    end=("int", "one past the last character"),
)

CHUNKS = schema(
    "chunks",
    chunk_id=("str", "hash of (doc_id, document content hash, chunker, start, end); = snippet_id"),
    doc_id=("str", "its document"),
    section_id=("str", "the section its first character lies in, white space aside"),
    start=("int", "first character in the document's text"),
    end=("int", "one past the last character"),
    tokens=("int", "number of word tokens"),
    title=("str", "put before the text when it is indexed"),
    text=("str", "document text[start:end]"),
    text_hash=("str", "sha256 of the indexed text (title + ' ' + text).strip(), hex"),
)

QUERIES = schema(
    "queries",
    query_id=("str", "unique"),
    text=("str", "the question"),
    answerable=("bool", "whether the corpus holds an answer"),
    tags=("list", "for slices"),
    group_id=("str", "connected component over shared gold documents; the unit of inference"),
)

VARIANTS = schema(
    "variants",
    query_id=("str", "the gold query"),
    paraphrase_id=("str", "`original` or the paraphrase's id"),
    text=("str", "the wording that is sent to the retriever"),
    group_id=("str", "unit of inference"),
    answerable=("bool", "whether the corpus holds an answer"),
)

QRELS = schema(
    "qrels",
    query_id=("str", "the gold query"),
    item_id=("str", "doc_id, section_id or span_id, by level"),
    gain=("int", "relevance grade; 0 = judged not relevant"),
)

SPANS = schema(
    "spans",
    span_id=("str", "hash of (query_id, doc_id, start, end)"),
    query_id=("str", "the gold query"),
    doc_id=("str", "the document that holds it"),
    start=("int", "first character in the document's text"),
    end=("int", "one past the last character"),
)

RUN = schema(
    "run",
    variant=("int", "row of the variants frame"),
    seed=("int", "the seed that the retriever was given"),
    chunk=("int", "row of the chunks frame"),
    k_pos=("int", "rank before reranking, from 1"),
    k_final=("int", "rank after reranking, from 1"),
    score_raw=("float", "the engine's own score"),
    score_norm=("float", "score normalised to [0, 1] within the query"),
    rerank_score=("float", "score of the rerank step; NaN where none ran"),
)
