"""Scanning for forbidden, hidden and encoded text against tokenising the same texts; and how the time grows on texts made to be slow.

Per corpus one line for the rules (`trust_scan`: `ratio` is scanning / tokenising, at most 1.5) and one for all that is told of a text by itself, the
rules and the sentences that speak to a model (`trust_screen`, against the same, without a bar of its own); both in processor time, the least of
several turns. One line per kind of adversarial text (`ratio` is 10 MB / 1.25 MB, 8 if linear).
`python benchmarks/trust_scan.py corpora` leaves the adversarial texts out.
"""

import gc
import json
import sys
import time
from collections.abc import Callable

from timing import ROOT, data_folder, indexed_text, json_lines, report, skipped

sys.path.insert(0, str(ROOT / "tests" / "reference"))

from adversarial_texts import TEXTS

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import load_config
from rag_eval.records.problems import InputError
from rag_eval.trust.patterns import RuleSet
from rag_eval.trust.rule_file import Rule
from rag_eval.trust.scanning import findings_of, scan_texts
from rag_eval.trust.screening import screen

BAR, REPEATS = 1.5, 5
SIZES = (1_250_000, 2_500_000, 5_000_000, 10_000_000)
_STAND_IN = (
    r"\bignore\b[^.!?]{0,60}\binstructions?\b",
    r"\b(?:include|insert|output)\b[^.!?]{0,80}\byour (?:answer|reply)\b",
)


def _rules() -> RuleSet:
    """The shipped rules; two stand-ins where none are shipped, and the line says so."""
    try:
        return RuleSet.load()
    except InputError:
        tests = {"match": ["x"], "clean": ["y"]}
        return RuleSet(
            [
                Rule.model_validate(
                    {
                        "id": f"rule_{place}",
                        "severity": "warning",
                        "pattern": pattern,
                        "rationale": "r",
                        "tests": tests,
                    }
                )
                for place, pattern in enumerate(_STAND_IN)
            ],
            "stand-in",
        )


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
    """Least processor seconds of each run, in turns; the first turn only warms up. Other work on the machine can only add to it."""
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
            "scan": lambda: scan_texts(texts, rules),
            "screen": lambda: screen(texts, rules),
            "tokenise": lambda: Analyzer().index(texts),
        }
    )
    findings = scan_texts(texts, rules)
    grave = {
        f"{check}.{severity}": int(count)
        for (check, severity), count in findings.groupby(["check", "severity"]).size().items()
    }
    report(
        "trust_scan",
        seconds["scan"],
        seconds["tokenise"],
        BAR,
        corpus=name,
        texts=len(texts),
        rules=len(rules.rules),
        version=rules.version,
        findings=grave,
    )
    share = seconds["screen"] / seconds["tokenise"]
    print(
        json.dumps(
            {
                "bench": "trust_screen",
                "ours_s": round(seconds["screen"], 4),
                "reference_s": round(seconds["tokenise"], 4),
                "ratio": round(share, 3),
                "corpus": name,
            }
        ),
        flush=True,
    )


def _growth(name: str, rules: RuleSet) -> None:
    taken = []
    for size in SIZES:
        text = TEXTS[name](size)
        gc.collect()
        gc.disable()
        started = time.process_time()
        findings_of(0, text, rules)
        taken.append(time.process_time() - started)
        gc.enable()
    print(
        json.dumps(
            {
                "bench": "trust_growth",
                "text": name,
                "bytes": SIZES,
                "seconds": [round(each, 3) for each in taken],
                "ratio": round(taken[-1] / max(taken[0], 1e-6), 2),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    loaded = _rules()
    for corpus, texts in _corpora().items():
        _corpus(corpus, texts, loaded)
    for kind in () if "corpora" in sys.argv[1:] else sys.argv[1:] or TEXTS:
        _growth(kind, loaded)
