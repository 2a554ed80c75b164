"""Pictures of how good predicted miss rates are, as PNG files: reliability diagrams and learning curves.

Belongs here: drawing what `uncertainty.validation` and `uncertainty.learning` wrote as JSON. Nothing is computed, nothing is shown on a screen.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_eval.reporting.plots import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, CURVE, BAND, BARS, REFERENCE = "#222222", "#1f5a8c", "#d5dfe8", "#8aa4ba", "#7a7a7a"
STYLES = (
    ("#1f5a8c", "o"),
    ("#c05621", "s"),
    ("#4a7c3a", "D"),
    ("#7b3f8c", "^"),
    ("#8c6d1f", "v"),
    ("#3a7c7c", "P"),
)
PANELS_PER_ROW = 3
APART = 1.035
NAME_CHARS = 40
CAPTION_POINTS = 74
"""Height of the figures over a panel; the name of the strategy stands on it."""


def _bare(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.tick_params(labelsize=8)


def _shown(figure: Mapping[str, Any], digits: int = 2) -> str:
    if figure["value"] is None:
        return "not defined"
    ends = (
        "no interval"
        if figure["low"] is None
        else f"{figure['low']:.{digits}f}, {figure['high']:.{digits}f}"
    )
    return f"{figure['value']:.{digits}f} [{ends}]"


def _caption(about: Mapping[str, Any]) -> str:
    corp, smooth, binned = about["corp"], about["smece"], about["ece"]
    return "\n".join(
        [
            f"{about['misses']:,} misses of {about['n']:,} outcomes in {about['groups']:,} groups",
            f"miss rate  {_shown(about['miss_rate'])}",
            f"Brier skill  {_shown(about['skill'])}   AUROC  {_shown(about['auroc'])}",
            f"slope  {_shown(about['slope'])}   observed / expected  {_shown(about['observed_expected'])}",
            f"Brier  {corp['brier']:.4f} = {corp['mcb']:.4f} MCB - {corp['dsc']:.4f} DSC + {corp['unc']:.4f} UNC",
            f"smECE  {smooth['value']:.3f} (chance: up to {smooth['null_limit']:.3f})   ECE  {binned['value']:.3f} (up to {binned['null_limit']:.3f})",
        ]
    )


def _reliability(axes: "Axes", about: Mapping[str, Any]) -> None:
    curve, band = about["corp"]["curve"], about["corp"]["band"]
    _bare(axes)
    if band["at"]:
        axes.fill_between(
            band["at"],
            band["low"],
            band["high"],
            color=BAND,
            linewidth=0,
            label="95 % of calibrated predictions",
        )
    axes.plot(
        [0, 1], [0, 1], color=REFERENCE, linewidth=0.8, linestyle=(0, (4, 3)), label="calibrated"
    )
    axes.axhline(
        about["miss_rate"]["value"],
        color=REFERENCE,
        linewidth=0.8,
        linestyle=":",
        label="miss rate",
    )
    axes.plot(
        curve["predicted"],
        curve["recalibrated"],
        color=CURVE,
        linewidth=1.8,
        marker="o",
        markersize=2.2,
        label="observed (isotonic)",
    )
    axes.set(xlim=(0, 1), ylim=(-0.02, 1.02))
    axes.tick_params(labelbottom=False)


def _histogram(axes: "Axes", about: Mapping[str, Any]) -> None:
    counts = about["histogram"]
    width = 1 / len(counts)
    _bare(axes)
    axes.bar(
        [(at + 0.5) * width for at in range(len(counts))], counts, width=width * 0.92, color=BARS
    )
    axes.set_xlim(0, 1)
    axes.set_xlabel("predicted probability of a miss", fontsize=8)


def reliability_diagrams(
    validations: Mapping[str, Mapping[str, Any]], path: Path, *, target: str
) -> Path:
    """Draw the CORP reliability diagram of each strategy with its consistency band, figures and a histogram of its predictions.

    Parameters
    ----------
    validations
        Strategy -> `Validation.to_json()`; one panel each, three a row.
    path
        The PNG file to write.
    target
        What a miss is, for example `miss_any@10`.
    """
    if not validations:
        raise ValueError("no strategy to draw")
    columns = min(len(validations), PANELS_PER_ROW)
    bands = -(-len(validations) // columns)
    figure = new_figure(max(4.3 * columns, 5), 6.7 * bands + 0.7)
    grid = figure.subplots(2 * bands, columns, squeeze=False, height_ratios=[4, 1] * bands)
    for at, (name, about) in enumerate(validations.items()):
        upper, lower = (
            grid[2 * (at // columns), at % columns],
            grid[2 * (at // columns) + 1, at % columns],
        )
        _reliability(upper, about)
        _histogram(lower, about)
        upper.set_title(_caption(about), loc="left", fontsize=7.5, color=INK, linespacing=1.35)
        upper.annotate(
            name[:NAME_CHARS],
            (0, 1),
            (0, CAPTION_POINTS),
            "axes fraction",
            "offset points",
            fontsize=11,
            fontweight="bold",
            color=INK,
            parse_math=False,
        )
        if at % columns == 0:
            upper.set_ylabel("observed share of misses", fontsize=8)
            lower.set_ylabel("outcomes", fontsize=8)
    for at in range(len(validations), bands * columns):
        grid[2 * (at // columns), at % columns].set_axis_off()
        grid[2 * (at // columns) + 1, at % columns].set_axis_off()
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=4 if columns > 1 else 2,
        frameon=False,
        fontsize=8,
    )
    title = f"Reliability of predicted {target}, out of fold\n" + "[ ] 95 % over groups"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=INK, parse_math=False)
    return save_figure(figure, path)


def learning_curves(
    curves: Mapping[str, Sequence[Mapping[str, Any]]], path: Path, *, target: str
) -> Path:
    """Draw Brier skill on held-out groups by number of training outcomes.

    Parameters
    ----------
    curves
        Strategy -> `LearningPoint.to_json()` by size; sizes that no draw could train on are left out.
    path
        The PNG file to write.
    target
        What a miss is, for example `miss_any@10`.
    """
    figure = new_figure(7.6, 4.4)
    axes = figure.subplots()
    _bare(axes)
    axes.axhline(0, color=REFERENCE, linewidth=0.9)
    sizes: set[int] = set()
    for at, (name, points) in enumerate(curves.items()):
        known = [point for point in points if point["skill"] is not None]
        if not known:
            continue
        colour, marker = STYLES[at % len(STYLES)]
        outcomes = [point["outcomes"] for point in known]
        draws, held_out = min(point["draws"] for point in known), round(known[0]["held_out"])
        places = [
            outcome * APART ** (at - (len(curves) - 1) / 2) for outcome in outcomes
        ]  # side by side, or the bars would hide each other
        axes.vlines(
            places,
            [point["low"] for point in known],
            [point["high"] for point in known],
            color=colour,
            linewidth=1.4,
            alpha=0.55,
        )
        label = f"{name[:NAME_CHARS]} ({draws} draws, {held_out:,} held out)"
        axes.plot(
            places,
            [point["skill"] for point in known],
            color=colour,
            marker=marker,
            markersize=4.5,
            linewidth=1.6,
            label=label.replace("$", r"\$"),
        )
        sizes.update(point["wanted"] for point in known)
    axes.set_xscale("log")
    axes.set_xticks(sorted(sizes), [f"{size:,}" for size in sorted(sizes)])
    axes.minorticks_off()
    axes.set_xlabel("training outcomes", fontsize=9)
    axes.set_ylabel("Brier skill on held-out groups", fontsize=9)
    axes.set_title(
        f"What outcomes bring, {target}: mean, and the middle 95 % of the draws",
        loc="left",
        fontsize=10,
        color=INK,
        parse_math=False,
    )
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    return save_figure(figure, path)
