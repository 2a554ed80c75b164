"""Measures: forest plot of the strategies, the figures behind it, and paired differences."""

from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from rag_eval.reporting.html.page import Page, Panel
from rag_eval.reporting.html.panels.parts import label as short
from rag_eval.reporting.html.pictures import LINE, drawing, svg
from rag_eval.reporting.html.tables import Column, Estimate, Number, Table, Words
from rag_eval.reporting.plots import new_figure

if TYPE_CHECKING:
    from rag_eval.reporting.html.figures import Cursor

SHOWN = ("R@10", "RR", "nDCG@10", "Success@10", "P@10")
PLOTTED = SHOWN[:4]


def labels(page: Page) -> list[str]:
    """Measures of the headline level that the run has, in the order shown; R@k of other k where it has no R@10."""
    there = {
        str(record["label"].value)
        for entry in page.report["strategies"]
        for record in entry["measures"]
        if record["level"].value == page.level
    }
    return [label for label in SHOWN if label in there] or sorted(there)[:4]


def forest(page: Page) -> Markup:
    """Draw a small panel a measure, a row a strategy: point and 95 % interval."""
    wanted = [label for label in labels(page) if label in PLOTTED]
    pictures = []
    for label in wanted:
        with drawing():
            figure = new_figure(4.1, 0.75 + 0.3 * len(page.strategies))
            axes = figure.subplots()
            for row, name in enumerate(page.strategies):
                record = page.measure(name, label)
                if record is None or record["value"].value is None:
                    continue
                value = record["value"].value
                low, high = (
                    value if record[key].value is None else record[key].value
                    for key in ("ci_low", "ci_high")
                )
                axes.plot(
                    [low, high],
                    [row, row],
                    color=page.colour(name),
                    linewidth=2.2,
                    solid_capstyle="butt",
                )
                axes.plot(
                    [value],
                    [row],
                    "o",
                    color=page.colour(name),
                    markersize=6.5 if name == page.primary else 5,
                    clip_on=False,
                    zorder=3,
                )
            axes.set_yticks(range(len(page.strategies)), [short(name) for name in page.strategies])
            axes.set_ylim(len(page.strategies) - 0.4, -0.6)
            axes.set_xlim(0, 1)
            axes.grid(axis="x", color=LINE)
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
            axes.set_title(label)
            pictures.append(
                Markup("<figure>{}</figure>").format(
                    svg(
                        figure,
                        f"forest-{label.lower().replace('@', '-')}",
                        f"{label} by strategy with 95 % intervals",
                        _said(page, label),
                    )
                )
            )
    return Markup('<div class="plots">{}</div>').format(Markup().join(pictures))


def _said(page: Page, label: str) -> str:
    records: list[tuple[str, Any]] = [(name, page.measure(name, label)) for name in page.strategies]
    return "; ".join(
        f"{name} {record['value'].value:.3f}"
        for name, record in records
        if record is not None and record["value"].value is not None
    )


def _table(page: Page) -> Table:
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("kind", "kind", figures=False),
        *(Column(label.lower().replace("@", "_at_"), label) for label in labels(page)),
        Column("scored", "n scored"),
        Column("groups", "groups"),
    ]
    rows = []
    for name in page.strategies:
        first = page.measure(name, labels(page)[0])
        rows.append(
            [
                page.series(page.strategy(name)["name"]),
                Words(page.strategy(name)["kind"]),
                *(Estimate(page.measure(name, label)) for label in labels(page)),
                Number(None if first is None else first["n_scored"]),
                Number(None if first is None else first["n_groups"]),
            ]
        )
    return Table(
        "measures",
        "Measures at the headline level, 95 % intervals over groups of questions",
        columns,
        rows,
    )


def differences(page: Page) -> Table:
    """Paired differences, those with the primary strategy first."""
    columns = [
        Column("a", "strategy", figures=False),
        Column("b", "against", figures=False),
        Column("measure", "measure", figures=False),
        Column("delta", "difference", "mean over questions of strategy minus the other"),
        Column("better", "better", "questions on which the first is better"),
        Column("worse", "worse"),
        Column("tied", "tied"),
        Column("groups", "groups"),
        Column(
            "p",
            "p (Holm)",
            "sign-flip permutation test over groups, adjusted over all comparisons shown",
        ),
        Column(
            "detectable",
            "smallest detectable",
            "the smallest difference that this gold set can tell from none, 80 % power",
        ),
    ]
    rows: list[Cursor] = sorted(
        page.report["comparisons"],
        key=lambda row: (page.primary not in {row["a"].value, row["b"].value}, row.path[-1]),
    )
    cells = [
        [
            page.series(row["a"]),
            page.series(row["b"]),
            Words(row["measure"]),
            Estimate(row, signed=True, key="delta"),
            *(Number(row[key]) for key in ("n_better", "n_worse", "n_tied", "n_groups")),
            Number(row["p_adjusted"], 4),
            Number(row["minimum_detectable"]),
        ]
        for row in rows
    ]
    return Table(
        "paired-differences",
        "Paired differences between strategies, on the same questions",
        columns,
        cells,
    )


def panel(page: Page) -> Panel:
    """Make the panel."""
    table, paired = _table(page), differences(page)
    return Panel(
        "Measures by strategy",
        "measures.html",
        {"forest": forest(page), "table": table, "paired": paired},
        (table, paired),
    )
