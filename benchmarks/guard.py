"""Measure the poisoning guard: attacks found, clean texts stopped, its time, what each part adds.

    guard.py [--only families clean speed linear ablation]
    guard.py --write

The verdict of a text comes from its own findings alone. An attack is found if its verdict is
`warning` or `blocked`. Shares have Wilson's 95 % bounds. `--write` records the figures of
`families` and `clean` in `guard_figures.jsonl`. docs/trust.md shows them after
`docs/generate.py --pages`.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from unittest import mock

import numpy as np
from guard_texts import HELD_OUT, Attack, attacks, clean_sets, pandas_texts, sample
from timing import ROOT, alternate, data_folder, emit, indexed_text, json_lines, report, skipped

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.measures.overlap import wilson
from rag_eval.trust import guard
from rag_eval.trust.rules import Rule, RuleSet
from rag_eval.trust.sentences import find_addressing
from rag_eval.trust.text import SIGNALS, Reading, read_all

Row = dict[str, object]
Goals = tuple[float | None, float | None]
RECORD = ROOT / "benchmarks" / "guard_figures.jsonl"
GOALS: dict[str, Goals] = {"ordinary": (0.2, 5), "llm_docs": (1, 20), "about_injection": (5, None)}
"""Most texts of 1,000 that may be blocked, and that may have a warning."""
MILDER = "with `about_injection`"
"""Added to the name of a set that is judged with this setting."""
NO_GOALS: Goals = (None, None)
SPEED_BAR, SPEED_TEXTS, REPEATS = 1.0, 2_000, 7
GROWTH_BAR, SIZES, SLOWEST, SHOWN = 1.3, (50_000, 100_000, 200_000), 2, 5
TOO_SHORT = 0.005
"""Seconds below which a time depends more on the processor's cache than on the rule."""
Z = statistics.NormalDist().inv_cdf(0.975)


def _family(rule: str) -> str:
    """Return the part of a rule's id before the first dot."""
    return rule.partition(".")[0]


def judge(
    texts: Sequence[str],
    rules: RuleSet | None = None,
    *,
    markdown: Sequence[bool] | None = None,
    about_injection: bool = False,
) -> list[str]:
    """Return the verdict of each text alone."""
    milder = {"about_injection": about_injection}
    found = guard.screen(texts, rules, markdown=markdown, **milder)
    return guard.judge_findings(found, len(texts), **milder)


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
    held_out = [row._replace(set=f"{HELD_OUT}, {MILDER}") for row in rows if row.set == HELD_OUT]
    milder = judge([row.text for row in held_out], about_injection=True)
    lines += [line for line in count_found(held_out, milder) if line["by"] == "set"]
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
        judged = judge(clean.texts, markdown=[clean.markdown] * len(clean.texts))
        held_out = clean.name.startswith(HELD_OUT)
        lines.append(count_stopped(clean.name, judged, GOALS[clean.goal] if held_out else NO_GOALS))
        if not held_out:
            pools[clean.goal] += judged
        if clean.goal == "about_injection":
            judged = judge(clean.texts, about_injection=True)
            lines.append(count_stopped(f"{clean.name}, {MILDER}", judged, GOALS[clean.goal]))
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
        marked = [(text, False) for text in texts]
        views = [view for reading in read_all(marked) for view in reading.views]
        runs = {
            "guard": lambda texts=texts: guard.screen(texts, rules),
            "read": lambda marked=marked: read_all(marked),
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


def adversarial(rule: Rule) -> Iterator[str]:
    """Yield texts that a rule is slow on: its matches, near misses, and first words, repeated."""
    for text in rule.match:
        words = text.lower().split()
        yield text.lower()
        yield " ".join(words[:-1])
        yield from (" ".join(words[:count]) for count in (1, 2, 3) if count < len(words))


def fill(piece: str, size: int) -> str:
    """Repeat a piece up to `size` characters."""
    piece = f"{piece} "
    return (piece * (size // len(piece) + 1))[:size]


def _make_search(rules: RuleSet, text: str) -> Callable[[], object]:
    return lambda: rules.find([text])


def measure_linear() -> None:
    """Fit the exponent of each rule's growth on its slowest texts."""
    lines: list[Row] = []
    shipped = RuleSet.load()
    for rule in shipped.rules:
        alone = RuleSet([rule], shipped.words)
        pieces = list(dict.fromkeys(adversarial(rule)))
        longest = {piece: _make_search(alone, fill(piece, SIZES[-1])) for piece in pieces}
        taken = alternate(longest, 1, time.process_time)
        for piece in sorted(taken, key=lambda piece: -taken[piece])[:SLOWEST]:
            runs = {str(size): _make_search(alone, fill(piece, size)) for size in SIZES}
            seconds = alternate(runs, REPEATS, time.process_time).values()
            slope = float(np.polyfit(np.log(SIZES), np.log(list(seconds)), 1)[0])
            ms = [round(second * 1_000, 2) for second in seconds]
            lines.append({"rule": rule.id, "exponent": round(slope, 2), "ms": ms})
    lines.sort(key=lambda line: -line["ms"][-1])
    grown = [line for line in lines if line["ms"][-1] >= TOO_SHORT * 1_000]
    steepest = max(grown, key=lambda line: line["exponent"], default=None)
    for line in lines[:SHOWN]:
        emit("guard_linear", **line)
    emit(
        "guard_linear",
        rules=len(shipped.rules),
        texts=len(lines),
        steepest=steepest,
        bar=GROWTH_BAR,
    )


# ---- What each part adds


class Case(NamedTuple):
    """An attack, or a clean text that the whole guard does not call clean."""

    text: str
    markdown: bool
    is_attack: bool
    verdict: str


def _cases() -> Iterator[Case]:
    rows = attacks(data_folder())
    for row, verdict in zip(rows, judge([row.text for row in rows]), strict=True):
        yield Case(row.text, markdown=False, is_attack=True, verdict=verdict)
    for clean in clean_sets(data_folder()):
        verdicts = judge(clean.texts, markdown=[clean.markdown] * len(clean.texts))
        for text, verdict in zip(clean.texts, verdicts, strict=True):
            if verdict != "clean":
                yield Case(text, clean.markdown, is_attack=False, verdict=verdict)


def without_detector(name: str) -> Callable[..., list[Reading]]:
    """Return a `read_all` without the views and findings of one detector.

    `leet+separators` is the source of a view that needs both detectors.
    """

    def read_less(texts: Sequence[tuple[str, bool]]) -> list[Reading]:
        return [
            Reading(
                tuple(view for view in reading.views if name not in view.source.split("+")),
                tuple(trick for trick in reading.tricks if trick.rule != name),
            )
            for reading in read_all(texts)
        ]

    return read_less


def without_rules(leave_out: Callable[[Rule], bool]) -> RuleSet:
    """Return the shipped rules without some."""
    shipped = RuleSet.load()
    return RuleSet([rule for rule in shipped.rules if not leave_out(rule)], shipped.words)


def measure_ablation() -> None:
    """Leave out each rule, family, detector and the model, and count the changed verdicts."""
    cases = list(_cases())
    touched: dict[tuple[str, str], set[int]] = {("detector", name): set() for name in SIGNALS}
    for place, reading in enumerate(read_all([(case.text, case.markdown) for case in cases])):
        sources = [view.source for view in reading.views if view.kind != "visible"]
        for source in (*sources, *(trick.rule for trick in reading.tricks)):
            for name in source.split("+"):
                touched.setdefault(("detector", name), set()).add(place)
    rules = [rule.id for rule in RuleSet.load().rules]
    for name in rules:
        touched |= {("rule", name): set(), ("family", _family(name)): set()}
    found = guard.screen([case.text for case in cases], markdown=[case.markdown for case in cases])
    for place, name in zip(found["row"], found["rule"], strict=True):
        if name == guard.SPEAKS:
            touched.setdefault(("model", name), set()).add(place)
        elif name in rules:
            touched["rule", name].add(place)
            touched["family", _family(name)].add(place)
    for (kind, name), places in touched.items():
        some = [cases[place] for place in sorted(places)]
        emit("guard_ablation", kind=kind, name=name, texts=len(some), **losses(kind, name, some))


def losses(kind: str, name: str, cases: list[Case]) -> Row:
    """Judge the cases without one part; count lost attacks and clean texts that now pass."""
    with contextlib.ExitStack() as stack:
        rules = None
        if kind == "detector":
            stack.enter_context(mock.patch.object(guard, "read_all", without_detector(name)))
        elif kind == "model":
            nothing = mock.patch.object(guard, "find_addressing", lambda views: [[] for _ in views])
            stack.enter_context(nothing)
        elif kind == "family":
            rules = without_rules(lambda rule: _family(rule.id) == name)
        else:
            rules = without_rules(lambda rule: rule.id == name)
        texts, flags = [case.text for case in cases], [case.markdown for case in cases]
        less = judge(texts, rules, markdown=flags)
    changed = [
        (case.is_attack, case.verdict, verdict)
        for case, verdict in zip(cases, less, strict=True)
        if case.verdict != verdict
    ]
    counts = {
        "lost": sum(attack and after == "clean" for attack, _, after in changed),
        "unblocked": sum(attack and before == "blocked" for attack, before, _ in changed),
        "clean_won": sum(not attack and after == "clean" for attack, _, after in changed),
        "clean_unblocked": sum(not attack and before == "blocked" for attack, before, _ in changed),
    }
    return {**counts, "adds_nothing": counts["lost"] == counts["unblocked"] == 0}


PARTS: dict[str, Callable[[], object]] = {
    "families": measure_families,
    "clean": measure_clean,
    "speed": measure_speed,
    "linear": measure_linear,
    "ablation": measure_ablation,
}


def write_record() -> None:
    """Record the figures that docs/trust.md shows: each set, and the groups of the held-out set."""
    families = [row for row in measure_families() if row["by"] == "set" or row["set"] == HELD_OUT]
    rows = [*families, *measure_clean()]
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
