"""Find the relevant places of a gold set in one revision of a corpus, and their chunks.

Relevance is by document, section and span. The steps look up names, then quotes, then chunks.
"""

import collections
import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.arrays import Ranges, find_overlaps
from rag_eval.core.errors import Place, Problem, ProblemList, Severity, quoted
from rag_eval.core.fields import decode_id
from rag_eval.core.frames import QRELS, SPANS
from rag_eval.core.types import Level
from rag_eval.corpus.chunking import slug
from rag_eval.gold.files import report_row, rows_of
from rag_eval.gold.loading import GoldSet, document_part, group_queries
from rag_eval.storage.hashing import digest

# ---- Names in gold files -> rows of the corpus frames.

_MAX_SUGGESTIONS = 10
"""Most lookups with a suggestion, because comparing every name of a large corpus is slow."""
_MAX_COMPARED = 20_000
_TARGET = "a document name or section id of this revision of the corpus"


class Catalogue:
    """A corpus (DOCUMENTS, SECTIONS) as gold files name it.

    A doc_id wins over an alias of another document; of two equal aliases the first document wins.
    """

    def __init__(self, documents: pd.DataFrame, sections: pd.DataFrame) -> None:
        self.documents, self.sections = documents, sections
        self.doc_ids = documents["doc_id"].to_numpy(dtype=object)
        self.section_ids = sections["section_id"].to_numpy(dtype=object)
        self.document_row: dict[str, int] = {}
        for row, names in enumerate(documents["names"]):
            for name in names:
                self.document_row.setdefault(name, row)
        self.document_row.update({doc_id: row for row, doc_id in enumerate(self.doc_ids)})
        self.section_row = {section_id: row for row, section_id in enumerate(self.section_ids)}
        self.section_document = pd.Index(documents["doc_id"]).get_indexer(
            pd.Index(sections["doc_id"])
        )
        self._sections_of: dict[int, list[tuple[int, int, int]]] = collections.defaultdict(list)
        bounds = zip(sections["start"].tolist(), sections["end"].tolist(), strict=True)
        for row, (owner, (low, high)) in enumerate(
            zip(self.section_document.tolist(), bounds, strict=True)
        ):
            self._sections_of[owner].append((low, -high, row))

    @functools.cached_property
    def _section_by_heading(self) -> Mapping[tuple[int, str], int]:
        """Section rows by document row and slug of the heading; repeated headings are left out."""
        slugs = map(slug, self.sections["title"])
        keys = list(zip(self.section_document.tolist(), slugs, strict=True))
        uses = collections.Counter(keys)
        return {key: row for row, key in enumerate(keys) if uses[key] == 1}

    def _find_section(self, target: str) -> int:
        """Find a section row by id, or by any document name with id or heading; -1 for none."""
        name, _, place = target.partition("#")
        owner = self.document_row.get(name, -1)
        if target in self.section_row or owner < 0:
            return self.section_row.get(target, -1)
        heading = self._section_by_heading.get((owner, slug(place.rsplit("/", 1)[-1])), -1)
        return self.section_row.get(f"{self.doc_ids[owner]}#{place}", heading)

    def _find_one(self, target: str) -> tuple[int, int]:
        document = self.document_row.get(target, -1)
        section = self._find_section(target) if document < 0 else -1
        return (self.section_document[section] if section >= 0 else document), section

    def find_innermost(self, document: int, start: int) -> int:
        """Return the row of the innermost section around a place; -1 for none."""
        around = (
            section for section in self._sections_of[document] if section[0] <= start < -section[1]
        )
        return max(around, default=(0, 0, -1))[2]

    def find(self, targets: Iterable[str]) -> pd.DataFrame:
        """Look up every target: a document by any of its names, else a section.

        Returns the columns `document` and `section`, rows of the corpus frames, -1 for none. A
        target that is a section has the row of its document too. The target of a section is its id,
        also with another name of the document (`isna#notes` for `pandas.isna#notes`), or its
        heading if the document has that heading once (`guide.md#Retry limits`).
        """
        codes, unique = pd.factorize(np.asarray(list(targets), dtype=object))
        rows = []
        for name in unique:
            document, section = self._find_one(name)
            if document < 0:  # our TREC exports percent-encode ids
                document, section = self._find_one(decode_id(name))
            rows.append((document, section))
        table = np.array(rows, dtype=np.int64).reshape(-1, 2)[codes]
        return pd.DataFrame(table, columns=["document", "section"])

    def accepted(self, target: str) -> str:
        """Suggest accepted values: similar section ids of the document, else document names."""
        owner, choices = self.document_row.get(document_part(target), -1), list(self.document_row)
        if owner >= 0:
            choices = self.section_ids[self.section_document == owner].tolist()
        few = len(choices) <= _MAX_COMPARED
        near = difflib.get_close_matches(target, choices, n=3) if few else []
        return _TARGET + (f"; did you mean {' or '.join(map(quoted, near))}?" if near else "")


def _report_dangling(  # noqa: PLR0917 - rows, and the look-up of their targets
    rows: pd.DataFrame,
    places: pd.DataFrame,
    corpus: Catalogue,
    problems: ProblemList,
    field: str,
    severity: Severity = "error",
) -> None:
    """Report every row with a target that the corpus lacks (`dangling_target`)."""
    accepted: dict[str, str] = {}
    message = "this document or section is not in this revision of the corpus"
    for row in rows_of(rows[places["document"].to_numpy() < 0]):
        if row.target not in accepted:
            few = len(accepted) < _MAX_SUGGESTIONS
            accepted[row.target] = corpus.accepted(row.target) if few else _TARGET
        more: Place = {"field": field, "found": quoted(row.target), "severity": severity}
        more["accepted"] = accepted[row.target]
        report_row(problems, row, "dangling_target", message, **more)


# ---- Quoted evidence -> character spans of the documents. A quote must stand there exactly once.


_MISPLACED = {
    "anchor_not_found": (
        "the quote is not in the document",
        "text of the document word for word; line breaks and spaces may differ",
    ),
    "anchor_ambiguous": (
        "the quote occurs in the document more than once",
        "a longer quote that occurs once, or a section_id beside it",
    ),
    "bad_offsets": ("the offsets lie outside the document", "0 <= start < end <= length"),
    "offset_mismatch": (
        "the text at the offsets is another",
        "the offsets of the text in this revision",
    ),
    "section_of_other_document": (
        "the section belongs to another document",
        "a section of the document named beside it",
    ),
}
"""Message and accepted values of each code."""


class MisplacedError(Exception):
    """A misplaced anchor, with its code and the found text."""


def find_quote(text: str, quote: str, low: int, high: int, *, passages: bool) -> tuple[int, int]:
    """Find the only place of a quote in text[low:high]; in passages, which overlap, the first.

    A quote that does not stand there exactly may differ from the text in runs of white space.
    """
    first = text.find(quote, low, high)
    if first >= 0:
        end, second = first + len(quote), text.find(quote, first + 1, high)
    else:
        words = re.compile(r"\s+".join(map(re.escape, quote.split())))
        similar = words.search(text, low, high)
        if similar is None:
            raise MisplacedError("anchor_not_found", quoted(quote))
        first, end = similar.span()
        again = words.search(text, first + 1, high)
        second = -1 if again is None else again.start()
    if second >= 0 and not passages:
        lines = (f"line {text.count(chr(10), 0, place) + 1}" for place in (first, second))
        places = f"{quoted(quote)} in {' and '.join(lines)} of the document"
        raise MisplacedError("anchor_ambiguous", places)
    return first, end


def _find_offsets(text: str, quote: str, start: int, end: int) -> tuple[int, int]:
    """Check offsets; if masking has moved the quote, return its only other place."""
    if end > len(text):
        shown = f"start {start}, end {end} in a document of {len(text)} characters"
        raise MisplacedError("bad_offsets", shown)
    if not quote or text[start:end] == quote:
        return start, end
    try:
        return find_quote(text, quote, 0, len(text), passages=False)
    except MisplacedError:
        shown = f"{quoted(text[start:end])} where {quoted(quote)} should be"
        raise MisplacedError("offset_mismatch", shown) from None


def _find_anchor(
    row: Any, text: str, bounds: tuple[int, int] | None, *, passages: bool
) -> tuple[int, int]:
    """Find start and end of an anchor: by its offsets, or by its quote within the bounds.

    Without bounds, the section of the anchor belongs to another document.
    """
    if bounds is None:
        shown = f"{quoted(row.section)}, {quoted(row.doc)}"
        raise MisplacedError("section_of_other_document", shown)
    if passages and row.start >= 0 and not row.quote:
        shown = f"start {row.start} of a document of which only passages are known"
        raise MisplacedError("bad_offsets", shown)
    if row.start >= 0 and not passages:
        return _find_offsets(text, row.quote, row.start, row.end)
    return find_quote(text, row.quote, *bounds, passages=passages)


def locate(
    anchors: pd.DataFrame, corpus: Catalogue, problems: ProblemList, *, passages: bool
) -> pd.DataFrame:
    """Find every anchor (ANCHORS) in its section, or in its document if the row names no section.

    Returns anchor, document, section (of the first character, or -1), start and end of those that
    were found. Problems: `dangling_target` and those of `_MISPLACED`. With `passages`, only
    passages of the documents are known, so offsets need a quote.
    """
    by_document, narrowed = corpus.find(anchors["doc"]), corpus.find(anchors["section"])
    has_section = (anchors["section"] != "").to_numpy()
    by_doc, by_section = (anchors.rename(columns={name: "target"}) for name in ("doc", "section"))
    _report_dangling(by_doc, by_document, corpus, problems, "doc_id")
    _report_dangling(by_section[has_section], narrowed[has_section], corpus, problems, "section_id")
    sections = narrowed["section"].where(has_section, by_document["section"]).tolist()
    documents, owners = by_document["document"].tolist(), narrowed["document"].tolist()
    texts = corpus.documents["text"].to_numpy(dtype=object)
    starts, ends = corpus.sections["start"].tolist(), corpus.sections["end"].tolist()
    rows: list[tuple[int, ...]] = []
    for anchor, row in enumerate(rows_of(anchors)):
        document, part, owner = documents[anchor], sections[anchor], owners[anchor]
        if document < 0 or (has_section[anchor] and owner < 0):
            continue
        text = texts[document]
        try:
            whole = (starts[part], ends[part]) if part >= 0 else (0, len(text))
            bounds = None if has_section[anchor] and owner != document else whole
            start, end = _find_anchor(row, text, bounds, passages=passages)
        except MisplacedError as error:
            code, shown = error.args
            message, accepted = _MISPLACED[code]
            more: Place = {"field": "anchors", "found": shown, "accepted": accepted}
            report_row(problems, row, code, message, **more)
        else:
            inner = corpus.find_innermost(document, start)
            rows.append((anchor, document, inner, start, end))
    names = ["anchor", "document", "section", "start", "end"]
    return pd.DataFrame(rows, columns=names, dtype=np.int64)


# ---- Which chunks carry a gold span.

SHARE = 0.5
"""Least overlap of a chunk that carries a span, as a share of the shorter of both."""


def _carrying_chunks(spans: pd.DataFrame, chunks: pd.DataFrame) -> pd.DataFrame:
    """Find the chunks (rows of CHUNKS) that carry each span (rows of SPANS), sorted by both.

    A chunk carries a span if the overlap is at least half of the shorter of both. If no chunk does,
    the chunk with the largest overlap carries the span (the first of equals). A span without any
    overlap has no row. Columns: `span` and `chunk`, both row numbers.
    """
    if not len(spans) or not len(chunks):
        return pd.DataFrame({"span": [], "chunk": []}, dtype=np.int64)
    documents = pd.Index(chunks["doc_id"].unique())
    wanted, cut = (
        Ranges(
            documents.get_indexer(pd.Index(frame["doc_id"])),
            frame["start"].to_numpy(),
            frame["end"].to_numpy(),
        )
        for frame in (spans, chunks)
    )
    span, chunk = find_overlaps(wanted, cut)
    low, high = np.maximum(cut.start[chunk], wanted.start[span]), cut.end[chunk]
    common = np.minimum(high, wanted.end[span]) - low
    lengths = (wanted.end - wanted.start)[span]
    shorter = np.minimum(lengths, (cut.end - cut.start)[chunk])
    frame = pd.DataFrame({"span": span, "chunk": chunk, "common": common})
    carries = common >= SHARE * shorter
    largest = frame.sort_values(["span", "common", "chunk"], ascending=[True, False, True])
    best = largest.drop_duplicates("span")
    best = best[~best["span"].isin(frame.loc[carries, "span"])]
    pairs: pd.DataFrame = pd.concat([frame[carries], best])[["span", "chunk"]].astype(np.int64)
    return pairs.sort_values(["span", "chunk"], ignore_index=True)


# ---- The resolved gold set.


class ResolvedGold(NamedTuple):
    """Relevant places in one revision and chunking of a corpus."""

    gold: GoldSet
    """The gold set. Its `group_id` follows from resolved documents, so aliases join groups."""
    qrels: Mapping[Level, pd.DataFrame]
    """QRELS of each level, sorted by query order and item_id; each pair occurs once."""
    spans: pd.DataFrame
    span_chunks: pd.DataFrame
    """Rows of `spans` and of the chunks that carry them, as `_carrying_chunks` returns."""
    decoys: pd.DataFrame
    """query_id, doc_id and section_id; section_id is empty if the whole document is the decoy."""
    problems: tuple[Problem, ...]


class Placed(NamedTuple):
    """Gold on a corpus, before chunking.

    Judgements and decoys have the columns of `Catalogue.find`. `gone` are judgements with targets
    that the corpus lacks. `located` are the found anchors, as `locate` returns them.
    """

    corpus: Catalogue
    judgements: pd.DataFrame
    gone: pd.DataFrame
    located: pd.DataFrame
    decoys: pd.DataFrame


_MISSED = frozenset({"dangling_target", "anchor_not_found"})
"""Problem codes that are misses, not faults of the gold, if only retrieved parts are known."""


def place(
    gold: GoldSet, documents: pd.DataFrame, sections: pd.DataFrame, problems: ProblemList
) -> Placed:
    """Look up every judgement, anchor and decoy, and report the missing targets.

    In our own layout a missing target is an error. In BEIR or TREC layout it is a warning, and the
    judgement stays in the denominators, as in the published figures. If all targets are missing,
    the corpus is another corpus, so each is an error. With recorded outputs as the corpus a missing
    target is always a warning, and judgements and quotes stay in the denominators.
    """
    corpus, found_problems = Catalogue(documents, sections), ProblemList()
    recorded = gold.layout == "recorded"
    places = corpus.find(gold.judgements["target"])
    # the anchors report the document of an answer row, so it is not reported twice
    anchored = pd.MultiIndex.from_frame(gold.anchors[["file", "line"]])
    lines = pd.MultiIndex.from_frame(gold.judgements[["file", "line"]])
    shown = gold.judgements["explicit"].to_numpy() | ~lines.isin(anchored)
    is_foreign = gold.layout != "own" and (places["document"] >= 0).any()
    severity: Severity = "warning" if is_foreign else "error"
    explicit = (gold.judgements[shown], places[shown])
    _report_dangling(*explicit, corpus, found_problems, "target", severity)
    located = locate(gold.anchors, corpus, found_problems, passages=recorded)
    decoys = gold.decoys.join(corpus.find(gold.decoys["target"]))
    _report_dangling(decoys, decoys, corpus, found_problems, "decoy")
    problems.extend(
        dataclasses.replace(problem, severity="warning")
        if recorded and problem.code in _MISSED
        else problem
        for problem in found_problems.listed()
        if not recorded or problem.code != "more_problems"
    )
    judgements = gold.judgements.join(places)
    exists = judgements["document"] >= 0
    return Placed(
        corpus,
        judgements[exists].reset_index(drop=True),
        judgements[~exists].reset_index(drop=True),
        located,
        decoys[decoys["document"] >= 0].reset_index(drop=True),
    )


def _piece(query_id: pd.Series, item_id: np.ndarray, gain: Any, rank: Any) -> pd.DataFrame:
    """Make rows of judgements. A lower `rank` is more explicit, from 0."""
    columns = {"query_id": query_id, "item_id": item_id, "gain": gain, "rank": rank}
    dtypes = {"query_id": "str", "item_id": "str", "gain": "int64", "rank": "int64"}
    return pd.DataFrame(columns, index=query_id.index).astype(dtypes)


def _collapse(pieces: list[pd.DataFrame], queries: pd.Index) -> pd.DataFrame:
    """Keep one grade for each pair: the highest grade among the most explicit rows."""
    rows = pd.concat(pieces, ignore_index=True)
    rows["order"] = queries.get_indexer(pd.Index(rows["query_id"]))
    keys, ascending = ["order", "item_id", "rank", "gain"], [True, True, True, False]
    rows = rows.sort_values(keys, ascending=ascending, kind="stable", ignore_index=True)
    rows = rows.drop_duplicates(["query_id", "item_id"], ignore_index=True)
    return QRELS.check(rows[["query_id", "item_id", "gain"]])


def _gone_names(gold: GoldSet, placed: Placed) -> np.ndarray:
    """Return the document names of judgements whose targets are missing.

    With recorded passages, a missing section still counts for its document.
    """
    if gold.layout != "recorded":
        return placed.gone["target"].to_numpy(dtype=object)
    parts = [document_part(target) for target in placed.gone["target"]]
    rows = [placed.corpus.document_row.get(part, -1) for part in parts]
    pairs = zip(rows, parts, strict=True)
    names = [placed.corpus.doc_ids[row] if row >= 0 else part for row, part in pairs]
    return np.array(names, dtype=object)


def _judge_levels(gold: GoldSet, placed: Placed, spans: pd.DataFrame) -> dict[Level, pd.DataFrame]:
    corpus, judgements, located = placed.corpus, placed.judgements, placed.located
    queries = pd.Index(gold.queries["query_id"])
    located = located.assign(query_id=gold.anchors["query_id"].to_numpy()[located["anchor"]])
    # an explicit judgement of a document (rank 0) wins over a grade that follows from one of its
    # sections or anchors (rank 1)
    follows = judgements[(judgements["section"] < 0) | (judgements["gain"] > 0)]
    implied = (follows["section"] >= 0) | ~follows["explicit"]
    names = corpus.doc_ids[follows["document"]]
    document = [_piece(follows["query_id"], names, follows["gain"], implied)]
    if gold.layout in {"own", "recorded"}:
        anchored = corpus.doc_ids[located["document"]]
        document.append(_piece(located["query_id"], anchored, 1, 1))
    if gold.layout != "own":
        gone = placed.gone
        document.append(_piece(gone["query_id"], _gone_names(gold, placed), gone["gain"], 0))
    # if a document has only one section, a judgement of the document is one of the section
    owners = pd.Series(corpus.section_document)
    only = owners[~owners.duplicated(keep=False)]
    only_of = pd.Series(only.index, index=only.to_numpy())
    single = judgements["document"].map(only_of).fillna(-1).astype(np.int64)
    of_section = judgements.assign(
        section=judgements["section"].where(judgements["section"] >= 0, single)
    )
    of_section, in_section = (
        of_section[of_section["section"] >= 0],
        located[located["section"] >= 0],
    )
    ids = corpus.section_ids[of_section["section"]]
    section = [
        _piece(of_section["query_id"], ids, of_section["gain"], ~of_section["explicit"]),
        _piece(in_section["query_id"], corpus.section_ids[in_section["section"]], 1, 1),
    ]
    span = _piece(spans["query_id"], spans["span_id"].to_numpy(dtype=object), 1, 0)
    return {
        "document": _collapse(document, queries),
        "section": _collapse(section, queries),
        "span": _collapse([span], queries),
    }


def _missed_spans(gold: GoldSet, placed: Placed) -> pd.DataFrame:
    """Place quotes that no recorded passage holds after the end of their document.

    No chunk overlaps such a place, so the quotes count as missed.
    """
    corpus = placed.corpus
    is_missed = ~np.isin(np.arange(len(gold.anchors)), placed.located.anchor)
    missed = gold.anchors[is_missed].drop_duplicates(["query_id", "doc", "quote"])
    rows = corpus.find(missed["doc"])["document"].to_numpy()
    lengths = corpus.documents["text"].str.len().to_numpy()
    sizes = missed["quote"].str.len().to_numpy(dtype=np.int64)
    starts = np.array([lengths[row] + 1 if row >= 0 else 0 for row in rows], dtype=np.int64)
    starts = starts + np.cumsum(sizes) - sizes  # without overlap, so that two quotes stay two spans
    names = [
        corpus.doc_ids[row] if row >= 0 else doc
        for row, doc in zip(rows, missed["doc"], strict=True)
    ]
    ids = missed["query_id"].to_numpy(dtype=object)
    return pd.DataFrame({"query_id": ids, "doc_id": names, "start": starts, "end": starts + sizes})


def _make_spans(gold: GoldSet, placed: Placed) -> pd.DataFrame:
    located = placed.located
    columns = {
        "query_id": gold.anchors["query_id"].to_numpy(dtype=object)[located["anchor"]],
        "doc_id": placed.corpus.doc_ids[located["document"]],
        "start": located["start"],
        "end": located["end"],
    }
    frame = pd.DataFrame(columns)
    if gold.layout == "recorded":
        frame = pd.concat([frame, _missed_spans(gold, placed)], ignore_index=True)
    frame = frame.drop_duplicates(ignore_index=True)
    frame["span_id"] = [digest(list(row)) for row in frame.itertuples(index=False, name=None)]
    ids = dict.fromkeys(("span_id", "query_id", "doc_id"), "str")
    return SPANS.check(frame.astype({**ids, "start": "int64", "end": "int64"}))


def _resolve_decoys(placed: Placed) -> pd.DataFrame:
    decoys, corpus = placed.decoys, placed.corpus
    columns = {
        "query_id": decoys["query_id"].tolist(),
        "doc_id": corpus.doc_ids[decoys["document"]],
        "section_id": [corpus.section_ids[row] if row >= 0 else "" for row in decoys["section"]],
    }
    return pd.DataFrame(columns).astype("str").drop_duplicates(ignore_index=True)


def resolve(
    gold: GoldSet, documents: pd.DataFrame, sections: pd.DataFrame, chunks: pd.DataFrame
) -> ResolvedGold:
    """Resolve a gold set against DOCUMENTS, SECTIONS and CHUNKS of one revision.

    Several names of one document become its doc_id with the highest grade. An explicit grade wins
    over an implied grade. Relevant items of each level:

    - `document`: judged documents, and documents of judged sections. In own and recorded layout
      also documents of anchors.
    - `section`: judged sections, the section of a judged document with a single section, and
      sections that hold the first character of an anchor.
    - `span`: anchors.

    Missing targets raise nothing; they are listed in `problems`, and lint blocks on errors.
    """
    problems = ProblemList()
    placed = place(gold, documents, sections, problems)
    spans = _make_spans(gold, placed)
    qrels = _judge_levels(gold, placed, spans)
    relevant = qrels["document"][qrels["document"]["gain"] > 0]
    pairs = (relevant["query_id"].tolist(), relevant["item_id"].tolist())
    return ResolvedGold(
        dataclasses.replace(gold, queries=group_queries(gold.queries, *pairs)),
        qrels,
        spans,
        _carrying_chunks(spans, chunks),
        _resolve_decoys(placed),
        problems.listed(),
    )
