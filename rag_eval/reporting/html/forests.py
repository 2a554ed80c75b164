"""Small pictures that several panels share: rows of estimates with their intervals, and how a name from outside becomes a label.

Belongs here: drawing. What is drawn is the business of the panels; how a figure becomes markup is `pictures`.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor, bounds
from rag_eval.reporting.html.pictures import LINE, MUTED, drawing, svg
from rag_eval.reporting.html.untrusted import visible
from rag_eval.reporting.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.1
MAX_LABEL = 26
ROW, FRAME = 0.27, 0.85
"""Inches of a row, and of title and axis."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One estimate of a picture.

    Parameters
    ----------
    name
        What it is of; cut where it is long.
    of
        The estimate in the report; a row without one stays empty.
    colour
        One of `pictures`.
    key
        Which key of the estimate holds its value.
    strong
        Whether its point is larger.
    target
        A value to be met, drawn as a short stroke.
    """

    name: str
    of: Cursor | None
    colour: str
    key: str = "value"
    strong: bool = False
    target: float | None = None


def label(name: str, length: int = MAX_LABEL) -> str:
    """Make a label of a name from outside: what is invisible written out, one line, cut where it is long."""
    shown = " ".join(visible(name[: 4 * length]).split())
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"


@contextlib.contextmanager
def plotted(height: float, width: float = WIDTH) -> Iterator["Axes"]:
    """Make axes in the page's manner; a letter that the font lacks is the browser's business, since texts stay texts."""
    with drawing(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = new_figure(width, height)
        yield figure.subplots()


def shown(axes: "Axes", slug: str, title: str, description: str, caption: str = "") -> Markup:
    """Write the picture of some axes, with a caption where there is one; within `plotted`."""
    figure = axes.get_figure(root=True)
    if figure is None:
        raise ValueError("axes without a figure")
    below = (
        Markup('<figcaption class="prose">{}</figcaption>').format(caption) if caption else Markup()
    )
    return Markup("<figure>{}{}</figure>").format(svg(figure, slug, title, description), below)


def plots(pictures: Sequence[Markup]) -> Markup:
    """Set pictures side by side where there is room; nothing where there are none."""
    return (
        Markup('<div class="plots">{}</div>').format(Markup().join(pictures))
        if pictures
        else Markup()
    )


def said(rows: Sequence[Row]) -> str:
    """Say in words what a picture of estimates shows."""
    parts = []
    for row in rows:
        value = None if row.of is None else row.of[row.key].value
        ends = None if row.of is None else bounds(row.of)
        parts.append(
            f"{label(row.name)}: none"
            if value is None
            else f"{label(row.name)}: {value:.3f}"
            + ("" if ends is None else f", interval {ends[0].value:.3f} to {ends[1].value:.3f}")
        )
    return "; ".join(parts)


def forest(
    rows: Sequence[Row],
    slug: str,
    title: str,
    axis: str,
    *,
    limits: tuple[float, float] | None = (0, 1),
    reference: Cursor | None = None,
    head: str = "",
) -> Markup:
    """Draw estimates as points with their 95 % intervals, a row each; nothing where no row has a value.

    Parameters
    ----------
    rows
        From top to bottom.
    slug, title
        Of the picture.
    axis
        What the axis measures.
    limits
        Of the axis; None lets the estimates decide.
    reference
        A figure drawn as a dotted line through all rows.
    head
        Heading above the axes; the title where there is none.
    """
    if all(row.of is None or row.of[row.key].value is None for row in rows):
        return Markup()
    with plotted(FRAME + ROW * len(rows)) as axes:
        if reference is not None and reference.value is not None:
            axes.axvline(reference.value, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
        for place, row in enumerate(rows):
            if row.target is not None:
                axes.plot(
                    [row.target] * 2, [place - 0.36, place + 0.36], color=MUTED, linewidth=1.6
                )
            value = None if row.of is None else row.of[row.key].value
            if row.of is None or value is None:
                continue
            ends = bounds(row.of)
            if ends is not None:
                axes.plot(
                    [ends[0].value, ends[1].value],
                    [place, place],
                    color=row.colour,
                    linewidth=2.2,
                    solid_capstyle="butt",
                )
            axes.plot(
                [value],
                [place],
                "o",
                color=row.colour,
                markersize=6.5 if row.strong else 5,
                clip_on=False,
                zorder=3,
            )
        axes.set_yticks(range(len(rows)), [label(row.name) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        if limits is not None:
            axes.set_xlim(limits[0], limits[1])
        axes.margins(x=0.06)
        axes.locator_params(axis="x", nbins=5, steps=[1, 2, 5, 10])
        axes.grid(axis="x", color=LINE)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(axis)
        axes.set_title(head or title)
        return shown(axes, slug, title, said(rows))
