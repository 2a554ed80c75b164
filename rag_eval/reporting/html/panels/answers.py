"""Panel of answers: their outcomes, citations and groundedness."""

from rag_eval.core.types import CODES
from rag_eval.reporting import report_tables as tables
from rag_eval.reporting.report_tables import Page, Panel
from rag_eval.reporting.tables import Table, panel_words


def panel(page: Page) -> Panel:
    """Make the panel of citations and groundedness."""
    title, report = "Answers", page.report
    answers, citations = report["answers"], report["citations"]
    if "strategy" not in answers or "measures" not in citations:
        return Panel(title, "citations.html", {"answers": None})
    context = {
        "answers": answers,
        "citations": citations,
        "records": tables.answer_records(page),
        "unseen": [code for code in CODES if code not in citations["codes"].value],
        "gap": answers["gap"],
        "no_confidences": report.get("uncertainty", "answers", "reason"),
    }
    shown = {
        "measures": tables.answer_measures(page),
        "outcomes": tables.answer_outcomes(page),
        "codes": tables.citation_codes(page),
        "contract": tables.contract_codes(page),
        "unsupported": _unsupported_table(page),
        "flagged": _unused_evidence_table(page),
        "confidences": tables.answer_confidences(page),
        "usage": tables.usage(page),
        "ragas": tables.ragas(page),
    }
    return Panel(title, "citations.html", context, shown)


# ---- Tables that only this panel shows.


def _unsupported_table(page: Page) -> Table:
    """Show sentences that their citations do not support."""
    columns = """question = query_id | sentence | cites = citations | score :2
        | best passage = passage | conflict | lacks"""
    rows = page.report["citations"]["unsupported"]
    caption = "Sentences that their citations do not support"
    return page.table("unsupported", caption, columns, rows)


def _unused_evidence_table(page: Page) -> Table:
    """Show answers that neither cite nor use their retrieved evidence."""
    rows = [
        {"row": row, "meaning": panel_words()["gaps"].get(row.value["reason"], tables.UNKNOWN)}
        for row in page.report["answers"]["gap"]["flagged"]
    ]
    columns = "question = row.query_id | reason = row.reason | meaning | answer = row.answer"
    caption = "Answers that neither cite nor use their retrieved evidence"
    return page.table("retrieval-gap", caption, columns, rows)
