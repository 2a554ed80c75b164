"""What several panels draw and write alike: labels of pictures, rows of estimates, stacked shares, counts in words.

Belongs here: shapes without a meaning of their own. What is shown is the business of the panels.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor, bounds
from rag_eval.reporting.html.pictures import FOREGROUND, LINE, MUTED, PANEL
from rag_eval.reporting.html.untrusted import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rag_eval.reporting.html.page import Page

WIDTH = 3.75
"""Inches of a picture: three stand side by side on a wide screen, one below the other on a phone."""
NAME_CHARS = 24
LEGEND_CHARS = 66
"""About how many letters of a legend stand side by side in a picture."""
READABLE = 0.09
"""Share of the width from which on a figure is written into its bar."""
_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_TWENTY, _HUNDRED, _THOUSAND = 20, 100, 1000
_LAST_OF_THE_FONT = 0x24F
"""Latin letters; the font that measures labels may lack what comes after them."""


def down(cursor: Cursor | None, *keys: str | int) -> Cursor | None:
    """Walk down; where the way ends at a null, that null, which knows its reason; None where the report has no such place."""
    for key in keys:
        if cursor is None or cursor.value is None:
            return cursor
        there = (
            key in cursor
            if isinstance(key, str)
            else isinstance(cursor.value, list) and key < len(cursor)
        )
        cursor = cursor[key] if there else None
    return cursor


def reason_of(cursor: Cursor) -> Cursor | str:
    """Find the sentence beside a null that says why it is one, where the report has it; else in the page's words."""
    beside = None if cursor.parent is None else cursor.parent.get(f"{cursor.path[-1]}_reason")
    return cursor.reason if beside is None else beside


def alike(
    page: "Page", said: Sequence[tuple[str, Cursor | str]]
) -> list[tuple[Markup, Cursor | str]]:
    """Put strategies of which the same is said together: their names, and the sentence once."""
    together: dict[str, tuple[list[Markup], Cursor | str]] = {}
    for name, sentence in said:
        together.setdefault(
            str(sentence.value if isinstance(sentence, Cursor) else sentence), ([], sentence)
        )[0].append(page.swatch(name))
    return [(Markup(", ").join(names), sentence) for names, sentence in together.values()]


def value_of(cursor: Cursor | None, *keys: str | int) -> float | None:
    """Read a figure for a picture; None where there is none."""
    found = down(cursor, *keys)
    return (
        None
        if found is None
        or isinstance(found.value, bool)
        or not isinstance(found.value, (int, float))
        else float(found.value)
    )


def ends_of(cursor: Cursor, value: float) -> tuple[float, float]:
    """Read the interval of an estimate for a picture; the value itself twice where it states none."""
    ends = bounds(cursor)
    return (value, value) if ends is None else (float(ends[0].value), float(ends[1].value))


def by_strategy(page: "Page", place: Cursor) -> list[tuple[str, Cursor]]:
    """Names and entries of an object by strategy, in the order of the page's strategies; one that is not there is left out."""
    return [(name, place[name]) for name in page.strategies if name in place]


def label(text: str, limit: int = NAME_CHARS) -> str:
    """Write a name for a picture: one line, bounded, only letters that the picture's font can measure.

    Examples
    --------
    >>> label("a strategy with a name that goes on and on")
    'a strategy with a name …'
    """
    line = "".join(
        char if ord(char) <= _LAST_OF_THE_FONT else "?" for char in " ".join(visible(text).split())
    )
    return line if len(line) <= limit else line[: limit - 1] + "…"


def in_words(count: int) -> str:
    """Write a count in words, so that it is not taken for a figure of the report.

    Examples
    --------
    >>> in_words(85), in_words(240), in_words(1007)
    ('eighty-five', 'two hundred and forty', 'more than a thousand')
    """
    if count < _TWENTY:
        return _ONES[count]
    if count < _HUNDRED:
        return _TENS[count // 10 - 2] + (f"-{_ONES[count % 10]}" if count % 10 else "")
    if count < _THOUSAND:
        return f"{_ONES[count // 100]} hundred" + (
            f" and {in_words(count % 100)}" if count % 100 else ""
        )
    return "more than a thousand"


def rows_in_words(count: int) -> str:
    """Say in words how many rows a folded table has."""
    return "one row" if count == 1 else f"{in_words(count)} rows"


def framed(picture: Markup, caption: Markup | str = "") -> Markup:
    """Put a picture into its figure."""
    below = Markup("<figcaption>{}</figcaption>").format(caption) if caption else Markup()
    return Markup("<figure>{}{}</figure>").format(picture, below)


def rows_of(axes: "Axes", names: Sequence[str], *, grid: bool = True) -> None:
    """Prepare axes with a row for each name, the first on top."""
    axes.set_yticks(range(len(names)), [label(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    if grid:
        axes.grid(axis="x", color=LINE)


def mark(
    axes: "Axes",
    cursor: Cursor | None,
    row: float,
    colour: str,
    *,
    marker: str = "o",
    hollow: bool = False,
    size: float = 5.5,
    key: str = "value",
) -> None:
    """Draw an estimate in a row: point and interval; nothing where there is none."""
    value = value_of(cursor, key)
    if cursor is None or value is None:
        return
    low, high = ends_of(cursor, value)
    axes.plot(
        [low, high],
        [row, row],
        color=colour,
        linewidth=1.3 if hollow else 2.0,
        solid_capstyle="butt",
    )
    axes.plot(
        [value],
        [row],
        marker=marker,
        linestyle="none",
        color=colour,
        markerfacecolor=PANEL if hollow else colour,
        markersize=size,
    )


def stacked(
    axes: "Axes",
    names: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    colours: Mapping[str, tuple[str, float]],
) -> None:
    """Draw shares that add up to one as a bar a row, each with its figure where there is room; `colours` holds colour and opacity by part."""
    rows_of(axes, names, grid=False)
    left = [0.0] * len(names)
    for part, shares in parts.items():
        colour, alpha = colours[part]
        axes.barh(
            range(len(names)),
            shares,
            left=left,
            height=0.66,
            color=colour,
            alpha=alpha,
            linewidth=0,
            label=part,
        )
        for row, share in enumerate(shares):
            if share >= READABLE:
                axes.text(
                    left[row] + share / 2,
                    row,
                    f"{share:.2f}",
                    ha="center",
                    va="center",
                    fontsize=8.5,
                    color=FOREGROUND if alpha < 1 else PANEL,
                )
        left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.set_xlim(0, 1)
    legend_below(axes, columns=min(len(parts), 3))


def legend_below(axes: "Axes", *, columns: int = 3, lift: float = 0.0) -> None:
    """Write the legend below a picture, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if labels and axes.figure is not None:
        columns = max(
            1, min(columns, LEGEND_CHARS // (max(map(len, labels)) + 4))
        )  # a legend wider than its picture squeezes the axes and is cut
        axes.figure.legend(
            handles,
            labels,
            loc="outside lower left",
            ncols=columns,
            fontsize=8.5,
            labelcolor=MUTED,
            handlelength=1.4,
            columnspacing=1.2,
            borderaxespad=lift,
        )
