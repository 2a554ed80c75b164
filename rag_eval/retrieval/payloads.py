"""Rows of the chunks frame -> `ScoredChunk`: the citation payload that every retrieved unit carries."""

import pandas as pd

from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.records.retrieval import Offsets, ScoredChunk

_COLUMNS = ("chunk_id", "doc_id", "section_id", "start", "end", "tokens", "text")


class Payloads:
    """The chunks of one corpus revision, ready to be cited.

    Parameters
    ----------
    chunks
        CHUNKS frame.
    documents
        DOCUMENTS frame; a chunk whose document is not among them has no rev and no address.
    """

    def __init__(self, chunks: pd.DataFrame, documents: pd.DataFrame) -> None:
        self._columns = {name: chunks[name].to_numpy() for name in _COLUMNS}
        about = (
            documents.set_index("doc_id")[["rev", "source_url"]]
            .reindex(chunks["doc_id"])
            .fillna("")
        )
        self._revs, self._urls = about["rev"].to_numpy(), about["source_url"].to_numpy()

    def scored(
        self,
        row: int,
        *,
        index_hash: str,
        embed_model: str,
        score_raw: float,
        score_norm: float,
        k_pos: int,
        k_final: int,
        rerank_score: float | None = None,
    ) -> ScoredChunk:
        """Payload of one chunk, with the scores and ranks (from 1) it was retrieved with."""
        value = {name: column[row] for name, column in self._columns.items()}
        return ScoredChunk(
            doc_id=str(value["doc_id"]),
            section_id=str(value["section_id"]),
            snippet_id=str(value["chunk_id"]),
            source_url=str(self._urls[row]),
            offsets=Offsets(int(value["start"]), int(value["end"])),
            tokens=int(value["tokens"]),
            index_hash=index_hash,
            embed_model=embed_model,
            analyzer=ANALYZER,
            rev=str(self._revs[row]),
            text=str(value["text"]),
            score_raw=score_raw,
            score_norm=score_norm,
            k_pos=k_pos,
            k_final=k_final,
            rerank_score=rerank_score,
        )
