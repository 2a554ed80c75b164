"""Slices: recall and misses by tag, length and answerability."""

from typing import Final

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.forests import Row, forest, plots
from rag_eval.reporting.html.page import Page, Panel
from rag_eval.reporting.html.pictures import BAD
from rag_eval.reporting.html.tables import Cell, Column, Estimate, Number, Table, Words

MAX_ROWS: Final = 80
"""Rows of the table of all strategies, as whole slices; the primary strategy's tables have every slice."""
LONG: Final = 12
KINDS: Final = {"answerability": "answerability", "length": "length of the question", "tag": "tag"}


def _of(part: Cursor, name: str) -> Cursor | None:
    return part["strategies"].get(name)


def _table(page: Page, kind: str, parts: list[Cursor]) -> Table:
    measure = str(page.report["slices"]["measure"].value)
    columns = [
        Column("slice", "slice", figures=False),
        Column("questions", "questions"),
        Column("groups", "groups", "independent groups of these questions"),
        Column("value", measure, "of the primary strategy, mean over the slice's questions"),
        Column("scored", "n scored", "questions of the slice that have gold at this level"),
        Column("miss", "missed", "observed: no gold in the first places"),
        Column("miss_scored", "n"),
        *(
            [
                Column(
                    "abstained",
                    "abstained",
                    "share whose answer was that nothing was found, or that the evidence does not do",
                )
            ]
            if kind == "answerability"
            else []
        ),
        Column("about", "what it is", figures=False),
    ]
    rows: list[list[Cell]] = []
    for part in parts:
        found = _of(part, page.primary)
        miss = None if found is None else found.get("miss")
        row: list[Cell] = [
            Words(part["name"]),
            Number(part["n_queries"]),
            Number(part["n_groups"]),
            Estimate(found),
            Number(None if found is None else found["n_scored"]),
            Estimate(miss),
            Number(None if miss is None else miss["n_scored"]),
        ]
        if kind == "answerability":
            row.append(_abstained(part))
        rows.append([*row, Words(part["about"])])
    return Table(
        f"slices-{kind}", f"The primary strategy by {KINDS.get(kind, kind)}", columns, rows
    )


def _abstained(part: Cursor) -> Cell:
    found = part.get("abstention")
    if found is None:
        return Words("")
    return Number(found["value"]) if found["value"].value is None else Estimate(found)


def _all_strategies(page: Page, parts: list[Cursor]) -> Table:
    measure = str(page.report["slices"]["measure"].value)
    columns = [
        Column("kind", "by", figures=False),
        Column("slice", "slice", figures=False),
        Column("strategy", "strategy", figures=False),
        Column("value", measure),
        Column("scored", "n scored"),
        Column("groups", "groups"),
        Column("miss", "missed"),
    ]
    rows: list[list[Cell]] = []
    for part in parts:
        for name in page.strategies:
            found = _of(part, name)
            if found is not None:
                rows.append(
                    [
                        Words(part["kind"]),
                        Words(part["name"]),
                        page.series(page.strategy(name)["name"]),
                        Estimate(found),
                        Number(found["n_scored"]),
                        Number(found.get("n_groups")),
                        Estimate(found.get("miss")),
                    ]
                )
    return Table("slices-strategies", "Every strategy by slice", columns, rows)


def _pictures(page: Page, kind: str, parts: list[Cursor]) -> Markup:
    about, record = (
        page.report["slices"],
        page.measure(page.primary, str(page.report["slices"]["measure"].value)),
    )
    overall = None if record is None else record["value"]
    missed = page.report.get(
        "uncertainty",
        "strategies",
        page.primary,
        "observed",
        str(about["target"].value) if "target" in about else "miss_any",
        "value",
    )
    names = [str(part["name"].value) for part in parts]
    found = [_of(part, page.primary) for part in parts]
    values = [
        Row(name, of, page.colour(page.primary)) for name, of in zip(names, found, strict=True)
    ]
    misses = [
        Row(name, None if of is None else of.get("miss"), BAD)
        for name, of in zip(names, found, strict=True)
    ]
    measure, by = str(about["measure"].value), KINDS.get(kind, kind)
    drawn = [
        forest(
            values,
            f"slices-{kind}",
            f"{measure} by {by}, primary strategy",
            "95 % interval; dotted: all questions",
            reference=overall,
            head=f"{measure} by {by}",
        ),
        forest(
            misses,
            f"slices-{kind}-missed",
            f"Observed miss rate by {by}, primary strategy",
            "95 % interval; dotted: all questions",
            reference=missed,
            head=f"missed, by {by}",
        ),
    ]
    return plots([picture for picture in drawn if picture])


def panel(page: Page) -> Panel:
    """Make the panel."""
    about = page.report.get("slices")
    if about is None or "by" not in about or not about["by"].value:
        return Panel(
            "Slices",
            "slices.html",
            {"slices": None, "reason": about.get("reason") if about is not None else None},
        )
    every = list(about["by"])
    kinds = list(dict.fromkeys(str(part["kind"].value) for part in every))
    shown = []
    for kind in kinds:
        parts = [part for part in every if part["kind"].value == kind]
        shown.append(
            {
                "kind": kind,
                "title": f"By {KINDS.get(kind, kind)}",
                "pictures": _pictures(page, kind, parts),
                "table": _table(page, kind, parts),
                "long": len(parts) > LONG,
            }
        )
    room = max(1, MAX_ROWS // len(page.strategies))
    strategies = _all_strategies(page, every[:room]) if len(page.strategies) > 1 else None
    tables = (*(part["table"] for part in shown), strategies)
    return Panel(
        "Slices",
        "slices.html",
        {"slices": about, "shown": shown, "strategies": strategies, "some": room < len(every)},
        tuple(table for table in tables if isinstance(table, Table)),
    )
