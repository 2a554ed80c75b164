"""Calibrate the probability that a retrieval misses, on the outcomes of one run."""

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from rag_eval.api.inputs import QrelsLike, Run, RunLike
from rag_eval.api.judged import (
    JudgedQuestions,
    RankedRun,
    Wordings,
    encode,
    find_codes,
    question_of,
    read_wordings,
)
from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.errors import InputError
from rag_eval.core.records import Interval
from rag_eval.core.types import Status
from rag_eval.uncertainty.calibration import Calibration, calibrate
from rag_eval.uncertainty.estimator import Miss
from rag_eval.uncertainty.miss_rate_report import Standing
from rag_eval.uncertainty.signals import (
    DEPTH,
    SIGNALS,
    WORDING_SIGNALS,
    RankedBatch,
    TermSpace,
    signals,
)
from rag_eval.uncertainty.status import Situation, judge_status
from rag_eval.uncertainty.validation import Labelled, miss_rate

if TYPE_CHECKING:
    from rag_eval.api.charts import Chart

LIST_SIGNALS: Final = ("tail_ratio", "nqc", *WORDING_SIGNALS)
"""Signals that need nothing but ranked lists and their scores."""
NO_PRIOR: Final = "the shipped prior needs signals of the corpus, and a run has none"
_FIGURES: Final = ("brier", "log_loss", "skill", "auroc", "intercept", "slope", "observed_expected")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MissRates:
    """Calibrated miss rates of one retriever; made by `miss_rates`.

    Attributes
    ----------
    k
        A retrieval misses if none of its first k documents is relevant.
    predictions
        A row for each judged retrieval: `query_id`, `question_id`, `group_id`, `missed`, and the
        probability `miss_rate` with its 95 % interval `ci_low`, `ci_high`. The fit of a prediction
        did not see the group of the question. NaN where the outcomes do not suffice to fit.
    conditions
        A row for each condition of a status: `status`, `name`, `met`, `found`, `needed`.
    reliability
        The reliability diagram in bins of equal mass: `predicted` and `observed` miss rates, and
        the band that holds 95 % of the observed rates of calibrated predictions. Empty without fit.
    table
        The observed miss rate, and the figures of the validation by groups: `value`, `ci_low`,
        `ci_high`.

    Examples
    --------
    Only lists whose first score leads by far hold the relevant document:

    >>> runs = {f"q{i}": {f"d{i}": 1.5 + i % 2, "x": 1.0, "y": 0.9} for i in range(80)}
    >>> qrels = {f"q{i}": {f"d{i}" if i % 2 else f"z{i}": 1} for i in range(80)}
    >>> model = miss_rates(runs, qrels, k=1)
    >>> new = model.predict({"far": {"a": 2.5, "b": 1.0, "c": 0.9}, "near": {"a": 1.5, "b": 1.0}})
    >>> bool(new["miss_rate"][0] < new["miss_rate"][1])
    True
    """

    k: int
    predictions: pd.DataFrame
    conditions: pd.DataFrame
    reliability: pd.DataFrame
    table: pd.DataFrame
    _standing: Standing
    _calibration: Calibration

    @property
    def status(self) -> Status:
        """Status that the outcomes support: uncalibrated, provisional or measured."""
        return self._standing.status

    @property
    def skill(self) -> Interval:
        """Brier skill against the miss rate of the other groups, with its 95 % interval.

        0 is no better than the miss rate alone, 1 is perfect; null without a fit.
        """
        validation = self._calibration.validation
        if validation is None:
            return Interval(value=None, low=None, high=None)
        return validation.skill

    def predict(self, run: RunLike, *, wordings: Wordings | None = None) -> pd.DataFrame:
        """Predict the miss probability of each query of another run of the same retriever.

        Returns `query_id`, `miss_rate`, `ci_low`, `ci_high` (95 %), and `status`. No judgements
        are needed. Raises InputError if the outcomes did not suffice to fit.
        """
        model = self._calibration.model
        if model is None:
            raise self._not_calibrated()
        query_ids, values = _run_signals(Run.read(run), wordings, self.k)
        low, high = model.interval(values, LIST_SIGNALS)
        rates = model.predict(values, LIST_SIGNALS)
        columns = {"miss_rate": rates, "ci_low": low, "ci_high": high, "status": self.status}
        return pd.DataFrame({"query_id": query_ids, **columns})

    def plot_reliability(self) -> "Chart":
        """Draw observed against predicted miss rates; raises InputError without a fit."""
        from rag_eval.api.charts import draw_reliability

        if self._calibration.model is None:
            raise self._not_calibrated()
        skill, low, high = self.table.loc["skill"]
        title = f"{self.status}, Brier skill {skill:.3f} [{low:.3f}, {high:.3f}]"
        title += f", n {len(self.predictions)}"
        return draw_reliability(self.reliability, self.predictions["miss_rate"], title)

    def _not_calibrated(self) -> InputError:
        unmet = self.conditions.query("not met and status == 'provisional'").iloc[0]
        message, shortfall = "too few outcomes to fit", f"{unmet['name']}: {unmet['found']}"
        return InputError.of("not_calibrated", message, found=shortfall, accepted=unmet["needed"])

    def __repr__(self) -> str:
        figures = self.table.to_string(float_format="{:.3f}".format)
        groups = self.predictions["group_id"].nunique()
        return (
            f"MissRates(k={self.k}, status={self.status!r}, {len(self.predictions)} retrievals in "
            f"{groups} groups)\n{figures}"
        )

    def _repr_html_(self) -> str:
        figures: str = self.table.to_html(float_format="{:.3f}".format)
        conditions: str = self.conditions.to_html(index=False)
        return f"<p>status: {self.status}</p>{figures}{conditions}"


def miss_rates(
    run: RunLike, qrels: QrelsLike, k: int = 10, *, wordings: Wordings | None = None
) -> MissRates:
    """Fit the probability that a retrieval misses, to the outcomes of a judged run.

    The signals are figures of the ranked list alone: how the scores fall (`tail_ratio`, `nqc`) and,
    for questions with several wordings, how far the lists of the wordings agree. A nightly run has
    further signals, of the corpus and of a second retriever.
    Scores must be above 0 to give signals; without signals all predictions are near the overall
    miss rate. Fit, calibrator and validation are those of the nightly run: a penalised logistic
    regression, validated on groups of questions that the fit did not see.

    Parameters
    ----------
    run
        A run in a form that `read_run` accepts, some ranks deeper than k.
    qrels
        Judgements in a form that `read_qrels` accepts. Questions without a relevant document, and
        questions that the run lacks, are left out.
    k
        A retrieval misses if none of its first k documents is relevant.
    wordings
        Query id of the run -> question.

    Raises
    ------
    InputError
        An input cannot be used, or no query of the run has a relevant document.

    Examples
    --------
    Two questions are too few to fit:

    >>> run = {"q1": {"d1": 2.0, "d2": 1.0}, "q2": {"d1": 3.0}}
    >>> model = miss_rates(run, {"q1": {"d2": 1}, "q2": {"d3": 1}})
    >>> model.status
    'uncalibrated'
    >>> model.conditions.query("name == 'outcomes'")[["status", "found", "needed"]].iloc[0].tolist()
    ['provisional', '2', 'at least 25']
    """
    if k < 1:
        message = "k is a number of documents"
        raise InputError.of("bad_arguments", message, field="k", found=str(k), accepted="1 or more")
    judged = JudgedQuestions.read(qrels, wordings)
    matched = judged.match(Run.read(run))
    rows = np.flatnonzero(~matched.is_missing & (judged.n_relevant[matched.question] > 0))
    if not len(rows):
        raise InputError.of("nothing_judged", "no query of the run has a relevant document")
    values = _list_signals(matched.ranked, matched.question, k)
    labelled = Labelled(
        LIST_SIGNALS,
        values,
        matched.score([f"Success@{k}"])[:, 0] == 0,
        pd.factorize(np.array(judged.groups))[0][matched.question],
        np.ones(len(matched.question)),
        matched.question,
        judged.gold,
    ).take(rows)
    questions = matched.question[rows]
    group_ids = [judged.groups[code] for code in questions]
    missing = np.full(len(rows), np.nan)
    fit = calibrate(labelled, group_ids, prior=None, checked_together=1, miss=Miss(k=k))
    predictions = pd.DataFrame(
        {
            "query_id": [matched.ranked.query_ids[row] for row in rows],
            "question_id": [judged.names[code] for code in questions],
            "group_id": group_ids,
            "missed": labelled.missed,
            "miss_rate": missing,
            "ci_low": missing,
            "ci_high": missing,
        }
    )
    if fit.model is not None:
        predictions["miss_rate"] = fit.model.predict(labelled.signals, LIST_SIGNALS, group_ids)
        ends = fit.model.interval(labelled.signals, LIST_SIGNALS, group_ids)
        predictions["ci_low"], predictions["ci_high"] = ends
    situation = Situation(
        age_days=0.0,
        stale_after_days=np.inf,
        n_unlabelled=len(rows),
        no_prior=NO_PRIOR,
        trusted=fit.model is None or fit.model.head.trust > 0,
    )
    standing = judge_status(fit.counts, fit.validation, situation)
    columns = ["status", "name", "met", "found", "needed"]
    # A run has no nights, so it cannot grow stale.
    earned = [condition.dump() for condition in standing.conditions if condition.status != "stale"]
    conditions = pd.DataFrame(earned)[columns]
    reliability = pd.DataFrame(fit.validation.reliability if fit.validation else {})
    figures = {"miss_rate": miss_rate(labelled)}
    if fit.validation is not None:
        figures |= {name: getattr(fit.validation, name) for name in _FIGURES}
    table = pd.DataFrame(
        [figure.triple for figure in figures.values()],
        index=list(figures),
        columns=["value", "ci_low", "ci_high"],
        dtype=float,
    )
    return MissRates(k, predictions, conditions, reliability, table, standing, fit)


def _run_signals(run: Run, wordings: Wordings | None, k: int) -> tuple[list[str], FloatArray]:
    """Return the queries of a run and LIST_SIGNALS of each."""
    ranked = RankedRun(run, list(encode(run.query_ids)))
    questions = question_of(ranked.query_ids, read_wordings(wordings))
    return ranked.query_ids, _list_signals(ranked, find_codes(questions, encode(questions)), k)


def _list_signals(ranked: RankedRun, question: IntArray, k: int) -> FloatArray:
    """Compute LIST_SIGNALS of each query, [n, len(LIST_SIGNALS)]."""
    items, scores = ranked.ranking(max(DEPTH, k + 1))
    has_item = items >= 0
    low = np.where(has_item, scores, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    high = np.where(has_item, scores, -np.inf).max(axis=1, initial=-np.inf, keepdims=True)
    spread = np.where(high > low, high - low, 1.0)
    norm = np.where(has_item, np.where(high > low, scores - low, 1.0) / spread, 0.0)
    batch = RankedBatch(
        rows=items.astype(np.int32),
        raw=scores,
        norm=norm,
        cosine=False,
        space=TermSpace([[]] * len(ranked.documents), 0),
        query_terms=[[]] * len(ranked),
        question=question.astype(np.int64),
    )
    return signals(batch, k)[:, [SIGNALS.index(name) for name in LIST_SIGNALS]]
