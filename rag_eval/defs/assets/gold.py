"""Gold: linted, resolved against this corpus revision, spread into wordings."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from rag_eval.defs import checks, names, outcomes
from rag_eval.defs.assets.common import Common, op_name
from rag_eval.defs.metadata import clear_failures, column_schema
from rag_eval.defs.resources import Evaluations
from rag_eval.records.frames import VARIANTS
from rag_eval.records.problems import InputError


def gold_assets(common: Common) -> list[dg.AssetsDefinition]:
    """Make the assets of the gold set."""
    spec = common.spec(
        names.GOLD_VARIANTS,
        (names.CORPUS_SNAPSHOT, names.CORPUS_CHUNKS, names.EVIDENCE_TRUST),
        {"parquet"},
        "Every question under every wording, with judgements and evidence spans that resolve in this corpus revision. Not materialized while lint finds an error.",
        metadata=column_schema(VARIANTS),
        skippable=True,
    )

    # before the index, so that a gold set with errors is told at once and not after the embedding
    @dg.multi_asset(
        name=op_name(spec.key),
        specs=[spec],
        check_specs=[checks.spec(names.GOLD_LINT)],
        op_tags={"dagster/priority": "1"},
    )
    def gold_variants(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
        with clear_failures():
            session = evaluations.open(context.partition_key)
            try:
                outcome = outcomes.gold_variants(session)
            except InputError:
                # the error lists what its stage could see; lint reads on and lists everything
                yield checks.result(
                    names.GOLD_LINT, passed=False, metadata=outcomes.lint_metadata(session)
                )
                return
            yield outcome.result(
                checks.result(
                    names.GOLD_LINT, passed=True, metadata=outcomes.lint_warnings(session)
                )
            )

    return [gold_variants]
