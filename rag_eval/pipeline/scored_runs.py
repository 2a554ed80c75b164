"""The scored runs of an evaluation, shared by its stages."""

import weakref
from collections.abc import Mapping

from rag_eval.core.config import GoldSetConfig
from rag_eval.measures.run_scores import RankedRuns
from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
from rag_eval.pipeline.retrieval import RunFacts, StrategyRun
from rag_eval.pipeline.runner import Runner


class ScoredRuns(RankedRuns[GoldVariants, AdmittedChunks, StrategyRun]):
    """The runs of all strategies with the gold set, as the stages give them."""

    def about(self, name: str) -> RunFacts:
        """Return the facts for the report on one strategy's run."""
        return self.runs[name].about


def open_runs(runner: Runner) -> ScoredRuns:
    """Score the runs of an evaluation outside of a stage."""
    runs = {name: runner.get(StrategyRun, name) for name in runner.strategies}
    gold, admitted = runner.get(GoldVariants), runner.get(AdmittedChunks)
    return score_runs(runner.evaluation.config, gold, admitted, runs)


_scored: "weakref.WeakKeyDictionary[GoldVariants, ScoredRuns]" = weakref.WeakKeyDictionary()


def score_runs(
    config: GoldSetConfig,
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
    runs: Mapping[str, StrategyRun],
) -> ScoredRuns:
    """Combine runs and gold. Stages of one process with equal inputs share the scores."""
    scored = _scored.get(gold_variants)
    if scored is None or (scored.admitted_chunks, scored.runs) != (admitted_chunks, dict(runs)):
        scored = ScoredRuns(config, gold_variants, admitted_chunks, dict(runs))
        _scored[gold_variants] = scored
    return scored
