"""JSON lines of `miss_rate.py`: figures, their bars, and whether the figures meet the bars."""

import dataclasses
import json
import math
import sys
import time
from typing import Any, NamedTuple

from rag_eval.uncertainty.validation import Validation

STARTED = time.perf_counter()
FIGURES = ("auroc", "brier", "skill", "log_loss", "slope", "intercept", "observed_expected")


class Bar(NamedTuple):
    """Inclusive limits of a figure; None means no limit on that side."""

    least: float | None = None
    most: float | None = None

    def is_met(self, value: float | None) -> bool:
        """Return whether a figure lies within the limits; an undefined figure does not."""
        if value is None or not math.isfinite(value):
            return False
        least = -math.inf if self.least is None else self.least
        return least <= value <= (math.inf if self.most is None else self.most)

    def __str__(self) -> str:
        ends = (("at least", self.least), ("at most", self.most))
        return " and ".join(f"{words} {end:.4g}" for words, end in ends if end is not None)


def progress(text: str) -> None:
    """Print a line on stderr with the seconds since the start."""
    print(f"{time.perf_counter() - STARTED:7.1f} s  {text}", file=sys.stderr, flush=True)


def emit(section: str, figures: dict[str, Any], bars: dict[str, Bar] | None = None) -> bool | None:
    """Print one line; `met` is null without a bar.

    A bar is compared with the figure before rounding. A figure with an interval is compared by its
    `value`.
    """
    met = {name: bar.is_met(_value(figures[name])) for name, bar in (bars or {}).items()}
    line = {
        "bench": "miss_rate",
        "section": section,
        **_round(figures),
        "bar": {name: str(bar) for name, bar in (bars or {}).items()} or None,
        "met": all(met.values()) if met else None,
    }
    if line["met"] is False:
        line["not_met"] = [name for name, reached in met.items() if not reached]
    print(json.dumps(line), flush=True)
    return all(met.values()) if met else None


def _value(figure: Any) -> float | None:
    return figure["value"] if isinstance(figure, dict) else figure


def _round(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _round(part) for name, part in value.items()}
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    return value


def validation_figures(found: Validation) -> dict[str, Any]:
    """Return the denominators, the figures with intervals, and the ECE with its chance limit."""
    counted = {name: getattr(found, name) for name in ("n", "groups", "misses", "repeats")}
    figures = {name: getattr(found, name).to_json() for name in FIGURES}
    return {**counted, **figures, "ece": dataclasses.asdict(found.ece)}
