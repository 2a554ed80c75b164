"""Recorded outputs opened for evaluation, with no corpus and with no gold at all."""

import json

import pytest

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.pipeline.corpus import GoldVariants
from rag_eval.pipeline.evaluation import (
    Evaluation,
    open_recorded,
    outputs_file,
    recorded_configuration,
)
from rag_eval.pipeline.measures import RankingMeasures, StabilityMeasures


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
    return Settings(home=tmp_path / "home", reports=tmp_path / "reports", latency_queries=1)


def test_the_file_of_outputs_is_found(outputs):
    folder = outputs.parent
    assert outputs_file(outputs) == outputs_file(folder) == outputs
    outputs.rename(folder / "mine.jsonl")
    (folder / "queries.jsonl").write_text("", encoding="utf-8")
    assert outputs_file(folder) == folder / "mine.jsonl"
    (folder / "other.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(InputError) as several:
        outputs_file(folder)
    assert (several.value.problems[0].code, several.value.problems[0].found) == (
        "several_outputs",
        "mine.jsonl, other.jsonl",
    )
    with pytest.raises(InputError) as none:
        outputs_file(folder / "nowhere")
    assert none.value.problems[0].code == "no_outputs"


def test_without_gold_every_ranking_measure_is_ineligible(outputs, settings):
    config = recorded_configuration(outputs) | {
        "strategies": ({"name": "bm25", "kind": "bm25"},)
    }  # any strategy works: the test reads the gold
    evaluation = Evaluation(GoldSetConfig.model_validate(config), outputs.parent, settings)
    about = evaluation.runner.get(GoldVariants).artifact.json("about")
    assert (
        about["n_queries"],
        about["n_judged"],
        about["n_answerable_unknown"],
        about["n_spans"],
    ) == (4, 0, 4, 0)
    (measured,) = evaluation.runner.get(RankingMeasures).about.strategies
    assert {record.value for record in measured.measures} == {None}
    assert {
        (record.n_attempted, record.n_ineligible, record.n_scored) for record in measured.measures
    } == {(4, 4, 0)}
    assert evaluation.runner.get(StabilityMeasures).about.strategies["bm25"].delta_s.n_scored == 4


def test_recorded_outputs_open(outputs, settings):
    evaluation = open_recorded(outputs.parent, settings)
    assert evaluation.config.name == "my-system"
    assert evaluation.config.answers.mode == "recorded"
    assert [strategy.kind for strategy in evaluation.config.strategies] == ["external"]
    gold = evaluation.runner.get(GoldVariants)
    assert gold.queries["query_id"].tolist() == ["q0", "q1", "q2", "q3"]


def test_outputs_without_contexts_are_refused(outputs, settings):
    outputs.write_text('{"query_id": "q1", "answer": "x"}\n', encoding="utf-8")
    with pytest.raises(InputError) as caught:
        open_recorded(outputs, settings)
    assert caught.value.problems[0].code == "empty_corpus"
