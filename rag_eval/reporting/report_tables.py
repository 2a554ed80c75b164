"""The tables of a report that the terminal and the page show, one function for each.

A table that one panel alone shows stands beside it. Columns are declared as
`heading = place in the row :decimals`; the meanings of headings stand in `words.toml`.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from markupsafe import Markup

from rag_eval.answers.codes import CODES as CONTRACT
from rag_eval.core.types import CODES, FIXES
from rag_eval.reporting.html.drawing import colour
from rag_eval.reporting.html.elements import series
from rag_eval.reporting.tables import Cursor, Table, panel_words

UNKNOWN: Final = "not described in this version"
"""Meaning of a code or state that `words.toml` does not list."""
Rows = Iterable[Mapping[str, Any] | Cursor]


@dataclasses.dataclass(frozen=True)
class Page:
    """The report as tables and panels read it.

    `has_questions`: whether the page holds the questions of the run.
    """

    report: Cursor
    has_questions: bool = False

    @functools.cached_property
    def _entries(self) -> dict[str, Cursor]:
        return {str(entry["name"].value): entry for entry in self.report["strategies"]}

    @functools.cached_property
    def strategies(self) -> list[str]:
        """Names of the strategies, in the order of the report."""
        return list(self._entries)

    @property
    def primary(self) -> str:
        """Name of the strategy with the headline figures."""
        return str(self.report["strategy"].value)

    @property
    def level(self) -> str:
        """Level (document, section or span) of the headline figures."""
        return str(self.report["evaluation"]["level"].value)

    def strategy(self, name: str) -> Cursor:
        """Return the place of one strategy in the report."""
        return self._entries[name]

    def measure(self, name: str, label: str, level: str | None = None) -> Cursor | None:
        """Return the record of a strategy's measure; None where the strategy has none."""
        return self.strategy(name)["measures"].where(label=label, level=level or self.level)

    def by_strategy(self, *path: str) -> list[tuple[str, Cursor]]:
        """Return (strategy, entry) of an object by strategy; absent strategies are left out."""
        place = self.report.down(*path)
        if place is None:
            return []
        return [(name, place[name]) for name in self.strategies if name in place]

    def rows_by_strategy(self, *path: str) -> list[dict[str, Any]]:
        """Return a row for each strategy in an object by strategy: its name and its entry."""
        return [{"strategy": name, "entry": entry} for name, entry in self.by_strategy(*path)]

    def colour(self, name: str) -> str:
        """Return the colour of a strategy; every picture of the page uses this colour."""
        return colour(self.strategies.index(name))

    def swatch(self, name: str) -> Markup:
        """Write the name of a strategy with its colour; the primary one is marked."""
        place, is_primary = self._series[name]
        return series(self.strategy(name)["name"], place, is_primary=is_primary)

    def group_alike(
        self, reasons: Iterable[tuple[str, Cursor | str]]
    ) -> list[tuple[Markup, Cursor | str]]:
        """Join the names of strategies with equal sentences; return (names, sentence) of each."""
        groups: dict[str, tuple[list[Markup], Cursor | str]] = {}
        for name, sentence in reasons:
            words = str(sentence.value if isinstance(sentence, Cursor) else sentence)
            groups.setdefault(words, ([], sentence))[0].append(self.swatch(name))
        return [(Markup(", ").join(names), sentence) for names, sentence in groups.values()]

    @functools.cached_property
    def _series(self) -> dict[str, tuple[int, bool]]:
        return {name: (at, name == self.primary) for at, name in enumerate(self.strategies)}

    def table(self, name: str, caption: str, columns: str, rows: Rows) -> Table:
        """Make a table; names of strategies have their colours."""
        return Table.of(name, caption, columns, rows, self._series)


# ---- Gates, runs, cost


def gates(page: Page, chosen: Iterable[Cursor] | None = None) -> Table:
    """Show each gate, or the chosen ones, with its figure, its bound and its reason."""
    rows = [
        {
            "gate": gate,
            "required": "required" if gate["required"].value else "advisory",
            "found": gate["evidence"] if {"value", "delta"} & gate["evidence"].value.keys() else "",
            "evidence": gate["evidence"],
        }
        for gate in (page.report["gates"] if chosen is None else chosen)
    ]
    columns = """gate = gate.id | status = gate.status | required | severity = gate.severity | found
        | relative drop = evidence.relative_drop | accepted = evidence.accepted
        | reason = gate.reason_code | effective = evidence.n_effective :1
        | catches a drop of = evidence.catches_drop"""
    return page.table("gates", "Gates: what was asked, and what was found", columns, rows)


PAIRED: Final = """difference = . | better = n_better | worse = n_worse | tied = n_tied
    | effective = n_effective :1"""
"""Columns of a paired difference."""


def leaves(cursor: Cursor, name: str = "", depth: int = 6) -> Iterator[tuple[str, Cursor]]:
    """Yield (dotted name, place) of each value in a part of the report."""
    if isinstance(cursor.value, dict) and depth:
        for key, inside in cursor.items():
            yield from leaves(inside, f"{name}.{key}" if name else key, depth - 1)
    elif isinstance(cursor.value, list) and depth and cursor.value:
        for at, inside in enumerate(cursor):
            yield from leaves(inside, f"{name}[{at}]", depth - 1)
    else:
        yield name, cursor


# ---- Stability


def wordings(page: Page) -> Table:
    """Show what the wording and the seed decide."""
    rows = page.rows_by_strategy("stability", "strategies")
    for row in rows:
        same = row["entry"]["seeds_change_nothing"]
        words = {True: "same lists", False: "other lists"}
        row["seeds"] = words.get(same.value, same)
    columns = """strategy | R@10 worst = entry.recall_at_10_by_wording.worst :2
        | R@10 mean = entry.recall_at_10_by_wording.mean :2
        | R@10 best = entry.recall_at_10_by_wording.best :2 | another seed = seeds
        | RBO = entry.rbo :2 | convergent and hit = entry.convergent_and_hit :2
        | questions = entry.recall_at_10_by_wording.mean.n_scored
        | effective = entry.recall_at_10_by_wording.mean.n_effective :1"""
    caption = "What the wording and the seed decide, 95 % intervals"
    return page.table("stability-wordings", caption, columns, rows)


def hit_changes(page: Page) -> Table:
    """Show the share of questions whose hit changes with the wording or the seed."""
    rows = page.rows_by_strategy("stability", "strategies")
    path = "entry.hit_changes_with_wording"
    cutoffs = list(rows[0]["entry"]["hit_changes_with_wording"].value) if rows else []
    figures = " | ".join(f"{key.replace('hit_at_', 'hit@')} = {path}.{key} :2" for key in cutoffs)
    columns = f"""strategy | {figures} | questions = {path}.hit_at_10.n_scored
        | effective = {path}.hit_at_10.n_effective :1"""
    caption = "Share of questions whose hit changes with the wording or the seed"
    return page.table("hit-changes", caption, columns, rows)


WORST_PAIRS: Final = 20
"""Largest number of wording pairs that the table of flips shows for a strategy."""


def distances(page: Page) -> Table:
    """Show the semantic distance of what was retrieved."""
    zones = " | ".join(
        f"{zone} = entry.delta_s.zones.{zone}.share :2"
        for zone in ("stable", "transitional", "risk", "undefined")
    )
    columns = f"""strategy | delta_s = entry.delta_s :2 | target = entry.delta_s.target
        | to gold = entry.delta_s.to_anchor :2n | to the decoy = entry.delta_s.to_decoy :2n
        | equally close = entry.delta_s.anchor_and_decoy_equally_close :2n | {zones}
        | questions = entry.delta_s.n_scored | effective = entry.delta_s.n_effective :1"""
    rows = page.rows_by_strategy("stability", "strategies")
    return page.table("delta-s", "Semantic distance of what was retrieved", columns, rows)


# ---- Miss rates


def miss_rates(page: Page) -> Table:
    """Show observed beside stated miss rates, with their status."""
    part = page.report["uncertainty"]
    k, target = part["k"].value, part["target"].value
    rows = page.rows_by_strategy("uncertainty", "strategies")
    calibrations = page.report["calibration"]["strategies"]
    rows = [row | {"calibration": calibrations[row["strategy"]]} for row in rows]
    observed = f"entry.observed.{target}"
    columns = f"""strategy | status = entry.status | observed {target}@{k} = {observed}
        | stated = entry.stated | miss_frac@{k} = entry.observed.miss_frac
        | questions = {observed}.n_scored | effective = {observed}.n_effective :1
        | judged = entry.outcomes.n_judged | missed = entry.outcomes.n_missed
        | unstated = entry.n_absent | skill = calibration.validation.skill :2
        | earned = calibration.status"""
    caption = "Miss rates: observed beside stated, over every wording and seed, 95 % intervals"
    return page.table("miss-rates", caption, columns, rows)


def unmet_conditions(page: Page) -> Table:
    """Show the conditions that the next higher status lacks, and those of stale."""
    rows = []
    for name, entry in page.by_strategy("calibration", "strategies"):
        conditions = [each for each in entry["standing"]["conditions"] if not each["met"].value]
        wanted = {conditions[0]["status"].value, "stale"} if conditions else set()
        rows += [
            {
                "strategy": name,
                "condition": each,
                "what": panel_words()["conditions"].get(each["name"].value, each["name"]),
            }
            for each in conditions
            if each["status"].value in wanted
        ]
    columns = """strategy | needed for = condition.status | condition = what
        | needed = condition.needed | found = condition.found"""
    return page.table("miss-rate-status", "What the next status needs", columns, rows)


def iterative(page: Page) -> Table:
    """Show what the rounds of iterative strategies recovered, lost and cost."""
    rows = [
        {"strategy": name, "base": part["base"], "account": account}
        for name, part in page.report["uncertainty"]["iterative"].items()
        for account in part["accounts"]
    ]
    columns = """strategy | over = base | expansion = account.strategy | verdict = account.verdict
        | recall after - before = account | p = account.p :4 | recovered = account.recovered
        | lost = account.lost | expanded = account.triggered | of = account.questions
        | extra queries = account.extra_queries | extra seconds = account.extra_seconds :1
        | effective = account.n_effective :1"""
    caption = "Iterative retrieval: misses recovered and hits lost"
    return page.table("iterative", caption, columns, rows)


# ---- Answers and citations


def answer_records(page: Page) -> dict[str, Cursor]:
    """Return the measures by name, without failure rates, which the table of codes shows."""
    return {
        record.value["name"]: record
        for part in ("citations", "answers")
        for record in page.report.get(part, "measures") or ()
        if not record.value["name"].startswith("failure_rate_")
    }


def answer_measures(page: Page) -> Table:
    """Show the measures of answers and citations."""
    gate_of = {
        gate.value["evidence"].get("measure"): gate
        for gate in page.report["gates"]
        if gate.value["gate"] == "acceptance"
    }
    rows = []
    for name, record in answer_records(page).items():
        words, gate = panel_words()["answer_measures"].get(name, [name, ""]), gate_of.get(name)
        rows.append(
            {
                "measure": words[0],
                "record": record,
                "target": record.get("target") or "none",
                "gate": "none" if gate is None else gate["evidence"].get("accepted") or "",
                "status": "" if gate is None else gate["status"],
                "meaning": words[1],
            }
        )
    columns = """measure | value = record | target | scored = record.n_scored
        | attempted = record.n_attempted | failed = record.n_failed | units = record.n_units
        | effective = record.n_effective :1 | gate | status | what it is = meaning"""
    return page.table("answer-measures", "Measures of answers and citations", columns, rows)


def answer_outcomes(page: Page) -> Table:
    """Show how the questions ended."""
    words = panel_words()["outcomes"]
    rows = [
        {"outcome": name, "questions": count, "meaning": words.get(name, UNKNOWN)}
        for name, count in page.report["answers"]["outcomes"].items()
    ]
    columns = "outcome | questions | meaning"
    return page.table("answer-outcomes", "How the questions ended", columns, rows)


def citation_codes(page: Page) -> Table:
    """Show citations by the rules that they break, in the order of the rules."""
    counts, meanings = page.report["citations"]["codes"], panel_words()["citation_codes"]
    codes = [code for code in CODES if code in counts]
    codes += [code for code in counts.value if code not in CODES]
    rows = [
        {
            "code": code,
            "n": counts[code],
            "meaning": meanings.get(code, UNKNOWN),
            "fix": FIXES.get(code, "" if code == "ok" else UNKNOWN),
        }
        for code in codes
    ]
    caption = "Citations by the rules that they break"
    return page.table("citation-codes", caption, "code | n | meaning | fix", rows)


def contract_codes(page: Page) -> Table:
    """Show answers that broke their contract, by code."""
    rows = [
        {
            "code": code,
            "n": count,
            "meaning": CONTRACT[code].meaning if code in CONTRACT else UNKNOWN,
            "fix": CONTRACT[code].fix if code in CONTRACT else UNKNOWN,
        }
        for code, count in page.report["answers"]["codes"].items()
    ]
    caption = "Answers that broke their contract, by code"
    return page.table("contract-codes", caption, "code | n | meaning | fix", rows)


def answer_confidences(page: Page) -> Table:
    """Show what the answers are worth, mean over answers."""
    part = page.report.get("uncertainty", "answers")
    rows = []
    if part is not None and "final_confidence" in part:
        for name, (words, meaning) in panel_words()["confidences"].items():
            rows.append({"confidence": words, "mean": part.down(name), "meaning": meaning})
    columns = "confidence | mean = mean :3n | what it is = meaning"
    return page.table("answer-confidence", "Mean confidence of the answers", columns, rows)


def usage(page: Page) -> Table:
    """Show the use of models for the answers."""
    words = panel_words()["usage"]
    rows = [
        {"what": words.get(name, name), "value": figure}
        for name, figure in (page.report["answers"].get("usage") or Cursor({})).items()
        if isinstance(figure.value, int | float | None) and not isinstance(figure.value, bool)
    ]
    caption = "Use of models for the answers of this run"
    return page.table("answer-usage", caption, "what | value :6", rows)


def ragas(page: Page) -> Table:
    """Show measures of ragas beside ours."""
    columns = """measure = name | ragas = . | scored = n_scored | effective = n_effective :1
        | our measure = ours | ours = ours_value | difference"""
    caption = "Measures of ragas that need no model, beside ours"
    return page.table("ragas", caption, columns, page.report.get("ragas") or ())


# ---- Trust


def retrieved_trust(page: Page) -> Table:
    """Show the trust of what each strategy retrieved."""
    columns = """strategy | trust = entry.avg_trust | scored = entry.avg_trust.n_scored
        | effective = entry.avg_trust.n_effective :1 | retrieved = entry.n_retrieved
        | blocked = entry.n_blocked | warned = entry.n_warned"""
    rows = page.rows_by_strategy("trust", "retrieved")
    return page.table("trust-retrieved", "Trust of what each strategy retrieved", columns, rows)


def guard_reasons(page: Page) -> Table:
    """Show blocked and warned chunks by reason code, the most frequent first."""
    words, counts = panel_words()["trust_checks"], page.report["trust"]["poisoning"]["reasons"]
    rows = [
        {"code": code, "n": n, "check": words.get(code.split(".", 1)[0], UNKNOWN)}
        for code, n in sorted(counts.items(), key=lambda item: (-item[1].value, item[0]))
    ]
    columns = "reason code = code | chunks = n | what the check looks for = check"
    return page.table("trust-reasons", "Blocked and warned chunks by reason", columns, rows)


def trust_filter(page: Page) -> Table:
    """Show recall with and without the trust filter."""
    columns = f"""strategy | measure | with the filter = with_filter | without = without_filter
        | n = with_filter.n_scored | {PAIRED} | p (Holm) = p_adjusted :4
        | detectable = minimum_detectable"""
    rows = page.report["trust"]["filter"].get("rows") or ()
    return page.table("trust-filter", "Recall with and without the trust filter", columns, rows)


@dataclasses.dataclass(frozen=True)
class Panel:
    """One part of the page: heading, template, variables of the template, and tables by name."""

    title: str
    template: str
    context: Mapping[str, Any]
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)


def lost_steps(misses: Cursor) -> list[tuple[str, Cursor]]:
    """Return (words, number of questions) of each step that lost gold, the most frequent first."""
    lost, words = misses["lost"], panel_words()["lost"]
    steps = [(words[step], lost[step]) for step in words if lost.value.get(step)]
    return sorted(steps, key=lambda pair: -pair[1].value)
