"""Measure how often PoisonedRAG's passages in XQuAD are retrieved, with and without the guard.

Prints a line for each form of attack, strategy, allowlist, `unlisted`, quarantine and set of
checks. `poisoned_at_5` is the share of the 100 target questions with a planted passage among the
first five. `own_at_5` counts only passages planted for the question itself. `upper` and `own_upper`
are the upper 95 % bounds of these shares. `recall_at_5` is the recall of XQuAD's own 1,190
questions, and `clean_dropped` the number of its 240 documents that some question loses. The bar is
0.05 for five passages with the question, with an allowlist and the whole guard.

A last line for each clean corpus says how many of its documents are warned of as paraphrases, and
how many seconds the search and the comparison take.
"""

import itertools
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from timing import ROOT, data_folder, emit, json_lines, skipped

sys.path.insert(0, str(ROOT / "tests" / "reference"))
import corpora
from poisoned_corpus import FORMS, PLAIN, STRATEGIES, UNTRUSTED, WHOLE, Poisoned, attack

from rag_eval.retrieval.lexical import Bm25s
from rag_eval.trust.duplicates import FIRST, find_paraphrases

QUARANTINE = {"blocked": ("blocked",), "warnings": ("blocked", "warning")}
BAR = 0.05


def cases() -> list[dict]:
    """List the settings of the guard; without an allowlist, `unlisted` has no effect."""
    settings = [
        {"allowlist": allowlist, "unlisted": unlisted, "quarantine": quarantine, "guard": WHOLE}
        for allowlist, unlisted in [
            (False, "-"),
            *((True, it) for it in ("allow", "warn", "block")),
        ]
        for quarantine in QUARANTINE
    ]
    parts = [
        {"allowlist": allowlist, "unlisted": "allow", "quarantine": "warnings", "guard": guard}
        for allowlist, guard in itertools.product((True, False), ("", *WHOLE.split("+")))
    ]
    return [*settings, *parts]


def measure_attacks(folder: Path, scratch: Path) -> None:
    forms = [*itertools.product(FORMS, (5, 1)), (PLAIN, 0)]
    for (form, per_target), spec in itertools.product(forms, STRATEGIES):
        poisoned = Poisoned(attack(folder, form, UNTRUSTED, per_target), spec, scratch)
        for case in cases():
            found = poisoned.outcome(
                guard=case["guard"],
                allowlist=case["allowlist"],
                unlisted=case["unlisted"],
                withheld=QUARANTINE[case["quarantine"]],
            )
            has_bar = form != PLAIN and per_target > 1 and case["allowlist"]
            line = {
                "form": form,
                "per_target": per_target,
                "strategy": spec.name,
                **case,
                "guard": case["guard"] or "none",
                "poisoned_at_5": round(found.poisoned, 4),
                "upper": round(found.upper, 4),
                "own_at_5": round(found.own, 4),
                "own_upper": round(found.own_upper, 4),
                "recall_at_5": round(found.recall, 4),
                "clean_dropped": found.n_dropped,
                "bar": BAR if has_bar and case["guard"] == WHOLE else None,
            }
            emit("poisoning", **line)


def measure_clean(folder: Path) -> None:
    for name, n_questions in (("xquad", 1_190), ("scifact", 300)):
        texts, questions = (
            [row["text"] for row in json_lines(folder / name / f"{part}.jsonl")]
            for part in ("corpus", "queries")
        )
        table = corpora.table(texts)
        engine = Bm25s(table.terms, table.n_terms, k1=0.9, b=0.4)
        asked = table.query_terms(questions[:n_questions])
        started = time.perf_counter()
        ranked = engine.search(asked, FIRST).rows.astype(np.int64)
        searched = time.perf_counter()
        found = find_paraphrases(ranked, table.frame, table.terms, engine.frequency, vouched=None)
        emit(
            "poisoning",
            clean=name,
            documents=len(texts),
            questions=len(asked),
            warned=len(found),
            search_seconds=round(searched - started, 3),
            group_seconds=round(time.perf_counter() - searched, 3),
        )


def main() -> None:
    folder = data_folder()
    if folder is None:
        skipped("poisoning", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    with tempfile.TemporaryDirectory() as scratch:
        measure_attacks(folder, Path(scratch))
    measure_clean(folder)


if __name__ == "__main__":
    main()
