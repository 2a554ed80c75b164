"""Time search, embedding and measures against the underlying libraries in one run.

exact: SciFact's 1,109 judged queries, top 100, against a bare numpy product with `argpartition`.
lexical: the same queries by BM25, against `bm25s.tokenize` and `retrieve`. rank-bm25 scores only a
sample.
minilm: 100 texts against Chroma's own function, which pads every text to 256 tokens.
measures: 10,000 rankings of 100 documents under 8 labels, against ir-measures on ready frames.
api: `rag_eval.evaluate` of 5 runs of the same size, with intervals, against ir-measures without.
"""

import random
from pathlib import Path

import bm25s
import ir_measures
import numpy as np
import pandas as pd
import Stemmer
from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2
from rank_bm25 import BM25Okapi
from timing import alternate, data_folder, indexed_text, json_lines, report, skipped

import rag_eval
from rag_eval.corpus.analyzer import STOP_WORDS, Analyzer
from rag_eval.measures.ranking import Qrels, score_rankings
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.retrieval.embedding.embedders import MiniLmEmbedder, read_vectors
from rag_eval.retrieval.lexical import Bm25s
from rag_eval.storage.hashing import text_hash

DEPTH, SAMPLE, TEXTS, K1, B = 100, 40, 100, 0.9, 0.4
N, JUDGED, STRATEGIES = 10_000, 10, 5
LABELS = ("R@10", "R@20", "Success@5", "RR", "nDCG@10", "P@5", "P@10", "Judged@10")
API_LABELS = ("nDCG@10", "R@10", "R@100", "RR", "AP")


def measure_exact(folder: Path, texts: list[str], queries: list[str]) -> None:
    names, vectors = read_vectors(folder / "embeddings" / "all-MiniLM-L6-v2.npz")
    row = {name: i for i, name in enumerate(names)}
    documents, asked = (
        vectors[[row[text_hash(text)] for text in part]] for part in (texts, queries)
    )
    engine = ExactSearch(documents)

    def reference() -> np.ndarray:
        product = asked @ documents.T
        best = np.argpartition(product, len(documents) - DEPTH, axis=1)[:, -DEPTH:]
        order = np.argsort(-np.take_along_axis(product, best, axis=1), axis=1)
        return np.take_along_axis(best, order, axis=1)

    runs = {"ours": lambda: engine.search(asked, DEPTH), "reference": reference}
    same = float((engine.search(asked, DEPTH).rows == reference()).mean())
    report("exact", alternate(runs, repeats=21), 1.3, same_places=round(same, 5))


def measure_lexical(texts: list[str], queries: list[str]) -> None:
    analyzer = Analyzer()
    documents = analyzer.index(texts)
    ours = Bm25s(documents, len(analyzer.vocabulary), k1=K1, b=B)
    how = {
        "stopwords": sorted(STOP_WORDS),
        "stemmer": Stemmer.Stemmer("porter"),
        "show_progress": False,
    }
    bare = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
    bare.index(bm25s.tokenize(texts, **how), show_progress=False)
    okapi = BM25Okapi(documents, k1=K1, b=B)
    sample = analyzer.index(queries[:SAMPLE])
    runs = {
        "ours": lambda: ours.search(analyzer.index(queries), DEPTH),
        "reference": lambda: bare.retrieve(
            bm25s.tokenize(queries, **how), k=DEPTH, show_progress=False
        ),
    }
    seconds = alternate(runs, repeats=9)
    sampled = alternate({"okapi": lambda: [okapi.get_scores(row) for row in sample]}, repeats=3)
    times = round(sampled["okapi"] * len(queries) / len(sample) / seconds["ours"])
    report("lexical", seconds, 1.3, times_faster_than_rank_bm25=times, times_faster_bar=50)


def measure_minilm(texts: list[str]) -> None:
    model = Path(ONNXMiniLM_L6_V2.DOWNLOAD_PATH) / ONNXMiniLM_L6_V2.EXTRACTED_FOLDER_NAME
    if not (model / "model.onnx").is_file():
        skipped("minilm", "the model file is not on this machine")
        return
    texts = random.Random(13).sample(texts, TEXTS)
    ours, theirs = MiniLmEmbedder(model), ONNXMiniLM_L6_V2()
    runs = {"ours": lambda: ours.embed(texts), "reference": lambda: theirs(texts)}
    difference = float(np.abs(ours.embed(texts) - np.array(theirs(texts))).max())
    bars = {"max_abs_difference": difference, "max_abs_difference_bar": 1e-5}
    report("minilm", alternate(runs, repeats=3), round(1 / 3.5, 3), **bars)


def measure_evaluation() -> None:
    """Time rankings in codes, and the same and other rankings in frames by the Python API."""
    rng = np.random.default_rng(13)
    # Each query has 200 distinct candidates, of which the first ten are judged.
    pool = rng.integers(0, 40_000, size=(N, 1)) + np.argsort(rng.random((N, 200)), axis=1)
    gains = np.maximum(rng.integers(-1, 3, (N, JUDGED)), np.arange(JUDGED) == 0)
    names, query = np.char.add("q", np.arange(N).astype(str)), np.arange(N)
    qrels = pd.DataFrame(
        {
            "query_id": np.repeat(names, JUDGED),
            "doc_id": pool[:, :JUDGED].ravel().astype(str),
            "relevance": gains.ravel(),
        }
    )
    runs, items = {}, np.empty(0)
    for strategy in range(STRATEGIES):
        order = np.argsort(rng.random((N, 200)), axis=1)[:, :DEPTH]
        items = np.take_along_axis(pool, order, axis=1)
        runs[f"strategy-{strategy}"] = pd.DataFrame(
            {
                "query_id": np.repeat(names, DEPTH),
                "doc_id": items.ravel().astype(str),
                "score": np.tile(np.arange(DEPTH, 0, -1.0), N),
            }
        )
    codes = Qrels.from_rows(np.repeat(query, JUDGED), pool[:, :JUDGED].ravel(), gains.ravel(), N)
    parsed, of_api = (list(map(ir_measures.parse_measure, part)) for part in (LABELS, API_LABELS))
    last = runs[f"strategy-{STRATEGIES - 1}"]
    calls = {
        "ours": lambda: score_rankings(items, codes, query, LABELS),
        "reference": lambda: ir_measures.calc_aggregate(parsed, qrels, last),
    }
    theirs = calls["reference"]()
    means = calls["ours"]().mean(axis=0)
    np.testing.assert_allclose(means, [theirs[measure] for measure in parsed], atol=1e-9)
    report("measures", alternate(calls, repeats=3), 1.3)
    calls = {
        "ours": lambda: rag_eval.evaluate(runs, qrels, API_LABELS),
        "reference": lambda: [
            ir_measures.calc_aggregate(of_api, qrels, run) for run in runs.values()
        ],
    }
    table = calls["ours"]().table["value"]
    for name, values in zip(runs, calls["reference"](), strict=True):
        np.testing.assert_allclose(table[name], [values[one] for one in of_api], atol=1e-12)
    report("api", alternate(calls, repeats=1), 2.0)


def main() -> None:
    measure_evaluation()
    folder = data_folder()
    if folder is None:
        skipped("search", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    texts = [indexed_text(document) for document in json_lines(folder / "scifact" / "corpus.jsonl")]
    judged = {
        line.split("\t")[0]
        for name in ("train", "test")
        for line in (folder / "scifact" / "qrels" / f"{name}.tsv").read_text().splitlines()[1:]
    }
    rows = json_lines(folder / "scifact" / "queries.jsonl")
    queries = [row["text"] for row in rows if row["_id"] in judged]
    measure_exact(folder, texts, queries)
    measure_lexical(texts, queries)
    measure_minilm(texts + queries)


if __name__ == "__main__":
    main()
