"""The nightly job: every asset and every check; its schedule selects what a gold set's configuration has."""

from typing import TYPE_CHECKING

import dagster as dg

from rag_eval.defs import names

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )


def nightly_eval() -> "UnresolvedAssetJobDefinition":
    """Make the job."""
    return dg.define_asset_job(
        names.JOB,
        selection=dg.AssetSelection.all(),
        description="Evaluates one gold set. The schedule selects the assets of its configuration; launched by hand, leave out the strategies that it does not have.",
    )
