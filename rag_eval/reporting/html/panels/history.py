"""History: the runs of this gold set night after night, and the paired differences from the run before."""

from collections.abc import Sequence
from typing import Final

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.forests import plots
from rag_eval.reporting.html.page import Page, Panel
from rag_eval.reporting.html.panels.history_pictures import (
    FIGURES,
    MAX_LINES,
    delta_picture,
    gates_picture,
    line_picture,
    lines,
)
from rag_eval.reporting.html.tables import Cell, Column, Estimate, Number, Table, Words

MAX_ROWS: Final = 30


def _table(page: Page, runs: Sequence[Cursor]) -> Table:
    columns = [
        Column("run", "run", figures=False),
        Column("at", "at", figures=False),
        Column("comparable", "with the run before", figures=False),
        Column("reason", "why not", figures=False),
        Column("recall", "R@10", "of today's primary strategy, in that run"),
        Column("scored", "n"),
        Column("mrr", "MRR"),
        Column("miss_any", "missed"),
        Column("skill", "Brier skill"),
        Column("smece", "smECE"),
        Column("status", "status", figures=False),
        Column("p95", "p95 ms"),
        Column("passed", "passed", "gates"),
        Column("failed", "failed", "gates"),
        Column("insufficient", "not enough evidence", "gates"),
        Column("groups", "groups"),
        Column("rev", "rev", figures=False),
        Column(
            "index_hash", "index_hash", "of today's primary strategy, in that run", figures=False
        ),
        Column("gold_hash", "gold hash", figures=False),
    ]
    rows: list[list[Cell]] = []
    for run in list(reversed(runs))[:MAX_ROWS]:
        of = run.get("strategies", page.primary)
        comparable = run.value.get("comparable")
        chip = (
            Words("first")
            if comparable is None
            else Words("comparable")
            if comparable
            else Words("not comparable")
        )
        recall = None if of is None else of.get("recall")
        figures: list[Cell] = [
            Estimate(recall),
            Number(None if recall is None else recall["n_scored"]),
            *(
                Estimate(None if of is None else of.get(key))
                for key in ("mrr", "miss_any", "skill")
            ),
        ]
        more: list[Cell] = [
            Number(None if of is None else of["smece"]),
            Words(None if of is None else of.get("status"), "chip")
            if of is not None and of.get("status") is not None
            else Words(""),
            Number(None if of is None else of["latency_p95_ms"], 2),
        ]
        gates = [Number(run["gates"][key]) for key in ("passed", "failed", "insufficient")]
        ids = [
            Words(run["rev"]) if run["rev"].value is not None else Words("not said"),
            Words(None if of is None else of.get("index_hash"), "code"),
            Words(run["gold_hash"], "code"),
        ]
        rows.append(
            [
                Words(run["run_id"], "code"),
                Words(run["timestamp"]),
                chip,
                Words(run["reason"]) if run.get("reason") is not None else Words(""),
                *figures,
                *more,
                *gates,
                Number(run["n_groups"]),
                *ids,
            ]
        )
    return Table("history", "Runs of this gold set, newest first", columns, rows)


def _deltas(page: Page, previous: Cursor) -> Table:
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("measure", "measure", figures=False),
        Column("before", "before"),
        Column("after", "after"),
        Column(
            "delta", "difference", "this run minus the one before, mean over the same questions"
        ),
        Column("better", "better"),
        Column("worse", "worse"),
        Column("tied", "tied"),
        Column("groups", "groups"),
    ]
    rows: list[list[Cell]] = []
    for row in previous["deltas"]:
        first: Cell = (
            page.series(row["strategy"])
            if row["strategy"].value in page.strategies
            else Words(row["strategy"])
        )
        rows.append(
            [
                first,
                Words(row["measure"]),
                Number(row["before"]),
                Number(row["after"]),
                Estimate(row, signed=True, key="delta"),
                *(Number(row[key]) for key in ("n_better", "n_worse", "n_tied", "n_groups")),
            ]
        )
    return Table(
        "previous-differences",
        "Differences from the run before, on the same questions",
        columns,
        rows,
    )


def panel(page: Page) -> Panel:
    """Make the panel."""
    about, previous = page.report.get("history"), page.report.get("previous")
    if about is None or "runs" not in about or not about["runs"].value:
        return Panel("History", "history.html", {"history": None, "previous": None})
    runs = list(about["runs"])
    deltas = (
        _deltas(page, previous)
        if previous is not None and previous.get("deltas") is not None
        else None
    )
    drawn = (
        []
        if len(runs) < 2
        else [*(line_picture(page, runs, *figure) for figure in FIGURES), gates_picture(runs)]
    )  # noqa: PLR2004 - a line has two ends
    if deltas is not None and previous is not None:
        drawn.append(delta_picture(page, previous))
    table = _table(page, runs)
    context = {
        "history": about,
        "previous": previous,
        "one": len(runs) == 1,
        "pictures": plots([picture for picture in drawn if picture]),
        "legend": lines(page),
        "more_strategies": len(page.strategies) > MAX_LINES,
        "more_runs": len(runs) > MAX_ROWS,
        "table": table,
        "deltas": deltas,
    }
    return Panel(
        "History",
        "history.html",
        context,
        tuple(part for part in (table, deltas) if part is not None),
    )
