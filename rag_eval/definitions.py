"""What `workspace.yaml` names: Dagster loads this module and calls `defs`. Nothing but Dagster is imported to get here."""

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Build the definitions from the settings of the environment and the folder of gold sets."""
    from rag_eval.settings import telemetry_off

    telemetry_off()
    from rag_eval.defs.build import build_definitions

    return build_definitions()
