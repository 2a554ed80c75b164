"""Files for other tools: each is read back by the tool that it is for."""

import json
import warnings
from pathlib import Path

import ir_measures
import numpy as np
import pandas as pd
import pytest

from rag_eval.core.types import Answer
from rag_eval.reporting.exchange import (
    StrategyRankings,
    _separate_ties,
    exchange_files,
    ragas_samples,
)
from rag_eval.retrieval.kinds.external import read_run

VARIANTS = pd.DataFrame(
    [
        ("q1", "original", "Who bakes?", "q1", True),
        ("q1", "p1", "the baker, mail jane.doe@example.org", "q1", True),
        ("a b", "original", "What is baked?", "a b", True),
    ],
    columns=["query_id", "paraphrase_id", "text", "group_id", "answerable"],
)
QRELS = pd.DataFrame({"query_id": ["q1", "a b"], "item_id": ["d%1", "d2"], "gain": [1, 2]})
UNITS = pd.DataFrame({"chunk_id": ["c0", "c1", "c2", "c3"], "doc_id": ["d2", "d%1", "d2", "d0"]})


def run_of(*rows: tuple[int, int, int, float]) -> StrategyRankings:
    """Make a run of rows (variant, rank, chunk, score); a second seed repeats the first."""
    frame = pd.DataFrame(rows, columns=["variant", "k_final", "chunk", "score_raw"])
    frame = frame.assign(k_pos=frame["k_final"])
    return StrategyRankings(pd.concat([frame.assign(seed=13), frame.assign(seed=29)]), UNITS, 13)


RANKINGS = {
    "tied": run_of((0, 1, 0, 2.5), (0, 2, 1, 2.5), (0, 3, 2, 2.5), (1, 1, 3, -1), (2, 1, 0, 0)),
    "reranked": run_of((0, 1, 0, 0.1), (0, 2, 1, 0.9), (2, 1, 0, 0.4)),
}
PER_QUERY_ROWS = pd.DataFrame(
    [
        ("tied", level, query, query, wording, seed, is_eligible, False, 0.5, 1.0, np.nan)
        for level in ("document", "span")
        for query, wording, is_eligible in (
            ("q1", "original", True),
            ("q1", "p1", True),
            ("a b", "original", False),
        )
        for seed in (13, 29)
    ],
    columns="strategy level query_id group_id paraphrase_id seed eligible failed mrr ndcg_at_10 "
    "recall_at_5".split(),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exchange")
    for name, data in exchange_files(PER_QUERY_ROWS, QRELS, VARIANTS, RANKINGS).items():
        (folder / name).write_bytes(data)
    return folder


def test_tied_scores_are_written_in_the_order_of_the_ranking(folder):
    lines = (folder / "run-tied.trec").read_text(encoding="utf-8").splitlines()
    assert lines == [
        "q1 Q0 d2 1 2.5 tied",
        "q1 Q0 d%251 2 2.4999998 tied",
        "a%20b Q0 d2 1 0 tied",
    ]


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e6])
def test_separated_ties_stay_close_and_fall_in_32_bits(scale):
    rng = np.random.default_rng(5)
    topic = np.repeat(np.arange(20), 50)
    scores = scale * np.round(rng.normal(size=1000), 1)
    scores = scores[np.lexsort((-scores, topic))]
    found = _separate_ties(scores, topic)
    assert found.dtype == np.float32
    assert (np.diff(found)[np.diff(topic) == 0] < 0).all()
    assert np.allclose(found, scores, rtol=1e-5, atol=scale * 1e-5)


def test_scores_that_rise_along_a_ranking_become_ranks(folder):
    lines = (folder / "run-reranked.trec").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == ["q1 Q0 d2 1 1 reranked:1/rank", "q1 Q0 d%251 2 0.5 reranked:1/rank"]


def test_our_reader_reads_the_run_back(folder):
    found = read_run(folder / "run-tied.trec", VARIANTS)
    ids = {key: [item.id for item in ranking.items] for key, ranking in found.items()}
    assert ids == {
        ("q1", "original"): ["d2", "d%251"],
        ("a b", "original"): ["d2"],
    }


def test_ir_measures_judges_the_original_wordings(folder):
    qrels = ir_measures.read_trec_qrels(str(folder / "qrels.trec"))
    run = ir_measures.read_trec_run(str(folder / "run-tied.trec"))
    found = {
        (one.query_id, one.value) for one in ir_measures.iter_calc([ir_measures.RR], qrels, run)
    }
    assert found == {("q1", 0.5), ("a%20b", 1.0)}


def test_tables_are_read_back(folder):
    tables = {path.stem: pd.read_parquet(path) for path in folder.glob("*.parquet")}
    assert tables["questions"]["qid"].tolist() == ["q1", "q1/p1", "a b"]
    assert "jane" not in tables["questions"]["text"][1]
    assert tables["qrels"]["relevance"].tolist() == [1, 2]
    pd.testing.assert_frame_equal(tables["per-query"], PER_QUERY_ROWS, check_dtype=False)
    runs = tables["runs"].query("strategy == 'tied' and seed == 13")
    assert list(zip(runs["qid"], runs["docno"], runs["rank"], runs["score"], strict=True)) == [
        ("q1", "d2", 1, 2.5),
        ("q1", "d%1", 2, 2.5),
        ("q1/p1", "d0", 1, -1.0),
        ("a b", "d2", 1, 0.0),
    ]


def samples() -> str:
    answers = [
        Answer("q1", "deterministic", "answered", text="The baker."),
        Answer("a b", "recorded", "not_found", text="no"),
    ]
    spans = pd.DataFrame({"query_id": ["q1"], "text": ["The baker bakes."]})
    questions = VARIANTS[VARIANTS["paraphrase_id"] == "original"]
    return ragas_samples(answers, questions, QRELS, spans)


def test_a_ragas_sample_pairs_response_and_reference():
    first, second = map(json.loads, samples().splitlines())
    assert (first["user_input"], first["response"]) == ("Who bakes?", "The baker.")
    assert first["reference_contexts"] == ["The baker bakes."]
    assert first["reference_context_ids"] == ["d%1"]
    assert second["response"] == ""


@pytest.mark.slow
def test_ragas_reads_the_samples(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ragas import EvaluationDataset
    (tmp_path / "ragas.jsonl").write_text(samples())
    found = EvaluationDataset.from_jsonl(tmp_path / "ragas.jsonl")
    assert [sample.user_input for sample in found.samples] == ["Who bakes?", "What is baked?"]


@pytest.mark.parametrize(
    ("name", "column"), [("queries", "text"), ("paraphrases", "text"), ("answers", "anchors")]
)
def test_datasets_loads_the_shipped_gold_set(name, column, tmp_path, project_root):
    import datasets

    folder = project_root / "gold_sets" / "pandas_api"
    found = datasets.load_dataset(str(folder), name, split="train", cache_dir=str(tmp_path))
    assert len(found) == len((folder / f"{name}.jsonl").read_text().splitlines())
    assert found[0][column]
