"""Recall by K at document, section and span level, and how far strategies find the same."""

from typing import Final

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.page import Page, Panel
from rag_eval.reporting.html.panels.parts import (
    WIDTH,
    down,
    ends_of,
    framed,
    label,
    legend_below,
    reason_of,
    rows_of,
    value_of,
)
from rag_eval.reporting.html.pictures import FOREGROUND, LINE, MUTED, PANEL, drawing, svg
from rag_eval.reporting.html.tables import Column, Estimate, Number, Table, Words
from rag_eval.reporting.plots import new_figure

LEVELS: Final = ("document", "section", "span")
BANDS = 6
"""With more strategies only the primary one's band is drawn: of many nothing could be told apart."""
PAIRS = 12
"""With more pairs those of the primary strategy are drawn; the table holds all."""
BOTH = 0.85


def cutoffs(page: Page) -> list[int]:
    """Every k that recall is measured at, rising."""
    found = {
        str(record["label"].value)
        for entry in page.report["strategies"]
        for record in entry["measures"]
    }
    return sorted(int(name[2:]) for name in found if name.startswith("R@") and name[2:].isdecimal())


def curves(page: Page, level: str) -> Markup | None:
    """Draw recall@K of every strategy with its band at one level; None where no strategy is measured at it."""
    ks = cutoffs(page)
    drawn = 0
    with drawing():
        figure = new_figure(WIDTH, 3.5)
        axes = figure.subplots()
        axes.grid(axis="y", color=LINE)
        for name in sorted(
            page.strategies, key=lambda name: name == page.primary
        ):  # the primary one on top
            records = {
                k: record
                for k in ks
                if value_of(record := page.measure(name, f"R@{k}", level), "value") is not None
                and record is not None
            }
            if not records:
                continue
            drawn += 1
            values = [float(record["value"].value) for record in records.values()]
            ends = [
                ends_of(record, value)
                for record, value in zip(records.values(), values, strict=True)
            ]
            if len(records) == 1:
                axes.plot([*records] * 2, ends[0], color=page.colour(name), linewidth=1.3)
            elif len(page.strategies) <= BANDS or name == page.primary:
                axes.fill_between(
                    [*records],
                    [low for low, _ in ends],
                    [high for _, high in ends],
                    color=page.colour(name),
                    alpha=0.15,
                    linewidth=0,
                )
            axes.plot(
                [*records],
                values,
                "o-",
                color=page.colour(name),
                markersize=4,
                linewidth=2.2 if name == page.primary else 1.4,
                label=label(name),
            )
        if not drawn:
            return None
        axes.set_xscale("log")
        axes.set_xticks(ks, [str(k) for k in ks])
        axes.minorticks_off()
        axes.set(ylim=(0, 1), xlabel="K")
        axes.set_title(f"recall@K, {level}")
        legend_below(axes)
    said = f"Share of each question's gold at {level} level that is among the first K, mean over questions, with 95 % bands, a line a strategy; thick: the primary one."
    return framed(svg(figure, f"recall-{level}", f"Recall@K at {level} level", said))


def _table(page: Page) -> Table:
    ks = cutoffs(page)
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("level", "level", figures=False),
        *(Column(f"r_at_{k}", f"R@{k}") for k in ks),
        Column("questions", "questions"),
        Column("groups", "groups"),
    ]
    rows = []
    for level in LEVELS:
        for name in page.strategies:
            found = [page.measure(name, f"R@{k}", level) for k in ks]
            if any(record is not None for record in found):
                some = next(record for record in found if record is not None)
                rows.append(
                    [
                        page.series(page.strategy(name)["name"]),
                        Words(level),
                        *(Estimate(record) for record in found),
                        Number(some["n_scored"]),
                        Number(some["n_groups"]),
                    ]
                )
    return Table("recall", "Recall@K by level, 95 % intervals over groups", columns, rows)


def unmeasured(page: Page) -> list[tuple[str, str, Cursor | str]]:
    """Strategy, level and reason wherever no recall could be measured."""
    found: list[tuple[str, str, Cursor | str]] = []
    for name in page.strategies:
        for level in LEVELS:
            records = [
                record
                for k in cutoffs(page)
                if (record := page.measure(name, f"R@{k}", level)) is not None
            ]
            if not records:
                found.append((name, level, "this strategy was not measured at this level"))
            elif all(record["value"].value is None for record in records):
                found.append((name, level, reason_of(records[0]["value"])))
    return found


def overlaps(page: Page, overlap: Cursor) -> Table:
    """How far the lists of two strategies are the same, and what both, one or neither find."""
    k = overlap["k"].value
    columns = [
        Column("a", "strategy", figures=False),
        Column("b", "and", figures=False),
        Column(
            "overlap",
            f"overlap@{k}",
            f"share of the first {k} that both lists hold, mean over questions",
        ),
        Column("lists", "lists", "questions whose two lists are compared, answerable or not"),
        Column("groups", "groups", "independent groups of these questions"),
        Column("both", "both find", "answerable questions with gold in the first ten of both"),
        Column("only_a", "only the first"),
        Column("only_b", "only the second"),
        Column("neither", "neither"),
        Column("questions", "of questions", "answerable questions that both were judged on"),
    ]
    rows = []
    for pair in overlap["pairs"]:
        counts = [Number(pair[key]) for key in ("both", "only_a", "only_b", "neither", "n")]
        rows.append(
            [
                page.series(pair["a"]),
                page.series(pair["b"]),
                Estimate(pair["overlap"]),
                Number(down(pair, "overlap", "n_scored")),
                Number(down(pair, "overlap", "n_groups")),
                *counts,
            ]
        )
    return Table(
        "overlap", "What two strategies find alike, as the question was first put", columns, rows
    )


def found_by(page: Page, overlap: Cursor) -> Markup | None:
    """Draw, a bar a pair, how many questions both find, only one, and neither; None without pairs."""
    pairs = [pair for pair in overlap["pairs"] if pair["n"].value]
    if len(pairs) > PAIRS:
        pairs = [pair for pair in pairs if page.primary in {pair["a"].value, pair["b"].value}]
    if not pairs:
        return None
    with drawing():
        figure = new_figure(WIDTH, 1.2 + 0.36 * len(pairs))
        axes = figure.subplots()
        rows_of(axes, [""] * len(pairs), grid=False)
        axes.set_yticks(
            range(len(pairs)),
            [f"{label(pair['a'].value, 14)} / {label(pair['b'].value, 14)}" for pair in pairs],
        )
        widest = max(pair["n"].value for pair in pairs)
        for row, pair in enumerate(pairs):
            left = 0
            for key, colour, alpha in (
                ("both", MUTED, BOTH),
                ("only_a", page.colour(pair["a"].value), 1.0),
                ("only_b", page.colour(pair["b"].value), 1.0),
                ("neither", LINE, 1.0),
            ):
                count = pair[key].value or 0
                axes.barh(
                    row, count, left=left, height=0.66, color=colour, alpha=alpha, linewidth=0
                )
                if count > 0.05 * widest:
                    axes.text(
                        left + count / 2,
                        row,
                        f"{count:,}",
                        ha="center",
                        va="center",
                        fontsize=8.5,
                        color=FOREGROUND if key == "neither" else PANEL,
                    )
                left += count
        axes.set_xlim(0, widest)
        axes.set_xlabel("questions")
        axes.set_title("what both, one or neither find")
    said = "For each pair of strategies: how many answerable questions have gold in the first ten of both lists, of the first only, of the second only, and of neither. Where each finds what the other does not, fusing them can help."
    return framed(
        svg(figure, "overlap", "What two strategies find", said),
        "Grey: both find gold; in its colour: only that strategy; light: neither.",
    )


def panel(page: Page) -> Panel:
    """Make the panel."""
    pictures = [curves(page, level) for level in LEVELS]
    overlap = page.report.get("overlap")
    table, pairs = (
        _table(page),
        None if overlap is None or not overlap["pairs"] else overlaps(page, overlap),
    )
    missing = unmeasured(page)
    context = {
        "pictures": Markup().join(picture for picture in pictures if picture is not None),
        "table": table,
        "missing": [(page.swatch(name), level, reason) for name, level, reason in missing],
        "pairs": pairs,
        "found_by": None if overlap is None else found_by(page, overlap),
        "no_pairs": "overlap" in page.report and pairs is None,
        "why": ""
        if "overlap" not in page.report
        else reason_of(page.report["overlap"])
        if overlap is None
        else "one strategy has no other to be compared with",
    }
    return Panel(
        "Recall by K, and overlap",
        "recall.html",
        context,
        (table,) if pairs is None else (table, pairs),
    )
