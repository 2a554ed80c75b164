"""The one resource: gold sets opened for evaluation, kept for the length of a run.

Belongs here: opening and closing. What is done with an opened gold set is `outcomes`.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from rag_eval.settings import Settings

if TYPE_CHECKING:
    from rag_eval.evaluation.index_steps import IndexOpener
    from rag_eval.evaluation.inputs import Evaluation
    from rag_eval.evaluation.measure_steps import Runs


@dataclasses.dataclass
class Session:
    """One gold set opened for evaluation; its index, its runs and its report are shared by all assets of a run.

    Parameters
    ----------
    evaluation
        The opened gold set.
    """

    evaluation: "Evaluation"

    @cached_property
    def opened(self) -> "IndexOpener":
        """The index, opened when a stage searches."""
        from rag_eval.evaluation.index_steps import IndexOpener

        return IndexOpener(self.evaluation)

    @cached_property
    def runs(self) -> "Runs":
        """The stored runs."""
        from rag_eval.evaluation.measure_steps import Runs

        return Runs(self.evaluation, self.opened)

    @cached_property
    def report(self) -> dict[str, Any]:
        """The gold set's report as it stands on disk.

        Raises
        ------
        InputError
            No report was written yet.
        """
        from rag_eval.records.problems import InputError, Problem
        from rag_eval.reporting.metrics_report import FILE_NAME

        path = self.evaluation.reports / FILE_NAME
        if not path.is_file():
            raise InputError(
                Problem(
                    "no_report",
                    "there is no report yet; materialize retrieval_metrics_report first",
                    file=str(path),
                )
            )
        loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return loaded


class Evaluations:
    """Opens gold sets by name, each once, and holds the home for writing from the first one on until `close`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._sessions: dict[str, Session] = {}
        self._held = contextlib.ExitStack()

    def open(self, gold_set: str) -> Session:
        """Open a gold set, or return it as it was opened before.

        Raises
        ------
        InputError
            Its configuration cannot be used, or another process writes in this home.
        """
        if gold_set not in self._sessions:
            from rag_eval.evaluation.inputs import open_gold_set
            from rag_eval.evaluation.progress import Lines
            from rag_eval.storage.artifacts import ArtifactStore
            from rag_eval.storage.atomic import sweep
            from rag_eval.storage.locking import home_lock

            evaluation = open_gold_set(
                self.settings.gold_sets / gold_set,
                self.settings,
                progress=Lines(dg.get_dagster_logger().info),
            )
            if not self._sessions:
                self._held.enter_context(home_lock(self.settings.home))
                ArtifactStore(self.settings.home / "artifacts").sweep()
                sweep(self.settings.home, "", "runs", "embeddings/*")
            self._sessions[gold_set] = Session(evaluation)
        return self._sessions[gold_set]

    def close(self) -> None:
        """Forget what was opened and release the home."""
        self._sessions.clear()
        self._held.close()


def evaluations_resource(settings: Settings) -> "dg.ConfigurableResource[Evaluations]":
    """Make the resource. Its places can be seen and changed in the launchpad; all other settings stay in the process (some are secrets)."""

    class EvaluationsResource(dg.ConfigurableResource[Evaluations]):
        """Gold sets opened for evaluation."""

        home: str = Field(
            default=str(settings.home), description="artifacts, embeddings, Chroma, MLflow"
        )
        reports: str = Field(default=str(settings.reports), description="where reports are written")
        gold_sets: str = Field(default=str(settings.gold_sets), description="folder of gold sets")

        def create_resource(self, context: dg.InitResourceContext) -> Evaluations:  # noqa: ARG002 - Dagster's signature
            """Return the plain object that assets work with."""
            places = {
                "home": Path(self.home),
                "reports": Path(self.reports),
                "gold_sets": Path(self.gold_sets),
            }
            return Evaluations(settings.model_copy(update=places))

        @contextlib.contextmanager
        def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[Evaluations]:
            """Close what the run opened when it ends, however it ends."""
            with contextlib.closing(self.create_resource(context)) as evaluations:
                yield evaluations

    return EvaluationsResource()
