"""Tables of the miss-rate panel that are of single strategies: status and conditions, observed beside stated, how well predictions fit.

Belongs here: which figures stand beside which. Comparisons are `miss_rate_more`, conformal K is `miss_rate_conformal`, what is watched over time `miss_rate_watch`.
"""

import dataclasses
from collections.abc import Sequence

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor, text
from rag_eval.reporting.html.latex import tex
from rag_eval.reporting.html.page import Page
from rag_eval.reporting.html.panels.cells import Limited
from rag_eval.reporting.html.panels.parts import by_strategy, down
from rag_eval.reporting.html.tables import Cell, Column, Estimate, Number, Table, Words, plain
from rag_eval.reporting.html.untrusted import visible

CONDITIONS = {
    "queries": "queries with known signals",
    "queries_for_z_scores": "queries to scale the signals by",
    "shipped_prior": "a shipped prior",
    "outcomes": "independent groups with outcomes",
    "misses": "groups with misses",
    "hits": "groups with hits",
    "gold_of_others": "gold from elsewhere than the strategy",
    "validation": "predictions checked out of fold",
    "skill": "Brier skill",
    "ece": "expected calibration error",
    "smece": "smooth calibration error",
    "slope": "calibration slope",
    "same_fingerprint": "the strategy that the outcomes were recorded for",
    "no_drift": "no alarm of the drift watch",
    "recent": "age of the outcomes",
    "same_base_calibrator": "what steers the rounds",
}


@dataclasses.dataclass(frozen=True)
class Unmet(Cell):
    """Conditions that keep a status from being higher: what is needed, what was found."""

    of: Sequence[Cursor]

    def html(self) -> Markup:
        """Write them for the page, one a line."""
        if not self.of:
            return Markup('<span class="muted">nothing</span>')
        lines = (
            Markup("<li>{} needs {}: {}, found {}</li>").format(
                text(one["status"]),
                CONDITIONS.get(one["name"].value, visible(one["name"].value)),
                text(one["needed"]),
                text(one["found"]),
            )
            for one in self.of
        )
        return Markup('<ul class="unmet">{}</ul>').format(Markup().join(lines))

    def _plain(self) -> str:
        return "; ".join(
            f"{one['status'].value} needs {one['name'].value}: {one['needed'].value}, found {one['found'].value}"
            for one in self.of
        )

    def csv(self, key: str) -> dict[str, str]:
        """Write them for CSV."""
        return {key: plain(self._plain())}

    def tex(self) -> str:
        """Write them for LaTeX."""
        return tex(visible(self._plain()))


def status(page: Page) -> Table:
    """Status of every strategy: under which tonight's figures were stated, which the outcomes have earned, and what keeps it from being higher."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column(
            "stated_under",
            "stated under",
            "status of the miss rates that this run stated",
            figures=False,
        ),
        Column(
            "earned",
            "earned",
            "status that the outcomes so far earn: later runs state theirs under it",
            figures=False,
        ),
        Column(
            "missing",
            "what the next status needs",
            "every condition that is not met of the next status, and of not being stale",
            figures=False,
        ),
    ]
    rows = []
    for name, entry in by_strategy(page, page.report["calibration"]["strategies"]):
        unmet = [
            condition for condition in entry["standing"]["conditions"] if not condition["met"].value
        ]
        unmet = [
            condition
            for condition in unmet
            if condition["status"].value in {unmet[0]["status"].value, "stale"}
        ]  # the next step of the ladder
        rows.append(
            [
                page.series(page.strategy(name)["name"]),
                Words(page.report["uncertainty"]["strategies"][name]["status"], "chip"),
                Words(entry["status"], "chip"),
                Unmet(unmet),
            ]
        )
    return Table("miss-rate-status", "Status of the miss rates, and what is missing", columns, rows)


def conditions(page: Page) -> Table:
    """Every condition of every status, met or not."""
    columns = [
        Column(key, key, figures=False)
        for key in ("strategy", "status", "condition", "needed", "found", "met")
    ]
    rows = []
    for name, entry in by_strategy(page, page.report["calibration"]["strategies"]):
        for one in entry["standing"]["conditions"]:
            met = Words("met") if one["met"].value else Words("unmet", "chip")
            said = CONDITIONS.get(one["name"].value, one["name"])
            rows.append(
                [
                    page.series(page.strategy(name)["name"]),
                    Words(str(one["status"].value)),
                    Words(said),
                    Words(one["needed"]),
                    Words(one["found"]),
                    met,
                ]
            )
    return Table(
        "miss-rate-conditions",
        "Conditions of each status: what is needed and what was found",
        columns,
        rows,
    )


def rates(page: Page) -> Table:
    """Observed miss rates beside those that this run stated."""
    about = page.report["uncertainty"]
    k, target = about["k"].value, about["target"].value
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("stated_under", "status", figures=False),
        Column(
            "observed",
            f"observed {target}@{k}",
            f"share of questions without any gold in the first {k}; every wording and seed counts within its question"
            if target == "miss_any"
            else f"share of questions with gold missing from the first {k}",
        ),
        Column(
            "stated",
            "stated, mean",
            "mean of the miss rates stated for the same questions before they were judged",
        ),
        Column(
            "fraction",
            f"miss_frac@{k}",
            f"share of each question's gold that is missing from the first {k}: 1 − recall",
        ),
        Column("questions", "questions"),
        Column("groups", "groups"),
        Column("outcomes", "judged", "retrievals, of every wording and seed, that gold judges"),
        Column("misses", "missed", "of these"),
        Column("unstated", "unstated", "retrievals that no miss rate could be stated for"),
    ]
    rows = []
    for name, entry in by_strategy(page, about["strategies"]):
        observed = entry["observed"][target]
        rows.append(
            [
                page.series(page.strategy(name)["name"]),
                Words(entry["status"], "chip"),
                Estimate(observed),
                Estimate(entry["stated"]),
                Estimate(entry["observed"]["miss_frac"]),
                Number(observed["n_scored"]),
                Number(observed["n_groups"]),
                Number(entry["outcomes"]["n_judged"]),
                Number(entry["outcomes"]["n_missed"]),
                Number(entry["n_absent"]),
            ]
        )
    return Table(
        "miss-rates",
        "Miss rates: observed beside stated, over every wording and seed, 95 % intervals over groups",
        columns,
        rows,
    )


def quality(page: Page) -> Table | None:
    """How well miss rates were predicted out of fold, and how well the uncalibrated heuristic did on the same outcomes."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("predictor", "predicted by", figures=False),
        Column(
            "brier", "Brier", "mean squared error of the predicted probability; lower is better"
        ),
        Column(
            "skill",
            "skill",
            "Brier skill: share of the error of always predicting the miss rate that is gone; 0 is no better than that, 1 is perfect",
        ),
        Column(
            "auroc",
            "AUROC",
            "probability that a miss was predicted riskier than a hit; 0.5 is chance",
        ),
        Column(
            "slope", "slope", "calibration slope; 1 is right, below it predictions are too extreme"
        ),
        Column(
            "ece",
            "ECE",
            "expected calibration error beside the limit of what calibrated predictions show by chance, over all strategies checked together",
        ),
        Column("smece", "smECE", "smooth calibration error beside its limit"),
        Column("outcomes", "outcomes"),
        Column("groups", "groups"),
        Column("misses", "misses"),
    ]
    rows = []
    for name, entry in by_strategy(page, page.report["calibration"]["strategies"]):
        for key, words in (("validation", "calibrated"), ("heuristic_v0", "heuristic_v0")):
            about = entry[key]
            if about.value is None:
                continue
            shown = [
                Estimate(down(about, figure), digits=3 if figure == "brier" else 2)
                for figure in ("brier", "skill", "auroc", "slope")
            ]
            errors = [Limited(down(about, figure)) for figure in ("ece", "smece")]
            rows.append(
                [
                    page.series(page.strategy(name)["name"]),
                    Words(words, "code" if key == "heuristic_v0" else "plain"),
                    *shown,
                    *errors,
                    *(Number(down(about, count)) for count in ("n", "groups", "misses")),
                ]
            )
    return (
        Table("miss-rate-quality", "How well misses were predicted, out of fold", columns, rows)
        if rows
        else None
    )
