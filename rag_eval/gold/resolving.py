"""Gold set + one revision of a corpus -> what is relevant, by document, section and span, and which chunks carry it.

Belongs here: putting the pieces together. Names are looked up in `targets`, quotes in `anchors`, chunks in `spans`.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd

from rag_eval.gold.anchors import Located, locate
from rag_eval.gold.frames import RESOLVED_DECOYS, rows_of
from rag_eval.gold.groups import group_ids
from rag_eval.gold.loading import GoldSet, document_part
from rag_eval.gold.problem_list import ProblemList
from rag_eval.gold.spans import carrying_chunks
from rag_eval.gold.targets import Catalogue, Found, catalogue, find_targets, report_dangling
from rag_eval.records.frames import QRELS, SPANS
from rag_eval.records.gold_set import Level
from rag_eval.records.problems import Problem
from rag_eval.storage.hashing import digest


@dataclasses.dataclass(frozen=True, slots=True)
class ResolvedGold:
    """What is relevant in this revision and chunking.

    Parameters
    ----------
    gold
        The gold set, its `group_id` computed again on resolved documents (two names of one document join their queries).
    qrels
        QRELS for each of `document`, `section` and `span`, sorted by the order of the queries and item_id; each pair once.
    spans
        SPANS, each (query, document, start, end) once.
    span_chunks
        SPAN_CHUNKS: rows of `spans` and rows of the chunks frame that carry them.
    decoys
        RESOLVED_DECOYS.
    problems
        `dangling_target` and the faults of anchors; `span_without_chunk`.
    """

    gold: GoldSet
    qrels: Mapping[Level, pd.DataFrame]
    spans: pd.DataFrame
    span_chunks: pd.DataFrame
    decoys: pd.DataFrame
    problems: tuple[Problem, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """Gold on a corpus, before any chunking: judgements with `document` and `section` rows, anchors and decoys with theirs.

    `gone` has the judgements whose target this revision lacks.
    """

    corpus: Catalogue
    judgements: pd.DataFrame
    gone: pd.DataFrame
    located: Located
    decoys: pd.DataFrame
    found_decoys: Found


_MISSED = frozenset({"dangling_target", "anchor_not_found"})
"""Where only what was retrieved is known, a target or quote that is not there was missed; that is a finding, not a fault of the gold."""


def place(
    gold: GoldSet, documents: pd.DataFrame, sections: pd.DataFrame, problems: ProblemList
) -> Placed:
    """Look up every judgement, anchor and decoy; what is gone or not found goes into `problems` and is left out.

    In a gold set of one's own a target that is gone is an error. Collections in BEIR or TREC layout are taken as they are: it is a warning,
    and the judgement stays in the denominators, as it does in the published figures; unless all are gone, which is another corpus.
    With recorded outputs as the corpus it is always a warning, and judgements and quotes stay in the denominators.
    """
    if gold.layout != "recorded":
        return _place(gold, documents, sections, problems)
    found = ProblemList()
    placed = _place(gold, documents, sections, found)
    problems.extend(
        dataclasses.replace(problem, severity="warning") if problem.code in _MISSED else problem
        for problem in found.listed()
        if problem.code != "more_problems"
    )
    return placed


def _place(
    gold: GoldSet, documents: pd.DataFrame, sections: pd.DataFrame, problems: ProblemList
) -> Placed:
    corpus = catalogue(documents, sections)
    found = find_targets(gold.judgements["target"], corpus)
    # an answer row's own document is reported once, with its anchors
    anchored = gold.anchors[["file", "line"]].assign(anchored=True).drop_duplicates()
    reported = (
        gold.judgements.merge(anchored, on=["file", "line"], how="left")["anchored"]
        .notna()
        .to_numpy()
        & ~gold.judgements["explicit"].to_numpy()
    )
    shown = gold.judgements[~reported]
    report_dangling(
        shown,
        "target",
        Found(found.document[~reported], found.section[~reported]),
        corpus,
        problems,
        field="target",
        severity="warning" if gold.layout != "own" and (found.document >= 0).any() else "error",
    )
    judgements = gold.judgements.assign(document=found.document, section=found.section)
    located = locate(gold.anchors, corpus, problems, passages=gold.layout == "recorded")
    decoys = find_targets(gold.decoys["target"], corpus)
    report_dangling(gold.decoys, "target", decoys, corpus, problems, field="decoy")
    kept = decoys.document >= 0
    gone = judgements[found.document < 0].reset_index(drop=True)
    return Placed(
        corpus,
        judgements[found.document >= 0].reset_index(drop=True),
        gone,
        located,
        gold.decoys[kept].reset_index(drop=True),
        Found(decoys.document[kept], decoys.section[kept]),
    )


def _collapse(pieces: list[pd.DataFrame], queries: pd.Index) -> pd.DataFrame:
    """One grade for each pair: the highest of the most explicit ones. Pieces have query_id, item_id, gain, rank (0 = most explicit)."""
    rows = pd.concat(pieces, ignore_index=True)
    rows["order"] = queries.get_indexer(pd.Index(rows["query_id"]))
    rows = rows.sort_values(
        ["order", "item_id", "rank", "gain"], ascending=[True, True, True, False], kind="stable"
    )
    return QRELS.check(
        rows.drop_duplicates(["query_id", "item_id"])[["query_id", "item_id", "gain"]].reset_index(
            drop=True
        )
    )


def _piece(
    query_id: pd.Series, item_id: np.ndarray, gain: np.ndarray | int, rank: np.ndarray | int
) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "query_id": query_id.to_numpy(dtype=object),
            "item_id": item_id,
            "gain": gain,
            "rank": rank,
        }
    )
    return frame.astype({"query_id": "str", "item_id": "str", "gain": "int64", "rank": "int64"})


def _gone_names(gold: GoldSet, placed: Placed) -> np.ndarray:
    """Document-level names of the judgements that are gone. A section of a document of which passages were recorded still names that document."""
    if gold.layout != "recorded":
        return placed.gone["target"].to_numpy(dtype=object)
    known = placed.corpus.documents["doc_id"].to_numpy(dtype=object)
    parts = [document_part(target) for target in placed.gone["target"]]
    rows = [placed.corpus.document_row.get(part, -1) for part in parts]
    return np.array(
        [known[row] if row >= 0 else part for row, part in zip(rows, parts, strict=True)],
        dtype=object,
    )


def _levels(gold: GoldSet, placed: Placed, spans: pd.DataFrame) -> dict[Level, pd.DataFrame]:
    corpus, judged, located = placed.corpus, placed.judgements, placed.located
    doc_ids, section_ids = (
        corpus.documents["doc_id"].to_numpy(dtype=object),
        corpus.sections["section_id"].to_numpy(dtype=object),
    )
    queries = pd.Index(gold.queries["query_id"])
    anchor_query = gold.anchors["query_id"].iloc[located.anchor]
    # a judged document stands for itself (rank 0); one that only a section or an anchor names follows from them
    follows = judged[(judged["section"] < 0) | (judged["gain"] > 0)]
    implied = ((follows["section"] >= 0) | ~follows["explicit"]).to_numpy().astype(np.int64)
    document = [
        _piece(
            follows["query_id"], doc_ids[follows["document"]], follows["gain"].to_numpy(), implied
        )
    ]
    if gold.layout in {"own", "recorded"}:
        document.append(_piece(anchor_query, doc_ids[located.document], 1, 1))
    if gold.layout != "own":
        document.append(
            _piece(
                placed.gone["query_id"],
                _gone_names(gold, placed),
                placed.gone["gain"].to_numpy(),
                0,
            )
        )
    n_sections = np.bincount(
        corpus.section_document[corpus.section_document >= 0], minlength=len(doc_ids)
    )
    only = np.full(len(doc_ids), -1, dtype=np.int64)
    only[corpus.section_document[corpus.section_document >= 0]] = np.flatnonzero(
        corpus.section_document >= 0
    )
    # a document of one section is that section: a judgement of the one is a judgement of the other
    rows = judged["document"].to_numpy()
    whole = np.where(
        (n_sections[rows] == 1) & (judged["section"] < 0), only[rows], judged["section"]
    )
    named, held = whole >= 0, located.section >= 0
    section = [
        _piece(
            judged["query_id"][named],
            section_ids[whole[named]],
            judged["gain"].to_numpy()[named],
            (~judged["explicit"]).to_numpy()[named].astype(np.int64),
        ),
        _piece(anchor_query[held], section_ids[located.section[held]], 1, 1),
    ]
    span = _piece(spans["query_id"], spans["span_id"].to_numpy(dtype=object), 1, 0)
    return {
        "document": _collapse(document, queries),
        "section": _collapse(section, queries),
        "span": _collapse([span], queries),
    }


def _missed_spans(gold: GoldSet, placed: Placed) -> pd.DataFrame:
    """Quotes that no recorded passage holds: behind the end of their document, where no chunk reaches, so that they count as missed."""
    missed = gold.anchors[
        ~np.isin(np.arange(len(gold.anchors)), placed.located.anchor)
    ].drop_duplicates(["query_id", "doc", "quote"])
    found = find_targets(missed["doc"], placed.corpus).document
    documents = placed.corpus.documents
    lengths = documents["text"].str.len().to_numpy()
    starts = np.array([lengths[row] + 1 if row >= 0 else 0 for row in found], dtype=np.int64)
    names = [
        documents["doc_id"].iloc[row] if row >= 0 else doc
        for row, doc in zip(found, missed["doc"], strict=True)
    ]
    sizes = np.array([len(quote) for quote in missed["quote"]], dtype=np.int64)
    starts = starts + np.cumsum(sizes) - sizes  # one behind the other: two quotes are two spans
    return pd.DataFrame(
        {
            "query_id": missed["query_id"].to_numpy(dtype=object),
            "doc_id": names,
            "start": starts,
            "end": starts + sizes,
        }
    )


def _spans(gold: GoldSet, placed: Placed) -> pd.DataFrame:
    located = placed.located
    frame = pd.DataFrame(
        {
            "query_id": gold.anchors["query_id"].to_numpy(dtype=object)[located.anchor],
            "doc_id": placed.corpus.documents["doc_id"].to_numpy(dtype=object)[located.document],
            "start": located.start,
            "end": located.end,
        }
    )
    if gold.layout == "recorded":
        frame = pd.concat([frame, _missed_spans(gold, placed)], ignore_index=True)
    frame = frame.drop_duplicates(ignore_index=True)
    ids = [
        digest([query_id, doc_id, start, end]) for query_id, doc_id, start, end in rows_of(frame)
    ]
    frame["span_id"] = ids
    return SPANS.check(
        frame.astype(
            {"span_id": "str", "query_id": "str", "doc_id": "str", "start": "int64", "end": "int64"}
        )
    )


def _decoys(placed: Placed) -> pd.DataFrame:
    found = placed.found_decoys
    doc_ids, section_ids = (
        placed.corpus.documents["doc_id"].to_numpy(dtype=object),
        placed.corpus.sections["section_id"].to_numpy(dtype=object),
    )
    sections = [section_ids[row] if row >= 0 else "" for row in found.section]
    frame = pd.DataFrame(
        {
            "query_id": placed.decoys["query_id"].to_numpy(dtype=object),
            "doc_id": doc_ids[found.document],
            "section_id": sections,
        }
    )
    return RESOLVED_DECOYS.check(frame.astype("str").drop_duplicates(ignore_index=True))


def _regrouped(gold: GoldSet, documents: pd.DataFrame) -> GoldSet:
    relevant = documents[documents["gain"] > 0]
    queries = gold.queries.copy()
    groups = group_ids(
        queries["query_id"].tolist(), relevant["query_id"].tolist(), relevant["item_id"].tolist()
    )
    queries["group_id"] = pd.Series(groups, index=queries.index, dtype="str")
    return dataclasses.replace(gold, queries=queries)


def resolve(
    gold: GoldSet, documents: pd.DataFrame, sections: pd.DataFrame, chunks: pd.DataFrame
) -> ResolvedGold:
    """Resolve a gold set against DOCUMENTS, SECTIONS and CHUNKS of one revision.

    Several names of one document collapse to its doc_id with the highest grade. Levels: `document`, the judged documents and those of
    judged sections and (own gold sets) of anchors; `section`, the sections that are named, that are the whole of a judged document, or
    that hold the first character of an anchor; `span`, the anchors. An explicit grade wins over what follows from other rows.

    Nothing is raised: what is gone or not found stands in `problems`, and the caller decides (lint blocks on errors).
    """
    problems = ProblemList()
    placed = place(gold, documents, sections, problems)
    spans = _spans(gold, placed)
    carried = carrying_chunks(spans, chunks)
    for row in np.flatnonzero(~np.isin(np.arange(len(spans)), carried["span"].to_numpy())):
        span = spans.iloc[row]
        problems.add(
            "span_without_chunk",
            f"no chunk touches the evidence of query {span['query_id']} in {span['doc_id']}",
            field="anchors",
            found=f"start {span['start']}, end {span['end']}",
        )
    qrels = _levels(gold, placed, spans)
    return ResolvedGold(
        _regrouped(gold, qrels["document"]),
        qrels,
        spans,
        carried,
        _decoys(placed),
        problems.listed(),
    )
