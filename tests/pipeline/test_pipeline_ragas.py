"""Measures of ragas equal ours on equal inputs, and a second run does not import ragas."""

import dataclasses

import pytest

from rag_eval.core.settings import Settings
from rag_eval.pipeline.measure_stages import RagasMeasures
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.runner import Node
from rag_eval.pipeline.stages import open_runner


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_recall_by_ragas_is_ours_and_is_made_once(project_root, tmp_path):
    def run():
        settings = Settings(home=tmp_path / "home", reports=tmp_path / "reports")
        opened = open_gold_set(project_root / "gold_sets" / "smoke", settings)
        few = opened.config.strategies[:1]
        changed = {"ragas": True, "strategies": few, "primary": few[0].name, "answers": None}
        config = opened.config.model_copy(update=changed)
        runner = open_runner(dataclasses.replace(opened, config=config))
        return runner.get(RagasMeasures), runner.made[Node("ragas_measures")].reused

    made, reused = run()
    recall, precision = made.figures
    assert recall.value == pytest.approx(recall.ours_value, abs=1e-12)
    assert recall.n_scored == 10
    assert precision.value >= precision.ours_value  # ours divides by ten
    assert not reused
    again, reused = run()
    assert (again.figures, reused) == (made.figures, True)
