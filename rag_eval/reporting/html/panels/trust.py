"""Trust and poisoning: trust of sources, findings of the guard, cost of a filter."""

from markupsafe import Markup

from rag_eval.reporting.html.drawing import (
    DASHED,
    MUTED,
    Chart,
    Row,
    forest,
    plots,
    round_ticks,
)
from rag_eval.reporting.html.elements import (
    Cell,
    Cursor,
    Table,
    words_cell,
)
from rag_eval.reporting.html.panel import UNKNOWN, Page, Panel, panel_words


def _histogram(page: Page) -> Markup:
    scores = page.report["trust"]["scores"]
    if "histogram" not in scores:
        return Markup()
    bins = scores["histogram"].value
    top = 1.05 * max(1, *(entry["n"] for entry in bins))
    whole = [(value, words) for value, words in round_ticks(0, top, 4) if "." not in words]
    axis = "trust of a chunk; dashed: mean"
    chart = Chart("Chunks by trust", y=(0, top), y_ticks=whole, x_label=axis, height=120)
    for entry in bins:
        ends = (entry["from"], entry["to"] - 0.004)
        chart.box(ends, (0, entry["n"]), page.colour(page.primary))
    chart.vertical(scores["mean"].value, MUTED, DASHED, 1.8)
    counts = "; ".join(
        f"{entry['from']:.1f} to {entry['to']:.1f}: {entry['n']} chunks"
        for entry in bins
        if entry["n"]
    )
    return chart.figure("trust-histogram", "Chunks of the corpus by trust", counts)


def _retrieved_picture(page: Page) -> Markup:
    rows = [
        Row(name, found["avg_trust"], page.colour(name), strong=name == page.primary)
        for name, found in page.by_strategy("trust", "retrieved")
    ]
    title = "Average trust of what each strategy retrieved"
    axis = "mean trust of the first ten, 95 % interval"
    return forest(rows, "trust-retrieved", title, axis, head="Trust of what was retrieved")


def _states(page: Page) -> Table:
    factors, states = panel_words()["trust_factors"], panel_words()["trust_states"]
    rows = [
        {
            "factor": words,
            "state": state,
            "n": count,
            "meaning": states[factor].get(state, UNKNOWN),
        }
        for factor, words in factors.items()
        for state, count in page.report["trust"]["states"][factor].items()
    ]
    return page.table("trust-states", rows)


def _reasons_cell(row: Cursor) -> Cell:
    return words_cell(", ".join(str(code) for code in row["reasons"].value), "code")


def panel(page: Page) -> Panel:
    """Make the panel of trust and poisoning."""
    part = page.report["trust"]
    guard, cost = part["poisoning"], part["filter"]
    dropped, checks = guard["at_retrieval"]["dropped"], panel_words()["trust_checks"]
    retrieved = page.by_strategy("trust", "retrieved")
    reasons = sorted(guard["reasons"].items(), key=lambda item: (-item[1].value, item[0]))
    tables = {
        "retrieved": page.table(
            "trust-retrieved",
            (
                {"strategy": name, "found": found, "dropped": dropped.get(name)}
                for name, found in retrieved
            ),
        ),
        "states": _states(page),
        "reasons": page.optional_table(
            "trust-reasons",
            (
                {"code": code, "n": n, "check": checks.get(code.split(".", 1)[0], UNKNOWN)}
                for code, n in reasons
            ),
        ),
        "quarantined": page.optional_table(
            "quarantined",
            ({"row": row, "reasons": _reasons_cell(row)} for row in guard["quarantined"]),
        ),
        "through": page.optional_table(
            "blocked-retrieved",
            (
                {"strategy": name, "row": row, "reasons": _reasons_cell(row)}
                for name, found in retrieved
                for row in found.get("blocked") or ()
            ),
        ),
        "filtered": page.table("trust-filter", ({"row": row} for row in cost["rows"]))
        if "rows" in cost
        else None,
    }
    context = {
        "trust": part,
        "guard": guard,
        "manifest": guard["manifest"],
        "pictures": plots([_histogram(page), _retrieved_picture(page)]),
        "primary": page.report.get("trust", "retrieved", page.primary, "avg_trust"),
    }
    return Panel("Trust and poisoning", "trust.html", context, tables)
