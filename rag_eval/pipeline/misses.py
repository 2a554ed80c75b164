"""Stage: trace the questions that each strategy misses."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from rag_eval.core.arrays import IntArray
from rag_eval.pipeline.corpus import AdmittedChunks, GoldVariants
from rag_eval.pipeline.index import CorpusIndex
from rag_eval.pipeline.open_strategies import chosen_kinds, open_index
from rag_eval.pipeline.runner import Result, Stage, Work, frame_part, json_part
from rag_eval.pipeline.runs import ScoredRuns, StrategyRun, score_runs, search_depth
from rag_eval.retrieval.ranking import Ranking
from rag_eval.uncertainty import lost_gold
from rag_eval.uncertainty.miss_rate_report import MissesPart
from rag_eval.uncertainty.opened_index import OpenIndex


class MissedQuestions(Result):
    """Missed questions of every strategy (MISSED), and their counts for the report."""

    missed: pd.DataFrame = frame_part()
    about: dict[str, MissesPart] = json_part()

    def report_part(self, _: Work) -> dict[str, object]:
        """Give the part `misses`."""
        return {"misses": self.about}


@Stage(
    "missed_questions",
    "measures",
    stores=("embeddings",),
    reads=("level", "depth", "strategies", "trust.filter", "trust.quarantine"),
    chosen=chosen_kinds,
    columns=lost_gold.MISSED,
)
def trace_misses(
    work: Work,
    *,
    runs: dict[str, StrategyRun],
    gold_variants: GoldVariants,
    admitted_chunks: AdmittedChunks,
    corpus_index: CorpusIndex,  # noqa: ARG001 - identifies the vectors of the opened index
) -> MissedQuestions:
    """Find the step that lost the gold of each missed question."""
    scored = score_runs(work.config, gold_variants, admitted_chunks, runs)
    opened, parts, about = open_index(work.evaluation, admitted_chunks), [], {}

    def search(name: str, variant: IntArray) -> Mapping[str, Ranking]:
        return _search_again(scored, opened, name, variant)

    with work.progress.step("Tracing misses", len(scored.names), "strategies") as advance:
        for name in scored.names:
            frame, about[name] = lost_gold.trace_misses(scored, name, search)
            parts.append(frame)
            advance(1)
    return MissedQuestions(missed=pd.concat(parts, ignore_index=True), about=about)


def _search_again(
    runs: ScoredRuns, opened: OpenIndex, name: str, variant: IntArray
) -> Mapping[str, Ranking]:
    """Search as the run did, and return the list by step; none for an external strategy."""
    if name not in opened.strategies:
        return {}
    config, gold, n_chunks = runs.config, runs.gold_variants, len(opened.table)
    ignored = gold.own_documents(config, runs.chunks["doc_id"])
    allowed = runs.admitted_chunks.passes if config.trust.filter else None
    lists = opened.strategies[name].trace(
        [gold.texts[row] for row in variant.tolist()],
        search_depth(config, ignored, n_chunks),
        runs.first_seed(name),
        allowed=allowed,
    )
    place = np.full(len(gold.variants), -1, dtype=np.int64)
    place[variant] = np.arange(len(variant))
    owner = place[ignored // n_chunks]
    codes = (owner * n_chunks + ignored % n_chunks)[owner >= 0]
    return lists | {"ranked": lists["ranked"].without(codes, n_chunks)}
