"""The only resource: gold sets that are open for evaluation until the run ends."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import dagster as dg

from rag_eval.core.settings import Settings

if TYPE_CHECKING:
    from rag_eval.pipeline.evaluation import Evaluation

WAIT_S: Final = 7200.0
"""Longest wait of a night's run, which no person looks at, unless the settings say another."""


class Evaluations:
    """Opens a gold set and holds its lock until `close`, or until another one is opened."""

    def __init__(self, settings: Settings, tags: Mapping[str, str] | None = None) -> None:
        self.settings, self._tags = settings, tags or {}
        self._opened: dict[str, Evaluation] = {}
        self._held = contextlib.ExitStack()

    def open(self, gold_set: str) -> "Evaluation":
        """Open a gold set, or return the evaluation that an earlier call opened.

        Raises InputError if the configuration cannot be used, or if another run still writes here
        after the wait.
        """
        if gold_set not in self._opened:
            from rag_eval.pipeline.evaluation import Lines
            from rag_eval.pipeline.opening import open_gold_set
            from rag_eval.storage.files import HOME_FOLDERS, sweep

            folder = self.settings.gold_sets / gold_set
            progress = Lines(dg.get_dagster_logger().info)
            evaluation = open_gold_set(folder, self.settings, progress=progress)
            self.close()
            evaluation = dataclasses.replace(evaluation, use_record=True, tags=self._tags)
            lock = self._held.enter_context(evaluation.lock)
            sweep(evaluation.home.folder, *HOME_FOLDERS, older_than_s=lock.leftover_age_s)
            self._opened[gold_set] = evaluation
        return self._opened[gold_set]

    def close(self) -> None:
        """Drop the opened evaluations and release the home."""
        self._opened.clear()
        self._held.close()


def settings_of_nights(settings: Settings) -> Settings:
    """Let a night's run wait for WAIT_S, unless the settings say another time."""
    if "wait_s" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"wait_s": WAIT_S})


def make_evaluations(settings: Settings) -> dg.ResourceDefinition:
    """Make the resource, which closes the run's evaluations at its end, also after a failure."""

    @dg.resource(description="Gold sets opened for evaluation")
    def evaluations(context: dg.InitResourceContext) -> Iterator[Evaluations]:
        tags = {} if context.run is None else {"dagster.run_id": context.run.run_id}
        with contextlib.closing(Evaluations(settings_of_nights(settings), tags)) as opened:
            yield opened

    return evaluations
