"""Pictures of the history panel: figures over nights with the places where they begin to be of something else, gates, the run before.

Belongs here: drawing. The tables and what is said of them are `history`.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor, bounds
from rag_eval.reporting.html.forests import Row, forest, label, plotted, shown
from rag_eval.reporting.html.page import Page
from rag_eval.reporting.html.pictures import BAD, GOOD, LINE, MUTED, PANEL, WARN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES: Final = (
    ("recall", "R@10", (0.0, 1.0)),
    ("mrr", "MRR", (0.0, 1.0)),
    ("miss_any", "observed miss rate", (0.0, 1.0)),
    ("skill", "Brier skill of the miss rate", None),
)
HASHES: Final = (("gold_hash", "gold"), ("chunks_hash", "chunks"), ("index_hash", "index"))
CODES: Final = {
    "gold_changed": "gold",
    "chunks_changed": "chunks",
    "index_changed": "index",
    "configuration_changed": "configuration",
    "strategies_changed": "strategies",
    "code_changed": "code",
}
BREAKING: Final = frozenset({"gold", "chunks", "index", "configuration"})
"""What figures are of; strategies that come and go and newer code leave the others' figures what they were of."""
GATES: Final = (("passed", GOOD), ("insufficient", WARN), ("failed", BAD))
MAX_LINES: Final = 8
MAX_DATES: Final = 6
MAX_POINTS: Final = 12
"""Runs up to which every one has its point; more are a line."""
MAX_NAMED: Final = 16
"""Breaks that are named in a picture; more would be written over each other, and stand in the table."""


def changed(before: Cursor, run: Cursor) -> list[str]:
    """Name what changed between two runs of what their figures rest on: by the report's codes, or by hashes where it has none."""
    if "reason_codes" in run:
        return [
            CODES.get(code, code.removesuffix("_changed")) for code in run.value["reason_codes"]
        ]
    return [name for key, name in HASHES if before[key].value != run[key].value]


def _figure(run: Cursor, strategy: str, key: str) -> Cursor | None:
    return run.get("strategies", strategy, key)


def lines(page: Page) -> list[str]:
    """Strategies that are drawn: those of this run, the primary one among them, at most as many as there are colours."""
    names = page.strategies[:MAX_LINES]
    return names if page.primary in names else [*names[:-1], page.primary]


def _breaks(axes: "Axes", runs: Sequence[Cursor]) -> list[int]:
    """Draw a line before every run that rests on something else, named by what; returns the places where no line may go through."""
    found = {at: names for at in range(1, len(runs)) if (names := changed(runs[at - 1], runs[at]))}
    for at, names in found.items():
        breaks = not BREAKING.isdisjoint(names)
        axes.axvline(at - 0.5, color=MUTED if breaks else LINE, linewidth=1, linestyle=(0, (3, 2)))
        if len(found) <= MAX_NAMED:
            ground = {
                "facecolor": PANEL,
                "edgecolor": "none",
                "pad": 1.0,
            }  # bars and bands lie behind some of the names
            axes.annotate(
                ", ".join(names),
                (at - 0.5, 1),
                xycoords=("data", "axes fraction"),
                xytext=(2, -2),
                textcoords="offset points",
                rotation=90,
                va="top",
                fontsize=7.5,
                color=MUTED,
                bbox=ground,
                zorder=5,
            )
    return [at for at, names in found.items() if not BREAKING.isdisjoint(names)]


def _dates(axes: "Axes", runs: Sequence[Cursor]) -> None:
    """Label some runs with their day."""
    last = len(runs) - 1
    places = (
        sorted({round(last * step / (MAX_DATES - 1)) for step in range(MAX_DATES)})
        if last >= MAX_DATES
        else list(range(len(runs)))
    )
    axes.set_xticks(places, [str(runs[at]["timestamp"].value)[5:10] for at in places])
    axes.set_xlim(-0.4, last + 0.4)


def split(places: Sequence[int], cut: Sequence[int]) -> list[list[int]]:
    """Split places where a line must not go through; a run without a figure splits too."""
    pieces: list[list[int]] = []
    for at in places:
        if pieces and at == pieces[-1][-1] + 1 and at not in cut:
            pieces[-1].append(at)
        else:
            pieces.append([at])
    return pieces


def line_picture(
    page: Page, runs: Sequence[Cursor], key: str, title: str, limits: tuple[float, float] | None
) -> Markup:
    """Draw one figure over the runs, a line a strategy, with the interval of the primary one as a band; nothing where no run has it."""
    names = [
        name
        for name in lines(page)
        if any(
            (of := _figure(run, name, key)) is not None and of["value"].value is not None
            for run in runs
        )
    ]
    if not names:
        return Markup()
    with plotted(2.5) as axes:
        cut, words = _breaks(axes, runs), []
        for name in names:
            found = {
                at: of
                for at, run in enumerate(runs)
                if (of := _figure(run, name, key)) is not None and of["value"].value is not None
            }
            for piece in split(list(found), cut):
                values = [found[at]["value"].value for at in piece]
                axes.plot(
                    piece,
                    values,
                    "-o" if len(piece) == 1 or len(runs) <= MAX_POINTS else "-",
                    color=page.colour(name),
                    linewidth=2 if name == page.primary else 1.2,
                    markersize=4,
                )
                ends = [(at, limit) for at in piece if (limit := bounds(found[at])) is not None]
                if name == page.primary and len(ends) > 1:
                    axes.fill_between(
                        [at for at, _ in ends],
                        [low.value for _, (low, _) in ends],
                        [high.value for _, (_, high) in ends],
                        color=page.colour(name),
                        alpha=0.15,
                        linewidth=0,
                    )
                elif name == page.primary:
                    for at, (low, high) in ends:
                        axes.plot(
                            [at, at],
                            [low.value, high.value],
                            color=page.colour(name),
                            linewidth=1.2,
                            alpha=0.6,
                        )
            last = found[max(found)]["value"].value
            words.append(
                f"{label(name)} {found[min(found)]['value'].value:.3f} at first, {last:.3f} at last"
            )
        bottom, top = limits or axes.get_ylim()
        axes.set_ylim(math.floor(10 * bottom) / 10, math.ceil(10 * top) / 10)
        _dates(axes, runs)
        axes.locator_params(axis="y", nbins=5, steps=[1, 2, 5, 10])
        axes.grid(axis="y", color=LINE)
        axes.set_title(title)
        return shown(
            axes,
            f"history-{key.replace('_', '-')}",
            f"{title} over the runs of this gold set",
            "; ".join(words),
        )


def gates_picture(runs: Sequence[Cursor]) -> Markup:
    """Draw how many gates passed, lacked evidence and failed in every run."""
    with plotted(2.5) as axes:
        _breaks(axes, runs)
        edges = [-0.5, *(at + 0.5 for at in range(len(runs)))]
        floor = [0] * len(runs)
        for key, colour in GATES:
            top = [
                below + (run["gates"][key].value or 0)
                for below, run in zip(floor, runs, strict=True)
            ]
            axes.stairs(
                top, edges, baseline=floor, fill=True, color=colour, alpha=0.75, linewidth=0
            )
            floor = top
        _dates(axes, runs)
        axes.set_xlim(-0.5, len(runs) - 0.5)
        axes.set_ylim(0, 1.35 * max(*floor, 1))
        axes.locator_params(axis="y", nbins=5, integer=True)
        axes.grid(axis="y", color=LINE)
        axes.set_title("Gates")
        last = runs[-1]["gates"].value
        words = f"this run: {last['passed']} passed, {last['insufficient']} without enough evidence, {last['failed']} failed"
        return shown(
            axes,
            "history-gates",
            "Gates by verdict over the runs of this gold set",
            words,
            "From below: passed, not enough evidence, failed.",
        )


def delta_picture(page: Page, previous: Cursor) -> Markup:
    """Draw the paired differences in recall from the run before."""
    rows = [
        Row(
            str(row["strategy"].value),
            row,
            page.colour(str(row["strategy"].value)),
            key="delta",
            strong=row["strategy"].value == page.primary,
        )
        for row in previous["deltas"]
        if row["measure"].value == "R@10" and row["strategy"].value in page.strategies
    ]
    ends = [
        abs(end)
        for row in rows
        if row.of is not None
        for key in ("delta", "ci_low", "ci_high")
        if (end := row.of[key].value) is not None
    ]
    widest = max([1.1 * end for end in ends] + [0.05])
    return (
        forest(
            rows,
            "history-previous",
            "R@10: this run minus the one before",
            "R@10, this run minus the one before",
            limits=(-widest, widest),
            reference=Cursor(0.0),
            head="Against the run before",
        )
        if rows
        else Markup()
    )
