"""Fit the bar of support, `measures.support_bar`, to labels of one's own."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rag_eval.core.arrays import BoolArray, FloatArray
from rag_eval.measures.support import BAR, groundedness

_FOLDS = 5


class Label(NamedTuple):
    """A sentence, the texts that it was judged on, and whether they support it.

    `question` keeps sentences of one question in one fold.
    """

    question: str
    sentence: str
    texts: Sequence[str]
    supported: bool


class FittedBar(NamedTuple):
    """A bar, and its accuracy on labels that it was not fitted to, beside that of 0.5.

    The accuracy is balanced: the mean of the rates of right verdicts on supported and on other
    sentences.
    """

    bar: float
    accuracy: float
    accuracy_of_half: float
    n: int


def fit_bar(labels: Sequence[Label]) -> FittedBar:
    """Fit the bar with the best balanced accuracy, and judge it out of fold.

    A fold holds whole questions. Raises ValueError with fewer than two questions that have
    supported sentences, or fewer than two with others.
    """
    sentences, texts = [label.sentence for label in labels], [label.texts for label in labels]
    score = np.nan_to_num(groundedness(sentences, texts).value)
    is_supported = np.array([label.supported for label in labels], dtype=bool)
    for name, rows in (("supported", is_supported), ("other", ~is_supported)):
        n = len(
            {label.question for label, is_of_kind in zip(labels, rows, strict=True) if is_of_kind}
        )
        if n < 2:  # noqa: PLR2004 - one to fit and one to judge
            raise ValueError(f"labels: {n} questions with {name} sentences; accepted: 2 or more")
    _, question = np.unique([label.question for label in labels], return_inverse=True)
    fold = np.random.default_rng(0).permutation(int(question.max()) + 1)[question] % _FOLDS
    passes = np.zeros(len(labels), dtype=bool)
    for number in range(_FOLDS):
        rows = fold == number
        passes[rows] = score[rows] >= _best_bar(score[~rows], is_supported[~rows])
    return FittedBar(
        _best_bar(score, is_supported),
        _accuracy(passes, is_supported),
        _accuracy(score >= BAR, is_supported),
        len(labels),
    )


def _best_bar(score: FloatArray, is_supported: BoolArray) -> float:
    """Return the middle between the two scores that part the labels best."""
    distinct = np.unique(score)
    bars = np.append((distinct[1:] + distinct[:-1]) / 2, BAR)
    accuracy = [_accuracy(score >= bar, is_supported) for bar in bars]
    return float(bars[int(np.argmax(accuracy))])


def _accuracy(passes: BoolArray, is_supported: BoolArray) -> float:
    rates = [passes[is_supported].mean(), 1 - passes[~is_supported].mean()]
    return float(np.mean(rates)) if 0 < is_supported.sum() < len(is_supported) else 0.0
