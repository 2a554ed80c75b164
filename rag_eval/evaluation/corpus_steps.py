"""Corpus stages: snapshot and chunks. Each returns its stored artifact."""

from typing import Any

from rag_eval.corpus.chunking import chunk_documents, chunks_hash
from rag_eval.corpus.loading import identify, load_corpus
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.records.problems import InputError, Problem
from rag_eval.storage.artifacts import Artifact
from rag_eval.storage.hashing import digest


def corpus_snapshot(evaluation: Evaluation) -> Artifact:
    """Load and mask the corpus. Parts: documents, sections, sources, about (corpus_rev, loader, masked, n_documents, unreadable_dates)."""
    return evaluation.once("corpus", lambda: _corpus_snapshot(evaluation))


def _corpus_snapshot(evaluation: Evaluation) -> Artifact:
    spec = evaluation.config.corpus
    reading = spec.model_dump(mode="json", exclude={"chunker", "path"})
    key = evaluation.key("corpus", reading, identify(spec, evaluation.base))

    def make() -> dict[str, Any]:
        with evaluation.progress.step("Reading the corpus"):
            loaded = load_corpus(spec, evaluation.base)
        if loaded.documents.empty:
            raise InputError(
                Problem(
                    "empty_corpus",
                    "the corpus has no document",
                    file=str(evaluation.base),
                    field="corpus",
                )
            )
        about = {
            "corpus_rev": loaded.corpus_rev,
            "loader": loaded.loader,
            "masked": dict(loaded.masked) if spec.mask_pii else None,
            "n_documents": len(loaded.documents),
            "unreadable_dates": loaded.unreadable_dates,
        }
        return {
            "documents": loaded.documents,
            "sections": loaded.sections,
            "sources": loaded.sources,
            "about": about,
        }

    return evaluation.memo("corpus", key, make)


def corpus_chunks(evaluation: Evaluation) -> Artifact:
    """Cut the corpus. Parts: chunks, about (chunks_hash, n_chunks)."""
    return evaluation.once("chunks", lambda: _corpus_chunks(evaluation))


def _corpus_chunks(evaluation: Evaluation) -> Artifact:
    corpus = corpus_snapshot(evaluation)
    chunker = evaluation.config.corpus.chunker
    key = evaluation.key("chunks", corpus.key, chunker.model_dump(mode="json"))

    def make() -> dict[str, Any]:
        with evaluation.progress.step("Cutting documents into chunks"):
            chunks = chunk_documents(corpus.frame("documents"), corpus.frame("sections"), chunker)
        if chunks.empty:
            raise InputError(
                Problem(
                    "empty_index",
                    "no document has any text, so there is nothing to retrieve",
                    file=str(evaluation.base),
                    field="corpus",
                )
            )
        return {
            "chunks": chunks,
            "about": {
                "chunks_hash": chunks_hash(chunks, chunker),
                "n_chunks": len(chunks),
                "text_hashes": digest(chunks["text_hash"].tolist()),
            },
        }

    return evaluation.memo("chunks", key, make)
