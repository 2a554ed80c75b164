"""How time and memory grow from 10,000 to 100,000 chunks: the whole way from documents on disk to ranked chunks.

Steps: reading and masking a BEIR folder, cutting (`text` chunker), the artifacts of documents and chunks, tokenising, the BM25 index, the LSA fit with its
artifact, embedding with its cache, 200 queries by BM25 and by exact vector search. Documents are paragraphs of words that follow Zipf's law over a
vocabulary that keeps growing; they are written by another process than the one measured. Every run is a fresh process, its peak memory less what stood
after the imports. The exponent is the slope of log(cost) over log(chunks) from the smallest to the largest size; its bar is 1.15. Chroma's graph
building stands beside it, for 5,000 and 50,000 vectors of 384 dimensions, and has no bar. Prints one JSON line.
"""

import importlib
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rag_eval.retrieval.chunk_table import ChunkTable
    from rag_eval.storage.artifacts import ArtifactStore

SIZES = {10_000: 3, 100_000: 1}
"""Chunks and repeats."""
GRAPH_SIZES = {5_000: 1, 50_000: 1}
MODEL = "lsa-256"
QUERIES, DEPTH, WORDS, PARAGRAPHS, MAX_TOKENS, GRAPH_DIMENSIONS = 200, 100, 80, 8, 120, 384
BAR = 1.15


def peak() -> float:
    """Peak memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1024**2 if sys.platform == "darwin" else 1024
    )


def word(rank: int) -> str:
    """Name of a word: its rank in letters."""
    letters = ""
    while rank:
        rank, digit = divmod(rank, 20)
        letters += "bcdfghjklmnprstvwxyz"[digit] + "aeiou"[digit % 5]
    return letters


def write_corpus(folder: Path, chunks: int) -> None:
    """A BEIR folder of documents of some eight paragraphs of 40 to 119 words; a paragraph becomes a chunk."""
    rng = np.random.default_rng(13)
    names: dict[int, str] = {}
    folder.mkdir()
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as corpus:
        for number in range(chunks // PARAGRAPHS):
            paragraphs = []
            for _ in range(PARAGRAPHS):
                ranks = np.minimum(
                    rng.zipf(1.2, size=rng.integers(WORDS // 2, WORDS * 3 // 2)), 10**7
                ).tolist()
                paragraphs.append(
                    " ".join(
                        [names.get(rank) or names.setdefault(rank, word(rank)) for rank in ranks]
                    )
                )
            corpus.write(
                json.dumps({"_id": f"doc{number}", "title": "", "text": "\n\n".join(paragraphs)})
                + "\n"
            )


class Laps:
    """Seconds of each step since the one before."""

    def __init__(self) -> None:
        self.cost: dict[str, float] = {}
        self._started = time.perf_counter()

    def __call__(self, name: str) -> None:
        self.cost[name] = time.perf_counter() - self._started
        self._started = time.perf_counter()


def stored_chunks(folder: Path, store: "ArtifactStore", lap: Laps) -> "ChunkTable":
    """Documents -> chunks, both kept as artifacts, as the corpus stages do it."""
    from rag_eval.corpus.chunking import chunk_documents, chunks_hash
    from rag_eval.corpus.loading import load_corpus
    from rag_eval.records.gold_set import Beir, Chunker
    from rag_eval.retrieval.chunk_table import ChunkTable

    chunker = Chunker(kind="text", max_tokens=MAX_TOKENS)
    loaded = load_corpus(Beir(loader="beir", path=str(folder), chunker=chunker), folder)
    lap("read_and_mask_s")
    chunks = chunk_documents(loaded.documents, loaded.sections, chunker)
    identity = chunks_hash(chunks, chunker)
    lap("cut_s")
    store.memo(
        "corpus", identity, lambda: {"documents": loaded.documents, "sections": loaded.sections}
    )
    stored = store.memo("chunks", identity, lambda: {"chunks": chunks})
    table = ChunkTable(stored.frame("chunks"), identity)
    lap("store_s")
    return table


def pipeline(folder: Path) -> dict[str, float]:
    """Seconds of each step and peak memory, for the corpus of a folder."""
    from rag_eval.records.configuration_parts import Embedding
    from rag_eval.retrieval.dense import ExactSearch
    from rag_eval.retrieval.embedding.source import EmbeddingSource, Places
    from rag_eval.retrieval.lexical import Bm25s
    from rag_eval.storage.artifacts import ArtifactStore

    for library in (
        "bm25s",
        "pyarrow.parquet",
        "sklearn.feature_extraction.text",
        "sklearn.utils.extmath",
    ):  # before memory is counted
        importlib.import_module(library)
    before = peak()
    lap = Laps()
    with tempfile.TemporaryDirectory() as home:
        places = Places(folder, Path(home) / "embeddings", ArtifactStore(Path(home) / "artifacts"))
        table = stored_chunks(folder, places.store, lap)
        terms, n_terms = table.terms, table.n_terms
        lap("tokenise_s")
        lexical = Bm25s(terms, n_terms, k1=0.9, b=0.4)
        lap("bm25_index_s")
        source = EmbeddingSource(Embedding(model=MODEL), table, places)
        _ = source.embedder
        lap("lsa_fit_s")
        vectors = source.chunk_vectors()
        lap("embed_s")
        queries = [
            " ".join(text.split()[:8]) for text in table.texts[:: len(table) // QUERIES][:QUERIES]
        ]
        lexical.search(table.query_terms(queries), DEPTH)
        lap("bm25_search_s")
        ExactSearch(vectors).search(source.query_vectors(queries), DEPTH)
        lap("vector_search_s")
    return {
        "chunks": len(table),
        "terms": n_terms,
        **lap.cost,
        "time_s": sum(lap.cost.values()),
        "memory_mib": peak() - before,
    }


def graph(count: int) -> dict[str, float]:
    """Seconds that Chroma takes to build a graph of one size."""
    from rag_eval.retrieval.chroma import ChromaStore

    vectors = np.random.default_rng(13).standard_normal((count, GRAPH_DIMENSIONS), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = [f"chunk{i}" for i in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        store = ChromaStore(Path(folder))
        started = time.perf_counter()
        store.build("graph", ids, vectors, ids, seed=13)
        return {"chunks": count, "graph_s": time.perf_counter() - started}


def in_fresh_process(what: str, argument: object) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, what, str(argument)], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def medians(
    what: str, repeats: dict[int, int], arguments: dict[int, object]
) -> dict[int, dict[str, float]]:
    """Median costs of each size."""
    found = {}
    for size, times in repeats.items():
        taken = [in_fresh_process(what, arguments[size]) for _ in range(times)]
        found[size] = {name: statistics.median(run[name] for run in taken) for name in taken[0]}
    return found


def exponents(costs: dict[int, dict[str, float]]) -> dict[str, float]:
    low, high = costs[min(costs)], costs[max(costs)]
    return {
        name: round(math.log(high[name] / low[name]) / math.log(high["chunks"] / low["chunks"]), 3)
        for name in low
        if name != "chunks"
    }


def rounded(costs: dict[int, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        str(size): {name: round(value, 3) for name, value in cost.items()}
        for size, cost in costs.items()
    }


def main() -> None:
    if len(sys.argv) > 1:
        what, argument = sys.argv[1:]
        print(json.dumps(pipeline(Path(argument)) if what == "pipeline" else graph(int(argument))))
        return
    with tempfile.TemporaryDirectory() as folder:
        corpora: dict[int, object] = {size: Path(folder) / str(size) for size in SIZES}
        for size, corpus in corpora.items():
            write_corpus(Path(str(corpus)), size)
        costs = medians("pipeline", SIZES, corpora)
    graphs = medians("graph", GRAPH_SIZES, {size: size for size in GRAPH_SIZES})
    slopes = exponents(costs)
    met = slopes["time_s"] <= BAR and slopes["memory_mib"] <= BAR
    about = {
        "bench": "growth",
        "model": MODEL,
        "ours_s": round(costs[max(SIZES)]["time_s"], 2),
        "reference_s": None,
        "ratio": None,
        "bar": BAR,
        "met": met,
    }
    growth = {
        "time_exponent": slopes["time_s"],
        "memory_exponent": slopes["memory_mib"],
        "exponents": slopes,
        "costs": rounded(costs),
    }
    print(
        json.dumps(
            {
                **about,
                **growth,
                "graph_dimensions": GRAPH_DIMENSIONS,
                "graph": rounded(graphs),
                "graph_exponent": exponents(graphs)["graph_s"],
            }
        )
    )


if __name__ == "__main__":
    main()
