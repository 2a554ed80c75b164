"""JSON lines of `miss_rate.py`: figures, the bars that they are held against, and whether these are met. Progress goes to stderr."""

import dataclasses
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from rag_eval.uncertainty.validation import CalibrationError, Validation

STARTED = time.perf_counter()


class Bar(NamedTuple):
    """What a figure must reach, the ends included; None: no limit on that side."""

    least: float | None = None
    most: float | None = None

    def met(self, value: float | None) -> bool:
        if value is None or not math.isfinite(value):
            return False
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def __str__(self) -> str:
        ends = [f"at least {self.least:.4g}"] if self.least is not None else []
        return " and ".join(
            [*ends, *([f"at most {self.most:.4g}"] if self.most is not None else [])]
        )


def progress(text: str) -> None:
    print(f"{time.perf_counter() - STARTED:7.1f} s  {text}", file=sys.stderr, flush=True)


def emit(section: str, figures: dict[str, Any], bars: dict[str, Bar] | None = None) -> bool | None:
    """Print one line; `met` is null where nothing is asked for. Bars look at figures before they are rounded, at `value` where they have an interval."""
    held = {name: bar.met(_number(figures[name])) for name, bar in (bars or {}).items()}
    met = all(held.values()) if held else None
    line = {
        "bench": "miss_rate",
        "section": section,
        **_rounded(figures),
        "bar": {name: str(bar) for name, bar in (bars or {}).items()} or None,
        "met": met,
    }
    if met is False:
        line["not_met"] = [name for name, reached in held.items() if not reached]
    print(json.dumps(line), flush=True)
    return met


def _number(figure: Any) -> float | None:
    return figure["value"] if isinstance(figure, dict) else figure


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    return value


def validation_figures(found: Validation) -> dict[str, Any]:
    """Denominators, and every figure with its interval or beside its null."""
    errors = {name: _error(getattr(found, name)) for name in ("ece", "smece")}
    counted = {name: getattr(found, name) for name in ("n", "groups", "misses", "repeats")}
    figures = {
        name: getattr(found, name).to_json()
        for name in (
            "auroc",
            "brier",
            "skill",
            "log_loss",
            "slope",
            "intercept",
            "observed_expected",
        )
    }
    return {
        **counted,
        **figures,
        **errors,
        "mcb": found.corp.to_json().get("mcb"),
        "dsc": found.corp.to_json().get("dsc"),
        "unc": found.corp.to_json().get("unc"),
    }


def _error(error: CalibrationError) -> dict[str, Any]:
    return {**dataclasses.asdict(error), "inside_95": error.value <= error.null_95}


def script_lines(name: str, *arguments: str) -> list[dict[str, Any]]:
    """Run another benchmark and read the lines that it prints."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / name), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
