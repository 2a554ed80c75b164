"""Answers: made from the evidence of one strategy, and their citations held against the live index and the gold."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from rag_eval.defs import names, outcomes
from rag_eval.defs.assets.common import Common, op_name
from rag_eval.defs.metadata import clear_failures, column_schema
from rag_eval.defs.resources import Evaluations
from rag_eval.records.measure_frames import ANSWERS, CITATIONS


def answer_assets(common: Common, strategies: Sequence[str]) -> list[dg.AssetsDefinition]:
    """Make the assets of the answers; gold sets without `answers` leave them out."""
    runs = [
        names.CORPUS_INDEX,
        names.GOLD_VARIANTS,
        *(names.strategy_key(strategy) for strategy in strategies),
    ]
    made = common.spec(
        names.ANSWERS,
        runs,
        {"parquet"},
        "Every question answered from the evidence of one strategy (deterministic, llm or recorded), held to the answer contract. Fails closed where the gold set says so.",
        metadata=column_schema(ANSWERS),
    )
    cited = common.spec(
        names.CITATIONS,
        [names.ANSWERS, names.CORPUS_INDEX],
        {"parquet"},
        "Every citation with its verdict: its payload against the live index, its span against the gold evidence.",
        metadata=column_schema(CITATIONS),
    )

    @dg.multi_asset(name=op_name(made.key), specs=[made])
    def answers(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        with clear_failures():
            return outcomes.answers(evaluations.open(context.partition_key)).result()

    @dg.multi_asset(name=op_name(cited.key), specs=[cited])
    def citations(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        with clear_failures():
            return outcomes.citations(evaluations.open(context.partition_key)).result()

    return [answers, citations]
