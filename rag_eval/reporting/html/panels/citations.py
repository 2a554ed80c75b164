"""Citations and groundedness: how answers ended, whether what they cite is right, and what they are worth."""

import re
from typing import Any

from markupsafe import Markup

from rag_eval.answers.codes import CODES as CONTRACT
from rag_eval.records.citation import CODES, FIXES
from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.forests import Row, forest, plots
from rag_eval.reporting.html.page import Page, Panel
from rag_eval.reporting.html.panels.citation_words import (
    CONFIDENCES,
    GAPS,
    MEANINGS,
    MEASURES,
    OUTCOMES,
    UNKNOWN,
    USAGE,
)
from rag_eval.reporting.html.panels.parts import down
from rag_eval.reporting.html.pictures import BAD, GOOD, WARN
from rag_eval.reporting.html.tables import Cell, Column, Estimate, Number, Table, Words

_BOUND = re.compile(r"(?:>=|<=|>|<)\s*(\d*\.?\d+)")
_WEIGHTS = ("citation_match_rate", "groundedness")
_COLOURS = {"pass": GOOD, "fail": BAD}


def gates_of(page: Page, measure: str) -> Cursor | None:
    """Find the acceptance gate that a measure is judged by; None where the gold set asks for nothing."""
    found = (
        gate
        for gate in page.report["gates"]
        if gate.value["gate"] == "acceptance" and gate.value["evidence"].get("measure") == measure
    )
    return next(found, None)


def _target(page: Page, record: Cursor) -> float | None:
    gate = gates_of(page, record.value["name"])
    said = (
        record.value.get("target", "")
        if gate is None
        else str(gate.value["evidence"].get("accepted", ""))
    )
    found = _BOUND.fullmatch(said.strip())
    return None if found is None else float(found[1])


def _records(page: Page) -> list[Cursor]:
    """Measures of answers and of citations, the failure rates of single codes aside: the table of codes counts those."""
    every = [*page.report["citations"]["measures"], *page.report["answers"]["measures"]]
    return [record for record in every if not record.value["name"].startswith("failure_rate_")]


def _pictures(page: Page) -> Markup:
    parts = []
    for name, title, part in (
        ("citations", "Citations", "citations"),
        ("answers", "Answers", "answers"),
    ):
        rows = []
        for record in page.report[part]["measures"]:
            if record.value["name"].startswith("failure_rate_"):
                continue
            gate = gates_of(page, record.value["name"])
            colour = (
                page.colour(page.report["answers"]["strategy"].value)
                if gate is None
                else _COLOURS.get(gate.value["status"], WARN)
            )
            rows.append(
                Row(
                    MEASURES.get(record.value["name"], (record.value["name"], ""))[0],
                    record,
                    colour,
                    strong=record.value["name"] in _WEIGHTS,
                    target=_target(page, record),
                )
            )
        parts.append(
            forest(
                rows,
                f"answers-{name}",
                f"Measures of {title.lower()} with 95 % intervals",
                "95 % interval; stroke: target",
                head=title,
            )
        )
    return plots([part for part in parts if part])


def _measures(page: Page) -> Table:
    columns = [
        Column("measure", "measure", figures=False),
        Column("value", "value"),
        Column("scored", "n scored", "questions in the figure"),
        Column("attempted", "attempted"),
        Column(
            "failed", "failed", "of the scored questions, those whose answer failed: each is a miss"
        ),
        Column(
            "units",
            "units",
            "what is counted: citations or gold spans for shares of them, else questions",
        ),
        Column("groups", "groups", "independent groups of the scored questions"),
        Column("target", "target", "what the field asks for", figures=False),
        Column("gate", "gate", "what the gold set's acceptance gate asks for", figures=False),
        Column("status", "status", figures=False),
        Column("about", "what it is", figures=False),
    ]
    rows: list[list[Cell]] = []
    for record in _records(page):
        gate, words = (
            gates_of(page, record.value["name"]),
            MEASURES.get(record.value["name"], (record.value["name"], "")),
        )
        judged: list[Cell] = (
            [Words("none"), Words("")]
            if gate is None
            else [Words(gate["evidence"].get("accepted") or ""), Words(gate["status"], "chip")]
        )
        counts = [
            Number(record[key])
            for key in ("n_scored", "n_attempted", "n_failed", "n_units", "n_groups")
        ]
        rows.append(
            [
                Words(words[0]),
                Estimate(record),
                *counts,
                Words(record.get("target") or "none"),
                *judged,
                Words(words[1]),
            ]
        )
    return Table(
        "answer-measures",
        "Measures of answers and citations, with intervals over groups of questions",
        columns,
        rows,
    )


def _outcomes(page: Page) -> Table:
    rows = [
        [Words(name), Number(count), Words(OUTCOMES.get(name, UNKNOWN))]
        for name, count in page.report["answers"]["outcomes"].items()
    ]
    return Table(
        "answer-outcomes",
        "How the questions ended",
        [
            Column("outcome", "outcome", figures=False),
            Column("n", "questions"),
            Column("meaning", "meaning", figures=False),
        ],
        rows,
    )


_CODE_COLUMNS = (
    Column("code", "code", figures=False),
    Column("n", "n"),
    Column("meaning", "meaning", figures=False),
    Column("fix", "fix", figures=False),
)


def _citation_codes(page: Page) -> Table:
    found = dict(page.report["citations"]["codes"].items())
    known = [code for code in CODES if code in found] + [
        code for code in found if code not in CODES
    ]
    rows = [
        [
            Words(code, "code"),
            Number(found[code]),
            Words(MEANINGS.get(code, UNKNOWN)),
            Words(FIXES.get(code, "" if code == "ok" else UNKNOWN)),
        ]
        for code in known
    ]
    return Table("citation-codes", "Citations by the rules that they break", _CODE_COLUMNS, rows)


def _contract_codes(page: Page) -> Table:
    known = {str(code): info for code, info in CONTRACT.items()}
    rows = [
        [
            Words(code, "code"),
            Number(count),
            Words(known[code].meaning if code in known else UNKNOWN),
            Words(known[code].fix if code in known else UNKNOWN),
        ]
        for code, count in page.report["answers"]["codes"].items()
    ]
    return Table(
        "contract-codes", "Answers that broke their contract, by code", _CODE_COLUMNS, rows
    )


def _flagged(gap: Cursor) -> Table:
    columns = [
        Column("question", "question", figures=False),
        Column("reason", "reason", figures=False),
        Column("meaning", "meaning", figures=False),
        Column("answer", "answer", figures=False),
    ]
    rows = [
        [
            Words(row["query_id"], "code"),
            Words(row["reason"], "code"),
            Words(GAPS.get(row.value["reason"], UNKNOWN)),
            Words(row["answer"]),
        ]
        for row in gap["flagged"]
    ]
    return Table(
        "retrieval-gap",
        "Answers that neither cite nor use what was retrieved for them",
        columns,
        rows,
    )


def _confidences(page: Page) -> Table | None:
    found = page.report.get("uncertainty", "answers")
    if found is None or "final_confidence" not in found:
        return None
    columns = [
        Column("confidence", "confidence", figures=False),
        Column("value", "mean"),
        Column("n", "n"),
        Column("groups", "groups"),
        Column("about", "what it is", figures=False),
    ]
    rows: list[list[Cell]] = []
    for name, (shown, about) in CONFIDENCES.items():
        entry = down(found, name)
        there = entry is not None and isinstance(entry.value, dict)
        counts: list[Cell] = [
            Number(place) if place is not None else Words("")
            for place in (_first(entry, "n_scored", "n"), _first(entry, "n_groups"))
        ]
        rows.append(
            [Words(shown), Estimate(entry) if there else Number(entry), *counts, Words(about)]
        )
    return Table(
        "answer-confidence", "What the answers are worth, mean over answers", columns, rows
    )


def _first(entry: Cursor | None, *keys: str) -> Cursor | None:
    return (
        None
        if entry is None or not isinstance(entry.value, dict)
        else next((entry[key] for key in keys if key in entry), None)
    )


def _usage(page: Page) -> Table | None:
    usage = page.report["answers"]["usage"]
    if not usage.value:
        return None
    rows = [
        [Words(USAGE.get(name, name)), Number(figure, 6)]
        for name, figure in usage.items()
        if figure.value is None
        or (isinstance(figure.value, int | float) and not isinstance(figure.value, bool))
    ]
    return Table(
        "answer-usage",
        "What answering used, in this run",
        [Column("what", "what", figures=False), Column("value", "value")],
        rows,
    )


def panel(page: Page) -> Panel:
    """Make the panel."""
    title, report = "Citations and groundedness", page.report
    if "strategy" not in report["answers"] or "measures" not in report["citations"]:
        return Panel(title, "citations.html", {"answers": None})
    gap = report["answers"]["gap"]
    context: dict[str, Any] = {
        "answers": report["answers"],
        "citations": report["citations"],
        "pictures": _pictures(page),
        "records": {record.value["name"]: record for record in _records(page)},
        "measures": _measures(page),
        "outcomes": _outcomes(page),
        "codes": _citation_codes(page),
        "unseen": [code for code in CODES if code not in report["citations"]["codes"].value],
        "contract": _contract_codes(page) if report["answers"]["codes"].value else None,
        "gap": gap,
        "flagged": _flagged(gap) if gap["flagged"].value else None,
        "confidences": _confidences(page),
        "no_confidences": report.get("uncertainty", "answers", "reason"),
        "usage": _usage(page),
    }
    tables = ("measures", "outcomes", "codes", "contract", "flagged", "confidences", "usage")
    return Panel(
        title,
        "citations.html",
        context,
        tuple(context[name] for name in tables if isinstance(context[name], Table)),
    )
