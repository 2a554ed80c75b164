"""Whether the evidence carries the question: what the signal is made of, one row for each question.

Belongs here: the measurements of a question's best unit and of how it stands out. Not here: their weights and the threshold (`coefficients`).
"""

import numpy as np

from rag_eval.answers.pool import Floats, Ints, Pool

OF_BEST = (
    "unit_coverage",
    "titled_coverage",
    "passage_coverage",
    "evidence_coverage",
    "local_coverage",
    "frequency",
    "pairs",
    "missing",
    "number_fits",
    "number_lacks",
    "name_fits",
    "similarity",
    "window_similarity",
    "passage_similarity",
)
"""Features of the best unit that the signal looks at again: how well it fits says more about the evidence than its rank does."""

OF_QUESTION = ("score", "lead", "candidates")
"""Log-odds of the best unit; how far it is ahead of the second; ln(1 + number of candidates), because the best of many fits by chance."""

ALONE = 2.0
"""The lead of a unit without a rival."""


def question_rows(
    names: tuple[str, ...], measured: Floats, log_odds: Floats, order: Ints, pool: Pool
) -> Floats:
    """Measure each question.

    Parameters
    ----------
    names
        Columns of `measured`.
    measured
        float64 [n_candidates, len(names)].
    log_odds
        float64 [n_candidates].
    order
        Candidates by (question, best first).

    Returns
    -------
    float64 [n_questions, len(signal_names(names))]
        Zero rows for questions without a candidate.
    """
    n = len(pool.questions)
    counts = np.bincount(pool.question_of, minlength=n)
    first = np.cumsum(counts) - counts
    found = np.zeros((n, len(signal_names(names))))
    asked = np.flatnonzero(counts)
    best = order[first[asked]]
    second = order[np.minimum(first[asked] + 1, len(order) - 1)]
    lead = np.where(counts[asked] > 1, log_odds[best] - log_odds[second], ALONE)
    found[asked, :3] = np.column_stack([log_odds[best], lead, np.log1p(counts[asked])])
    found[asked, 3:] = measured[best][:, [names.index(name) for name in OF_BEST if name in names]]
    return found


def signal_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Columns of `question_rows` where units are measured by `names`."""
    return (*OF_QUESTION, *(name for name in OF_BEST if name in names))
