"""Signals of 10,000 queries x 100 documents against the time of retrieving them, on SciFact's documents and queries.

SciFact's judged queries are repeated in turn until there are enough. Ours is `signals` at K = 10 over lists of 100, with the weights of
the corpus computed anew each time; the reference is the project's own search of the same queries, bm25 through `Bm25s` and vector through `ExactSearch`, in the
same run and in turns. Vectors are the public MiniLM file's. Prints one JSON line a strategy; `ratio` is ours / reference, and its bar is 2.
"""

import copy
import dataclasses

import numpy as np
from miss_rate_data import Collection, collection
from timing import alternate, data_folder, report, skipped

from rag_eval.retrieval.dense import ExactSearch
from rag_eval.uncertainty.batch import RankedBatch
from rag_eval.uncertainty.signals import SIGNALS, signals

QUERIES, DEPTH, K, REPEATS, BAR = 10_000, 100, 10, 3, 2.0


def measure(its: Collection, strategy: str) -> None:
    chosen = np.arange(QUERIES) % len(its.queries)
    terms = [its.query_terms[i] for i in chosen]
    asked, held = its.vectors("minilm")
    queries, exact, lexical = asked[chosen], ExactSearch(held), its.bm25
    found = {"bm25": lexical.search(terms, DEPTH), "vector": exact.search(queries, DEPTH)}
    main, other = (found[strategy], found["vector" if strategy == "bm25" else "bm25"])
    batch = RankedBatch(
        main.rows,
        main.raw,
        main.norm,
        strategy == "vector",
        its.space,
        terms,
        other.rows,
        other.raw,
        queries,
        held,
    )
    seconds = alternate(
        {
            "ours": lambda: signals(dataclasses.replace(batch, space=copy.copy(its.space)), K),
            "reference": (lambda: lexical.search(terms, DEPTH))
            if strategy == "bm25"
            else (lambda: exact.search(queries, DEPTH)),
        },
        REPEATS,
    )
    report(
        "miss_signals_speed",
        seconds["ours"],
        seconds["reference"],
        BAR,
        strategy=strategy,
        queries=QUERIES,
        depth=DEPTH,
        chunks=len(its.texts),
        signals=len(SIGNALS),
    )


def main() -> None:
    if data_folder() is None:
        skipped("miss_signals_speed", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    for strategy in ("bm25", "vector"):
        measure(collection("scifact"), strategy)


if __name__ == "__main__":
    main()
