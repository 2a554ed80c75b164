"""Find the relevant places of a gold set in one revision of a corpus, and their chunks.

Relevance is by document, section and span. The steps look up names, then quotes, then chunks.
"""

import collections
import dataclasses
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

# ---- Names in gold files -> rows of the corpus frames


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

    @functools.cached_property
    def _section_by_heading(self) -> Mapping[tuple[int, str], int]:
        """Section rows by document row and slug of the heading; repeated headings are left out."""
        slugs = map(slug, self.sections["title"])
        keys = list(zip(self.section_document.tolist(), slugs, strict=True))
        uses = collections.Counter(keys)
        return {key: row for row, key in enumerate(keys) if uses[key] == 1}

    def _find_place(self, target: str) -> tuple[int, int]:
        """Find document and section row of a target; -1 for none."""
        if (document := self.document_row.get(target, -1)) >= 0:
            return document, -1
        name, _, place = target.partition("#")
        owner, section = self.document_row.get(name, -1), self.section_row.get(target, -1)
        if section < 0 and owner >= 0:
            heading = self._section_by_heading.get((owner, slug(place.rsplit("/", 1)[-1])), -1)
            section = self.section_row.get(f"{self.doc_ids[owner]}#{place}", heading)
        return (self.section_document[section] if section >= 0 else -1), section

    def find_innermost(self, document: int, start: int) -> int:
        """Return the row of the innermost section around a place; -1 for none."""
        low, high = self.sections["start"].to_numpy(), self.sections["end"].to_numpy()
        around = (self.section_document == document) & (low <= start) & (start < high)
        return max(
            np.flatnonzero(around).tolist(), key=lambda row: (low[row], -high[row]), default=-1
        )

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
            place = self._find_place(name)
            # our TREC exports percent-encode ids
            rows.append(place if place[0] >= 0 else self._find_place(decode_id(name)))
        table = np.array(rows, dtype=np.int64).reshape(-1, 2)[codes]
        return pd.DataFrame(table, columns=["document", "section"])


def _report_dangling(
    rows: pd.DataFrame,
    documents: pd.Series,
    problems: ProblemList,
    field: str,
    severity: Severity = "error",
) -> None:
    """Report every row with a target that the corpus lacks (`dangling_target`)."""
    for row in rows_of(rows[documents.to_numpy() < 0]):
        more: Place = {"field": field, "found": quoted(row.target), "severity": severity}
        more["accepted"] = "a document name or section id of this revision of the corpus"
        message = "this document or section is not in this revision of the corpus"
        report_row(problems, row, "dangling_target", message, **more)


# ---- Quoted evidence -> character spans of the documents. A quote must stand there exactly once.


class MisplacedError(Exception):
    """A misplaced anchor: its code, message, found text and accepted values."""


def find_quote(text: str, quote: str, low: int, high: int, *, passages: bool) -> tuple[int, int]:
    """Find the only place of a quote in text[low:high]; in passages, which overlap, the first.

    A quote that does not stand there exactly may differ from the text in runs of white space.
    """
    pattern = re.escape(quote)
    if text.find(quote, low, high) < 0:
        pattern = r"\s+".join(map(re.escape, quote.split()))
    quotes = re.compile(pattern)
    first = quotes.search(text, low, high)
    if first is None:
        message, accepted = "the quote is not in the document", "text of the document word for word"
        raise MisplacedError("anchor_not_found", message, quoted(quote), accepted)
    second = quotes.search(text, first.start() + 1, high)
    if second is not None and not passages:
        lines = (f"line {text.count(chr(10), 0, it.start()) + 1}" for it in (first, second))
        shown = f"{quoted(quote)} in {' and '.join(lines)} of the document"
        message = "the quote occurs in the document more than once"
        accepted = "a longer quote that occurs once, or a section_id beside it"
        raise MisplacedError("anchor_ambiguous", message, shown, accepted)
    return first.span()


def _find_anchor(
    row: Any, text: str, bounds: tuple[int, int] | None, *, passages: bool
) -> tuple[int, int]:
    """Find start and end of an anchor: by its offsets, or by its quote within the bounds."""
    if bounds is None:
        message, shown = "the section belongs to another document", quoted(row.section)
        accepted = "a section of the document named beside it"
        raise MisplacedError("section_of_other_document", message, shown, accepted)
    if row.start < 0 or (passages and row.quote):
        return find_quote(text, row.quote, *bounds, passages=passages)
    if passages or row.end > len(text):
        message, accepted = "the offsets lie outside the document", f"0 <= offset <= {len(text)}"
        raise MisplacedError("bad_offsets", message, f"{row.start} to {row.end}", accepted)
    if row.quote and text[row.start : row.end] != row.quote:
        message, accepted = "the text at the offsets is another", quoted(row.quote)
        raise MisplacedError(
            "offset_mismatch", message, quoted(text[row.start : row.end]), accepted
        )
    return row.start, row.end


def locate(
    anchors: pd.DataFrame, corpus: Catalogue, problems: ProblemList, *, passages: bool
) -> pd.DataFrame:
    """Find every anchor (ANCHORS) in its section, or in its document if the row names no section.

    Returns anchor, document, section (of the first character, or -1), start and end of those that
    were found. Problems: `dangling_target` and those of `MisplacedError`. With `passages`, only
    passages of the documents are known, so offsets need a quote.
    """
    by_document, narrowed = corpus.find(anchors["doc"]), corpus.find(anchors["section"])
    is_narrowed = (anchors["section"] != "").to_numpy()
    by_doc, by_section = (anchors.rename(columns={name: "target"}) for name in ("doc", "section"))
    _report_dangling(by_doc, by_document["document"], problems, "doc_id")
    owners = narrowed["document"]
    _report_dangling(by_section[is_narrowed], owners[is_narrowed], problems, "section_id")
    places = zip(
        by_document["document"].tolist(),
        owners.where(is_narrowed, by_document["document"]).tolist(),
        narrowed["section"].where(is_narrowed, by_document["section"]).tolist(),
        strict=True,
    )
    texts = corpus.documents["text"].to_numpy(dtype=object)
    starts, ends = corpus.sections["start"].tolist(), corpus.sections["end"].tolist()
    rows: list[tuple[int, ...]] = []
    for anchor, (row, (document, owner, part)) in enumerate(
        zip(rows_of(anchors), places, strict=True)
    ):
        if document < 0 or owner < 0:
            continue
        text = texts[document]
        bounds = (starts[part], ends[part]) if part >= 0 else (0, len(text))
        try:
            start, end = _find_anchor(
                row, text, bounds if owner == document else None, passages=passages
            )
        except MisplacedError as error:
            code, message, shown, accepted = error.args
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
    """Find the chunks (rows of CHUNKS) that carry each span (rows of SPANS), sorted by both."""
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
    corpus, missing = Catalogue(documents, sections), ProblemList()
    is_recorded = gold.layout == "recorded"
    judgements = gold.judgements.join(corpus.find(gold.judgements["target"]))
    exists = judgements["document"] >= 0
    # the anchors report the document of an answer row, so it is not reported twice
    anchored = pd.MultiIndex.from_frame(gold.anchors[["file", "line"]])
    lines = pd.MultiIndex.from_frame(judgements[["file", "line"]])
    shown = judgements[judgements["explicit"].to_numpy() | ~lines.isin(anchored)]
    severity: Severity = "warning" if gold.layout != "own" and exists.any() else "error"
    _report_dangling(shown, shown["document"], missing, "target", severity)
    located = locate(gold.anchors, corpus, missing, passages=is_recorded)
    decoys = gold.decoys.join(corpus.find(gold.decoys["target"]))
    _report_dangling(decoys, decoys["document"], missing, "decoy")
    problems.extend(
        dataclasses.replace(problem, severity="warning")
        if is_recorded and problem.code in _MISSED
        else problem
        for problem in missing.listed()
        if not is_recorded or problem.code != "more_problems"
    )
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


def _name_of(target: str, placed: Placed) -> str:
    """Return the doc_id of a target; its document name where the corpus lacks the document."""
    name = document_part(target)
    row = placed.corpus.document_row.get(name, -1)
    return str(placed.corpus.doc_ids[row]) if row >= 0 else name


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
        gone, targets = placed.gone, placed.gone["target"].to_numpy(dtype=object)
        if gold.layout == "recorded":  # a missing section still counts for its document
            targets = np.array([_name_of(target, placed) for target in targets], dtype=object)
        document.append(_piece(gone["query_id"], targets, gone["gain"], 0))
    # if a document has only one section, a judgement of the document is one of the section
    owners = pd.Series(corpus.section_document)
    only = owners[~owners.duplicated(keep=False)]
    single = judgements["document"].map(pd.Series(only.index, index=only.to_numpy()))
    rows = judgements["section"].where(judgements["section"] >= 0, single.fillna(-1))
    judged = judgements.assign(section=rows.astype(np.int64))[rows >= 0]
    cited = located[located["section"] >= 0]
    ids = corpus.section_ids[judged["section"]]
    section = [
        _piece(judged["query_id"], ids, judged["gain"], ~judged["explicit"]),
        _piece(cited["query_id"], corpus.section_ids[cited["section"]], 1, 1),
    ]
    span = _piece(spans["query_id"], spans["span_id"].to_numpy(dtype=object), 1, 0)
    return {
        "document": _collapse(document, queries),
        "section": _collapse(section, queries),
        "span": _collapse([span], queries),
    }


def _missed_spans(gold: GoldSet, placed: Placed) -> pd.DataFrame:
    """Place quotes that no recorded passage holds after the end of their document."""
    is_missed = ~np.isin(np.arange(len(gold.anchors)), placed.located["anchor"])
    missed = gold.anchors[is_missed].drop_duplicates(["query_id", "doc", "quote"])
    names = missed["doc"].map(lambda name: _name_of(name, placed))
    texts = placed.corpus.documents.set_index("doc_id")["text"].str.len()
    sizes = missed["quote"].str.len()
    starts = names.map(texts).fillna(-1).astype(np.int64) + 1 + sizes.cumsum() - sizes
    columns = {"query_id": missed["query_id"], "doc_id": names, "start": starts}
    return pd.DataFrame({**columns, "end": starts + sizes})


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
