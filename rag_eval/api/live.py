"""State the miss rate of one live query: by the formula alone, or by a strategy of a gold set."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rag_eval.core.errors import InputError
from rag_eval.core.parts import explain_missing
from rag_eval.uncertainty.confidence import Derived

if TYPE_CHECKING:
    from rag_eval.pipeline.live_questions import LiveStrategy


def estimate_miss_rate(
    query: str,
    documents: Sequence[object],
    scores: Sequence[float],
    history: Sequence[bool] | None = None,
) -> Derived:
    """Guess the probability that a retrieval missed, by the formula `heuristic_v0`.

    The guess needs no gold set and is always uncalibrated: it is the baseline that calibrated miss
    rates must beat. Do not discount an answer by it.

    Parameters
    ----------
    query
        The question.
    documents
        The retrieved documents, best first. Only their number counts.
    scores
        The score of each document: a cosine or another similarity. If a score is above 1, all are
        divided by the top score. Negative scores count as 0.
    history
        Whether each similar judged question missed. Their rate is drawn towards 0.3, as by five
        questions of that rate. Without such questions the formula takes 0.3.

    Returns
    -------
    Derived
        A confidence value: `value` is the miss rate, `formula` the formula, and `inputs` has every
        part of it with its provenance.

    Raises
    ------
    ImportError
        Only the core is installed; the message names the extra.
    InputError
        The query is too long, a score is not finite, or documents and scores differ in number.

    Examples
    --------
    >>> guess = estimate_miss_rate("How do I sort by two columns?", ["d1", "d2"], [0.62, 0.41])
    >>> round(guess.value, 3)
    0.4
    >>> guess.inputs["tail_density"].reason
    'counted: share of 2 scores s with 0.3 <= s < 0.5, at most 0.5'
    >>> guess.inputs["history"].basis
    'no similar judged question is known, so the formula takes 0.3'
    >>> judged = [False, False, True]
    >>> round(estimate_miss_rate("sort columns", ["d1"], [0.62], judged).value, 4)
    0.1138
    """
    if missing := explain_missing("rag_eval.estimate_miss_rate"):
        raise ImportError(missing)
    from rag_eval.uncertainty.heuristic import estimate
    from rag_eval.uncertainty.outcomes import MAX_QUERY

    if len(query) > MAX_QUERY:
        accepted = f"at most {MAX_QUERY:,} characters"
        raise InputError.of("bad_question", "too long", field="query", accepted=accepted)
    if len(documents) != len(scores):
        counts = f"{len(documents)} documents, {len(scores)} scores"
        accepted = "one score for each document"
        raise InputError.of(
            "bad_scores", "the numbers differ", field="scores", found=counts, accepted=accepted
        )
    if not np.isfinite(np.asarray(scores, dtype=np.float64)).all():
        raise InputError.of("bad_scores", "a score is not finite", field="scores")
    return estimate(query, scores, history)


def open_strategy(gold_set: str | Path, strategy: str = "") -> "LiveStrategy":
    """Open a strategy of a gold set for live questions; open it once for many questions.

    Settings are those of the command: `settings.toml` and the environment. The corpus is indexed as
    `run` indexes it; unchanged parts are reused.

    `retrieve` of the opened strategy takes a question of 1 to 10,000 characters and returns an
    `UncertainRetrieval`: documents, miss rate, gaps, coverage and rounds. The miss rate is
    calibrated where the last run of the gold set left a calibrator for the same index and
    configuration. Otherwise it comes from the shipped prior, or from `heuristic_v0`.
    `miss_rate.status` and `miss_rate.calibrator` say which; `reason` says why.

    Parameters
    ----------
    gold_set
        Folder of the gold set, such as `gold_sets/pandas_api`.
    strategy
        Name of a strategy that is not external. Default: the primary strategy.

    Raises
    ------
    ImportError
        Only the core is installed; the message names the extra.
    InputError
        The gold set cannot be used, or has no such strategy; of `retrieve`: the question cannot be
        used, or the retrieval failed.

    Examples
    --------
    >>> strategy = open_strategy("gold_sets/smoke", "bm25")  # doctest: +SKIP
    >>> found = strategy.retrieve("How do I sort?")  # doctest: +SKIP
    >>> found.miss_rate.value, found.miss_rate.status  # doctest: +SKIP
    >>> found.as_json()["uncertainty"]["semantic_gaps"]  # doctest: +SKIP
    """
    if missing := explain_missing("rag_eval.open_strategy"):
        raise ImportError(missing)
    from rag_eval.core.settings import Settings, telemetry_off

    telemetry_off()
    from rag_eval.pipeline.live_questions import open_live
    from rag_eval.pipeline.opening import open_gold_set

    return open_live(open_gold_set(Path(gold_set), Settings()), strategy)
