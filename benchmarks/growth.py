"""Time indexing and retrieval of BM25 and of LSA vectors at two numbers of passages.

    growth.py 10000 100000

The passages are those of `nightly.py`. Each size has a process of its own. Prints a JSON line for
each size with the seconds of every stage. A last line has log(t2 / t1) / log(n2 / n1) of each
stage. The value is 1 when the time is proportional to the number of passages.
"""

import argparse
import math
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from nightly import write_synthetic
from timing import emit, indexed_text, json_lines

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.retrieval.embedding.embedders import LsaEmbedder, fit_lsa
from rag_eval.retrieval.lexical import Bm25s

QUESTIONS, DEPTH, DIMENSIONS, K1, B = 1_000, 100, 256, 0.9, 0.4


def time_stages(texts: list[str], queries: list[str]) -> dict[str, float]:
    """Return the seconds of every stage over these texts."""
    seconds, analyzer = dict[str, float](), Analyzer()

    def run(stage: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        seconds[stage] = round(time.perf_counter() - started, 3)
        return result

    terms = run("analyse", lambda: analyzer.index(texts))
    vocabulary, asked = list(analyzer.vocabulary), analyzer.index(queries)
    bm25 = run("bm25_index", lambda: Bm25s(terms, len(vocabulary), k1=K1, b=B))
    run("bm25_search", lambda: bm25.search(asked, DEPTH))
    fitted = run("lsa_fit", lambda: fit_lsa(terms, vocabulary, DIMENSIONS))
    embedder = LsaEmbedder(fitted, "benchmark", DIMENSIONS)
    vectors = run("vector_index", lambda: ExactSearch(embedder.embed_terms(terms)))
    run("vector_search", lambda: vectors.search(embedder.embed_terms(asked), DEPTH))
    return seconds


def measure(n_passages: int) -> dict[str, object]:
    """Time a synthetic set of this size, after a warm-up that imports the libraries."""
    with tempfile.TemporaryDirectory() as scratch:
        write_synthetic(Path(scratch), QUESTIONS, n_passages)
        texts = [indexed_text(row) for row in json_lines(Path(scratch, "corpus", "corpus.jsonl"))]
        queries = [row["text"] for row in json_lines(Path(scratch, "queries.jsonl"))]
    time_stages(texts[: QUESTIONS // 2], queries[:DEPTH])
    seconds = time_stages(texts, queries)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"passages": n_passages, "seconds": seconds, "peak_mib": memory >> 10}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("passages", type=int, nargs=2, help=f"two sizes from {QUESTIONS}, rising")
    lines = []
    for size in parser.parse_args().passages:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            lines.append(process.submit(measure, size).result())
        emit("growth", **lines[-1])
    (few, many), step = (line["seconds"] for line in lines), math.log(size / lines[0]["passages"])
    exponents = {name: round(math.log(many[name] / few[name]) / step, 2) for name in many}
    emit("growth", exponent=exponents)


if __name__ == "__main__":
    main()
