"""Citations and groundedness: outcomes of answers, and measures of citations."""

from rag_eval.answers.codes import CODES as CONTRACT
from rag_eval.answers.codes import CodeInfo
from rag_eval.core.types import CODES, FIXES
from rag_eval.reporting.html.elements import Cursor, Table, estimate_cell, number_cell, words_cell
from rag_eval.reporting.html.panel import UNKNOWN, Page, Panel, panel_words


def _gate_of(page: Page, measure: str) -> Cursor | None:
    """Find the acceptance gate of a measure; None if the gold set has no such gate."""
    for gate in page.report["gates"]:
        if gate.value["gate"] == "acceptance" and gate.value["evidence"].get("measure") == measure:
            return gate
    return None


def _records(page: Page, *parts: str) -> dict[str, Cursor]:
    """Return the measures by name, without failure rates, which the table of codes shows."""
    return {
        record.value["name"]: record
        for part in parts
        for record in page.report[part]["measures"]
        if not record.value["name"].startswith("failure_rate_")
    }


def _words(name: str) -> list[str]:
    """Return the short name and the description of a measure."""
    found: list[str] = panel_words()["answer_measures"].get(name, [name, ""])
    return found


def _measures(page: Page) -> Table:
    rows = []
    for name, record in _records(page, "citations", "answers").items():
        gate, words = _gate_of(page, name), _words(name)
        rows.append(
            {
                "measure": words[0],
                "record": record,
                "target": record.get("target") or "none",
                "gate": "none" if gate is None else gate["evidence"].get("accepted") or "",
                "status": words_cell("" if gate is None else gate["status"], "chip"),
                "about": words[1],
            }
        )
    return page.table("answer-measures", rows)


def _citation_codes(page: Page) -> Table:
    found, meanings = page.report["citations"]["codes"], panel_words()["citation_codes"]
    known = [code for code in CODES if code in found]
    known += [code for code in found.value if code not in CODES]
    rows = [
        {
            "code": code,
            "n": found[code],
            "meaning": meanings.get(code, UNKNOWN),
            "fix": FIXES.get(code, "" if code == "ok" else UNKNOWN),
        }
        for code in known
    ]
    return page.table("citation-codes", rows)


def _contract_codes(page: Page) -> Table | None:
    unknown = CodeInfo(UNKNOWN, UNKNOWN)
    rows = [
        {"code": code, "n": count, **CONTRACT.get(code, unknown)._asdict()}
        for code, count in page.report["answers"]["codes"].items()
    ]
    return page.optional_table("contract-codes", rows)


def _confidences(page: Page) -> Table | None:
    found = page.report.get("uncertainty", "answers")
    if found is None or "final_confidence" not in found:
        return None
    rows = []
    for name, (words, about) in panel_words()["confidences"].items():
        entry = found.down(name)
        is_record = entry is not None and isinstance(entry.value, dict)
        keys = ("n_scored", "n")
        counted = None if entry is None or not is_record else entry
        rows.append(
            {
                "confidence": words,
                "value": estimate_cell(entry) if is_record else number_cell(entry),
                "n": next((counted[key] for key in keys if counted and key in counted), ""),
                "effective": counted["n_effective"] if counted and "n_effective" in counted else "",
                "about": about,
            }
        )
    return page.table("answer-confidence", rows)


def _usage(page: Page) -> Table | None:
    usage, words = page.report["answers"].get("usage"), panel_words()["usage"]
    rows = [
        {"what": words.get(name, name), "value": figure}
        for name, figure in (() if usage is None else usage.items())
        if isinstance(figure.value, int | float | None) and not isinstance(figure.value, bool)
    ]
    return page.optional_table("answer-usage", rows)


def panel(page: Page) -> Panel:
    """Make the panel of citations and groundedness."""
    title, report = "Answers", page.report
    answers, citations = report["answers"], report["citations"]
    if "strategy" not in answers or "measures" not in citations:
        return Panel(title, "citations.html", {"answers": None})
    gap, outcomes = answers["gap"], panel_words()["outcomes"]
    flagged = [
        {"row": row, "meaning": panel_words()["gaps"].get(row.value["reason"], UNKNOWN)}
        for row in gap["flagged"]
    ]
    unsupported = [
        {"row": row, "cites": ", ".join(row["citations"].value)} for row in citations["unsupported"]
    ]
    ended = [
        {"outcome": name, "n": count, "meaning": outcomes.get(name, UNKNOWN)}
        for name, count in answers["outcomes"].items()
    ]
    tables = {
        "measures": _measures(page),
        "outcomes": page.table("answer-outcomes", ended),
        "codes": _citation_codes(page),
        "contract": _contract_codes(page),
        "unsupported": page.optional_table("unsupported", unsupported),
        "flagged": page.optional_table("retrieval-gap", flagged),
        "confidences": _confidences(page),
        "usage": _usage(page),
        "ragas": page.optional_table("ragas", page.report.get("ragas") or ()),
    }
    context = {
        "answers": answers,
        "citations": citations,
        "records": _records(page, "citations", "answers"),
        "unseen": [code for code in CODES if code not in citations["codes"].value],
        "gap": gap,
        "no_confidences": report.get("uncertainty", "answers", "reason"),
    }
    return Panel(title, "citations.html", context, tables)
