"""XQuAD with its nine wordings of each question: how often the hit depends on the wording, and evidence as spans."""

import json

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]  # raised inside MLflow's own SQLAlchemy models

CONFIG = """\
name: xquad
version: 1
corpus: {{loader: beir, path: {path}, chunker: {{kind: {chunker}}}, mask_pii: false}}
k: [1, 5, 10]
depth: 50
seeds: [13]
split: test
strategies:
  - {{name: bm25, kind: bm25}}
  - {{name: vector, kind: vector, embedding: {{vectors: {vectors}}}}}
level: {level}
nightly: false
"""


def evaluated(project, shared_data, *, chunker, level, vectors=True):
    folder = project.root / "gold_sets" / "xquad"
    folder.mkdir()
    text = CONFIG.format(
        path=json.dumps(str(shared_data / "xquad")),
        chunker=chunker,
        level=level,
        vectors=json.dumps(str(shared_data / "embeddings" / "all-MiniLM-L6-v2.npz")),
    )
    if not vectors:
        text = "".join(
            line for line in text.splitlines(keepends=True) if "kind: vector" not in line
        )
    (folder / "gold_set.yaml").write_text(text)
    result = project.invoke("run", "xquad")
    assert result.exit_code == 0, result.stderr
    return project.report("xquad")


@pytest.mark.timeout(
    900
)  # two strategies are calibrated on 10,710 outcomes each: minutes, and more beside another suite
def test_whole_paragraphs(project, shared_data):
    report = evaluated(project, shared_data, chunker="whole", level="document")
    gold = report["gold"]
    assert (gold["n_queries"], gold["n_paraphrases"], gold["n_answerable"]) == (1190, 9520, 1190)
    assert gold["n_groups"] == 240  # the questions of one paragraph are one group
    assert gold["n_spans"] > 1000
    assert report["index"]["n_documents"] == 240
    for name in ("bm25", "vector"):
        flips = report["stability"]["strategies"][name]["hit_changes_with_wording"]["hit_at_5"]
        assert flips["n_scored"] == 1190
        assert flips["ci_low"] < flips["value"] < flips["ci_high"]
        assert 0.005 < flips["ci_high"] - flips["ci_low"] < 0.2
    # 240 paragraphs are an easy haystack; with one sentence a chunk a third of the questions change
    assert (
        0.03
        < report["stability"]["strategies"]["bm25"]["hit_changes_with_wording"]["hit_at_5"]["value"]
        < 0.5
    )


def test_single_sentences(project, shared_data):
    report = evaluated(project, shared_data, chunker="sentence", level="span", vectors=False)
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
