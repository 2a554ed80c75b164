"""Copy of the bundled smoke gold set, which a test may change, and the job over the copy."""

import json
import shutil
from pathlib import Path

import dagster as dg
import pytest

from rag_eval.core.settings import Settings
from rag_eval.defs.build import JOB, build_definitions, known_gold_sets


class Ran:
    """What a test asks about one run of the job."""

    def __init__(self, result: dg.ExecuteInProcessResult) -> None:
        self.result, self.success = result, result.success

    @property
    def made(self) -> dict[str, dict]:
        """Metadata by asset."""
        return {
            "/".join(event.asset_key.path): {
                name: value.value for name, value in event.materialization.metadata.items()
            }
            for event in self.result.get_asset_materialization_events()
        }

    @property
    def checks(self) -> dict[str, dg.AssetCheckEvaluation]:
        return {check.check_name: check for check in self.result.get_asset_check_evaluations()}

    def failed_context(self, instance: dg.DagsterInstance) -> dg.RunFailureSensorContext:
        """Return the context that sensors of failed runs get."""
        return dg.build_run_status_sensor_context(
            "alert", self.result.get_run_failure_event(), instance, self.result.dagster_run
        ).for_run_failure()

    def failure(self, step: str):
        (event,) = [
            event
            for event in self.result.all_events
            if event.is_step_failure and event.step_key == step
        ]
        return event.step_failure_data.user_failure_data


class Project:
    """Copy the smoke gold set, with its own stores and reports."""

    def __init__(self, root: Path, smoke: Path, tracking_store: str) -> None:
        self.folder = root / "gold_sets" / "smoke"
        shutil.copytree(smoke, self.folder)
        self.settings = Settings(
            home=root / "home",
            reports=root / "reports",
            gold_sets=root / "gold_sets",
            primary_gold_set="smoke",
            tracking_uri=tracking_store,
            wait_s=0,
        )

    def change(self, old: str, new: str, file: str = "gold_set.yaml") -> None:
        path = self.folder / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    def report(self, folder: str = "smoke") -> dict:
        return json.loads(
            (self.settings.reports / folder / "retrieval-metrics.json").read_text(encoding="utf-8")
        )

    def known(self, name: str = "smoke"):
        return next(
            gold_set
            for gold_set in known_gold_sets(self.settings.gold_sets, self.settings.asset_key_prefix)
            if gold_set.name == name
        )

    def run(
        self, instance: dg.DagsterInstance, selection=None, *, gold_set: str = "smoke", tags=None
    ) -> Ran:
        job = build_definitions(self.settings).resolve_job_def(JOB)
        return Ran(
            job.execute_in_process(
                partition_key=gold_set,
                instance=instance,
                raise_on_error=False,
                tags=tags,
                asset_selection=selection or self.known(gold_set).assets,
            )
        )


@pytest.fixture
def project(tmp_path, project_root, tracking_store) -> Project:
    return Project(tmp_path, project_root / "gold_sets" / "smoke", tracking_store)


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance
