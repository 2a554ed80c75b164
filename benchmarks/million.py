"""Measure a large corpus from Parquet files to ranked answers: time, growth and memory.

    million.py 10000 100000            two sizes, BM25 and LSA vectors
    million.py 1000000 --scratch DIR   the files of the corpus and of the home go below DIR

The texts of the public data and the docstrings of PACKAGES are cut into sentences, of which those
without code and figures stay. Sentences drawn at random make passages of 42 to 60 words, and four
passages make a document, which is cut into four chunks. A question has seven words of a passage.
The stages of a run follow one another, from the files to the rankings of every strategy for 1,000
questions. A second run follows a change of 1 % of the documents.

Each run has a process of its own. Prints a JSON line for each stage and each run with seconds, CPU
seconds with those of workers, and the peak of anonymous memory (RssAnon of the process and its
workers, sampled every 20 ms; mapped files do not count). A last line has the growth exponents of
the first runs: log(t2 / t1) / log(n2 / n1) of the CPU seconds.
"""

import argparse
import ast
import json
import math
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from timing import data_folder, emit, json_lines

from rag_eval.core.settings import Settings, telemetry_off
from rag_eval.corpus.analyzer import count_tokens
from rag_eval.corpus.chunking import spans
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.runner import Node
from rag_eval.pipeline.stages import open_runner

QUESTIONS, QUESTION_WORDS, PASSAGES, LEAST_WORDS, MOST_WORDS = 1_000, 7, 4, 42, 60
LEAST_SENTENCE, MOST_SENTENCE, FILE_DOCUMENTS = 4, 40, 25_000
CHANGED, SEED, INTERVAL_S = 0.01, 11, 0.02
MEMORY_BAR_MIB, EXPONENT_BAR, CHANGED_BAR = 3 * 1024, 1.1, 0.05
PACKAGES = ("numpy", "scipy", "pandas", "sklearn", "pyarrow", "dagster", "mlflow", "sqlalchemy")
CONFIG = """\
name: million
version: 1
corpus:
  loader: parquet
  path: corpus
  chunker: {kind: text, max_tokens: 64}
  shards: auto
depth: 100
seeds: [13]
strategies:
  - {name: bm25, kind: bm25}
  - {name: vector, kind: vector, embedding: {model: lsa-256}}
level: document
gates: {required: [], advisory: []}
nightly: false
"""


# ---- The corpus: sentences of known texts, shuffled.


def read_texts() -> Iterator[str]:
    """Read the documents of the public data, then the docstrings of PACKAGES."""
    data = data_folder()
    for path in sorted(data.glob("*/corpus.jsonl")) if data else ():
        yield from (row["text"] for row in json_lines(path))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    site = Path(sysconfig.get_path("purelib"))
    for path in sorted(path for name in PACKAGES for path in (site / name).rglob("*.py")):
        try:
            nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        except (SyntaxError, ValueError):  # templates, and sources in other encodings
            continue
        yield from filter(
            None, (ast.get_docstring(one) for one in nodes if isinstance(one, documented))
        )


def read_sentences() -> list[list[str]]:
    """Return the distinct sentences of the texts as words, sorted."""
    found = {" ".join(text[a:b].split()) for text in read_texts() for a, b in spans(text)}
    split = ((sentence.split(), count_tokens(sentence)) for sentence in sorted(found))
    # A word of one token each makes the length of a passage known, and so the number of chunks.
    return [words for words, n in split if LEAST_SENTENCE <= n == len(words) <= MOST_SENTENCE]


def make_document(number: int, version: str, sentences: list[list[str]]) -> list[list[str]]:
    """Draw the passages of a document as words; a changed document has another version."""
    rng, passages = random.Random(f"{SEED} {number} {version}"), []
    for _ in range(PASSAGES):
        words: list[str] = []
        while len(words) < LEAST_WORDS:
            words += rng.choice(sentences)
        passages.append(words[:MOST_WORDS])
    return passages


def write_corpus(
    folder: Path, n_documents: int, changed: set[int], sentences: list[list[str]]
) -> None:
    """Write the Parquet files of a corpus, with another version of the documents in `changed`."""
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    for start in range(0, n_documents, FILE_DOCUMENTS):
        numbers = range(start, min(start + FILE_DOCUMENTS, n_documents))
        texts = [make_document(one, str(one in changed), sentences) for one in numbers]
        columns = {
            "id": [f"doc-{one:07d}" for one in numbers],
            "title": [" ".join(passages[0][:3]) for passages in texts],
            "text": ["\n\n".join(" ".join(words) for words in passages) for passages in texts],
        }
        pq.write_table(pa.table(columns), folder / "corpus" / f"{start:07d}.parquet")


def write_gold(folder: Path, n_documents: int, sentences: list[list[str]]) -> None:
    """Write the questions, each with words of a passage, and the configuration."""
    rng, queries, qrels = random.Random(SEED), [], ["query-id\tcorpus-id\tscore"]
    for number, target in enumerate(rng.sample(range(n_documents), QUESTIONS)):
        passage = rng.choice(make_document(target, str(False), sentences))
        text = " ".join(rng.sample(passage, QUESTION_WORDS)) + "?"
        queries.append({"query_id": f"question-{number:04d}", "text": text, "answerable": True})
        qrels.append(f"question-{number:04d}\tdoc-{target:07d}\t1")
    lines = "".join(f"{json.dumps(row)}\n" for row in queries)
    (folder / "queries.jsonl").write_text(lines, encoding="utf-8")
    (folder / "qrels.tsv").write_text("\n".join(qrels) + "\n", encoding="utf-8")
    (folder / "gold_set.yaml").write_text(CONFIG, encoding="utf-8")


# ---- A run in a process of its own, and its memory seen from outside.


def run_stages(folder: Path, workers: int) -> None:
    """Run the stages up to the rankings, and print the seconds of each when it ends."""
    telemetry_off()
    evaluation = open_gold_set(folder, Settings(home=folder / "home", shard_workers=workers))
    runner = open_runner(evaluation)
    wanted = [Node("run", name) for name in runner.strategies]
    needed = set(wanted).union(*map(runner.ancestors, wanted))
    for node in runner.nodes():
        if node in needed:
            started, cpu = time.perf_counter(), cpu_seconds()
            runner.one(node)
            figures = {"seconds": time.perf_counter() - started, "cpu_s": cpu_seconds() - cpu}
            print(json.dumps({"stage": str(node), **figures}), flush=True)
    cpu = cpu_seconds()
    evaluation.close_pool()  # the CPU seconds of workers count when they end
    print(json.dumps({"stage": "workers", "seconds": 0.0, "cpu_s": cpu_seconds() - cpu}))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its workers that have ended."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def anonymous_kib(pid: int) -> int:
    """Sum the RssAnon of a process and of its descendants, KiB; 0 for an ended one."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8")
        total = next((int(line.split()[1]) for line in status.splitlines() if "RssAnon" in line), 0)
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += sum(map(anonymous_kib, map(int, (task / "children").read_text().split())))
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return total


def measure(folder: Path, workers: int, **about: object) -> dict[str, float]:
    """Run the stages in a process of its own, and print the figures of each stage and of all."""
    started, peak = time.perf_counter(), {"stage": 0, "run": 0}
    command = [sys.executable, __file__, "--run", str(folder), "--workers", str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        ended = threading.Event()

        def sample() -> None:
            while not ended.wait(INTERVAL_S):
                now = anonymous_kib(process.pid)
                peak["stage"], peak["run"] = max(peak["stage"], now), max(peak["run"], now)

        sampler = threading.Thread(target=sample)
        sampler.start()
        cpu = 0.0
        for line in process.stdout or ():
            made = json.loads(line)
            cpu += made["cpu_s"]
            rounded = {name: round(made.pop(name), 2) for name in ("seconds", "cpu_s")}
            emit("million_stage", **about, **made, **rounded, peak_mib=peak["stage"] >> 10)
            peak["stage"] = 0
        ended.set()
        sampler.join()
    if process.returncode:
        raise SystemExit(f"the run ended with {process.returncode}")
    seconds, mib = time.perf_counter() - started, peak["run"] >> 10
    figures = {"seconds": round(seconds, 1), "cpu_s": round(cpu, 1), "peak_anonymous_mib": mib}
    emit("million", **about, **figures, bar_mib=MEMORY_BAR_MIB)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chunks", type=int, nargs="*", help="sizes, rising")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--scratch", type=Path, help="default: the folder of temporary files")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run_stages(arguments.run, arguments.workers)
        return
    sentences, first = read_sentences(), list[tuple[int, float]]()
    for size in arguments.chunks:
        n_documents = size // PASSAGES
        changed = set(random.Random(SEED).sample(range(n_documents), int(CHANGED * n_documents)))
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
            folder, about = Path(name, "million"), {"chunks": size, "sentences": len(sentences)}
            write_corpus(folder, n_documents, set(), sentences)
            write_gold(folder, n_documents, sentences)
            new = measure(folder, arguments.workers, **about, run="first")
            write_corpus(folder, n_documents, changed, sentences)
            again = measure(folder, arguments.workers, **about, run="changed")
            share = round(again["cpu_s"] / new["cpu_s"], 4)
            emit("million_changed", **about, cpu_share=share, bar=CHANGED_BAR)
            first.append((size, new["cpu_s"]))
    if len(first) > 1:
        (few, short), (many, long) = first[0], first[-1]
        exponent = round(math.log(long / short) / math.log(many / few), 3)
        emit("million_growth", chunks=[few, many], exponent=exponent, bar=EXPONENT_BAR)


if __name__ == "__main__":
    main()
