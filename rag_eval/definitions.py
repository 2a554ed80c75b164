"""Module that `workspace.yaml` names: Dagster loads it and calls `defs`.

The import of this module loads only Dagster.
"""

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Build the definitions from the settings of the environment and the folder of gold sets."""
    from rag_eval.core.settings import telemetry_off

    telemetry_off()
    from rag_eval.defs.build import build_definitions

    return build_definitions()
