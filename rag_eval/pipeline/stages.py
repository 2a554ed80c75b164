"""The graph: every stage of an evaluation, in an order with inputs before their readers."""

from typing import Final

from rag_eval.pipeline import (
    answers,
    calibration,
    claims,
    corpus,
    guard,
    index,
    measures,
    miss_rates,
    misses,
    ragas,
    report,
    retrieval,
    signals,
    stability,
    trust,
)
from rag_eval.pipeline.runner import Stage

STAGES: Final[tuple[Stage, ...]] = (
    corpus.read_corpus,
    corpus.cut_chunks,
    corpus.judge_evidence,
    corpus.admit_chunks,
    corpus.resolve_gold_set,
    guard.find_restated,
    index.build_index,
    retrieval.retrieve,
    measures.measure_rankings,
    stability.measure_stability,
    trust.measure_trust,
    answers.answer_gold_set,
    answers.check_citations,
    answers.measure_answers,
    ragas.measure_with_ragas,
    signals.collect_signals,
    claims.state_miss_rates,
    misses.trace_misses,
    claims.record_outcomes,
    calibration.calibrate_miss_rates,
    miss_rates.compare_miss_rates,
    report.write_report,
    report.write_page,
    report.record_in_mlflow,
    report.judge_report,
)
