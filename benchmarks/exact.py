"""Exact search of SciFact's 1,109 judged queries over its 5,183 documents, top 100, MiniLM vectors, against bare numpy.

The reference is the matrix product, `argpartition` and a sort of the best 100. Ours also breaks ties and gives the same scores for a query
alone and in a batch. Prints one JSON line; the bar is a ratio of 1.3.
"""

import numpy as np
from timing import alternate, data_folder, indexed_text, json_lines, report, skipped

from rag_eval.retrieval.dense import ExactSearch
from rag_eval.storage.hashing import text_hash

DEPTH, REPEATS = 100, 21


def main() -> None:
    folder = data_folder()
    if folder is None:
        skipped("exact", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    with np.load(folder / "embeddings" / "all-MiniLM-L6-v2.npz") as archive:
        row = {key: i for i, key in enumerate(archive["sha256"].astype(str).tolist())}
        vectors = archive["vectors"]
    documents = vectors[
        [
            row[text_hash(indexed_text(document))]
            for document in json_lines(folder / "scifact" / "corpus.jsonl")
        ]
    ]
    queries = vectors[
        [
            row[text_hash(query["text"])]
            for query in json_lines(folder / "scifact" / "queries.jsonl")
        ]
    ]
    engine = ExactSearch(documents)

    def reference() -> np.ndarray:
        product = queries @ documents.T
        best = np.argpartition(product, len(documents) - DEPTH, axis=1)[:, -DEPTH:]
        order = np.argsort(-np.take_along_axis(product, best, axis=1), axis=1)
        return np.take_along_axis(best, order, axis=1)

    seconds = alternate(
        {"ours": lambda: engine.search(queries, DEPTH), "reference": reference}, REPEATS
    )
    same = float((engine.search(queries, DEPTH).rows == reference()).mean())
    report(
        "exact",
        seconds["ours"],
        seconds["reference"],
        1.3,
        queries=len(queries),
        documents=len(documents),
        same_places=round(same, 5),
    )


if __name__ == "__main__":
    main()
