"""From judged retrievals to a calibrator with everything that must be known of it before anybody acts on its figures.

Belongs here: the order in which estimator, validation, learning curve, leakage gap and conformal K are asked. Each is a module of its own.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, get_args

import numpy as np

from rag_eval.records.uncertainty import PROVISIONAL_EACH, PROVISIONAL_OUTCOMES, BinaryTarget
from rag_eval.uncertainty.branch import JudgedBranch, fit_branch
from rag_eval.uncertainty.conformal_report import ConformalK, conformal_k
from rag_eval.uncertainty.conformal_splits import BY_RISK, Method, Questions
from rag_eval.uncertainty.estimator import cross_validated, fit
from rag_eval.uncertainty.head import fit_head
from rag_eval.uncertainty.labelled import FloatArray, IntArray, Labelled
from rag_eval.uncertainty.ladder import Counts
from rag_eval.uncertainty.learning import LeakageGap, LearningPoint, leakage_gap, learning_curve
from rag_eval.uncertainty.model import MissRateModel
from rag_eval.uncertainty.prior import Prior
from rag_eval.uncertainty.scores import brier_skill
from rag_eval.uncertainty.validation import Validation, validate

REPEATS = 5
"""Dealings of the folds, over which losses are averaged; the nightly run asks for an answer, not for the last digit of it."""
LEAKY_REPEATS = 2
"""Folds that split groups are dealt so often: only to show what they would feign."""
CURVE_SIZES = (25, 50, 100, 200, 400, 800)
CURVE_DRAWS = 4
NO_RANKS: Final = "no question has gold that its ranking was judged by"
NO_ITEMS: Final = "the ranks of all gold items are not known"
NO_RISKS: Final = "no question has an outcome of which the risk was predicted"
FEW: Final = "no risk is known: {groups} distinct groups with outcomes, {misses} of them with misses: too few to fit a calibrator"


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """What outcomes make of a strategy's miss rate.

    Parameters
    ----------
    counts
        Of the outcomes.
    model
        The estimator; None while there are too few outcomes to fit one.
    predictions
        float64 [repeats, n] out-of-fold; None likewise, as is everything that follows from them.
    validation, heuristic
        How good the estimator's predictions are, and those of heuristic_v0 on the same outcomes.
    curve, gap
        Skill by number of outcomes, and what folds that split groups would have feigned.
    conformal
        K at several levels.
    conformal_absent
        Why there is no K of a method, by method; those that `conformal` has are not in it.
    without_risk
        Questions of which no risk is known: the methods by risk leave them out.
    wordings
        The branch for questions whose other wordings were judged; None where there are too few.
    """

    counts: Counts
    model: MissRateModel | None
    predictions: FloatArray | None
    validation: Validation | None
    heuristic: Validation | None
    curve: tuple[LearningPoint, ...]
    gap: LeakageGap | None
    conformal: tuple[ConformalK, ...]
    wordings: JudgedBranch | None = None
    conformal_absent: Mapping[Method, str] = dataclasses.field(default_factory=dict)
    without_risk: int = 0

    def to_json(self) -> dict[str, Any]:
        """Write everything but the predictions."""
        parts = {
            "model": self.model,
            "validation": self.validation,
            "heuristic_v0": self.heuristic,
            "leakage_gap": self.gap,
            "wordings": self.wordings,
        }
        written = {name: None if part is None else part.to_json() for name, part in parts.items()}
        conformal = {
            "conformal": [found.to_json() for found in self.conformal],
            "conformal_methods": self._methods(),
        }
        return {
            **written,
            "counts": dataclasses.asdict(self.counts),
            "learning_curve": [point.to_json() for point in self.curve],
            **conformal,
        }

    def _methods(self) -> dict[str, Any]:
        """Over how many questions each method gave its K; null with the reason where it gave none."""
        n = {found.method: found.n for found in self.conformal}
        reasons = {f"{method}_reason": why for method, why in self.conformal_absent.items()}
        return {
            **{method: n.get(method) for method in get_args(Method)},
            **reasons,
            "without_risk": self.without_risk,
        }


def enough(counts: Counts) -> bool:
    """Whether there are outcomes enough to fit a calibrator: those of a provisional miss rate."""
    return (
        counts.groups >= PROVISIONAL_OUTCOMES
        and min(counts.groups_with_misses, counts.groups_with_hits) >= PROVISIONAL_EACH
    )


def calibrate(
    labelled: Labelled,
    heuristic: FloatArray,
    questions: Questions | None,
    *,
    group_ids: list[str],
    prior: Prior | None,
    target: BinaryTarget,
    k: int,
    checked_together: int,
    seed: int,
    unlabelled: FloatArray | None = None,
    question_rows: IntArray | None = None,
) -> Calibration:
    """Fit, cross-validate and judge.

    Parameters
    ----------
    labelled
        Outcomes that may fit a calibrator.
    heuristic
        float64 [n] heuristic_v0 of the same retrievals; NaN where it is not known.
    questions
        Ranks of the first gold for conformal K.
    question_rows
        int64 [questions] row of `labelled` that is the outcome of each question, -1 where none is. The out-of-fold prediction of its outcome is
        the risk of a question, so that K by risk can be found too; None: no risk is known.
    group_ids
        Group id of each row.
    prior
        Shipped coefficients; None: none.
    checked_together
        Number of strategies and targets whose calibration is checked together.
    unlabelled
        float64 [m, p] signals of further queries of the strategy, for the z-scores.
    """
    from threadpoolctl import threadpool_limits

    # thousands of products of small matrices: threads of a BLAS would only wait for one another
    with threadpool_limits(limits=1):
        return _calibrate(
            labelled,
            heuristic,
            questions,
            group_ids=group_ids,
            prior=prior,
            target=target,
            k=k,
            checked_together=checked_together,
            seed=seed,
            unlabelled=unlabelled,
            question_rows=question_rows,
        )


def _calibrate(
    labelled: Labelled,
    heuristic: FloatArray,
    questions: Questions | None,
    *,
    group_ids: list[str],
    prior: Prior | None,
    target: BinaryTarget,
    k: int,
    checked_together: int,
    seed: int,
    unlabelled: FloatArray | None,
    question_rows: IntArray | None,
) -> Calibration:
    counts = Counts.of(labelled)
    if not enough(counts):
        few = FEW.format(groups=counts.groups, misses=counts.groups_with_misses)
        return Calibration(
            counts, None, None, None, None, (), None, **_conformal(questions, seed, few)
        )
    model = fit(
        labelled,
        prior=prior,
        group_ids=group_ids,
        seed=seed,
        target=target,
        k=k,
        unlabelled=unlabelled,
    )
    predictions = cross_validated(labelled, prior=prior, repeats=REPEATS, seed=seed)
    validation = validate(labelled, predictions, checked_together=checked_together, seed=seed)
    leaky = cross_validated(labelled, prior=prior, repeats=LEAKY_REPEATS, seed=seed, folds="random")
    random = float(
        np.mean(
            [brier_skill(row, labelled.missed, labelled.group, labelled.weight) for row in leaky]
        )
    )
    known = np.isfinite(heuristic)
    baseline = (
        validate(
            labelled.take(known),
            np.clip(heuristic[known], 0, 1)[None, :],
            checked_together=checked_together,
            seed=seed,
        )
        if enough(Counts.of(labelled.take(known)))
        else None
    )

    def refit(train: Labelled, test: Labelled) -> FloatArray:
        rng = np.random.default_rng(seed)
        return fit_head(train, prior=prior, rng=rng).head.predict(test.signals, test.names)

    sizes = [size for size in CURVE_SIZES if size <= 0.75 * len(labelled)]
    curve = learning_curve(labelled, refit, sizes, CURVE_DRAWS, seed)
    found = _conformal(
        _with_risk(questions, question_rows, predictions.mean(axis=0)), seed, NO_RISKS
    )
    wordings = fit_branch(
        labelled,
        model,
        predictions,
        group_ids=group_ids,
        prior=prior,
        checked_together=checked_together,
        seed=seed,
    )
    return Calibration(
        counts,
        model,
        predictions,
        validation,
        baseline,
        curve,
        leakage_gap(random, validation.skill.value),
        wordings=wordings,
        **found,
    )


def _with_risk(
    questions: Questions | None, rows: IntArray | None, predicted: FloatArray
) -> Questions | None:
    """Fill in the predicted risks, NaN for questions without an outcome."""
    if questions is None or rows is None:
        return questions
    return dataclasses.replace(
        questions, risk=np.where(rows < 0, np.nan, np.clip(predicted[rows], 0, 1))
    )


def _conformal(questions: Questions | None, seed: int, without_risks: str) -> dict[str, Any]:
    """K of every method that there is data for, why there is none of the others, and the number of questions without a risk."""
    if questions is None or not len(questions.rank):
        return {"conformal": (), "conformal_absent": dict.fromkeys(get_args(Method), NO_RANKS)}
    there = questions.methods()
    absent: dict[Method, str] = {} if "recall" in there else {"recall": NO_ITEMS}
    absent |= {method: without_risks for method in BY_RISK if method not in there}
    return {
        "conformal": conformal_k(questions, seed=seed),
        "conformal_absent": absent,
        "without_risk": len(questions.rank)
        if questions.risk is None
        else int(np.isnan(questions.risk).sum()),
    }
