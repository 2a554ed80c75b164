"""Measure how often PoisonedRAG's passages in XQuAD are retrieved, with and without the guard.

Prints a line for each form of attack, allowlist, strategy and guard. `poisoned_at_5` is the share
of the 100 target questions with a planted passage among the first five. `own_at_5` counts only
passages planted for the question itself. `upper` and `own_upper` are the upper 95 % bounds of these
shares. `recall_at_5` is the recall of XQuAD's own 1,190 questions. The bar is 0.05 for forms with
the question, with an allowlist and the whole guard.
"""

import itertools
import sys
import tempfile
from pathlib import Path

from timing import ROOT, data_folder, emit, skipped

sys.path.insert(0, str(ROOT / "tests" / "reference"))
from poisoned_corpus import FORMS, PLAIN, STRATEGIES, UNTRUSTED, attack, outcome

GUARDS = ("", "floods", "restates", "floods+restates")
BAR = 0.05


def main() -> None:
    folder = data_folder()
    if folder is None:
        skipped("poisoning", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    cases = [*((form, 5) for form in FORMS), *((form, 1) for form in FORMS), (PLAIN, 0)]
    with tempfile.TemporaryDirectory() as scratch:
        for form, per_target in cases:
            its = attack(folder, form, UNTRUSTED, per_target)
            for allowlist, spec, guard in itertools.product((True, False), STRATEGIES, GUARDS):
                if not guard and not allowlist:
                    continue  # without the guard, an allowlist has no effect
                found = outcome(its, spec, Path(scratch), guard=guard, allowlist=allowlist)
                has_bar = form != PLAIN and per_target > 1 and allowlist and guard == GUARDS[-1]
                line = {
                    "form": form,
                    "per_target": per_target,
                    "strategy": spec.name,
                    "guard": guard or "none",
                    "allowlist": allowlist,
                    "poisoned_at_5": round(found.poisoned, 4),
                    "upper": round(found.upper, 4),
                    "own_at_5": round(found.own, 4),
                    "own_upper": round(found.own_upper, 4),
                    "recall_at_5": round(found.recall, 4),
                    "bar": BAR if has_bar else None,
                }
                emit("poisoning", **line)


if __name__ == "__main__":
    main()
