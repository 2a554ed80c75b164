"""Everything put together. Tests call `build_definitions` with their own settings; Dagster comes here through `rag_eval.definitions`."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from rag_eval.defs import names
from rag_eval.defs.assets.answers import answer_assets
from rag_eval.defs.assets.common import Common
from rag_eval.defs.assets.corpus import corpus_assets
from rag_eval.defs.assets.gold import gold_assets
from rag_eval.defs.assets.measures import measure_assets
from rag_eval.defs.assets.reporting import reporting_assets
from rag_eval.defs.assets.retrieval import retrieval_assets
from rag_eval.defs.assets.trust import trust_assets
from rag_eval.defs.assets.uncertainty import uncertainty_assets
from rag_eval.defs.checks import gate_checks
from rag_eval.defs.jobs import nightly_eval
from rag_eval.defs.partitions import known_gold_sets, partitions
from rag_eval.defs.resources import evaluations_resource
from rag_eval.defs.schedules import nightly_schedule
from rag_eval.settings import Settings
from rag_eval.storage.code import code_version


def build_definitions(
    settings: Settings | None = None, resources: Mapping[str, Any] | None = None
) -> dg.Definitions:
    """Build the definitions.

    Parameters
    ----------
    settings
        The installation's settings; default: read from the environment and settings.toml.
    resources
        Replace resources by name, for tests.

    Raises
    ------
    InputError
        The folder of gold sets is not there.
    """
    settings = settings or Settings()
    gold_sets = known_gold_sets(settings.gold_sets)
    strategies = list(
        dict.fromkeys(strategy for gold_set in gold_sets for strategy in gold_set.strategies)
    )
    gates = list(dict.fromkeys(gate for gold_set in gold_sets for gate in gold_set.gates))
    common = Common(partitions(gold_sets), code_version())
    job = nightly_eval()
    return dg.Definitions(
        assets=[
            *corpus_assets(common),
            *trust_assets(common),
            *gold_assets(common),
            *retrieval_assets(common, strategies),
            *answer_assets(common, strategies),
            *measure_assets(common, strategies),
            *uncertainty_assets(common, strategies),
            *reporting_assets(common, settings),
        ],
        asset_checks=gate_checks(gates),
        jobs=[job],
        schedules=[nightly_schedule(job, gold_sets, settings.schedule, settings.timezone)],
        resources={names.RESOURCE: evaluations_resource(settings), **(resources or {})},
        # a process a step would import everything anew for each; stages parallelise inside
        executor=dg.in_process_executor,
    )
