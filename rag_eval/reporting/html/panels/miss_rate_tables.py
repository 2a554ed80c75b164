"""Tables of the miss-rate panel that are of single strategies: status and conditions, observed beside stated, how well predictions fit, conformal K.

Belongs here: which figures stand beside which. Comparisons and what is watched over time are `miss_rate_more`.
"""

import dataclasses
from collections.abc import Sequence

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor, absent, number, text, written
from rag_eval.reporting.html.page import Page
from rag_eval.reporting.html.panels.parts import Limited, by_strategy, down
from rag_eval.reporting.html.tables import Cell, Column, Estimate, Number, Table, Words, plain, tex
from rag_eval.reporting.html.untrusted import visible

CONDITIONS = {
    "queries": "queries with known signals",
    "queries_for_z_scores": "queries to scale the signals by",
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
}
METHODS = {"fixed": "one K", "recall": "one K, for expected recall", "adaptive": "K by predicted risk", "mondrian": "K by third of predicted risk"}
NOT_ATTAINABLE = "not attainable"


@dataclasses.dataclass(frozen=True)
class Unmet(Cell):
    """Conditions that keep a status from being higher: what is needed, what was found."""

    of: Sequence[Cursor]

    def html(self) -> Markup:
        """Write them for the page, one a line."""
        if not self.of:
            return Markup('<span class="muted">nothing</span>')
        lines = (Markup("<li>{} needs {}: {}, found {}</li>").format(text(one["status"]), CONDITIONS.get(one["name"].value, visible(one["name"].value)), text(one["needed"]), text(one["found"])) for one in self.of)
        return Markup('<ul class="unmet">{}</ul>').format(Markup().join(lines))

    def _plain(self) -> str:
        return "; ".join(f"{one['status'].value} needs {one['name'].value}: {one['needed'].value}, found {one['found'].value}" for one in self.of)

    def csv(self, key: str) -> dict[str, str]:
        """Write them for CSV."""
        return {key: plain(self._plain())}

    def tex(self) -> str:
        """Write them for LaTeX."""
        return tex(visible(self._plain()))


@dataclasses.dataclass(frozen=True)
class Ks(Cell):
    """K of a conformal rule: one, or one for each third of predicted risk; in words where none is attainable."""

    rule: Cursor

    def _by_risk(self) -> bool:
        return self.rule["method"].value == "adaptive" and bool(self.rule["attainable"].value) and bool(self.rule["curve"])

    def _ks(self) -> list[Cursor]:
        if self._by_risk():
            return [self.rule["mean_k"], self.rule["curve"][0]["k"], self.rule["curve"][len(self.rule["curve"]) - 1]["k"]]
        return [part["k"] for part in self.rule["bins"]] or [self.rule["k"]]

    def html(self) -> Markup:
        """Write it for the page."""
        if all(k.value is None for k in self._ks()):
            return Markup('<span class="muted">{}</span>').format(NOT_ATTAINABLE)
        shown = [absent(f"{NOT_ATTAINABLE} within the lists") if k.value is None else number(k, 1) for k in self._ks()]
        return Markup('{} <span class="ci">[{} to {}]</span>').format(*shown) if self._by_risk() else Markup(" · ").join(shown)

    def _plain(self) -> str:
        return "; ".join(NOT_ATTAINABLE if k.value is None else str(k.value) for k in self._ks())

    def csv(self, key: str) -> dict[str, str]:
        """Write it for CSV; several K apart by semicolons: mean, smallest, largest, or by third."""
        return {key: self._plain()}

    def tex(self) -> str:
        """Write it for LaTeX."""
        return tex("; ".join(NOT_ATTAINABLE if k.value is None else written(k.value, 1) for k in self._ks()))


def status(page: Page) -> Table:
    """Status of every strategy: under which tonight's figures were stated, which the outcomes have earned, and what keeps it from being higher."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("stated_under", "stated under", "status of the miss rates that this run stated", figures=False),
        Column("earned", "earned", "status that the outcomes so far earn: later runs state theirs under it", figures=False),
        Column("missing", "what the next status needs", "every condition that is not met of the next status, and of not being stale", figures=False),
    ]
    rows = []
    for name, entry in by_strategy(page, page.report["calibration"]["strategies"]):
        unmet = [condition for condition in entry["standing"]["conditions"] if not condition["met"].value]
        unmet = [condition for condition in unmet if condition["status"].value in {unmet[0]["status"].value, "stale"}]  # the next step of the ladder
        rows.append([page.series(page.strategy(name)["name"]), Words(page.report["uncertainty"]["strategies"][name]["status"], "chip"), Words(entry["status"], "chip"), Unmet(unmet)])
    return Table("miss-rate-status", "Status of the miss rates, and what is missing", columns, rows)


def conditions(page: Page) -> Table:
    """Every condition of every status, met or not."""
    columns = [Column(key, key, figures=False) for key in ("strategy", "status", "condition", "needed", "found", "met")]
    rows = []
    for name, entry in by_strategy(page, page.report["calibration"]["strategies"]):
        for one in entry["standing"]["conditions"]:
            met = Words("met") if one["met"].value else Words("unmet", "chip")
            said = CONDITIONS.get(one["name"].value, one["name"])
            rows.append([page.series(page.strategy(name)["name"]), Words(str(one["status"].value)), Words(said), Words(one["needed"]), Words(one["found"]), met])
    return Table("miss-rate-conditions", "Conditions of each status: what is needed and what was found", columns, rows)


def rates(page: Page) -> Table:
    """Observed miss rates beside those that this run stated."""
    about = page.report["uncertainty"]
    k, target = about["k"].value, about["target"].value
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("stated_under", "status", figures=False),
        Column("observed", f"observed {target}@{k}", f"share of questions without any gold in the first {k}; every wording and seed counts within its question" if target == "miss_any" else f"share of questions with gold missing from the first {k}"),
        Column("stated", "stated, mean", "mean of the miss rates stated for the same questions before they were judged"),
        Column("fraction", f"miss_frac@{k}", f"share of each question's gold that is missing from the first {k}: 1 − recall"),
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
    return Table("miss-rates", "Miss rates: observed beside stated, 95 % intervals over groups", columns, rows)


def quality(page: Page) -> Table | None:
    """How well miss rates were predicted out of fold, and how well the uncalibrated heuristic did on the same outcomes."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("predictor", "predicted by", figures=False),
        Column("brier", "Brier", "mean squared error of the predicted probability; lower is better"),
        Column("skill", "skill", "Brier skill: share of the error of always predicting the miss rate that is gone; 0 is no better than that, 1 is perfect"),
        Column("auroc", "AUROC", "probability that a miss was predicted riskier than a hit; 0.5 is chance"),
        Column("slope", "slope", "calibration slope; 1 is right, below it predictions are too extreme"),
        Column("ece", "ECE", "expected calibration error beside the limit of what calibrated predictions show by chance, over all strategies checked together"),
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
            shown = [Estimate(down(about, figure), digits=3 if figure == "brier" else 2) for figure in ("brier", "skill", "auroc", "slope")]
            errors = [Limited(down(about, figure)) for figure in ("ece", "smece")]
            rows.append([page.series(page.strategy(name)["name"]), Words(words, "code" if key == "heuristic_v0" else "plain"), *shown, *errors, *(Number(down(about, count)) for count in ("n", "groups", "misses"))])
    return Table("miss-rate-quality", "How well misses were predicted, out of fold", columns, rows) if rows else None


def _rules(entry: Cursor) -> dict[str, list[Cursor]]:
    found: dict[str, list[Cursor]] = {}
    for rule in entry["conformal"]:
        found.setdefault(str(rule["method"].value), []).append(rule)
    return found


def conformal(page: Page) -> Table:
    """Conformal K by strategy, method and level."""
    levels = sorted({float(rule["level"].value) for _, entry in page.report["calibration"]["strategies"].items() for rule in entry["conformal"]})
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("rule", "rule", figures=False),
        *(Column(f"k_{level * 1000:.0f}_permille", f"K for {level:.0%}", "one K; for K by predicted risk its mean, and its smallest and largest; for thirds of predicted risk from the least risky third to the riskiest") for level in levels),
        Column("within", "any gold in the list", "share of the questions with gold anywhere within the depth: no K can cover more"),
        Column("depth", "depth"),
        Column("questions", "questions"),
        Column("groups", "groups"),
    ]
    rows = []
    for name, entry in by_strategy(page, page.report["calibration"]["strategies"]):
        for method, rules in _rules(entry).items():
            by_level = {float(rule["level"].value): rule for rule in rules}
            ks = [Ks(by_level[level]) if level in by_level else Words("") for level in levels]
            about = [Number(rules[0]["within_depth"], 3, percent=True), *(Number(rules[0][key]) for key in ("depth", "n", "n_groups"))]
            rows.append([page.series(page.strategy(name)["name"]), Words(METHODS.get(method, method)), *ks, *about])
    return Table("conformal-k", "Conformal K: how many results to read so that gold is expected among them", columns, rows)


def coverage(page: Page) -> Table:
    """What conformal K covers on held-out groups."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("rule", "rule", figures=False),
        Column("level", "level", "share of new questions that is to have gold in the first K"),
        Column("mean_k", "mean K"),
        Column("mean_k_held_out", "mean K, held out"),
        Column("coverage", "coverage", "share of held-out questions with gold in their first K; a K beyond the depth of the lists counts as not covered"),
        Column("riskiest", "riskiest third", "the same among the third of the questions with the highest predicted risk"),
        Column("unattainable", "K beyond the depth", "share of held-out questions"),
    ]
    rows = []
    for name, entry in by_strategy(page, page.report["calibration"]["strategies"]):
        for rule in entry["conformal"]:
            shares = [Estimate(rule["coverage"], digits=2), Estimate(rule["riskiest"], digits=2), Number(rule["share_unattainable"], 2)]
            words = Words(METHODS.get(rule["method"].value, str(rule["method"].value)))
            rows.append([page.series(page.strategy(name)["name"]), words, Number(rule["level"], 2, percent=True), Number(rule["mean_k"], 1), Number(rule["mean_k_held_out"], 1), *shares])
    return Table("conformal-coverage", "Coverage of conformal K on held-out groups, 95 % intervals", columns, rows)
