"""Denominators: what the figures of every other panel are shares of."""

from rag_eval.reporting.html.page import Page, Panel
from rag_eval.reporting.html.tables import Column, Number, Table


def _table(page: Page) -> Table:
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("attempted", "attempted", "questions that were put"),
        Column(
            "scored",
            "scored",
            "questions that have a value of R@10; a failed retrieval counts as a miss",
        ),
        Column("failed", "failed", "questions whose retrieval failed, in every wording or in some"),
        Column(
            "ineligible", "ineligible", "questions without gold at this level: neither hit nor miss"
        ),
        Column(
            "groups", "groups", "independent groups: questions that share a gold document are one"
        ),
        Column("retrievals", "retrievals", "questions x wordings x seeds that were run"),
        Column("empty", "empty", "retrievals that brought nothing"),
        Column("failures", "failures", "retrievals that failed"),
        Column("judged", "Judged@10", "share of the first ten that anybody has judged"),
    ]
    rows = []
    for name in page.strategies:
        entry, record = page.strategy(name), page.measure(name, "R@10")
        counts = [
            Number(None if record is None else record[key])
            for key in ("n_attempted", "n_scored", "n_failed", "n_ineligible", "n_groups")
        ]
        judged = page.measure(name, "Judged@10")
        rows.append(
            [
                page.series(entry["name"]),
                *counts,
                *(Number(entry[key]) for key in ("n_runs", "n_empty", "n_failed")),
                Number(None if judged is None else judged["value"]),
            ]
        )
    return Table(
        "denominators",
        "How many questions each strategy's figures are over (headline level)",
        columns,
        rows,
    )


def panel(page: Page) -> Panel:
    """Make the panel."""
    table = _table(page)
    return Panel(
        "Denominators",
        "denominators.html",
        {"table": table, "gold": page.report["gold"], "index": page.report["index"]},
        (table,),
    )
