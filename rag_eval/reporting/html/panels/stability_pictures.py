"""Pictures of the stability panel: shares of variance and states, semantic distance with its zones, recall by wording, flips between wordings.

Belongs here: drawing what the report holds. Nothing is computed.
"""

from markupsafe import Markup

from rag_eval.measures.stability import DELTA_S_TARGET, STABLE_BELOW, TRANSITIONAL_BELOW
from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.page import Page
from rag_eval.reporting.html.panels.parts import (
    WIDTH,
    ends_of,
    framed,
    label,
    legend_below,
    mark,
    rows_of,
    stacked,
    value_of,
)
from rag_eval.reporting.html.pictures import BAD, FOREGROUND, GOOD, LINE, MUTED, WARN, drawing, svg
from rag_eval.reporting.plots import MAX_WORDINGS, new_figure

APART = 1.04
SOURCES = {
    "query": ("question", (MUTED, 0.35)),
    "paraphrase": ("wording", (WARN, 0.5)),
    "seed": ("seed", (BAD, 0.6)),
}
STATES = {
    "convergent": (GOOD, 0.55),
    "recursive": (WARN, 0.25),
    "divergent": (WARN, 0.55),
    "chaotic": (BAD, 0.5),
    "undefined": (MUTED, 0.25),
}
FULL_CELLS = 6
"""From so many wordings on the cells of a flip matrix hold no sample sizes: the table does."""
STRONGEST = 0.6
"""Opacity of a cell in which every question flips: figures in the page's own colour can be read on it."""


def _bars(
    names: list[str],
    parts: dict[str, list[float]],
    colours: dict[str, tuple[str, float]],
    *,
    slug: str,
    title: str,
    said: str,
) -> Markup:
    with drawing():
        figure = new_figure(WIDTH, 1.35 + 0.34 * len(names))
        axes = figure.subplots()
        stacked(axes, names, parts, colours)
        axes.set_title(title)
    return framed(svg(figure, slug, title, said))


def variance(page: Page, strategies: Cursor) -> Markup | None:
    """Draw how the variance of recall@10 divides into question, wording and seed; None where no strategy knows."""
    names = [
        name
        for name in page.strategies
        if name in strategies
        and any(value_of(strategies[name], "variance_shares", key) is not None for key in SOURCES)
    ]
    if not names:
        return None
    parts = {
        words: [value_of(strategies[name], "variance_shares", key) or 0.0 for name in names]
        for key, (words, _) in SOURCES.items()
    }
    shown = {words: shares for words, shares in parts.items() if any(shares)}
    said = "Shares of the variance of recall@10 between questions, between wordings of a question, and between seeds of a wording. A large share of wordings says that how a question is put decides whether it is answered."
    return _bars(
        names,
        shown,
        dict(SOURCES.values()),
        slug="stability-variance",
        title="variance of R@10",
        said=said,
    )


def states(page: Page, strategies: Cursor) -> Markup | None:
    """Draw the shares of questions by lambda state; None where there are none."""
    names = [
        name
        for name in page.strategies
        if name in strategies
        and value_of(strategies[name], "lambda", "convergent", "share") is not None
    ]
    if not names:
        return None
    parts = {
        state: [value_of(strategies[name], "lambda", state, "share") or 0.0 for name in names]
        for state in STATES
    }
    said = "Shares of questions by what their wordings and seeds bring: convergent, the same evidence; recursive, the seed decides the hit; divergent, the wording decides it or the order drifts; chaotic, the lists have almost nothing in common."
    shown = {state: shares for state, shares in parts.items() if any(shares)}
    return _bars(
        names, shown, STATES, slug="stability-states", title="lambda states of questions", said=said
    )


def disjoint(about: Cursor) -> bool:
    """Whether both the distance to gold and that to the decoy are known, of no question both."""
    return (
        value_of(about, "to_anchor", "value") is not None
        and value_of(about, "to_decoy", "value") is not None
        and not value_of(about, "anchor_and_decoy_equally_close", "n_scored")
    )


def distance(page: Page, strategies: Cursor) -> Markup | None:
    """Draw delta_s to the question, to gold and to the decoy over its zones; None where no strategy has one."""
    names = [
        name
        for name in page.strategies
        if name in strategies and value_of(strategies[name], "delta_s", "value") is not None
    ]
    if not names:
        return None
    with drawing():
        figure = new_figure(WIDTH, 1.55 + 0.42 * len(names))
        axes = figure.subplots()
        for low, high, colour in (
            (0.0, STABLE_BELOW, GOOD),
            (STABLE_BELOW, TRANSITIONAL_BELOW, WARN),
            (TRANSITIONAL_BELOW, 1.0, BAD),
        ):
            axes.axvspan(low, high, color=colour, alpha=0.13, linewidth=0)
        axes.axvline(DELTA_S_TARGET, color=FOREGROUND, linewidth=1.0, linestyle=(0, (4, 3)))
        rows_of(axes, names, grid=False)
        for row, name in enumerate(names):
            about, colour = strategies[name]["delta_s"], page.colour(name)
            mark(axes, about, row - 0.2, colour, size=6)
            mark(axes, about["to_anchor"], row + 0.05, colour, marker="D", hollow=True, size=4.5)
            mark(axes, about["to_decoy"], row + 0.28, MUTED, marker="x", size=5)
        for words, style, colour in (
            ("question", "o", FOREGROUND),
            ("gold evidence", "D", FOREGROUND),
            ("decoy", "x", MUTED),
        ):
            axes.plot(
                [],
                [],
                style,
                color=colour,
                markerfacecolor="none" if style == "D" else colour,
                markersize=5.5,
                label=words,
            )
        axes.set_xlim(0, 1)
        axes.set_title("ΔS, distance of the first ten to …")
        legend_below(axes)
    said = "Semantic distance of the first ten results to the question, to the gold evidence and to the decoy, with 95 % intervals. Tinted: the stable, the transitional and the risk zone; dashed: the target."
    apart = any(disjoint(strategies[name]["delta_s"]) for name in names)
    compared = (
        "Gold and decoy: means over different questions, not to be held against each other."
        if apart
        else "Results that lie as close to the decoy as to the gold do not tell them apart."
    )
    return framed(
        svg(figure, "stability-distance", "Semantic distance with its zones", f"{said} {compared}"),
        compared,
    )


def by_wording(page: Page, strategies: Cursor) -> Markup | None:
    """Draw recall@10 of each question's worst wording, of the mean and of the best; None where no strategy has any."""
    names = [
        name
        for name in page.strategies
        if name in strategies
        and value_of(strategies[name], "recall_at_10_by_wording", "mean", "value") is not None
    ]
    if not names:
        return None
    with drawing():
        figure = new_figure(WIDTH, 1.35 + 0.42 * len(names))
        axes = figure.subplots()
        rows_of(axes, names)
        for row, name in enumerate(names):
            about = strategies[name]["recall_at_10_by_wording"]
            for shift, key, marker in (
                (-0.2, "best", "^"),
                (0.0, "mean", "o"),
                (0.2, "worst", "v"),
            ):
                mark(
                    axes,
                    about[key],
                    row + shift,
                    page.colour(name),
                    marker=marker,
                    hollow=key != "mean",
                )
        for words, style in (("best", "^"), ("mean", "o"), ("worst", "v")):
            axes.plot(
                [],
                [],
                style,
                color=FOREGROUND,
                markerfacecolor=FOREGROUND if words == "mean" else "none",
                markersize=5.5,
                label=words,
            )
        axes.set_xlim(0, 1)
        axes.set_title("R@10 by wording of a question")
        legend_below(axes)
    said = "Mean over questions of recall@10 of the best wording, of all wordings and of the worst wording, with 95 % intervals. The distance between worst and best is what a user gains or loses by the choice of words."
    return framed(
        svg(figure, "stability-wordings", "Recall of the worst, mean and best wording", said)
    )


def changes(page: Page, strategies: Cursor) -> Markup | None:
    """Draw the share of questions whose hit changes with wording or seed, by k; None where no question has several wordings."""
    with drawing():
        figure = new_figure(WIDTH, 3.3)
        axes = figure.subplots()
        axes.grid(axis="y", color=LINE)
        cutoffs: set[int] = set()
        for at, name in enumerate(name for name in page.strategies if name in strategies):
            found = sorted(
                (int(key.removeprefix("hit_at_")), entry)
                for key, entry in strategies[name]["hit_changes_with_wording"].items()
                if value_of(entry, "value") is not None
            )
            places = [k * APART ** (at - (len(page.strategies) - 1) / 2) for k, _ in found]
            for place, (_, entry) in zip(places, found, strict=True):
                axes.plot(
                    [place, place],
                    ends_of(entry, entry["value"].value),
                    color=page.colour(name),
                    linewidth=1.3,
                    alpha=0.5,
                )
            axes.plot(
                places,
                [entry["value"].value for _, entry in found],
                "o-",
                color=page.colour(name),
                markersize=4,
                linewidth=1.5,
                label=label(name),
            )
            cutoffs.update(k for k, _ in found)
        if not cutoffs:
            return None
        axes.set_xscale("log")
        axes.set_xticks(sorted(cutoffs), [str(k) for k in sorted(cutoffs)])
        axes.minorticks_off()
        axes.set(ylim=(0, 1), xlabel="k")
        axes.set_title("hit@k changes with the wording")
        legend_below(axes)
    said = "Share of questions that have gold among the first k under some wording or seed and not under another, with 95 % intervals."
    return framed(svg(figure, "stability-changes", "Questions whose hit changes", said))


def flips(page: Page, name: str, matrix: Cursor) -> Markup | None:
    """Draw the flip matrix of one strategy; None where there is one wording, or more than can be read."""
    wordings = matrix["wordings"].value
    if not 1 < len(wordings) <= MAX_WORDINGS:
        return None
    share, n = matrix["share"].value, matrix["n"].value
    names = [label(wording, 14) for wording in wordings]
    with drawing():
        figure = new_figure(WIDTH, 0.9 + min(0.62 * (len(names) - 1), 3.4))
        axes = figure.subplots()
        for row, cells in enumerate(share):
            for column, cell in enumerate(cells[:row]):  # it is the same on the other side
                axes.axvspan(
                    column,
                    column + 1,
                    1 - row / (len(names) - 1),
                    1 - (row - 1) / (len(names) - 1),
                    color=page.colour(name),
                    alpha=0.06 + STRONGEST * (cell or 0.0),
                    linewidth=0,
                )
                written = (
                    "–"
                    if cell is None
                    else f"{cell:.2f}"
                    + (f"\nn={n[row][column]}" if len(names) < FULL_CELLS else "")
                )
                axes.text(
                    column + 0.5,
                    row + 0.5,
                    written,
                    ha="center",
                    va="center",
                    fontsize=8 if len(names) < FULL_CELLS else 6.5,
                    color=FOREGROUND,
                )
        middle = [at + 0.5 for at in range(len(names))]
        axes.set_xticks(middle[:-1], names[:-1], rotation=0 if len(names) < FULL_CELLS else 60)
        axes.set_yticks(middle[1:], names[1:])
        axes.set(xlim=(0, len(names) - 1), ylim=(len(names), 1))
        axes.tick_params(length=0)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.set_title(label(name, 40))
    said = f"Share of questions that {name} finds under one of two wordings and misses under the other, at ten results; darker is more. The table holds the figures."
    return framed(
        svg(figure, f"flips-{page.strategies.index(name)}", f"Flips between wordings, {name}", said)
    )
