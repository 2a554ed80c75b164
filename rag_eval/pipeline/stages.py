"""The graph: every stage of an evaluation, in an order with inputs before their readers."""

from typing import Final

from rag_eval.pipeline import (
    answers,
    calibration,
    claims,
    corpus,
    measures,
    miss_rates,
    misses,
    ragas,
    report,
    retrieval,
)
from rag_eval.pipeline.runner import Stage

STAGES: Final[tuple[Stage, ...]] = (
    corpus.read_corpus,
    corpus.cut_chunks,
    corpus.judge_evidence,
    corpus.admit_chunks,
    corpus.resolve_gold_set,
    retrieval.find_restated,
    retrieval.build_index,
    retrieval.retrieve,
    measures.measure_rankings,
    measures.measure_stability,
    measures.measure_trust,
    answers.answer_gold_set,
    answers.check_citations,
    answers.measure_answers,
    ragas.measure_with_ragas,
    claims.collect_signals,
    claims.state_miss_rates,
    misses.trace_misses,
    calibration.record_outcomes,
    calibration.calibrate_miss_rates,
    miss_rates.compare_miss_rates,
    report.write_report,
    report.write_page,
    report.record_in_mlflow,
    report.judge_report,
)
