"""BM25 over SciFact's 1,109 judged queries (train and test), top 100, against bare bm25s and against rank-bm25.

Ours is tokenising the queries and searching through `Bm25s`, ties broken. The reference is `bm25s.tokenize` with the same stemmer and
stop words and `retrieve`; its bar is a ratio of 1.3. rank-bm25 scores a sample of the queries, and its time is scaled to all of them; it
must be at least 50 times slower.
"""

import bm25s
import numpy as np
import Stemmer
from rank_bm25 import BM25Okapi
from timing import alternate, data_folder, indexed_text, json_lines, report, skipped

from rag_eval.corpus.analyzer import STOP_WORDS, Analyzer
from rag_eval.retrieval.lexical import Bm25s

DEPTH, SAMPLE, REPEATS, K1, B = 100, 40, 9, 0.9, 0.4


def main() -> None:
    folder = data_folder()
    if folder is None:
        skipped("lexical", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    texts = [indexed_text(document) for document in json_lines(folder / "scifact" / "corpus.jsonl")]
    judged = {
        line.split("\t")[0]
        for name in ("train", "test")
        for line in (folder / "scifact" / "qrels" / f"{name}.tsv").read_text().splitlines()[1:]
    }
    queries = [
        query["text"]
        for query in json_lines(folder / "scifact" / "queries.jsonl")
        if query["_id"] in judged
    ]

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
    names = list(analyzer.vocabulary)
    okapi = BM25Okapi([[names[term] for term in row] for row in documents], k1=K1, b=B)
    sample = [
        [names[term] for term in row if term < len(names)]
        for row in analyzer.index(queries[:: len(queries) // SAMPLE][:SAMPLE])
    ]

    def rank_bm25() -> None:
        for query in sample:
            np.argpartition(okapi.get_scores(query), -DEPTH)[-DEPTH:]

    seconds = alternate(
        {
            "ours": lambda: ours.search(analyzer.index(queries), DEPTH),
            "reference": lambda: bare.retrieve(
                bm25s.tokenize(queries, **how), k=DEPTH, show_progress=False
            ),
        },
        REPEATS,
    )
    scaled = alternate({"rank": rank_bm25}, 3)["rank"] * len(queries) / len(sample)
    report(
        "lexical",
        seconds["ours"],
        seconds["reference"],
        1.3,
        queries=len(queries),
        rank_bm25_s=round(scaled, 2),
        rank_bm25_scaled_from_queries=len(sample),
        times_faster_than_rank_bm25=round(scaled / seconds["ours"]),
        times_faster_bar=50,
    )


if __name__ == "__main__":
    main()
