"""Trust: which documents may be believed, and which chunks must not be indexed."""

from typing import Any

import dagster as dg

from rag_eval.defs import names, outcomes
from rag_eval.defs.assets.common import Common, op_name
from rag_eval.defs.metadata import clear_failures, column_schema
from rag_eval.defs.resources import Evaluations
from rag_eval.records.trust import EVIDENCE_TRUST


def trust_assets(common: Common) -> list[dg.AssetsDefinition]:
    """Make the asset of trust."""
    spec = common.spec(
        names.EVIDENCE_TRUST,
        (names.CORPUS_SNAPSHOT, names.CORPUS_CHUNKS),
        {"parquet"},
        "Source trust of every chunk with its factors, and the poisoning guard's verdict. What is blocked is quarantined: it is not indexed until a person allows it.",
        metadata=column_schema(EVIDENCE_TRUST),
    )

    @dg.multi_asset(name=op_name(spec.key), specs=[spec])
    def evidence_trust(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> dg.MaterializeResult[Any]:
        with clear_failures():
            return outcomes.evidence_trust(evaluations.open(context.partition_key)).result()

    return [evidence_trust]
