"""Panel of answers: their outcomes, citations and groundedness."""

from rag_eval.core.types import CODES
from rag_eval.reporting import report_tables as tables
from rag_eval.reporting.report_tables import Page, Panel


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
        "unsupported": tables.unsupported(page),
        "flagged": tables.unused_evidence(page),
        "confidences": tables.answer_confidences(page),
        "usage": tables.usage(page),
        "ragas": tables.ragas(page),
    }
    return Panel(title, "citations.html", context, shown)
