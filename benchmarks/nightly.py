"""Time whole nights: `rag-eval run` twice in a new home, with the seconds of every step.

    nightly.py                         the bundled pandas_api
    nightly.py --questions 10000       a synthetic set: three wordings a question, four strategies

The second process in a home reuses the unchanged results of the first process. Each
process counts its imports, its MLflow run and its page. Goals for pandas_api on two quiet cores:
20 s for the first process, 6 s for the second. Prints one JSON line for each process.
"""

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path

from timing import ROOT, emit

GOALS_S = {"pandas_api": (100.0, 6.0)}
STEP = re.compile(r"^  (.+): done in ([\d.]+) s", re.MULTILINE)
WORDS, PASSAGE_WORDS, QUESTION_WORDS, SEED = 12_000, 55, 7, 6
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


def write_synthetic(folder: Path, n_questions: int, n_passages: int) -> None:
    """Write a gold set over passages of made-up words with frequencies that fall with rank."""
    rng = random.Random(SEED)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = sorted({"".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(WORDS)})
    rng.shuffle(words)
    weights = list(accumulate(1 / (rank + 5) for rank in range(len(words))))
    passages = [rng.choices(words, cum_weights=weights, k=PASSAGE_WORDS) for _ in range(n_passages)]
    (folder / "corpus").mkdir(parents=True)
    _write_lines(
        folder / "corpus" / "corpus.jsonl",
        [
            {"_id": f"doc-{number:06d}", "title": passage[0].title(), "text": " ".join(passage)}
            for number, passage in enumerate(passages)
        ],
    )
    queries, paraphrases, qrels = [], [], ["query-id\tcorpus-id\tscore"]
    for number, target in enumerate(rng.sample(range(n_passages), n_questions)):
        name = f"question-{number:05d}"
        asked = []
        for _ in range(3):
            known = rng.sample(passages[target], QUESTION_WORDS - 3)
            asked.append(" ".join(known + rng.choices(words, cum_weights=weights, k=3)) + "?")
        queries.append({"query_id": name, "text": asked[0], "answerable": True})
        paraphrases += [
            {"query_id": name, "paraphrase_id": f"p{at}", "text": asked[at], "source": "made"}
            for at in (1, 2)
        ]
        qrels.append(f"{name}\tdoc-{target:06d}\t1")
    _write_lines(folder / "queries.jsonl", queries)
    _write_lines(folder / "paraphrases.jsonl", paraphrases)
    (folder / "qrels.tsv").write_text("\n".join(qrels) + "\n", encoding="utf-8")
    (folder / "gold_set.yaml").write_text(CONFIG, encoding="utf-8")


def _write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def run_night(gold_sets: Path, name: str, home: Path) -> dict[str, object]:
    """Run one process and return its seconds, the seconds of its steps, and the report's hash."""
    options = {"--gold-sets": gold_sets, "--home": home, "--reports": home / "reports"}
    command = [sys.executable, "-m", "rag_eval.cli", "run", name]
    command += [str(part) for pair in options.items() for part in pair]
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAG_EVAL_")}
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=home, env=env)
    seconds = time.perf_counter() - started
    if done.returncode not in {0, 2}:  # exit code 2: a required gate failed
        raise SystemExit(f"rag-eval run ended with {done.returncode}: {done.stderr}")
    report = json.loads((home / "reports" / name / "retrieval-metrics.json").read_text("utf-8"))
    steps = {title: float(taken) for title, taken in STEP.findall(done.stdout + done.stderr)}
    return {
        "seconds": round(seconds, 2),
        "steps": {title: taken for title, taken in steps.items() if taken >= 0.1},
        "page_mb": round((home / "reports" / name / "index.html").stat().st_size / 1e6, 2),
        "embedded": report["embeddings"]["embedded"],
        "content_hash": report["content_hash"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, help="size of a synthetic set")
    parser.add_argument("--passages", type=int, default=50_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gold_sets, name = ROOT / "gold_sets", "pandas_api"
        if options.questions:
            gold_sets, name = Path(folder) / "gold_sets", "synthetic"
            write_synthetic(gold_sets / name, options.questions, options.passages)
        home = Path(folder) / "home"
        home.mkdir()
        goals = GOALS_S.get(name, (None, None))
        first = run_night(gold_sets, name, home)
        second = run_night(gold_sets, name, home)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    for process, night, goal in (("first", first, goals[0]), ("second", second, goals[1])):
        ratio = round(float(str(night["seconds"])) / float(str(first["seconds"])), 3)
        about = {**night, "goal_s": goal, "ratio": ratio, "peak_mib_of_both": round(peak)}
        emit(f"{name}, {process} process", **about)


if __name__ == "__main__":
    main()
