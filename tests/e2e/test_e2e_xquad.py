"""XQuAD has nine wordings of each question, so it shows how often a hit depends on the wording."""

import json

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]  # raised inside MLflow's own SQLAlchemy models

CONFIG = """\
name: xquad
version: 1
corpus: {{loader: beir, path: {path}, chunker: {{kind: sentence}}, mask_pii: false}}
k: [1, 5, 10]
depth: 50
seeds: [13]
split: test
strategies:
  - {{name: bm25, kind: bm25}}
level: span
nightly: false
"""


@pytest.fixture
def data_root(shared_data, monkeypatch):
    """The settings let gold sets read the public data."""
    monkeypatch.setenv("RAG_EVAL_CORPUS_ROOTS", json.dumps([str(shared_data)]))
    return shared_data


def test_wordings_change_the_hit_of_a_third_of_the_questions(project, data_root):
    folder = project.root / "gold_sets" / "xquad"
    folder.mkdir()
    text = CONFIG.format(path=json.dumps(str(data_root / "xquad")))
    (folder / "gold_set.yaml").write_text(text)
    result = project.invoke("run", "xquad")
    assert result.exit_code == 0, result.stderr
    report = project.report("xquad")
    gold = report["gold"]
    assert (gold["n_queries"], gold["n_paraphrases"], gold["n_answerable"]) == (1190, 9520, 1190)
    assert gold["n_groups"] == 240  # the questions of one paragraph are one group
    assert report["index"]["n_chunks"] > 1000
    stability = report["stability"]["strategies"]["bm25"]
    flips = stability["hit_changes_with_wording"]
    assert 0.2 < flips["hit_at_5"]["value"] < 0.5  # about a third
    assert flips["hit_at_5"]["ci_low"] < flips["hit_at_5"]["value"] < flips["hit_at_5"]["ci_high"]
    assert set(flips) == {"hit_at_1", "hit_at_5", "hit_at_10"}
    assert len(stability["flip_matrix"]["wordings"]) == 9
    by_wording = stability["recall_at_10_by_wording"]
    assert by_wording["worst"]["value"] < by_wording["mean"]["value"] < by_wording["best"]["value"]
    levels = {
        record["level"]: record["value"]
        for record in report["strategies"][0]["measures"]
        if record["label"] == "R@5"
    }
    assert levels["document"] > levels["span"]
