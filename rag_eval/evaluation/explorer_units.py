"""What the lists name, as the explorer shows it: document, section, a snippet, address, trust and verdict, by the unit's number."""

from typing import Any, Final

import numpy as np
import pandas as pd

from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.explorer_packing import CHUNKS, nullable, packed, part_name, shards
from rag_eval.evaluation.explorer_rankings import Units
from rag_eval.evaluation.explorer_texts import address, line, name
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.trust_steps import admitted_chunks, admitted_trust
from rag_eval.evaluation.unit_verdicts import unit_verdicts

VERDICTS: Final = {"clean": 0, "warning": 1, "blocked": 2}


def unit_frame(runs: Runs, units: Units) -> pd.DataFrame:
    """What the lists may name, by unit: doc_id, section_id, start, end, title, text, shown (what was returned instead of the text), trust, verdict, reasons."""
    evaluation = runs.evaluation
    facts = admitted_trust(evaluation)
    chunks = pd.read_parquet(
        admitted_chunks(evaluation).path("chunks.parquet"),
        columns=["doc_id", "section_id", "start", "end", "title", "text"],
    )
    parts = [
        chunks.assign(
            shown="",
            **{column: facts[column].to_numpy() for column in ("trust", "verdict", "reasons")},
        )
    ]
    titles = (
        corpus_snapshot(evaluation).frame("documents").set_index("doc_id")["title"]
        if units.own
        else None
    )
    for own, _ in units.own.values():
        judged = unit_verdicts(evaluation, own)
        reasons = pd.Series(judged.reasons, index=own.index, dtype=object)
        part = own[["doc_id", "section_id", "start", "end", "text"]].assign(
            shown=own["returned"], trust=judged.trust, verdict=judged.verdict, reasons=reasons
        )
        if titles is not None:
            part = part.assign(title=titles.reindex(own["doc_id"]).fillna("").to_numpy())
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def chunk_parts(runs: Runs, units: Units, frame: pd.DataFrame) -> dict[str, bytes]:
    """Write the parts of units. `frame` is that of `unit_frame`."""
    documents = pd.read_parquet(
        corpus_snapshot(runs.evaluation).path("documents.parquet"), columns=["doc_id", "source_url"]
    )
    urls = dict(zip(documents["doc_id"].tolist(), documents["source_url"].tolist(), strict=True))
    trusted = runs.evaluation.config.trust.configured
    found = {}
    for number, start, end in shards(len(units.unit), CHUNKS):
        part = frame.iloc[units.unit[start:end]]
        columns: dict[str, list[Any]] = {
            column: part[column].tolist()
            for column in ("doc_id", "section_id", "title", "text", "shown", "verdict", "reasons")
        }
        addresses = [address(urls.get(doc_id, "")) for doc_id in columns["doc_id"]]
        body = {
            "doc": [name(doc_id) for doc_id in columns["doc_id"]],
            "section": [name(section) for section in columns["section_id"]],
            "title": [name(title) for title in columns["title"]],
            "text": [
                line(shown or text)
                for text, shown in zip(columns["text"], columns["shown"], strict=True)
            ],
            "source": [source for source, _ in addresses],
            "link": [link for _, link in addresses],
            "trust": nullable(part["trust"].to_numpy(dtype=np.float64))
            if trusted
            else [None] * len(part),
            "verdict": [VERDICTS.get(verdict) for verdict in columns["verdict"]],
            "reasons": [[name(code) for code in codes] for codes in columns["reasons"]],
        }
        found[part_name("chunks", number)] = packed(body)
    return found
