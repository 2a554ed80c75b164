"""Uncertainty: what every retrieval may have missed, what outcomes say of that, and what later runs may state."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from rag_eval.defs import names, uncertain_outcomes
from rag_eval.defs.assets.common import Common, op_name
from rag_eval.defs.metadata import clear_failures, column_schema
from rag_eval.defs.resources import Evaluations
from rag_eval.records.outcomes import RETRIEVAL_OUTCOMES
from rag_eval.records.uncertainty import CLAIMS


def uncertainty_assets(common: Common, strategies: Sequence[str]) -> list[dg.AssetsDefinition]:
    """Make the assets of uncertainty."""
    runs = [
        names.CORPUS_INDEX,
        names.GOLD_VARIANTS,
        *(names.strategy_key(strategy) for strategy in strategies),
    ]
    claims = common.spec(
        names.MISS_RATE_CLAIMS,
        runs,
        {"parquet"},
        "The miss rate that is stated for every retrieval, by the calibrator that was accepted before this run; the prior or the uncalibrated heuristic where there is none.",
        metadata=column_schema(CLAIMS),
    )
    outcomes = common.spec(
        names.RETRIEVAL_OUTCOMES,
        (names.MISS_RATE_CLAIMS,),
        {"sql"},
        "What the gold says of every claim, appended to the table of outcomes; repeats of a night add nothing.",
        metadata=column_schema(RETRIEVAL_OUTCOMES),
    )
    calibration = common.spec(
        names.MISS_RATE_CALIBRATION,
        (names.RETRIEVAL_OUTCOMES,),
        {"json", "sql"},
        "Each strategy's estimator fitted to its outcomes and validated on held-out groups; what it has earned decides whether later runs use it.",
    )
    calibrated = common.spec(
        names.CALIBRATED_MISS_RATES,
        (names.MISS_RATE_CALIBRATION, names.ANSWER_MEASURES),
        {"json"},
        "Observed and stated miss rates, paired comparisons, conformal K, and what that makes of the answers.",
    )

    @dg.multi_asset(name=op_name(claims.key), specs=[claims])
    def miss_rate_claims(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        with clear_failures():
            return uncertain_outcomes.miss_rate_claims(
                evaluations.open(context.partition_key)
            ).result()

    @dg.multi_asset(name=op_name(outcomes.key), specs=[outcomes])
    def retrieval_outcomes(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        with clear_failures():
            return uncertain_outcomes.retrieval_outcomes(
                evaluations.open(context.partition_key)
            ).result()

    @dg.multi_asset(name=op_name(calibration.key), specs=[calibration])
    def miss_rate_calibration(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        from rag_eval.evaluation.uncertain_pictures import drawn

        with clear_failures():
            session = evaluations.open(context.partition_key)
            outcome = uncertain_outcomes.miss_rate_calibration(session)
            return outcome.result(
                **{
                    path.stem.replace("-", "_"): dg.MetadataValue.path(str(path.resolve()))
                    for path in drawn(session.runs)
                }
            )

    @dg.multi_asset(name=op_name(calibrated.key), specs=[calibrated])
    def calibrated_miss_rates(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        with clear_failures():
            return uncertain_outcomes.calibrated_miss_rates(
                evaluations.open(context.partition_key)
            ).result()

    return [miss_rate_claims, retrieval_outcomes, miss_rate_calibration, calibrated_miss_rates]
