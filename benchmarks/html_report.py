"""Explorer of a large synthetic gold set: seconds, peak memory and bytes.

    python benchmarks/html_report.py [questions] [passages]

A seeded corpus of short passages of made-up words, questions of words of one passage with two paraphrases each and one quoted span, four bm25
strategies to depth 100, through the real stages in a temporary home. The stages run in a process of their own; the explorer then starts in a
fresh one, so that its peak is that of a process that does nothing else. Prints one JSON line for each: name, seconds, peak_mib, bytes.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rag_eval.evaluation.claim_steps import miss_rate_claims
from rag_eval.evaluation.explorer_slim import bytes_for, embedded_size, slim
from rag_eval.evaluation.explorer_steps import explorer_bundle
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.index_steps import IndexOpener, corpus_index
from rag_eval.evaluation.inputs import open_gold_set
from rag_eval.evaluation.measure_steps import Runs, ranking_measures
from rag_eval.evaluation.stability_steps import stability_measures
from rag_eval.settings import Settings, telemetry_off

QUESTIONS, PASSAGES, SEED = 10_000, 50_000, 6
WORDS, PASSAGE_WORDS, QUESTION_WORDS, QUOTED_WORDS = 12_000, 55, 7, 9
CONFIG = """\
name: synthetic
version: 1
corpus: {loader: beir, path: corpus, mask_pii: true}
k: [1, 5, 10]
depth: 100
seeds: [13]
strategies:
  - {name: mild, kind: bm25, k1: 0.6, b: 0.2}
  - {name: usual, kind: bm25}
  - {name: lengthy, kind: bm25, k1: 1.2, b: 0.75}
  - {name: strong, kind: bm25, k1: 3.0, b: 1.0}
level: document
gates: {required: [], advisory: []}
nightly: false
"""


def vocabulary(rng: random.Random) -> list[str]:
    """Made-up words of two to four syllables."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    found: dict[str, None] = {}
    while len(found) < WORDS:
        found["".join(rng.choices(syllables, k=rng.randint(2, 4)))] = None
    return list(found)


def write(folder: Path, n_questions: int, n_passages: int) -> None:
    """Write the gold set."""
    rng = random.Random(SEED)
    words = vocabulary(rng)
    weights = [1 / (rank + 5) for rank in range(len(words))]
    (folder / "corpus").mkdir(parents=True)
    passages = []
    with (folder / "corpus" / "corpus.jsonl").open("w", encoding="utf-8") as stream:
        for number in range(n_passages):
            chosen = rng.choices(words, weights, k=PASSAGE_WORDS + rng.randrange(20))
            passages.append(chosen)
            row = {"_id": f"doc-{number:05d}", "title": " ".join(chosen[3:6]).title(), "text": " ".join(chosen), "metadata": {"url": f"https://example.org/passages/{number}"}}
            stream.write(f"{json.dumps(row)}\n")
    files = {name: (folder / name).open("w", encoding="utf-8") for name in ("queries.jsonl", "paraphrases.jsonl", "answers.jsonl", "qrels.tsv")}
    files["qrels.tsv"].write("query-id\tcorpus-id\tscore\n")
    for number, target in enumerate(rng.sample(range(n_passages), n_questions)):
        name, chosen = f"question-{number:05d}", passages[target]

        def asked(chosen: list[str] = chosen) -> str:
            its = rng.sample(chosen, QUESTION_WORDS - 3) + rng.choices(words, weights, k=3)
            return f"Which {' '.join(its)}?"

        rows = {"queries.jsonl": [{"query_id": name, "text": asked(), "answerable": True, "tags": [f"tag-{number % 23}"]}]}
        rows["paraphrases.jsonl"] = [{"query_id": name, "paraphrase_id": f"p{at}", "text": asked(), "source": "made"} for at in (1, 2)]
        start = rng.randrange(PASSAGE_WORDS - QUOTED_WORDS)
        rows["answers.jsonl"] = [{"query_id": name, "doc_id": f"doc-{target:05d}", "anchors": [{"quote": " ".join(chosen[start : start + QUOTED_WORDS])}]}]
        for file, lines in rows.items():
            files[file].writelines(f"{json.dumps(line)}\n" for line in lines)
        files["qrels.tsv"].write(f"{name}\tdoc-{target:05d}\t1\n")
    for stream in files.values():
        stream.close()
    (folder / "gold_set.yaml").write_text(CONFIG, encoding="utf-8")


def opened(root: Path) -> Runs:
    """The evaluation of the gold set in its home."""
    settings = Settings(home=root / "home", reports=root / "reports", gold_sets=root / "gold_sets", tracking_uri="refused://", latency_queries=2)
    evaluation = open_gold_set(root / "gold_sets" / "synthetic", settings)
    return Runs(evaluation, IndexOpener(evaluation))


def peak_mib() -> float:
    """Most memory that this process held since `measured` began, MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024, 1)


def measured(name: str, work: Callable[[], Any], size: Callable[[Any], int] = lambda _: 0) -> Any:
    """Do it and print its line."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak counts from here
    started = time.perf_counter()
    result = work()
    seconds = round(time.perf_counter() - started, 2)
    print(json.dumps({"name": name, "seconds": seconds, "peak_mib": peak_mib(), "bytes": size(result)}), flush=True)
    return result


def stages(root: Path) -> None:
    """Everything that the explorer is made from."""
    runs = opened(root)
    measured("gold", lambda: gold_variants(runs.evaluation))
    measured("index", lambda: corpus_index(runs.evaluation, runs.opened))
    measured("retrieval", lambda: [runs.artifact(name) for name in runs.names])
    measured("ranking", lambda: ranking_measures(runs))
    measured("stability", lambda: stability_measures(runs))
    measured("claims", lambda: miss_rate_claims(runs))


def explorer(root: Path) -> None:
    """The explorer's parts, and what of them goes into a page."""
    runs = opened(root)
    n = len(runs.gold.queries)
    made = measured("bundle", lambda: explorer_bundle(runs), lambda artifact: sum(path.stat().st_size for path in artifact.folder.iterdir()))
    measured("slim", lambda: slim(made, bytes_for(n)), embedded_size)


def main() -> None:
    """Make the input, then run each part in a process of its own."""
    telemetry_off()
    if len(sys.argv) > 2 and sys.argv[1] in {"stages", "explorer"}:
        {"stages": stages, "explorer": explorer}[sys.argv[1]](Path(sys.argv[2]))
        return
    n_questions, n_passages = (int(given) for given in (*sys.argv[1:3], QUESTIONS, PASSAGES)[:2]) if len(sys.argv) != 2 else (int(sys.argv[1]), PASSAGES)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        measured("input", lambda: write(root / "gold_sets" / "synthetic", n_questions, n_passages))
        for part in ("stages", "explorer"):
            subprocess.run([sys.executable, __file__, part, str(root)], check=True)


if __name__ == "__main__":
    main()
