"""Time search and embedding on SciFact against the underlying libraries in one run.

exact: the 1,109 judged queries, top 100, against a bare numpy product with `argpartition`.
lexical: the same queries by BM25, against `bm25s.tokenize` and `retrieve`. rank-bm25 scores only a
sample.
minilm: 100 texts against Chroma's own function, which pads every text to 256 tokens.
"""

import random
from pathlib import Path

import bm25s
import numpy as np
import Stemmer
from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2
from rank_bm25 import BM25Okapi
from timing import alternate, data_folder, indexed_text, json_lines, report, skipped

from rag_eval.corpus.analyzer import STOP_WORDS, Analyzer
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.retrieval.embedders import MiniLmEmbedder, read_vectors
from rag_eval.retrieval.lexical import Bm25s
from rag_eval.storage.hashing import text_hash

DEPTH, SAMPLE, TEXTS, K1, B = 100, 40, 100, 0.9, 0.4


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

    seconds = alternate(
        {"ours": lambda: engine.search(asked, DEPTH), "reference": reference}, repeats=21
    )
    same = float((engine.search(asked, DEPTH).rows == reference()).mean())
    report("exact", seconds["ours"], seconds["reference"], 1.3, same_places=round(same, 5))


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
    times = sampled["okapi"] * len(queries) / len(sample) / seconds["ours"]
    report(
        "lexical",
        seconds["ours"],
        seconds["reference"],
        1.3,
        times_faster_than_rank_bm25=round(times),
        times_faster_bar=50,
    )


def measure_minilm(texts: list[str]) -> None:
    model = Path(ONNXMiniLM_L6_V2.DOWNLOAD_PATH) / ONNXMiniLM_L6_V2.EXTRACTED_FOLDER_NAME
    if not (model / "model.onnx").is_file():
        skipped("minilm", "the model file is not on this machine")
        return
    texts = random.Random(13).sample(texts, TEXTS)
    ours, theirs = MiniLmEmbedder(model), ONNXMiniLM_L6_V2()
    seconds = alternate(
        {"ours": lambda: ours.embed(texts), "reference": lambda: theirs(texts)}, repeats=3
    )
    difference = float(np.abs(ours.embed(texts) - np.array(theirs(texts))).max())
    report(
        "minilm",
        seconds["ours"],
        seconds["reference"],
        round(1 / 3.5, 3),
        max_abs_difference=difference,
        max_abs_difference_bar=1e-5,
    )


def main() -> None:
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
