"""Pictures of a report as PNG or SVG bytes. The only file of this stage that imports matplotlib; nothing is shown, only written."""

import io
from collections.abc import Mapping
from typing import Any, Literal

Format = Literal["png", "svg"]
LEVELS = ("document", "section", "span")
COLOURS = {"document": "#1f5a8c", "section": "#c05621", "span": "#4a7c3a"}
MARKERS = {"document": "o", "section": "s", "span": "D"}


def _bytes(figure: Any, form: Format) -> bytes:
    import matplotlib.pyplot as plt

    buffer = io.BytesIO()
    metadata = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    figure.savefig(buffer, format=form, dpi=150, metadata=metadata)
    plt.close(figure)
    return buffer.getvalue()


def forest(report: Mapping[str, Any], label: str = "R@10", form: Format = "png") -> bytes:
    """One measure by strategy and level, each with its 95 % interval and denominator.

    Parameters
    ----------
    report
        The report.
    label
        The measure, for example `R@10`.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    strategies = [entry["name"] for entry in report["strategies"]]
    figure, axes = plt.subplots(figsize=(8, 1.1 + 0.55 * len(strategies)), layout="constrained")
    for at, level in enumerate(LEVELS):
        for row, entry in enumerate(report["strategies"]):
            record = next((item for item in entry["measures"] if item["level"] == level and item["label"] == label), None)
            if record is None or record["value"] is None:
                continue
            low = record["value"] if record["ci_low"] is None else record["ci_low"]
            high = record["value"] if record["ci_high"] is None else record["ci_high"]
            place = row + 0.22 * (at - 1)
            axes.plot([low, high], [place, place], color=COLOURS[level], linewidth=2, solid_capstyle="butt")
            axes.plot(record["value"], place, marker=MARKERS[level], color=COLOURS[level], label=f"{level} (n = {record['n_scored']})" if row == 0 else None)
    axes.set_yticks(range(len(strategies)), strategies)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel(f"{label} with 95 % interval over {report['gold']['n_groups_answerable']} independent groups of questions")
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, title="level")
    axes.set_title(f"{report['gold']['name']} on {report['index']['rev']}", loc="left", fontsize=10)
    return _bytes(figure, form)


def flips(report: Mapping[str, Any], strategy: str, form: Format = "png") -> bytes:
    """Heat map of the share of questions whose hit@10 differs between two wordings, for one strategy."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    matrix = report["stability"]["strategies"][strategy]["flip_matrix"]
    share = np.array([[np.nan if value is None else value for value in row] for row in matrix["share"]], dtype=float)
    size = len(matrix["wordings"])
    figure, axes = plt.subplots(figsize=(2.5 + 0.6 * size, 2 + 0.5 * size), layout="constrained")
    image = axes.imshow(share, cmap="cividis", vmin=0, vmax=max(0.01, float(np.nanmax(share)) if np.isfinite(share).any() else 1.0))
    axes.set_xticks(range(size), matrix["wordings"], rotation=45, ha="right")
    axes.set_yticks(range(size), matrix["wordings"])
    for row in range(size):
        for column in range(size):
            if np.isfinite(share[row, column]) and row != column:
                axes.text(column, row, f"{share[row, column]:.2f}", ha="center", va="center", color="white", fontsize=8)
    figure.colorbar(image, ax=axes, label="share of questions whose hit@10 differs")
    n = max((value for row in matrix["n"] for value in row), default=0)
    axes.set_title(f"{strategy}: wording against wording (n = {n})", loc="left", fontsize=10)
    return _bytes(figure, form)
