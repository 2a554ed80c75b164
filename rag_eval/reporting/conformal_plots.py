"""Pictures of conformal K and of the drift watch as PNG files; nothing is shown, only written."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rag_eval.records.problems import quoted
from rag_eval.reporting.plots import new_figure, save_figure
from rag_eval.uncertainty.conformal_report import ConformalK
from rag_eval.uncertainty.drift import Drift

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES: Final = {"fixed": ("#1f5a8c", "o", "one K"), "recall": ("#7a7a7a", "D", "one K, for expected recall"), "adaptive": ("#c05621", "s", "K by predicted risk, mean")}
BIN_COLOURS = ("#a8c99a", "#4a7c3a", "#1f3d17")
BIN_NAMES = ("least risky third", "middle third", "riskiest third")
GRID = "#dddddd"


def conformal_depths(results: Sequence[ConformalK], name: str, path: Path) -> Path:
    """Draw K against level, and beside it what attainable rules cover on held-out groups.

    Parameters
    ----------
    results
        Of one strategy, any methods and levels; empty gives empty axes.
    name
        Of the strategy.
    path
        The PNG file to write.
    """
    figure = new_figure(11, 5.0)
    deep, held = figure.subplots(1, 2)
    depth = max((result.depth for result in results), default=1)
    for method, (colour, marker, label) in STYLES.items():
        mine = sorted((result for result in results if result.method == method), key=lambda result: result.level)
        if mine:
            _line(deep, mine, [result.k if method in {"fixed", "recall"} else result.mean_k for result in mine], depth, (colour, marker, label))
            _coverage(held, mine, colour, marker, label)
    bins = sorted((result for result in results if result.method == "mondrian"), key=lambda result: result.level)
    for place, (colour, label) in enumerate(zip(BIN_COLOURS, BIN_NAMES, strict=True)):
        if bins:
            ks = [result.bins[place].k if place < len(result.bins) else None for result in bins]
            _line(deep, bins, ks, depth, (colour, "^", f"own K of the {label}"))
    if bins:
        _coverage(held, bins, BIN_COLOURS[1], "^", "own K by third of risk")
    deep.set_yscale("log")
    deep.set_ylim(0.9, depth * 1.6)
    deep.axhline(depth, color="#888888", linewidth=0.8, linestyle="--")
    deep.text(0.01, depth * 1.08, f"depth of the lists, {depth:,}; crosses: not attainable", transform=deep.get_yaxis_transform(), fontsize=7, color="#555555")
    deep.set_ylabel("K (logarithmic)")
    levels = sorted({result.level for result in results})
    held.plot(levels, levels, color="#888888", linewidth=0.8, linestyle="--", label="level asked for")
    held.set_ylabel("share of held-out questions with gold in their top K")
    for axes in (deep, held):
        _finish(axes)
        axes.set_xticks(levels, [f"{level:.0%}" for level in levels], fontsize=8)
        axes.set_xlabel("level")
        if results:
            axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    if results:
        about = results[0]
        deep.set_title(f"{_plain(name)}: {about.n:,} questions in {about.n_groups:,} groups", loc="left", fontsize=10)
        held.set_title(f"{about.splits} random group splits; filled: all, hollow: riskiest third; bars: 95 %", loc="left", fontsize=9)
    return save_figure(figure, path)


def _line(axes: "Axes", results: Sequence[ConformalK], ks: Sequence[float | None], depth: int, style: tuple[str, str, str]) -> None:
    colour, marker, label = style
    levels = [result.level for result in results]
    there = [(level, k) for level, k in zip(levels, ks, strict=True) if k is not None]
    dashes = "--" if marker == "D" else "-"  # with one gold item a question it lies on the one K
    axes.plot([level for level, _ in there], [k for _, k in there], color=colour, marker=marker, markersize=5, linewidth=1.6, linestyle=dashes, label=label)
    gone = [level for level, k in zip(levels, ks, strict=True) if k is None]
    axes.plot(gone, [depth] * len(gone), linestyle="none", marker="x", color=colour, markersize=7, markeredgewidth=2)


def _coverage(axes: "Axes", results: Sequence[ConformalK], colour: str, marker: str, label: str) -> None:
    shift = {"o": -0.003, "D": -0.001, "s": 0.001, "^": 0.003}[marker]
    for at, result in enumerate(result for result in results if result.attainable):
        for share, filled in ((result.coverage, True), (result.riskiest, False)):
            if share is None or share.value is None:
                continue
            x = result.level + shift
            if share.low is not None and share.high is not None:
                axes.plot([x, x], [share.low, share.high], color=colour, linewidth=1.2, alpha=1.0 if filled else 0.5)
            axes.plot(x, share.value, marker=marker, color=colour, markerfacecolor=colour if filled else "white", markersize=5, linestyle="none", label=label if at == 0 and filled else None)


def drift_path(drift: Drift, path: Path, name: str = "") -> Path:
    """Draw both e-values after every group of the last call to `watch`.

    Parameters
    ----------
    drift
        Its state with the trace.
    path
        The PNG file to write.
    name
        Of the strategy.
    """
    import numpy as np

    figure = new_figure(8, 4.0)
    axes = figure.subplots()
    n = len(drift.groups)
    at = np.arange(n - len(drift.trace) + 1, n + 1)
    for column, (colour, label) in enumerate((("#c05621", "more misses than predicted"), ("#1f5a8c", "fewer misses than predicted"))):
        axes.plot(at, drift.trace[:, column] / np.log(10), color=colour, linewidth=1.4, label=label)
    bar = float(np.log10(drift.bar))
    axes.axhline(bar, color="#333333", linewidth=0.9, linestyle="--")
    axes.annotate(f"alarm at {drift.bar:,.0f}: false alarms at most {drift.level:.0%}", (0.01, bar), xycoords=("axes fraction", "data"), xytext=(0, 3), textcoords="offset points", fontsize=8)
    if drift.first_alarm_at is not None:
        axes.axvline(drift.first_alarm_at, color="#888888", linewidth=0.9, linestyle=":")
        side, shift = ("right", -4) if 2 * drift.first_alarm_at > n else ("left", 4)
        axes.annotate(f"alarm after {drift.first_alarm_at:,} groups", (drift.first_alarm_at, 0.03), xycoords=("data", "axes fraction"), xytext=(shift, 0), textcoords="offset points", ha=side, fontsize=8)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -1.0), max(high, bar + 0.5))
    axes.set_ylabel("evidence, log10 of the e-value")
    axes.set_xlabel(f"independent groups of outcomes; a tolerance of {100 * drift.tolerance:.0f} points counts as no drift")
    means = f": missed {drift.sum_missed / n:.3f}, predicted {drift.sum_predicted / n:.3f} on average over {n:,} groups ({drift.n:,} outcomes)" if n else ": no outcomes"
    axes.set_title(f"{_plain(name)}{means}", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    _finish(axes)
    return save_figure(figure, path)


def _plain(name: str) -> str:
    """A name from outside, without controls, in which a dollar sign does not start a formula."""
    return quoted(name).replace("$", r"\$")


def _finish(axes: "Axes") -> None:
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
