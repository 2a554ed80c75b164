"""Public sets through the command line: published figures of SciFact, nine wordings of XQuAD."""

import json

import pytest
from cli_project import measure

pytestmark = pytest.mark.slow

XQUAD = """\
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


def test_scifact_without_configuration_gives_published_figures(project, shared_data):
    vectors = shared_data / "embeddings" / "all-MiniLM-L6-v2.npz"
    beir = ("--beir", shared_data / "scifact", "--split", "test", "--vectors", vectors)
    project.command("run", *beir)
    report, found = project.report("scifact-test"), project.strategies("scifact-test")
    assert (report["gold"]["n_queries"], report["index"]["n_documents"]) == (300, 5183)
    for strategy, label, published, bound in (
        ("bm25", "nDCG@10", 0.679, 0.010),
        ("bm25", "R@100", 0.925, 0.010),
        ("vector", "nDCG@10", 0.6451, 0.0005),
        ("vector", "R@10", 0.7833, 0.0005),
        ("vector", "R@100", 0.9250, 0.0005),
    ):
        assert measure(found[strategy], label)["value"] == pytest.approx(published, abs=bound)
    gain = {name: measure(entry, "nDCG@10")["value"] for name, entry in found.items()}
    assert gain["hybrid"] > max(gain["vector"], gain["bm25"])


def test_wordings_change_the_hit_of_a_third_of_the_questions(project, shared_data, monkeypatch):
    monkeypatch.setenv("RAG_EVAL_CORPUS_ROOTS", json.dumps([str(shared_data)]))
    folder = project.gold.parent / "xquad"
    folder.mkdir()
    text = XQUAD.format(path=json.dumps(str(shared_data / "xquad")))
    (folder / "gold_set.yaml").write_text(text, encoding="utf-8")
    project.command("run", "xquad")
    report, bm25 = project.report("xquad"), project.strategies("xquad")["bm25"]
    gold = report["gold"]
    assert (gold["n_queries"], gold["n_paraphrases"], gold["n_answerable"]) == (1190, 9520, 1190)
    assert gold["n_groups"] == 240  # the questions of one paragraph are one group
    assert report["index"]["n_chunks"] > 1000
    stability = report["stability"]["strategies"]["bm25"]
    flips = stability["hit_changes_with_wording"]
    assert set(flips) == {"hit_at_1", "hit_at_5", "hit_at_10"}
    assert 0.2 < flips["hit_at_5"]["value"] < 0.5  # about a third
    assert flips["hit_at_5"]["ci_low"] < flips["hit_at_5"]["value"] < flips["hit_at_5"]["ci_high"]
    assert len(stability["flip_matrix"]["wordings"]) == 9
    by_wording = stability["recall_at_10_by_wording"]
    assert by_wording["worst"]["value"] < by_wording["mean"]["value"] < by_wording["best"]["value"]
    assert measure(bm25)["value"] > measure(bm25, level="span")["value"]
