"""Gold of each question as the explorer shows it: quoted spans, then judged sections and documents that no span lies in."""

from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.explorer_texts import address, name, part

Gold = dict[str, list[dict[str, Any]]]
MAX_GOLD = 50
"""Entries of one question."""
_READ = 1000
"""Characters of a quote that are masked; more than are shown."""


def sections_of(spans: pd.DataFrame, sections: pd.DataFrame) -> list[str]:
    """Section that holds the first character of each span: the smallest that does; empty where none does."""
    rows = (
        spans[["doc_id", "start"]]
        .reset_index(names="span")
        .merge(
            sections[["section_id", "doc_id", "start", "end"]],
            on="doc_id",
            suffixes=("", "_of_section"),
        )
    )
    rows = rows[(rows["start_of_section"] <= rows["start"]) & (rows["start"] < rows["end"])]
    rows = (
        rows.assign(size=rows["end"] - rows["start_of_section"])
        .sort_values(["span", "size", "section_id"], kind="stable")
        .drop_duplicates("span")
    )
    found = pd.Series("", index=spans.index, dtype=object)
    found.loc[rows["span"]] = rows["section_id"].to_numpy(dtype=object)
    return [str(section) for section in found]


def _entry(doc_id: str, section: str, quote: str, url: str) -> dict[str, Any]:
    source, link = address(url)
    return {
        "doc": name(doc_id),
        "section": name(section),
        "quote": quote,
        "link": link,
        "source": source,
    }


def gold_entries(
    spans: pd.DataFrame,
    documents: pd.DataFrame,
    sections: pd.DataFrame,
    judged_sections: pd.DataFrame,
    judged_documents: pd.DataFrame,
) -> Gold:
    """Query id -> what an answer should rest on.

    Parameters
    ----------
    spans, documents, sections
        SPANS, DOCUMENTS and SECTIONS frames.
    judged_sections, judged_documents
        QRELS frames.
    """
    texts, urls = (
        dict(zip(documents["doc_id"].tolist(), documents[column].tolist(), strict=True))
        for column in ("text", "source_url")
    )
    found: Gold = {}
    covered: set[tuple[str, str]] = set()

    def add(query_id: str, entry: dict[str, Any]) -> None:
        its = found.setdefault(query_id, [])
        if len(its) < MAX_GOLD:
            its.append(entry)

    for query_id, doc_id, start, end, section in zip(
        *(spans[column].tolist() for column in ("query_id", "doc_id", "start", "end")),
        sections_of(spans, sections),
        strict=True,
    ):
        covered |= {(query_id, doc_id), (query_id, section)}
        add(
            query_id,
            _entry(
                doc_id,
                section,
                part(texts.get(doc_id, ""), start, min(end, start + _READ)),
                urls.get(doc_id, ""),
            ),
        )
    owner = dict(zip(sections["section_id"].tolist(), sections["doc_id"].tolist(), strict=True))
    for query_id, section in _relevant(judged_sections):
        doc_id = owner.get(section, "")
        if (
            (query_id, section) not in covered and section != doc_id
        ):  # a document without headings is judged as a document
            covered.add((query_id, doc_id))
            add(query_id, _entry(doc_id, section, "", urls.get(doc_id, "")))
    for query_id, doc_id in _relevant(judged_documents):
        if (query_id, doc_id) not in covered:
            add(query_id, _entry(doc_id, "", "", urls.get(doc_id, "")))
    return found


def _relevant(qrels: pd.DataFrame) -> list[tuple[str, str]]:
    kept = qrels[np.asarray(qrels["gain"] > 0)]
    return list(zip(kept["query_id"].tolist(), kept["item_id"].tolist(), strict=True))
