"""Compare the CPU time of a corpus in shards with one undivided loop, and with a changed corpus.

    shards.py --passages 100000

Both read, mask, cut and screen the same synthetic passages, a chunk each, and store the results.
Each measurement has a process of its own, and counts its worker processes. The second line
compares a run after a change of 1 % of the passages, spread over all shards, with the first run;
`start_s` is the part that every process takes to import the program.
"""

import argparse
import multiprocessing
import random
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from nightly import write_synthetic
from timing import json_lines, report

from rag_eval.core.settings import Settings, telemetry_off
from rag_eval.pipeline.corpus import CorpusChunks, CorpusSnapshot
from rag_eval.pipeline.evaluation import open_gold_set
from rag_eval.pipeline.runner import Work
from rag_eval.pipeline.shards import SCREENED, run_step, screen_documents, sharded_frame
from rag_eval.storage.artifacts import read_shards

BAR, CHANGED_BAR, CHANGED, SEED = 1.2, 0.05, 0.01, 5
NAMES = {"id": "_id", "title": "title", "text": "text"}
CONFIG = """\
name: {name}
version: 1
corpus: {{loader: parquet, path: corpus.parquet, title_column: title, shards: {shards}}}
strategies: [{{name: bm25, kind: bm25}}]
"""


class Prepared(NamedTuple):
    """Measurements of one process."""

    cpu_s: float
    start_s: float
    wall_s: float
    peak_mib: int
    """Most memory of this process, without its workers."""
    chunks_hash: str
    n_chunks: int


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, both))


def prepare(folder: Path, workers: int) -> Prepared:
    """Prepare the corpus of a gold set."""
    telemetry_off()
    settings = Settings(home=folder / "home", shard_workers=workers)
    evaluation = open_gold_set(folder, settings)
    runner, started = evaluation.runner, time.perf_counter()
    start_s = cpu_seconds()
    snapshot, chunks = runner.get(CorpusSnapshot), runner.get(CorpusChunks)
    if snapshot.layout is None:
        evaluation.store.put("screened", {"findings": screen_documents(snapshot.documents)})
    else:
        work = Work(evaluation, runner.stages["evidence_trust"], "benchmark")
        keys = run_step(work, SCREENED, snapshot.layout, options=False)
        frame = sharded_frame(snapshot.layout, SCREENED, "findings", work.version, keys)
        findings = read_shards(evaluation.store, frame, "findings").to_pandas()
        evaluation.store.put("screened", {"findings": findings})
    evaluation.close_pool()  # the time of its processes counts when they have ended
    wall, peak = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    about = chunks.about
    return Prepared(cpu_seconds(), start_s, wall, peak // 1024, about.chunks_hash, about.n_chunks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()

    def measure(folder: Path) -> Prepared:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            return process.submit(prepare, folder, arguments.workers).result()

    with tempfile.TemporaryDirectory() as scratch:
        write_synthetic(Path(scratch), 1, arguments.passages)
        rows = json_lines(Path(scratch, "corpus", "corpus.jsonl"))
        columns = {key: [row[name] for row in rows] for key, name in NAMES.items()}
        found = {}
        for name, shards in (("whole", "off"), ("divided", max(2, arguments.passages // 10_000))):
            folder = Path(scratch, name)
            folder.mkdir()
            (folder / "gold_set.yaml").write_text(CONFIG.format(name=name, shards=shards))
            pq.write_table(pa.table(columns), folder / "corpus.parquet")
            found[name] = measure(folder)
        plain, ours = found.values()
        if ours.chunks_hash != plain.chunks_hash:
            raise SystemExit("the chunks differ")
        about = {"chunks": ours.n_chunks, "shards": shards, "workers": arguments.workers}
        more = {"wall_s": round(ours.wall_s, 1), "reference_wall_s": round(plain.wall_s, 1)}
        more |= {"peak_mib": ours.peak_mib, "reference_peak_mib": plain.peak_mib}
        report("shards", ours.cpu_s, plain.cpu_s, BAR, **about, **more)
        for row in random.Random(SEED).sample(range(len(rows)), int(CHANGED * len(rows))):
            columns["text"][row] += " changed"
        pq.write_table(pa.table(columns), folder / "corpus.parquet")
        changed = measure(folder)
        more = {"start_s": round(changed.start_s, 2), "peak_mib": changed.peak_mib}
        report("shards_changed", changed.cpu_s, ours.cpu_s, CHANGED_BAR, **about, **more)


if __name__ == "__main__":
    main()
