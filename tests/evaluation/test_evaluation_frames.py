"""What Dagster says of the frames of answers and measures is what they are."""

import pytest

from rag_eval.evaluation.answer_measure_steps import answer_measures
from rag_eval.evaluation.answer_steps import answers
from rag_eval.evaluation.citation_steps import citations
from rag_eval.evaluation.index_steps import IndexOpener
from rag_eval.evaluation.inputs import open_gold_set
from rag_eval.evaluation.measure_steps import Runs, ranking_measures
from rag_eval.evaluation.stability_steps import stability_measures
from rag_eval.records.measure_frames import ANSWER_MEASURES, ANSWERS, CITATIONS, DELTA_S, PER_QUERY
from rag_eval.settings import Settings

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # raised inside MLflow's own SQLAlchemy models


def test_frames_have_the_columns_that_are_said_of_them(project):
    assert project.invoke("run", "tiny").exit_code == 0
    evaluation = open_gold_set(
        project.gold,
        Settings(home=project.home, reports=project.reports, gold_sets=project.root / "gold_sets"),
    )
    runs = Runs(evaluation, IndexOpener(evaluation))
    ANSWERS.check(answers(runs).frame("answers"))
    CITATIONS.check(citations(runs).frame("citations"))
    ANSWER_MEASURES.check(answer_measures(runs).frame("per_question"))
    DELTA_S.check(stability_measures(runs).frame("per_run"))
    frame = ranking_measures(runs).frame("per_query")
    PER_QUERY.check(frame[list(PER_QUERY.columns)])
    assert {
        name.rsplit("_at_", 1)[0] for name in frame.columns if name not in PER_QUERY.columns
    } == {"recall", "success", "precision", "judged"}
