"""Trust and poisoning: trust of sources, findings of the guard, cost of a filter."""

from rag_eval.reporting import report_tables as tables
from rag_eval.reporting.report_tables import Page, Panel
from rag_eval.reporting.tables import panel_words


def panel(page: Page) -> Panel:
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
        "factors": tables.trust_factors(page),
        "states": tables.trust_states(page),
        "reasons": tables.guard_reasons(page),
        "quarantined": tables.quarantined(page),
        "through": tables.blocked_retrieved(page),
        "filtered": tables.trust_filter(page),
    }
    return Panel("Trust", "trust.html", context, shown)
