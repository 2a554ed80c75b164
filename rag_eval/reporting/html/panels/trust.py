"""Trust and poisoning: trust of sources, findings of the guard, cost of a filter."""

from rag_eval.reporting.html.panel import UNKNOWN, Page, Panel, panel_words


def panel(page: Page) -> Panel:
    """Make the panel of trust and poisoning."""
    part, words = page.report["trust"], panel_words()
    guard, retrieved = part["poisoning"], page.by_strategy("trust", "retrieved")
    factors = [
        {
            "factor": meaning,
            "state": state,
            "n": count,
            "meaning": words["trust_states"][factor].get(state, UNKNOWN),
        }
        for factor, meaning in words["trust_factors"].items()
        for state, count in part["states"][factor].items()
    ]
    lists = [{"strategy": name, "found": found} for name, found in retrieved]
    reasons = [
        {"code": code, "n": n, "check": words["trust_checks"].get(code.split(".", 1)[0], UNKNOWN)}
        for code, n in sorted(guard["reasons"].items(), key=lambda item: (-item[1].value, item[0]))
    ]
    through = [
        {"strategy": name, "row": row}
        for name, found in retrieved
        for row in found.get("blocked") or ()
    ]
    tables = {
        "retrieved": page.table("trust-retrieved", lists),
        "factors": page.optional_table("trust-factors", part.get("factors") or ()),
        "states": page.table("trust-states", factors),
        "reasons": page.optional_table("trust-reasons", reasons),
        "quarantined": page.optional_table("quarantined", guard["quarantined"]),
        "through": page.optional_table("blocked-retrieved", through),
        "filtered": page.optional_table("trust-filter", part["filter"].get("rows") or ()),
    }
    context = {
        "trust": part,
        "guard": guard,
        "manifest": guard["manifest"],
        "quarantine": words["quarantine"][str(guard["quarantine"].value)],
        "primary": page.report.get("trust", "retrieved", page.primary, "avg_trust"),
    }
    return Panel("Trust", "trust.html", context, tables)
