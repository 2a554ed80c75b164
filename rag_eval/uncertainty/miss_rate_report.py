"""Miss rates and their calibration in the report."""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, PositiveInt, StrictBool

from rag_eval.core.parts import Name
from rag_eval.core.records import (
    NOT_PAIRED,
    Absent,
    Because,
    Count,
    CountedInterval,
    Counts,
    Figure,
    Interval,
    Open,
    PairedDelta,
    PValue,
    Record,
    Text,
    Unit,
)
from rag_eval.core.types import BinaryTarget, Level, Status
from rag_eval.uncertainty.confidence import CorpusCoverage, Measured, parse

# ---- Miss rates and their calibration.


class AddedOutcomes(Record):
    """Outcomes of this run."""

    n_claims: Count
    n_judged: Count
    n_missed: Count
    added: Count
    already_there: Count


class StrategyMissRates(Record):
    """Miss rates of one strategy, as observed and as stated by this run."""

    fingerprint: Text
    status: Status
    calibrator: Text
    reason: Text | None = None
    n_claims: Count
    n_absent: Count
    observed: dict[Literal["miss_any", "miss_some", "miss_frac"], Figure]
    stated: Figure | Absent
    outcomes: AddedOutcomes


class MissesPart(Record):
    """Questions without gold in the first ten, as first put, by the step that lost the gold.

    Questions whose retrieval failed are counted apart.
    """

    n_judged: Count
    n_failed: Count
    n_missed: Count
    lost: dict[Literal["retrieval", "fusion", "rerank", "cutoff"], Count]


class AnswerConfidences(Record):
    """Mean confidence in the answers."""

    n: Count
    synthesis_confidence: Figure
    final_confidence: Figure
    calibrated_confidence: Figure
    right_when_missed: Annotated[Measured, BeforeValidator(parse)] | None


TOO_FEW: Final = Because("too few groups of questions were expanded")


class ExpansionAccount(Record):
    """Effect and cost of one expansion strategy, or of all rounds (`overall`).

    `triggered` of the `questions` with gold were expanded. `recovered` misses became hits, `lost`
    hits became misses. `extra_queries` and `extra_seconds` are the cost beyond the first retrieval
    over the questions with gold. `delta` is the mean recall@K after minus before, with 95 %
    interval over groups and two-sided p. A strategy counts its expanded questions, `overall` counts
    all questions. `verdict` puts the interval into words.
    """

    strategy: Text
    questions: Count
    triggered: Count
    recovered: Count
    lost: Count
    extra_queries: Count
    extra_seconds: float
    delta: Annotated[float | None, TOO_FEW]
    ci_low: Annotated[float | None, TOO_FEW]
    ci_high: Annotated[float | None, TOO_FEW]
    p: Annotated[float | None, TOO_FEW]
    n_effective: float
    verdict: Text


class IterativeAccount(Record):
    """Hits that the rounds of an iterative strategy recovered and lost."""

    base: Text
    basis: str = Field(pattern=r"^(calibrated|heuristic_v0(@[1-9][0-9]*)?)$")
    min_recall: Unit | None
    k: Count
    verdict: Text
    recall_before: Unit | None
    recall_after: Unit | None
    stops: Counts
    not_viable: Counts
    suggestions_failed: Counts
    accounts: list[ExpansionAccount] = Field(min_length=1)


class ObservedMisses(Figure):
    """Observed miss rate of one strategy, for one target and K."""

    strategy: Name
    target: BinaryTarget
    k: PositiveInt


class MissPair(PairedDelta):
    """Paired difference a - b of observed misses, for one target and K.

    p is adjusted by Holm over all pairs, targets and K.
    """

    a: Name
    b: Name
    target: BinaryTarget
    k: PositiveInt
    p: PValue
    p_adjusted: PValue
    minimum_detectable: Annotated[float | None, Because("fewer than two questions, or more than 1")]


class UncertaintyPart(Record):
    """Miss rates. `cutoffs` and `pairs` are observed, for both targets at every K."""

    target: BinaryTarget
    k: PositiveInt
    level: Level
    gold_source: Text
    strategies: dict[Name, StrategyMissRates]
    corpus_coverage: CorpusCoverage
    answers: AnswerConfidences | Absent
    iterative: dict[Name, IterativeAccount]
    cutoffs: list[ObservedMisses]
    pairs: list[MissPair]


class OutcomeCounts(Record):
    """Numbers of outcomes and groups behind a calibration."""

    outcomes: Count
    groups: Count
    groups_with_misses: Count
    groups_with_hits: Count


CurveKey = Literal["predicted", "observed", "band_low", "band_high"]


class CalibrationError(Record):
    """Expected calibration error, beside its values under calibrated predictions."""

    value: float | None
    null_median: float | None
    null_95: float | None
    null_limit: float | None
    p: Annotated[float | None, Because(NOT_PAIRED)]
    inside: StrictBool


class Validation(Record):
    """Quality of predictions on groups outside the fit."""

    n: Count
    groups: Count
    misses: Count
    groups_with_misses: Count
    groups_with_hits: Count
    repeats: Count
    checked_together: Count
    simulations: Count
    miss_rate: Interval
    brier: Interval
    log_loss: Interval
    skill: Interval
    auroc: Interval
    intercept: Interval
    slope: Interval
    observed_expected: Interval
    reliability: dict[CurveKey, list[Unit]]
    ece: CalibrationError
    dependence: float | None = Field(description="of simulated outcomes inside groups")
    histogram: list[Count] = Field(description="predictions in bins of 0.05")


class ConformalK(Record):
    """Number of results to read so that a share of new questions has gold among them.

    `coverage` is the covered share of held-out questions over random splits of the groups; a K
    beyond the depth covers none. `within_depth` is the share of questions with gold in the list.
    """

    level: Unit
    k: Annotated[Count | None, Because("no K within the lists reaches the level")]
    depth: Count
    n_groups: Count
    coverage: CountedInterval
    within_depth: float


class Condition(Record):
    """A condition of a status."""

    name: Text
    met: StrictBool
    found: str
    needed: str
    status: Status


class Standing(Record):
    """The status that the outcomes support, with its conditions."""

    status: Status
    discounts: StrictBool
    conditions: list[Condition]


class Promotion(Record):
    """A change of the status."""

    old_status: Status
    new_status: Status
    at: Text


class StrategyCalibration(Record):
    """Calibration of the miss rates of one strategy."""

    fingerprint: Text
    status: Status
    calibrator: str | None
    counts: OutcomeCounts
    validation: Validation | None
    heuristic_v0: Validation | None
    conformal: list[ConformalK] = Field(description="empty without questions with gold")
    estimator: Open | None
    standing: Standing
    refused: Annotated[str | None, Because("no outcome was refused")]
    promotion: Annotated[Promotion | None, Because("the status did not change")]
    n_without_signals: Count = Field(description="outcomes without signals; they are not fitted")

    @property
    def unmet_conditions(self) -> list[Condition]:
        """Unmet conditions of a higher status. Conditions of a stale status come first."""
        unmet = [condition for condition in self.standing.conditions if not condition.met]
        if self.status == "stale":
            unmet.sort(key=lambda condition: condition.status != "stale")
        return unmet


class ComparedStrategy(Record):
    """Figures of one strategy on the questions that have outcomes of all strategies."""

    name: Name
    observed: CountedInterval
    raw: CountedInterval
    calibrated: CountedInterval
    brier: CountedInterval
    skill: CountedInterval


MissMeasure = Literal["observed", "raw", "calibrated", "brier", "skill"]
"""Names of the compared figures.

`observed` is the miss rate in outcomes. `raw` and `calibrated` are mean estimated miss rates.
`brier` and `skill` are the Brier score and skill of the calibrated miss rate.
"""


class MissDifference(Record):
    """Difference a - b under one measure, on the queries that both strategies have.

    `delta` has a 95 % interval, and `p` is two-sided; both count the gold that queries share, for a
    skill by the influence of each query. `p_holm` is adjusted by Holm over all pairs, separately
    for each measure. `n_better`, `n_worse` and `n_tied` count queries, null for measures without a
    value per query. `detectable` is the smallest true difference found with 80 % power at two-sided
    5 %. It is null if unknown or larger than any possible difference.
    """

    a: Name
    b: Name
    measure: MissMeasure
    delta: CountedInterval
    p: PValue
    p_holm: Unit | None
    n_better: Count | None
    n_worse: Count | None
    n_tied: Count | None
    detectable: float | None


class MissComparison(Record):
    """Strategies compared by their misses."""

    n: Count
    strategies: list[ComparedStrategy]
    differences: list[MissDifference]


class CalibrationPart(Record):
    """Calibration of the miss rates."""

    target: BinaryTarget
    k: PositiveInt
    strategies: dict[Name, StrategyCalibration]
    comparison: MissComparison | None
