"""The index: open it, identify it for every strategy, and the stage that brings it up to date.

The stage embeds new chunks and builds the graphs of approximate search.
"""

import dataclasses
import functools
import time
import weakref
from collections.abc import Mapping

from rag_eval.core.loader import Chunker
from rag_eval.core.strategy import Identity, IdentityInputs, Strategy
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusChunks, CorpusSnapshot
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.runner import Result, Stage, Work, json_part
from rag_eval.pipeline.shards import run_on_ray
from rag_eval.retrieval.embedding.source import ChunkTable, find_lsa_fit, pack_hashes
from rag_eval.retrieval.outside import Outside
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.confidence import CorpusCoverage, count_covered, count_share
from rag_eval.uncertainty.opened_index import OpenIndex, steering_calibrator

# ---- The opened index, and the identities and modules of its strategies.

_open: "weakref.WeakKeyDictionary[AdmittedChunks, OpenIndex]" = weakref.WeakKeyDictionary()


def open_index(evaluation: Evaluation, admitted: AdmittedChunks) -> OpenIndex:
    """Open the index over these chunks, once per process."""
    if admitted not in _open:
        facts, places = admitted.about, evaluation.places
        table = ChunkTable(admitted.chunks, facts.chunks_hash, places.home, facts.analyzer)
        _open[admitted] = OpenIndex(evaluation.config, evaluation.settings, places, table)
    return _open[admitted]


def count_new_vectors(admitted: AdmittedChunks) -> int:
    """Count the texts that this process embedded through the index; 0 before it is open."""
    return _open[admitted].index.embedded if admitted in _open else 0


def chosen_kinds(evaluation: Evaluation, strategy: str) -> list[str]:
    """Name the modules of kinds and rerankers of a strategy and its base, or of all strategies."""
    config, rerankers = evaluation.config, evaluation.settings.rerankers
    chosen = [spec for spec in config.strategies if strategy in {"", spec.name}]
    concerned = [*chosen, *(config.base_of(spec) for spec in chosen)]
    modules = {type(spec).__module__ for spec in concerned}
    modules |= {
        rerankers[spec.rerank.kind].partition(":")[0]
        for spec in concerned
        if spec.rerank is not None and spec.rerank.kind in rerankers
    }
    return sorted(modules)


def identity_of(evaluation: Evaluation, admitted: AdmittedChunks, spec: Strategy) -> Identity:
    """Derive a strategy's index hash and embedding model from the inputs, before indexing."""
    base = evaluation.config.base_of(spec)

    def find_fit(dimensions: int) -> str:
        if admitted in _open:  # reading a large frame again takes seconds
            chunks = _open[admitted].table.frame
        else:
            chunks = admitted.artifact.frame("chunks", ["text_hash"])
        hashes = pack_hashes(chunks["text_hash"].tolist())
        return find_lsa_fit(evaluation.home, hashes, dimensions, admitted.about.analyzer)

    def read_stated_index() -> Mapping[str, object]:
        outside = Outside.model_validate(spec)
        return {} if spec.files() else evaluation.sources.open(outside).stated

    return spec.identity(
        IdentityInputs(
            folder=evaluation.base,
            settings=evaluation.settings,
            chunks_hash=admitted.about.chunks_hash,
            lsa_fit=find_fit,
            base=None if spec.base_name is None else identity_of(evaluation, admitted, base),
            calibrator_id=functools.partial(
                steering_calibrator, evaluation.home, evaluation.config, spec
            ),
            stated=read_stated_index,
        )
    )


# ---- Stage `corpus_index`.


@dataclasses.dataclass(frozen=True)
class IndexFacts:
    """How the index was made, and the identity of each strategy that is not external."""

    analyzer: str
    chunker: Chunker
    n_chunks: int
    strategies: dict[str, Identity]


@dataclasses.dataclass(frozen=True)
class IndexChanges:
    """Texts that were embedded by model, graphs that were built or dropped, and the duration."""

    embedded: dict[str, int]
    built: list[str]
    dropped: list[str]
    seconds: float


class CorpusIndex(Result):
    """The index over the admitted chunks. Changes in the store are not part of the identity."""

    shown = ("about", "changes")
    about: IndexFacts = json_part()
    changes: IndexChanges = json_part(volatile=True)

    def report_part(self, _: Work) -> dict[str, object]:
        """Give how the index was made, and whether it was there already."""
        made_by = {"analyzer": self.about.analyzer, "chunker": self.about.chunker}
        return {"index": made_by, "reused": {"index": self.artifact.reused}}

    def id_for(self, strategy: str) -> str:
        """Identify the index of one strategy, so that changes in others do not repeat its run."""
        part = self.about.strategies.get(strategy)
        if not strategy:
            return self.id
        return digest(None if part is None else dataclasses.asdict(part))


def _identify_index(work: Work, admitted_chunks: AdmittedChunks) -> dict[str, list[str]]:
    """Identify the sources of every strategy's rankings.

    The error for a missing input of a strategy comes here, before any indexing.
    """
    parts = {}
    for spec in work.config.strategies:
        identity = identity_of(work.evaluation, admitted_chunks, spec)
        if spec.runs_here:
            parts[spec.name] = [identity.index_hash, identity.embed_model]
    return parts


@Stage(
    "corpus_index",
    "corpus",
    stores=("embeddings", "vectors"),
    reads=("name", "seeds", "strategies"),
    outside=_identify_index,
    chosen=chosen_kinds,
)
def build_index(work: Work, admitted_chunks: AdmittedChunks) -> CorpusIndex:
    """Embed new chunks, build the graphs of approximate search, and identify every index."""
    started = time.perf_counter()
    opened = open_index(work.evaluation, admitted_chunks)
    strategies, n_chunks = opened.strategies, len(opened.table)
    embedded: dict[str, int] = {}
    for strategy in strategies.values():
        source = strategy.source
        if source is not None and source.model not in embedded:
            if work.settings.ray is not None:
                source.spread = functools.partial(run_on_ray, work.settings.ray)
            label = f"Embedding chunks with {source.model}"
            with work.progress.step(label, n_chunks, "chunks") as advance:
                source.chunk_vectors(advance)
            embedded[source.model] = source.n_embedded
    facts = IndexFacts(
        analyzer=admitted_chunks.about.analyzer,
        chunker=work.config.corpus.chunker,
        n_chunks=n_chunks,
        strategies={name: strategy.identity for name, strategy in strategies.items()},
    )
    graphs = opened.index.update_graphs(
        [strategy.spec for strategy in strategies.values()], work.config.seeds, work.progress.step
    )
    work.made_from += sorted(opened.table.made_from)
    seconds = time.perf_counter() - started
    return CorpusIndex(about=facts, changes=IndexChanges(embedded, *graphs, seconds))


def measure_coverage(
    corpus: CorpusSnapshot, chunks: CorpusChunks, admitted: AdmittedChunks, index: CorpusIndex
) -> CorpusCoverage:
    """Count the shares of documents indexed, of text in chunks, and of chunks with vectors."""
    documents, n = corpus.documents, index.about.n_chunks
    indexed = admitted.artifact.frame("chunks", ["doc_id", "start", "end"])
    length = int(documents["text"].str.len().sum())
    models = {part.embed_model for part in index.about.strategies.values()} - {""}
    with_chunk, held = "documents with an indexed chunk", count_covered(indexed)
    in_chunks = "characters of the documents that an indexed chunk holds"
    passed = "chunks that the poisoning guard admitted"
    embedded = "chunks whose vectors are in the index"
    return CorpusCoverage(
        documents_indexed=count_share(indexed["doc_id"].nunique(), len(documents), with_chunk),
        text_in_chunks=count_share(held, length, in_chunks),
        chunks_admitted=count_share(len(indexed), chunks.about.n_chunks, passed),
        # A run stops when the vector of an admitted chunk is missing.
        chunks_embedded={model: count_share(n, len(indexed), embedded) for model in sorted(models)},
    )
