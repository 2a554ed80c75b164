"""Tables of conformal K: the K of every rule and level, and what it covers on held-out groups."""

import dataclasses

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor, absent, number, written
from rag_eval.reporting.html.latex import tex
from rag_eval.reporting.html.page import Page
from rag_eval.reporting.html.panels.parts import alike, by_strategy, reason_of
from rag_eval.reporting.html.tables import Cell, Column, Estimate, Number, Table, Words

METHODS = {
    "fixed": "one K",
    "recall": "one K, for expected recall",
    "adaptive": "K by predicted risk",
    "mondrian": "K by third of predicted risk",
}
NOT_ATTAINABLE = "not attainable"


@dataclasses.dataclass(frozen=True)
class Ks(Cell):
    """K of a conformal rule: one, or one for each third of predicted risk; in words where none is attainable."""

    rule: Cursor

    def _by_risk(self) -> bool:
        return (
            self.rule["method"].value == "adaptive"
            and bool(self.rule["attainable"].value)
            and bool(self.rule["curve"])
        )

    def _ks(self) -> list[Cursor]:
        if self._by_risk():
            return [
                self.rule["mean_k"],
                self.rule["curve"][0]["k"],
                self.rule["curve"][len(self.rule["curve"]) - 1]["k"],
            ]
        return [part["k"] for part in self.rule["bins"]] or [self.rule["k"]]

    def html(self) -> Markup:
        """Write it for the page."""
        if all(k.value is None for k in self._ks()):
            return Markup('<span class="muted">{}</span>').format(NOT_ATTAINABLE)
        shown = [
            absent(f"{NOT_ATTAINABLE} within the lists") if k.value is None else number(k, 1)
            for k in self._ks()
        ]
        return (
            Markup('{} <span class="ci">[{} to {}]</span>').format(*shown)
            if self._by_risk()
            else Markup(" · ").join(shown)
        )

    def _plain(self) -> str:
        return "; ".join(NOT_ATTAINABLE if k.value is None else str(k.value) for k in self._ks())

    def csv(self, key: str) -> dict[str, str]:
        """Write it for CSV; several K apart by semicolons: mean, smallest, largest, or by third."""
        return {key: self._plain()}

    def tex(self) -> str:
        """Write it for LaTeX."""
        return tex(
            "; ".join(
                NOT_ATTAINABLE if k.value is None else written(k.value, 1) for k in self._ks()
            )
        )


def _rules(entry: Cursor) -> dict[str, list[Cursor]]:
    found: dict[str, list[Cursor]] = {}
    for rule in entry["conformal"]:
        found.setdefault(str(rule["method"].value), []).append(rule)
    return found


def without_k(page: Page) -> list[tuple[Markup, Cursor | str]]:
    """Strategies that have no K by a method, and why; none in a report of an older version, which does not say."""
    found: dict[str, list[tuple[str, Cursor | str]]] = {}
    for name, entry in by_strategy(page, page.report["calibration"]["strategies"]):
        for method, words in METHODS.items():
            if "conformal_methods" in entry and entry["conformal_methods"][method].value is None:
                found.setdefault(words, []).append(
                    (name, reason_of(entry["conformal_methods"][method]))
                )
    return [
        (Markup("{} of {}").format(words, names), reason)
        for words, said in found.items()
        for names, reason in alike(page, said)
    ]


def left_out(page: Page) -> list[tuple[Markup, Cursor]]:
    """Strategies with questions that K by risk leaves out, and how many."""
    entries = [
        (name, entry["conformal_methods"])
        for name, entry in by_strategy(page, page.report["calibration"]["strategies"])
        if "conformal_methods" in entry
    ]
    return [
        (page.swatch(name), about["without_risk"])
        for name, about in entries
        if about["without_risk"].value and about["adaptive"].value is not None
    ]


def conformal(page: Page) -> Table:
    """Conformal K by strategy, method and level."""
    levels = sorted(
        {
            float(rule["level"].value)
            for _, entry in page.report["calibration"]["strategies"].items()
            for rule in entry["conformal"]
        }
    )
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("rule", "rule", figures=False),
        *(
            Column(
                f"k_{level * 1000:.0f}_permille",
                f"K for {level:.0%}",
                "one K; for K by predicted risk its mean, and its smallest and largest; for thirds of predicted risk from the least risky third to the riskiest",
            )
            for level in levels
        ),
        Column(
            "within",
            "any gold in the list",
            "share of the questions with gold anywhere within the depth, for expected recall the mean recall of the whole lists: no K can cover more",
        ),
        Column("depth", "depth"),
        Column("questions", "questions"),
        Column("groups", "groups"),
    ]
    rows = []
    for name, entry in by_strategy(page, page.report["calibration"]["strategies"]):
        for method, rules in _rules(entry).items():
            by_level = {float(rule["level"].value): rule for rule in rules}
            ks = [Ks(by_level[level]) if level in by_level else Words("") for level in levels]
            about = [
                Number(rules[0]["within_depth"], 3, percent=True),
                *(Number(rules[0][key]) for key in ("depth", "n", "n_groups")),
            ]
            rows.append(
                [
                    page.series(page.strategy(name)["name"]),
                    Words(METHODS.get(method, method)),
                    *ks,
                    *about,
                ]
            )
    return Table(
        "conformal-k",
        "Conformal K: how many results to read so that gold is expected among them",
        columns,
        rows,
    )


def coverage(page: Page) -> Table:
    """What conformal K covers on held-out groups."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("rule", "rule", figures=False),
        Column(
            "level",
            "level",
            "share of new questions that is to have gold in the first K; for expected recall, the recall that is to be expected",
        ),
        Column("mean_k", "mean K"),
        Column("mean_k_held_out", "mean K, held out"),
        Column(
            "coverage",
            "coverage",
            "share of held-out questions with gold in their first K, for expected recall their mean recall; a K beyond the depth of the lists counts as not covered",
        ),
        Column(
            "riskiest",
            "riskiest third",
            "the same among the third of the questions with the highest predicted risk",
        ),
        Column("unattainable", "K beyond the depth", "share of held-out questions"),
    ]
    rows = []
    for name, entry in by_strategy(page, page.report["calibration"]["strategies"]):
        for rule in entry["conformal"]:
            shares = [
                Estimate(rule["coverage"], digits=2),
                Estimate(rule["riskiest"], digits=2),
                Number(rule["share_unattainable"], 2),
            ]
            words = Words(METHODS.get(rule["method"].value, str(rule["method"].value)))
            rows.append(
                [
                    page.series(page.strategy(name)["name"]),
                    words,
                    Number(rule["level"], 2, percent=True),
                    Number(rule["mean_k"], 1),
                    Number(rule["mean_k_held_out"], 1),
                    *shares,
                ]
            )
    return Table(
        "conformal-coverage",
        "Coverage of conformal K on held-out groups, 95 % intervals",
        columns,
        rows,
    )
