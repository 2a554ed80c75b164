"""Cost and latency: how long a query takes, what a thousand cost, what the caches saved, and what an approximate index loses."""

import math
from typing import Any, Final

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.forests import FRAME, ROW, Row, forest, label, plots, plotted, shown
from rag_eval.reporting.html.page import Page, Panel
from rag_eval.reporting.html.pictures import LINE
from rag_eval.reporting.html.tables import Cell, Column, Estimate, Number, Table, Words

PERCENTILES: Final = ("p50", "p95", "p99")
_MARKERS: Final = {"p50": "o", "p95": "D", "p99": ">"}
_TENTH: Final = 0.1
_MEASURES: Final = frozenset(
    {"latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "cost_per_1k", "cache_hit_rate"}
)


def _latency_picture(page: Page) -> Markup:
    measured = {
        name: {
            key: value
            for key in PERCENTILES
            if (value := page.strategy(name)["latency_ms"][key].value) is not None and value > 0
        }
        for name in page.strategies
    }
    if not any(measured.values()):
        return Markup()
    every = [value for found in measured.values() for value in found.values()]
    with plotted(FRAME + 0.1 + ROW * len(page.strategies)) as axes:
        for row, (name, found) in enumerate(measured.items()):
            axes.plot(
                list(found.values()), [row] * len(found), color=page.colour(name), linewidth=1.4
            )
            for key, value in found.items():
                axes.plot([value], [row], _MARKERS[key], color=page.colour(name), markersize=5)
        axes.set_xscale("log")
        low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
        axes.set_xlim(10.0**low, 10.0 ** max(high, low + 1))
        places = [10.0**at for at in range(low, max(high, low + 1) + 1)]
        axes.set_xticks(
            places,
            [f"{place:g}" if place > _TENTH / 2 else f"{1000 * place:g} µs" for place in places],
        )
        axes.minorticks_off()
        axes.set_yticks(range(len(measured)), [label(name) for name in measured])
        axes.set_ylim(len(measured) - 0.4, -0.6)
        axes.grid(axis="x", color=LINE)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("milliseconds, log scale")
        axes.set_title("Latency of one query")
        text = "; ".join(
            f"{label(name)}: "
            + (", ".join(f"{key} {value:.3g} ms" for key, value in found.items()) or "not measured")
            for name, found in measured.items()
        )
        return shown(
            axes,
            "latency",
            "Latency of one query by strategy, log scale",
            text,
            "Circle p50, diamond p95, triangle p99.",
        )


def _table(page: Page) -> Table:
    columns = [
        Column("strategy", "strategy", figures=False),
        *(Column(f"{key}_ms", f"{key} ms") for key in PERCENTILES),
        Column("n", "calls", "measured calls, one query at a time"),
        Column("measured_at", "measured at", figures=False),
        Column(
            "cost_per_1k",
            "cost of a thousand",
            "embedding of the questions at the configured price",
        ),
        Column(
            "run",
            "run",
            "whether this run retrieved anew or used an earlier retrieval of the same inputs",
            figures=False,
        ),
    ]
    rows: list[list[Cell]] = []
    for name in page.strategies:
        entry = page.strategy(name)
        latency, reused = entry["latency_ms"], page.report.get("reused", "runs", name)
        run = "" if reused is None else "reused" if reused.value else "new"
        rows.append(
            [
                page.series(entry["name"]),
                *(Number(latency[key], 2) for key in PERCENTILES),
                Number(latency["n"]),
                Words(latency["measured_at"]),
                Number(entry["cost_per_1k"], 4),
                Words(run),
            ]
        )
    return Table("latency-cost", "Latency and cost of retrieval", columns, rows)


def _approximate(page: Page) -> list[tuple[str, str, str, Cursor]]:
    """Give strategy, seed, label and figure of every recall of an approximate index."""
    rows = []
    for name in page.strategies:
        by_seed = page.strategy(name).get("ann_recall", "by_seed")
        for seed, found in by_seed.items() if by_seed is not None else ():
            rows += [(name, seed, measure, figure) for measure, figure in found.items()]
    return rows


def _approximate_table(page: Page) -> Table | None:
    found = _approximate(page)
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("measure", "measure", figures=False),
        Column("seed", "seed", figures=False),
        Column("value", "recall of exact search"),
        Column("n", "n"),
        Column("groups", "groups"),
    ]
    rows: list[list[Cell]] = [
        [
            page.series(page.strategy(name)["name"]),
            Words(measure, "code"),
            Words(seed, "code"),
            Estimate(figure),
            Number(figure["n_scored"]),
            Number(figure["n_groups"]),
        ]
        for name, seed, measure, figure in found
    ]
    return (
        Table(
            "approximate-search",
            "What approximate search finds of what exact search finds",
            columns,
            rows,
        )
        if rows
        else None
    )


def _approximate_picture(page: Page) -> Markup:
    found = _approximate(page)
    rows = [
        Row(f"{name} {measure}", figure, page.colour(name))
        for name, seed, measure, figure in found
        if seed == found[0][1]
    ]
    return (
        forest(
            rows,
            "approximate-search",
            "Recall of approximate search against exact search",
            "95 % interval",
            head="Approximate against exact",
        )
        if rows
        else Markup()
    )


def _gates(page: Page) -> Table | None:
    judged = [
        gate for gate in page.report["gates"] if gate.value["evidence"].get("measure") in _MEASURES
    ]
    columns = [
        Column("gate", "gate", figures=False),
        Column("value", "found"),
        Column("accepted", "accepted", figures=False),
        Column("status", "status", figures=False),
        Column("reason_code", "reason", figures=False),
    ]
    rows: list[list[Cell]] = [
        [
            Words(gate["id"]),
            Number(gate["evidence"]["value"])
            if "value" in gate["evidence"]
            else Words(gate["evidence"].get("reason") or ""),
            Words(gate["evidence"].get("accepted")),
            Words(gate["status"], "chip"),
            Words(gate["reason_code"], "code"),
        ]
        for gate in judged
    ]
    return Table("cost-gates", "Gates on latency, cost and cache", columns, rows) if rows else None


def panel(page: Page) -> Panel:
    """Make the panel."""
    report = page.report
    pictures = [
        picture for picture in (_latency_picture(page), _approximate_picture(page)) if picture
    ]
    costs = report.get("answers", "usage", "cost_per_1k")
    context: dict[str, Any] = {
        "pictures": plots(pictures),
        "table": _table(page),
        "approximate": _approximate_table(page),
        "gates": _gates(page),
        "embeddings": report["embeddings"],
        "answers_cost": costs,
        "primary": page.strategy(page.primary),
    }
    return Panel(
        "Cost and latency",
        "cost.html",
        context,
        tuple(
            context[name]
            for name in ("table", "approximate", "gates")
            if isinstance(context[name], Table)
        ),
    )
