"""Stored arrays of an index belong to its result, so that cleaning can remove them with it."""

import json

import pandas as pd
import pytest

from rag_eval.core.settings import Settings
from rag_eval.corpus.analyzer import ANALYZER, BIGRAM_ANALYZER
from rag_eval.corpus.chunking import chunks_hash
from rag_eval.pipeline.corpus import AdmittedChunks
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.retrieval import CorpusIndex
from rag_eval.pipeline.stages import open_runner
from rag_eval.pipeline.strategy_runs import StrategyRun

CONFIG = """\
name: small
version: 1
corpus: {loader: beir, path: corpus, chunker: {kind: whole}}
strategies:
  - {name: bm25, kind: bm25}
  - {name: vector, kind: vector, embedding: {model: lsa-2}}
"""


def write_gold_set(folder, texts, question="red ship", config=CONFIG):
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    lines = [{"_id": f"d{at}", "title": "", "text": text} for at, text in enumerate(texts)]
    files = {
        "gold_set.yaml": config,
        "corpus/corpus.jsonl": "".join(f"{json.dumps(line)}\n" for line in lines),
        "queries.jsonl": json.dumps({"query_id": "q", "text": question, "answerable": True}),
        "qrels.tsv": "query-id\tcorpus-id\tscore\nq\td0\t1\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)


def kinds_behind(result):
    about = json.loads(result.artifact.path("artifact.json").read_text())
    return {kind for kind, _ in about["made_from"]}


def test_results_name_the_stored_arrays_and_a_later_run_equals_a_fresh_one(tmp_path):
    folder, texts = tmp_path / "small", ["a red ship", "a blue ship", "green trees grow"]
    settings = Settings(home=tmp_path / "home", gold_sets=tmp_path, reports=tmp_path / "reports")
    write_gold_set(folder, texts)
    runner = open_runner(open_gold_set(folder, settings))
    first = runner.get(CorpusIndex)
    assert {"terms", "chunk_vectors"} <= kinds_behind(first)
    assert "bm25_scores" in kinds_behind(runner.get(StrategyRun, "bm25"))
    write_gold_set(folder, ["a new text", *texts])
    later = open_gold_set(folder, settings)
    again = open_runner(later).get(StrategyRun, "bm25")
    anew = open_gold_set(folder, settings.model_copy(update={"home": tmp_path / "new"}))
    assert again.id == open_runner(anew).get(StrategyRun, "bm25").id
    assert open_runner(later).get(CorpusIndex).id == open_runner(anew).get(CorpusIndex).id


CORPORA = {
    "red ship": (["a red ship", "a blue ship", "green trees"], ANALYZER),
    "紅色的船": (["這是紅色的船", "綠色的樹", "a blue ship"], BIGRAM_ANALYZER),
}


@pytest.mark.parametrize("shards", ["off", "2"])
@pytest.mark.parametrize("question", CORPORA)
def test_the_index_names_its_analyzer_and_keeps_the_hash_of_others(tmp_path, question, shards):
    (texts, analyzer), folder = CORPORA[question], tmp_path / "small"
    settings = Settings(home=tmp_path / "home", gold_sets=tmp_path, reports=tmp_path / "reports")
    corpus = f"loader: parquet, path: corpus.parquet, shards: {shards}"
    write_gold_set(folder, texts, question, CONFIG.replace("loader: beir, path: corpus", corpus))
    rows = pd.DataFrame({"id": [f"d{at}" for at in range(3)], "text": texts})
    rows.to_parquet(folder / "corpus.parquet")
    evaluation = open_gold_set(folder, settings)
    admitted = open_runner(evaluation).get(AdmittedChunks)
    assert open_runner(evaluation).get(CorpusIndex).about.analyzer == analyzer
    plain = chunks_hash(admitted.chunks, evaluation.config.corpus.chunker)
    assert (admitted.about.chunks_hash == plain) == (analyzer == ANALYZER)
    first = open_runner(evaluation).get(StrategyRun, "bm25").run.iloc[0]
    assert admitted.chunks["doc_id"][first["chunk"]] == "d0"
