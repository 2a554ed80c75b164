"""Measure how far citation support tells right markers from exchanged markers.

Answers are those of people (QuoteSum) and of real systems (ExpertQA), with the numbers of their
sources. The exchanged markers cite other sources of the same answer. `strict` is the share of
sentences that `require_citation_support` lets pass. Intervals are 95 %, over questions.
"""

import sys
from pathlib import Path

import numpy as np
from perturbations import auroc, rate
from timing import data_folder, emit, skipped

from rag_eval.core.types import Answer
from rag_eval.measures.citation_support import (
    SentenceSupport,
    citation_support,
    exchanged_words,
    missing_words,
    torn_words,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "reference"))
import cited_answers

SEED = 13


def is_strict(one: SentenceSupport) -> bool:
    """Tell whether `require_citation_support` lets a sentence pass."""
    checks = missing_words, exchanged_words, torn_words
    return one.supported and not any(check(one.text, one.passage) for check in checks)


def measure(name: str, answers: list[Answer]) -> None:
    """Print the figures of one set."""
    pairs = cited_answers.with_exchanged_markers(answers, SEED)
    scores, groups = [], []
    for at, kind in enumerate(("right", "exchanged")):
        own = [pair[at] for pair in pairs]
        judged = zip(own, citation_support(own), strict=True)
        rows = [(one.query_id, weak) for one, held in judged for weak in held if weak.places]
        asked = [query_id for query_id, _ in rows]
        scores.append(np.array([sentence.score for _, sentence in rows]))
        groups += asked
        supported, strict = (
            rate(np.array([holds(sentence) for _, sentence in rows]), asked)
            for holds in (lambda sentence: sentence.supported, is_strict)
        )
        emit("citation support", set=name, markers=kind, supported=supported, strict=strict)
    emit("citation support", set=name, auroc=auroc(*scores, groups))


def main() -> None:
    """Print JSON lines for each set."""
    data = data_folder()
    if data is None:
        skipped("citation support", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    for name in ("quotesum", "expertqa"):
        measure(name, getattr(cited_answers, name)(data))


if __name__ == "__main__":
    main()
