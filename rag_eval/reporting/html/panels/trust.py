"""Trust and poisoning: how far the sources are to be trusted, what the guard found, and what trusting them costs."""

import math
from typing import Any

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.forests import Row, forest, label, plots, plotted, shown
from rag_eval.reporting.html.page import Page, Panel
from rag_eval.reporting.html.panels.trust_words import CHECKS, FACTORS, STATES, UNKNOWN
from rag_eval.reporting.html.pictures import LINE, MUTED
from rag_eval.reporting.html.tables import Cell, Column, Estimate, Number, Table, Words


def _histogram(page: Page) -> Markup:
    scores = page.report["trust"]["scores"]
    if "histogram" not in scores:
        return Markup()
    bins = scores["histogram"].value
    with plotted(2.35) as axes:
        left, width = (
            [entry["from"] for entry in bins],
            [entry["to"] - entry["from"] for entry in bins],
        )
        axes.bar(
            left,
            [entry["n"] for entry in bins],
            width=width,
            align="edge",
            color=page.colour(page.primary),
            edgecolor=LINE,
            linewidth=0.6,
        )
        axes.axvline(scores["mean"].value, color=MUTED, linewidth=1.4, linestyle=(0, (3, 2)))
        axes.set_xlim(0, 1)
        axes.locator_params(axis="y", nbins=4, integer=True)
        axes.grid(axis="y", color=LINE)
        axes.set_xlabel("trust of a chunk; dashed: mean")
        axes.set_title("Chunks by trust")
        full = "; ".join(
            f"{entry['from']:.1f} to {entry['to']:.1f}: {entry['n']} chunks"
            for entry in bins
            if entry["n"]
        )
        return shown(axes, "trust-histogram", "Chunks of the corpus by trust", full)


def _retrieved_picture(page: Page) -> Markup:
    found = page.report["trust"]["retrieved"]
    rows = [
        Row(name, found[name]["avg_trust"], page.colour(name), strong=name == page.primary)
        for name in page.strategies
        if name in found
    ]
    return forest(
        rows,
        "trust-retrieved",
        "Average trust of what each strategy retrieved",
        "mean trust of the first ten, 95 % interval",
        head="Trust of what was retrieved",
    )


def _retrieved(page: Page) -> Table:
    part = page.report["trust"]
    columns = [
        Column("strategy", "strategy", figures=False),
        Column(
            "trust",
            "average trust",
            "mean over questions of the mean trust of the first ten chunks",
        ),
        Column("n", "n"),
        Column("groups", "groups"),
        Column("retrieved", "retrieved", "chunks in all lists of all wordings and seeds"),
        Column(
            "blocked", "blocked", "blocked chunks that came back all the same; gate P asks for none"
        ),
        Column("warned", "warned", "chunks that came back with a warning"),
        Column("dropped", "dropped", "chunks that the guard took out of the lists at retrieval"),
    ]
    dropped = part["poisoning"]["at_retrieval"]["dropped"]
    rows: list[list[Cell]] = []
    for name in page.strategies:
        found = part["retrieved"].get(name)
        if found is None:
            continue
        figure = found["avg_trust"]
        rows.append(
            [
                page.series(page.strategy(name)["name"]),
                Estimate(figure),
                Number(figure["n_scored"]),
                Number(figure["n_groups"]),
                *(Number(found[key]) for key in ("n_retrieved", "n_blocked", "n_warned")),
                Number(dropped.get(name)),
            ]
        )
    return Table("trust-retrieved", "Trust of what each strategy retrieved", columns, rows)


def _states(page: Page) -> Table:
    rows = []
    for name, factor in FACTORS.items():
        for state, count in page.report["trust"]["states"][name].items():
            rows.append(
                [
                    Words(factor),
                    Words(state, "code"),
                    Number(count),
                    Words(STATES.get((name, state), UNKNOWN)),
                ]
            )
    columns = [
        Column("factor", "factor", figures=False),
        Column("state", "state", figures=False),
        Column("n", "chunks"),
        Column("meaning", "meaning", figures=False),
    ]
    return Table("trust-states", "What makes the trust of the chunks, by factor", columns, rows)


def _reasons(page: Page) -> Table:
    found = page.report["trust"]["poisoning"]["reasons"]
    ordered = sorted(found.items(), key=lambda item: (-item[1].value, item[0]))
    rows = [
        [Words(code, "code"), Number(count), Words(CHECKS.get(code.split(".", 1)[0], UNKNOWN))]
        for code, count in ordered
    ]
    return Table(
        "trust-reasons",
        "Blocked and warned chunks by reason code; a chunk may have several",
        [
            Column("code", "reason code", figures=False),
            Column("n", "chunks"),
            Column("check", "what the check looks for", figures=False),
        ],
        rows,
    )


def _reasons_of(row: Cursor) -> Words:
    return Words(", ".join(str(code) for code in row["reasons"].value), "code")


def _quarantined(page: Page) -> Table | None:
    found = page.report["trust"]["poisoning"]["quarantined"]
    if not found.value:
        return None
    columns = [
        Column("document", "document", figures=False),
        Column("chunk", "chunk", figures=False),
        Column("source", "source", figures=False),
        Column("reasons", "reasons", figures=False),
    ]
    return Table(
        "quarantined",
        "Blocked chunks and their documents",
        columns,
        [
            [
                Words(row["doc_id"]),
                Words(row["chunk_id"], "code"),
                Words(row["source_url"]),
                _reasons_of(row),
            ]
            for row in found
        ],
    )


def _got_through(page: Page) -> Table | None:
    found = (
        (name, row)
        for name in page.strategies
        for row in page.report.get("trust", "retrieved", name, "blocked") or ()
    )
    rows: list[list[Cell]] = [
        [
            page.series(page.strategy(name)["name"]),
            Words(row["doc_id"]),
            Words(row["chunk_id"], "code"),
            Words(row["query_id"], "code"),
            Number(row["rank"]),
            Number(row["n"]),
            _reasons_of(row),
        ]
        for name, row in found
    ]
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("document", "document", figures=False),
        Column("chunk", "chunk", figures=False),
        Column("question", "first question", figures=False),
        Column("rank", "rank"),
        Column("n", "times"),
        Column("reasons", "reasons", figures=False),
    ]
    return (
        Table(
            "blocked-retrieved",
            "Blocked chunks that strategies brought all the same",
            columns,
            rows,
        )
        if rows
        else None
    )


def _filter(page: Page) -> Table | None:
    part = page.report["trust"]["filter"]
    if "rows" not in part:
        return None
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("measure", "measure", figures=False),
        Column("with", "with the filter"),
        Column("without", "without"),
        Column("delta", "difference", "with minus without, on the same questions"),
        Column("n", "n"),
        Column("groups", "groups"),
        Column("better", "better"),
        Column("worse", "worse"),
        Column("tied", "tied"),
        Column("p", "p (Holm)"),
        Column("detectable", "smallest detectable"),
    ]
    rows: list[list[Cell]] = []
    for row in part["rows"]:
        known = str(row["strategy"].value) in page.strategies
        first: Cell = page.series(row["strategy"]) if known else Words(row["strategy"])
        rows.append(
            [
                first,
                Words(row["measure"]),
                Estimate(row["with_filter"]),
                Estimate(row["without_filter"]),
                Estimate(row, signed=True, key="delta"),
                Number(row["with_filter"]["n_scored"]),
                *(Number(row[key]) for key in ("n_groups", "n_better", "n_worse", "n_tied")),
                Number(row["p_adjusted"], 4),
                Number(row["minimum_detectable"]),
            ]
        )
    return Table("trust-filter", "What the trust filter costs", columns, rows)


def _filter_picture(page: Page) -> Markup:
    part = page.report["trust"]["filter"]
    if "rows" not in part or not part["rows"].value:
        return Markup()
    measure = part["rows"][0].value["measure"]
    rows = [
        Row(str(row["strategy"].value), row, page.colour(name), key="delta")
        for row in part["rows"]
        if row.value["measure"] == measure
        and (name := str(row["strategy"].value)) in page.strategies
    ]
    ends = [
        abs(value)
        for row in rows
        if row.of is not None
        for value in (row.of["ci_low"].value, row.of["ci_high"].value, row.of["delta"].value)
        if value is not None
    ]
    widest = math.ceil(20 * max([*ends, 0.05])) / 20
    zero = Cursor(0.0)
    return forest(
        rows,
        "trust-filter",
        f"{label(str(measure))}: with the trust filter minus without",
        f"{label(str(measure))}, with minus without",
        limits=(-widest, widest),
        reference=zero,
        head="What the filter costs",
    )


def panel(page: Page) -> Panel:
    """Make the panel."""
    part = page.report["trust"]
    context: dict[str, Any] = {
        "trust": part,
        "guard": part["poisoning"],
        "manifest": part["poisoning"]["manifest"],
        "pictures": plots(
            [
                picture
                for picture in (_histogram(page), _retrieved_picture(page), _filter_picture(page))
                if picture
            ]
        ),
        "retrieved": _retrieved(page),
        "primary": page.report.get("trust", "retrieved", page.primary, "avg_trust"),
        "states": _states(page),
        "reasons": _reasons(page) if part["poisoning"]["reasons"].value else None,
        "quarantined": _quarantined(page),
        "through": _got_through(page),
        "filtered": _filter(page),
    }
    tables = ("retrieved", "states", "reasons", "quarantined", "through", "filtered")
    return Panel(
        "Trust and poisoning",
        "trust.html",
        context,
        tuple(context[name] for name in tables if isinstance(context[name], Table)),
    )
