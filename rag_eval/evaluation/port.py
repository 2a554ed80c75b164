"""The retrieval port over a gold set's corpus, for callers outside the evaluation."""

from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.guard_steps import guarded
from rag_eval.evaluation.index_steps import IndexOpener, corpus_index
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.records.problems import InputError, Problem
from rag_eval.records.retrieval import StrategyKind
from rag_eval.retrieval.service import RetrievalService
from rag_eval.retrieval.strategies import ReadyStrategy


def open_port(evaluation: Evaluation) -> RetrievalService:
    """Open RetrievalPort v1 over the corpus as it is now, indexing what is new.

    The first strategy of each kind is served, external ones aside, without quarantined chunks and what restates the query; with `trust.filter` on, without chunks under the threshold, unless a call names its own. What a caller gets who names no strategy is bm25; with FEATURE_HYBRID_RETRIEVAL on it is
    hybrid. Where the gold set lacks that kind, its primary strategy's kind.

    Raises
    ------
    InputError
        The corpus cannot be used, or no strategy runs here.
    """
    opened = IndexOpener(evaluation)
    corpus_index(evaluation, opened)
    kinds: dict[StrategyKind, ReadyStrategy] = {}
    for strategy in opened().strategies.values():
        kinds.setdefault(strategy.spec.kind, strategy)
    wanted: StrategyKind = "hybrid" if evaluation.settings.feature_hybrid_retrieval else "bm25"
    if not kinds:
        raise InputError(
            Problem(
                "nothing_to_serve",
                "every strategy of this gold set is external",
                field="strategies",
                accepted="bm25, vector or hybrid",
            )
        )
    primary = opened().strategies.get(evaluation.config.primary_strategy)
    default = (
        wanted if wanted in kinds else next(iter(kinds)) if primary is None else primary.spec.kind
    )
    corpus = corpus_snapshot(evaluation)
    return RetrievalService(
        kinds,
        corpus.frame("documents"),
        corpus_rev=corpus.json("about")["corpus_rev"],
        default=default,
        seed=evaluation.config.seeds[0],
        **guarded(evaluation),
    )
