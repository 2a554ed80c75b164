"""List and show the chunks that the guard holds back, for a person to review."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from rag_eval.core.records import Absent
from rag_eval.corpus.masking import mask_shown_address, masked_text
from rag_eval.pipeline.allowances import find_chunk
from rag_eval.pipeline.corpus import (
    CorpusChunks,
    CorpusSnapshot,
    EvidenceTrust,
    as_of,
)
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.stages import open_runner
from rag_eval.reporting.listings import ChunkDetails, HeldBack, HeldChunk
from rag_eval.trust.allowances import read_decisions
from rag_eval.trust.sources import explain_factors
from rag_eval.trust.trust_report import Manifest


def held_back(evaluation: Evaluation, *, warnings: bool = False) -> HeldBack:
    """Collect the chunks that are blocked, left out, allowed by a person, or warned about."""
    with evaluation.lock:
        frame = _judged_chunks(evaluation)
        deleted = _describe_deleted(open_runner(evaluation).get(EvidenceTrust).about.manifest)
    blocked = frame["verdict"] == "blocked"
    warned, is_allowed = frame["verdict"] == "warning", frame["allowed_by"] != ""
    quarantine = evaluation.config.trust
    left_out = frame["verdict"].isin(quarantine.withheld) & ~is_allowed
    wanted = blocked | left_out | is_allowed | (warned & warnings)
    frame = frame.assign(left_out=left_out & bool(quarantine.withheld))[wanted]
    listed = frame.sort_values(["verdict", "doc_id", "start"], kind="stable")
    return HeldBack(
        evaluation.config.name,
        quarantine.quarantine,
        len(blocked),
        int(blocked.sum()),
        int(warned.sum()),
        [_describe(row) for row in listed.to_dict("records")],
        "",
        deleted,
    )


def _describe_deleted(manifest: Manifest | Absent) -> str:
    """Name the documents that the manifest records and the corpus lacks, which have no chunk."""
    if isinstance(manifest, Absent) or not manifest.n_gone:
        return ""
    is_one, names = manifest.n_gone == 1, ", ".join(manifest.gone)
    more = ", ..." if manifest.n_gone > len(manifest.gone) else ""
    were = "document of the manifest was" if is_one else "documents of the manifest were"
    return f"{manifest.n_gone:,} {were} deleted: {names}{more}"


def _describe(row: Mapping[Any, Any]) -> HeldChunk:
    names = "chunk_id doc_id title verdict left_out trust allowed_by start end chunks_of_document"
    link, reasons = mask_shown_address(row["source_url"]), list(row["reasons"])
    return HeldChunk(
        **{name: row[name] for name in names.split()}, source_url=link, reasons=reasons
    )


def _judged_chunks(evaluation: Evaluation) -> pd.DataFrame:
    """Return the trust of all chunks with their places and documents."""
    runner = open_runner(evaluation)
    frame = runner.get(EvidenceTrust).trust
    places = runner.get(CorpusChunks).artifact.frame("chunks", ["start", "end"])
    documents = runner.get(CorpusSnapshot).artifact.frame(
        "documents", ["doc_id", "title", "source_url"]
    )
    sizes = frame.groupby("doc_id")["doc_id"].transform("size")
    frame = frame.join(places).assign(chunks_of_document=sizes)
    return frame.join(documents.set_index("doc_id"), on="doc_id")


def inspect(evaluation: Evaluation, chunk_id: str) -> ChunkDetails:
    """Collect all facts on one chunk, with masked text and link.

    Raises
    ------
    InputError
        No chunk or several chunks have this id.
    """
    with evaluation.lock:
        runner = open_runner(evaluation)
        stored, snapshot = runner.get(EvidenceTrust), runner.get(CorpusSnapshot)
        row = find_chunk(stored.trust["chunk_id"].tolist(), chunk_id, evaluation.config.name)
        chunk = runner.get(CorpusChunks).chunks.iloc[row]
        facts = _judged_chunks(evaluation).iloc[[row]].to_dict("records")[0]
    owner, source = (
        frame.set_index("doc_id").loc[facts["doc_id"]]
        for frame in (snapshot.documents, snapshot.sources)
    )
    findings = stored.findings
    start, end = int(chunk["start"]), int(chunk["end"])
    text = masked_text(owner["text"])[start:end]
    return ChunkDetails(
        chunk=_describe(facts | {"left_out": False}),
        factors=explain_factors(facts, as_of(evaluation.settings)),
        rev=owner["rev"],
        source_hash=str(source["source_hash"]),
        text=text if len(text) == len(chunk["text"]) else masked_text(chunk["text"]),
        findings=findings[findings["row"] == row].drop(columns="row").to_dict("records"),
        decisions=[
            decision
            for decision in read_decisions(evaluation.base)
            if decision.chunk_id == facts["chunk_id"]
        ],
    )
