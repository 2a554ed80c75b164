"""The index stage: embed chunks, build graphs, and identify the index of every strategy."""

import dataclasses
import functools
import time

from rag_eval.core.loader import Chunker
from rag_eval.core.strategy import Identity
from rag_eval.pipeline.corpus import AdmittedChunks
from rag_eval.pipeline.open_strategies import chosen_kinds, identity_of, open_index
from rag_eval.pipeline.runner import Result, Stage, Work, json_part
from rag_eval.pipeline.shards import run_on_ray
from rag_eval.storage.hashing import digest


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
        """Identify the index of one strategy.

        A change in the index of another strategy must not repeat this strategy's run.
        """
        part = self.about.strategies.get(strategy)
        if not strategy:
            return self.id
        return digest(None if part is None else dataclasses.asdict(part))


def _identify_index(work: Work, admitted_chunks: AdmittedChunks) -> dict[str, list[str]]:
    """Identify the sources of every strategy's rankings.

    Raises
    ------
    InputError
        The settings or a file lack an input of a strategy. The error comes before any indexing.
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
    kinds=("chroma",),
)
def build_index(work: Work, admitted_chunks: AdmittedChunks) -> CorpusIndex:
    """Embed new chunks, build the graphs of approximate search, and identify every index."""
    started = time.perf_counter()
    opened = open_index(work.evaluation, admitted_chunks)
    embedded: dict[str, int] = {}
    for strategy in opened.strategies.values():
        source, n_chunks = strategy.source, len(opened.table)
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
        n_chunks=len(opened.table),
        strategies={name: strategy.identity for name, strategy in opened.strategies.items()},
    )
    graphs = opened.index.update_graphs(
        [strategy.spec for strategy in opened.strategies.values()],
        work.config.seeds,
        work.progress.step,
    )
    work.made_from += sorted(opened.table.made_from)
    seconds = time.perf_counter() - started
    return CorpusIndex(about=facts, changes=IndexChanges(embedded, *graphs, seconds))
