"""What is retrieved of PoisonedRAG's passages that were planted in XQuAD's corpus, without and with the checks of floods and restated queries.

One line for each form of attack, source, allowlist, strategy and guard: `poisoned_at_5` is the share of the 100 target questions with a
planted passage among the first five, whichever question that was planted for, `own_at_5` with one that was planted for the very question;
`upper` and `own_upper` are their upper 95 % bounds, `recall_at_5` that of XQuAD's own 1,190 questions. `per_target` is the
number of passages planted for each question. The bar is 0.05 for forms with the question, with an allowlist and the whole guard.
"""

import json
import sys
import tempfile
from pathlib import Path

from timing import ROOT, data_folder, skipped

sys.path.insert(0, str(ROOT / "tests" / "reference"))
from poisoned_corpus import FORMS, LOOKALIKE, PLAIN, STRATEGIES, UNTRUSTED, attack, outcome

GUARDS = ("", "floods", "restates", "floods+restates")
PARTS = ("floods", "restates")
BAR = 0.05


def main() -> None:
    folder = data_folder()
    if folder is None:
        skipped("poisoning", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    cases = (
        [(form, source, 5) for form in FORMS for source in (UNTRUSTED, LOOKALIKE)]
        + [(form, UNTRUSTED, 1) for form in FORMS]
        + [(PLAIN, UNTRUSTED, 0)]
    )
    with tempfile.TemporaryDirectory() as scratch:
        for form, source, per_target in cases:
            its = attack(folder, form, source, per_target)
            for allowlist in (True, False):
                for spec in STRATEGIES:
                    for guard in GUARDS:
                        if (not guard and not allowlist) or (
                            guard in PARTS and source == LOOKALIKE
                        ):
                            continue  # nothing to configure without the guard; a domain's name changes nothing for these checks
                        found = outcome(its, spec, Path(scratch), guard=guard, allowlist=allowlist)
                        about = {
                            "bench": "poisoning",
                            "form": form,
                            "source": source,
                            "per_target": per_target,
                            "strategy": spec.name,
                            "guard": guard or "none",
                            "allowlist": allowlist,
                        }
                        figures = {
                            "poisoned_at_5": round(found.poisoned, 4),
                            "upper": round(found.upper, 4),
                            "own_at_5": round(found.own, 4),
                            "own_upper": round(found.own_upper, 4),
                            "recall_at_5": round(found.recall, 4),
                        }
                        bar = (
                            BAR
                            if form != PLAIN
                            and per_target > 1
                            and allowlist
                            and guard == GUARDS[-1]
                            else None
                        )
                        print(json.dumps({**about, **figures, "bar": bar}), flush=True)


if __name__ == "__main__":
    main()
