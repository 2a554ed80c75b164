"""How time and memory grow from 10,000 to 100,000 chunks: tokenising, the BM25 index, 200 queries, and exact vector search.

Texts are Zipfian over a vocabulary that keeps growing; every size is measured in fresh processes, its peak memory less what stood after the
imports. The exponent is the slope of log(cost) over log(chunks) from the smallest to the largest size; its bar is 1.15. Chroma's graph
building stands beside it, for 5,000 and 20,000 vectors, and has no bar. Prints one JSON line.
"""

import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SIZES = (10_000, 100_000)
GRAPH_SIZES = (5_000, 20_000)
REPEATS, QUERIES, DEPTH, WORDS, DIMENSIONS = 3, 200, 100, 80, 384
BAR = 1.15


def peak() -> float:
    """Peak memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 if sys.platform == "darwin" else 1024) / (1024 if sys.platform == "darwin" else 1)


def written(count: int, rng: np.random.Generator) -> list[str]:
    """Texts of some 80 words whose ranks follow Zipf's law; a word's name is its rank in letters."""
    names: dict[int, str] = {}

    def name(rank: int) -> str:
        if rank not in names:
            letters, rest = "", rank
            while rest:
                rest, digit = divmod(rest, 20)
                letters += "bcdfghjklmnprstvwxyz"[digit] + "aeiou"[digit % 5]
            names[rank] = letters
        return names[rank]

    texts = []
    for _ in range(count):
        ranks = np.minimum(rng.zipf(1.2, size=rng.integers(WORDS // 2, WORDS * 3 // 2)), 10**7)
        texts.append(" ".join(map(name, ranks.tolist())))
    return texts


def engines(count: int) -> dict[str, float]:
    """Seconds of each step and peak memory, for one size."""
    import bm25s  # noqa: F401 - imported before memory is counted

    from rag_eval.corpus.analyzer import Analyzer
    from rag_eval.retrieval.dense import ExactSearch
    from rag_eval.retrieval.lexical import Bm25s

    before = peak()
    rng = np.random.default_rng(13)
    texts = written(count, rng)
    queries = [" ".join(text.split()[:8]) for text in texts[:: count // QUERIES][:QUERIES]]
    vectors = rng.standard_normal((count, DIMENSIONS), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cost = {}
    started = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal started
        cost[name] = time.perf_counter() - started
        started = time.perf_counter()

    analyzer = Analyzer()
    documents = analyzer.index(texts)
    lap("tokenise_s")
    lexical = Bm25s(documents, len(analyzer.vocabulary), k1=0.9, b=0.4)
    lap("index_s")
    lexical.search(analyzer.index(queries), DEPTH)
    lap("lexical_search_s")
    ExactSearch(vectors).search(vectors[:: count // QUERIES][:QUERIES], DEPTH)
    lap("exact_search_s")
    return {**cost, "time_s": sum(cost.values()), "memory_mib": peak() - before}


def graph(count: int) -> dict[str, float]:
    """Seconds that Chroma takes to build a graph of one size."""
    from rag_eval.retrieval.chroma import ChromaStore

    vectors = np.random.default_rng(13).standard_normal((count, DIMENSIONS), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = [f"chunk{i}" for i in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        store = ChromaStore(Path(folder))
        started = time.perf_counter()
        store.build("graph", ids, vectors, ids, seed=13)
        return {"graph_s": time.perf_counter() - started}


def in_fresh_process(what: str, count: int) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, what, str(count)], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def medians(what: str, sizes: tuple[int, ...], repeats: int) -> dict[int, dict[str, float]]:
    """Median costs of each size, the sizes taken in turns."""
    runs: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for _ in range(repeats):
        for size in sizes:
            runs[size].append(in_fresh_process(what, size))
    return {size: {name: statistics.median(run[name] for run in taken) for name in taken[0]} for size, taken in runs.items()}


def exponents(costs: dict[int, dict[str, float]]) -> dict[str, float]:
    low, high = min(costs), max(costs)
    return {name: round(math.log(costs[high][name] / costs[low][name]) / math.log(high / low), 3) for name in costs[low]}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps({"engines": engines, "graph": graph}[sys.argv[1]](int(sys.argv[2]))))
        return
    costs, graphs = medians("engines", SIZES, REPEATS), medians("graph", GRAPH_SIZES, 1)
    slopes = exponents(costs)
    print(
        json.dumps(
            {
                "bench": "growth",
                "ours_s": round(costs[SIZES[-1]]["time_s"], 2),
                "reference_s": None,
                "ratio": None,
                "bar": BAR,
                "time_exponent": slopes["time_s"],
                "memory_exponent": slopes["memory_mib"],
                "exponents": slopes,
                "costs": {str(size): {name: round(value, 3) for name, value in cost.items()} for size, cost in costs.items()},
                "graph": {str(size): {name: round(value, 2) for name, value in cost.items()} for size, cost in graphs.items()},
                "graph_exponent": exponents(graphs)["graph_s"],
            }
        )
    )


if __name__ == "__main__":
    main()
