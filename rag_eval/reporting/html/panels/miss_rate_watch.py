"""Tables of what is watched over time: drift, changes of status, rounds of iterative retrieval, feedback of users.

Belongs here: which figures stand beside which. A table without rows is None, and the template says why.
"""

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.page import Page
from rag_eval.reporting.html.panels.cells import Several
from rag_eval.reporting.html.panels.miss_rate_more import named, series
from rag_eval.reporting.html.panels.parts import down
from rag_eval.reporting.html.tables import Column, Estimate, Number, Table, Words

FEEDBACK = {
    "n_claims": "claims with feedback",
    "something_missing": "something missing",
    "evidence_not_relevant": "evidence not relevant",
    "nothing_missing": "nothing missing",
    "audits_due": "audits due",
}


def drift(page: Page) -> Table:
    """The watch over outcomes that came after the prediction."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("alarm", "alarm", figures=False),
        Column("e_high", "evidence for more misses", "e-value; an alarm at the bar"),
        Column("e_low", "evidence for fewer misses"),
        Column("bar", "bar"),
        Column("missed", "missed, mean"),
        Column("predicted", "predicted, mean"),
        Column("tolerance", "tolerance", "a shift of the miss rate of so much counts as none"),
        Column("outcomes", "outcomes"),
        Column("groups", "groups"),
        Column("first", "first alarm after", "groups"),
        Column("direction", "direction", figures=False),
    ]
    rows = []
    for name, entry in named(page):
        watch = entry["drift"]
        alarm = Words("alarm", "chip") if watch["alarm"].value else Words("none")
        figures = [
            Number(watch[key], digits)
            for key, digits in (
                ("e_high", 2),
                ("e_low", 2),
                ("bar", 0),
                ("mean_missed", 3),
                ("mean_predicted", 3),
                ("tolerance", 2),
                ("n", 0),
                ("n_groups", 0),
                ("first_alarm_at", 0),
            )
        ]
        rows.append([series(page, name), alarm, *figures, Words(watch["direction"])])
    return Table(
        "miss-rate-drift",
        "Drift watch: do outcomes still fit the miss rates stated before them",
        columns,
        rows,
    )


def promotions(page: Page) -> Table | None:
    """Changes of status in this run."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("before", "before", figures=False),
        Column("now", "now", figures=False),
        Column("at", "at", figures=False),
    ]
    found = [
        (name, entry["promotion"])
        for name, entry in named(page)
        if entry["promotion"].value is not None
    ]
    rows = [
        [
            series(page, name),
            Words(change["old_status"], "chip"),
            Words(change["new_status"], "chip"),
            Words(change["at"]),
        ]
        for name, change in found
    ]
    return (
        Table("miss-rate-promotions", "Changes of status in this run", columns, rows)
        if rows
        else None
    )


def iterative(page: Page) -> Table | None:
    """Accounts of iterative strategies against their bases."""
    accounts = page.report["uncertainty"].get("iterative")
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("base", "over", figures=False),
        Column("expansion", "expansion", figures=False),
        Column("verdict", "verdict", figures=False),
        Column("delta", "recall after − before"),
        Column("p", "p"),
        Column("recovered", "recovered", "misses that became hits"),
        Column("lost", "lost", "hits that became misses"),
        Column("triggered", "expanded", "retrievals that were expanded"),
        Column("questions", "of"),
        Column("extra", "extra queries"),
        Column("groups", "groups"),
    ]
    rows = []
    for name, about in accounts.items() if accounts is not None else []:
        for one in about["accounts"]:
            counts = [
                Number(one[key])
                for key in (
                    "recovered",
                    "lost",
                    "triggered",
                    "questions",
                    "extra_queries",
                    "n_groups",
                )
            ]
            rows.append(
                [
                    series(page, name),
                    Words(about["base"]),
                    Words(one["strategy"]),
                    Words(one["verdict"]),
                    Estimate(one, key="delta", signed=True),
                    Number(one["p"], 4),
                    *counts,
                ]
            )
    return (
        Table("iterative", "Iterative retrieval: what its rounds recovered and lost", columns, rows)
        if rows
        else None
    )


def _heard(page: Page) -> list[tuple[str, Cursor]]:
    """Feedback of every strategy that users said anything of."""
    return [
        (name, entry["feedback"])
        for name, entry in named(page)
        if entry.get("feedback", "n_claims")
    ]


def feedback(page: Page) -> Table | None:
    """What users said of retrievals; None where they said nothing."""
    columns = [
        Column("strategy", "strategy", figures=False),
        *(Column(key, words) for key, words in FEEDBACK.items()),
        Column(
            "contradicts_gold",
            "though gold says hit",
            "claims of which a user says that something is missing and gold says that nothing is",
        ),
        Column("queries", "on the questions", figures=False),
    ]
    rows = []
    for name, about in _heard(page):
        against = about["contradicts_gold"]
        rows.append(
            [
                series(page, name),
                *(Number(about[key]) for key in FEEDBACK),
                Number(against["n_claims"]),
                Several(list(against["query_ids"])),
            ]
        )
    return (
        Table(
            "feedback",
            "Feedback of users: it calls for audits and never fits a calibrator",
            columns,
            rows,
        )
        if rows
        else None
    )


def feedback_earlier(page: Page) -> Table | None:
    """What users said of retrievals on an earlier index or configuration; None where they said nothing of such."""
    columns = [
        Column("strategy", "strategy", figures=False),
        *(Column(key, words) for key, words in FEEDBACK.items()),
    ]
    found = [(name, entry.get("feedback", "earlier")) for name, entry in named(page)]
    rows = [
        [series(page, name), *(Number(about[key]) for key in FEEDBACK)]
        for name, about in found
        if about is not None and about["n_claims"]
    ]
    return (
        Table(
            "feedback-earlier",
            "Feedback on an earlier index or configuration: held against nothing of this run",
            columns,
            rows,
        )
        if rows
        else None
    )


def feedback_watch(page: Page) -> Table | None:
    """Complaints against the misses that the stated miss rates leave room for; None where none can be held against them."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("claims_of", "claims", figures=False),
        Column("complaints", "groups with complaints"),
        Column("expected", "expected misses", "groups with a miss, by the stated miss rates"),
        Column("upper", "at most", "upper bound of these; more complaints than this are an alarm"),
        Column("alarm", "alarm", "it calls for audits and changes no status", figures=False),
        Column("claims", "claims"),
        Column("groups", "groups"),
    ]
    rows = []
    for name, about in _heard(page):
        for key, words in (("every_claim", "all"), ("least_risky_third", "least risky third")):
            watch = down(about, "watch", key)
            if watch is None or watch.value is None:
                continue
            alarm = Words("audit now", "chip") if watch["alarm"].value else Words("none")
            rows.append(
                [
                    series(page, name),
                    Words(words),
                    Number(watch["complaints"]),
                    Number(watch["expected"], 1),
                    Number(watch["upper"]),
                    alarm,
                    Number(watch["n_claims"]),
                    Number(watch["n_groups"]),
                ]
            )
    return (
        Table(
            "feedback-watch",
            "Complaints beside the misses that the stated miss rates leave room for",
            columns,
            rows,
        )
        if rows
        else None
    )
