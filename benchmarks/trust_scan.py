"""Time the scan for forbidden, hidden and encoded text against tokenising the same texts.

Prints two lines for each corpus: `trust_scan` for the rules (at most 1.5 times tokenising), and
`trust_screen` for the rules and the model over sentences. Times are the least processor time of
several turns. Prints a line for each kind of adversarial text with `ratio`, the time of 10 MB over
the time of 1.25 MB. A linear scan has a ratio of 8.
`python benchmarks/trust_scan.py corpora` leaves the adversarial texts out.
"""

import gc
import sys
import time
from collections.abc import Callable

import numpy as np
from timing import ROOT, data_folder, emit, indexed_text, json_lines, report, skipped

sys.path.insert(0, str(ROOT / "tests" / "reference"))

from adversarial_texts import TEXTS

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import load_config
from rag_eval.trust.guard import screen
from rag_eval.trust.rules import RuleSet

BAR, REPEATS = 1.5, 5
SIZES = (1_250_000, 2_500_000, 5_000_000, 10_000_000)


def _corpora() -> dict[str, list[str]]:
    gold = ROOT / "gold_sets" / "pandas_api"
    found = {"pandas": load_corpus(load_config(gold).corpus, gold).documents["text"].tolist()}
    folder = data_folder()
    if folder is None:
        skipped("trust_scan", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return found
    for name in ("scifact", "xquad"):
        found[name] = [
            indexed_text({"title": "", **document})
            for document in json_lines(folder / name / "corpus.jsonl")
        ]
    return found


def _least(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the least processor seconds of each run, in turns; the first turn only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(REPEATS + 1):
        for name, run in runs.items():
            started = time.process_time()
            run()
            if turn:
                seconds[name].append(time.process_time() - started)
    return {name: min(taken) for name, taken in seconds.items()}


def _corpus(name: str, texts: list[str], rules: RuleSet) -> None:
    seconds = _least(
        {
            "scan": lambda: screen(texts, rules, sentences=False),
            "screen": lambda: screen(texts, rules),
            "tokenise": lambda: Analyzer().index(texts),
        }
    )
    about = {"corpus": name, "texts": len(texts), "version": rules.version}
    report("trust_scan", seconds["scan"], seconds["tokenise"], BAR, **about)
    share = round(seconds["screen"] / seconds["tokenise"], 3)
    emit("trust_screen", ours_s=round(seconds["screen"], 4), ratio=share, **about)


def _growth(name: str, rules: RuleSet) -> None:
    taken = []
    for size in SIZES:
        text = TEXTS[name](size)
        gc.collect()
        gc.disable()
        started = time.process_time()
        screen([text], rules, sentences=False)
        taken.append(time.process_time() - started)
        gc.enable()
    seconds, ratio = np.round(taken, 3).tolist(), round(taken[-1] / max(taken[0], 1e-6), 2)
    emit("trust_growth", text=name, seconds=seconds, ratio=ratio)


if __name__ == "__main__":
    loaded = RuleSet.load()
    for corpus, texts in _corpora().items():
        _corpus(corpus, texts, loaded)
    for kind in () if "corpora" in sys.argv[1:] else sys.argv[1:] or TEXTS:
        _growth(kind, loaded)
