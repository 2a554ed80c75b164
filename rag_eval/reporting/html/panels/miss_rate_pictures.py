"""Pictures of the miss-rate panel: reliability, observed against predicted, what outcomes bring, what conformal K covers.

Belongs here: drawing what the report holds. Nothing is computed.
"""

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor, denominator, interval, number
from rag_eval.reporting.html.page import Page
from rag_eval.reporting.html.panels.parts import (
    WIDTH,
    down,
    ends_of,
    framed,
    label,
    legend_below,
    mark,
    rows_of,
    value_of,
)
from rag_eval.reporting.html.pictures import BAD, FOREGROUND, LINE, MUTED, drawing, svg
from rag_eval.reporting.plots import new_figure

APART = 1.045
"""Factor between the places of two strategies on a logarithmic axis, so that their bars do not hide each other."""
MARKERS = "osD^vPX*"
METHODS = {
    "fixed": "one K",
    "adaptive": "K by risk",
    "mondrian": "K by third",
    "recall": "one K, recall",
}


def reliability(page: Page, name: str, entry: Cursor) -> Markup | None:
    """Draw the CORP reliability diagram of one strategy with its histogram; None where no prediction was checked."""
    about = down(entry, "validation")
    if about is None or about.value is None:
        return None
    curve, band, counts = (
        about["corp"]["curve"].value,
        about["corp"]["band"].value,
        about["histogram"].value,
    )
    with drawing():
        figure = new_figure(WIDTH, 4.0)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        upper.grid(color=LINE)
        if band["at"]:
            upper.fill_between(
                band["at"],
                band["low"],
                band["high"],
                color=MUTED,
                alpha=0.2,
                linewidth=0,
                label="calibrated predictions, 95 %",
            )
        upper.plot([0, 1], [0, 1], color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        crude = down(entry, "heuristic_v0", "corp", "curve")
        if crude is not None and crude.value is not None:
            upper.plot(
                crude["predicted"].value,
                crude["recalibrated"].value,
                color=BAD,
                linewidth=1.1,
                linestyle=":",
                label="heuristic_v0",
            )
        upper.plot(
            curve["predicted"],
            curve["recalibrated"],
            color=page.colour(name),
            linewidth=1.9,
            label="recalibrated (isotonic)",
        )
        upper.set(xlim=(0, 1), ylim=(-0.02, 1.02), ylabel="observed share of misses")
        upper.set_aspect("auto")
        upper.set_title(label(name, 40))
        bins = len(counts)
        lower.bar(
            [(at + 0.5) / bins for at in range(bins)],
            counts,
            width=0.92 / bins,
            color=page.colour(name),
            alpha=0.75,
            linewidth=0,
        )
        lower.set(xlabel="predicted probability of a miss", ylabel="outcomes")
        legend_below(upper, columns=2)
    said = f"Isotonic regression of the outcomes on the predictions of {name}, made without the outcome's own group. On the diagonal predictions are calibrated; inside the band they differ from it by no more than chance. Below, how many outcomes had which prediction."
    picture = svg(
        figure,
        f"corp-{page.strategies.index(name)}",
        f"Reliability of predicted miss rates, {name}",
        said,
    )
    caption = Markup("{} skill {}; {} outcomes in {} groups, {} misses").format(
        page.swatch(name),
        interval(about["skill"], 2),
        number(about["n"]),
        number(about["groups"]),
        number(about["misses"]),
    )
    return framed(picture, caption)


def against(page: Page, strategies: Cursor) -> Markup | None:
    """Draw what was observed against what was stated, a point a strategy; None where no strategy states a miss rate."""
    shown = [
        name
        for name in page.strategies
        if name in strategies
        and value_of(strategies[name]["stated"], "value") is not None
        and value_of(strategies[name], "observed", "miss_any", "value") is not None
    ]
    target = str(page.report["uncertainty"]["target"].value)
    if not shown:
        return None
    with drawing():
        figure = new_figure(WIDTH, 4.0)
        axes = figure.subplots()
        axes.grid(color=LINE)
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        for at, name in enumerate(shown):
            stated, observed = strategies[name]["stated"], strategies[name]["observed"][target]
            x, y = value_of(stated, "value"), value_of(observed, "value")
            if x is None or y is None:
                continue
            axes.plot(
                ends_of(stated, x), [y, y], color=page.colour(name), linewidth=1.4, alpha=0.75
            )
            axes.plot(
                [x, x], ends_of(observed, y), color=page.colour(name), linewidth=1.4, alpha=0.75
            )
            axes.plot(
                [x],
                [y],
                MARKERS[at % len(MARKERS)],
                color=page.colour(name),
                markersize=6,
                label=label(name),
            )
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="stated, mean over questions", ylabel="observed")
        axes.set_title("observed against stated, this run")
        legend_below(axes)
    said = "Each strategy's observed miss rate over the mean of the miss rates that this run stated for the same questions, both with 95 % intervals. Above the diagonal a strategy misses more than it says."
    return framed(svg(figure, "miss-against", "Observed against stated miss rates", said))


def three(page: Page, comparison: Cursor) -> Markup:
    """Draw, a row a strategy, the observed, the calibrated and the uncalibrated miss rate of the same questions."""
    entries = list(comparison["strategies"])
    with drawing():
        figure = new_figure(WIDTH, max(4.0, 1.35 + 0.42 * len(entries)))
        axes = figure.subplots()
        rows_of(axes, [str(entry["name"].value) for entry in entries])
        for row, entry in enumerate(entries):
            name = str(entry["name"].value)
            colour = page.colour(name) if name in page.strategies else MUTED
            mark(axes, entry["observed"], row - 0.22, colour, size=6)
            mark(axes, entry["calibrated"], row, colour, marker="D", hollow=True)
            mark(axes, down(entry, "raw"), row + 0.22, MUTED, marker="x")
        for words, style, colour in (
            ("observed", {"marker": "o"}, FOREGROUND),
            ("calibrated", {"marker": "D", "markerfacecolor": "none"}, FOREGROUND),
            ("heuristic_v0", {"marker": "x"}, MUTED),
        ):
            axes.plot([], [], linestyle="none", color=colour, markersize=5.5, label=words, **style)  # type: ignore[arg-type]
        axes.set_xlim(0, 1)
        axes.set_title("questions as first put, three estimates")
        legend_below(axes)
    said = "A row a strategy, each question as it was first put, under the first seed: the miss rate seen in outcomes, the mean of the calibrated miss rates that were predicted out of fold, and the mean of the uncalibrated heuristic, with 95 % intervals. Calibration worked where the first two lie together."
    return framed(
        svg(figure, "miss-three", "Observed, calibrated and uncalibrated miss rates", said),
        denominator(comparison),
    )


def learning(page: Page, strategies: Cursor) -> Markup | None:
    """Draw Brier skill on held-out groups by number of outcomes trained on; None where no strategy has such a curve."""
    curves = {
        name: [
            point
            for point in strategies[name]["learning_curve"]
            if point["skill"].value is not None
        ]
        for name in page.strategies
        if name in strategies
    }
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        return None
    with drawing():
        figure = new_figure(WIDTH, 4.0)
        axes = figure.subplots()
        axes.grid(axis="y", color=LINE)
        axes.axhline(0, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        for at, (name, points) in enumerate(curves.items()):
            places = [
                point["outcomes"].value * APART ** (at - (len(curves) - 1) / 2) for point in points
            ]
            for place, point in zip(places, points, strict=True):
                axes.plot(
                    [place, place],
                    ends_of(point, float(point["skill"].value)),
                    color=page.colour(name),
                    linewidth=1.3,
                    alpha=0.5,
                )
            axes.plot(
                places,
                [point["skill"].value for point in points],
                MARKERS[at % len(MARKERS)] + "-",
                color=page.colour(name),
                markersize=4.5,
                linewidth=1.5,
                label=label(name),
            )
        wanted = sorted(
            {int(point["wanted"].value) for points in curves.values() for point in points}
        )
        axes.set_xscale("log")
        axes.set_xticks(wanted, [f"{size:,}" for size in wanted])
        axes.minorticks_off()
        axes.set(xlabel="training outcomes", ylabel="Brier skill on held-out groups")
        axes.set_title("what outcomes bring")
        legend_below(axes)
    said = "Brier skill on groups that were held out, by number of outcomes trained on: mean over random draws, bars the middle 95 % of the draws. A curve that still rises says that more outcomes would help."
    return framed(svg(figure, "miss-learning", "Learning curves", said))


def coverage(page: Page, strategies: Cursor) -> Markup | None:
    """Draw, a small picture a level, what attainable conformal rules cover on held-out groups: of all questions and of the riskiest third; None where no rule is attainable."""
    found = [
        (name, rule)
        for name in page.strategies
        if name in strategies
        for rule in strategies[name]["conformal"]
        if rule["attainable"].value
    ]
    pictures = []
    for level in sorted({float(rule["level"].value) for _, rule in found}):
        mine = [(name, rule) for name, rule in found if rule["level"].value == level]
        with drawing():
            figure = new_figure(WIDTH, 1.35 + 0.3 * len(mine))
            axes = figure.subplots()
            rows_of(
                axes,
                [
                    f"{label(name, 18)}, {METHODS.get(rule['method'].value, label(rule['method'].value))}"
                    for name, rule in mine
                ],
            )
            axes.axvline(level, color=FOREGROUND, linewidth=1.0, linestyle=(0, (4, 3)))
            for row, (name, rule) in enumerate(mine):
                mark(axes, rule["coverage"], row - 0.14, page.colour(name))
                mark(axes, down(rule, "riskiest"), row + 0.16, page.colour(name), hollow=True)
            for words, face in (("all questions", FOREGROUND), ("riskiest third", "none")):
                axes.plot(
                    [], [], "o", color=FOREGROUND, markerfacecolor=face, markersize=5.5, label=words
                )
            axes.set_xlim(0, 1.02)
            axes.set_title(f"coverage, level {level:.0%}")
            legend_below(axes)
        said = f"Share of held-out questions with gold within the K of each attainable rule, for expected recall their mean recall, against the level of {level:.0%} that was asked for (dashed); hollow: the riskiest third of the questions. A rule may hold on average and fail where it matters."
        pictures.append(
            framed(
                svg(
                    figure,
                    f"miss-coverage-{level * 1000:.0f}",
                    f"Coverage of conformal K at {level:.0%}",
                    said,
                )
            )
        )
    return Markup().join(pictures) if pictures else None
