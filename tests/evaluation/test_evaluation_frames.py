"""Dagster describes the frames of answers and measures correctly."""

from rag_eval.core.frames import ANSWER_MEASURES, CITATIONS, DELTA_S, PER_QUERY
from rag_eval.core.settings import Settings
from rag_eval.pipeline.answer_stages import AnswerMeasures, CitationSet
from rag_eval.pipeline.measure_stages import RankingMeasures, StabilityMeasures
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.stages import open_runner


def test_frames_have_the_columns_that_are_said_of_them(project, shared_runs):
    shared_runs.run(project)
    evaluation = open_gold_set(
        project.gold,
        Settings(home=project.home, reports=project.reports, gold_sets=project.root / "gold_sets"),
    )
    get = open_runner(evaluation).get
    CITATIONS.check(get(CitationSet).citations)
    ANSWER_MEASURES.check(get(AnswerMeasures).per_question)
    DELTA_S.check(get(StabilityMeasures).per_run)
    frame = get(RankingMeasures).per_query
    PER_QUERY.check(frame[list(PER_QUERY.columns)])
    assert {
        name.rsplit("_at_", 1)[0] for name in frame.columns if name not in PER_QUERY.columns
    } == {"recall", "success", "precision", "judged"}
