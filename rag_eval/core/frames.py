"""Column schemas of the frames that stages hand to each other, stored as Parquet."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """Kind (`str`, `int`, `float`, `bool` or `list`) and meaning of a column."""

    kind: str
    meaning: str


@dataclasses.dataclass(frozen=True, slots=True)
class FrameSchema:
    """Name and columns of a frame."""

    name: str
    columns: Mapping[str, Column]

    def check(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        """Return the frame with its columns in order.

        Raises TypeError where a column is missing, left over, or of another kind.
        """
        missing = [name for name in self.columns if name not in frame.columns]
        extra = [name for name in frame.columns if name not in self.columns]
        if missing or extra:
            raise TypeError(f"frame {self.name}: missing columns {missing}, left over {extra}")
        accepted = {"str": "OTSU", "list": "O", "int": "iu", "float": "f", "bool": "b"}
        for name, column in self.columns.items():
            dtype = frame[name].dtype
            if dtype.kind not in accepted[column.kind]:
                raise TypeError(f"frame {self.name}: {name} has dtype {dtype}, not {column.kind}")
        return frame[list(self.columns)]


_SHARED: Mapping[str, tuple[str, str]] = {
    "answerable": ("bool", "whether the corpus holds an answer"),
    "doc_id": ("str", "its document"),
    "end": ("int", "one past the last character"),
    "group_id": ("str", "unit of inference"),
    "paraphrase_id": ("str", "`original` or the paraphrase's id"),
    "query_id": ("str", "the question"),
    "seed": ("int", "the seed that the retriever was given"),
    "start": ("int", "first character in the document's text"),
    "strategy": ("str", "who retrieved"),
}
"""Kind and meaning of columns of several frames."""


def schema(name: str, order: str = "", /, **columns: tuple[str, str]) -> FrameSchema:
    """Make a schema from `column=(kind, meaning)`.

    `order` has the names of all columns between blanks, if some are of _SHARED.
    """
    named = {**_SHARED, **columns}
    return FrameSchema(name, {key: Column(*named[key]) for key in order.split() or columns})


_DTYPES = {"str": "str", "int": "int64", "float": "float64", "bool": "bool", "list": "object"}


def make_frame(frame_schema: FrameSchema, rows: Sequence[tuple[Any, ...]]) -> "pd.DataFrame":
    """Make a frame from rows in the order of the schema's columns; `rows` may be empty."""
    import pandas as pd

    frame = pd.DataFrame(list(rows), columns=list(frame_schema.columns))
    dtypes = {name: _DTYPES[column.kind] for name, column in frame_schema.columns.items()}
    return frame_schema.check(frame.astype(dtypes))


DOCUMENTS = schema(
    "documents",
    doc_id=("str", "stable across revisions; unique"),
    title=("str", "shown and indexed before each chunk; may be empty"),
    text=("str", "the source text after masking; offsets count its characters"),
    rev=("str", "revision of this document"),
    content_hash=("str", "sha256 of the masked text, hex"),
    source_url=("str", "where a person can open it"),
    kind=("str", "numpydoc | markdown | rst | pages | text | passages (only sections are known)"),
    names=("list", "every name this document is known by, its doc_id first"),
    page=("str", "page of its source where it starts; empty where the source names none"),
)
SECTIONS = schema(
    "sections",
    "section_id doc_id title start end",
    section_id=("str", "unique: <doc_id>#<path of slugs>; the doc_id without headings"),
    title=("str", "the heading"),
)
SOURCES = schema(
    "sources",
    doc_id=("str", "its document, in the order of documents"),
    source_hash=("str", "sha256 of the bytes as the source gives them, before masking, hex"),
    author=("str", "stated author, masked; empty where none is stated"),
    author_hash=(
        "str",
        "sha256 of the name in lower case with single spaces; empty without an author",
    ),
    date=("str", "YYYY-MM-DD of its last change; empty where it is not known"),
    domain=("str", "host in lower case (xn-- form), python:<package>, or empty"),
)
CHUNKS = schema(
    "chunks",
    "chunk_id doc_id section_id start end tokens title text text_hash",
    chunk_id=("str", "hash of (doc_id, document content hash, chunker, start, end); = snippet_id"),
    section_id=("str", "the section its first character lies in, white space aside"),
    tokens=("int", "number of word tokens"),
    title=("str", "put before the text when it is indexed"),
    text=("str", "document text[start:end]"),
    text_hash=("str", "sha256 of the indexed text (title + ' ' + text).strip(), hex"),
)
QUERIES = schema(
    "queries",
    "query_id text answerable tags group_id",
    query_id=("str", "unique"),
    text=("str", "the question"),
    tags=("list", "of the gold set"),
    group_id=("str", "connected component over shared gold documents; the unit of inference"),
)
VARIANTS = schema(
    "variants",
    "query_id paraphrase_id text group_id answerable",
    text=("str", "the wording that is sent to the retriever"),
)
QRELS = schema(
    "qrels",
    "query_id item_id gain",
    item_id=("str", "doc_id, section_id or span_id, by level"),
    gain=("int", "relevance grade; 0 = judged not relevant"),
)
SPANS = schema(
    "spans",
    "span_id query_id doc_id start end",
    span_id=("str", "hash of (query_id, doc_id, start, end)"),
)
RUN = schema(
    "run",
    "variant seed chunk k_pos k_final score_raw score_norm rerank_score",
    variant=("int", "row of the variants frame"),
    chunk=("int", "row of the chunks frame"),
    k_pos=("int", "rank before reranking, from 1"),
    k_final=("int", "rank after reranking, from 1"),
    score_raw=("float", "the engine's own score"),
    score_norm=("float", "score normalised to [0, 1] within the query"),
    rerank_score=("float", "score of the rerank step; NaN where none ran"),
)

# ---- Answers: one row a citation

CITATIONS = schema(
    "citations",
    "query_id segment doc_id start end code field correct",
    segment=("int", "sentence of the answer, from 0"),
    code=("str", "first rule that it breaks, or ok"),
    field=("str", "field that breaks it; empty for ok"),
    correct=("bool", "valid, and overlaps a gold span by half of the shorter"),
)
