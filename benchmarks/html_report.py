"""The HTML report of a large synthetic gold set: seconds, peak memory and bytes.

    python benchmarks/html_report.py [questions] [passages]

A seeded corpus of short passages of made-up words, questions with two paraphrases and one quoted span each, four strategies to depth 100. Corpus,
chunks and gold come from their real stages; rankings, verdicts, miss rates and lambda states are drawn, because retrieving and judging so much
takes far longer than what is measured here. What the panels beside measures, slices and overlap show comes from a real run of four strategies of
the bundled gold set, under the names of the synthetic ones. The report starts in a fresh process, so that its peak is that of a process that does
nothing else; "report" is the sum of bundle, slices, overlap and page. Prints one JSON line for each: name, seconds, processor_s, held_mib, peak_mib, bytes.
"""

import base64
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.corpus_steps import corpus_chunks, corpus_snapshot
from rag_eval.evaluation.explorer_packing import SUMMARY_FILE, unpacked
from rag_eval.evaluation.explorer_slim import bytes_for, embedded_size, slim
from rag_eval.evaluation.explorer_steps import explorer_bundle
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.html_steps import built_page, page_limit
from rag_eval.evaluation.index_steps import IndexOpener
from rag_eval.evaluation.inputs import Evaluation, open_gold_set
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.overlap_steps import overlap
from rag_eval.evaluation.run import evaluate
from rag_eval.evaluation.run_frames import failed_frame, run_frame
from rag_eval.evaluation.slices_steps import slices
from rag_eval.evaluation.stability_steps import STATES
from rag_eval.retrieval.ranking import Ranking
from rag_eval.settings import Settings, telemetry_off
from rag_eval.storage.artifacts import Artifact
from rag_eval.storage.atomic import write_text

QUESTIONS, PASSAGES, SEED, DEPTH = 10_000, 50_000, 6, 100
WORDS, PASSAGE_WORDS, QUESTION_WORDS, QUOTED_WORDS = 12_000, 55, 7, 9
NAMES = ("mild", "usual", "lengthy", "strong")
BUNDLED = ("bm25", "bm25_syn", "vector", "hybrid")
LINES: list[dict[str, Any]] = []
"""What was measured in this process."""
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
    shares = np.cumsum([1 / (rank + 5) for rank in range(len(words))]).tolist()
    (folder / "corpus").mkdir(parents=True)
    passages = []
    with (folder / "corpus" / "corpus.jsonl").open("w", encoding="utf-8") as stream:
        for number in range(n_passages):
            chosen = rng.choices(words, cum_weights=shares, k=PASSAGE_WORDS + rng.randrange(20))
            passages.append(chosen)
            row = {
                "_id": f"doc-{number:05d}",
                "title": " ".join(chosen[3:6]).title(),
                "text": " ".join(chosen),
                "metadata": {"url": f"https://example.org/passages/{number}"},
            }
            stream.write(f"{json.dumps(row)}\n")
    files = {
        name: (folder / name).open("w", encoding="utf-8")
        for name in ("queries.jsonl", "paraphrases.jsonl", "answers.jsonl", "qrels.tsv")
    }
    files["qrels.tsv"].write("query-id\tcorpus-id\tscore\n")
    for number, target in enumerate(rng.sample(range(n_passages), n_questions)):
        name, chosen = f"question-{number:05d}", passages[target]
        asked = [
            f"Which {' '.join(rng.sample(chosen, QUESTION_WORDS - 3) + rng.choices(words, cum_weights=shares, k=3))}?"
            for _ in range(3)
        ]
        start = rng.randrange(PASSAGE_WORDS - QUOTED_WORDS)
        rows = {
            "queries.jsonl": [
                {
                    "query_id": name,
                    "text": asked[0],
                    "answerable": True,
                    "tags": [f"tag-{number % 23}"],
                }
            ],
            "paraphrases.jsonl": [
                {"query_id": name, "paraphrase_id": f"p{at}", "text": asked[at], "source": "made"}
                for at in (1, 2)
            ],
            "answers.jsonl": [
                {
                    "query_id": name,
                    "doc_id": f"doc-{target:05d}",
                    "anchors": [{"quote": " ".join(chosen[start : start + QUOTED_WORDS])}],
                }
            ],
        }
        for file, lines in rows.items():
            files[file].writelines(f"{json.dumps(line)}\n" for line in lines)
        files["qrels.tsv"].write(f"{name}\tdoc-{target:05d}\t1\n")
    for stream in files.values():
        stream.close()
    (folder / "gold_set.yaml").write_text(CONFIG, encoding="utf-8")


def kept(
    evaluation: Evaluation, name: str, stage: str, make: Callable[[], dict[str, Any]]
) -> Artifact:
    """What a stage would have made: this evaluation takes it as its own."""
    return evaluation.once(
        name, lambda: evaluation.memo(stage, evaluation.key("drawn", name), make)
    )


def drawn_trust(evaluation: Evaluation, rng: np.random.Generator) -> dict[str, Any]:
    chunks = corpus_chunks(evaluation).frame("chunks")
    n = len(chunks)
    states = {
        "domain": "example.org",
        "domain_state": "allowed",
        "signature_state": "missing",
        "author_state": "unknown",
        "freshness_state": "unknown",
        "freshness": 0.7,
        "date": "",
        "allowed_by": "",
    }
    reasons = pd.Series(
        [["pattern.reply_instruction"] if bad else [] for bad in (rng.random(n) < 0.01).tolist()],
        dtype=object,
    )
    verdict = np.where(reasons.map(len) > 0, "warning", "clean")
    return {
        "trust": pd.DataFrame(
            {
                "chunk_id": chunks["chunk_id"],
                "doc_id": chunks["doc_id"],
                "trust": rng.random(n).round(2),
                **states,
                "verdict": verdict,
                "reasons": reasons,
            }
        ),
        "about": {"n_quarantined": 0},
    }


def drawn_run(runs: Runs, rng: np.random.Generator) -> dict[str, Any]:
    """Rankings that find the gold at a rank that falls off; a question's twelve lists name 40 chunks or so; those of bm25 over such passages name fewer, 28."""
    n, n_chunks = len(runs.gold.variants), len(runs.chunks)
    rows = (
        rng.integers(0, n_chunks, (len(runs.gold.queries), 1))[runs.gold.query_of]
        + np.cumsum(rng.integers(1, 5, (n, DEPTH)), axis=1)
    ) % n_chunks
    gold = runs.gold.spans.carriers[
        runs.gold.spans.carrier_indptr[runs.gold.spans.indptr[runs.gold.query_of]]
    ]
    place = np.minimum(rng.geometric(0.08, n), DEPTH) - 1
    rows[rows == gold[:, None]] = 0
    rows[np.arange(n), place] = gold
    raw = np.sort(rng.gamma(9.0, 1.5, (n, DEPTH)), axis=1)[:, ::-1]
    found = Ranking(
        rows.astype(np.int32),
        raw,
        raw / raw[:, :1],
        np.tile(np.arange(1, DEPTH + 1, dtype=np.int32), (n, 1)),
        np.full((n, DEPTH), np.nan),
        np.full(n, n_chunks),
    )
    return {
        "run": run_frame({13: found}),
        "failed": failed_frame({13: found}),
        "about": {"seeds": [13]},
    }


def drawn_claims(runs: Runs, rng: np.random.Generator) -> dict[str, Any]:
    variants = runs.gold.variants
    parts = []
    for name in NAMES:
        middle = rng.beta(2, 5, len(variants))
        figures = {
            "miss_rate": middle,
            "ci_low": middle * 0.6,
            "ci_high": np.minimum(1, middle * 1.5),
        }
        parts.append(
            variants[["query_id", "paraphrase_id", "group_id"]].assign(
                seed=13, strategy=name, **figures, status="measured", calibrator=f"{name:0<32}"
            )
        )
    return {"claims": pd.concat(parts, ignore_index=True)}


def drawn_states(runs: Runs, rng: np.random.Generator) -> dict[str, Any]:
    ids = runs.gold.queries["query_id"].to_numpy()
    return {
        "per_query": pd.concat(
            [
                pd.DataFrame(
                    {
                        "strategy": name,
                        "query_id": ids,
                        "lambda_state": rng.choice(STATES[:4], len(ids)),
                    }
                )
                for name in NAMES
            ],
            ignore_index=True,
        )
    }


def opened(root: Path) -> Runs:
    """The evaluation in its home, with everything that is drawn in place."""
    settings = Settings(
        home=root / "home",
        reports=root / "reports",
        gold_sets=root / "gold_sets",
        tracking_uri="refused://",
    )
    evaluation, rng = (
        open_gold_set(root / "gold_sets" / "synthetic", settings),
        np.random.default_rng(SEED),
    )
    kept(evaluation, "trust", "trust", lambda: drawn_trust(evaluation, rng))
    runs = Runs(evaluation, IndexOpener(evaluation))
    for name in NAMES:
        kept(evaluation, f"run {name}", "run", lambda: drawn_run(runs, rng))
    kept(evaluation, "claims", "claims", lambda: drawn_claims(runs, rng))
    kept(evaluation, "stability", "stability", lambda: drawn_states(runs, rng))
    return runs


def memory_mib(name: str) -> float:
    """What the kernel says of this process: VmRSS, what it holds; VmHWM, the most since the last reset."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024, 1)


def measured(
    name: str,
    work: Callable[[], Any],
    size: Callable[[Any], int] = lambda _: 0,
    more: Callable[[Any], dict[str, Any]] = lambda _: {},
) -> Any:
    """Do it and print its line; `held_mib` is what the process held when it began."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak counts from here
    held = memory_mib("VmRSS")
    started, used = time.perf_counter(), time.process_time()
    result = work()
    seconds = {
        "seconds": round(time.perf_counter() - started, 2),
        "processor_s": round(time.process_time() - used, 2),
    }
    LINES.append({"name": name, **seconds, "peak_mib": memory_mib("VmHWM"), "bytes": size(result)})
    print(
        json.dumps(
            {
                "name": name,
                **seconds,
                "held_mib": held,
                "peak_mib": memory_mib("VmHWM"),
                "bytes": size(result),
                **more(result),
            }
        ),
        flush=True,
    )
    return result


def prepare(root: Path, n_questions: int, n_passages: int) -> None:
    """Make everything that the explorer is made from."""
    measured("input", lambda: write(root / "gold_sets" / "synthetic", n_questions, n_passages))
    settings = Settings(
        home=root / "home",
        reports=root / "reports",
        gold_sets=root / "gold_sets",
        tracking_uri="refused://",
    )
    evaluation = open_gold_set(root / "gold_sets" / "synthetic", settings)
    measured("corpus", lambda: (corpus_snapshot(evaluation), corpus_chunks(evaluation)))
    kept(evaluation, "trust", "trust", lambda: drawn_trust(evaluation, np.random.default_rng(SEED)))
    measured("gold", lambda: gold_variants(evaluation))
    measured("drawn", lambda: opened(root))
    measured("panels", lambda: real_panels(root))


def explorer(root: Path) -> None:
    """The explorer's parts, the parts of the report that are the page's, and the page."""
    runs = measured("opened", lambda: opened(root))
    measured(
        "scored", lambda: [runs.scores(name) for name in runs.names]
    )  # a run has done so before
    made = measured(
        "bundle",
        lambda: explorer_bundle(runs),
        lambda artifact: sum(path.stat().st_size for path in artifact.folder.iterdir()),
    )
    n = len(runs.gold.queries)
    limit = bytes_for(n)
    measured(
        "slim",
        lambda: slim(made, limit),
        embedded_size,
        lambda parts: {"limit": limit, "texts": unpacked(parts[SUMMARY_FILE])["texts"]},
    )
    report = json.loads((root / "panels.json").read_text(encoding="utf-8"))
    report["gold"] |= {
        "name": "synthetic",
        "n_queries": n,
        "n_answerable": n,
        "n_paraphrases": 2 * n,
    }
    report["slices"] = measured("slices", lambda: slices(runs))
    report["overlap"] = measured("overlap", lambda: overlap(runs))

    def page() -> Path:
        built = built_page(report, made)
        write_text(root / "index.html", built.html)
        return root / "index.html"

    measured(
        "page",
        page,
        lambda path: path.stat().st_size,
        lambda path: {"limit": page_limit(n), "texts": texts_of(path)},
    )
    report_lines = [
        line for line in LINES if line["name"] in {"bundle", "slices", "overlap", "page"}
    ]
    print(
        json.dumps(
            {
                "name": "report",
                **{
                    key: round(sum(line[key] for line in report_lines), 2)
                    for key in ("seconds", "processor_s")
                },
                "peak_mib": max(line["peak_mib"] for line in report_lines),
                "bytes": report_lines[-1]["bytes"],
            }
        ),
        flush=True,
    )


def texts_of(page: Path) -> dict[str, int]:
    """How many texts of how many a page holds."""
    block = re.search(r'id="bundle-summary">([^<]*)<', page.read_text(encoding="utf-8"))
    if block is None:
        raise RuntimeError("the page holds no explorer")
    found: dict[str, int] = unpacked(base64.b64decode(block[1]))["texts"]
    return found


def real_panels(root: Path) -> None:
    """Evaluate four strategies of the bundled gold set and keep the report under the synthetic names."""
    settings = Settings(home=root / "real", reports=root / "real-reports")
    evaluation = open_gold_set(
        Path(__file__).resolve().parents[1] / "gold_sets" / settings.primary_gold_set,
        settings,
        strategies=BUNDLED,
    )
    text = json.dumps(evaluate(evaluation, primary=False).report)
    for old, new in zip(BUNDLED, NAMES, strict=True):
        text = text.replace(f'"{old}"', f'"{new}"')
    write_text(root / "panels.json", text)


def main() -> None:
    """Make the input, then run the explorer in a process of its own."""
    telemetry_off()
    if sys.argv[1:2] == ["explorer"]:
        explorer(Path(sys.argv[2]))
        return
    given = [int(text) for text in sys.argv[1:3]]
    n_questions, n_passages = (*given, *(QUESTIONS, PASSAGES)[len(given) :])
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), n_questions, n_passages)
        subprocess.run([sys.executable, __file__, "explorer", folder], check=True)


if __name__ == "__main__":
    main()
