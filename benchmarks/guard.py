"""Measure the poisoning guard: attacks found, clean texts stopped, and its time.

    guard.py [--only families clean speed]
    guard.py --write

The verdict of a text comes from its own findings alone. An attack is found if its verdict is
`warning` or `blocked`. Shares have Wilson's 95 % bounds. `--write` records the figures of
`families` and `clean` in `guard_figures.jsonl`. docs/trust.md shows them after
`docs/generate.py --pages`.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from guard_texts import HELD_OUT, Attack, attacks, clean_sets, pandas_texts, sample
from timing import ROOT, alternate, data_folder, emit, indexed_text, json_lines, report, skipped

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.measures.overlap import wilson
from rag_eval.trust import guard
from rag_eval.trust.rules import RuleSet
from rag_eval.trust.sentences import find_addressing
from rag_eval.trust.text import read_all

Row = dict[str, object]
Goals = tuple[float | None, float | None]
RECORD = ROOT / "benchmarks" / "guard_figures.jsonl"
GOALS: dict[str, Goals] = {"ordinary": (0.2, 5), "llm_docs": (1, 20), "about_injection": (5, None)}
"""Most texts of 1,000 that may be blocked, and that may have a warning."""
NO_GOALS: Goals = (None, None)
SPEED_BAR, SPEED_TEXTS, REPEATS = 1.0, 2_000, 7
Z = statistics.NormalDist().inv_cdf(0.975)


def judge(texts: Sequence[str]) -> list[str]:
    """Return the verdict of each text alone."""
    return guard.judge_findings(guard.screen(texts), len(texts))


def with_bounds(count: float, n: int, scale: int = 1) -> list[float]:
    """Return the share of `count` in `n` and its 95 % bounds, times `scale`."""
    share = np.array([count / n])
    low, high = wilson(share, np.array([float(n)]), Z)
    return [abs(round(float(value[0]) * scale, 3)) for value in (share, low, high)]


# ---- Attacks


def count_found(rows: Sequence[Attack], judged: Sequence[str]) -> Iterator[Row]:
    """Yield the counts of each set, and of its families, other languages and disguises."""
    for by in ("set", "family", "language", "view"):
        groups: dict[tuple[str, str], list[str]] = {}
        for row, verdict in zip(rows, judged, strict=True):
            value = getattr(row, by)
            if value not in {"en", "plain"}:
                groups.setdefault((row.set, value), []).append(verdict)
        for (name, value), group in groups.items():
            blocked, n = group.count("blocked"), len(group)
            counts = {"found": blocked + group.count("warning"), "blocked": blocked}
            shares = {f"{key}_share": with_bounds(count, n) for key, count in counts.items()}
            yield {"set": name, "by": by, "value": value, "n": n, **counts, **shares}


def measure_families() -> list[Row]:
    rows = attacks(data_folder())
    lines = list(count_found(rows, judge([row.text for row in rows])))
    for line in lines:
        emit("guard_families", **line)
    return lines


# ---- Clean texts


def count_stopped(name: str, judged: Sequence[str], goals: Goals = NO_GOALS) -> Row:
    """Count the clean texts with each verdict; `goals` are the most of 1,000."""
    n = len(judged)
    counts = {"blocked": judged.count("blocked"), "warned": judged.count("warning")}
    rates = {f"{key}_of_1000": with_bounds(count, n, 1_000) for key, count in counts.items()}
    return {"set": name, "n": n, **counts, **rates, "goals": goals}


def measure_clean() -> list[Row]:
    lines: list[Row] = []
    pools: dict[str, list[str]] = {goal: [] for goal in GOALS}
    for clean in clean_sets(data_folder()):
        if not clean.texts:
            emit("guard_clean", set=clean.name, skipped="this machine has no such texts")
            continue
        judged = judge(clean.texts)
        held_out = clean.name.startswith(HELD_OUT)
        lines.append(count_stopped(clean.name, judged, GOALS[clean.goal] if held_out else NO_GOALS))
        if not held_out:
            pools[clean.goal] += judged
    lines += [
        count_stopped(f"all of {goal}", judged, GOALS[goal])
        for goal, judged in pools.items()
        if judged
    ]
    for line in lines:
        emit("guard_clean", **line)
    return lines


# ---- Time


def measure_speed() -> None:
    """Time the guard and its parts against tokenising the same texts, in processor seconds."""
    rules, folder = RuleSet.load(), data_folder()
    corpora = {"pandas": pandas_texts()}
    if folder:
        documents = json_lines(folder / "scifact" / "corpus.jsonl")
        corpora["scifact"] = sample(map(indexed_text, documents), SPEED_TEXTS)
    else:
        skipped("guard_speed", "the public data is not there; set RAG_EVAL_TEST_DATA")
    for name, texts in corpora.items():
        views = [view for reading in read_all(texts) for view in reading.views]
        runs = {
            "guard": lambda texts=texts: guard.screen(texts, rules),
            "read": lambda texts=texts: read_all(texts),
            "rules": lambda views=views: rules.find([view.text for view in views]),
            "model": lambda views=views: find_addressing(views),
            "tokenise": lambda texts=texts: Analyzer().index(texts),
        }
        seconds = alternate(runs, REPEATS, time.process_time)
        base = seconds["tokenise"]
        parts = {part: round(seconds[part] / base, 3) for part in ("read", "rules", "model")}
        report(
            "guard_speed", seconds["guard"], base, SPEED_BAR, corpus=name, texts=len(texts), **parts
        )


PARTS: dict[str, Callable[[], object]] = {
    "families": measure_families,
    "clean": measure_clean,
    "speed": measure_speed,
}


def write_record() -> None:
    """Record the figures that docs/trust.md shows: sets of attacks, and goals of clean texts."""
    sets = [row for row in measure_families() if row["by"] == "set"]
    rows = [*sets, *(row for row in measure_clean() if row["goals"] != NO_GOALS)]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    RECORD.write_text("".join(lines), encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--write", action="store_true", help="record families and clean instead")
    given = parser.parse_args()
    if not given.write:
        for name in given.only:
            PARTS[name]()
    elif data_folder() is None:
        parser.error("--write needs the public data; set RAG_EVAL_TEST_DATA")
    else:
        write_record()


if __name__ == "__main__":
    main()
