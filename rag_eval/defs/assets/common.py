"""What all assets share: partitions, code version, owner, and their options in one place."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import dagster as dg

from rag_eval.defs import names


@dataclasses.dataclass(frozen=True)
class Common:
    """Options of every asset.

    Parameters
    ----------
    partitions
        The gold sets.
    code_version
        Version of the code that computes.
    """

    partitions: dg.PartitionsDefinition[str]
    code_version: str

    def spec(
        self,
        key: dg.AssetKey,
        deps: Sequence[dg.AssetKey],
        kinds: set[str],
        description: str,
        **more: Any,
    ) -> dg.AssetSpec:
        """Describe one asset; its group is the first part of its key."""
        return dg.AssetSpec(
            key=key,
            deps=list(deps),
            group_name=key.path[0],
            kinds=kinds,
            owners=[names.OWNER],
            description=description,
            code_version=self.code_version,
            partitions_def=self.partitions,
            **more,
        )


def op_name(key: dg.AssetKey) -> str:
    """Name of an asset's op and step."""
    return names.identifier("__".join(key.path))
