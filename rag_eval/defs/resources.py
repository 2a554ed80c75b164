"""The only resource: gold sets that are open for evaluation until the run ends."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from rag_eval.core.settings import Settings

if TYPE_CHECKING:
    from rag_eval.pipeline.evaluation import Evaluation


class Evaluations:
    """Opens gold sets by name, each once, and holds the home for writing until `close`."""

    def __init__(self, settings: Settings, tags: Mapping[str, str] | None = None) -> None:
        self.settings, self._tags = settings, tags or {}
        self._opened: dict[str, Evaluation] = {}
        self._held = contextlib.ExitStack()

    def open(self, gold_set: str) -> "Evaluation":
        """Open a gold set, or return the evaluation that an earlier call opened.

        Raises InputError if the configuration cannot be used or another process writes in the home.
        """
        if gold_set not in self._opened:
            from rag_eval.pipeline.evaluation import Lines, open_gold_set
            from rag_eval.storage.artifacts import HOME_FOLDERS, home_lock, sweep

            folder = self.settings.gold_sets / gold_set
            progress = Lines(dg.get_dagster_logger().info)
            evaluation = open_gold_set(folder, self.settings, progress=progress)
            if not self._opened:
                home = evaluation.home.folder
                self._held.enter_context(home_lock(home))
                sweep(home, *HOME_FOLDERS)
            self._opened[gold_set] = dataclasses.replace(
                evaluation, use_record=True, tags=self._tags
            )
        return self._opened[gold_set]

    def close(self) -> None:
        """Drop the opened evaluations and release the home."""
        self._opened.clear()
        self._held.close()


def make_evaluations(settings: Settings) -> "dg.ConfigurableResource[Evaluations]":
    """Make the resource.

    The launchpad shows the folders and can change them. All other settings stay in the process,
    because some are secrets.
    """

    class EvaluationsResource(dg.ConfigurableResource[Evaluations]):
        """Gold sets opened for evaluation."""

        home: str = Field(
            default=str(settings.home), description="artifacts, embeddings, Chroma, MLflow"
        )
        reports: str = Field(default=str(settings.reports), description="where reports are written")
        gold_sets: str = Field(default=str(settings.gold_sets), description="folder of gold sets")

        def create_resource(self, context: dg.InitResourceContext) -> Evaluations:
            """Return the `Evaluations` that assets use."""
            places = {
                "home": self.home,
                "reports": Path(self.reports),
                "gold_sets": Path(self.gold_sets),
            }
            tags = {} if context.run is None else {"dagster.run_id": context.run.run_id}
            return Evaluations(settings.model_copy(update=places), tags)

        @contextlib.contextmanager
        def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[Evaluations]:
            """Close the run's evaluations at its end, also after a failure."""
            with contextlib.closing(self.create_resource(context)) as evaluations:
                yield evaluations

    return EvaluationsResource()
