"""Recorded outputs opened for evaluation, with no corpus and with no gold at all."""

import json

import pytest

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.pipeline.corpus import GoldVariants
from rag_eval.pipeline.measure_stages import RankingMeasures, StabilityMeasures
from rag_eval.pipeline.opening import open_recorded
from rag_eval.pipeline.stages import open_runner


@pytest.fixture
def outputs(tmp_path):
    folder = tmp_path / "my system"
    folder.mkdir()
    rows = [
        {
            "query_id": f"q{number}",
            "question": f"what is thing {number}?",
            "answer": f"It is {number} [1].",
            "contexts": [
                f"thing {number} is {number}",
                {"doc_id": "a.md", "text": f"passage {number % 2} of a"},
            ],
        }
        for number in range(4)
    ]
    (folder / "outputs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder / "outputs.jsonl"


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home", reports=tmp_path / "reports")


@pytest.mark.parametrize(
    ("place", "code"), [("my system/mine.jsonl", None), ("my system", "no_outputs")]
)
def test_outputs_are_a_file_or_lie_in_a_folder(outputs, settings, place, code):
    path = outputs.parent.parent / place
    outputs.rename(outputs.with_name("mine.jsonl"))
    if code is None:
        assert open_recorded(path, settings).config.name == "mine"
        return
    with pytest.raises(InputError, match=code):
        open_recorded(path, settings)


def test_without_gold_every_ranking_measure_is_ineligible(outputs, settings):
    evaluation = open_recorded(outputs.parent, settings)
    assert (evaluation.config.name, evaluation.config.answers.mode) == ("my-system", "recorded")
    about = open_runner(evaluation).get(GoldVariants).artifact.json("about")
    assert (
        about["n_queries"],
        about["n_judged"],
        about["n_answerable_unknown"],
        about["n_spans"],
    ) == (4, 0, 4, 0)
    (measured,) = open_runner(evaluation).get(RankingMeasures).about.strategies
    assert {record.value for record in measured.measures} == {None}
    assert {
        (record.n_attempted, record.n_ineligible, record.n_scored) for record in measured.measures
    } == {(4, 4, 0)}
    stability = open_runner(evaluation).get(StabilityMeasures).about.strategies
    assert stability["recorded"].delta_s.n_scored == 4
