"""Miss rates against the bars of the project: one JSON line a figure, with `bar` and `met` (null where nothing is asked for); progress on stderr.

`--only SECTION ...` runs some: scifact and lsa (the estimator on SciFact's 1,109 judged queries with MiniLM and with LSA vectors, no prior,
beside heuristic_v0, the base rate and single predictors), xquad (sentences as chunks, five wordings of each question), prior (fitted without
the collection), conformal (K on lists of 1,000), synthetic (known truth, fewer simulations than the tests), answers (discounted confidence),
iterative (expansions), speed. Folds never split a group, z-scores, penalty and calibrator are chosen inside the fold, 20 repeats; intervals
resample groups. The public data is read from RAG_EVAL_TEST_DATA.
"""

import argparse
from collections.abc import Callable

from miss_rate_answers import answers
from miss_rate_estimates import prior, scifact, xquad
from miss_rate_lines import progress
from miss_rate_use import conformal, iterative, speed, synthetic
from timing import data_folder, skipped

SECTIONS: dict[str, Callable[[], None]] = {
    "scifact": lambda: scifact("scifact", "minilm"),
    "lsa": lambda: scifact("lsa", "lsa-256"),
    "xquad": xquad,
    "prior": prior,
    "conformal": conformal,
    "synthetic": synthetic,
    "answers": answers,
    "iterative": iterative,
    "speed": speed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Miss rates against the bars of the project.")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    if data_folder() is None:
        skipped("miss_rate", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    for name in options.only:
        progress(name)
        SECTIONS[name]()


if __name__ == "__main__":
    main()
