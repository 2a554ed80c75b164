"""Charts of the API as matplotlib figures that show in a notebook; pyplot is not used."""

import io
from typing import Final

import numpy as np
import pandas as pd

from rag_eval.core.parts import explain_missing

try:
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise ImportError(explain_missing("A chart", "plots")) from error

_INK, _GREY = "#1f5a99", "#888888"
_ROW_INCHES: Final = 0.35


class Chart(Figure):
    """A figure that a notebook shows without pyplot, which would keep every figure in memory."""

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", bbox_inches="tight")
        return image.getvalue()


def draw_intervals(rows: pd.DataFrame, column: str) -> Chart:
    """Draw the value of each strategy with its interval, a panel for each measure.

    `rows` has strategy, measure, the column, ci_low, ci_high and questions.
    """
    rows = rows.assign(**{end: rows.get(end, np.nan) for end in ("ci_low", "ci_high")})
    measures = list(rows["measure"].unique())
    names = list(rows["strategy"].unique())
    size = (3.2 * len(measures) + 1.5, 1.3 + _ROW_INCHES * len(names))
    chart = Chart(figsize=size, layout="constrained")
    panels = chart.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for panel, measure in zip(panels, measures, strict=True):
        part = rows[rows["measure"] == measure].set_index("strategy").loc[names]
        value = part[column].to_numpy(dtype=float)
        low, high = (part[end].to_numpy(dtype=float) for end in ("ci_low", "ci_high"))
        reach = np.maximum([value - low, high - value], 0)
        panel.errorbar(value, np.arange(len(names)), xerr=reach, fmt="o", color=_INK, capsize=3)
        if column == "difference":
            panel.axvline(0, color=_GREY, linewidth=1)
        panel.set_title(measure)
        panel.set_yticks(np.arange(len(names)), names, parse_math=False)
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.grid(axis="x", alpha=0.3)
    interval = "95 % interval" if rows["ci_low"].notna().any() else "no interval"
    counts = f"{rows['questions'].max()} questions"
    chart.supxlabel(f"{column}, {interval} ({counts})", fontsize="small")
    return chart


def draw_reliability(curve: pd.DataFrame, predicted: "pd.Series[float]", title: str) -> Chart:
    """Draw observed against predicted miss rates, above a histogram of the predictions.

    `curve` has predicted, observed, band_low and band_high of each bin.
    """
    chart = Chart(figsize=(5, 5.5), layout="constrained")
    above, below = chart.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    above.plot([0, 1], [0, 1], color=_GREY, linewidth=1, label="calibrated")
    above.fill_between(
        curve["predicted"],
        curve["band_low"],
        curve["band_high"],
        color=_GREY,
        alpha=0.25,
        label="95 % of calibrated predictions",
    )
    above.plot(curve["predicted"], curve["observed"], "o-", color=_INK, label="this run")
    above.set(xlim=(0, 1), ylim=(0, 1), ylabel="observed miss rate")
    above.set_title(title, fontsize="small")
    above.legend(loc="upper left", fontsize="small")
    below.hist(predicted, bins=20, range=(0, 1), color=_INK)
    below.set(xlabel="predicted miss rate, out of fold", ylabel="retrievals")
    return chart
