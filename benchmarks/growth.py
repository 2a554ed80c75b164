"""Time indexing and retrieval of BM25 and of LSA vectors at several numbers of passages.

    growth.py 10000 100000

The passages are those of `nightly.py`. Each size has a process of its own. Prints a JSON line for
each size with the seconds of every stage, and one for each pair of neighbouring sizes with
`exponent` = log(t2 / t1) / log(n2 / n1): 1 where the time grows as the number of passages does.
"""

import argparse
import json
import math
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from nightly import write_synthetic
from timing import indexed_text, json_lines

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.retrieval.embedding import lsa
from rag_eval.retrieval.lexical import Bm25s

QUESTIONS, DEPTH, DIMENSIONS, K1, B = 1_000, 100, 256, 0.9, 0.4


def measure(n_passages: int) -> dict[str, Any]:
    """Time every stage on a synthetic set of this size."""
    with tempfile.TemporaryDirectory() as scratch:
        write_synthetic(Path(scratch), QUESTIONS, n_passages)
        rows = json_lines(Path(scratch) / "corpus" / "corpus.jsonl")
        queries = [row["text"] for row in json_lines(Path(scratch) / "queries.jsonl")]
    texts, analyzer, seconds = [indexed_text(row) for row in rows], Analyzer(), {}

    def run(stage: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        seconds[stage] = round(time.perf_counter() - started, 3)
        return result

    terms = run("analyse", lambda: analyzer.index(texts))
    vocabulary = list(analyzer.vocabulary)
    asked = analyzer.index(queries)
    bm25 = run("bm25_index", lambda: Bm25s(terms, len(vocabulary), k1=K1, b=B))
    run("bm25_search", lambda: bm25.search(asked, DEPTH))
    fitted = run("lsa_fit", lambda: lsa.fit(terms, vocabulary, DIMENSIONS))
    embedder = lsa.LsaEmbedder(fitted, "benchmark", DIMENSIONS)
    vectors = run("vector_index", lambda: ExactSearch(embedder.embed_terms(terms)))
    run("vector_search", lambda: vectors.search(embedder.embed_terms(asked), DEPTH))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {"passages": n_passages, "seconds": seconds, "peak_mib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("passages", type=int, nargs="*", default=[10_000, 100_000])
    sizes = sorted(parser.parse_args().passages)
    if len(sizes) < 2 or sizes[0] < QUESTIONS:
        parser.error(f"give two sizes or more, of {QUESTIONS} passages or more")
    lines = []
    for size in sizes:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            lines.append(process.submit(measure, size).result())
        print(json.dumps({"bench": "growth", **lines[-1]}), flush=True)
    for small, large in pairwise(lines):
        step = math.log(large["passages"] / small["passages"])
        before, seconds = small["seconds"], large["seconds"]
        found = {name: round(math.log(seconds[name] / before[name]) / step, 2) for name in seconds}
        both = [small["passages"], large["passages"]]
        print(json.dumps({"bench": "growth", "passages": both, "exponent": found}))


if __name__ == "__main__":
    main()
