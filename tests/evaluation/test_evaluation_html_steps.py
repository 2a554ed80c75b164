"""A separate step writes the page, and a second write gives the same page.

No page of an earlier run stays beside a report without a page.
"""

import dataclasses

import pytest
from panel_pages import unfolded_words

from rag_eval.core.settings import Settings
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.history import read_run
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.report_stages import HtmlReport
from rag_eval.pipeline.runner import Node
from rag_eval.pipeline.stages import open_runner
from rag_eval.storage.home import Home

pytestmark = pytest.mark.usefixtures("pages")


def reopened(project) -> Evaluation:
    """Open the gold set as a step of a job does: the step reads the records of other steps."""
    settings = Settings(
        home=project.home, reports=project.reports, gold_sets=project.root / "gold_sets"
    )
    return dataclasses.replace(open_gold_set(project.gold, settings), use_record=True)


def test_a_page_written_again_does_not_take_its_own_run_for_the_one_before(project, shared_runs):
    shared_runs.run(project)
    page = project.reports / "tiny" / "index.html"
    before = page.read_bytes()
    page.unlink()
    open_runner(reopened(project)).one(Node("html_report"))
    assert page.read_bytes() == before


@pytest.mark.slow
def test_the_page_of_smoke_has_at_most_3000_words_unfolded(tmp_path, project_root):
    settings = Settings(home=tmp_path / "home", reports=tmp_path / "reports")
    open_runner(open_gold_set(project_root / "gold_sets" / "smoke", settings)).get(HtmlReport)
    page = (settings.reports / "smoke" / "index.html").read_text(encoding="utf-8")
    assert 300 < len(unfolded_words(page)) <= 3_000


@pytest.mark.slow
def test_questions_that_were_removed_from_the_home_are_left_out_of_a_page_written_later(project):
    project.run()
    key = read_run(Home(project.home), project.report()["run_id"]).artifact("explorer").key
    (project.home / "artifacts" / "explorer" / key).rename(project.root / "gone")
    (project.reports / "tiny" / "index.html").unlink()
    evaluation = reopened(project)
    open_runner(evaluation).one(Node("html_report"))
    said = (project.reports / "tiny" / "index.html").read_text(encoding="utf-8")
    assert "This page was made without the questions of the run" in said
    assert "bundle-summary" not in said
    recorded = open_runner(evaluation).one(Node("mlflow_record"))
    assert recorded.stage.failure(recorded.result) == ""


@pytest.mark.slow
def test_a_run_that_ends_before_its_page_leaves_no_page_of_an_earlier_one(project):
    project.run()
    folder = project.reports / "tiny"
    open_runner(reopened(project)).one(Node("retrieval_metrics_report"))
    assert not (folder / "index.html").exists()
