"""What stages share about strategies: the opened index, their kinds and their identities."""

import functools
import weakref
from collections.abc import Mapping

from rag_eval.core.strategy import Identity, IdentityInputs, Strategy
from rag_eval.pipeline.corpus import AdmittedChunks
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.retrieval.embedding import ChunkTable, find_lsa_fit, pack_hashes
from rag_eval.retrieval.outside import Outside
from rag_eval.uncertainty.opened_index import OpenIndex, steering_calibrator

_open: "weakref.WeakKeyDictionary[AdmittedChunks, OpenIndex]" = weakref.WeakKeyDictionary()


def open_index(evaluation: Evaluation, admitted: AdmittedChunks) -> OpenIndex:
    """Open the index over these chunks, once per process."""
    if admitted not in _open:
        facts, places = admitted.about, evaluation.places
        table = ChunkTable(admitted.chunks, facts.chunks_hash, places.home, facts.analyzer)
        _open[admitted] = OpenIndex(evaluation.config, evaluation.settings, places, table)
    return _open[admitted]


def n_embedded(admitted: AdmittedChunks) -> int:
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
