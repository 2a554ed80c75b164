"""Panels of answers (outcomes, citations, groundedness) and of trust and poisoning."""

from rag_eval.core.types import CODES
from rag_eval.reporting import report_tables as tables
from rag_eval.reporting.report_tables import Page, Panel
from rag_eval.reporting.tables import Table, panel_words


def answer_panel(page: Page) -> Panel:
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


def trust_panel(page: Page) -> Panel:
    """Make the panel of trust and poisoning."""
    part = page.report["trust"]
    guard = part["poisoning"]
    context = {
        "trust": part,
        "guard": guard,
        "manifest": guard["manifest"],
        "quarantine": panel_words()["quarantine"][str(guard["quarantine"].value)],
        "primary": page.report.get("trust", "retrieved", page.primary, "avg_trust"),
    }
    shown = {
        "retrieved": tables.retrieved_trust(page),
        "states": _trust_states_table(page),
        "reasons": tables.guard_reasons(page),
        "quarantined": _quarantined_table(page),
        "through": _blocked_retrieved_table(page),
        "filtered": tables.trust_filter(page),
    }
    return Panel("Trust", "trust.html", context, shown)


# ---- Tables that only this panel shows.


def _trust_states_table(page: Page) -> Table:
    """Show the state of each factor."""
    words = panel_words()
    rows = [
        {
            "factor": meaning,
            "state": state,
            "chunks": count,
            "meaning": words["trust_states"][factor].get(state, tables.UNKNOWN),
        }
        for factor, meaning in words["trust_factors"].items()
        for state, count in page.report["trust"]["states"][factor].items()
    ]
    columns = "factor | state | chunks | meaning"
    return page.table("trust-states", "Factors of the chunks' trust", columns, rows)


def _quarantined_table(page: Page) -> Table:
    """Show the chunks that are left out, or without quarantine the blocked ones."""
    columns = "document = doc_id | chunk = chunk_id | source = source_url | reasons"
    caption = "Chunks that are left out, or without quarantine the blocked ones"
    rows = page.report["trust"]["poisoning"]["quarantined"]
    return page.table("quarantined", caption, columns, rows)


def _blocked_retrieved_table(page: Page) -> Table:
    """Show the blocked chunks that strategies retrieved."""
    rows = [
        {"strategy": name, "row": row}
        for name, entry in page.by_strategy("trust", "retrieved")
        for row in entry.get("blocked") or ()
    ]
    columns = """strategy | document = row.doc_id | chunk = row.chunk_id
        | question = row.query_id | rank = row.rank | times = row.n | reasons = row.reasons"""
    caption = "Blocked chunks that strategies retrieved"
    return page.table("blocked-retrieved", caption, columns, rows)
