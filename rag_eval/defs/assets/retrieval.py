"""Retrieval: one asset for each strategy that any gold set names, made by a factory."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from rag_eval.defs import names, outcomes
from rag_eval.defs.assets.common import Common, op_name
from rag_eval.defs.metadata import clear_failures, column_schema
from rag_eval.defs.resources import Evaluations
from rag_eval.records.frames import RUN


def _strategy_asset(common: Common, strategy: str, name: str) -> dg.AssetsDefinition:
    spec = common.spec(
        names.strategy_key(strategy),
        (names.CORPUS_INDEX, names.GOLD_VARIANTS),
        {"parquet"},
        f"Run of the strategy {strategy} over every wording and seed. Gold sets that do not configure it leave it out.",
        metadata=column_schema(RUN),
    )

    @dg.multi_asset(name=name, specs=[spec])
    def retrieval(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        with clear_failures():
            session = evaluations.open(context.partition_key)
            if strategy not in session.runs.names:
                raise dg.Failure(
                    f"{context.partition_key} does not configure the strategy {strategy}; leave this asset out of the selection, or add the strategy to its gold_set.yaml",
                    metadata={"configured": ", ".join(session.runs.names)},
                    allow_retries=False,
                )
            return outcomes.retrieval(session, strategy).result()

    return retrieval


def retrieval_assets(common: Common, strategies: Sequence[str]) -> list[dg.AssetsDefinition]:
    """Make one asset a strategy; `a-b` and `a_b` are two strategies, so their ops get different names."""
    taken: set[str] = set()
    assets = []
    for strategy in strategies:
        name = op_name(names.strategy_key(strategy))
        while name in taken:
            name += "_"
        taken.add(name)
        assets.append(_strategy_asset(common, strategy, name))
    return assets
