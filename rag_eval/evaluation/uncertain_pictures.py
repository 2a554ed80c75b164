"""Pictures of a calibration: reliability and learning curves of all strategies, drawn once for equal outcomes."""

import tempfile
from pathlib import Path
from typing import Any

from rag_eval.evaluation.calibration_steps import miss_rate_calibration
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.storage.artifacts import Artifact

PICTURES = ("reliability.png", "learning-curve.png")


def calibration_pictures(runs: Runs) -> Artifact:
    """Draw what there is to draw. Parts: those of PICTURES that can be drawn; none where no strategy was calibrated."""
    return runs.evaluation.once("calibration pictures", lambda: _pictures(runs))


def drawn(runs: Runs) -> list[Path]:
    """Return the files of the pictures."""
    folder = calibration_pictures(runs).folder
    return [folder / name for name in PICTURES if (folder / name).is_file()]


def _pictures(runs: Runs) -> Artifact:
    spec, found = runs.evaluation.config.uncertainty, miss_rate_calibration(runs)
    key = runs.evaluation.key(
        "calibration_pictures",
        {name: entry["artifact"] for name, entry in found.items()},
        spec.target,
        spec.k,
    )

    def make() -> dict[str, Any]:
        from rag_eval.reporting.miss_rate_plots import learning_curves, reliability_diagrams

        validations = {
            name: entry["validation"]
            for name, entry in found.items()
            if entry["validation"] is not None
        }
        curves = {
            name: entry["learning_curve"]
            for name, entry in found.items()
            if entry["learning_curve"]
        }
        parts, target = dict[str, Any](), f"{spec.target}@{spec.k}"
        with tempfile.TemporaryDirectory() as folder:
            if validations:
                parts[PICTURES[0]] = reliability_diagrams(
                    validations, Path(folder) / PICTURES[0], target=target
                ).read_bytes()
            if curves:
                parts[PICTURES[1]] = learning_curves(
                    curves, Path(folder) / PICTURES[1], target=target
                ).read_bytes()
        return parts

    return runs.evaluation.memo("calibration_pictures", key, make)
