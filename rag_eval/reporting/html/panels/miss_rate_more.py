"""Tables of the miss-rate panel beyond single figures: comparisons, leakage, other wordings, what estimators look at.

Belongs here: which figures stand beside which. A table without rows is None, and the template says why.
"""

from collections.abc import Iterable

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.page import Page
from rag_eval.reporting.html.panels.parts import by_strategy, down
from rag_eval.reporting.html.tables import Cell, Column, Estimate, Number, Table, Words

MEASURES = {
    "observed": "misses, observed",
    "raw": "misses, uncalibrated",
    "calibrated": "misses, calibrated",
    "powered": "misses, prediction-powered",
    "brier": "Brier score",
    "skill": "Brier skill",
}
STRONGEST = 10
FIRST = "as first put, under the first seed"
"""What the comparison takes of each question; the observed rates of single strategies take every wording and seed."""


def named(page: Page) -> list[tuple[str, Cursor]]:
    """Names and calibrations of the strategies, in the page's order."""
    return by_strategy(page, page.report["calibration"]["strategies"])


def series(page: Page, name: str) -> Cell:
    """Make a cell of a strategy's name."""
    return page.series(page.strategy(name)["name"])


def compared(page: Page, comparison: Cursor) -> Table:
    """Figures of every strategy on the questions that all were judged on."""
    keys = [
        key
        for key in MEASURES
        if any(
            down(entry, key) is not None and down(entry, key, "value") is not None
            for entry in comparison["strategies"]
            if entry[key].value is not None
        )
    ]
    columns = [
        Column("strategy", "strategy", figures=False),
        *(Column(key, MEASURES[key]) for key in keys),
        Column("questions", "questions"),
        Column("groups", "groups"),
    ]
    rows = [
        [
            page.series(entry["name"]),
            *(Estimate(down(entry, key)) for key in keys),
            Number(entry["observed"]["n"]),
            Number(entry["observed"]["n_groups"]),
        ]
        for entry in comparison["strategies"]
    ]
    return Table(
        "miss-rates-compared",
        f"Misses on the questions that every strategy was judged on, {FIRST}, 95 % intervals over groups",
        columns,
        rows,
    )


def _difference(page: Page, row: Cursor) -> list[Cell]:
    counts = [Number(row[key]) for key in ("n_better", "n_worse", "n_tied")]
    return [
        page.series(row["a"]),
        page.series(row["b"]),
        Words(MEASURES.get(row["measure"].value, row["measure"])),
        Estimate(row["delta"], signed=True),
        *counts,
        Number(row["delta"]["n_groups"]),
        Number(row["p_holm"], 4),
        Number(row["detectable"]),
    ]


def differences(
    page: Page, comparison: Cursor, measures: Iterable[str], name: str, caption: str
) -> Table | None:
    """Paired differences in some figures, those with the primary strategy first; those that nothing is known of are left out."""
    columns = [
        Column("a", "strategy", figures=False),
        Column("b", "against", figures=False),
        Column("measure", "figure", figures=False),
        Column(
            "delta",
            "difference",
            "strategy minus the other; of misses, below zero means that the first misses less",
        ),
        Column("better", "better", "questions on which the first is better"),
        Column("worse", "worse"),
        Column("tied", "tied"),
        Column("groups", "groups"),
        Column(
            "p",
            "p (Holm)",
            "sign-flip permutation test over groups, adjusted over all pairs, each figure by itself",
        ),
        Column(
            "detectable",
            "smallest detectable",
            "the smallest true difference that these questions tell from none with 80 % power at two-sided 5 %",
        ),
    ]
    wanted = list(measures)
    found = [
        row
        for row in comparison["differences"]
        if row["measure"].value in wanted
        and row["delta"].value is not None
        and row["delta"]["value"].value is not None
    ]
    found.sort(
        key=lambda row: (
            wanted.index(row["measure"].value),
            page.primary not in {row["a"].value, row["b"].value},
            row.path[-1],
        )
    )
    return (
        Table(name, caption, columns, [_difference(page, row) for row in found]) if found else None
    )


def leakage(page: Page) -> Table | None:
    """What folds that split groups would have feigned."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("grouped", "skill, groups kept together"),
        Column("random", "skill, groups split"),
        Column(
            "gap",
            "feigned",
            "the second minus the first: what questions that share gold on both sides of a fold would have added to the skill",
        ),
    ]
    rows = [
        [
            series(page, name),
            Number(entry["leakage_gap"]["grouped"]),
            Number(entry["leakage_gap"]["random"]),
            Number(entry["leakage_gap"]["gap"], signed=True),
        ]
        for name, entry in named(page)
        if entry["leakage_gap"].value is not None
    ]
    return (
        Table(
            "leakage-gap",
            "Leakage gap: Brier skill with and without groups kept together",
            columns,
            rows,
        )
        if rows
        else None
    )


def wordings(page: Page) -> Table | None:
    """Whether the branch for questions whose other wordings were judged speaks, and what it is worth."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column(
            "used",
            "used",
            "it speaks only where it was better than the estimator alone by more than chance",
            figures=False,
        ),
        Column("status", "status", "its own", figures=False),
        Column("brier_without", "Brier without it"),
        Column("brier", "Brier with it"),
        Column("gain", "gain", "how much lower the squared error is"),
        Column("gain_se", "standard error"),
        Column("skill", "skill"),
        Column("outcomes", "wordings"),
        Column("groups", "groups"),
    ]
    rows = []
    for name, entry in named(page):
        branch = entry["other_wordings"]
        if branch.value is None:
            continue
        checked = branch["validation"]
        figures = [
            Number(branch["brier_without"], 4),
            Estimate(checked["brier"], digits=4),
            Number(branch["gain"], 4, signed=True),
            Number(branch["gain_se"], 4),
            Estimate(checked["skill"]),
        ]
        rows.append(
            [
                series(page, name),
                Words("used" if branch["used"].value else "not used"),
                Words(branch["status"], "chip"),
                *figures,
                Number(checked["n"]),
                Number(checked["groups"]),
            ]
        )
    return (
        Table(
            "other-wordings",
            "Questions whose other wordings were judged: what that knowledge adds",
            columns,
            rows,
        )
        if rows
        else None
    )


def coefficients(page: Page) -> Table | None:
    """The signals that speak most in each estimator."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("signal", "signal", figures=False),
        Column("log_odds", "log-odds of a miss", "per standard deviation of the signal"),
    ]
    rows = [
        [series(page, name), Words(part["signal"], "code"), Number(part["value"], 3, signed=True)]
        for name, entry in named(page)
        if entry["estimator"].value is not None
        for part in list(entry["estimator"]["coefficients"])[:STRONGEST]
    ]
    return (
        Table(
            "miss-rate-coefficients",
            "Estimators: the signals that weigh most, strongest first",
            columns,
            rows,
        )
        if rows
        else None
    )


def riskiest(page: Page) -> Table | None:
    """The primary strategy's retrievals with the highest stated miss rates."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("question", "question", figures=False),
        Column("wording", "wording", figures=False),
        Column("seed", "seed"),
        Column("miss_rate", "stated miss rate"),
    ]
    rows = [
        [
            series(page, name),
            Words(one["query_id"], "code"),
            Words(one["paraphrase_id"]),
            Number(one["seed"]),
            Estimate(one, key="miss_rate"),
        ]
        for name, entry in page.report["uncertainty"]["strategies"].items()
        if name == page.primary
        for one in entry["riskiest"]
    ]
    return (
        Table(
            "riskiest",
            "The primary strategy's retrievals with the highest stated miss rates",
            columns,
            rows,
        )
        if rows
        else None
    )
