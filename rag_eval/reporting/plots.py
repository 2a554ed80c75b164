"""Pictures of a report and of stored measures as PNG files. The only file of this stage that imports matplotlib; nothing is shown, only written."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_eval.storage.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES_PER_ROW = 0.32
DARK = 0.5
MAX_WORDINGS = 12
"""A larger matrix cannot be read as a picture."""


def save_figure(figure: "Figure", path: Path) -> Path:
    """Write a figure as PNG, whole or not at all, and return its resolved path."""
    with atomic_path(path) as partial:
        figure.savefig(partial, dpi=130, format="png", metadata={"Software": None})
    return path.resolve()


def new_figure(width: float, height: float) -> "Figure":
    """Make an empty figure of so many inches that no screen is needed for."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def recall_forest(about: Mapping[str, Any], level: str, path: Path) -> Path:
    """Draw R@k with its 95 % interval, a row for each strategy and k."""
    rows = [
        (f"{entry['name']}  {record['label']}  (n={record['n_scored']})", record, at)
        for at, entry in enumerate(about["strategies"])
        for record in entry["measures"]
        if record["level"] == level
        and record["label"].startswith("R@")
        and record["value"] is not None
    ]
    figure = new_figure(8, 1.2 + INCHES_PER_ROW * len(rows))
    axes = figure.subplots()
    for place, (_, record, at) in enumerate(rows):
        low = record["value"] if record["ci_low"] is None else record["ci_low"]
        high = record["value"] if record["ci_high"] is None else record["ci_high"]
        axes.plot([low, high], [place, place], color=f"C{at % 10}", linewidth=2)
        axes.plot([record["value"]], [place], "o", color=f"C{at % 10}")
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(f"share of the relevant found ({level} level), 95 % interval")
    return save_figure(figure, path)


def flip_heat_map(about: Mapping[str, Any], path: Path) -> Path | None:
    """Draw, a panel for each strategy, the share of questions found under one of two wordings and missed under the other; None where that cannot be shown."""
    import numpy as np

    strategies = about["strategies"]
    if any(
        len(figures["flip_matrix"]["wordings"]) > MAX_WORDINGS for figures in strategies.values()
    ):
        return None
    figure = new_figure(3.4 * len(strategies) + 0.6, 3.6)
    panels = figure.subplots(1, len(strategies), squeeze=False)[0]
    image = None
    for axes, (name, figures) in zip(panels, strategies.items(), strict=True):
        matrix = figures["flip_matrix"]
        share = np.array(
            [[np.nan if cell is None else cell for cell in row] for row in matrix["share"]],
            dtype=float,
        )
        image = axes.imshow(share, vmin=0, vmax=1, cmap="magma_r")
        for (row, column), value in np.ndenumerate(share):
            label = "–" if np.isnan(value) else f"{value:.2f}\nn={matrix['n'][row][column]}"
            axes.text(
                column,
                row,
                label,
                ha="center",
                va="center",
                fontsize=7,
                color="white" if value > DARK else "black",
            )
        axes.set_xticks(range(len(share)), matrix["wordings"], rotation=45, ha="right", fontsize=7)
        axes.set_yticks(range(len(share)), matrix["wordings"], fontsize=7)
        axes.set_title(name, fontsize=9)
    if image is not None:
        figure.colorbar(
            image, ax=list(panels), label="share of questions whose hit changes", shrink=0.8
        )
    return save_figure(figure, path)
